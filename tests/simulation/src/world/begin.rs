//! A user begins the job, anew or from a checkpoint: names hosts and spares, or none, of which some are dead; the machines that choose
//! the checkpoint and the hosts are the controller's.
//!
//! What is asserted: a restart goes where the job ran last if any of that is there, else where the checkpoint was taken; only a host
//! that was named for ranks keeps the job from beginning; a host that was lost is not waited for; a bad checkpoint leads to an older one,
//! and a good one is not given up.

use super::World;
use super::succession::IDENTITY;
use crate::agent::RANK_BYTES;
use crate::coming::{Coming, SECOND_US};
use crate::node::Node;
use crate::story::Story;
use mend_coordination::placement::place;
use mend_job::Job;
use mend_job::choice::{Blame, CheckpointChoice, Checks, LoadFailure, Step};
use mend_job::event::{End, Event};
use mend_job::gathering::{GatherAction, Gathering, HostNeed, LastRun, RestartHosts, WantedHosts, restart_places};
use mend_job::safeguard::Kept;
use mend_messages::daemon::{FromDaemon, NodeRoom};
use mend_messages::job::NodeIndex;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::BTreeSet;

/// How long connecting to a dead host takes.
const NO_ANSWER_US: u64 = 5 * SECOND_US;
/// How much longer than for all others a lost host may be waited for.
const LOST_HOST_US: u64 = SECOND_US;

/// A restart under way: what chooses the checkpoint, the candidates, and what is to be done next.
pub type Choice = (CheckpointChoice, Vec<u64>, Step);

fn name(at: usize) -> String {
    format!("n{at}")
}

fn number(name: &str) -> usize {
    name.trim_start_matches('n').parse().unwrap_or(0)
}

impl World {
    fn kept(&self) -> Kept {
        Kept::without(self.options.safeguard)
    }

    /// Begins the next life: from the newest checkpoint that can be restarted, or anew.
    pub(crate) fn revive(&mut self) -> Result<(), String> {
        if self.nodes.iter().any(|node| !node.ranks.is_empty() || node.leaving) {
            self.plan(SECOND_US, Coming::Revive);
            return Ok(());
        }
        for at in 0..self.nodes.len() {
            if at == 0 || self.chance(2) {
                self.nodes[at].up = true;
            }
        }
        if self.choice.is_none() {
            self.lives_left -= 1;
        }
        let newest = self.disk.numbers().last().copied();
        if let Some(number) = newest.filter(|&number| self.tiers.is_empty() && !self.disk.is_restorable(number)) {
            return Err(format!("the newest checkpoint, {number}, cannot be restarted"));
        }
        let from = self.choose()?;
        let spares = self.draw_spares();
        let Some(hosts) = self.gather(from, &spares)? else {
            // The user has the nodes started again.
            self.nodes.iter_mut().for_each(|node| node.up = true);
            self.choice = None;
            self.lives_left += u64::from(self.lives_left == 0);
            self.plan(SECOND_US, Coming::Revive);
            return Ok(());
        };
        self.begin_life(from, &hosts, &spares)
    }

    fn begin_life(&mut self, from: Option<u64>, hosts: &[String], spares: &[String]) -> Result<(), String> {
        self.hosts = hosts.iter().map(|host| number(host)).collect();
        self.life += 1;
        self.summary.lives += 1;
        (self.failed_for_real, self.signalled, self.hung, self.upkeep) = (false, None, None, false);
        (self.time_up, self.killed) = (None, false);
        self.removed_unknown.clear();
        self.failed_unknown.clear();
        (self.effects_under_way, self.numbers_of_life, self.story) = (0, BTreeSet::new(), Story::default());
        self.reasons.clear();
        self.lost_told.clear();
        self.verbs.clear();
        let places = self.places(from, hosts, spares)?;
        let session = self.take_lock();
        for at in self.hosts.clone() {
            let standing = self.takes_over(at, &places);
            let node = &mut self.nodes[at];
            let mut stores = std::mem::take(&mut node.stores);
            stores.open();
            *node = Node { up: true, connection: self.life, stores, standing, ..Node::default() };
            node.table.enter(IDENTITY, self.life, session).map_err(|present| format!("the job cannot come to node {at}: {present:?}"))?;
            self.job_comes_to(at);
        }
        self.disturb_rollback();
        self.last = Some(LastRun { hosts: hosts.to_vec(), lost: Vec::new() });
        let check = matches!(self.choice, Some((.., Step::Begin(_, Checks::Before))));
        let stdin = self.begin_input(from);
        let setup = self.setup(from, places, (check, stdin));
        let (mut job, effects) = Job::begin(setup.clone(), self.now);
        if let Some(safeguard) = self.options.safeguard {
            job.sabotage(safeguard);
        }
        self.job = Some(job);
        self.from = from;
        self.tell_processors();
        self.tell_health();
        self.forget_returns();
        self.forget_data();
        self.retold = self.may_be_succeeded().then(|| self.begin_log(setup));
        self.carry_out(effects)?;
        self.tell_rooms()
    }

