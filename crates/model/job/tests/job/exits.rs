//! With what exit code a job ends whose ranks end with different ones.

use crate::world::World;
use mend_job::event::{Effect, End, Notice};
use mend_journal::facts::Cause;
use mend_messages::daemon::{ExitStatus, FromDaemon};
use mend_messages::job::Rank;

fn exit(world: &mut World, rank: Rank, status: ExitStatus) {
    let attempt = world.attempt(rank);
    world.hear(rank, FromDaemon::Exited { rank, attempt, status });
}

/// How a job ended whose ranks ended so, in this order, and the ranks of which it told that.
fn ended(begun: &[Rank], exits: &[(Rank, i32)]) -> (Option<End>, Vec<Rank>) {
    let mut world = World::new();
    for &rank in begun {
        world.pmi(rank, b"cmd=init\n");
    }
    for &(rank, code) in exits {
        exit(&mut world, rank, ExitStatus::Code(code));
    }
    let told = |effect: &Effect| if let Effect::Tell(Notice::RankExited { rank, .. }) = effect { Some(*rank) } else { None };
    (world.job.end_reason().cloned(), world.effects.iter().filter_map(told).collect())
}

#[test]
fn of_ranks_that_fail_after_mpi_the_first_by_number_counts_in_whatever_order_they_end() {
    assert_eq!(ended(&[], &[(0, 0), (1, 3)]), (Some(End::Code(3)), vec![1]));
    assert_eq!(ended(&[], &[(1, 3), (0, 0)]), (Some(End::Code(3)), vec![1]));
    assert_eq!(ended(&[], &[(0, 3), (1, 5)]), (Some(End::Code(3)), vec![0]));
    assert_eq!(ended(&[], &[(1, 5), (0, 3)]), (Some(End::Code(3)), vec![1, 0]));
    assert_eq!(ended(&[], &[(1, 5)]), (None, vec![1]), "the other goes on");
    assert_eq!(ended(&[], &[(0, 0), (1, 0)]), (Some(End::Code(0)), vec![]));
}

#[test]
fn a_rank_that_fails_within_mpi_ends_the_job_with_its_code() {
    assert_eq!(ended(&[0, 1], &[(1, 5)]), (Some(End::Code(5)), vec![1]));
    assert_eq!(ended(&[1], &[(0, 3), (1, 5)]), (Some(End::Code(5)), vec![0, 1]));
    let mut world = World::new();
    exit(&mut world, 0, ExitStatus::Code(3));
    exit(&mut world, 1, ExitStatus::Signal(9));
    assert_eq!(world.job.end_reason(), Some(&End::RankKilled { rank: 1, signal: 9 }));
}

#[test]
fn the_journal_blames_the_rank_whose_code_it_is() {
    let mut world = World::new();
    exit(&mut world, 1, ExitStatus::Code(5));
    exit(&mut world, 0, ExitStatus::Code(3));
    let blamed = world.effects.iter().find_map(|effect| match effect {
        Effect::Record(record) => match &**record {
            mend_job::event::Record::Cause(cause) => Some(cause.clone()),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(blamed, Some(Cause::RankExited { rank: 0, status: 3, node: "n0".into() }));
}
