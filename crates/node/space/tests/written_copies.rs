//! Files that ranks write whose copies are damaged, lost or different, on targets that are real processes: what is found, and made whole again.

mod cluster;

use cluster::Cluster;
use mend_data::space::target::Request;
use mend_data::space::written::{Written, piece_sums, sum_of_pieces};
use mend_data::space::{BLOCK, Entry, Kind, Striping};
use mend_space::client::{BadCopies, Client, Writer};
use rustix::process::Signal;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SIZE: u64 = 40 * BLOCK + 77;

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at / 7 % 253) as u8).collect()
}

/// A writer, and a file of it, synced.
fn with_file(cluster: &Cluster) -> (Arc<Client>, Writer, Entry) {
    let client = cluster.client();
    let writer = Writer::new(client.clone(), None);
    let (entry, _) = writer.create("file", 0o644, true).unwrap();
    writer.write(&entry.id, 0, &content()).unwrap();
    writer.sync(&entry.id).unwrap();
    (client, writer, entry)
}

/// Changes a byte of the object that a target has.
fn damage(cluster: &Cluster, at: u16, offset: u64) {
    let [object] = &cluster.objects(at.into(), ".0")[..] else { panic!("it has one object") };
    let object = OpenOptions::new().read(true).write(true).open(object).unwrap();
    let mut byte = [0];
    object.read_exact_at(&mut byte, offset).unwrap();
    object.write_all_at(&[!byte[0]], offset).unwrap();
}

fn bad(client: &Client) -> Option<BadCopies> {
    let examined = client.examine_copies("", true).unwrap();
    assert_eq!((examined.files, examined.bytes), (1, SIZE));
    examined.found.into_iter().next()
}

fn holders(client: &Client, entry: &Entry) -> [u16; 2] {
    client.refresh();
    client.names().entry(&entry.id).unwrap().written().unwrap().objects[0]
}

#[test]
fn each_block_comes_back_from_the_copy_that_has_it() {
    let cluster = Cluster::new(2);
    let (client, writer, entry) = with_file(&cluster);
    assert!(bad(&client).is_none());
    let [one, two] = holders(&client, &entry);
    for (at, block) in [(one, 3), (one, 39), (two, 4), (two, 40)] {
        damage(&cluster, at, block * BLOCK + 5);
    }
    // Ranks read them all the same, of one copy or the other.
    assert!(writer.read(&entry.id, 0, SIZE as u32).unwrap().bytes == content());
    let found = bad(&client).unwrap();
    assert_eq!((found.damaged.len(), found.is_gone(), found.lost.len(), found.different.len()), (4, false, 0, 0));
    assert_eq!(writer.mend(&found).unwrap(), 3 * BLOCK + 77);
    assert!(bad(&client).is_none());
    assert_eq!(holders(&client, &entry), [one, two]);
    assert!(writer.read(&entry.id, 0, SIZE as u32).unwrap().bytes == content());
}

#[test]
fn what_both_copies_have_damaged_is_told_and_the_rest_is_repaired() {
    let cluster = Cluster::new(2);
    let (client, writer, entry) = with_file(&cluster);
    let [one, two] = holders(&client, &entry);
    for (at, block) in [(one, 3), (two, 3), (two, 9)] {
        damage(&cluster, at, block * BLOCK);
    }
    let found = bad(&client).unwrap();
    assert_eq!((found.gone_blocks, found.damaged.len()), (1, 1));
    writer.mend(&found).unwrap();
    let found = bad(&client).unwrap();
    assert_eq!((found.gone_blocks, found.damaged.len()), (1, 0));
    assert!(writer.read(&entry.id, 3 * BLOCK, 8).is_err());
    assert!(writer.read(&entry.id, 4 * BLOCK, 8).is_ok());
}

