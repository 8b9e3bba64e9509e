//! What one client knows for certain by its leases, and what another one changes then.

mod cluster;

use cluster::Cluster;
use mend_data::space::{Entry, Id};
use mend_space::client::{Client, Writer};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A client that looks at files as a mount does.
struct Looker {
    client: Arc<Client>,
    writer: Writer,
}

impl Looker {
    fn new(cluster: &Cluster) -> Self {
        let client = cluster.client();
        Self { writer: Writer::new(client.clone(), None), client }
    }

    /// One that has made a file of this name, and need not ask for it.
    fn certain_of(cluster: &Cluster, path: &str) -> (Self, Entry) {
        let looker = Self::new(cluster);
        let (entry, _) = looker.writer.create(path, 0o644, true).unwrap();
        looker.look_until_certain(&entry);
        (looker, entry)
    }

    /// What is at a path: the file, its permissions, its size and time.
    fn look(&self, path: &str) -> Option<(Id, u32, (u64, i64))> {
        self.client.refresh_since(Instant::now());
        let entry = self.client.names().at(path).cloned()?;
        let shape = self.writer.shape(&entry).unwrap();
        Some((entry.id, entry.written().unwrap().mode, shape))
    }

    /// Looks at a file again and again, until it need not ask for it.
    fn look_until_certain(&self, entry: &Entry) {
        let mut looks = 0;
        while self.writer.known_shape(&entry.id).is_none() {
            assert_eq!(self.look(&entry.path).unwrap().0, entry.id);
            looks += 1;
            assert!(looks < 100_000, "no lease is given");
        }
    }
}

#[test]
fn what_another_client_changes_is_seen_when_that_is_done() {
    type Change = fn(&Writer, &Id);
    let changes: [(&str, Change); 7] = [
        ("write", |writer, id| writer.write(id, 100, b"more").unwrap()),
        ("cut", |writer, id| writer.cut(id, 3).unwrap()),
        ("stamp", |writer, id| writer.stamp(id, 1_000_000_007).unwrap()),
        ("set_mode", |writer, id| writer.set_mode(id, 0o600).unwrap()),
        ("rename", |writer, _| writer.rename("there", "elsewhere", true).unwrap()),
        ("unlink", |writer, _| writer.unlink("there").unwrap()),
        ("create", |writer, _| drop(writer.create("new", 0o644, true).unwrap())),
    ];
    for (name, change) in changes {
        let cluster = Cluster::new(3);
        let other = Looker::new(&cluster);
        let (entry, _) = other.writer.create("there", 0o644, true).unwrap();
        other.writer.write(&entry.id, 0, b"first").unwrap();
        other.writer.sync(&entry.id).unwrap();
        let looker = Looker::new(&cluster);
        looker.look_until_certain(&entry);
        change(&other.writer, &entry.id);
        let seen = |who: &Looker| ["there", "elsewhere", "new"].map(|path| who.look(path));
        let (seen, is_so) = (seen(&looker), seen(&other));
        assert_eq!(seen, is_so, "after {name}");
    }
}

/// Whether a change comes while a lease lasts (50 ms) is the machine's to say: changes are made until one does.
#[test]
fn nobody_is_promised_anything_for_a_while_after_a_change_that_had_to_wait() {
    let cluster = Cluster::new(3);
    let other = Looker::new(&cluster);
    let (entry, _) = other.writer.create("there", 0o644, true).unwrap();
    let looker = Looker::new(&cluster);
    let is_calm = |round| {
        looker.look_until_certain(&entry);
        other.writer.write(&entry.id, round, b"more").unwrap();
        (0..50).all(|_| looker.look("there").is_some() && looker.writer.known_shape(&entry.id).is_none())
    };
    assert!((0..200).any(is_calm), "leases are given at once");
}

#[test]
fn what_a_client_changes_itself_it_sees_at_once_and_goes_on_without_asking() {
    let cluster = Cluster::new(3);
    let (looker, _) = Looker::certain_of(&cluster, "0");
    for round in 1_u64..200 {
        let path = round.to_string();
        let (entry, made) = looker.writer.create(&path, 0o640, true).unwrap();
        assert_eq!((made, looker.look(&path).unwrap()), (true, (entry.id, 0o640, (0, entry.made_ns))));
        looker.writer.write(&entry.id, round, b"bytes").unwrap();
        let (size, changed_ns) = looker.look(&path).unwrap().2;
        assert_eq!(size, round + 5);
        looker.writer.stamp(&entry.id, changed_ns - 1_000_000_000).unwrap();
        assert_eq!(looker.look(&path).unwrap().2, (size, changed_ns - 1_000_000_000));
        looker.writer.cut(&entry.id, 2).unwrap();
        assert_eq!(looker.look(&path).unwrap().2.0, 2);
        let before = (round - 1).to_string();
        looker.writer.rename(&before, &format!("old-{before}"), true).unwrap();
        assert_eq!(looker.look(&before), None);
        looker.writer.unlink(&format!("old-{before}")).unwrap();
        assert_eq!(looker.look(&format!("old-{before}")), None);
    }
    let (entry, _) = looker.writer.create("last", 0o644, true).unwrap();
    looker.look_until_certain(&entry);
    // Of what was removed nothing is left.
    let objects: usize = (0..3).map(|at| cluster.objects(at, ".0").len()).sum();
    assert_eq!(objects, 2 * looker.client.names().files("").len());
}

#[test]
fn who_gets_no_answer_has_no_lease() {
    let cluster = Cluster::new(3);
    let (looker, entry) = Looker::certain_of(&cluster, "there");
    cluster.signal(1, Signal::STOP);
    while looker.writer.known_shape(&entry.id).is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The others know the name.
    assert_eq!(looker.look("there").map(|(id, ..)| id), Some(entry.id));
    cluster.signal(1, Signal::CONT);
    looker.client.refresh();
    looker.look_until_certain(&entry);
}

/// Threads of one client change files and look at them at the same time.
#[test]
fn a_thread_that_looks_never_keeps_what_was_before_another_thread_s_change() {
    let cluster = Cluster::new(2);
    let looker = Looker::new(&cluster);
    let (entry, _) = looker.writer.create("grows", 0o644, true).unwrap();
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut before = 0;
            while before < 400 {
                let size = looker.look("grows").unwrap().2.0;
                assert!(size >= before, "{size} after {before}");
                before = size;
            }
        });
        for length in 1..=400 {
            looker.writer.write(&entry.id, length - 1, b"x").unwrap();
            assert_eq!(looker.look("grows").unwrap().2.0, length);
        }
        looking.join().unwrap();
    });
}
