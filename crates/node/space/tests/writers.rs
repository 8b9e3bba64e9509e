//! Clients that write files of a space whose targets are real processes: what one of them does when another one died, or two do the same at once.

#[path = "cluster/boots.rs"]
mod boots;
mod cluster;
#[path = "cluster/full.rs"]
mod full;
#[path = "cluster/late.rs"]
mod late;

use cluster::Cluster;
use late::Late;
use mend_data::space::target::Request;
use mend_data::space::written::Written;
use mend_data::space::{Entry, Id, Kind, Striping};
use mend_space::client::{Client, Holds, Refused, Writer, Writing};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

fn written(client: &Client, id: &Id) -> Written {
    client.names().entry(id).unwrap().written().unwrap().clone()
}

/// A writer, and a file of it with some bytes, synced.
fn with_file(cluster: &Cluster, bytes: &[u8]) -> (Arc<Client>, Writer, Entry) {
    let client = cluster.client();
    let writer = Writer::new(client.clone(), None);
    let (entry, _) = writer.create("file.tmp", 0o644, true).unwrap();
    writer.write(&entry.id, 0, bytes).unwrap();
    writer.sync(&entry.id).unwrap();
    (client, writer, entry)
}

/// A map by which the second copy is made on the target that has none: told to that one alone, as if who moves it had died then.
fn half_moved(client: &Client, entry: &Entry) -> Entry {
    let known = entry.written().unwrap();
    let [good, _] = known.objects[0];
    let new = (0..3).find(|at| !known.objects[0].contains(at)).unwrap();
    let moved = Written { objects: vec![[good, new]], epoch: known.epoch + 1, filling: vec![0], ..known.clone() };
    let moved = Entry { version: entry.version + 1, kind: Kind::Written(moved), ..entry.clone() };
    let adopt = Request::Adopt { entry: Box::new(moved.clone()), positions: vec![0], fresh: vec![0] };
    client.peer(new).unwrap().ask(&adopt, &[]).unwrap();
    moved
}

#[test]
fn who_syncs_while_another_thread_does_waits_for_it() {
    let cluster = Cluster::new(2);
    let (_, writer, entry) = with_file(&cluster, b"first");
    writer.write(&entry.id, 5, b"second").unwrap();
    cluster.signal(1, Signal::STOP);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| writer.sync(&entry.id));
        std::thread::sleep(Duration::from_millis(300));
        let other = scope.spawn(|| writer.sync(&entry.id));
        std::thread::sleep(Duration::from_millis(700));
        // Nothing says that it is durable on the target that is stopped.
        let early = other.is_finished();
        cluster.signal(1, Signal::CONT);
        one.join().unwrap().unwrap();
        other.join().unwrap().unwrap();
        assert!(!early, "it was synced before it was durable");
    });
}

/// What it reads past the end it had seen would be lost to it: it goes on behind that.
#[test]
fn who_reads_a_file_that_grows_sees_no_zeros_that_nobody_wrote() {
    const RECORDS: usize = 300;
    let cluster = Cluster::new(2);
    let (_, writer, entry) = with_file(&cluster, b"x");
    let reading = cluster.client();
    reading.refresh();
    let reader = Writer::new(reading, None);
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| (0..RECORDS).try_for_each(|_| writer.append(&entry.id, &[b'x'; 100]).map(drop)));
        let mut seen = 0;
        loop {
            let is_all = writes.is_finished();
            let bytes = reader.read(&entry.id, seen, 1 << 16).unwrap().bytes;
            assert!(bytes.iter().all(|byte| *byte == b'x'), "zeros behind {seen} bytes");
            seen += bytes.len() as u64;
            if is_all {
                break;
            }
        }
        assert_eq!(seen, 1 + RECORDS as u64 * 100);
        writes.join().unwrap().unwrap();
    });
}

/// Each takes several requests, and there is one claim for all of them.
#[test]
fn what_threads_append_at_once_stays_together() {
    const LENGTH: usize = (3 << 20) + 7;
    let cluster = Cluster::new(2);
    let (_, writer, entry) = with_file(&cluster, b"x");
    std::thread::scope(|scope| {
        let appends = [b'a', b'b', b'c'].map(|byte| {
            scope.spawn({
                let (writer, file) = (&writer, entry.id);
                move || writer.append(&file, &vec![byte; LENGTH]).unwrap()
            })
        });
        for (at, append) in appends.into_iter().enumerate() {
            let (begins, length) = append.join().unwrap();
            assert_eq!(length, LENGTH);
            let bytes: Vec<u8> = (0..LENGTH)
                .step_by(1 << 20)
                .flat_map(|from| writer.read(&entry.id, begins + from as u64, (LENGTH - from).min(1 << 20) as u32).unwrap().bytes)
                .collect();
            assert!(bytes.len() == LENGTH && bytes.iter().all(|byte| *byte == b"abc"[at]), "others' bytes are between");
        }
    });
    assert_eq!(writer.shape(&entry).unwrap().0, 1 + 3 * LENGTH as u64);
}

