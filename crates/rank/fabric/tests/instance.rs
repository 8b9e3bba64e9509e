//! What a port's own libfabric leaves in a process when the port is closed: no descriptor, no thread, no mapping of its file,
//! and little memory. A process of its own, in which nothing else comes and goes.

mod support;

use mend_fabric::channel::ofi::port::{Port, SharedPort, lock};
use mend_fabric::channel::ofi::{OfiAdmission, OfiOpening};
use mend_fabric::channel::{ChannelError, Incoming, Outgoing};
use mend_fabric::engine::buffers::{Payload, Segment};
use mend_fabric::engine::packet::{Header, Kind};
use mend_fabric_sys::core_provider::Origin;
use mend_fabric_sys::{Instance, InstanceError, Library, path_of_loaded};
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use support::{libfabric, variables};

/// After so many, what libraries keep for ever is there.
const SETTLED: usize = 10;
/// What libfabric itself may lose each time, KiB: with `tcp` it loses two or three, and a libfabric that stays some 6000.
const LOST: usize = 4;
/// By so much the C library's heap grows at once, KiB: 128 KiB (`M_TOP_PAD`, mallopt(3)) and what was asked for.
const HEAP_STEP: usize = 256;

fn open(path: &CStr, provider: &str) -> Instance {
    Instance::open(path, &|| variables(provider)).unwrap_or_else(|error| panic!("{error}; {path:?}"))
}

/// What an image would hold of the process.
#[derive(Debug, PartialEq)]
struct Held {
    descriptors: BTreeSet<String>,
    threads: usize,
    /// Mappings of files, with how often each is mapped.
    files: Vec<String>,
    kib: usize,
}

impl Held {
    fn now() -> Self {
        let entries = |directory: &str| std::fs::read_dir(directory).unwrap().flatten().collect::<Vec<_>>();
        let links = entries("/proc/self/fd").into_iter().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let files = maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].to_owned())).collect();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        // A thread that has been joined may still be leaving (PF_EXITING): the flags are the seventh field after the name (proc_pid_stat(5)).
        let stays = |task: &std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let flags = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(6)?.parse::<u64>().ok());
            flags.is_some_and(|flags| flags & 4 == 0)
        };
        Self {
            descriptors: links.map(|link| link.to_string_lossy().into_owned()).filter(|link| !link.contains("/proc/")).collect(),
            threads: entries("/proc/self/task").iter().filter(|task| stays(task)).count(),
            files,
            kib: size.split_whitespace().next().unwrap().parse().unwrap(),
        }
    }

    fn mapped(&self, name: &str) -> usize {
        self.files.iter().filter(|file| file.contains(name)).count()
    }
}

fn port(path: &CStr, provider: &str) -> SharedPort {
    Port::open(Origin::Own(open(path, provider)), provider, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap()
}

/// Two ports of which one sends the other a message; both are closed again.
fn send_once(path: &CStr, provider: &str) {
    let (one, other) = (port(path, provider), port(path, provider));
    let lower = lock(&one).contact(0).address < lock(&other).contact(0).address;
    let (low, high) = if lower { (one, other) } else { (other, one) };
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let opening = OfiOpening::begin(&low).unwrap();
    let admission = OfiAdmission::begin(&high, &opening.contact()).unwrap();
    let mut outgoing = opening.finish(near.into(), &admission.contact()).unwrap();
    let mut incoming = admission.finish(far.into());
    let mut header = Header::new(Kind::Marker);
    header.id = 7;
    assert!(outgoing.send(&header, &[] as &[Segment]).unwrap());
    let mut got = None;
    while got.is_none() {
        lock(&low).poll();
        lock(&high).poll();
        outgoing.flush().unwrap();
        let mut take = |header: &Header, _: Payload| -> Result<(), ChannelError> {
            got = Some(header.id);
            Ok(())
        };
        incoming.receive(1 << 20, &mut take).unwrap();
    }
    assert_eq!(got, Some(7));
}

fn nothing_stays(provider: &str, cycles: usize) {
    let path = libfabric();
    send_once(&path, provider);
    let before = Held::now();
    let port = port(&path, provider);
    let during = Held::now();
    assert!(during.mapped("libfabric.so") > before.mapped("libfabric.so"), "{provider}: it was not loaded again");
    assert!(during.descriptors != before.descriptors, "{provider}: it has no descriptors");
    drop(port);
    assert_eq!(Held::now().descriptors, before.descriptors, "{provider}");
    let mut settled = 0;
    for cycle in 0..cycles {
        send_once(&path, provider);
        if cycle + 1 == SETTLED {
            settled = Held::now().kib;
        }
    }
    let after = Held::now();
    assert_eq!((after.descriptors, after.threads, after.files), (before.descriptors, before.threads, before.files), "{provider}");
    let grown = after.kib.saturating_sub(settled);
    assert!(
        grown <= LOST * (cycles - SETTLED) + HEAP_STEP,
        "{provider}: {settled} KiB became {} KiB in {} cycles",
        after.kib,
        cycles - SETTLED
    );
}

/// Bytes that this process's own C library has given out and not got back.
fn given_out() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::mallinfo2() }.uordblks
}

