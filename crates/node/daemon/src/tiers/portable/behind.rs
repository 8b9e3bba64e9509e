//! What all nodes share gets the checkpoints, while the job runs and when it has ended.

use super::{
    Directory, LOOK_AGAIN, OBJECT, OWNERS_TIME, PortableArea, SAY_AGAIN, SHARED, TELL_AGAIN, mark, marker, name_of, oldest_needed,
};
use crate::tiers::turns::Look;
use mend_messages::portable::{FileName, Part, PortableReport, checkpoint_name};
use mend_messages::tier::Tier;
use mend_report::with_causes;
use mend_transfer::image::{self, Mover};
use mend_transfer::object;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::slice;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

impl PortableArea {
    /// The thread that copies to what all nodes share.
    pub fn copy_behind(&self, mover: &Mover) {
        while !self.is_over() {
            let directories = self.directories();
            for tier in [SHARED, OBJECT] {
                self.copy_to_common(&directories, tier, mover, true);
            }
            self.pause();
        }
    }

    /// Copies what a tier lacks that all nodes share: in turn with other nodes, but for the end of the job, after which nobody is there to take turns with.
    /// Whether all of it is there now.
    fn copy_to_common(&self, directories: &[Directory], tier: &str, mover: &Mover, in_turn: bool) -> bool {
        let mut files = Vec::new();
        for directory in directories {
            files.extend(self.lacking("own", directory, tier).into_iter().map(|file| (directory, file)));
            // Its owner's node copies it, unless that is lost.
            if directory.since.is_some_and(|at| at.elapsed().is_ok_and(|since| since > OWNERS_TIME)) {
                files.extend(self.lacking("copies", directory, tier).into_iter().map(|file| (directory, file)));
            }
        }
        if in_turn && !self.has_turn(tier, !files.is_empty()) {
            return false;
        }
        let mut is_whole = true;
        let mut stored: HashMap<(&str, u64, u32), usize> = HashMap::new();
        for (directory, (name, path, bytes)) in files {
            if in_turn && self.is_over() {
                return false;
            }
            let done = match tier {
                SHARED => self.to_shared(directory, &name, &path, bytes, mover),
                _ => self.to_object(directory, &name, &path, bytes, mover),
            };
            let rank = (directory.key.as_str(), name.checkpoint, name.rank);
            match done {
                Ok(()) => *stored.entry(rank).or_default() += 1,
                Err(why) => {
                    is_whole = false;
                    self.tell(tier, &name, why);
                }
            }
            if tier == OBJECT && stored.get(&rank) == Some(&2) {
                mark(&directory.path, &name, OBJECT);
            }
        }
        self.end_turn(tier);
        is_whole
    }

    /// What is in one of both places and what a tier is to have and lacks.
    fn lacking(&self, kind: &str, directory: &Directory, tier: &str) -> Vec<(FileName, PathBuf, u64)> {
        let Some(&target) = directory.targets.tiers.get(tier) else { return Vec::new() };
        let mut chain = self.chain(kind, directory, target);
        chain.retain(|(name, _, _)| self.is_lacking(directory, tier, name));
        chain
    }

    /// The job has ended: copies what is to be copied of one directory; copies of other nodes' files if these nodes have not done it for so long. Whether nothing is
    /// lost if what is here goes.
    pub fn close_directory(&self, directory: &mut Directory, mover: &Mover, patience: Duration) -> bool {
        let copy = |directory: &Directory| [SHARED, OBJECT].map(|tier| self.copy_to_common(slice::from_ref(directory), tier, mover, false));
        directory.since = None;
        let mut copied = copy(directory);
        // What is in the directory is not needed in the object store.
        let tier = if self.has(&Tier::Shared) { SHARED } else { OBJECT };
        let lacking = |directory: &Directory| self.lacking("copies", directory, tier).len();
        let (mut left, mut since) = (lacking(directory), Instant::now());
        while left > 0 && since.elapsed() < patience {
            thread::sleep(LOOK_AGAIN);
            let now = lacking(directory);
            if now < left {
                since = Instant::now();
            }
            left = now;
        }
        if left > 0 {
            directory.since = Some(SystemTime::UNIX_EPOCH);
            copied = copy(directory);
        }
        let [to_shared, to_object] = copied;
        // A directory that cannot be looked into, as on a file system that hangs or is gone, does not say what it lacks.
        let newest = directory.targets.newest;
        let tells =
            directory.path.join("targets").exists() && (newest == 0 || matches!(oldest_needed(&directory.path, newest), Ok(Some(_))));
        tells && to_shared && (to_object || self.has(&Tier::Shared))
    }

