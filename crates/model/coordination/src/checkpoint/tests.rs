use super::*;
use mend_messages::agent::{Inspection, Obstacle, SaveTarget, Unwritten};
use mend_messages::files::{FileState, FileUse, Keeping};
use proptest::prelude::*;

fn orders(ranks: u32) -> BTreeMap<Rank, SaveOrder> {
    (0..ranks).map(|rank| (rank, SaveOrder::full(SaveTarget::File(image_name(rank).into())))).collect()
}

fn keep() -> KeepOrder {
    KeepOrder { checkpoint: "1.part".into(), limit: 64, seal: None }
}

/// What rank 3 and above keep.
fn kept(rank: Rank) -> Vec<KeptFile> {
    let state = FileState { size: 3, ..FileState::default() };
    let keeping = Keeping::Content { name: "a".into(), stored: 3, checksum: None };
    let file = KeptFile { key: format!("{rank}"), rank: 0, path: "/a".into(), usage: FileUse::Write, state, keeping };
    if rank >= 3 { vec![file] } else { Vec::new() }
}

fn id(rank: Rank) -> ImageId {
    ImageId([rank as u8 + 1; 16])
}

/// Even ranks write behind.
fn good_reply(rank: Rank, request: &Request) -> Reply {
    match request {
        Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
        Request::Suspend | Request::SuspendPeer(_) => Reply::Suspended { us: 5 },
        Request::Save(_) if rank.is_multiple_of(2) => Reply::Saved(Saved { id: id(rank), behind: true, ..Saved::default() }),
        Request::Save(_) => Reply::Saved(Saved { id: id(rank), bytes: 10, write_us: 7, ..Saved::default() }),
        Request::KeepFiles(_) => Reply::Kept(kept(rank)),
        Request::SyncFiles => Reply::Synced,
        Request::Resume => Reply::Resumed { stopped_us: 30 },
        Request::Precopy { .. } | Request::EndPrecopy | Request::Pause | Request::RollBack(_) => {
            unreachable!("no checkpoint asks for that")
        }
    }
}

fn good_news() -> Result<Written, Unwritten> {
    Ok(Written { bytes: 10, ..Written::default() })
}

#[test]
fn an_agent_hears_early_of_a_snapshot_that_builds_on_another_image() {
    let order = orders(1).remove(&0).unwrap();
    let behind = SaveOrder { mode: SaveMode::CopyOnWrite, ..order.clone() };
    let built = SaveOrder { base: Some(id(3)), ..behind.clone() };
    // Ranks that have ended have no order.
    let all = [(0, order), (1, behind), (3, built.clone()), (7, SaveOrder { mode: SaveMode::Stop, ..built })];
    let (_, actions) = Checkpoint::start(all.into(), keep(), false);
    let ahead = |(rank, ahead)| Action::Ask { rank, request: Request::Inspect { ahead, files: false } };
    assert_eq!(actions, [(0, None), (1, None), (3, Some(id(3))), (7, None)].map(ahead));
}

/// Two ranks, both resumed.
fn writing() -> Checkpoint {
    let (mut machine, _) = Checkpoint::start(orders(2), keep(), false);
    let save = Request::Save(orders(1).remove(&0).unwrap());
    let requests = [Request::Inspect { ahead: None, files: false }, Request::Suspend, save, Request::KeepFiles(keep())];
    for (time, request) in [1, 2, 3, 3].into_iter().zip(requests) {
        for rank in 0..2 {
            machine.reply(time, rank, good_reply(rank, &request));
        }
    }
    assert_eq!(machine.reply(4, 0, Reply::Resumed { stopped_us: 3 }), []);
    assert_eq!(machine.reply(5, 1, Reply::Resumed { stopped_us: 2 }), [Action::ThawPmi]);
    machine
}

