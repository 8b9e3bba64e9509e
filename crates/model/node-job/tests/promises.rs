//! Whatever the controller orders, and whatever processes and agents do: every question is answered once, a rank has one process at a time, what
//! ends late ends nothing else, and the machine is the same after it was written down.

use mend_messages::agent::{FromAgent, Hello, ImageId, Reply, Request, SaveOrder, SaveTarget, Saved, Unasked};
use mend_messages::daemon::{FromDaemon, Question, RestoreSource, ToDaemon, Way};
use mend_messages::health::NodeHealth;
use mend_messages::job::Rank;
use mend_messages::tier::TierOrder;
use mend_node_job::NodeJob;
use mend_node_job::event::{AgentId, Effect, End, Event, Inadmissible, Origin, Refusal, Setup, Word};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SIZE: u32 = 3;

fn setup(standing: Vec<(Rank, AgentId)>) -> Setup {
    Setup { size: SIZE, lease_us: 10_000_000, health: NodeHealth::default(), standing, watches_traffic: false }
}

/// A rank's task, with its process and agent.
#[derive(Debug)]
struct Task {
    rank: Rank,
    attempt: u64,
    released: bool,
    restored: bool,
    in_place: bool,
    agent: Option<AgentId>,
    speaks: bool,
    asked: Vec<(u64, Request)>,
}

/// Who carries effects out.
struct Shell {
    job: NodeJob,
    now_us: u64,
    attempts: u64,
    agents: AgentId,
    seqs: u64,
    tasks: Vec<Task>,
    preparing: Vec<u64>,
    keeping: Vec<u64>,
    /// How often each question was answered.
    answers: BTreeMap<u64, u32>,
    /// Answers to saves that are on their way.
    kept: BTreeMap<u64, u32>,
    /// How often the end of each image was told that was written behind its rank.
    behind: BTreeMap<ImageId, u32>,
    end: Option<End>,
}

impl Shell {
    fn new(standing: Vec<(Rank, AgentId)>) -> Self {
        let (job, first) = NodeJob::begin(setup(standing));
        assert!(first.is_empty());
        Self {
            job,
            now_us: 0,
            attempts: 0,
            agents: 100,
            seqs: 0,
            tasks: Vec::new(),
            preparing: Vec::new(),
            keeping: Vec::new(),
            answers: BTreeMap::new(),
            kept: BTreeMap::new(),
            behind: BTreeMap::new(),
            end: None,
        }
    }

    fn feed(&mut self, event: Event) {
        let mut events = vec![event];
        while !events.is_empty() {
            let effects = self.job.handle(self.now_us, events.remove(0));
            for effect in effects {
                events.extend(self.carry_out(effect));
            }
        }
        let bytes = postcard::to_allocvec(&self.job).unwrap();
        assert_eq!(postcard::from_bytes::<NodeJob>(&bytes).unwrap(), self.job);
    }

