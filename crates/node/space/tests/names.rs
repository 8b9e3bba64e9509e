//! Names that several clients give, take and look at in the same moment, of files of a space whose targets are real processes.

mod cluster;
#[path = "names/partition.rs"]
mod partition;

use cluster::Cluster;
use mend_data::space::Entry;
use mend_space::client::{Client, Refused, Writer};
use rustix::process::Signal;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Nodes with a writer each, which two ranks of a node share.
fn nodes(cluster: &Cluster) -> [(Arc<Client>, Writer); 2] {
    [(); 2].map(|()| {
        let client = cluster.client();
        (client.clone(), Writer::new(client, None))
    })
}

/// What comes of what ranks do in the same moment, with their numbers: two on each node.
fn together<T: Send>(nodes: &[(Arc<Client>, Writer); 2], work: impl Fn(usize, &Writer) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(4);
    let rank = |rank: usize| {
        barrier.wait();
        work(rank, &nodes[rank % 2].1)
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..4).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// What clients that hear all targets anew see.
fn seen(cluster: &Cluster, path: &str) -> Option<Entry> {
    cluster.client().names().at(path).cloned()
}

#[test]
fn of_ranks_that_rename_one_file_one_does() {
    let cluster = Cluster::new(3);
    let nodes = nodes(&cluster);
    for round in 0..20 {
        let task = format!("task{round}");
        let (entry, _) = nodes[0].1.create(&task, 0o644, true).unwrap();
        nodes.iter().for_each(|(client, _)| drop(client.refresh()));
        let claimed = together(&nodes, |rank, writer| writer.rename(&task, &format!("{task}.{rank}"), true));
        let has: Vec<usize> = (0..4).filter(|rank| claimed[*rank].is_ok()).collect();
        assert!(has.len() == 1 && claimed.iter().all(|claimed| matches!(claimed, Ok(()) | Err(Refused::Absent))), "{claimed:?}");
        for rank in 0..4 {
            let at = seen(&cluster, &format!("{task}.{rank}")).map(|entry| entry.id);
            assert_eq!(at, (rank == has[0]).then_some(entry.id));
        }
    }
}

#[test]
fn who_removes_a_name_does_not_remove_the_file_that_was_given_another_one() {
    let cluster = Cluster::new(3);
    let nodes = nodes(&cluster);
    for round in 0..20 {
        let [old, new] = ["old", "new"].map(|name| format!("{name}{round}"));
        nodes[0].1.create(&old, 0o644, true).unwrap();
        nodes.iter().for_each(|(client, _)| drop(client.refresh()));
        let done = together(&nodes, |rank, writer| if rank == 0 { writer.rename(&old, &new, true) } else { writer.unlink(&old) });
        assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1, "{done:?}");
        assert_eq!((seen(&cluster, &old).is_some(), seen(&cluster, &new).is_some()), (false, done[0].is_ok()));
    }
}

#[test]
fn of_files_that_are_renamed_to_one_name_the_last_one_stays_and_no_other_one_comes_back() {
    let cluster = Cluster::new(3);
    let nodes = nodes(&cluster);
    for rank in 0..4 {
        nodes[0].1.create(&format!("tmp{rank}"), 0o644, true).unwrap();
    }
    nodes.iter().for_each(|(client, _)| drop(client.refresh()));
    let done = together(&nodes, |rank, writer| writer.rename(&format!("tmp{rank}"), "file", true));
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    assert_eq!(cluster.client().names().all_at("file").len(), 1);
    nodes[1].1.unlink("file").unwrap();
    assert!(cluster.client().names().files("").is_empty() && (0..3).all(|at| cluster.objects(at, ".0").is_empty()));
}

#[test]
fn who_knows_an_old_name_and_changes_permissions_does_not_bring_it_back() {
    let cluster = Cluster::new(3);
    let [(_, one), (_, other)] = nodes(&cluster);
    let (entry, _) = one.create("old", 0o644, true).unwrap();
    one.sync(&entry.id).unwrap();
    let stale = cluster.client();
    let changer = Writer::new(stale, None);
    other.rename("old", "new", true).unwrap();
    changer.set_mode(&entry.id, 0o600).unwrap();
    let seen = seen(&cluster, "new").unwrap();
    assert_eq!((seen.id, seen.written().unwrap().mode), (entry.id, 0o600));
}

#[test]
fn who_looks_at_a_young_file_that_is_gone_is_not_made_to_wait() {
    let cluster = Cluster::new(3);
    let [(_, maker), _] = nodes(&cluster);
    let (entry, _) = maker.create("lock", 0o644, true).unwrap();
    let client = cluster.client();
    let looker = Writer::new(client.clone(), None);
    maker.unlink("lock").unwrap();
    let begun = Instant::now();
    looker.until_made(&entry);
    assert!(begun.elapsed() < Duration::from_secs(2) && client.names().entry(&entry.id).is_none());
}

#[test]
fn a_file_is_made_on_other_targets_when_one_was_lost_just_now() {
    let cluster = Cluster::new(4);
    let [(_, writer), _] = nodes(&cluster);
    writer.create("before", 0o644, true).unwrap();
    cluster.signal(1, Signal::KILL);
    for number in 0..10 {
        writer.create(&format!("after{number}"), 0o644, true).unwrap();
    }
}