#[test]
fn it_lasts_until_the_last_image_is_durable() {
    let mut machine = writing();
    // Of another image, of a rank that is durable, of a rank that does not exist.
    assert_eq!(machine.written(6, 0, id(7), good_news()), []);
    assert_eq!(machine.written(6, 1, id(1), Err(Unwritten::Failed("x".into()))), []);
    assert_eq!(machine.written(6, 9, id(9), good_news()), []);
    // Rank 1 is not needed any more.
    assert_eq!(machine.lost(7, 1, Gone::Ended), []);
    let actions = machine.written(50, 0, id(0), good_news());
    let [Action::Finish(Ok(outcome))] = &actions[..] else { panic!("{actions:?}") };
    // The rank that took longest, whenever its answer came.
    assert_eq!((outcome.stopped_us, outcome.durable_us), (3, 49));
    assert!(outcome.saved.values().all(|saved| saved.bytes == 10 && !saved.behind));
    assert_eq!(machine.written(51, 0, id(0), good_news()), []);
}

#[test]
fn a_rank_that_is_lost_or_fails_while_it_writes_fails_the_checkpoint_alone() {
    for lost in [true, false] {
        let mut machine = writing();
        let actions =
            if lost { machine.lost(6, 0, Gone::Ended) } else { machine.written(6, 0, id(0), Err(Unwritten::Failed("no space".into()))) };
        let [Action::Finish(Err(failure))] = &actions[..] else { panic!("{actions:?}") };
        let expected = Failure::Lost { rank: 0, how: Gone::Ended };
        assert_eq!(*failure, if lost { expected } else { Failure::Unwritten { rank: 0, why: "no space".into() } });
    }
}

#[test]
fn an_obstacle_stops_nothing() {
    let (mut machine, _) = Checkpoint::start(orders(2), keep(), false);
    let obstacle = Obstacle { what: "socket to 10.0.0.7:443 (fd 12)".into(), hint: "close it".into() };
    let seen = Inspection { obstacles: vec![obstacle.clone()], ..Inspection::default() };
    assert_eq!(machine.reply(1, 1, Reply::Inspected(seen)), []);
    let actions = machine.reply(2, 0, Reply::Inspected(Inspection::default()));
    let [Action::Finish(Err(failure))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(*failure, Failure::Obstacle { rank: 1, first: obstacle, more: 0 });
}

proptest! {
    /// Whatever fails or vanishes, in whatever order answers come: the machine ends, resumes exactly the ranks it
    /// suspended, takes the snapshot only between the last save and the first resume, thaws what it froze, and is over
    /// only when nobody writes any more. News of written images comes early, late, twice, and of images of long ago.
    #[test]
    fn every_suspended_rank_is_resumed_once(ranks in 1u32..6, fates in proptest::collection::vec((0usize..64, 0u8..16), 0..120)) {
        let (mut machine, mut todo) = Checkpoint::start(orders(ranks), keep(), false);
        let mut open: Vec<(Rank, Request)> = Vec::new();
        // Ranks that write, and those that said they are done.
        let (mut writing, mut told, mut bad) = (BTreeSet::new(), BTreeSet::new(), false);
        let (mut suspended, mut resumed, mut lost) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut frozen, mut snapshots, mut finished) = (false, 0, None);
        let mut fates = fates.into_iter();
        loop {
            for action in std::mem::take(&mut todo) {
                prop_assert!(finished.is_none());
                match action {
                    Action::Ask { rank, request } => {
                        prop_assert!(!lost.contains(&rank));
                        match request {
                            Request::Suspend => { prop_assert!(frozen); suspended.insert(rank); }
                            Request::Resume => prop_assert!(resumed.insert(rank) && suspended.contains(&rank)),
                            _ => {}
                        }
                        open.push((rank, request));
                    }
                    Action::AskBatch(_) | Action::Await(_) => prop_assert!(false, "nobody said that ranks can be asked as a batch"),
                    Action::FreezePmi => frozen = true,
                    Action::ThawPmi => { prop_assert!(frozen); frozen = false; }
                    Action::Snapshot => { prop_assert!(resumed.is_empty()); snapshots += 1; }
                    Action::Finish(result) => finished = Some(result),
                }
            }
            if finished.is_some() { break }
            let (pick, fate) = fates.next().unwrap_or((0, 0));
            let silent = open.is_empty() || fate == 12;
            if let Some(rank) = writing.iter().copied().nth(pick % writing.len().max(1)).filter(|_| silent) {
                let result = if fate == 13 { bad = true; Err(Unwritten::Failed("no space".to_owned())) } else { good_news() };
                writing.remove(&rank);
                told.insert(rank);
                todo = machine.written(9, rank, id(rank), result);
                continue;
            }
            if fate >= 14 {
                let rank = pick as Rank % ranks;
                // Twice, or about another image.
                let again = fate == 14 && told.contains(&rank);
                let about = if again { id(rank) } else { id(77) };
                prop_assert!(machine.written(9, rank, about, good_news()).is_empty());
                continue;
            }
            prop_assert!(!open.is_empty(), "stuck");
            let (rank, request) = open.remove(pick % open.len());
            todo = match fate {
                10 => machine.reply(9, rank, Reply::Failed { error: "x".into(), hint: String::new() }),
                11 => {
                    lost.insert(rank);
                    writing.remove(&rank);
                    open.retain(|(other, _)| *other != rank);
                    machine.lost(9, rank, Gone::Ended)
                }
                _ => {
                    if matches!(request, Request::Save(_)) && rank.is_multiple_of(2) {
                        writing.insert(rank);
                    }
                    machine.reply(9, rank, good_reply(rank, &request))
                }
            };
        }
        prop_assert!(writing.is_empty());
        prop_assert!(!frozen);
        let expected: BTreeSet<Rank> = suspended.difference(&lost).copied().collect();
        prop_assert!(expected.is_subset(&resumed));
        if let Some(Ok(outcome)) = finished {
            prop_assert_eq!(outcome.saved.len() as u32, ranks);
            prop_assert!(!bad && outcome.saved.values().all(|saved| saved.bytes == 10));
            prop_assert_eq!(snapshots, 1);
        }
    }
}

