//! Inspections: what stands in the way of a save, and what can be made ready for one while the program runs.

use super::{Agent, Stage};
use crate::agent_loop::wakeup;
use crate::capture::dirty_copies::DirtyCopyMemory;
use crate::capture::inspect::{self, Surroundings, resident_bytes};
use crate::capture::memory_headroom;
use crate::capture::report::ReportPage;
use crate::capture::save_request::CleanInspection;
use crate::capture::shared_copies::SharedCopyMemory;
use crate::descriptors::node_files::CopyBuffer;
use crate::descriptors::transient;
use crate::memory::address_space::AddressSpace;
use crate::memory::maps;
use crate::network::{Frozen, Network};
use mend_image::cpu::CpuNeeds;
use mend_kernel::processor;
use mend_messages::agent::{ImageId, Inspection};
use std::time::{Duration, Instant};

/// For how long a save relies on what an inspection found. A program seldom changes it, and if it does
/// between an inspection and the save, it might as well have done so between an examination and parking.
pub(super) const INSPECTION_VALIDITY: Duration = Duration::from_secs(1);
/// How long the agent rests after an inspection: as long as that took, but no longer than a few slices of the scheduler's, so that it gets a processor at once when it
/// is asked to suspend.
const REST_BOUNDS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));

/// See [`INSPECTION_VALIDITY`].
pub(super) struct Inspected {
    pub at: Instant,
    pub advice: maps::Advice,
    pub cpu: CpuNeeds,
    /// If nothing stood in the way.
    pub clear: Option<CleanInspection>,
    /// Why there is no memory for a copy of the process, if so. `None`: not known.
    pub fits: Option<Result<(), String>>,
    /// See [`SharedCopyMemory`].
    pub shared_copy_memory: Option<SharedCopyMemory>,
    /// Where the background writer tells its progress.
    pub report_page: Option<ReportPage>,
}

impl Agent {
    pub(super) fn inspect(&mut self, ahead: Option<ImageId>, files: bool) -> Inspection {
        self.inspected = None;
        let begun = Instant::now();
        let pause = (!matches!(self.stage, Stage::Parked { .. })).then(wakeup::WakeupPause::new);
        let tracking = self.tracker.describe();
        // Before the fabric is held: both take long, and the program's calls would wait.
        let (advice, cpu) = (maps::advice(), self.processor_needs());
        self.dirty_copy_memory = ahead.and_then(|base| self.prepare_dirty_copies(base, &advice));
        // Held for an examination, so that no channel is opened between listing the fabric's descriptors and examining all, and let go
        // while transient descriptors are waited for.
        let ((held, surroundings, descriptors), errors) = transient::examine_again(|errors| {
            let (held, surroundings) = self.surroundings();
            let descriptors = inspect::descriptors(&self.attached, &surroundings, errors);
            (held, surroundings, descriptors)
        });
        let in_use = self.network.in_use();
        let (mut found, loose) = inspect::inspect(&surroundings, &descriptors, &errors, &advice, &mut self.fingerprints, (in_use, files));
        found.needs.processor = cpu;
        drop(held);
        let clear = found.obstacles.is_empty() && !surroundings.provider_open;
        let clear = clear.then(|| (descriptors.written_files(), CopyBuffer::new(loose)));
        // Another copy gives its memory back before the next one is made.
        let fits = self.background.is_none().then(|| self.fits());
        let shared_copy_memory = SharedCopyMemory::new(advice.values().map(|advised| advised.shared).sum()).ok();
        let report_page = ReportPage::new().ok();
        drop(descriptors);
        drop(pause);
        // Last, since all of that has taken memory.
        let clear =
            clear.map(|(written_files, copy_buffer)| CleanInspection { written_files, copy_buffer, space: AddressSpace::read().ok() });
        // It has had more of the processor than its share, which the program is owed: later that would be while the job waits.
        std::thread::sleep(begun.elapsed().clamp(REST_BOUNDS.0, REST_BOUNDS.1));
        self.inspected = Some(Inspected { at: Instant::now(), advice, cpu, clear, fits, shared_copy_memory, report_page });
        Inspection { tracking, ..found }
    }

    /// What the program needs of a processor: all that this one offers, but for what it is known not to use.
    pub(super) fn processor_needs(&self) -> CpuNeeds {
        processor::detect().needs(self.identity.as_ref().map(|identity| identity.unused_features).unwrap_or_default())
    }

    /// What of the process is not the program's, true as long as the fabric is held. A parked rank's is held already.
    fn surroundings(&self) -> (Option<Box<dyn Frozen>>, Surroundings) {
        let held = (!matches!(self.stage, Stage::Parked { .. })).then(|| self.network.freeze());
        let (mut own, mut excluded) = (self.own_descriptors(), Vec::new());
        own.extend(wakeup::sender_number());
        if let Some(held) = &held {
            held.own_descriptors(&mut |fd| own.push(fd));
            held.excluded_memory(&mut |start, length| excluded.push((start as u64, (start + length) as u64)));
        }
        excluded.extend(self.tracker.memory());
        excluded.extend(self.background.iter().flat_map(|background| background.memory()));
        excluded.extend(self.precopy.iter().map(|precopy| precopy.memory()));
        let provider_open = held.as_ref().is_some_and(|held| held.provider_open());
        let copy = self.background.as_ref().and_then(|background| background.outer());
        (held, Surroundings { own, excluded, provider_open, copy, main_process: self.environment.main_process })
    }

    /// Memory for copies of what changed since an image, if that is to be copied.
    fn prepare_dirty_copies(&self, base: ImageId, advice: &maps::Advice) -> Option<DirtyCopyMemory> {
        let changed = self.tracker.changed(base, &maps::read().ok()?)?;
        DirtyCopyMemory::for_changes(changed, advice.values().map(|advised| advised.small).sum(), self.ranks_here)
    }

    /// Whether there is memory for a copy of the process; why not.
    pub(super) fn fits(&self) -> Result<(), String> {
        memory_headroom::shortage(resident_bytes(), self.ranks_here).map_or(Ok(()), Err)
    }
}