    /// Some nodes tell how much memory they have, and some of these have too little. Drawn apart, so that all else stays as it was.
    fn tell_rooms(&mut self) -> Result<(), String> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed.wrapping_add(self.life << 32));
        for at in self.hosts.clone() {
            let memory = match rng.next_u64() % 8 {
                0 => RANK_BYTES - 1,
                1 => RANK_BYTES,
                2 => 1000 * RANK_BYTES,
                _ => continue,
            };
            self.nodes[at].memory = Some(memory);
            let node = self.hosts.iter().position(|&host| host == at).unwrap_or_default() as NodeIndex;
            let message = FromDaemon::Pong(NodeRoom { memory, processors: 2, load: 0 });
            self.feed(Event::Daemon { node, message })?;
        }
        Ok(())
    }

    fn places(&mut self, from: Option<u64>, hosts: &[String], spares: &[String]) -> Result<Vec<NodeIndex>, String> {
        let Some((_, before)) = from.and_then(|number| self.manifests.get(&number)) else {
            let ranked = hosts.iter().filter(|host| !spares.contains(host)).count().max(1);
            return place(self.size, &vec![0; ranked]).map_err(|error| error.to_string());
        };
        let place = |stood: &[Option<String>]| restart_places(before, stood, hosts, spares, None).map_err(|error| error.to_string());
        let places = place(&self.stood)?;
        self.moved = places != place(&[])?;
        let is_there = |host: &&String| hosts.contains(host) && !spares.contains(host);
        for (rank, (before, &node)) in before.iter().zip(&places).enumerate() {
            let lived = self.stood.get(rank).and_then(Option::as_ref).filter(is_there);
            if lived.or(Some(before)).filter(is_there).is_some_and(|host| hosts[node as usize] != *host) {
                return Err(format!("rank {rank} does not stay where it was, and could"));
            }
        }
        Ok(places)
    }

    /// The checkpoint to begin from; `None`: there is none.
    fn choose(&mut self) -> Result<Option<u64>, String> {
        let (mut choice, numbers, mut step) = self.choice.take().unwrap_or_else(|| {
            let numbers = self.disk.numbers();
            let mut choice = CheckpointChoice::new(numbers.len(), self.kept());
            let first = choice.next_candidate();
            (choice, numbers, first)
        });
        loop {
            step = match step {
                Step::Load(at) => {
                    let there = self.disk.publication(numbers[at]).is_some();
                    choice.loaded(if there { Ok(!self.tiers.is_empty()) } else { Err(LoadFailure::Unusable) })
                }
                Step::Begin(at, _) => {
                    let number = numbers[at];
                    self.choice = Some((choice, numbers, step));
                    return Ok(Some(number));
                }
                Step::PassOver(_) => choice.next_candidate(),
                Step::End => {
                    // What the nodes of the last try had of it was looked at then.
                    if let (true, Some(good)) = (self.tiers.is_empty(), numbers.iter().find(|&&number| self.disk.is_sound(number))) {
                        return Err(format!("the restart gives up, and checkpoint {good} is good"));
                    }
                    // The user begins anew, without what is of no use.
                    self.disk.clear();
                    return Ok(None);
                }
            }
        }
    }

    /// A life is over: a restart that failed for its checkpoint goes on with another.
    pub(crate) fn restart_ended(&mut self) {
        let moved = std::mem::take(&mut self.moved);
        self.stood.clear();
        let end = self.job.as_ref().and_then(|job| job.end_reason());
        if let (Some(job), Some(End::NodeLost { .. } | End::MessagesLost { .. } | End::RankKilled { .. })) = (&self.job, end) {
            self.stood = job.stood().to_vec();
        }
        let Some((mut choice, numbers, _)) = self.choice.take() else { return };
        let blame = match end {
            Some(End::NotRestored { .. } | End::NoGoodCopy(_) | End::FileNotPut { .. }) if moved => Blame::Places,
            Some(End::NotRestored { image: true, .. }) => Blame::Image,
            Some(End::NoGoodCopy(_)) => Blame::Checkpoint,
            _ => return,
        };
        let step = choice.failed(blame);
        self.choice = Some((choice, numbers, step));
    }

    fn draw_spares(&mut self) -> Vec<String> {
        let some: Vec<usize> = (1..self.nodes.len()).filter(|_| self.chance(5)).collect();
        some.into_iter().map(name).collect()
    }

    /// The hosts that the job begins on; `None`: it does not, and that is right.
    fn gather(&mut self, from: Option<u64>, spares: &[String]) -> Result<Option<Vec<String>>, String> {
        let named: Vec<String> = match from.is_none() || self.chance(4) {
            true => (0..self.nodes.len()).filter(|&at| self.nodes[at].up && !spares.contains(&name(at))).map(name).collect(),
            false => Vec::new(),
        };
        let kept = self.kept();
        let (wanted, of_checkpoint) = match from.and_then(|number| self.manifests.get(&number)) {
            None => (WantedHosts::of_start(&named, spares, kept), Vec::new()),
            Some((of_checkpoint, _)) => {
                let (of_checkpoint, last) = (of_checkpoint.clone(), self.last.clone());
                let (named, spares) = (named.clone(), spares.to_vec());
                let known = RestartHosts { named, spares, of_checkpoint: of_checkpoint.clone(), local: false, last };
                (WantedHosts::of_restart(&known, kept), of_checkpoint)
            }
        };
        let others: Vec<usize> = wanted.hosts.iter().filter(|(_, need)| *need != HostNeed::Lost).map(|(host, _)| number(host)).collect();
        let (begun, over, mut waited) = (self.now, self.connect(wanted, kept)?, 0);
        for (at, time) in &over.1 {
            if others.contains(at) {
                waited = waited.max(*time);
            }
        }
        let last: Vec<String> = self.last.as_ref().map(|last| last.hosts.clone()).unwrap_or_default();
        let is_up = |host: &&String| self.nodes[number(host)].up;
        match over.0 {
            GatherAction::Gathered(hosts) => {
                let there = over.1.iter().any(|(at, time)| others.contains(at) && self.nodes[*at].up && *time <= waited);
                if there && self.now > waited.max(begun) + LOST_HOST_US {
                    return Err("a restart waits for a host that was lost".into());
                }
                let unwanted = |host: &&String| self.is_unfit(number(host)) && !named.contains(host);
                if let (Some(host), true) = (hosts.iter().find(unwanted), hosts.iter().any(|host| !unwanted(&host))) {
                    return Err(format!("the job begins on {host}, which ranks are to leave, and others are there"));
                }
                let asked: Vec<&String> = if named.is_empty() { last.iter().filter(is_up).collect() } else { named.iter().collect() };
                let strange = |host: &&String| !asked.contains(host) && !spares.contains(host);
                if let (true, Some(host)) = (asked.iter().any(|host| !spares.contains(host)), hosts.iter().find(strange)) {
                    return Err(format!("the job begins on {host}, and ran on {last:?}"));
                }
                Ok(Some(hosts))
            }
            GatherAction::Missing(host) if named.contains(&host) => Ok(None),
            GatherAction::Missing(host) => Err(format!("a spare that is dead, {host}, keeps the job from beginning")),
            GatherAction::NobodyLeft(_) => match last.iter().chain(&of_checkpoint).chain(spares).find(is_up) {
                Some(host) => Err(format!("none of the hosts answers, and {host} does")),
                None => Ok(None),
            },
            _ => Err("gathering ends in the middle".into()),
        }
    }

    /// Connects, which takes time. How it ends, and when each host answered or failed.
    fn connect(&mut self, wanted: WantedHosts, kept: Kept) -> Result<(GatherAction, Vec<(usize, u64)>), String> {
        let (mut machine, mut actions) = Gathering::begin(wanted, self.now, kept);
        let (mut under_way, mut heard) = (BTreeSet::new(), Vec::new());
        loop {
            for action in std::mem::take(&mut actions) {
                if self.options.trace {
                    eprintln!("{:>12}     => {action:?}", self.now);
                }
                match action {
                    GatherAction::Connect(hosts) => {
                        for host in hosts {
                            let time = if self.nodes[number(&host)].up { self.delay() } else { NO_ANSWER_US };
                            under_way.insert((self.now + time, host));
                        }
                    }
                    GatherAction::LeaveOut { host, unfit: false, .. } if self.nodes[number(&host)].up && !self.is_lost(&host) => {
                        return Err(format!("{host} is left out, and answers"));
                    }
                    GatherAction::LeaveOut { .. } | GatherAction::Use(_) => {}
                    over => return Ok((over, heard)),
                }
            }
            let next = under_way.first().map(|(time, _)| *time);
            let Some(time) = next.into_iter().chain(machine.next_deadline()).min() else { return Err("nobody is waited for".into()) };
            self.now = self.now.max(time);
            actions = match under_way.pop_first() {
                Some((due, host)) if due == time => {
                    heard.push((number(&host), time));
                    match self.nodes[number(&host)].up {
                        true if self.is_unfit(number(&host)) => machine.answered_unfit(self.now, &host),
                        true => machine.answered(self.now, &host),
                        false => machine.failed(self.now, &host),
                    }
                }
                later => {
                    under_way.extend(later);
                    machine.time(self.now)
                }
            };
        }
    }

    fn is_lost(&self, host: &String) -> bool {
        self.last.as_ref().is_some_and(|last| last.lost.contains(host))
    }
}
