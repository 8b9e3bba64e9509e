//! Saving the rank, and what the agent does first in a restored process.

use super::inspection::{INSPECTION_VALIDITY, Inspected};
use super::{Agent, Stage, micros_since, refused};
use crate::agent_loop::wakeup;
use crate::capture::memory_headroom::CopyBackoff;
use crate::capture::quiesced_process::QuiescedProcess;
use crate::capture::report::ReportPage;
use crate::capture::save::{self, Outcome, Snapshot};
use crate::capture::save_request::SaveRequest;
use crate::capture::shared_copies::SharedCopyMemory;
use crate::capture::target::Target;
use crate::descriptors::attached::Attached;
use crate::descriptors::table;
use crate::memory::maps;
use crate::network::{Frozen, Network};
use crate::restore;
use mend_kernel::table::LiftedLimit;
use mend_messages::agent::{FromAgent, Reply, SaveMode, SaveOrder, SaveTarget};
use mend_report::with_causes;
use rustix::fd::AsRawFd;
use std::io;
use std::time::Instant;

impl Agent {
    /// What a save that shall not stop the program for long needs; or why it has to.
    fn snapshot(
        &mut self,
        order: &SaveOrder,
        fits: Option<Result<(), String>>,
        (shared_copy_memory, report_page): (Option<SharedCopyMemory>, Option<ReportPage>),
    ) -> Result<Option<Snapshot>, String> {
        let dirty_copy_memory = self.dirty_copy_memory.take().filter(|_| order.base.is_some());
        if order.mode == SaveMode::Stop {
            return Ok(None);
        }
        let stopped = |why: &str| format!("the program stood still while the image was written: {why}");
        match self.copy_backoff.advises_against().or_else(|| fits.unwrap_or_else(|| self.fits()).err()) {
            Some(why) => Err(stopped(&why)),
            None => match report_page.map_or_else(ReportPage::new, Ok) {
                Ok(report_page) => Ok(Some(Snapshot { report_page, rate: order.rate, dirty_copy_memory, shared_copy_memory })),
                Err(errno) => Err(stopped(&errno.to_string())),
            },
        }
    }

    /// `None` in a restored process.
    pub(super) fn save(&mut self, order: SaveOrder) -> io::Result<Option<Reply>> {
        if !matches!(self.stage, Stage::Suspended) {
            return Ok(Some(refused("a rank is saved only while it is suspended")));
        }
        if let Some(background) = &mut self.background {
            match background.give_up("another image was asked for") {
                Some(result) => self.tell_written(result)?,
                None => return Ok(Some(refused("the process that wrote the last image hangs in its target"))),
            }
        }
        let (advice, cpu, clear, fits, memory) = match self.inspected.take().filter(|found| found.at.elapsed() < INSPECTION_VALIDITY) {
            Some(Inspected { advice, cpu, clear, fits, shared_copy_memory, report_page, .. }) => {
                (Some(advice), Some(cpu), clear, fits, (shared_copy_memory, report_page))
            }
            None => (None, None, None, None, (None, None)),
        };
        let (snapshot, note) = match self.snapshot(&order, fits, memory) {
            Ok(snapshot) => (snapshot, None),
            Err(why) => (None, Some(why)),
        };
        let (files_kept, compression) = (order.files_kept, order.compression);
        let mut rest = None;
        if order.target != SaveTarget::Begun {
            self.precopy = None;
        }
        let target = match (order.target, self.link.take_descriptor()) {
            (SaveTarget::File(path), _) => Target::File(path),
            (SaveTarget::Descriptor, Some(descriptor)) => Target::Stream(descriptor),
            (SaveTarget::Descriptor, None) => return Ok(Some(refused("no descriptor came with the request"))),
            (SaveTarget::Begun, _) => match self.precopy.take().map(|precopy| precopy.finish(&mut self.tracker)) {
                Some(Ok((socket, prepared))) => {
                    rest = Some(prepared);
                    Target::Stream(socket)
                }
                Some(Err(error)) => return Ok(Some(refused(&error.to_string()))),
                None => return Ok(Some(refused("no copy of the rank was begun, or it has failed"))),
            },
        };
        let Some(identity) = self.identity.clone() else { return Ok(Some(refused("the daemon has not welcomed this agent"))) };
        let pause = wakeup::WakeupPause::new();
        let prepared = rest.unwrap_or_else(|| self.tracker.prepare(order.base, order.track));
        let advice = advice.unwrap_or_else(maps::advice);
        let mut frozen = self.network.freeze();
        frozen.close_provider();
        let mut own_descriptors = self.own_descriptors();
        frozen.own_descriptors(&mut |fd| own_descriptors.push(fd));
        own_descriptors.extend(wakeup::sender_number());
        if let (Target::Stream(stream), false) = (&target, table::apart()) {
            own_descriptors.push(stream.as_raw_fd());
        }
        let (start, end) = self.scratch.range();
        let mut excluded = vec![(start as u64, end as u64)];
        frozen.excluded_memory(&mut |start, length| excluded.push((start as u64, (start + length) as u64)));
        excluded.extend(self.tracker.memory());
        excluded.extend(snapshot.iter().flat_map(Snapshot::memory));
        excluded.sort_unstable();
        let (scratch, attached, identity) = (&self.scratch, &self.attached, &identity);
        let mut request =
            SaveRequest { scratch, attached, identity, own_descriptors, excluded, advice, cpu, clear, files_kept, compression };
        match save::save(&mut request, target, &mut self.fingerprints, &mut self.tracker, prepared, snapshot) {
            Ok(Outcome::Saved(mut saved, quiesced, background)) => {
                saved.note = save::joined(note, saved.note);
                self.stage = Stage::Parked { threads: quiesced, fabric: Some(frozen) };
                self.background = background;
                if self.background.is_none() {
                    self.copy_backoff.stood_still();
                }
                Ok(Some(Reply::Saved(*saved)))
            }
            Ok(Outcome::Restored(quiesced)) => {
                table::join();
                pause.end();
                let rings: Vec<_> = request.excluded.iter().filter(|(from, _)| *from != start as u64).copied().collect();
                self.restored(quiesced, frozen, &rings).map(|()| None)
            }
            Err(error) => Ok(Some(Reply::Failed { error: with_causes(&error), hint: error.hint().to_string() })),
        }
    }

