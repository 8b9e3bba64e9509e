//! What must be so, whatever happens.

use super::World;
use crate::coming::{Coming, SECOND_US};
use crate::node::Phase;
use mend_coordination::failure::{Failure, TargetTrouble};
use mend_job::Job;
use mend_job::event::{End, GoesOn};
use mend_job::phase::RankPhase;
use mend_messages::job::Rank;

/// A failure that comes of what was asked, not of anything that is wrong.
pub fn is_expected(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Cancelled { .. }
            | Failure::NotMoving { .. }
            | Failure::ThereAlready { .. }
            | Failure::NoOtherNode
            | Failure::TakesNone { .. }
            | Failure::NoRoom { .. }
            | Failure::Processor { .. }
            | Failure::Differs { .. }
            | Failure::TooLargeToFollow { .. }
            | Failure::Storage(_)
            | Failure::JobEnded
            | Failure::NoSuchNode { .. }
    )
}

impl World {
    /// At every moment.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        for rank in 0..self.size {
            let copies = self.nodes.iter().filter_map(|node| node.ranks.get(&rank)).filter(|process| process.phase.runs());
            if copies.count() > 1 {
                return Err(format!("two copies of rank {rank} run"));
            }
        }
        if self.nodes.iter().flat_map(|node| node.ranks.values()).any(|process| process.overlapped) {
            return Err("two ranks that move stand still at once".into());
        }
        if let Some(newest) = self.disk.numbers().last()
            && self.tiers.is_empty()
            && !self.disk.is_restorable(*newest)
        {
            return Err(format!("the newest checkpoint, {newest}, cannot be restarted"));
        }
        if let (Some(since), Some(_), true) = (self.signalled, &self.job, self.has_controller())
            && self.now > since + 30 * SECOND_US
        {
            return Err("a signal did not end the job".into());
        }
        Ok(())
    }

    /// When nothing is under way.
    pub(crate) fn look_at_peace(&mut self) -> Result<(), String> {
        if !self.is_quiet() {
            return Ok(());
        }
        let Some(job) = &self.job else { return Ok(()) };
        let all_run =
            (0..self.size).all(|rank| job.rank(rank).is_some_and(|state| matches!(state.phase, RankPhase::Running | RankPhase::Exited(_))));
        if !all_run || job.open_matters() != (0, 0) {
            return Err("nothing is on its way, and ranks are waited for".into());
        }
        if !self.disk.unfinished().is_empty() {
            return Err(format!("what was written of checkpoints {:?} is left behind", self.disk.unfinished()));
        }
        for rank in 0..self.size {
            self.look_at_rank(job, rank)?;
        }
        self.look_at_standing()?;
        self.look_at_stores()?;
        self.look_at_input()?;
        self.check_verbs()
    }

    fn look_at_rank(&self, job: &Job, rank: Rank) -> Result<(), String> {
        let Some(state) = job.rank(rank) else { return Ok(()) };
        let home = self.hosts[state.node as usize];
        for (at, node) in self.nodes.iter().enumerate() {
            match node.ranks.get(&rank) {
                Some(process) if at == home && process.number != state.attempt => {
                    return Err(format!(
                        "the process of rank {rank} is number {}, and the job counts on {}",
                        process.number, state.attempt
                    ));
                }
                Some(_) if at != home => return Err(format!("a copy of rank {rank} is left on node {at}")),
                Some(process) if process.phase != Phase::Runs && !process.stuck => {
                    return Err(format!("rank {rank} stands still ({:?}), and nobody lets it go on", process.phase));
                }
                None if at == home && state.phase == RankPhase::Running && node.up => {
                    return Err(format!("rank {rank} is gone, and nobody noticed"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// All ranks of a restart are complete, or have been.
    pub(crate) fn all_are_built(&self) -> Result<(), String> {
        let Some(job) = self.job.as_ref().filter(|job| job.end_reason().is_none()) else { return Ok(()) };
        for rank in 0..self.size {
            let Some(state) = job.rank(rank) else { continue };
            let home = &self.nodes[self.hosts[state.node as usize]];
            if home.ranks.get(&rank).is_some_and(|process| process.phase == Phase::Building) {
                return Err(format!("others go on while rank {rank} is being rebuilt"));
            }
        }
        Ok(())
    }

    /// The job is over.
    pub(crate) fn check_end(&mut self) -> Result<(), String> {
        self.check_verbs()?;
        self.story.is_complete()?;
        let Some(job) = &self.job else { return Ok(()) };
        for (at, node) in self.nodes.iter().enumerate() {
            if node.up && node.connection == self.life && !node.ranks.is_empty() && !self.reasons.contains("a node was lost") {
                return Err(format!("it is over, and ranks live on node {at}"));
            }
        }
        if !self.disk.unfinished().is_empty() {
            return Err(format!("it is over, and what was written of checkpoints {:?} is left behind", self.disk.unfinished()));
        }
        if let Some(End::NoGoodCopy(image)) = job.end_reason() {
            return self.check_no_copy(image);
        }
        if let Some(End::NodeLost { goes_on: GoesOn::From(number), .. }) = job.end_reason() {
            self.check_left(*number)?;
        }
        if let Some(End::Code(0)) = job.end_reason() {
            self.check_closed()?;
        }
        if self.killed && job.end_reason() != Some(&End::Code(137)) {
            return Err(format!("somebody was told that it is killed, and it ended by {:?}", job.end_reason()));
        }
        let reason = |what: &str| self.reasons.contains(what);
        let good = match job.end_reason() {
            None => false,
            Some(End::Code(_) | End::RankKilled { .. }) => reason("a rank ended") || reason("killed") || reason("a signal"),
            Some(End::NotRestored { rank, why: TargetTrouble::Processor(_), .. }) => {
                self.no_processor_for(*rank) || reason("a node was lost")
            }
            Some(End::NotStarted { .. } | End::NotRestored { image: false, .. }) => reason("a rank did not come to be"),
            Some(End::NotRestored { .. }) => reason("an image is bad"),
            Some(End::NoGoodCopy(_) | End::FileNotPut { .. } | End::Refused { .. }) => false,
            Some(End::NodeLost { .. }) => reason("a node was lost"),
            Some(End::MessagesLost { ranks, .. }) => {
                let node = |rank: Rank| job.rank(rank).map_or(0, |state| state.node);
                let now = (ranks.0, ranks.1, node(ranks.0), node(ranks.1));
                self.lost_told.contains(&now)
            }
            Some(End::Interrupted(_)) => reason("a signal"),
            Some(End::TimeUp { checkpoint, .. }) => self.saved_in_time(*checkpoint),
        };
        if good { Ok(()) } else { Err(format!("it ended for no reason: {:?}", job.end_reason())) }
    }

    /// A job whose time is up ends with a checkpoint of what its ranks had come to, unless ranks, nodes or messages are lost: it goes on nowhere then.
    /// It goes on where no node has anything of it.
    fn saved_in_time(&self, checkpoint: Option<u64>) -> bool {
        let Some((before, rebuilding)) = self.time_up else { return false };
        let lost = ["a rank ended", "a node was lost"].iter().any(|what| self.reasons.contains(what)) || !self.lost_told.is_empty();
        let excused = rebuilding || self.vanished.is_some() || lost;
        let newer = checkpoint.filter(|number| Some(*number) > before);
        excused || self.disk.numbers().last().copied() > before && newer.is_none_or(|number| self.outlives_nodes(number))
    }

    /// Ranks that wait for messages that will never come do not wait for ever.
    pub(crate) fn check_hung(&self) -> Result<(), String> {
        let Some((one, first, other, second, since)) = self.hung else { return Ok(()) };
        let lives = |rank: Rank, attempt: u64| {
            self.nodes.iter().any(|node| node.ranks.get(&rank).is_some_and(|process| process.attempt == attempt))
        };
        let waited = self.now > since + 60 * SECOND_US;
        if waited && lives(one, first) && lives(other, second) {
            return Err(format!("ranks {one} and {other} wait for each other for ever"));
        }
        Ok(())
    }

    /// Nothing that is under way between the job and a node arrives.
    pub(crate) fn drop_messages(&mut self, life: u64, at: usize) {
        let is_between = |coming: &Coming| matches!(coming, Coming::ToNode { life: its, at: there, .. } | Coming::ToJob { life: its, at: there, .. } if (*its, *there) == (life, at));
        self.retain(|coming| !is_between(coming));
        self.forget_held(is_between);
        self.nodes[at].cut = true;
    }
}