    fn answer(&mut self, seq: u64) {
        *self.answers.entry(seq).or_default() += 1;
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Send(FromDaemon::Agent { seq, .. }) | Effect::Refuse { seq, .. } | Effect::Answer { seq, .. } => self.answer(seq),
            Effect::Send(FromDaemon::Written { id, .. }) | Effect::Written { image: id, .. } => *self.behind.entry(id).or_default() += 1,
            Effect::Keep { seq, reply, .. } => {
                if let Reply::Saved(Saved { behind: true, id, .. }) = reply {
                    self.behind.insert(id, 0);
                }
                *self.kept.entry(seq).or_default() += 1;
                self.keeping.push(seq);
            }
            Effect::Prepare { number, .. } => self.preparing.push(number),
            Effect::Begin { rank, attempt, origin, .. } => {
                assert!(!self.tasks.iter().any(|task| task.rank == rank && !task.released), "two processes of rank {rank}");
                self.agents += 1;
                let (restored, in_place) = (origin != Origin::Start, matches!(origin, Origin::InPlace { .. }));
                let agent = self.agents;
                self.tasks.push(Task {
                    rank,
                    attempt,
                    released: false,
                    restored,
                    in_place,
                    agent: Some(agent),
                    speaks: false,
                    asked: Vec::new(),
                });
                return restored.then_some(Event::AgentAwaited { rank, attempt, agent });
            }
            Effect::Anew { rank, attempt, .. } => {
                self.agents += 1;
                let agent = self.agents;
                self.tasks.push(Task {
                    rank,
                    attempt,
                    released: false,
                    restored: true,
                    in_place: false,
                    agent: Some(agent),
                    speaks: false,
                    asked: Vec::new(),
                });
                return Some(Event::AgentAwaited { rank, attempt, agent });
            }
            Effect::Release { rank, attempt } => {
                for task in self.tasks.iter_mut().filter(|task| (task.rank, task.attempt) == (rank, attempt)) {
                    task.released = true;
                }
            }
            Effect::Ask { agent, number, request, .. } => {
                let task = self.tasks.iter_mut().find(|task| task.agent == Some(agent)).unwrap();
                task.asked.push((number, request));
            }
            Effect::Leave(end) => self.end = Some(end),
            Effect::StartSuccessor { silent } => return Some(Event::Successor { started: true, silent }),
            _ => {}
        }
        None
    }

    fn ask(&mut self, rank: Rank, request: Request) {
        self.seqs += 1;
        self.answers.insert(self.seqs, 0);
        self.feed(Event::Told(ToDaemon::Ask(vec![vec![Question { seq: self.seqs, rank, request }]])));
    }

    fn order(&mut self, kind: u8, rank: Rank) {
        self.attempts += 1;
        let attempt = self.attempts;
        match kind {
            0 => self.feed(Event::Told(ToDaemon::Start { rank, attempt, stdin: false })),
            1 => {
                let source = RestoreSource::Files(vec!["/c/1/rank-0.image".into()]);
                self.feed(Event::Told(ToDaemon::Restore { rank, attempt, source, image: None, stdin: false, put_back: None }));
            }
            2 => self.feed(Event::Told(ToDaemon::Discard { rank })),
            3 => self.ask(rank, Request::Suspend),
            4 => self.ask(rank, Request::Save(SaveOrder::full(SaveTarget::File("/c/1/rank-0.image".into())))),
            5 => self.ask(rank, Request::Resume),
            _ => {
                self.seqs += 1;
                self.answers.insert(self.seqs, 0);
                let address = ([10, 0, 0, 1], 1).into();
                self.feed(Event::Told(ToDaemon::SaveTo { seq: self.seqs, rank, address, token: [1; 16], way: Way::Direct }));
            }
        }
    }

    /// A task, its process or its agent comes further.
    fn further(&mut self, kind: u8, which: usize) {
        if self.tasks.is_empty() {
            return;
        }
        let which = which % self.tasks.len();
        let Task { rank, attempt, restored, in_place, agent, speaks, .. } = self.tasks[which];
        match (kind, agent) {
            (0, Some(agent)) if !speaks => {
                self.tasks[which].speaks = true;
                let message = if restored {
                    self.feed(Event::Built { rank, attempt, us: 1, bytes: 2 });
                    FromAgent::Restored { rank, rebuild_us: 1 }
                } else {
                    self.feed(Event::Started { rank, attempt, agentless: false });
                    FromAgent::Hello(Hello { protocol: mend_messages::PROTOCOL, rank, pid: 1, main_process: true, executable: "p".into() })
                };
                self.feed(Event::Agent { agent, first: true, message });
            }
            (1, Some(agent)) if !self.tasks[which].asked.is_empty() => {
                let (seq, request) = self.tasks[which].asked.remove(0);
                let reply = match request {
                    Request::Save(_) => {
                        let mut id = ImageId::default();
                        id.0[..8].copy_from_slice(&seq.to_le_bytes());
                        Reply::Saved(Saved { id, behind: seq.is_multiple_of(2), ..Saved::default() })
                    }
                    Request::Resume => Reply::Resumed { stopped_us: 1 },
                    _ => Reply::Suspended { us: 1 },
                };
                self.feed(Event::Agent { agent, first: false, message: FromAgent::Reply { seq, reply } });
            }
            (2, Some(agent)) => {
                self.tasks[which].agent = None;
                self.feed(Event::AgentGone { agent });
            }
            (4, Some(agent)) => {
                // The oldest image that is being written, whosever it is: of others' nothing is believed.
                if let Some(id) = self.behind.iter().find(|(_, told)| **told == 0).map(|(id, _)| *id) {
                    self.feed(Event::Agent { agent, first: false, message: FromAgent::Written { id, result: Err("full".into()) } });
                }
            }
            (3, agent) => {
                self.tasks.remove(which);
                // Either may be noticed first.
                let late = attempt.is_multiple_of(2);
                if let Some(agent) = agent.filter(|_| !late) {
                    self.feed(Event::AgentGone { agent });
                }
                let before = self.job.ranks().get(&rank).map(|slot| slot.attempt);
                self.feed(Event::Ended { rank, attempt, not_in_place: in_place && !speaks });
                if let Some(agent) = agent.filter(|_| late) {
                    self.feed(Event::AgentGone { agent });
                }
                // Of another process of the rank nothing ends.
                if before != Some(attempt) {
                    assert_eq!(self.job.ranks().get(&rank).map(|slot| slot.attempt), before);
                }
            }
            _ => {}
        }
    }

    /// What a question takes is there or not, or a save is kept.
    fn prepared(&mut self, good: bool) {
        if !self.preparing.is_empty() {
            let number = self.preparing.remove(0);
            let request = Ok(Request::Save(SaveOrder::full(SaveTarget::Descriptor)));
            let failed = Err(Reply::Failed { error: "no space left".into(), hint: String::new() });
            self.feed(Event::Prepared { number, request: if good { request } else { failed } });
        }
        if !self.keeping.is_empty() {
            let seq = self.keeping.remove(0);
            self.answer(seq);
            self.feed(Event::Kept { seq, good });
        }
    }

    fn come_to_an_end(&mut self) {
        while !self.preparing.is_empty() || !self.keeping.is_empty() {
            self.prepared(true);
        }
        while !self.tasks.is_empty() {
            self.further(3, 0);
        }
        while !self.preparing.is_empty() || !self.keeping.is_empty() {
            self.prepared(true);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Order(u8, Rank),
    Further(u8, usize),
    Prepared(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0u8..7, 0..SIZE + 1).prop_map(|(kind, rank)| Step::Order(kind, rank)),
        (0u8..5, 0usize..8).prop_map(|(kind, which)| Step::Further(kind, which)),
        any::<bool>().prop_map(Step::Prepared),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    #[test]
    fn every_question_is_answered_once(standing in any::<bool>(), steps in steps()) {
        let mut shell = Shell::new(if standing { vec![(0, 7), (1, 8)] } else { Vec::new() });
        for step in steps {
            match step {
                Step::Order(kind, rank) => shell.order(kind, rank),
                Step::Further(kind, which) => shell.further(kind, which),
                Step::Prepared(good) => shell.prepared(good),
            }
        }
        shell.come_to_an_end();
        prop_assert!(shell.answers.values().all(|answers| *answers == 1), "{:?}", shell.answers);
        prop_assert!(shell.kept.values().all(|kept| *kept == 1));
        prop_assert!(shell.behind.values().all(|told| *told >= 1), "{:?}", shell.behind);
        prop_assert!(shell.job.ranks().is_empty());
    }
}

fn started(shell: &mut Shell, rank: Rank) -> u64 {
    shell.order(0, rank);
    let task = shell.tasks.len() - 1;
    shell.further(0, task);
    shell.tasks[task].attempt
}

#[test]
fn who_is_here_is_not_admitted_again_nor_who_is_no_rank() {
    let mut shell = Shell::new(Vec::new());
    started(&mut shell, 0);
    let refused = |shell: &mut Shell, rank| match &shell.job.handle(1, Event::Told(ToDaemon::Start { rank, attempt: 9, stdin: false }))[..]
    {
        [Effect::NotAdmitted { why, restore: false, .. }] => Some(*why),
        _ => None,
    };
    assert_eq!(refused(&mut shell, 0), Some(Inadmissible::Present));
    assert_eq!(refused(&mut shell, SIZE), Some(Inadmissible::NoSuchRank { size: SIZE }));
    assert_eq!(refused(&mut shell, 1), None);
}

#[test]
fn a_rank_that_cannot_go_back_in_place_gets_another_process_with_the_same_number() {
    let mut shell = Shell::new(vec![(0, 7)]);
    shell.order(1, 0);
    assert!(shell.tasks[0].in_place);
    let attempt = shell.tasks[0].attempt;
    // What the agent that is to go back says is that it cannot.
    let reply = Reply::Failed { error: "no".into(), hint: String::new() };
    let message = FromAgent::Reply { seq: u64::MAX, reply };
    let effects = shell.job.handle(1, Event::Agent { agent: 7, first: false, message });
    assert!(matches!(&effects[..], [Effect::Tell { rank: 0, word: Word::Abandon(_) }]), "{effects:?}");
    shell.further(3, 0);
    assert_eq!((shell.tasks[0].attempt, shell.tasks[0].in_place), (attempt, false));
    shell.further(0, 0);
    assert!(shell.job.ranks()[&0].attempt == attempt && shell.job.speaks_for(shell.agents).is_some());
    // Only once: where that one ends, the rank does.
    shell.further(3, 0);
    assert!(shell.tasks.is_empty() && shell.job.ranks().is_empty());
}

#[test]
fn a_rank_that_begins_anew_or_comes_from_elsewhere_has_no_process_beside_it_that_stands_still() {
    let token = [1; 16];
    let source = RestoreSource::Transfer { token, way: Way::Direct };
    let orders = [
        ToDaemon::Start { rank: 0, attempt: 1, stdin: false },
        ToDaemon::Restore { rank: 0, attempt: 1, source, image: None, stdin: false, put_back: None },
    ];
    for order in orders {
        let effects = Shell::new(vec![(0, 7)]).job.handle(1, Event::Told(order));
        assert!(matches!(&effects[..], [Effect::DropStanding(ranks), Effect::Begin { rank: 0, .. }] if *ranks == [0]), "{effects:?}");
    }
}

#[test]
fn an_answer_of_an_earlier_process_does_not_count() {
    let mut shell = Shell::new(Vec::new());
    started(&mut shell, 0);
    shell.ask(0, Request::Suspend);
    shell.order(2, 0);
    assert_eq!(shell.answers[&1], 1, "it is answered when its rank is discarded");
    started(&mut shell, 0);
    shell.ask(0, Request::Suspend);
    shell.further(1, 0);
    assert_eq!(shell.answers[&2], 0);
    shell.further(1, 1);
    assert_eq!(shell.answers[&2], 1);
}

fn save(seq: u64) -> Event {
    let order = SaveOrder::full(SaveTarget::File("/c/1/rank-0.image".into()));
    Event::Told(ToDaemon::Tier(Box::new(TierOrder::Save { seq, rank: 0, number: 1, stores: Vec::new(), needed: 0, order })))
}

fn placed(seq: u64) -> Event {
    Event::Placed { seq, rank: 0, order: SaveOrder::full(SaveTarget::File("/c/1/rank-0.image".into())) }
}

/// A store's file system may take its time.
#[test]
fn a_place_that_is_found_late_is_of_the_process_that_was_to_save() {
    let mut shell = Shell::new(Vec::new());
    started(&mut shell, 0);
    shell.feed(save(1));
    shell.order(2, 0);
    started(&mut shell, 0);
    let ended = Effect::Send(FromDaemon::Agent { seq: 1, rank: 0, reply: Reply::Unasked(Unasked::Ended) });
    assert_eq!(shell.job.handle(1, placed(1)), [ended]);
    shell.feed(save(2));
    assert!(matches!(shell.job.handle(1, placed(2))[..], [Effect::Prepare { rank: 0, .. }]));
}

#[test]
fn a_place_that_is_found_late_drops_nothing_that_was_asked_meanwhile() {
    let mut shell = Shell::new(Vec::new());
    started(&mut shell, 0);
    shell.feed(save(7));
    let step = |seq, request| vec![Question { seq, rank: 0, request }];
    shell.seqs = 2;
    shell.answers.extend([(1, 0), (2, 0)]);
    shell.feed(Event::Told(ToDaemon::Ask(vec![step(1, Request::Suspend), step(2, Request::Resume)])));
    shell.feed(placed(7));
    shell.further(1, 0);
    shell.further(1, 0);
    assert_eq!((shell.answers[&1], shell.answers[&2]), (1, 1));
}

#[test]
fn what_has_no_agent_says_why() {
    let mut shell = Shell::new(Vec::new());
    let said = |shell: &mut Shell, rank| {
        let question = Question { seq: 1, rank, request: Request::Suspend };
        shell.job.handle(1, Event::Told(ToDaemon::Ask(vec![vec![question]]))).pop()
    };
    let unasked = |why| Some(Effect::Send(FromDaemon::Agent { seq: 1, rank: 0, reply: Reply::Unasked(why) }));
    assert_eq!(said(&mut shell, 0), unasked(Unasked::NotHere));
    shell.order(1, 0);
    assert_eq!(said(&mut shell, 0), unasked(Unasked::Restoring));
    shell.further(0, 0);
    shell.further(2, 0);
    assert_eq!(said(&mut shell, 0), unasked(Unasked::Left));
    shell.order(0, 1);
    assert_eq!(said(&mut shell, 1), Some(Effect::Refuse { seq: 1, rank: 1, why: Refusal::NoAgent }));
    let Task { rank, attempt, .. } = shell.tasks[1];
    shell.feed(Event::Started { rank, attempt, agentless: true });
    assert_eq!(said(&mut shell, 1), Some(Effect::Refuse { seq: 1, rank: 1, why: Refusal::Agentless }));
}

#[test]
fn a_job_that_pauses_leaves_when_all_have_answered_or_had_their_time() {
    for silent in [false, true] {
        let mut shell = Shell::new(Vec::new());
        let ranks = [0, 1].map(|rank| started(&mut shell, rank));
        assert_eq!(ranks.len(), 2);
        shell.feed(Event::Told(ToDaemon::Pause));
        assert_eq!(shell.end, None);
        let agents = [0, 1].map(|task: usize| (shell.tasks[task].agent.unwrap(), shell.tasks[task].asked[0].0));
        let paused = |(agent, seq)| Event::Agent { agent, first: false, message: FromAgent::Reply { seq, reply: Reply::Paused } };
        shell.feed(paused(agents[0]));
        assert_eq!(shell.end, None);
        if silent {
            shell.now_us = 3_000_001;
            shell.feed(Event::Time);
        } else {
            shell.feed(paused(agents[1]));
        }
        assert_eq!(shell.end, Some(End::Paused));
        assert_eq!(shell.job.stand_still().len(), if silent { 1 } else { 2 });
        // Nothing more comes of it.
        assert_eq!(shell.job.handle(4_000_000, Event::Superseded), []);
    }
}

#[test]
fn a_job_leaves_for_one_reason() {
    let ends = [
        (Event::Told(ToDaemon::End { goes_on: true }), End::Asked { goes_on: true }, true, true),
        (Event::Told(ToDaemon::End { goes_on: false }), End::Asked { goes_on: false }, true, false),
        (Event::Told(ToDaemon::Pause), End::Paused, true, true),
        (Event::ControllerLost, End::Lost, false, false),
        (Event::Superseded, End::Superseded, false, false),
        (Event::NamespaceEnded, End::LeaseOver, false, false),
    ];
    for (event, end, orderly, goes_on) in ends {
        let mut shell = Shell::new(Vec::new());
        shell.feed(event);
        assert_eq!(shell.end, Some(end));
        assert_eq!((end.is_orderly(), end.goes_on()), (orderly, goes_on));
    }
}

/// A controller that is cut off and must not renew the lease may still give orders to the node that it is on.
#[test]
fn orders_alone_do_not_keep_ranks_beyond_the_lease() {
    let mut shell = Shell::new(Vec::new());
    started(&mut shell, 0);
    for now_us in (0..=9_000_000).step_by(100_000) {
        assert_eq!(shell.end, None, "at {now_us}");
        shell.now_us = now_us;
        shell.feed(Event::Told(ToDaemon::Stdin { rank: 0, bytes: vec![1] }));
        shell.feed(Event::Time);
    }
    assert_eq!(shell.end, Some(End::LeaseOver));
    let mut shell = Shell::new(Vec::new());
    for now_us in (0..=20_000_000).step_by(100_000) {
        shell.now_us = now_us;
        shell.feed(Event::Told(ToDaemon::Ping { at_us: now_us }));
        shell.feed(Event::Time);
    }
    assert_eq!(shell.end, None);
}
