//! Migrations step by step, and with whatever may happen to them.

use super::*;
use crate::failure::TargetTrouble;
use mend_messages::agent::{Inspection, Saved, Unasked};
use mend_messages::control::{Precopied, Storage};
use mend_policy::precopy::Bounds;
use proptest::prelude::*;

#[derive(Debug, Clone, PartialEq)]
enum Pending {
    Reply(Rank, Request),
    Compared,
    Precopying,
    /// So many more may follow.
    Round(u32),
    Saved,
    Restored,
    FabricUp,
}

fn manner(mode: MoveMode, deadline_us: Option<u64>) -> Manner {
    Manner { mode, bounds: Bounds { threshold: 100, rounds: 5, deadline_us }, rates: None }
}

fn round(number: u32, done: bool, left: u64) -> Round {
    Round { number, done, bytes: 1000, us: 10, total: 1000 * (u64::from(number) + 1), left: Some(left), ..Round::default() }
}

/// A live migration of rank 0 of two, whose agent has begun to copy it.
fn precopying(deadline_us: Option<u64>) -> Migration {
    let (mut machine, _) = Migration::start(0, 0..2, manner(MoveMode::Live, deadline_us));
    assert_eq!(machine.reply(1, 0, Reply::Inspected(Inspection::default())), [Action::Compare]);
    assert_eq!(machine.reply(1, 0, Reply::Compared(Vec::new())), [Action::Precopy]);
    assert!(machine.reply(2, 0, Reply::Precopying).is_empty());
    machine
}

fn stops() -> Vec<Action> {
    let suspend = Action::Ask { rank: 0, request: Request::Suspend };
    vec![Action::Freeze, suspend, Action::Ask { rank: 1, request: Request::SuspendPeer(0) }]
}

#[test]
fn a_rank_is_stopped_when_little_is_left_and_the_rest_follows_into_the_same_stream() {
    let mut machine = precopying(None);
    assert!(machine.round(5, 0, round(0, false, 9000)).is_empty());
    assert!(machine.round(6, 1, round(0, true, 0)).is_empty(), "another rank's");
    assert!(machine.round(10, 0, round(0, true, 300)).is_empty());
    assert_eq!(machine.progress().unwrap().bytes, 1000);
    assert_eq!(machine.round(20, 0, round(1, true, 50)), stops());
    assert!(machine.round(21, 0, round(2, false, 0)).is_empty());
    machine.reply(22, 0, Reply::Suspended { us: 1 });
    let order = SaveOrder::full(SaveTarget::Begun);
    assert_eq!(machine.reply(23, 1, Reply::Suspended { us: 1 }), [Action::Ask { rank: 0, request: Request::Save(order) }]);
    machine.reply(30, 0, Reply::Saved(Saved { bytes: 77, ..Saved::default() }));
    machine.restored(31, 2);
    assert_eq!(machine.fabric_up(32)[0], Action::Commit);
    machine.reply(33, 1, Reply::Resumed { stopped_us: 0 });
    let Some(Action::Finish(Ok(done))) = machine.reply(34, 0, Reply::Resumed { stopped_us: 9 }).pop() else { panic!() };
    let precopied = Precopied { rounds: 2, bytes: 2000, stopped_bytes: 77, us: 18, why: StopReason::LittleLeft };
    assert_eq!((done.bytes, done.stopped_us, done.precopied), (2077, 14, Some(precopied)));
}

#[test]
fn haste_and_the_deadline_stop_a_rank_between_two_words_of_its_agent() {
    let mut machine = precopying(None);
    assert_eq!(machine.due_us(), Some(2 + SILENCE_US));
    assert_eq!(machine.hurry(7), stops());
    let mut machine = precopying(Some(50));
    assert_eq!((machine.due_us(), machine.judge(49)), (Some(50), vec![]));
    assert_eq!(machine.judge(50), stops());
    // Before the agent has begun there is no stream that the rest could follow into.
    let (mut machine, _) = Migration::start(0, 0..2, manner(MoveMode::Live, Some(50)));
    machine.reply(1, 0, Reply::Inspected(Inspection::default()));
    machine.reply(1, 0, Reply::Compared(Vec::new()));
    assert_eq!((machine.hurry(60), machine.due_us()), (vec![], None));
    assert_eq!(machine.reply(61, 0, Reply::Precopying), stops());
}

