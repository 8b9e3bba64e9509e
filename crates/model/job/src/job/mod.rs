//! A job's life. All its state is in [`Job`]; everything outside reaches it as an [`Event`].
//!
//! ```text
//! start:    Starting ──Started──► Running ──Exited──► Exited
//! restart:  [images are looked for] ─► Restoring ──Restored + FabricUp, all ranks──► Running
//! ```
//! It is over when a reason to end is known *and* every node confirmed (or is lost, or had its time), and every effect that is to be
//! answered was.
//!
//! Faults assumed: daemons and nodes die or fall silent at any moment; agents do not answer; disks are full; messages come late,
//! twice or for something that is over.

mod anew;
mod checkpoint;
mod comparison;
mod ending;
mod explain;
mod following;
mod going_back;
mod input;
mod journal;
mod leaving;
mod losses;
mod migration;
mod operation;
mod periodic;
mod placing;
mod portable;
mod ranks;
mod requests;
mod restart;
mod spawning;
mod tiers;
mod time_up;

use self::anew::Anew;
use self::following::Following;
use self::going_back::Returns;
use self::input::MovingInput;
use self::spawning::Spawning;
use self::time_up::TimeUp;
use crate::data_losses::DataLosses;
use crate::event::{Asker, Effect, End, Event, Notice, Outcome, StdinEffect};
use crate::healing::Healing;
use crate::leaving::Departures;
use crate::losses::Losses;
use crate::noted::Noted;
use crate::operation::Operation;
use crate::periodic::Periodic;
use crate::phase::RankPhase;
use crate::questions::Questions;
use crate::roster::{RankState, Roster};
use crate::safeguard::Safeguard;
use crate::search::{Holdings, Search};
use crate::setup::{Adopted, CheckpointPlan, Moving, Restoring, Saving, Setup};
use crate::tiering::Tiering;
use crate::tokens::Tokens;
use mend_coordination::worlds::Worlds;
use mend_messages::control::{Ask, Phases};
use mend_messages::daemon::{RestoreSource, ToDaemon};
use mend_messages::files::PutBack;
use mend_messages::job::{NodeIndex, Rank};
use mend_policy::precopy::MeasuredRates;
use mend_policy::restarts::Restarts;
use mend_policy::retention::is_given_up;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

const SECOND_US: u64 = 1_000_000;
/// A map that changed is published so long after, with what changes meanwhile.
pub(crate) const MAP_DELAY_US: u64 = 20_000;
/// Copies in tiers are looked after so often.
const TIDY_US: u64 = SECOND_US;
/// From the first Ctrl-C to the end of ranks that do not obey.
pub(crate) const OBEY_US: u64 = 5 * SECOND_US;
/// For daemons to reap the ranks at the end.
const REAP_US: u64 = 10 * SECOND_US;
/// A verb that comes before all ranks' agents spoke waits this long for them.
pub(crate) const AGENTS_US: u64 = 10 * SECOND_US;

