//! Carries out one effect of the job's machine: the only place where what it wants is done to files, nodes and verbs.

use super::written_down::by_rank;
use super::{Arrival, Running};
use crate::drained;
use crate::input;
use crate::journaling;
use crate::manifest::{self, FORMAT, FORMAT_OF_WORLDS, ImageEntry, Manifest, merged_name};
use crate::programs;
use crate::record::now;
use crate::tiers::{foreign, has_images, record_held};
use crate::upkeep;
use mend_coordination::checkpoint::image_name;
use mend_coordination::failure::Trouble;
use mend_image::cpu::CpuNeeds;
use mend_job::event::{Effect, Event, FreeSpace, Notice, Publication, PublishedImage, Record, StdinEffect};
use mend_job::replay::Note;
use mend_messages::control::Answer;
use mend_messages::daemon::ToDaemon;
use mend_messages::frame::MAX_FRAME;
use mend_messages::tier::TierOrder;
use mend_report::with_causes;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Bytes of a manifest that a message to a node has room for.
const MAX_MANIFEST: usize = MAX_FRAME - (64 << 10);

/// What the file system of a directory says, which may not be there yet.
fn free_space(directory: &Path) -> Option<FreeSpace> {
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
    let found = rustix::fs::statvfs(there).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some(FreeSpace { left: bytes(found.f_bavail), all: bytes(found.f_blocks) })
}

impl Running {
    fn place(&self, number: u64) -> PathBuf {
        self.shell.record.checkpoints.join(number.to_string())
    }

    fn part(&self, number: u64) -> PathBuf {
        self.shell.record.checkpoints.join(format!("{number}.part"))
    }

