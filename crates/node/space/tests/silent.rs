//! Targets that say nothing and have the only copy of a file: what its source gives in their place, and when they are waited for all the same. The source is played by a script.

mod cluster;

use cluster::Cluster;
use mend_data::record::Source;
use mend_data::request::RangeAnswer;
use mend_data::space::{BLOCK, Entry};
use mend_messages::frame;
use mend_messages::space_report::{SpaceEvent, SpaceEvents, TargetFault};
use mend_space::client::{Client, Pattern, Reader, Repairer, Upload};
use rustix::process::Signal;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than any test runs: who waits for a target that is silent never comes back.
const UNBOUNDED_TIME: Duration = Duration::from_secs(3600);
const SIZE: u64 = 5 * BLOCK + 77;

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at * 31 % 251) as u8).collect()
}

/// In the place of `mend-data`: notes each range that it is asked for, and does this then.
struct Script(TempDir);

impl Script {
    fn new(answer: &RangeAnswer, bytes: &[u8], then: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("answer"), [&frame::encode(answer).unwrap(), bytes].concat()).unwrap();
        fs::write(path("asked"), "").unwrap();
        let body = "#!/bin/sh\ncd \"${0%/*}\"\nwhile [ $(dd bs=65536 count=1 2> /dev/null | wc -c) -gt 0 ]; do echo range >> asked; ";
        fs::write(path("mend-data"), format!("{body}{then}; done\n")).unwrap();
        fs::set_permissions(path("mend-data"), fs::Permissions::from_mode(0o700)).unwrap();
        Self(directory)
    }

    fn good() -> Self {
        Self::new(&RangeAnswer::Bytes(SIZE), &content(), "cat answer")
    }

    fn asked(&self) -> usize {
        fs::read_to_string(self.0.path().join("asked")).unwrap().lines().count()
    }

    fn wait_until_asked(&self) {
        while self.asked() == 0 {
            sleep(Duration::from_millis(1));
        }
    }

    /// Reads the file by a cache of its own.
    fn read(&self, client: Arc<Client>, entry: &Entry) {
        let reader = Reader::new(client, 1 << 20, Repairer::find_in(self.0.path())).unwrap().without_reading_ahead();
        let read = reader.read(&Arc::new(entry.clone()), 0, SIZE as u32, &Pattern::default()).unwrap();
        assert!(read.bytes == content(), "other bytes came back");
    }

    fn reading(self: &Arc<Self>, client: &Arc<Client>, entry: &Entry) -> JoinHandle<()> {
        let (script, client, entry) = (self.clone(), client.clone(), entry.clone());
        spawn(move || script.read(client, &entry))
    }
}

/// A staged file with one object, in one copy, and a client that has connections to all targets.
fn staged(cluster: &Cluster) -> (Arc<Client>, Entry, usize) {
    let maker = cluster.client();
    let source = Source { uri: "file:///in.dat".to_owned(), ..Source::default() };
    let upload = Upload::begin(&maker, "in.dat", SIZE, vec![source]).unwrap();
    upload.put(0, &content()).unwrap();
    upload.finish(false).unwrap();
    let client = cluster.patient_client(UNBOUNDED_TIME);
    let entry = client.names().files("")[0].clone();
    let at = entry.file().unwrap().targets[0].into();
    (client, entry, at)
}

#[test]
fn its_source_is_read_until_it_says_something() {
    let cluster = Cluster::new(3);
    let (client, entry, at) = staged(&cluster);
    let script = Script::good();
    script.read(client.clone(), &entry);
    assert_eq!((script.asked(), cluster.objects(at, "").len()), (0, 1));
    cluster.signal(at, Signal::STOP);
    for asked in 1..4 {
        script.read(client.clone(), &entry);
        assert_eq!(script.asked(), asked);
    }
    cluster.signal(at, Signal::CONT);
    // Its answer comes late, and is listened to.
    loop {
        let before = script.asked();
        script.read(client.clone(), &entry);
        if script.asked() == before {
            break;
        }
    }
}