/// The job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Of the last event, microseconds of the caller's clock.
    pub(crate) now_us: u64,
    pub(crate) begun_us: u64,
    /// Empty between two events.
    effects: Vec<Effect>,
    pub(crate) id: String,
    pub(crate) identity: [u8; 16],
    pub(crate) checkpoints: PathBuf,
    /// Numbers of the checkpoints that there are, as far as is known.
    pub(crate) listed: BTreeSet<u64>,
    /// Of these are given up, for each pair: those after the first number, up to the second.
    pub(crate) abandoned: Vec<(u64, u64)>,
    /// The one that is in another directory.
    pub(crate) elsewhere: Option<u64>,
    /// Times that they are being looked for.
    pub(crate) lists: u32,
    /// Those that were published meanwhile: what is found may be older.
    pub(crate) newer_than_lists: BTreeSet<u64>,
    pub(crate) adopted: Vec<Adopted>,
    pub(crate) roster: Roster,
    pub(crate) worlds: Worlds,
    pub(crate) spawning: Spawning,
    pub(crate) anew: Anew,
    pub(crate) noted: Noted,
    pub(crate) operation: Option<Operation>,
    /// A checkpoint whose images are still being written while all ranks run, or whose manifest is.
    pub(crate) background: Option<Operation>,
    /// Checkpoints that were given up while their directory was being made.
    pub(crate) discarding: BTreeSet<u64>,
    /// Checkpoints are being removed.
    pub(crate) removing: Option<(Asker, Vec<u64>)>,
    pub(crate) waiting: VecDeque<(Ask, Asker, u64)>,
    /// Verbs that want to know the job's state, once the checkpoints are listed.
    pub(crate) asking_status: Vec<Asker>,
    pub(crate) periodic: Periodic,
    pub(crate) plan: CheckpointPlan,
    /// Of the newest checkpoint that this machine had published, or 0. No number is given again: copies of what had it before may
    /// still be under way or be going.
    pub(crate) last_number: u64,
    pub(crate) questions: Questions,
    pub(crate) map_version: u64,
    /// When it is to be published.
    pub(crate) map_due_us: Option<u64>,
    tidy_due_us: u64,
    pub(crate) restarts: Restarts,
    pub(crate) restart: Option<Phases>,
    /// What a restart that is not complete reads.
    pub(crate) restoring: Option<Restoring>,
    /// A restart waits for its nodes to tell what their processors offer.
    pub(crate) placing: bool,
    pub(crate) searching: Option<Search>,
    /// Nodes that are putting files back.
    pub(crate) putting: BTreeSet<NodeIndex>,
    pub(crate) tiers: Option<Tiering>,
    pub(crate) tokens: Tokens,
    pub(crate) resumed_at_us: Option<u64>,
    /// More standard input may come.
    pub(crate) stdin: bool,
    pub(crate) input: MovingInput,
    pub(crate) drain_timeout_us: u64,
    pub(crate) losses: Losses,
    pub(crate) data_losses: DataLosses,
    pub(crate) departures: Departures,
    pub(crate) returns: Returns,
    pub(crate) following: Following,
    pub(crate) saving: Saving,
    pub(crate) moving: Moving,
    /// What was seen of ranks that were copied while they ran.
    pub(crate) rates: BTreeMap<Rank, MeasuredRates>,
    pub(crate) program_rates: Option<MeasuredRates>,
    /// Of the ranks that did not end well the one with the lowest number, and its exit code.
    pub(crate) failed: Option<(Rank, i32)>,
    /// `None`: it does not go on by itself.
    pub(crate) healing: Option<Healing>,
    pub(crate) interrupted: Option<(i32, u64)>,
    pub(crate) time_up: Option<TimeUp>,
    pub(crate) ending: Option<(End, u64)>,
    /// The host of each rank that lived when the end began, by rank.
    pub(crate) stood: Vec<Option<String>>,
    over: bool,
    #[cfg(feature = "sabotage")]
    sabotaged: BTreeSet<Safeguard>,
}