#[test]
fn a_copy_whose_checksums_are_damaged_is_made_anew() {
    let cluster = Cluster::new(3);
    let (client, writer, entry) = with_file(&cluster);
    let [one, _] = holders(&client, &entry);
    let [sums] = &cluster.objects(one.into(), ".0.sums")[..] else { panic!("it has one object") };
    OpenOptions::new().write(true).open(sums).unwrap().write_all_at(&[1; 16], 5 * 16).unwrap();
    let found = bad(&client).unwrap();
    assert_eq!(found.damaged.len(), 1);
    assert_eq!(writer.mend(&found).unwrap(), SIZE);
    assert!(bad(&client).is_none());
    assert!(writer.read(&entry.id, 0, SIZE as u32).unwrap().bytes == content());
}

#[test]
fn a_file_that_nobody_ended_making_becomes_an_empty_one() {
    let cluster = Cluster::new(3);
    let file = Written { stripe: BLOCK, objects: vec![[0, 1], [1, 2]], epoch: 0, filling: Vec::new(), mode: 0o644 };
    let entry = Entry { id: [7; 16], version: 1, path: "file".into(), made_ns: 0, kind: Kind::Written(file) };
    // One target had it durable when the power of all failed.
    let adopt = Request::Adopt { entry: Box::new(entry.clone()), positions: vec![0], fresh: vec![0] };
    cluster.client().peer(0).unwrap().ask(&adopt, &[]).unwrap();
    let client = cluster.client();
    let writer = Writer::new(client.clone(), None);
    assert!(writer.read(&entry.id, 0, 8 * BLOCK as u32).is_err());
    let found = client.examine_copies("", true).unwrap().found;
    assert!(found.len() == 1 && found[0].is_gone());
    assert!(writer.end_making(&found[0]).unwrap());
    assert!(client.examine_copies("", true).unwrap().found.is_empty());
    writer.write(&entry.id, BLOCK - 2, b"bytes").unwrap();
    writer.sync(&entry.id).unwrap();
    assert!(writer.read(&entry.id, BLOCK - 2, 9).unwrap().bytes == b"bytes");
    // What has bytes, or was known to all, is not emptied.
    (0..3).flat_map(|at| cluster.objects(at, ".1")).for_each(|object| fs::remove_file(object).unwrap());
    let found = client.examine_copies("", true).unwrap().found;
    assert!(found[0].is_gone() && !writer.end_making(&found[0]).unwrap());
    assert!(client.examine_copies("", true).unwrap().found[0].is_gone());
}

#[test]
fn a_lost_copy_is_made_again_and_two_lost_ones_are_told() {
    let mut cluster = Cluster::new(3);
    let (client, writer, entry) = with_file(&cluster);
    let [one, two] = holders(&client, &entry);
    cluster.kill(one.into());
    fs::remove_dir_all(cluster.path(one.into())).unwrap();
    let found = bad(&client).unwrap();
    assert_eq!((found.lost.iter().copied().collect::<Vec<u16>>(), found.is_gone()), (vec![one], false));
    writer.mend(&found).unwrap();
    assert!(bad(&client).is_none());
    let now = holders(&client, &entry);
    assert!(now.contains(&two) && !now.contains(&one));
    // One that says nothing is as lost as one that is gone.
    cluster.signal(two.into(), Signal::STOP);
    let found = bad(&client).unwrap();
    assert_eq!((found.lost.iter().copied().collect::<Vec<u16>>(), found.is_gone()), (vec![two], false));
    cluster.signal(two.into(), Signal::CONT);
    // The client tries it again after a while; another one has not seen it lost.
    let client = cluster.client();
    assert!(bad(&client).is_none());
    for at in now {
        for object in cluster.objects(at.into(), ".0") {
            fs::remove_file(object).unwrap();
        }
    }
    let examined = client.examine_copies("", false).unwrap();
    assert_eq!(examined.found[0].gone_objects, 1);
    assert!(writer.mend(&examined.found[0]).is_err());
}