/// The daemon of a node with all ranks, and what is on its way from it.
#[derive(Default)]
struct Node {
    later: Vec<Vec<(Rank, Request)>>,
    /// Asked and not answered; true for those of a batch.
    open: Vec<(Rank, Request, bool)>,
    /// What is said of these is that they ended.
    ended: BTreeSet<Rank>,
    urgent: Vec<(Rank, Mail)>,
    ordered: Vec<(Rank, Mail)>,
}

/// What comes to the machine. Answers come with the step that was asked for as a batch, if it was.
enum Mail {
    Answer(Option<usize>, Reply),
    Written,
    Lost,
}

impl Node {
    fn next_step(&mut self) {
        if !self.later.is_empty() && !self.open.iter().any(|(.., turn)| *turn) {
            let step = self.later.remove(0);
            self.open.extend(step.into_iter().map(|(rank, request)| (rank, request, true)));
            self.answer_for_the_ended();
        }
    }

    fn answer_for_the_ended(&mut self) {
        while let Some(number) = self.open.iter().position(|(rank, ..)| self.ended.contains(rank)) {
            self.answer(number, Some(Reply::Failed { error: "ended".into(), hint: String::new() }));
        }
    }

    fn answer(&mut self, number: usize, reply: Option<Reply>) {
        let (rank, request, turn) = self.open.remove(number);
        let reply = reply.unwrap_or_else(|| good_reply(rank, &request));
        if matches!(reply, Reply::Failed { .. }) && turn {
            self.later.clear();
        }
        let step = match request {
            Request::Suspend => 0,
            Request::Save(_) => 1,
            Request::KeepFiles(_) => 2,
            _ => 3,
        };
        let mail = (rank, Mail::Answer(turn.then_some(step), reply));
        if matches!(mail.1, Mail::Answer(_, Reply::Saved(_))) {
            self.ordered.push(mail)
        } else {
            self.urgent.push(mail)
        }
        self.next_step();
    }
}