#[test]
fn nothing_is_stopped_for_what_fails_while_the_rank_runs() {
    let withdraws = || vec![Action::Ask { rank: 0, request: Request::EndPrecopy }];
    let mut cancelled = precopying(None);
    assert_eq!(cancelled.cancel(5), Some(withdraws()));
    assert_eq!(cancelled.cancel(6), Some(vec![]));
    let over = vec![Action::Withdraw, Action::Finish(Err(Failure::Cancelled { rank: 0 }))];
    assert_eq!(cancelled.reply(7, 0, Reply::PrecopyEnded), over);
    // An agent that has not begun yet would begin after it was told to end.
    let (mut early, _) = Migration::start(0, 0..2, manner(MoveMode::Live, None));
    early.reply(1, 0, Reply::Inspected(Inspection::default()));
    early.reply(1, 0, Reply::Compared(Vec::new()));
    assert_eq!(early.cancel(2), Some(vec![]));
    assert_eq!(early.reply(3, 0, Reply::Precopying), withdraws());
    assert_eq!(early.reply(4, 0, Reply::PrecopyEnded), over);
    assert_eq!(cancelled.cancel(8), None);
    let mut failed = precopying(None);
    assert_eq!(failed.target_failed(5, target_trouble(0)), withdraws());
    assert_eq!(failed.reply(6, 0, Reply::Unasked(mend_messages::agent::Unasked::Silent)).len(), 2);
    let mut gone = precopying(None);
    assert_eq!(gone.lost(5, 0, Gone::Ended), [Action::Withdraw, Action::Finish(Err(Failure::Lost { rank: 0, how: Gone::Ended }))]);
    let mut silent = precopying(None);
    assert_eq!((silent.judge(SILENCE_US), silent.judge(2 + SILENCE_US)), (vec![], withdraws()));
    let mut broken = precopying(None);
    let why = Refusal::Told { error: "x".into(), hint: String::new() };
    assert_eq!(broken.precopy_failed(5, 0, why), withdraws());
    // What the target says of it is better.
    assert!(broken.target_failed(6, target_trouble(0)).is_empty());
    assert_eq!(broken.reply(7, 0, Reply::PrecopyEnded)[1], Action::Finish(Err(target_trouble(0))));
}

#[test]
fn nothing_is_sent_before_the_target_has_all_that_the_rank_uses() {
    let inspected = |mode| {
        let (mut machine, _) = Migration::start(0, 0..2, manner(mode, None));
        assert_eq!(machine.reply(1, 0, Reply::Inspected(Inspection::default())), [Action::Compare]);
        assert!(machine.compares() && !machine.stops() && !machine.waits());
        machine
    };
    let compared = || Reply::Compared(Vec::new());
    let over = |failure| vec![Action::Finish(Err(failure))];
    for mode in [MoveMode::Live, MoveMode::Frozen, MoveMode::Stored(Storage::Local)] {
        let mut refused = inspected(mode);
        // Another target may do.
        assert_eq!(refused.compare_again(), [Action::Compare]);
        refused.refuse(target_trouble(0));
        assert_eq!(refused.reply(2, 0, compared()), over(target_trouble(0)));
        assert_eq!(inspected(mode).target_failed(2, target_trouble(0)), over(target_trouble(0)));
        assert_eq!(inspected(mode).cancel(2), Some(over(Failure::Cancelled { rank: 0 })));
        assert_eq!(inspected(mode).lost(2, 0, Gone::Ended), over(Failure::Lost { rank: 0, how: Gone::Ended }));
    }
    assert_eq!(inspected(MoveMode::Frozen).reply(2, 0, compared()), stops());
    assert_eq!(inspected(MoveMode::Stored(Storage::Staged)).reply(2, 0, compared()), stops());
    // What it used it, or another rank, may have closed and removed meanwhile: it is looked at some times more, and then it counts.
    let mut again = inspected(MoveMode::Frozen);
    let ask = Action::Ask { rank: 0, request: Request::Inspect { ahead: None, files: true } };
    for _ in 0..MOST_INSPECTED_AGAIN {
        assert_eq!(again.inspect_again().as_ref(), Some(&vec![ask.clone()]));
        assert_eq!((again.inspect_again(), again.phase()), (None, Some("inspect")));
        assert_eq!(again.reply(3, 0, Reply::Inspected(Inspection::default())), [Action::Compare]);
    }
    assert_eq!(again.inspect_again(), None);
    assert_eq!(again.reply(4, 0, compared()), stops());
    // Who is in a hurry need not wait for the first round, but for this.
    let mut hurried = inspected(MoveMode::Live);
    assert_eq!(hurried.hurry(2), []);
    assert_eq!(hurried.reply(3, 0, compared()), stops());
    // Another rank is being stopped.
    let mut held = inspected(MoveMode::Frozen);
    held.hold(true);
    assert_eq!(held.reply(2, 0, compared()), []);
    assert!(held.waits());
    assert_eq!(held.take_turn(3), stops());
}

fn target_trouble(rank: Rank) -> Failure {
    Failure::NotRebuilt { rank, node: 1, why: TargetTrouble::Ended }
}