/// Each of two targets has lost another object. What is left of the file is one copy of each, on either.
#[test]
fn the_last_copy_of_an_object_is_not_dropped_with_what_its_target_has_lost() {
    for targets in [2, 3] {
        let mut cluster = Cluster::new(targets);
        cluster.space.striping = Striping { size: BLOCK, count: 2 };
        let (client, writer, entry) = with_file(&cluster);
        let objects = entry.written().unwrap().objects.clone();
        let shared = objects[1].into_iter().find(|at| objects[0].contains(at)).unwrap();
        let other = objects[1].into_iter().find(|at| *at != shared).unwrap();
        for (at, place) in [(shared, ".0"), (other, ".1")] {
            let [object] = &cluster.objects(at.into(), place)[..] else { panic!("it has one such object") };
            fs::remove_file(object).unwrap();
        }
        let found = bad(&client).unwrap();
        assert_eq!((found.is_gone(), found.lost.len()), (false, 2));
        writer.mend(&found).unwrap();
        assert!(bad(&client).is_none());
        assert!(writer.read(&entry.id, 0, SIZE as u32).unwrap().bytes == content());
        // Somebody who writes it finds the same.
        for (at, place) in [(shared, ".0"), (other, ".1")] {
            cluster.objects(at.into(), place).iter().for_each(|object| fs::remove_file(object).unwrap());
        }
        writer.write(&entry.id, 0, &content()).unwrap();
        assert!(writer.read(&entry.id, 0, SIZE as u32).unwrap().bytes == content());
    }
}

#[test]
fn a_target_that_is_lost_while_copies_are_compared_is_lost() {
    let cluster = Cluster::new(2);
    let (_, _, entry) = with_file(&cluster);
    let client = cluster.patient_client(Duration::from_millis(300));
    let [one, two] = holders(&client, &entry);
    let sum = sum_of_pieces(&piece_sums(&entry.id, 9, b"first", |at| at).collect::<Vec<_>>());
    let request = Request::WriteRange { file: entry.id, epoch: 0, position: 0, offset: 9, length: 5, sum, changed_ns: 0, appends: false };
    client.peer(one).unwrap().ask(&request, b"first").unwrap();
    std::thread::scope(|scope| {
        // What seems to differ is looked at for half a second.
        let examined = scope.spawn(|| client.examine_copies("", true));
        std::thread::sleep(Duration::from_millis(150));
        cluster.signal(two.into(), Signal::STOP);
        let examined = examined.join().unwrap();
        cluster.signal(two.into(), Signal::CONT);
        assert_eq!(examined.unwrap().files, 1);
    });
}

#[test]
fn copies_that_differ_become_the_one_that_is_read() {
    let cluster = Cluster::new(2);
    let (client, writer, entry) = with_file(&cluster);
    let [one, two] = holders(&client, &entry);
    // As if who wrote it had died between the two.
    let sum = sum_of_pieces(&piece_sums(&entry.id, 9, b"first", |at| at).collect::<Vec<_>>());
    let request = Request::WriteRange { file: entry.id, epoch: 0, position: 0, offset: 9, length: 5, sum, changed_ns: 0, appends: false };
    client.peer(one).unwrap().ask(&request, b"first").unwrap();
    let found = bad(&client).unwrap();
    assert_eq!((found.different.iter().copied().collect::<Vec<u16>>(), found.damaged.len()), (vec![two], 0));
    writer.mend(&found).unwrap();
    assert!(bad(&client).is_none());
    // The other one has it, too.
    for object in cluster.objects(one.into(), ".0") {
        fs::remove_file(object).unwrap();
    }
    assert_eq!(writer.read(&entry.id, 9, 5).unwrap().bytes, b"first");
}

#[test]
fn a_file_that_is_being_written_is_not_taken_for_damaged() {
    let cluster = Cluster::new(3);
    let (client, writer, entry) = with_file(&cluster);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            for round in 0_u64.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                writer.write(&entry.id, round * 7919 % (SIZE - 4096), &[round as u8; 4096]).unwrap();
            }
        });
        for _ in 0..20 {
            assert!(bad(&client).is_none());
        }
        over.store(true, Ordering::Relaxed);
        busy.join().unwrap();
    });
    writer.sync(&entry.id).unwrap();
    assert!(bad(&client).is_none());
}