    fn is_lacking(&self, directory: &Directory, tier: &str, name: &FileName) -> bool {
        match tier {
            SHARED => self.has(&Tier::Shared) && !directory.path.join(checkpoint_name(name.checkpoint)).join(name.file()).exists(),
            _ => self.object_base().is_some() && !marker(&directory.path, name, OBJECT).exists(),
        }
    }

    /// Whether this node may copy to a tier of all nodes, which it asks for if there is something to copy.
    fn has_turn(&self, tier: &str, needed: bool) -> bool {
        if !needed {
            self.end_turn(tier);
            return false;
        }
        let look = self.said().turns.look(tier, SAY_AGAIN, Instant::now());
        if let Look::Ask(turn) = look {
            self.say(PortableReport::Asks { tier: tier.to_owned(), turn });
        }
        look == Look::Granted
    }

    fn end_turn(&self, tier: &str) {
        let ended = self.said().turns.end(tier);
        if let Some(turn) = ended {
            self.say(PortableReport::Over { tier: tier.to_owned(), turn });
        }
    }

    fn tell(&self, called: &str, name: &FileName, why: String) {
        let mut said = self.said();
        if said.failures.get(called).is_some_and(|at| at.elapsed() < TELL_AGAIN) {
            return;
        }
        said.failures.insert(called.to_owned(), Instant::now());
        drop(said);
        tracing::warn!(tier = called, %name, why, "a file of a portable checkpoint is not copied");
        if let Some(spec) = self.tiers.iter().find(|spec| name_of(&spec.tier) == called) {
            self.say(PortableReport::NotCopied { name: name.clone(), tier: spec.tier.to_string(), why });
        }
    }

    fn to_shared(&self, directory: &Directory, name: &FileName, from: &Path, bytes: u64, mover: &Mover) -> Result<(), String> {
        let place = directory.path.join(checkpoint_name(name.checkpoint)).join(name.file());
        let copied = image::open(from).and_then(|mut source| mover.file_into_file(&mut source, bytes, &place));
        copied.map_err(|error| with_causes(&error))
    }

    fn object_base(&self) -> Option<String> {
        self.tiers.iter().find_map(|spec| match &spec.tier {
            Tier::Object(base) => Some(format!("{base}/portable")),
            _ => None,
        })
    }

    fn to_object(&self, directory: &Directory, name: &FileName, from: &Path, bytes: u64, mover: &Mover) -> Result<(), String> {
        let Some(base) = self.object_base() else { return Ok(()) };
        let copied = image::open(from).and_then(|mut source| mover.file_into_object(&mut source, bytes, &format!("{base}/{name}")));
        copied.map_err(|error| with_causes(&error))?;
        if name.rank == 0 && name.part == Part::Seal {
            let checkpoint = checkpoint_name(name.checkpoint);
            let manifest = fs::read(directory.path.join(&checkpoint).join("manifest")).map_err(|error| error.to_string())?;
            object::put_text(&manifest, &format!("{base}/{}/{checkpoint}/manifest", name.key())).map_err(|error| with_causes(&error))?;
        }
        Ok(())
    }

    pub fn get_object(&self, name: &FileName, mover: &Mover) -> Result<(), String> {
        let base = self.object_base().ok_or("no node of the job has it")?;
        let place = self.copy_of(name).map_err(|error| error.to_string())?;
        mover.object_into_file(&format!("{base}/{name}"), &place).map_err(|error| with_causes(&error))
    }
}
