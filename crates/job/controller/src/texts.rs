//! What people read: the machine's notices, failures and ends, put into words. Nothing is decided by these texts.

use crate::error::{NODE_LOST, RunError};
use crate::manifest::ManifestError;
use mend_coordination::checkpoint::image_name;
use mend_coordination::failure::{Failure, Gone, Refusal, TargetTrouble};
use mend_image::cpu::CpuMismatch;
use mend_job::event::{End, GoesOn, JobPhase, NodeLoss, Notice, Outcome, SpawnTrouble, Status, Unexplained};
use mend_job::phase::RankPhase;
use mend_journal::text::size;
use mend_messages::agent::Unasked;
use mend_messages::control::{Answer, CheckpointDone, Explanation, JobStatus, RankStatus};
use mend_messages::daemon::ExitStatus;
use mend_messages::files::KeptFile;
use mend_messages::health::LeaveReason;
use mend_messages::job::NodeIndex;
use mend_messages::needs::{Difference, FileDifference};
use mend_messages::tier::{NodeStore, Tier};
use std::path::PathBuf;

/// Way out where there is none.
const NO_CHECKPOINT_HINT: &str = "it had no checkpoint; `mend run --interval auto` has some taken";

/// What does not change while the job runs.
#[derive(Clone, Debug)]
pub struct Names {
    /// Of the job.
    pub job: String,
    /// Its command line.
    pub command: Vec<String>,
    /// Of the nodes.
    pub nodes: Vec<String>,
    /// Where its checkpoints are.
    pub checkpoints: PathBuf,
    /// No message of ours unless something is wrong.
    pub quiet: bool,
    /// After a failure it goes on by itself.
    pub heals: bool,
    /// Ranks were placed where they lived, not where the checkpoint has them.
    pub moved: bool,
}

pub fn loss(how: &NodeLoss) -> String {
    match how {
        NodeLoss::Silent(ms) => format!("not a word for {ms} ms"),
        NodeLoss::Broken(why) | NodeLoss::Gone(why) => why.clone(),
        NodeLoss::Left => "it left the job".into(),
    }
}

fn listed(ranks: &[u32]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn gone(how: Gone) -> &'static str {
    match how {
        Gone::Ended => "has ended",
        Gone::WithItsNode => "is lost with its node",
    }
}

fn say(what: &str, hint: &str) {
    mend_report::tell!("{}", mend_report::failure("mend", what, hint));
}

/// What and a way out.
fn refusal(why: &Refusal) -> (String, String) {
    let (error, hint) = match why {
        Refusal::Told { error, hint } => return (error.clone(), hint.clone()),
        Refusal::Unasked(Unasked::Left) => {
            ("its agent went away: the process is ending, or has begun to run another program", "try again in a moment")
        }
        Refusal::Unasked(Unasked::NotHere) => ("it is not on this node", ""),
        Refusal::Unasked(Unasked::Restoring) => ("it is being restored", "try again in a moment"),
        Refusal::Unasked(Unasked::Ended) => ("it has ended", ""),
        Refusal::Unasked(Unasked::Silent) => ("its agent did not answer in time", "is the process stopped (SIGSTOP, a debugger)?"),
    };
    (error.to_owned(), hint.to_owned())
}

/// Why a rank cannot run on a node's processor, and the way out.
fn processor(rank: u32, node: &str, why: &CpuMismatch) -> (String, String) {
    match why {
        CpuMismatch::Features(missing) => (
            format!("the processor of node {node} lacks {missing}, which rank {rank} may be using"),
            format!(
                "choose a node that has all of it; for a program that does not use it, `mend run` and `mend restart` take MEND_IGNORE_CPU_FEATURES={}",
                missing.list()
            ),
        ),
        CpuMismatch::Registers { here, saved } => (
            format!(
                "node {node} keeps the registers of its processor in another layout than rank {rank}'s ({here} bytes instead of {saved})"
            ),
            "choose a node with the same kind of processor".into(),
        ),
    }
}

