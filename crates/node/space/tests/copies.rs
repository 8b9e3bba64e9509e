//! Second copies of staged files on targets that are real processes: what is read, and what the map says, when one of both is silent, lost or damaged. There is no source.

mod cluster;
#[path = "cluster/late.rs"]
mod late;
#[path = "copies/sparse.rs"]
mod sparse;

use cluster::Cluster;
use late::Late;
use mend_data::space::target::Request;
use mend_data::space::{BLOCK, Entry, File, Kind};
use mend_space::client::{Client, Copying, NotSeen, Pattern, Reader, Upload, Writer};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Longer than any test runs: who waits for a target that is silent never comes back.
const UNBOUNDED_TIME: Duration = Duration::from_secs(3600);
const SIZE: u64 = 5 * BLOCK + 77;

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at * 31 % 251) as u8).collect()
}

/// A staged file with one object, and both of its copies.
fn with_copies(cluster: &Cluster) -> (Arc<Client>, Entry) {
    let client = cluster.client();
    let upload = Upload::begin(&client, "in.dat", SIZE, Vec::new()).unwrap();
    upload.put(0, &content()).unwrap();
    upload.finish(false).unwrap();
    let entry = client.names().files("")[0].clone();
    let copied = Copying::begin(&client, &entry, |_, room| room.free).unwrap().run(3).unwrap();
    assert_eq!(copied, SIZE);
    let entry = client.names().files("")[0].clone();
    (client, entry)
}

fn file(client: &Client) -> File {
    client.names().files("")[0].file().unwrap().clone()
}

fn read(client: Arc<Client>, entry: &Entry) {
    let reader = Reader::new(client, 1 << 20, None).unwrap();
    let content = self::content();
    let read = reader.read(&Arc::new(entry.clone()), 0, SIZE as u32, &Pattern::default()).unwrap();
    assert!(read.bytes == content, "other bytes came back");
}

/// Others use the space while a file is staged, and may make its path.
#[test]
fn a_staged_file_replaces_what_came_meanwhile_only_if_it_is_to() {
    let cluster = Cluster::new(2);
    let begun = || {
        let client = cluster.client();
        let upload = Upload::begin(&client, "in.dat", SIZE, Vec::new()).unwrap();
        upload.put(0, &content()).unwrap();
        upload
    };
    let at_path = || cluster.client().names().at("in.dat").map(|entry| entry.id);
    let (first, second, third) = (begun(), begun(), begun());
    let ids = [&first, &third].map(|upload| upload.entry().id);
    first.finish(false).unwrap();
    assert!(matches!(second.finish(false), Err(NotSeen::Taken)));
    assert_eq!(at_path(), Some(ids[0]));
    // One that came twice since is older than what is to replace it.
    third.finish(true).unwrap();
    assert_eq!(at_path(), Some(ids[1]));
    // What a rank has made is no less there; and a directory is in the way of any file.
    let (late, later) = (begun(), begun());
    let ranks = cluster.client();
    ranks.remove("in.dat").unwrap();
    let writer = Writer::new(ranks.clone(), None);
    let (made, _) = writer.create("in.dat", 0o644, true).unwrap();
    assert!(matches!(late.finish(false), Err(NotSeen::Taken)));
    assert_eq!(at_path(), Some(made.id));
    writer.unlink("in.dat").unwrap();
    writer.make_directory("in.dat").unwrap();
    assert!(matches!(later.finish(true), Err(NotSeen::Obstacle(_))));
}

#[test]
fn a_silent_target_is_not_waited_for() {
    let cluster = Cluster::new(3);
    let (_, entry) = with_copies(&cluster);
    let first = entry.file().unwrap().targets[0];
    let client = cluster.patient_client(UNBOUNDED_TIME);
    // Connections are there already, and one that is silent then is as silent as one that cannot be reached.
    read(client.clone(), &entry);
    cluster.signal(first.into(), Signal::STOP);
    read(client.clone(), &entry);
    read(client.clone(), &entry);
    cluster.signal(first.into(), Signal::CONT);
    let second = entry.file().unwrap().replica(0).unwrap();
    client.look_for_lost();
    cluster.signal(second.into(), Signal::STOP);
    read(client, &entry);
    cluster.signal(second.into(), Signal::CONT);
}

/// As in a rank, which cannot be saved with a connection.
#[test]
fn a_client_that_is_not_hedged_leaves_no_connection_for_a_late_answer() {
    let cluster = Cluster::new(3);
    let (_, entry) = with_copies(&cluster);
    let late = Late::before(&cluster, entry.file().unwrap().targets[0].into());
    let client = cluster.other_client(Duration::from_millis(500), Client::unhedged);
    late.hold();
    read(client.clone(), &entry);
    client.rest();
    // The answer would come now, and the connection be kept for ever.
    let (said, heard) = channel();
    std::thread::spawn(move || {
        late.release();
        said.send(()).unwrap();
    });
    heard.recv_timeout(Duration::from_secs(20)).unwrap();
}

