//! What stays open of a core provider's sockets when its port is closed while others connect to it: nothing. A process of its
//! own, in which nothing else opens sockets.

mod support;

use mend_fabric::channel::ofi::port::{Port, SharedPort, lock};
use mend_fabric::channel::ofi::{OfiAdmission, OfiIncoming, OfiOpening, OfiOutgoing};
use mend_fabric::channel::{ChannelError, Incoming, Outgoing};
use mend_fabric::engine::buffers::{Payload, Segment};
use mend_fabric::engine::packet::{Header, Kind};
use mend_fabric_sys::core_provider::Origin;
use mend_fabric_sys::{Instance, Library};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{libfabric, variables};

/// Polls by either side before the port is closed: from nothing done to a connection that is used.
const STAGES: usize = 7;
/// Ports that are closed while somebody connects without a pause.
const CROWDED_PORTS: usize = 200;
/// A connection to this host is there at once; its listener sees it at the next poll, but for the provider's threads.
const PATIENCE: Duration = Duration::from_secs(60);

fn port(own: bool, provider: &str) -> SharedPort {
    let path = libfabric();
    let origin = if own {
        Origin::Own(Instance::open(&path, &|| variables(provider)).unwrap())
    } else {
        Origin::Programs(Library::load(&path).unwrap_or_else(|| panic!("no libfabric at {path:?}; run `make setup`")))
    };
    Port::open(origin, provider, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap()
}

/// The socket address that peers connect to.
fn address(port: &SharedPort) -> SocketAddr {
    let bytes = lock(port).contact(0).address;
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    SocketAddr::from(([bytes[4], bytes[5], bytes[6], bytes[7]], port))
}

/// Sockets and all else that is open, but for what this looks with.
fn open() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = entries.filter_map(|entry| Some((entry.file_name(), std::fs::read_link(entry.path()).ok()?)));
    let named = links.map(|(number, link)| format!("{} {}", number.to_string_lossy(), link.display()));
    named.filter(|name| !name.contains("/proc/")).collect()
}

/// Two ports with channels both ways, none of them used. The one with the lower address is first.
struct Pair {
    low: SharedPort,
    up: OfiOutgoing,
    down_end: OfiIncoming,
    high: SharedPort,
    down: OfiOutgoing,
    up_end: OfiIncoming,
}

fn channel(from: &SharedPort, to: &SharedPort) -> (OfiOutgoing, OfiIncoming) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let opening = OfiOpening::begin(from).unwrap();
    let admission = OfiAdmission::begin(to, &opening.contact()).unwrap();
    let contact = admission.contact();
    (opening.finish(near.into(), &contact).unwrap(), admission.finish(far.into()))
}

fn pair(own: bool, provider: &str) -> Pair {
    let (one, other) = (port(own, provider), port(own, provider));
    let lower = lock(&one).contact(0).address < lock(&other).contact(0).address;
    let (low, high) = if lower { (one, other) } else { (other, one) };
    let ((up, up_end), (down, down_end)) = (channel(&low, &high), channel(&high, &low));
    Pair { low, up, down_end, high, down, up_end }
}

fn take(incoming: &mut OfiIncoming) {
    let mut ignore = |_: &Header, _: Payload| -> Result<(), ChannelError> { Ok(()) };
    // The other end may be closed.
    let _ = incoming.receive(1 << 20, &mut ignore);
}

impl Pair {
    /// The lower end connects, as it does for a message or for the other's first credits.
    fn begin(&mut self, message: bool) {
        if message {
            let header = Header::new(Kind::Marker);
            assert!(self.up.send(&header, &[] as &[Segment]).unwrap());
        } else {
            take(&mut self.down_end);
        }
    }

    fn poll(&mut self, low: bool) {
        lock(if low { &self.low } else { &self.high }).poll();
    }
}

/// The higher end closes at any stage of a connection, then the lower one; or the other way round.
fn a_connection_closes_at_any_stage(own: bool, provider: &str, every: usize) {
    let before = open();
    let cases = (0..STAGES * STAGES * 4).step_by(every);
    for (stage, message, high_first) in cases.map(|case| (case / 4, case & 1 == 0, case & 2 == 0)) {
        let mut pair = pair(own, provider);
        pair.begin(message);
        for _ in 0..stage / STAGES {
            pair.poll(true);
        }
        for _ in 0..stage % STAGES {
            pair.poll(false);
            pair.poll(stage & 1 == 0);
        }
        let Pair { low, up, down_end, high, down, up_end } = pair;
        let (lower, higher) = (move || drop((up, down_end, low)), move || drop((down, up_end, high)));
        if high_first {
            higher();
            lower();
        } else {
            lower();
            higher();
        }
        assert_eq!(open(), before, "{provider}: stage {stage}, message {message}, high first {high_first}");
    }
}

/// Whoever connects and says nothing holds nothing open.
fn a_silent_connection_goes_with_the_port(own: bool, provider: &str, _: usize) {
    let before = open();
    let port = port(own, provider);
    let opened = open();
    let silent: Vec<_> = (0..3).map(|_| TcpStream::connect(address(&port)).unwrap()).collect();
    // Both ends of each.
    let all = opened.len() + 2 * silent.len();
    let began = Instant::now();
    while open().len() != all {
        assert!(began.elapsed() < PATIENCE, "{provider}: it has accepted nothing");
        lock(&port).poll();
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(port);
    drop(silent);
    assert_eq!(open(), before, "{provider}");
}

/// Connections come without a pause while ports are opened and closed.
fn a_crowd_holds_nothing_open(own: bool, provider: &str, every: usize) {
    let (target, met, done) = (AtomicU16::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let before = open();
    std::thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let address = (Ipv4Addr::LOCALHOST, target.load(Ordering::Relaxed));
                met.fetch_add(usize::from(TcpStream::connect(address).is_ok()), Ordering::Relaxed);
            }
        });
        for cycle in (0..CROWDED_PORTS).step_by(every) {
            let port = port(own, provider);
            target.store(address(&port).port(), Ordering::Relaxed);
            let start = met.load(Ordering::Relaxed);
            while met.load(Ordering::Relaxed) < start + cycle % 20 {
                lock(&port).poll();
            }
        }
        done.store(true, Ordering::Relaxed);
        crowd.join().unwrap();
    });
    assert_eq!(open(), before, "{provider}");
}

/// One test: they would see each other's descriptors.
#[test]
fn nothing_of_a_closed_port_stays_open() {
    // Closing takes `ofi_rxm` a fifth of a second: of the cases it gets a part, of every kind.
    for (provider, own, every) in [("tcp", false, 1), ("tcp", true, 1), ("tcp;ofi_rxm", false, 9), ("sockets", true, 1)] {
        // What a provider opens once and keeps.
        drop(port(own, provider));
        for check in [a_connection_closes_at_any_stage, a_silent_connection_goes_with_the_port, a_crowd_holds_nothing_open] {
            check(own, provider, every);
        }
    }
}