/// What a node has not that a rank uses, and the way out.
fn differs(rank: u32, node: &str, first: &Difference, more: u32) -> (String, String) {
    let (what, hint) = match first {
        Difference::Kernel { release } => (
            format!("the kernel of node {node} ({release}) has another vdso than the one that rank {rank} may return into"),
            format!("boot the same kernel on {node}, or choose another node"),
        ),
        Difference::File { path, what } => {
            let install = format!("install the same version on {node}, or choose another node");
            match what {
                FileDifference::Absent => (format!("{path}, which rank {rank} uses, is not on node {node}"), install),
                FileDifference::Unreadable(error) => (
                    format!("{path}, which rank {rank} uses, cannot be read on node {node}: {error}"),
                    format!("make it readable on {node}, or choose another node"),
                ),
                FileDifference::Kind => (format!("{path} on node {node} is not the kind of file that rank {rank} uses"), install),
                FileDifference::Size { there, here } => {
                    let (mut there_shown, mut here_shown) = (size(*there), size(*here));
                    if there_shown == here_shown {
                        (there_shown, here_shown) = (format!("{there} bytes"), format!("{here} bytes"));
                    }
                    (
                        format!("{path} on node {node} differs from the one that rank {rank} uses: {there_shown} instead of {here_shown}"),
                        install,
                    )
                }
                FileDifference::Content => {
                    let differs = "it has other content, or was changed at another time";
                    (format!("{path} on node {node} differs from the one that rank {rank} uses: {differs}"), install)
                }
            }
        }
    };
    (if more > 0 { format!("{what} (and {more} more)") } else { what }, hint)
}

fn not_rebuilt(why: &TargetTrouble) -> (String, String) {
    match why {
        TargetTrouble::Silent => ("its daemon did not answer in time".into(), "look at mendd's log on that node".into()),
        TargetTrouble::Processor(CpuMismatch::Features(missing)) => (
            format!("no node has a processor with {missing}, which its program may be using"),
            format!(
                "name a node that has all of it, with --hosts or --spares; for a program that does not use it set MEND_IGNORE_CPU_FEATURES={}",
                missing.list()
            ),
        ),
        TargetTrouble::Processor(why @ CpuMismatch::Registers { .. }) => {
            (why.to_string(), "name a node with the same kind of processor, with --hosts or --spares".into())
        }
        TargetTrouble::Told(trouble) | TargetTrouble::Files(trouble) => (trouble.error.clone(), trouble.hint.clone()),
        TargetTrouble::Ended => ("the restored process ended".into(), String::new()),
        TargetTrouble::NodeLost => ("the node is lost".into(), String::new()),
    }
}

impl Names {
    fn node(&self, node: NodeIndex) -> &str {
        self.nodes.get(node as usize).map_or("?", String::as_str)
    }