proptest! {
    /// Whatever fails: exactly one copy of the rank runs at the end, every suspended rank is resumed once, and
    /// after `Commit` nothing is undone.
    #[test]
    fn one_copy_survives(ranks in 1u32..5, rank in 0u32..5, live: bool, meddle in 0usize..40,
                         fates in proptest::collection::vec((0usize..64, 0u8..10), 0..60)) {
        let rank = rank % ranks;
        let mode = if live { MoveMode::Live } else { MoveMode::Frozen };
        let (mut machine, mut todo) = Migration::start(rank, 0..ranks, manner(mode, None));
        let (mut step, mut withdrawn, mut breaks) = (0, false, false);
        let mut open = Vec::new();
        let (mut frozen, mut committed, mut undone, mut finished) = (false, false, false, None);
        let (mut suspended, mut resumed) = (BTreeSet::new(), BTreeSet::new());
        let mut fates = fates.into_iter();
        while finished.is_none() {
            for action in std::mem::take(&mut todo) {
                prop_assert!(finished.is_none());
                match action {
                    Action::Ask { rank, request } => {
                        if matches!(request, Request::Suspend | Request::SuspendPeer(_)) { suspended.insert(rank); }
                        if request == Request::Resume { prop_assert!(resumed.insert(rank)); }
                        match request {
                            Request::Save(_) => open.extend([Pending::Saved, Pending::Restored]),
                            request => open.push(Pending::Reply(rank, request)),
                        }
                    }
                    Action::Compare => open.push(Pending::Compared),
                    Action::Freeze => frozen = true,
                    Action::Thaw => frozen = false,
                    Action::Stream => open.extend([Pending::Saved, Pending::Restored]),
                    Action::Precopy => open.extend([Pending::Precopying, Pending::Round(8)]),
                    Action::Withdraw => { prop_assert!(suspended.is_empty()); withdrawn = true; }
                    Action::Break => breaks = true,
                    Action::Commit => { prop_assert!(!undone && !withdrawn); committed = true; }
                    Action::Undo => { prop_assert!(!committed); undone = true; }
                    Action::Finish(result) => finished = Some(result),
                }
            }
            if finished.is_some() { break }
            step += 1;
            if step == meddle {
                todo = match meddle % 3 {
                    0 => machine.hurry(1),
                    _ => machine.cancel(1).unwrap_or_default(),
                };
                continue;
            }
            prop_assert!(!open.is_empty(), "stuck in {:?}", machine);
            let (pick, fate) = fates.next().unwrap_or((0, 0));
            let bad = fate >= 8;
            let failed = Reply::Failed { error: "x".into(), hint: String::new() };
            todo = match open.remove(pick % open.len()) {
                Pending::Reply(from, request) => {
                    let good = match request {
                        Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
                        Request::Resume => Reply::Resumed { stopped_us: 9 },
                        Request::EndPrecopy => Reply::PrecopyEnded,
                        _ => Reply::Suspended { us: 1 },
                    };
                    machine.reply(1, from, if bad { failed } else { good })
                }
                Pending::Compared if bad && fate == 9 => { machine.refuse(target_trouble(rank)); machine.reply(1, rank, Reply::Compared(Vec::new())) }
                Pending::Compared if bad => machine.target_failed(1, target_trouble(rank)),
                Pending::Compared => machine.reply(1, rank, Reply::Compared(Vec::new())),
                Pending::Precopying => machine.reply(1, rank, if bad { failed } else { Reply::Precopying }),
                Pending::Round(_) if bad => machine.precopy_failed(1, rank, Refusal::Told { error: "x".into(), hint: String::new() }),
                Pending::Round(more) => {
                    if more > 0 { open.push(Pending::Round(more - 1)); }
                    machine.round(1, rank, round(8 - more, true, 5000 >> (8 - more)))
                }
                Pending::Saved => machine.reply(2, rank, if bad || breaks { failed } else { Reply::Saved(Saved::default()) }),
                Pending::Restored if bad => machine.target_failed(3, target_trouble(rank)),
                Pending::Restored => { open.push(Pending::FabricUp); machine.restored(3, 10) }
                Pending::FabricUp if bad => machine.target_failed(4, target_trouble(rank)),
                Pending::FabricUp => machine.fabric_up(4),
            };
        }
        prop_assert!(!frozen);
        prop_assert_eq!(&suspended, &resumed);
        let finished = finished.unwrap();
        let cancelled = Err(Failure::Cancelled { rank });
        prop_assert!(!breaks || finished == cancelled);
        prop_assert_eq!(finished.is_ok(), committed);
    }
}