/// Who appended may be lost, and then never says that it is over. One that lives on still takes the claim for its own.
#[test]
fn whose_claim_to_append_was_ended_overwrites_nothing() {
    let cluster = Cluster::new(2);
    let (_, writer, entry) = with_file(&cluster, b"x");
    writer.append(&entry.id, b"one").unwrap();
    let later = Writer::new(cluster.client(), None);
    assert!(matches!(later.append(&entry.id, b"two"), Err(Refused::Appending)));
    Writer::new(cluster.client(), None).end_appending(&entry.id).unwrap();
    assert_eq!(later.append(&entry.id, b"two").unwrap(), (4, 3));
    assert_eq!(writer.append(&entry.id, b"three").unwrap(), (7, 5));
    assert_eq!(later.append(&entry.id, b"four").unwrap(), (12, 4));
    assert_eq!(later.read(&entry.id, 0, 100).unwrap().bytes, b"xonetwothreefour");
}

#[test]
fn a_file_whose_mover_died_is_written_on_and_becomes_whole() {
    let cluster = Cluster::new(3);
    let (client, writer, entry) = with_file(&cluster, &[7; 3000]);
    half_moved(&client, &entry);
    // Another client hears of the map from the new target alone.
    let later = cluster.client();
    later.refresh();
    let other = Writer::new(later.clone(), None);
    other.write(&entry.id, 1000, b"other").unwrap();
    other.sync(&entry.id).unwrap();
    writer.write(&entry.id, 2000, b"first").unwrap();
    writer.sync(&entry.id).unwrap();
    assert!(written(&client, &entry.id).filling.is_empty() && written(&client, &entry.id).epoch == 1);
    // The new copy alone has all of it.
    let [good, _] = written(&client, &entry.id).objects[0];
    for object in cluster.objects(good.into(), ".0") {
        std::fs::remove_file(object).unwrap();
    }
    let mut expected = vec![7; 3000];
    expected[1000..1005].copy_from_slice(b"other");
    expected[2000..2005].copy_from_slice(b"first");
    assert!(later.names().entry(&entry.id).is_some());
    assert_eq!(other.read(&entry.id, 0, 4000).unwrap().bytes, expected);
}

#[test]
fn who_only_read_a_file_does_not_make_its_copy_when_it_is_closed() {
    let cluster = Cluster::new(3);
    let (client, writer, entry) = with_file(&cluster, &[7; 3000]);
    half_moved(&client, &entry);
    let client = cluster.client();
    let reader = Writer::new(client.clone(), None);
    reader.read(&entry.id, 0, 3000).unwrap();
    reader.sync(&entry.id).unwrap();
    client.refresh();
    assert_eq!(written(&client, &entry.id).filling, [0]);
    // Who wrote it waits for both copies.
    writer.write(&entry.id, 0, b"x").unwrap();
    writer.sync(&entry.id).unwrap();
    client.refresh();
    assert!(written(&client, &entry.id).filling.is_empty());
}

#[test]
fn a_closed_file_whose_mover_died_is_healed_while_the_space_is_used() {
    let cluster = Cluster::new(3);
    let (client, _, entry) = with_file(&cluster, &[7; 3000]);
    half_moved(&client, &entry);
    let later = cluster.client();
    let healer = Writer::new(later.clone(), None);
    assert_eq!(later.unfilled(), [entry.id]);
    healer.fill_again(&later.unfilled());
    assert!(later.unfilled().is_empty());
    assert!(written(&later, &entry.id).filling.is_empty());
}

#[test]
fn a_name_that_is_given_while_a_copy_is_made_stays() {
    let cluster = Cluster::new(3);
    // Long enough for the copy to last while the name is given.
    let (client, writer, entry) = with_file(&cluster, &vec![7; 64 << 20]);
    half_moved(&client, &entry);
    let other = cluster.client();
    let renamer = Writer::new(other, None);
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            client.refresh();
            writer.write(&entry.id, 0, b"x").unwrap();
            writer.sync(&entry.id)
        });
        let smallest = || {
            let sizes = (0..3).flat_map(|at| cluster.objects(at, ".0")).map(|path| path.metadata().unwrap().len());
            sizes.min().unwrap()
        };
        while smallest() < 4 << 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        renamer.rename("file.tmp", "file", true).unwrap();
        syncing.join().unwrap().unwrap();
    });
    let after = cluster.client();
    assert_eq!(after.names().entry(&entry.id).unwrap().path, "file");
    assert!(written(&after, &entry.id).filling.is_empty());
}