    /// What went wrong, and a way out, which may be empty. `alive`: nodes that are not lost.
    pub fn failure(&self, failure: &Failure, alive: &[NodeIndex]) -> (String, String) {
        let names = || alive.iter().map(|&node| self.node(node)).collect::<Vec<_>>().join(", ");
        let plain = |error: String| (error, String::new());
        match failure {
            Failure::Obstacle { rank, first, more } => {
                let more = if *more > 0 { format!(" (and {more} more)") } else { String::new() };
                (format!("rank {rank} cannot be saved: {}{more}", first.what), first.hint.clone())
            }
            Failure::Refused { rank, why } => {
                let (error, hint) = refusal(why);
                (format!("rank {rank}: {error}"), hint)
            }
            // Whoever wrote says in it what can be done.
            Failure::Unwritten { rank, why } => plain(format!("rank {rank}: {why}")),
            Failure::Lost { rank, how } => plain(format!("rank {rank} {}", gone(*how))),
            Failure::NotRebuilt { rank, node, why } => {
                let (why, hint) = not_rebuilt(why);
                (format!("rank {rank} cannot be rebuilt on {}: {why}", self.node(*node)), hint)
            }
            Failure::BothEnds { target, rank, source } => {
                let ((target, _), (source, hint)) = (self.failure(target, alive), refusal(source));
                (format!("{target}; rank {rank} where it was: {source}"), hint)
            }
            Failure::RankEnded { rank } => plain(format!("rank {rank} has ended already: a checkpoint holds all ranks or none")),
            Failure::MovesNoMore { rank } => plain(format!("rank {rank} has ended")),
            Failure::NoSuchRank { rank, size } => {
                (format!("there is no rank {rank}"), format!("ranks are 0 to {}", size.saturating_sub(1)))
            }
            Failure::NoSuchNode { name } => (
                format!("node {name} does not belong to this job"),
                format!("its nodes are {}; name more with --spares when you start it", names()),
            ),
            Failure::NodeIsLost { node } => (format!("node {} is lost", self.node(*node)), format!("alive: {}", names())),
            Failure::TakesNone { node } => (
                format!("node {} takes no ranks: those on it are to leave", self.node(*node)),
                "`mend node ls` says why; name another node".into(),
            ),
            Failure::ThereAlready { rank, node } => plain(format!("rank {rank} is on {} already", self.node(*node))),
            Failure::NoOtherNode => (
                "the job has no other node that takes ranks".into(),
                "name spares with --spares when you start it; `mend node ls` lists nodes, and which take none".into(),
            ),
            Failure::NoRoom { rank, node, needs, left } => (
                format!("rank {rank} takes {}, and node {} has {} of memory left", size(*needs), self.node(*node), size(*left)),
                "name a node with more memory, with --to; --spares at the job's start names more".into(),
            ),
            Failure::TooLargeToFollow { rank, node, needs, left } => (
                format!(
                    "rank {rank} takes {}, more than a quarter of the {} of memory that node {} has left: it does not follow its data",
                    size(*needs),
                    size(*left),
                    self.node(*node)
                ),
                format!("`mend migrate JOB {rank} --to {}` moves it all the same", self.node(*node)),
            ),
            Failure::Differs { rank, node, first, more } => differs(*rank, self.node(*node), first, *more),
            Failure::Processor { rank, node, why } => processor(*rank, self.node(*node), why),
            Failure::Cancelled { rank } => plain(format!("the move of rank {rank} was cancelled: it goes on where it was")),
            Failure::NotMoving { rank } => {
                (format!("rank {rank} is not being moved, or has come too far"), "`mend ps --json` says which ranks move".into())
            }
            Failure::JobEnded => {
                let hint = if self.heals { "if it goes on by itself, ask again when its ranks run (`mend ps`)" } else { "" };
                ("the job ended first".into(), hint.into())
            }
            Failure::NoSnapshot => plain("no snapshot was taken".into()),
            Failure::Storage(trouble) => (trouble.error.clone(), trouble.hint.clone()),
        }
    }

    /// What a verb is answered. `alive`: nodes that are not lost.
    pub fn answer(&self, outcome: Outcome, alive: &[NodeIndex]) -> Answer {
        match outcome {
            Outcome::Progress => Answer::Progress("another operation is under way, waiting for it".into()),
            Outcome::Status(status) => Answer::Status(self.status(&status)),
            Outcome::Checkpoint { publication, directory, notes } => Answer::Checkpoint(CheckpointDone {
                number: publication.number,
                directory,
                bytes: publication.files.iter().map(KeptFile::stored).fold(publication.bytes(), u64::saturating_add),
                phases: publication.phases,
                stopped_us: publication.stopped_us,
                durable_us: publication.durable_us,
                notes: {
                    let notes = notes.into_iter().map(|(rank, note)| format!("rank {rank}: {note}"));
                    notes.chain(publication.files.iter().filter_map(KeptFile::not_kept)).collect()
                },
            }),
            Outcome::Moving(progress) => Answer::Moving(progress),
            Outcome::Migrated(done) => Answer::Migrated(done),
            Outcome::Hurried => Answer::Hurried,
            Outcome::CancelledMove => Answer::CancelledMove,
            Outcome::Explained(found) => {
                let explanation = |(rank, node, inspection): (u32, NodeIndex, Result<_, Unexplained>)| Explanation {
                    rank,
                    host: self.node(node).to_owned(),
                    inspection: inspection.map_err(|why| match why {
                        Unexplained::Gone(how) => format!("it {}", gone(how)),
                        Unexplained::Refused(why) => refusal(&why).0,
                    }),
                };
                Answer::Explained(found.into_iter().map(explanation).collect())
            }
            Outcome::Removed => Answer::Removed,
            Outcome::Killed => Answer::Killed,
            Outcome::Noted => Answer::Noted,
            Outcome::Failed(failure) => {
                let (error, hint) = self.failure(&failure, alive);
                Answer::Failed { error, hint }
            }
        }
    }