#[test]
fn that_a_rank_ended_says_why_its_target_has_not_all_of_it() {
    let mut machine = precopying(None);
    let broken = TargetTrouble::Told(crate::failure::Trouble { error: "the stream ends".into(), hint: String::new() });
    machine.target_failed(10, Failure::NotRebuilt { rank: 0, node: 2, why: broken });
    // Its agent may go first.
    let mut other = machine.clone();
    let finished = other.reply(11, 0, Reply::Unasked(Unasked::Left));
    let gone = Refusal::Unasked(Unasked::Left);
    assert!(matches!(&finished[..], [.., Action::Finish(Err(Failure::Refused { rank: 0, why }))] if *why == gone), "{finished:?}");
    let finished = machine.lost(11, 0, Gone::Ended);
    assert!(matches!(&finished[..], [.., Action::Finish(Err(Failure::Lost { rank: 0, how: Gone::Ended }))]), "{finished:?}");
}

/// A frozen migration of rank 0 of two, whose image is being sent.
fn moving() -> Migration {
    let (mut machine, _) = Migration::start(0, 0..2, manner(MoveMode::Frozen, None));
    machine.reply(1, 0, Reply::Inspected(Inspection::default()));
    machine.reply(1, 0, Reply::Compared(Vec::new()));
    machine.reply(2, 0, Reply::Suspended { us: 1 });
    assert_eq!(machine.reply(2, 1, Reply::Suspended { us: 1 }), [Action::Stream]);
    machine
}

/// Why a migration came to nothing that does this now, when both ranks run again.
fn ends(mut machine: Migration, todo: Vec<Action>) -> Failure {
    assert_eq!(todo[0], Action::Undo);
    machine.reply(9, 1, Reply::Resumed { stopped_us: 0 });
    let Some(Action::Finish(Err(failure))) = machine.reply(9, 0, Reply::Resumed { stopped_us: 9 }).pop() else { panic!() };
    failure
}

fn broken() -> Reply {
    Reply::Failed { error: "broken pipe".into(), hint: String::new() }
}

#[test]
fn who_cancels_a_rank_that_is_being_sent_need_not_wait_for_all_of_it() {
    let cancelled = Failure::Cancelled { rank: 0 };
    let mut machine = moving();
    assert_eq!(machine.cancel(3), Some(vec![Action::Break]));
    assert_eq!(machine.cancel(3), Some(vec![]));
    // Its target says what has become of it, or has had all of it just then; or its source has sent all.
    let mut told = machine.clone();
    assert_eq!(told.target_failed(4, target_trouble(0)), []);
    let mut restored = machine.clone();
    assert_eq!(restored.restored(4, 1), []);
    let mut saved = machine.clone();
    let todo = saved.reply(5, 0, Reply::Saved(Saved::default()));
    assert_eq!(ends(saved, todo), cancelled);
    for mut machine in [machine, told, restored] {
        let todo = machine.reply(5, 0, broken());
        assert_eq!(ends(machine, todo), cancelled);
    }
    // A target that has failed already is not broken again.
    let mut machine = moving();
    machine.target_failed(3, target_trouble(0));
    assert_eq!(machine.cancel(4), Some(vec![]));
    let mut machine = moving();
    machine.reply(3, 0, broken());
    let todo = machine.cancel(4).unwrap();
    assert_eq!(ends(machine, todo), cancelled);
}

/// A target that stored nothing was told as a broken pipe of its source, if that spoke first.
#[test]
fn what_the_target_says_of_a_broken_stream_is_told_whoever_speaks_first() {
    let why = || Refusal::Told { error: "broken pipe".into(), hint: String::new() };
    let both = Failure::BothEnds { target: Box::new(target_trouble(0)), rank: 0, source: why() };
    let mut machine = moving();
    assert_eq!(machine.target_failed(3, target_trouble(0)), []);
    let todo = machine.reply(4, 0, broken());
    assert_eq!(ends(machine, todo), both);
    let mut machine = moving();
    assert_eq!(machine.reply(3, 0, broken()), []);
    let silent = machine.clone();
    let todo = machine.target_failed(4, target_trouble(0));
    assert_eq!(ends(machine, todo), both);
    // A target that says nothing is not waited for long, and one that thinks it has all of it has not.
    for restored in [true, false] {
        let mut machine = silent.clone();
        assert_eq!(machine.due_us(), Some(3 + TARGET_WORD_US));
        assert_eq!(machine.judge(4), []);
        let todo = if restored { machine.restored(5, 1) } else { machine.judge(3 + TARGET_WORD_US) };
        assert_eq!(ends(machine, todo), Failure::Refused { rank: 0, why: why() });
    }
    // A source that is gone says nothing of the stream.
    assert_eq!(moving().reply(3, 0, Reply::Unasked(Unasked::Ended))[0], Action::Undo);
}
