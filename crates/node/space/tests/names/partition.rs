//! A network that falls apart: nodes on both sides make files of one name, on targets that are real processes. No byte that was synced is lost when the sides meet again.

use crate::cluster::{Cluster, PATIENCE};
use mend_data::space::conflicts::is_beside;
use mend_space::client::{Client, Writer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A client on whose node these targets alone can be reached.
fn client_that_reaches(cluster: &Cluster, reached: &[usize]) -> Arc<Client> {
    let mut space = cluster.space.clone();
    for (_, target) in space.targets.iter_mut().enumerate().filter(|(at, _)| !reached.contains(at)) {
        // Nobody listens there.
        target.address.set_port(1);
    }
    let secret = mend_wire::secret::load_or_create(&cluster.directory.path().join("secret")).unwrap();
    let client = Arc::new(Client::new(space, &secret, PATIENCE, false));
    client.refresh();
    client
}

fn writer(client: Arc<Client>) -> Writer {
    Writer::new(client, None)
}

/// Makes a file of these bytes, which are durable then.
fn put(writer: &Writer, path: &str, bytes: &[u8]) {
    let (entry, _) = writer.create(path, 0o644, true).unwrap();
    writer.write(&entry.id, 0, bytes).unwrap();
    writer.sync(&entry.id).unwrap();
}

/// What somebody reads who reaches all targets, by paths.
fn content(cluster: &Cluster) -> BTreeMap<String, Vec<u8>> {
    let client = cluster.client();
    let all: Vec<_> = client.names().files("").into_iter().cloned().collect();
    let writer = writer(client);
    all.into_iter().map(|entry| (entry.path.clone(), writer.read(&entry.id, 0, 1 << 20).unwrap().bytes)).collect()
}

/// Both sides of a partition have made `out/result`, and one of them `out/own`.
fn parted() -> Cluster {
    let cluster = Cluster::new(4);
    let sides = [[0, 1], [2, 3]].map(|reached| writer(client_that_reaches(&cluster, &reached)));
    put(&sides[0], "out/result", b"of the one side");
    put(&sides[1], "out/result", b"of the other side");
    put(&sides[1], "out/own", b"of its own");
    cluster
}

/// The bytes of `out/result` and of the file that was made with that name, too.
fn both(all: &BTreeMap<String, Vec<u8>>) -> Vec<&[u8]> {
    let mut both: Vec<&[u8]> = all.iter().filter(|(path, _)| path.starts_with("out/result")).map(|(_, bytes)| &bytes[..]).collect();
    both.sort_unstable();
    both
}

#[test]
fn of_two_files_of_one_name_the_one_that_is_not_seen_gets_another_name() {
    let cluster = parted();
    let client = cluster.client();
    let [hidden] = &client.conflicts("out")[..] else { panic!("one of both is hidden") };
    assert!(client.conflicts("elsewhere").is_empty() && client.kept_beside("").is_empty());
    assert_eq!(content(&cluster).len(), 2);
    let named = writer(client.clone()).keep_beside(&hidden.id).unwrap().unwrap();
    // Another node that saw it at the same time finds that it is done.
    assert_eq!(writer(cluster.client()).keep_beside(&hidden.id).unwrap(), None);
    let all = content(&cluster);
    assert_eq!(all.keys().map(String::as_str).collect::<Vec<_>>(), ["out/own", "out/result", &*named]);
    assert_eq!(both(&all), [&b"of the one side"[..], b"of the other side"]);
    let client = cluster.client();
    assert!(client.conflicts("").is_empty());
    let [kept] = &client.kept_beside("")[..] else { panic!("it has a name of its own") };
    assert!(is_beside(kept) && kept.path == named);
    // It is a file like others.
    let writer = writer(client.clone());
    writer.rename(&named, "out/second", false).unwrap();
    writer.unlink("out/result").unwrap();
    assert_eq!(content(&cluster).into_keys().collect::<Vec<_>>(), ["out/own", "out/second"]);
}

#[test]
fn who_removes_or_replaces_the_file_that_is_seen_does_not_remove_the_other_one() {
    for step in ["unlink", "rename", "replace", "rm"] {
        let cluster = parted();
        let client = cluster.client();
        let writer = writer(client.clone());
        let seen = content(&cluster).remove("out/result").unwrap();
        match step {
            "unlink" => writer.unlink("out/result").unwrap(),
            "rename" => writer.rename("out/result", "out/away", true).unwrap(),
            "replace" => writer.rename("out/own", "out/result", true).unwrap(),
            _ => drop(client.remove("out/result").unwrap()),
        }
        let all = content(&cluster);
        let hidden = [&b"of the one side"[..], b"of the other side"].into_iter().find(|bytes| *bytes != seen).unwrap();
        assert!(all.values().any(|bytes| *bytes == hidden), "{step}: {all:?}");
        assert_eq!(all.values().any(|bytes| *bytes == seen), step == "rename", "{step}: {all:?}");
    }
}

#[test]
fn a_file_where_the_other_side_has_a_directory_hides_nothing_for_long() {
    let cluster = Cluster::new(4);
    let sides = [[0, 1], [2, 3]].map(|reached| writer(client_that_reaches(&cluster, &reached)));
    put(&sides[0], "run", b"a file");
    put(&sides[1], "run/1", b"below it");
    let client = cluster.client();
    let [file] = &client.conflicts("")[..] else { panic!("the file hides what is below it") };
    let named = writer(client.clone()).keep_beside(&file.id).unwrap().unwrap();
    let all = content(&cluster);
    assert_eq!((&all["run/1"][..], &all[&named][..]), (&b"below it"[..], &b"a file"[..]));
    assert!(cluster.client().conflicts("").is_empty());
}

#[test]
fn a_side_that_reaches_one_target_makes_no_file_and_the_other_one_goes_on() {
    let cluster = Cluster::new(3);
    let [alone, others] = [&[0][..], &[1, 2]].map(|reached| writer(client_that_reaches(&cluster, reached)));
    let refused = alone.create("result", 0o644, true).unwrap_err();
    assert!(refused.to_string().contains("no targets for what ranks write"), "{refused}");
    put(&others, "result", b"whole");
    assert_eq!(content(&cluster).into_iter().collect::<Vec<_>>(), [("result".to_owned(), b"whole".to_vec())]);
}