    /// The answer, if there is one.
    pub(super) async fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Send { node, message } => {
                if let Some(node) = self.shell.nodes.get(node as usize) {
                    node.send(message);
                }
            }
            Effect::Answer { verb, outcome } => {
                let mut answer = self.shell.names.answer(outcome, &self.job.alive());
                if let Answer::Status(status) = &mut answer {
                    status.daemons = self.shell.nodes.iter().map(|node| node.address).collect();
                }
                let more = matches!(answer, Answer::Progress(_) | Answer::Moving(_));
                if let Some(answers) = self.verbs.get(&verb) {
                    // It may have gone away.
                    let _ = answers.send(answer);
                }
                if !more {
                    self.verbs.remove(&verb);
                }
            }
            Effect::Print { rank, stream, bytes } => {
                let printing = self.printing.take();
                self.shell.output.write(rank, stream, &bytes, printing);
            }
            Effect::OutputEnds { rank } => self.shell.output.ended(rank),
            Effect::Note { number } => {
                let note = Note { printed: self.printed(), input: self.shell.input.input.at_hold() };
                self.notes.insert(number, note);
            }
            Effect::Stdin(wanted) => return self.stdin(wanted).map(Event::Stdin),
            Effect::Record(record) => {
                if let Record::NodeLost { node, .. } = &*record {
                    self.shell.record.lost.extend(self.shell.names.nodes.get(*node as usize).cloned());
                }
                journaling::record(&mut self.shell.journal, &self.shell.names, &self.job.alive(), *record);
            }
            Effect::MeasureFreeSpace => return Some(Event::FreeSpace(free_space(&self.shell.record.checkpoints))),
            Effect::Tell(notice) => {
                let (names, alive) = (self.shell.names.clone(), self.job.alive());
                // What a rank printed comes before how it ended.
                let behind = matches!(notice, Notice::RankExited { .. } | Notice::RankKilled { .. });
                self.shell.output.tell(behind, move || names.tell(&notice, &alive));
            }
            Effect::Prepare { number, base } => {
                let result = match manifest::prepare(&self.shell.record.checkpoints, number) {
                    Ok(_) => Ok(self.is_good(base)),
                    Err(error) => Err(Trouble { error: with_causes(&error), hint: error.hint() }),
                };
                return Some(Event::Prepared { number, result });
            }
            Effect::Publish(publication) => {
                let (number, manifest) = (publication.number, self.manifest(*publication));
                let there = self.place(number);
                if !self.part(number).exists() && manifest::load(&there, self.shell.key.as_ref()).is_ok() {
                    // A lost controller has published it, and could not say so.
                    return Some(Event::Published { number, result: Ok(there.to_string_lossy().into_owned()) });
                }
                if let Err(error) = input::make_durable(&self.shell.directory) {
                    tracing::warn!(%error, "what is kept of standard input cannot be made durable");
                }
                let result = match manifest::publish(&self.part(number), &manifest, self.shell.key.as_ref()) {
                    Ok(place) => Ok(place.to_string_lossy().into_owned()),
                    Err(error) => Err(Trouble { error: with_causes(&error), hint: error.hint() }),
                };
                return Some(Event::Published { number, result });
            }
            Effect::Discard { number } => {
                self.notes.remove(&number);
                manifest::discard(&self.part(number));
            }
            Effect::Remove { asker, numbers } => {
                let result = upkeep::remove_by_hand(&self.shell.record.checkpoints, &numbers);
                let result = result.map_err(|error| Trouble { error: with_causes(&error), hint: error.hint() });
                return Some(Event::Removed { asker, result });
            }
            Effect::ListDrained => {
                // Where that cannot be looked up, no move is made on what is not known: it is tried again.
                let names = drained::list().map(|names| names.into_iter().collect());
                return Some(Event::Drained(names.unwrap_or_else(|error| {
                    tracing::warn!(error = with_causes(&error), "drained nodes cannot be listed");
                    self.shell.names.nodes.clone()
                })));
            }
            Effect::List => {
                return Some(manifest::listed(&self.shell.record.checkpoints).map_or_else(
                    |error| {
                        tracing::debug!(%error, "checkpoints cannot be listed");
                        Event::NotListed
                    },
                    |numbers| Event::Listed(self.shell.record.branch.with_elsewhere(numbers)),
                ));
            }
            Effect::StartUpkeep { bounds, weighed } => {
                let arrivals = self.shell.arrivals.clone();
                let report = move |done| {
                    // The loop may have ended.
                    let _ = arrivals.blocking_send(Arrival::Upkeep(done));
                };
                let abandoned = self.shell.record.branch.abandoned().to_vec();
                let rules = upkeep::UpkeepRules { bounds, key: self.shell.key.clone(), weighed, abandoned };
                self.upkeep = Some(upkeep::start(self.shell.record.checkpoints.clone(), rules, report));
            }
            Effect::CancelUpkeep => self.cancel_upkeep(),
            Effect::KeepRestarts(restarts) => {
                self.shell.record.restarts = restarts;
                self.put_on_record("what the restart took");
            }
            Effect::KeepRates { rank, rates } => {
                self.shell.record.rates.insert(rank, rates);
                self.put_on_record("what was measured of a rank that moved");
                let first_world = self.job.worlds().place(rank).0 == 0;
                if let Some(program) = self.shell.program.of(rank).argv.first().filter(|_| first_world) {
                    programs::keep(program, rates);
                }
            }
            Effect::KeepTiers { number, mut complete } => {
                complete.extend(foreign(&self.place(number), &self.shell.tiers));
                if let Err(error) = record_held(&self.place(number), complete) {
                    tracing::warn!(%error, number, "which tiers hold the checkpoint is not on record");
                }
            }
            Effect::StoreManifest { task, number, node, to } => match fs::read(self.place(number).join("manifest.json")) {
                Ok(text) if text.len() > MAX_MANIFEST => {
                    let why = format!("its manifest takes {} bytes, more than the {MAX_MANIFEST} that nodes take", text.len());
                    return Some(Event::ManifestUnreadable { task, why });
                }
                Ok(text) => {
                    let order = TierOrder::Manifest { task, number, to, text };
                    if let Some(node) = self.shell.nodes.get(node as usize) {
                        node.send(ToDaemon::Tier(Box::new(order)));
                    }
                }
                Err(error) => {
                    return Some(Event::ManifestUnreadable { task, why: format!("its manifest cannot be read: {error}") });
                }
            },
            Effect::RemoveImages { number, ranks } => {
                for rank in ranks {
                    // Another holder may have removed it.
                    let _ = fs::remove_file(self.place(number).join(image_name(rank)));
                    // Where chains were merged before the job had tiers.
                    let _ = fs::remove_file(self.place(number).join(merged_name(rank)));
                }
            }
            Effect::RemoveIfEmpty { number } => {
                // What can't be looked at may have some. A job with other tiers can go on from what is in object storage.
                let is_elsewhere = !foreign(&self.place(number), &self.shell.tiers).is_empty();
                let gone = !is_elsewhere && !has_images(&self.place(number)).unwrap_or(true);
                if gone {
                    // What is left of it cannot be restarted and is removed with the job.
                    let _ = fs::remove_dir_all(self.place(number));
                }
                return Some(Event::Emptied { number, gone });
            }
            Effect::MakeDurable => self.make_durable(),
            Effect::Over => {}
        }
        None
    }

    fn put_on_record(&self, what: &str) {
        if let Err(error) = self.shell.directory.write("job.json", &self.shell.record) {
            tracing::warn!(%error, "{what} is not on record");
        }
    }

    /// Whether a checkpoint can still be built on. Somebody may have damaged or removed it.
    fn is_good(&self, base: Option<(u64, Vec<mend_messages::agent::ImageId>)>) -> bool {
        let Some((number, ids)) = base else { return false };
        let found = manifest::load(&self.place(number), self.shell.key.as_ref());
        found.is_ok_and(|found| found.images.iter().map(|image| image.id).eq(ids))
    }

    /// What is to be given to rank 0.
    fn stdin(&mut self, wanted: StdinEffect) -> Option<Vec<u8>> {
        let (bytes, asks) = self.shell.input.input.apply(wanted);
        if asks {
            self.wants_input = true;
            self.shell.input.ask();
        }
        bytes
    }

    fn manifest(&mut self, publication: Publication) -> Manifest {
        let Note { printed, input } = self.notes.remove(&publication.number).unwrap_or_default();
        let shell = &self.shell;
        let image = |image: PublishedImage| ImageEntry {
            rank: image.rank,
            host: shell.names.nodes.get(image.node as usize).cloned().unwrap_or_default(),
            bytes: image.bytes,
            checksum: image.checksum,
            id: image.id,
            base: image.base,
            sequence: image.sequence,
            merged: false,
            needs: Some(image.needs).filter(|needs| *needs != CpuNeeds::default()),
        };
        let (pmi, spawned) = publication.worlds.into_parts();
        Manifest {
            format: if spawned.is_empty() { FORMAT } else { FORMAT_OF_WORLDS },
            release: mend_messages::RELEASE.into(),
            job: shell.record.id.clone(),
            identity: shell.identity,
            number: publication.number,
            taken: now(),
            program: shell.program.clone(),
            hosts: shell.names.nodes.clone(),
            local: shell.local,
            images: publication.images.into_iter().map(image).collect(),
            pmi,
            spawned,
            settled_times: !publication.files.is_empty(),
            files: publication.files,
            printed: by_rank(&printed),
            input: Some(input),
            phases: publication.phases,
            stopped_us: publication.stopped_us,
            periodic: publication.periodic,
            durable_us: publication.durable_us,
            tiers: shell.tiers.clone(),
            encrypted: shell.key.is_some(),
        }
    }

    pub(super) fn cancel_upkeep(&self) {
        if let Some(cancel) = &self.upkeep {
            cancel.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::free_space;

    #[test]
    fn a_directory_that_is_not_there_yet_is_on_the_file_system_of_the_one_above() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(free_space(&place.path().join("a/b")).map(|found| found.all), free_space(place.path()).map(|found| found.all));
        assert!(free_space(place.path()).is_some());
    }
}