    fn status(&self, status: &Status) -> JobStatus {
        let rank = |(rank, &(node, moves, phase)): (usize, &(NodeIndex, bool, RankPhase))| RankStatus {
            rank: rank as u32,
            host: self.node(node).to_owned(),
            to: status.coming.iter().find(|(moving, _)| *moving as usize == rank).map(|(_, to)| self.node(*to).to_owned()),
            ended: matches!(phase, RankPhase::Exited(_)),
            world: status.worlds.partition_point(|first| *first as usize <= rank) as u32,
            world_rank: rank as u32 - status.worlds.iter().rev().find(|first| **first as usize <= rank).copied().unwrap_or(0),
            state: match phase {
                RankPhase::Starting => "starting".into(),
                RankPhase::Restoring(_) => "restoring".into(),
                RankPhase::Running if moves => "moving".into(),
                RankPhase::Running => "running".into(),
                RankPhase::Exited(ExitStatus::Code(code)) => format!("exited {code}"),
                RankPhase::Exited(ExitStatus::Signal(signal)) => format!("signal {signal}"),
            },
        };
        let state = match status.phase {
            JobPhase::Starting => "starting",
            JobPhase::Running => "running",
            JobPhase::Checkpointing => "checkpointing",
            JobPhase::Migrating => "migrating",
            JobPhase::Ending => "ending",
        };
        JobStatus {
            id: self.job.clone(),
            command: self.command.clone(),
            state: state.into(),
            uptime_s: status.uptime_us / 1_000_000,
            hosts: self.nodes.clone(),
            daemons: Vec::new(),
            ranks: status.ranks.iter().enumerate().map(rank).collect(),
            last_checkpoint: status.last_checkpoint,
            restart: status.restart,
            interval_s: status.interval_s,
            incrementals: status.incrementals,
            extra_recovery_s: status.extra_recovery_s,
            restarts_measured: status.restarts_measured,
        }
    }

    /// What to do about a job that was ended.
    fn way_on(&self, newest: Option<u64>) -> String {
        newest.map_or_else(String::new, |number| format!("`mend restart {}` continues the job from checkpoint {number}", self.job))
    }