#[test]
fn what_is_lost_is_read_elsewhere_and_the_map_says_what_is_left() {
    let mut cluster = Cluster::new(3);
    let (client, entry) = with_copies(&cluster);
    let before = entry.file().unwrap().clone();
    let (first, second) = (before.targets[0], before.replica(0).unwrap());
    assert_eq!((client.replicated()[usize::from(second)], client.replicated()[usize::from(first)]), (SIZE, 0));
    cluster.kill(first.into());
    read(cluster.client(), &entry);
    // One that is away for a while counts as whole.
    let away = client.examine_but("", true, |at| at == first).unwrap();
    assert!(away.found.is_empty() && away.away.contains(&first), "{away:?}");
    let examined = client.examine("", true).unwrap();
    let [found] = &examined.found[..] else { panic!("{examined:?}") };
    assert_eq!((found.missing.len(), found.single, &found.blamed[..1]), (0, SIZE, &[first][..]));
    assert_eq!((found.left.targets[0], found.left.replicas[0]), (second, None));
    // A copy is not removed while it is the only one: `mend-data` looks at this before. Its targets alone can be told.
    cluster.start(first.into());
    let client = cluster.client();
    client.remove_copies(&entry).unwrap();
    assert!(file(&client).replicas.is_empty() && cluster.objects(second.into(), ".0").is_empty());
    assert_eq!(client.rooms()[usize::from(second)].as_ref().unwrap().used, 0);
    read(client, &entry);
}

#[test]
fn a_damaged_copy_is_read_elsewhere_and_put_right() {
    let cluster = Cluster::new(3);
    let (client, entry) = with_copies(&cluster);
    let map = entry.file().unwrap().clone();
    let [object] = &cluster.objects(map.targets[0].into(), ".0")[..] else { panic!("no object") };
    let whole = std::fs::read(object).unwrap();
    let damage = |path: &std::path::Path, at: usize| {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    damage(object, 70_000);
    let examined = client.examine("", true).unwrap();
    assert_eq!((examined.found[0].missing.len(), examined.found[0].single), (0, SIZE));
    read(cluster.client(), &entry);
    assert!(std::fs::read(object).unwrap() == whole, "the damaged block was not put right");
    assert!(client.examine("", true).unwrap().found.is_empty());
    // Both copies, at different places: no block has been lost.
    let [other] = &cluster.objects(map.replica(0).unwrap().into(), ".0")[..] else { panic!("no object") };
    damage(object, 70_000);
    damage(other, 200_000);
    assert_eq!(client.examine("", true).unwrap().found[0].missing.len(), 1);
    read(cluster.client(), &entry);
}

/// Whoever examines it knows it from before.
#[test]
fn a_file_that_was_removed_meanwhile_is_not_lost() {
    let cluster = Cluster::new(3);
    let (client, _) = with_copies(&cluster);
    let examining = cluster.client();
    client.remove("in.dat").unwrap();
    let examined = examining.examine("", true).unwrap();
    assert!(examined.found.is_empty(), "{examined:?}");
}

#[test]
fn whoever_was_away_when_copies_went_is_told() {
    let mut cluster = Cluster::new(4);
    let (client, entry) = with_copies(&cluster);
    let second = entry.file().unwrap().replica(0).unwrap();
    cluster.kill(second.into());
    // If it is one of the two that keep the entry, that is an error; the other one has been told all the same.
    let removed = client.remove_copies(&entry);
    assert_eq!(removed.is_err(), entry.file().unwrap().keepers.contains(&second));
    cluster.start(second.into());
    assert!(!cluster.objects(second.into(), ".0").is_empty());
    cluster.client();
    assert!(cluster.objects(second.into(), ".0").is_empty());
}

#[test]
fn a_map_of_which_one_holder_was_not_told_reaches_it() {
    let cluster = Cluster::new(3);
    let (client, entry) = with_copies(&cluster);
    let map = entry.file().unwrap();
    // Whoever removed copies died after it had told the first target.
    let new = Entry { version: entry.version + 1, kind: Kind::File(File { replicas: Vec::new(), ..map.clone() }), ..entry.clone() };
    let put = Request::Put { entry: Box::new(new.clone()), positions: vec![0] };
    client.peer(map.targets[0]).unwrap().ask(&put, &[]).unwrap();
    let (one, other) = (cluster.client(), cluster.client());
    assert!(file(&one).replicas.is_empty() && file(&other).replicas.is_empty());
    assert!(cluster.objects(map.replica(0).unwrap().into(), ".0").is_empty());
    read(other, &new);
}