impl Job {
    /// A job that begins now, and what is to be done first.
    #[must_use]
    pub fn begin(setup: Setup, now_us: u64) -> (Self, Vec<Effect>) {
        let phase = if setup.restoring.is_some() { RankPhase::Restoring(false) } else { RankPhase::Starting };
        let used = setup.places.iter().collect::<BTreeSet<_>>().len() as u32;
        let periodic = Periodic::new(&setup.plan, used, setup.tiers.is_none(), &setup.restarts, setup.reserve, now_us);
        let tiers = setup.tiers.as_ref().map(|tiers| Tiering::new(tiers, setup.nodes.len() as u32, setup.identity, setup.plan.keep));
        let mut job = Self {
            now_us,
            begun_us: now_us,
            effects: Vec::new(),
            id: setup.id,
            identity: setup.identity,
            checkpoints: setup.checkpoints,
            // Numbers of what was given up, or lies elsewhere, are not given again, though it is removed.
            last_number: setup
                .listed
                .iter()
                .copied()
                .chain(setup.abandoned.iter().map(|(_, last)| *last))
                .chain(setup.elsewhere)
                .max()
                .unwrap_or(0),
            listed: setup.listed.into_iter().collect(),
            abandoned: setup.abandoned,
            elsewhere: setup.elsewhere,
            lists: 0,
            newer_than_lists: BTreeSet::new(),
            adopted: setup.adopted,
            roster: Roster::new(setup.nodes, &setup.places, phase).without(&setup.gone),
            worlds: setup.worlds,
            spawning: Spawning::default(),
            anew: Anew::default(),
            noted: Noted::default(),
            operation: None,
            background: None,
            discarding: BTreeSet::new(),
            removing: None,
            waiting: VecDeque::new(),
            asking_status: Vec::new(),
            periodic,
            plan: setup.plan,
            questions: Questions::default(),
            map_version: 0,
            map_due_us: None,
            tidy_due_us: now_us.saturating_add(TIDY_US),
            restarts: setup.restarts,
            restart: None,
            restoring: setup.restoring,
            placing: false,
            searching: None,
            putting: BTreeSet::new(),
            tiers,
            tokens: Tokens::new(setup.token_key),
            resumed_at_us: None,
            stdin: setup.stdin,
            input: MovingInput::default(),
            drain_timeout_us: setup.drain_timeout_us,
            losses: Losses::new(setup.node_timeout_us),
            data_losses: DataLosses::default(),
            departures: Departures::default(),
            returns: Returns::new(setup.goes_back, setup.time_left_s.map(|left| now_us.saturating_add(left.saturating_mul(SECOND_US)))),
            following: Following::new(setup.follows_data),
            saving: setup.saving,
            moving: setup.moving,
            rates: setup.rates,
            program_rates: setup.program_rates,
            failed: None,
            healing: setup.healing,
            interrupted: None,
            time_up: None,
            ending: None,
            stood: Vec::new(),
            over: false,
            #[cfg(feature = "sabotage")]
            sabotaged: BTreeSet::new(),
        };
        job.begin_ranks();
        let effects = std::mem::take(&mut job.effects);
        (job, effects)
    }

    fn begin_ranks(&mut self) {
        let search = self.restoring.as_ref().and_then(|restoring| restoring.search.clone());
        self.open_tiers(search.as_ref());
        if let Some(interval_s) = self.periodic.interval_s() {
            self.tell(Notice::Schedule { interval_s, auto: self.periodic.is_auto(&self.plan) });
        }
        self.note_choice();
        self.begin_placing();
    }

    /// Every rank has its place.
    pub(crate) fn begin_images(&mut self) {
        match self.restoring.as_mut().and_then(|restoring| restoring.search.take()) {
            Some(search) => self.begin_search(search),
            None => self.order_ranks(BTreeMap::new(), &[], 0),
        }
    }

    /// Has files put back and then all ranks started or rebuilt. `holdings`: what the nodes have of older checkpoints; tasks are
    /// numbered from `first_task`.
    pub(crate) fn order_ranks(&mut self, holdings: Holdings, brought: &[(u64, Rank)], first_task: u64) {
        self.adopt(&holdings, brought, first_task);
        if !self.put_files() {
            self.build_ranks();
        }
    }

    /// Has all ranks started or rebuilt.
    pub(crate) fn build_ranks(&mut self) {
        self.note_places();
        let put_back = self.restoring.as_ref().and_then(|restoring| PutBack::of(&restoring.files));
        for rank in self.roster.all_living() {
            let attempt = self.roster.new_attempt();
            self.roster.ranks[rank as usize].attempt = attempt;
            let order = match &self.restoring {
                None => ToDaemon::Start { rank, attempt, stdin: self.stdin && rank == 0 },
                Some(restoring) => {
                    let chain = restoring.chains.get(rank as usize).cloned().unwrap_or_default();
                    let image = restoring.images.get(rank as usize).copied();
                    let (source, stdin) = (RestoreSource::Files(chain), self.stdin && rank == 0);
                    ToDaemon::Restore { rank, attempt, source, image, stdin, put_back: put_back.clone() }
                }
            };
            self.send_to_rank(rank, order);
        }
        self.start_upkeep(false);
        if self.restoring.is_none() && self.stdin {
            self.effect(Effect::Stdin(StdinEffect::Read));
        }
    }

    /// What a search found takes the place of the files in the checkpoint directory.
    pub(crate) fn take_found(&mut self, chains: Vec<Vec<PathBuf>>, read_us: u64) {
        if let Some(restoring) = &mut self.restoring {
            restoring.chains = chains;
            restoring.reads.read_us = read_us;
        }
    }