    /// Says it on standard error, or in the log.
    pub fn tell(&self, notice: &Notice, alive: &[NodeIndex]) {
        match notice {
            Notice::Restored { .. } | Notice::Schedule { .. } if self.quiet => {}
            Notice::Restored { ranks: 1 } => mend_report::tell!("mend: the rank is restored and runs"),
            Notice::Restored { ranks } => mend_report::tell!("mend: all {ranks} ranks are restored and run"),
            Notice::Schedule { interval_s, auto: true } => {
                mend_report::tell!("mend: a checkpoint after {interval_s:.0} s, then as often as its cost makes it best");
            }
            Notice::Schedule { interval_s, auto: false } => mend_report::tell!("mend: a checkpoint every {interval_s:.0} s"),
            Notice::Aborted { rank, code } => mend_report::tell!("mend: rank {rank} called MPI_Abort with code {code}"),
            Notice::SpawnFailed { rank, trouble } => {
                let hint = match trouble {
                    SpawnTrouble::NotStarted { hint, .. } => hint.as_str(),
                    SpawnTrouble::NoSuchHost(_) | SpawnTrouble::TakesNone(_) => {
                        "`mend ps` lists its nodes; without a host Mend chooses one"
                    }
                    _ => "",
                };
                say(&format!("rank {rank} asked for more processes (MPI_Comm_spawn) and gets an MPI error: {trouble}"), hint);
            }
            Notice::PmiViolation { rank, text } => tracing::warn!(rank, text, "not a PMI-1 request"),
            Notice::RankKilled { rank, node, signal, newest } => {
                let hint = if self.heals { String::new() } else { self.way_on(*newest) };
                say(&format!("rank {rank} on {} was ended by signal {signal}", self.node(*node)), &hint);
            }
            Notice::RankExited { rank, node, code } => {
                let own = if *code == NODE_LOST { "; the code is the program's own, no node was lost" } else { "" };
                mend_report::tell!("mend: rank {rank} on {} exited with code {code}{own}", self.node(*node));
            }
            Notice::Interrupted { .. } if self.quiet => {}
            Notice::Interrupted { signal, obey_s, newest } => {
                let what = format!(
                    "signal {signal} is passed on to the ranks; those that do not end within {obey_s} s, or at another signal, are killed"
                );
                say(&what, &self.way_on(*newest));
            }
            Notice::TimeUp { .. } if self.quiet => {}
            Notice::TimeUp { signal } => {
                mend_report::tell!(
                    "mend: the batch system wants the job to end (signal {signal}): a last checkpoint is taken, then it ends"
                );
            }
            Notice::NotSavedInTime { failure, again, newest } => {
                let (error, hint) = self.failure(failure, alive);
                say(&format!("the last checkpoint failed: {error}"), &hint);
                let then = if *again { "it is tried again" } else { "the job runs on until the batch system kills it" };
                let newest = newest.map_or_else(String::new, |number| format!("; checkpoint {number} is its newest"));
                mend_report::tell!("mend: {then}{newest}");
            }
            Notice::SpareLost { node, how } => {
                mend_report::tell!("mend: node {} is lost ({}); no rank was on it", self.node(*node), loss(how))
            }
            Notice::PlacedElsewhere { failure, node } => {
                let (error, _) = self.failure(failure, alive);
                mend_report::tell!("mend: {error}; it goes to {}", self.node(*node));
            }
            Notice::FilePut(warning) => mend_report::tell!("mend: {warning}"),
            Notice::Killed => mend_report::tell!("mend: the job was ended by `mend kill`"),
            Notice::GoesOnBadly { rank, why } => tracing::warn!(rank, error = refusal(why).0, "an agent reports a failure"),
            Notice::PeriodicFailed { failure, next_s } => {
                let (error, hint) = self.failure(failure, alive);
                say(&format!("a periodic checkpoint failed: {error}"), &hint);
                mend_report::tell!(
                    "mend: the job runs on; the next try comes in {next_s} s, then ever later, and is told of if it succeeds"
                );
            }
            Notice::PeriodicGoesOn { number } => mend_report::tell!("mend: checkpoint {number} succeeded; periodic checkpoints go on"),
            Notice::NodeUnfit { .. } | Notice::NodeFit { .. } if self.quiet => {}
            Notice::NodeUnfit { node, reason, why, left_ms, ranks } => {
                let what = if *reason == LeaveReason::Health { "is sick" } else { "is drained by the batch system" };
                let until = left_ms.map_or_else(String::new, |ms| format!(" within {} s", ms.div_ceil(1000)));
                let then = if ranks.is_empty() { "it takes no ranks".into() } else { format!("rank(s) {} leave it{until}", listed(ranks)) };
                mend_report::tell!("mend: node {} {what}: {why}; {then}", self.node(*node));
            }
            Notice::GoesBack { .. } if self.quiet => {}
            Notice::GoesBack { rank, from, to } => {
                mend_report::tell!("mend: rank {rank} goes back from {} to {}, where it is faster", self.node(*from), self.node(*to));
            }
            Notice::FollowsData { .. } if self.quiet => {}
            Notice::FollowsData { rank, from, to, with } => {
                let with = with.map_or_else(String::new, |with| format!(", in exchange for rank {with}"));
                mend_report::tell!("mend: rank {rank} moves from {} to {}{with}, where its data is", self.node(*from), self.node(*to));
            }
            Notice::NodeFit { node, reason: LeaveReason::Health } => mend_report::tell!("mend: node {} is well again", self.node(*node)),
            Notice::NodeFit { node, .. } => mend_report::tell!("mend: node {} is not drained any more", self.node(*node)),
            Notice::NowhereToGo { node, ranks, failure } => {
                let (error, hint) = self.failure(failure, alive);
                let what = format!("rank(s) {} are to leave node {} and stay: {error}", listed(ranks), self.node(*node));
                say(&what, &hint);
            }
            Notice::RoomAgain => {
                mend_report::tell!("mend: there is room again in {}; periodic checkpoints go on", self.checkpoints.display());
            }
            Notice::NoRoom { left, expected, reserve } => {
                let what = format!(
                    "no periodic checkpoints for now: {} has {} MiB left, the next one takes about {} MiB, and {} MiB stay free",
                    self.checkpoints.display(),
                    left >> 20,
                    expected >> 20,
                    reserve >> 20
                );
                say(&what, "`mend rm --ended` removes jobs that ended, --keep keeps fewer checkpoints; they go on when there is room");
            }
            Notice::Upkeep(failure) => mend_report::tell!("mend: {failure}"),
            Notice::NoPartner => mend_report::tell!("mend: the job has one node: nothing is kept in a partner's memory"),
            Notice::PassedOver { node, store, why } => {
                let tier = match store {
                    NodeStore::Memory => Tier::Memory,
                    NodeStore::Directory(path) => Tier::Local(path.clone()),
                };
                mend_report::tell!("mend: on {}, what {tier} would hold goes to the next tier: {why}", self.node(*node));
            }
            Notice::PortableNotCopied { tier, number, why } => {
                mend_report::tell!(
                    "mend: {tier} does not hold the whole portable checkpoint {number}: {why}; it is tried again until a newer one is there"
                );
            }
            Notice::TierGaveUp { tier, number, why } => {
                mend_report::tell!("mend: {tier} does not hold the whole checkpoint {number}: {why}")
            }
            Notice::BadCopy { image, node, source, why } => {
                let place = source.describe(self.node(*node), |node| self.node(node).to_owned());
                mend_report::tell!("mend: rank {}: its image of checkpoint {} in {place} {why}", image.rank, image.number);
            }
        }
    }