proptest! {
    /// The same of ranks that are asked as a batch, whose daemon is ahead of the machine: nothing is saved unless all are suspended, none is
    /// resumed before all are saved unless something failed, all are resumed in the end, and nobody writes when it is over.
    #[test]
    fn ranks_that_are_asked_as_a_batch_are_all_resumed(ranks in 1u32..6, fates in proptest::collection::vec((0usize..64, 0u8..16), 0..160)) {
        let (mut machine, mut todo) = Checkpoint::start(orders(ranks), keep(), true);
        let mut node = Node::default();
        let (mut awaited, mut broken, mut explicit, mut early) = (0, false, false, Vec::new());
        let (mut suspended, mut saved, mut resumed, mut lost) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut writing, mut frozen, mut snapshots, mut finished) = (BTreeSet::new(), false, 0, None);
        let mut fates = fates.into_iter();
        loop {
            for action in std::mem::take(&mut todo) {
                prop_assert!(finished.is_none());
                match action {
                    Action::Ask { request: Request::Resume, rank } => {
                        prop_assert!(broken);
                        explicit = true;
                        node.later.clear();
                        node.open.push((rank, Request::Resume, false));
                    }
                    Action::Ask { rank, request } => node.open.push((rank, request, false)),
                    Action::AskBatch(steps) => {
                        prop_assert!(frozen);
                        node.later = steps;
                        node.next_step();
                    }
                    Action::Await(step) => {
                        prop_assert_eq!(step, awaited);
                        awaited += 1;
                        node.urgent.splice(0..0, early.drain(..));
                    }
                    Action::FreezePmi => frozen = true,
                    Action::ThawPmi => frozen = false,
                    Action::Snapshot => { prop_assert_eq!(saved.len() as u32, ranks); snapshots += 1; }
                    Action::Finish(result) => finished = Some(result),
                }
            }
            if finished.is_some() { break }
            let (pick, fate) = fates.next().unwrap_or((0, 0));
            // Something arrives, if it is not an agent that does something.
            let quiet = node.urgent.is_empty() && node.ordered.is_empty() && writing.is_empty();
            prop_assert!(!quiet || !node.open.is_empty(), "stuck");
            if !quiet && (fate < 6 || node.open.is_empty()) {
                let queue = if node.urgent.is_empty() { &mut node.ordered } else { &mut node.urgent };
                if queue.is_empty() {
                    if let Some(rank) = writing.pop_first() {
                        node.urgent.push((rank, Mail::Written));
                    }
                    continue;
                }
                todo = match queue.remove(0) {
                    (rank, _) if lost.contains(&rank) => Vec::new(),
                    // What was asked as a batch counts no more.
                    (_, Mail::Answer(Some(step), _)) if explicit && step > 0 => Vec::new(),
                    (rank, Mail::Answer(Some(step), reply)) if step >= awaited => {
                        early.push((rank, Mail::Answer(Some(step), reply)));
                        Vec::new()
                    }
                    (rank, Mail::Answer(_, reply)) => {
                        if let Reply::Saved(_) = reply { saved.insert(rank); }
                        machine.reply(9, rank, reply)
                    }
                    (rank, Mail::Written) => machine.written(9, rank, id(rank), good_news()),
                    (rank, Mail::Lost) => { lost.insert(rank); machine.lost(9, rank, Gone::Ended) }
                };
                continue;
            }
            // Its questions fail, and the news of its end comes behind all that it said.
            if fate == 15 && node.ended.insert(pick as Rank % ranks) {
                let rank = pick as Rank % ranks;
                broken = true;
                node.answer_for_the_ended();
                writing.remove(&rank);
                resumed.insert(rank);
                node.ordered.push((rank, Mail::Lost));
                continue;
            }
            let number = pick % node.open.len();
            let (rank, request, turn) = node.open[number].clone();
            if matches!(request, Request::Inspect { .. } | Request::KeepFiles(_) | Request::SyncFiles) {
                node.answer(number, None);
                continue;
            }
            match (fate, &request) {
                (14, _) => {
                    broken = true;
                    node.answer(number, Some(Reply::Failed { error: "x".into(), hint: String::new() }));
                    if request == Request::Resume { resumed.insert(rank); }
                }
                _ => {
                    match request {
                        Request::Suspend => { suspended.insert(rank); }
                        Request::Save(_) => {
                            prop_assert_eq!(suspended.len() as u32, ranks);
                            if rank.is_multiple_of(2) { writing.insert(rank); }
                        }
                        _ => {
                            prop_assert!(!turn || broken || snapshots == 1 || node.ordered.len() + saved.len() >= ranks as usize);
                            resumed.insert(rank);
                        }
                    }
                    node.answer(number, None);
                }
            }
        }
        prop_assert!(!frozen && writing.is_empty());
        prop_assert!(suspended.is_subset(&resumed));
        if let Some(Ok(outcome)) = finished {
            prop_assert_eq!((outcome.saved.len() as u32, snapshots), (ranks, 1));
        }
    }
}