    /// Takes an event; returns what is to be done, in this order. After the job is over nothing is done.
    pub fn handle(&mut self, now_us: u64, event: Event) -> Vec<Effect> {
        self.now_us = self.now_us.max(now_us);
        if self.over {
            return Vec::new();
        }
        match event {
            Event::Daemon { node, message } if self.roster.node_numbers().contains(&node) => self.message(node, message),
            Event::Daemon { .. } => {}
            Event::NodeLost { node, how } => self.node_lost(node, how),
            Event::Ask { verb, ask } => self.asked(ask, Asker::Verb(verb)),
            Event::Leave { node, reason, leaving } => self.leave(node, reason, leaving),
            Event::Drained(names) => {
                let names = if self.keeps(Safeguard::DrainedNodesAreAvoided) { names } else { Vec::new() };
                self.drained(&names);
                self.go_back(&names);
                self.follow_data(&names);
            }
            Event::DataSeen(scan) => self.data_seen(&scan),
            Event::Stdin(bytes) => self.feed(bytes),
            Event::Signal(signal) => self.interrupt(signal),
            Event::TimeUp { signal } => self.time_is_up(signal),
            Event::Time => {}
            Event::Prepared { number, result } => self.prepared(number, result),
            Event::Published { number, result } => self.published(number, result),
            Event::Removed { asker, result } => self.removed(asker, result),
            Event::Listed(numbers) => self.relisted(Some(numbers)),
            Event::NotListed => self.relisted(None),
            Event::Upkeep(done) => self.upkeep_done(done),
            Event::FreeSpace(room) => self.judge_free_space(room),
            Event::ManifestUnreadable { task, why } => self.manifest_unreadable(task, why),
            Event::Emptied { number, gone } => self.emptied(number, gone),
        }
        self.look_after_time();
        self.end_if_over();
        std::mem::take(&mut self.effects)
    }

    /// True once nothing more is to be done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// How the job ended, once it is over.
    #[must_use]
    pub fn end_reason(&self) -> Option<&End> {
        self.ending.as_ref().map(|(end, _)| end)
    }

    /// The newest checkpoint when they were listed last, of those that the job goes on from.
    #[must_use]
    pub fn newest_listed(&self) -> Option<u64> {
        self.to_go_on_from().next()
    }

    /// The numbers of those that the job goes on from, newest first.
    pub(crate) fn to_go_on_from(&self) -> impl Iterator<Item = u64> {
        self.listed.iter().rev().copied().filter(|number| !is_given_up(&self.abandoned, *number))
    }