#[test]
fn what_is_open_or_not_synced_counts_as_being_written() {
    let mut cluster = Cluster::new(2);
    let (client, writer, entry) = with_file(&cluster, b"first");
    let asked = cluster.client();
    let told = |client: &Client| client.are_written(std::slice::from_ref(&entry))[0];
    assert_eq!(told(&asked), Writing::default());
    writer.write(&entry.id, 5, b"second").unwrap();
    assert_eq!(told(&asked), Writing { held: false, unsynced: true });
    writer.sync(&entry.id).unwrap();
    let mut holds = Holds::default();
    holds.tell(&client, &BTreeSet::from([entry.id]));
    assert_eq!(told(&asked), Writing { held: true, unsynced: false });
    // One of the targets that know it is enough.
    cluster.kill(0);
    assert_eq!(told(&asked), Writing { held: true, unsynced: false });
    // One that was started anew is told at the next time.
    cluster.start(0);
    cluster.kill(1);
    assert_eq!(told(&cluster.client()), Writing::default());
    cluster.start(1);
    holds.tell(&client, &BTreeSet::new());
    assert_eq!(told(&cluster.client()), Writing::default());
}

#[test]
fn one_at_a_time_sends_files_away() {
    let cluster = Cluster::new(2);
    let client = cluster.client();
    assert_eq!([1, 2, 1].map(|who| client.take_offload_turn([who; 16], false).unwrap()), [true, false, true]);
    assert!(client.take_offload_turn([1; 16], true).unwrap());
    assert!(client.take_offload_turn([2; 16], false).unwrap());
}

#[test]
fn a_write_that_was_given_up_and_comes_late_does_not_undo_what_was_written_since() {
    let cluster = Cluster::new(2);
    let late = Late::before(&cluster, 0);
    let client = cluster.patient_client(Duration::from_secs(1));
    let writer = Writer::new(client, None);
    let (entry, _) = writer.create("file", 0o644, true).unwrap();
    let write = |bytes: &[u8]| writer.write(&entry.id, 0, bytes).unwrap();
    write(b"first");
    late.hold();
    write(b"older");
    write(b"newer");
    writer.sync(&entry.id).unwrap();
    late.release();
    for object in (0..2).flat_map(|at| cluster.objects(at, ".0")) {
        assert_eq!(std::fs::read(&object).unwrap(), b"newer", "{}", object.display());
    }
}

#[test]
fn of_two_that_make_one_directory_one_hears_that_it_is_there() {
    let cluster = Cluster::new(2);
    let writers = [cluster.client(), cluster.client()].map(|client| Writer::new(client, None));
    for round in 0..20 {
        let path = format!("directory{round}");
        let together = Barrier::new(writers.len());
        let made = std::thread::scope(|scope| {
            let making = writers.each_ref().map(|writer| {
                scope.spawn(|| {
                    together.wait();
                    writer.make_directory(&path)
                })
            });
            making.map(|making| making.join().unwrap())
        });
        let refused = made.iter().filter(|made| matches!(made, Err(Refused::Exists))).count();
        assert_eq!((made.iter().filter(|made| made.is_ok()).count(), refused), (1, 1), "{made:?}");
    }
}

#[test]
fn a_file_that_lost_a_copy_gets_another_name_and_other_permissions_and_is_removed_while_it_is_open() {
    let mut cluster = Cluster::new(3);
    let (client, writer, entry) = with_file(&cluster, &[7; 3000]);
    writer.opened(&entry.id);
    let [_, lost] = entry.written().unwrap().objects[0];
    cluster.kill(lost.into());
    writer.rename("file.tmp", "file", true).unwrap();
    writer.set_mode(&entry.id, 0o600).unwrap();
    // The one that was lost hears of it when it is back.
    cluster.start(lost.into());
    let other = cluster.client();
    other.refresh();
    let seen = other.names().entry(&entry.id).unwrap().clone();
    assert_eq!((&*seen.path, seen.written().unwrap().mode), ("file", 0o600));
    cluster.kill(lost.into());
    writer.unlink("file").unwrap();
    assert!(client.names().at("file").is_none() && client.names().entry(&entry.id).is_some());
    assert_eq!(writer.read(&entry.id, 0, 4000).unwrap().bytes, [7; 3000]);
    writer.closed(&entry.id);
    assert!(client.names().entry(&entry.id).is_none());
}