/// What one C library gave out comes back to it: the other one would take it for its own, and its neighbours with it.
fn each_c_library_gets_its_memory_back(path: &CStr) {
    let instance = open(path, "tcp");
    let ask = || Port::open(Origin::Own(open(path, "tcp")), "no such provider", IpAddr::V4(Ipv4Addr::LOCALHOST)).is_ok();
    // What is kept at hand is there after the first.
    assert!((0..100).all(|_| !ask()));
    let before = given_out();
    assert!((0..100).all(|_| !ask()));
    assert_eq!(given_out(), before, "bytes that were given out");
    drop(instance);
}

/// The same test in a process with one arena for all threads. What is in the first one, the main thread's, has no mark of its owner: it is
/// taken for its own by whatever C library frees it. Threads like those of tests have others.
fn once_more_with_one_arena(name: &str) {
    const ARENAS: &str = "MALLOC_ARENA_MAX";
    if std::env::var_os(ARENAS).is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let end = again.args(["--exact", name]).env(ARENAS, "1").output().unwrap();
        let said = [end.stdout, end.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(end.status.success() && said.contains("1 passed"), "with one arena ({}): {said}", end.status);
    }
}

/// One test: they would see each other's libraries.
#[test]
fn an_own_libfabric_goes_as_it_came() {
    once_more_with_one_arena("an_own_libfabric_goes_as_it_came");
    let path = libfabric();
    // The program's, from which the path is known.
    assert_eq!(path_of_loaded(), None);
    assert!(Library::load(&path).is_some(), "no libfabric at {path:?}; run `make setup`");
    assert_eq!(path_of_loaded(), Some(path.clone()));
    let program = Held::now().mapped("libfabric.so");

    let refused = Instance::open(c"/no/libfabric.so.1", &Vec::new).unwrap_err();
    assert!(matches!(&refused, InstanceError::Refused(words) if words.contains("/no/libfabric.so.1")), "{refused}");
    assert_eq!(Instance::open(c"libz.so.1", &Vec::new).err(), Some(InstanceError::Incomplete));

    for (provider, cycles) in [("tcp", 100), ("sockets", 20), ("tcp;ofi_rxm", 20)] {
        nothing_stays(provider, cycles);
        assert_eq!(Held::now().mapped("libfabric.so"), program, "{provider}");
    }

    each_c_library_gets_its_memory_back(&path);

    // A thread that is not the one that opened the port uses it, and ends.
    let port = port(&path, "tcp");
    let port = std::thread::spawn(move || {
        assert!(!lock(&port).poll());
        port
    });
    drop(port.join().unwrap());

    // What the program keeps for a thread is not what the second C library keeps for it.
    let mut key = 0;
    // SAFETY: no destructor.
    assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, None) }, 0);
    assert!((key as usize) < mend_fabric_sys::KEYS, "{key}");
}