#[test]
fn it_is_waited_for_if_the_source_gives_nothing() {
    let cluster = Cluster::new(3);
    let (client, entry, at) = staged(&cluster);
    let script = Arc::new(Script::new(&RangeAnswer::Failed("it is gone".to_owned()), &[], "cat answer"));
    cluster.signal(at, Signal::STOP);
    let reading = script.reading(&client, &entry);
    script.wait_until_asked();
    sleep(Duration::from_millis(50));
    assert!(!reading.is_finished());
    cluster.signal(at, Signal::CONT);
    reading.join().unwrap();
}

#[test]
fn a_source_that_takes_long_is_not_waited_for_when_it_is_back() {
    let cluster = Cluster::new(3);
    let (client, entry, at) = staged(&cluster);
    let script = Arc::new(Script::new(&RangeAnswer::Bytes(SIZE), &[], "exec cat > /dev/null"));
    cluster.signal(at, Signal::STOP);
    let readings: Vec<JoinHandle<()>> = (0..5).map(|_| script.reading(&client, &entry)).collect();
    script.wait_until_asked();
    cluster.signal(at, Signal::CONT);
    readings.into_iter().for_each(|reading| reading.join().unwrap());
}

/// Takes apart what a client passes on.
struct Listener(Sender<SpaceEvent>);

impl Write for Listener {
    fn write(&mut self, frame: &[u8]) -> io::Result<usize> {
        let told: SpaceEvents = frame::decode(&frame[4..]).unwrap();
        assert_eq!(told.left_out, 0);
        told.events.into_iter().for_each(|event| self.0.send(event).unwrap());
        Ok(frame.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_it_does_is_told_once_to_who_wants_to_know() {
    let mut cluster = Cluster::new(3);
    let (client, entry, at) = staged(&cluster);
    let (tell, told) = channel();
    client.pass_events_on(Listener(tell)).unwrap();
    assert_eq!(told.recv().unwrap(), SpaceEvent::Begun);
    let (script, target) = (Script::good(), client.peer(at as u16).unwrap().target.name());
    cluster.signal(at, Signal::STOP);
    for _ in 0..3 {
        script.read(client.clone(), &entry);
    }
    let (mut bytes, mut reads) = (0, 0);
    while reads < 1 {
        match told.recv().unwrap() {
            SpaceEvent::ReadFromSource { file, target: of, why: TargetFault::Silent { .. }, bytes: more, reads: count } => {
                assert_eq!((file.as_str(), &of), ("in.dat", &target));
                (bytes, reads) = (bytes + more, reads + count);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bytes, reads * SIZE);
    cluster.kill(at);
    while !client.refresh().iter().any(|(lost, _)| usize::from(*lost) == at) {}
    let lost = loop {
        match told.recv().unwrap() {
            SpaceEvent::ReadFromSource { .. } => {}
            other => break other,
        }
    };
    let is_unreachable = matches!(&lost, SpaceEvent::TargetLost { target: of, why: TargetFault::Unreachable { .. } } if *of == target);
    assert!(is_unreachable, "{lost:?}");
    cluster.start(at);
    while !client.refresh().is_empty() {
        sleep(Duration::from_millis(10));
    }
    let back = loop {
        match told.recv().unwrap() {
            SpaceEvent::ReadFromSource { .. } => {}
            other => break other,
        }
    };
    assert!(matches!(&back, SpaceEvent::TargetBack { target: of, .. } if *of == target), "{back:?}");
}

/// A target that is slow is no silent one: what it usually takes is waited for.
#[test]
fn a_target_that_takes_its_time_as_before_is_waited_for() {
    let cluster = Cluster::new(3);
    let (client, entry, at) = staged(&cluster);
    let script = Arc::new(Script::good());
    let slow = |pause: u64| {
        cluster.signal(at, Signal::STOP);
        let reading = script.reading(&client, &entry);
        sleep(Duration::from_millis(pause));
        cluster.signal(at, Signal::CONT);
        reading.join().unwrap();
    };
    slow(600);
    let asked = script.asked();
    assert!(asked > 0);
    // The answer that came late is noted.
    while client.peer(at as u16).unwrap().usual() < Duration::from_millis(600) {
        sleep(Duration::from_millis(1));
    }
    slow(600);
    assert_eq!(script.asked(), asked);
}