#[test]
fn a_target_whose_medium_was_full_for_a_moment_ends_and_begins_anew() {
    let mut cluster = Cluster::new(1);
    let client = cluster.client();
    client.set_striping("before", Striping::default()).unwrap();
    full::takes(&cluster, 0, false);
    client.set_striping("meanwhile", Striping::default()).unwrap_err();
    full::takes(&cluster, 0, true);
    for _ in 0..100 {
        if full::has_ended(&mut cluster, 0) {
            break;
        }
        // Its daemon starts it for whoever asks next.
        let _ = client.set_striping("later", Striping::default());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(full::has_ended(&mut cluster, 0), "its database takes nothing any more");
    cluster.start(0);
    let client = cluster.client();
    client.set_striping("after", Striping::default()).unwrap();
    assert!(client.names().at("before").is_some());
}

#[test]
fn what_could_not_be_synced_when_a_file_was_closed_is_left_for_who_opens_it_next() {
    let mut cluster = Cluster::new(2);
    let (_, writer, entry) = with_file(&cluster, b"first");
    writer.opened(&entry.id);
    writer.write(&entry.id, 0, b"bytes").unwrap();
    cluster.kill(1);
    writer.sync(&entry.id).unwrap_err();
    writer.closed(&entry.id);
    writer.opened(&entry.id);
    writer.sync(&entry.id).unwrap_err();
    cluster.start(1);
    std::thread::sleep(Duration::from_secs(1));
    writer.sync(&entry.id).unwrap();
    writer.closed(&entry.id);
    cluster.kill(1);
    writer.opened(&entry.id);
    writer.sync(&entry.id).unwrap();
    writer.closed(&entry.id);
}

#[test]
fn who_syncs_what_both_copies_have_lost_is_told_once() {
    if !boots::can_be_made() {
        return;
    }
    let mut cluster = Cluster::new(3);
    let (client, writer, entry) = with_file(&cluster, b"first");
    let copies = written(&client, &entry.id).objects[0];
    writer.write(&entry.id, 0, b"later").unwrap();
    for at in copies {
        cluster.kill(at.into());
        boots::start_anew(&mut cluster, at.into());
    }
    let told = writer.sync(&entry.id).unwrap_err();
    assert!(told.to_string().contains("started anew"), "{told}");
    writer.sync(&entry.id).unwrap();
    writer.write(&entry.id, 0, b"again").unwrap();
    writer.sync(&entry.id).unwrap();
}

#[test]
fn a_copy_that_is_made_of_one_that_has_lost_it_does_not_count() {
    if !boots::can_be_made() {
        return;
    }
    let mut cluster = Cluster::new(3);
    let (client, writer, entry) = with_file(&cluster, b"first");
    let [one, other] = written(&client, &entry.id).objects[0];
    writer.write(&entry.id, 0, b"later").unwrap();
    cluster.kill(other.into());
    boots::start_anew(&mut cluster, other.into());
    cluster.kill(one.into());
    writer.write(&entry.id, 100, b"more").unwrap();
    assert!(!written(&client, &entry.id).objects[0].contains(&one));
    let told = writer.sync(&entry.id).unwrap_err();
    assert!(told.to_string().contains("started anew"), "{told}");
    writer.sync(&entry.id).unwrap();
}

#[test]
fn a_file_of_one_copy_is_written_on_when_its_node_has_lost_what_was_not_synced() {
    if !boots::can_be_made() {
        return;
    }
    let mut cluster = Cluster::new(3);
    cluster.space.copies = 1;
    let (client, writer, entry) = with_file(&cluster, b"first");
    let [at, _] = written(&client, &entry.id).objects[0];
    writer.write(&entry.id, 0, b"later").unwrap();
    cluster.kill(at.into());
    boots::start_anew(&mut cluster, at.into());
    assert!(writer.sync(&entry.id).is_err());
    writer.write(&entry.id, 0, b"again").unwrap();
    writer.sync(&entry.id).unwrap();
}

#[test]
fn all_copies_tell_the_same_time_also_one_that_is_made_later() {
    let cluster = Cluster::new(3);
    let (client, writer, entry) = with_file(&cluster, &[7; 3000]);
    let times = |client: &Client| {
        let told = written(client, &entry.id).objects[0].map(|at| client.peer(at).unwrap().shapes(vec![entry.id]).unwrap());
        told.map(|told| told[0][0].changed_ns)
    };
    let before = times(&client);
    assert_eq!(before[0], before[1]);
    half_moved(&client, &entry);
    client.refresh();
    writer.fill_again(&client.unfilled());
    assert_ne!(written(&client, &entry.id).objects, entry.written().unwrap().objects);
    assert_eq!(times(&client), before);
}
