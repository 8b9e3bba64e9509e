//! The agent of a rank, as a contract: what it answers, and what state its process is in then. Records of conversations with real agents
//! are checked against it ([`replay`]).

use crate::node::{Phase, Process};
use mend_messages::agent::{Compression, ImageId, Inspection, Obstacle, Reply, Request, SaveMode, SaveOrder, SaveTarget, Saved};
use std::collections::{BTreeMap, VecDeque};

/// What a rank takes where it moves to, bytes.
pub const RANK_BYTES: u64 = 10;

/// A failure in an agent's words.
pub fn failed(why: &str) -> Reply {
    Reply::Failed { error: why.into(), hint: String::new() }
}

impl Process {
    /// Does what is asked, or fails. `id`: the name of the image, if one is taken.
    pub fn answer(&mut self, request: &Request, fails: bool, id: ImageId) -> Reply {
        match request {
            _ if self.phase == Phase::Paused => failed("the rank is paused: it goes back to an image, or never goes on"),
            Request::Inspect { .. } if fails => {
                let obstacles = vec![Obstacle { what: "a socket".into(), hint: String::new() }];
                Reply::Inspected(Inspection { obstacles, ..Inspection::default() })
            }
            Request::Inspect { .. } => Reply::Inspected(Inspection { image_bytes: RANK_BYTES, ..Inspection::default() }),
            Request::Suspend | Request::SuspendPeer(_) if fails => failed("channels did not drain in time"),
            Request::Suspend => {
                if self.phase == Phase::Runs {
                    self.phase = Phase::Suspended;
                }
                Reply::Suspended { us: 1 }
            }
            Request::SuspendPeer(_) => {
                self.overlapped |= matches!(self.phase, Phase::Suspended | Phase::Parked);
                Reply::Suspended { us: 1 }
            }
            Request::KeepFiles(_) => Reply::Kept(Vec::new()),
            Request::SyncFiles => Reply::Synced,
            Request::Precopy { .. } if fails || self.phase != Phase::Runs => failed("it cannot be copied while it runs"),
            Request::Precopy { .. } => Reply::Precopying,
            Request::EndPrecopy => Reply::PrecopyEnded,
            Request::Save(_) if self.phase != Phase::Suspended => failed("it is not suspended"),
            Request::Save(_) if fails => failed("no space left"),
            Request::Save(order) => {
                self.phase = Phase::Parked;
                match &order.target {
                    SaveTarget::Descriptor | SaveTarget::Begun => Reply::Saved(Saved { bytes: 10, ..Saved::default() }),
                    SaveTarget::File(_) => Reply::Saved(self.saved(order, id)),
                }
            }
            // Only daemons ask these.
            Request::Pause if fails || self.phase == Phase::Built => failed("it has not come out of an image yet"),
            Request::Pause => {
                self.phase = Phase::Paused;
                Reply::Paused
            }
            Request::RollBack(_) => failed("only a paused rank can go back to an image"),
            Request::Resume => {
                self.stale_marker |= self.phase == Phase::Parked;
                self.phase = Phase::Runs;
                Reply::Resumed { stopped_us: 1 }
            }
        }
    }

    /// The image that it builds on if it takes one now, and its place in its chain.
    pub fn below(&self, order: &SaveOrder) -> (Option<ImageId>, u32) {
        let below = self.tracked.filter(|(tracked, _)| order.base == Some(*tracked));
        (below.map(|(id, _)| id), below.map_or(0, |(_, sequence)| sequence + 1))
    }

    fn saved(&mut self, order: &SaveOrder, id: ImageId) -> Saved {
        let (base, sequence) = self.below(order);
        let behind = order.mode == SaveMode::CopyOnWrite;
        self.tracked = Some((id, sequence));
        self.behind = behind.then_some(id);
        Saved { id, base, sequence, behind, bytes: if behind { 0 } else { 10 }, ..Saved::default() }
    }
}

/// A request of this kind.
fn request(kind: &str) -> Option<Request> {
    let file = |mode| Request::Save(SaveOrder { mode, ..SaveOrder::full(SaveTarget::File("/c/1/rank-0.image".into())) });
    let keep = || mend_messages::files::KeepOrder { checkpoint: "/c/1".into(), limit: 0, seal: None };
    Some(match kind {
        "inspect" => Request::Inspect { ahead: None, files: false },
        "suspend" => Request::Suspend,
        "suspend-peer" => Request::SuspendPeer(0),
        "save" => file(SaveMode::Stop),
        "save-behind" => file(SaveMode::CopyOnWrite),
        "precopy" => Request::Precopy { answered: true, compression: Compression::Off },
        "end-precopy" => Request::EndPrecopy,
        "save-begun" => Request::Save(SaveOrder::full(SaveTarget::Begun)),
        "save-stream" => Request::Save(SaveOrder::full(SaveTarget::Descriptor)),
        "keep-files" => Request::KeepFiles(keep()),
        "sync-files" => Request::SyncFiles,
        "resume" => Request::Resume,
        "pause" => Request::Pause,
        _ => return None,
    })
}

/// Plays a record of conversations, `RANK.PROCESS < REQUEST` and `RANK.PROCESS > WORD` line by line, with agents of this contract. Returns
/// how many answers were compared.
///
/// # Errors
/// The line that an agent of this contract would not have said.
pub fn replay(record: &str) -> Result<usize, String> {
    let mut processes: BTreeMap<&str, (Process, VecDeque<&str>)> = BTreeMap::new();
    let mut compared = 0;
    for line in record.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let strange = || format!("not said by the contract: {line}");
        let [who, direction, kind] = line.split(' ').collect::<Vec<_>>()[..] else { return Err(format!("no line of a record: {line}")) };
        match (direction, kind) {
            (">", "hello") => drop(processes.insert(who, (Process::new(Phase::Runs), VecDeque::new()))),
            (">", "restored") => drop(processes.insert(who, (Process::new(Phase::Built), VecDeque::new()))),
            (">", "fabric-in-use" | "fabric-up" | "report" | "round" | "precopy-failed") => {}
            ("<", kind) => processes.get_mut(who).ok_or_else(strange)?.1.push_back(kind),
            (">", "written" | "unwritten") => {
                processes.get_mut(who).and_then(|(process, _)| process.behind.take()).ok_or_else(strange)?;
            }
            (">", kind) => {
                let (process, open) = processes.get_mut(who).ok_or_else(strange)?;
                let asked = open.pop_front().and_then(request).ok_or_else(strange)?;
                let mut otherwise = process.clone();
                if process.answer(&asked, false, ImageId::default()).kind() != kind {
                    if otherwise.answer(&asked, true, ImageId::default()).kind() != kind {
                        return Err(strange());
                    }
                    *process = otherwise;
                }
                compared += 1;
            }
            _ => return Err(strange()),
        }
    }
    Ok(compared)
}