    fn goes_on(&self, goes_on: GoesOn, lost: &str) -> String {
        let id = &self.job;
        match goes_on {
            GoesOn::From(number) => format!("`mend restart {id}` continues it from checkpoint {number} on the hosts that are left"),
            GoesOn::NoCheckpoint => NO_CHECKPOINT_HINT.to_owned(),
            GoesOn::NotAllThere => format!(
                "the nodes that are left do not have all of any checkpoint; `mend restart {id}` needs {lost} back, or more tiers next time (--tiers)"
            ),
            GoesOn::Again => "`mend restart` again".into(),
        }
    }

    /// How the command ends.
    pub fn end(&self, end: End) -> Result<i32, RunError> {
        let host = |node: NodeIndex| self.node(node).to_owned();
        Err(match end {
            End::Code(code) => return Ok(code),
            End::RankKilled { signal, .. } => return Ok(128 + signal),
            End::NotStarted { rank, node, why, code } => RunError::Start { rank, host: host(node), error: why.error, hint: why.hint, code },
            End::NotRestored { rank, node, why, image } => {
                let (error, hint) = not_rebuilt(&why);
                RunError::Restore { rank, host: host(node), error, hint, image, moved: self.moved }
            }
            End::NoGoodCopy(image) => ManifestError::Image {
                rank: image.rank,
                path: self.checkpoints.join(image.number.to_string()).join(image_name(image.rank)),
                what: "has no good copy in any tier that can be reached".into(),
            }
            .into(),
            End::FileNotPut { node, error, kept } => RunError::File { host: host(node), error, kept, moved: self.moved },
            End::NodeLost { node, how, ranks, goes_on } => RunError::NodeLost {
                host: host(node),
                why: loss(&how),
                ranks: ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
                hint: self.goes_on(goes_on, self.node(node)),
            },
            End::MessagesLost { ranks, nodes, why, goes_on } => RunError::MessagesLost {
                ranks,
                hosts: (host(nodes.0), host(nodes.1)),
                why,
                hint: match goes_on {
                    GoesOn::From(number) => {
                        format!("look at the network between them; `mend restart {}` continues the job from checkpoint {number}", self.job)
                    }
                    _ => self.goes_on(goes_on, "lost nodes"),
                },
            },
            End::Refused { node, error } => RunError::Refused { host: host(node), error },
            End::TimeUp { signal, checkpoint } => RunError::TimeUp { signal, job: self.job.clone(), checkpoint },
            End::Interrupted(signal) => RunError::Interrupted { signal },
        })
    }
}