    /// The process has just come back. Its other threads are parked, its descriptors are the restorer's.
    fn restored(&mut self, quiesced: Box<QuiescedProcess>, frozen: Box<dyn Frozen>, rings: &[(u64, u64)]) -> io::Result<()> {
        let began = Instant::now();
        self.tracker.forget();
        self.copy_backoff = CopyBackoff::default();
        let handoff = match restore::handoff(&self.scratch) {
            Ok(handoff) => handoff,
            // Nothing is known about this process, not even how to speak to the daemon.
            Err(_) => restore::end_process(),
        };
        // The streams have new identities.
        self.attached = Attached::behind(handoff.attach.map(|fd| (fd >= 0).then_some(fd)));
        if let Some(wakeup) = self.wakeup.take() {
            wakeup.forget();
        }
        let result = restore::rebuild(&quiesced, &handoff)
            .map_err(|error| (with_causes(&error), error.is_for_files()))
            .map(|locks| self.locks = locks);
        self.lifted = Some(LiftedLimit::new());
        self.link.adopt(handoff.agent_fd);
        // Whatever may fail does so while the daemon can still do without this process.
        let listen = || wakeup::WakeupSocket::open().map_err(|error| format!("its agent cannot listen to the program: {error}"));
        let others = || frozen.rebuild().and_then(|()| listen()).map_err(|error| (error, false));
        let result = result.and_then(|()| others()).map(|wakeup| self.wakeup = Some(wakeup));
        if let Err((error, files)) = result {
            self.link.send(&FromAgent::RestoreFailed { error, files })?;
            // The daemon ends this process; its threads never run.
            loop {
                if self.link.receive().is_err() {
                    restore::end_process();
                }
            }
        }
        for (start, end) in rings {
            // SAFETY: memory of channels that the fabric has forgotten; nobody refers to it.
            unsafe { mend_freestanding::syscall(libc::SYS_munmap, [*start as usize, (end - start) as usize, 0, 0, 0, 0]) };
        }
        self.stage = Stage::Parked { threads: quiesced, fabric: None };
        self.held_map = None;
        self.suspended_at = None;
        let rebuild_us = micros_since(began);
        self.link.send(&FromAgent::Restored { rank: self.environment.rank, rebuild_us })
    }
}