    /// True if its user has sent it a signal.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.is_some()
    }

    /// When [`Event::Time`] is wanted at the latest, on the caller's clock.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        if self.over {
            return None;
        }
        let agents = self
            .waiting
            .front()
            .map(|(.., since)| since.saturating_add(AGENTS_US))
            .filter(|_| !self.agents_spoke() || self.worlds.is_beginning());
        let tidy = self.tiers.is_some().then_some(self.tidy_due_us);
        let obey = self.interrupted.filter(|_| self.ending.is_none()).map(|(_, since)| since.saturating_add(OBEY_US));
        let reap = self.ending.as_ref().map(|(_, since)| since.saturating_add(REAP_US));
        let leave = self.departures.due();
        let all = [self.map_due_us, self.move_due(), agents, tidy, obey, reap, leave];
        let all =
            all.into_iter().chain([self.questions.due(), self.losses_due(), self.periodic.due(), self.time_up_due(), self.anew.due()]);
        // What is overdue waits for something else: it is looked at again when that came.
        all.flatten().filter(|&due| due > self.now_us).min()
    }

    fn look_after_time(&mut self) {
        if self.map_due_us.is_some_and(|due| due <= self.now_us) {
            self.publish_map();
        }
        if self.tidy_due_us <= self.now_us {
            self.tidy_due_us = self.now_us.saturating_add(TIDY_US);
            if self.tiers.is_some() {
                self.list();
            }
        }
        self.judge_silence();
        if let Some((signal, since)) = self.interrupted
            && self.now_us.saturating_sub(since) >= OBEY_US
            && self.keeps(Safeguard::SignalsAreObeyed)
        {
            self.end(End::Code(128 + signal));
        }
        self.judge_losses();
        self.judge_moves();
        if self.keeps(Safeguard::LeaversAreTriedAgain) {
            self.look_for_leavers();
        }
        self.judge_time_up();
        self.begin_spawns();
        self.periodic_tick();
        self.next_operation();
        self.look_for_returners();
    }

    fn end_if_over(&mut self) {
        let Some((_, since)) = &self.ending else { return };
        let reaped = self.roster.alive().is_empty() || self.now_us.saturating_sub(*since) >= REAP_US;
        let busy = self.removing.is_some() || self.background.is_some() || !self.discarding.is_empty();
        if (reaped || !self.keeps(Safeguard::EndIsAwaited)) && !busy {
            self.over = true;
            self.questions.clear();
            self.effect(Effect::Over);
        }
    }

    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(crate) fn tell(&mut self, notice: Notice) {
        self.effect(Effect::Tell(notice));
    }

    pub(crate) fn send(&mut self, node: NodeIndex, message: ToDaemon) {
        if self.roster.is_alive(node) {
            self.effect(Effect::Send { node, message });
        }
    }

    pub(crate) fn send_to_rank(&mut self, rank: Rank, message: ToDaemon) {
        if let Some(node) = self.roster.node_of(rank) {
            self.send(node, message);
        }
    }

    pub(crate) fn send_to_all(&mut self, message: &ToDaemon) {
        for node in self.roster.node_numbers() {
            self.send(node, message.clone());
        }
    }

    /// Answers whoever asked. The schedule hears at once.
    pub(crate) fn answer(&mut self, asker: Asker, outcome: Outcome) {
        match asker {
            Asker::Verb(verb) => self.effect(Effect::Answer { verb, outcome }),
            Asker::Schedule => self.schedule_answered(outcome),
            Asker::Leaving(rank, _) => self.leaver_answered(rank, outcome),
            Asker::TimeUp => self.saved_in_time(outcome),
            Asker::Back(rank) => self.returner_answered(rank, &outcome),
            Asker::Data(rank) => self.follower_answered(rank, &outcome),
        }
    }

    /// Nothing is under way or wanted.
    pub(crate) fn is_idle(&self) -> bool {
        self.operation.is_none()
            && self.background.is_none()
            && self.removing.is_none()
            && self.waiting.is_empty()
            && self.ending.is_none()
            && self.interrupted.is_none()
            && self.time_up.is_none()
    }

    /// Numbers of requests that agents have not answered, and of verbs that wait.
    #[must_use]
    pub fn open_matters(&self) -> (usize, usize) {
        let working = usize::from(self.operation.is_some()) + usize::from(self.background.is_some()) + usize::from(self.removing.is_some());
        (self.questions.len(), self.waiting.len() + self.asking_status.len() + working)
    }

    /// Nodes that are not lost.
    #[must_use]
    pub fn alive(&self) -> Vec<NodeIndex> {
        self.roster.alive()
    }

    /// All worlds of the job.
    #[must_use]
    pub fn worlds(&self) -> &Worlds {
        &self.worlds
    }

    /// Where a rank is placed, and what it does.
    #[must_use]
    pub fn rank(&self, rank: Rank) -> Option<&RankState> {
        self.roster.ranks.get(rank as usize)
    }

    /// The host of each rank that lived when the end began, by rank; none before that.
    #[must_use]
    pub fn stood(&self) -> &[Option<String>] {
        &self.stood
    }

    /// True unless the simulator took it out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn keeps(&self, safeguard: Safeguard) -> bool {
        !self.sabotaged.contains(&safeguard)
    }

    /// True: only the simulator takes safeguards out.
    #[cfg(not(feature = "sabotage"))]
    #[must_use]
    pub const fn keeps(&self, _safeguard: Safeguard) -> bool {
        true
    }

    /// Takes a safeguard out.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&mut self, safeguard: Safeguard) {
        self.sabotaged.insert(safeguard);
    }
}
