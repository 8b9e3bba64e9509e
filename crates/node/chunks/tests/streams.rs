//! Streams between two carriers of one process, over libfabric's own `tcp` provider: what goes in comes out, in both modes, whichever side has the
//! lower address, several at once, in both directions at once; and what is told when one side ends, or says what is not so.

use mend_chunks::Store;
use mend_chunks::carrier::{Carrier, NewStream};
use mend_fabric_sys::core_provider::{ChunkPool, PoolAccess};
use mend_messages::chunks::{Carried, ChunkMode, WORD_BYTES, Word};
use mend_messages::frame;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const CHUNK: usize = 8 << 10;
/// Long enough for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

fn random() -> u64 {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    u64::from_ne_bytes(bytes)
}

/// MPICH's, by its path without links.
fn libfabric() -> PathBuf {
    let venv = std::env::var("MEND_VENV").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../.venv").into());
    std::fs::canonicalize(format!("{venv}/lib/mpich/libfabric.so.1")).unwrap()
}

fn pool(mode: ChunkMode, chunks: usize) -> ChunkPool {
    let access = match mode {
        ChunkMode::Read => PoolAccess::Read,
        ChunkMode::Write => PoolAccess::Write,
    };
    ChunkPool::open(Some(&libfabric()), ("tcp", LOCAL), access, (chunks, CHUNK), &random).unwrap()
}

/// A carrier in a thread of its own, as it is in a process of its own otherwise.
struct Node {
    orders: Sender<NewStream>,
    wake: UnixStream,
    address: Vec<u8>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    fn new(mode: ChunkMode, chunks: usize) -> Self {
        let (orders, taken): (_, Receiver<NewStream>) = channel();
        let (wake, mut woken) = UnixStream::pair().unwrap();
        let mut carrier = Carrier::new(Store::new(pool(mode, chunks), random), mode);
        let address = carrier.address().to_vec();
        let thread = thread::spawn(move || {
            loop {
                let busy = carrier.step().unwrap();
                if carrier.wait(woken.as_fd(), busy).unwrap() {
                    if woken.read(&mut [0]).unwrap() == 0 {
                        return;
                    }
                    carrier.take(taken.recv().unwrap()).unwrap();
                }
            }
        });
        Self { orders, wake, address, thread: Some(thread) }
    }

    /// Hands a stream over. The process's end of it, and what tells what became of it.
    fn carry(&self, outgoing: bool, rank: u32, address: &[u8], connection: TcpStream) -> (UnixStream, UnixStream) {
        let ((ours, stream), (report, reported)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let (stream, report, connection) = (stream.into(), report.into(), connection.into());
        self.orders.send(NewStream { outgoing, rank, patience: PATIENCE, address: address.to_vec(), stream, connection, report }).unwrap();
        (&self.wake).write_all(&[1]).unwrap();
        (ours, reported)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.wake.shutdown(std::net::Shutdown::Both).unwrap();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn told(mut report: UnixStream) -> Carried {
    let mut bytes = Vec::new();
    report.read_to_end(&mut bytes).unwrap();
    frame::decode(&bytes[4..]).unwrap()
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed).to_le_bytes()[6]).collect()
}

/// Sends these bytes, in pieces that fit no chunk, and compares what comes.
fn moves(from: &Node, to: &Node, rank: u32, length: usize) -> [JoinHandle<()>; 2] {
    let (near, far) = connection();
    let (mut out, sent) = from.carry(true, rank, &to.address, near);
    let (mut into, received) = to.carry(false, rank, &from.address, far);
    let bytes = noise(length, u64::from(rank));
    let whole = bytes.clone();
    let write = thread::spawn(move || {
        bytes.chunks(3 * CHUNK / 2 + 1).for_each(|piece| out.write_all(piece).unwrap());
        drop(out);
        assert_eq!(told(sent), Ok(length as u64));
    });
    let read = thread::spawn(move || {
        let mut found = Vec::new();
        into.read_to_end(&mut found).unwrap();
        assert!(found == whole, "rank {rank}: {} bytes of {length} came, or others", found.len());
        assert_eq!(told(received), Ok(length as u64));
    });
    [write, read]
}

const MODES: [ChunkMode; 2] = [ChunkMode::Read, ChunkMode::Write];

#[test]
fn what_goes_in_comes_out_in_both_modes_and_directions() {
    for mode in MODES {
        let (one, other) = (Node::new(mode, 16), Node::new(mode, 16));
        for (number, length) in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 100 * CHUNK + 7].into_iter().enumerate() {
            for (from, to) in [(&one, &other), (&other, &one)] {
                moves(from, to, number as u32, length).into_iter().for_each(|thread| thread.join().unwrap());
            }
        }
    }
}

#[test]
fn more_streams_than_chunks_in_both_directions_at_once_come_through() {
    for mode in MODES {
        let (one, other) = (Node::new(mode, 6), Node::new(mode, 6));
        let both = |rank: u32| [moves(&one, &other, rank, 40 * CHUNK + 3), moves(&other, &one, 100 + rank, 30 * CHUNK + 5)];
        let threads: Vec<_> = (0..8).flat_map(both).flatten().collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_little_that_is_said_does_not_wait_for_more() {
    for mode in MODES {
        let (one, other) = (Node::new(mode, 8), Node::new(mode, 8));
        let (near, far) = connection();
        let (mut out, _sent) = one.carry(true, 1, &other.address, near);
        let (mut into, _received) = other.carry(false, 1, &one.address, far);
        for word in [b"one".as_slice(), b"two", b"three"] {
            out.write_all(word).unwrap();
            let mut found = vec![0; word.len()];
            into.read_exact(&mut found).unwrap();
            assert_eq!(found, word);
        }
    }
}

#[test]
fn a_reader_that_stands_still_holds_up_no_other_stream() {
    for mode in MODES {
        let (one, other) = (Node::new(mode, 8), Node::new(mode, 8));
        let (near, far) = connection();
        let (mut out, sent) = one.carry(true, 1, &other.address, near);
        let (mut still, received) = other.carry(false, 1, &one.address, far);
        let bytes = noise(200 * CHUNK, 9);
        let whole = bytes.clone();
        let write = thread::spawn(move || out.write_all(&bytes).unwrap());
        // It has begun, and then nobody reads.
        let mut first = [0; 1];
        still.read_exact(&mut first).unwrap();
        moves(&one, &other, 2, 50 * CHUNK).into_iter().for_each(|thread| thread.join().unwrap());
        let mut rest = Vec::new();
        still.read_to_end(&mut rest).unwrap();
        write.join().unwrap();
        assert!([&first[..], &rest].concat() == whole);
        assert_eq!((told(sent), told(received)), (Ok(whole.len() as u64), Ok(whole.len() as u64)));
    }
}

#[test]
fn either_side_that_ends_is_told_to_the_other_and_others_go_on() {
    for mode in MODES {
        let (one, third) = (Node::new(mode, 8), Node::new(mode, 8));
        for source_ends in [true, false] {
            let other = Node::new(mode, 8);
            let (near, far) = connection();
            let (from, to) = if source_ends { (&other, &one) } else { (&one, &other) };
            let (mut out, sent) = from.carry(true, 1, &to.address, near);
            let (mut into, received) = to.carry(false, 1, &from.address, far);
            let writing = thread::spawn(move || while out.write_all(&noise(CHUNK, 3)).is_ok() {});
            into.read_exact(&mut vec![0; 20 * CHUNK]).unwrap();
            drop(other);
            let why = told(if source_ends { received } else { sent }).unwrap_err();
            assert!(why.contains("closed the transfer") || why.contains("provider failed"), "{why}");
            let mut rest = Vec::new();
            into.read_to_end(&mut rest).unwrap();
            writing.join().unwrap();
            // What was lent to it is free again, and what its peers knew is void.
            moves(&one, &third, 2, 60 * CHUNK).into_iter().for_each(|thread| thread.join().unwrap());
            moves(&third, &one, 3, 60 * CHUNK).into_iter().for_each(|thread| thread.join().unwrap());
        }
    }
}

#[test]
fn a_process_that_ends_at_the_target_ends_the_stream_at_the_source() {
    for mode in MODES {
        let (one, other) = (Node::new(mode, 8), Node::new(mode, 8));
        let (near, far) = connection();
        let (mut out, sent) = one.carry(true, 1, &other.address, near);
        let (mut into, received) = other.carry(false, 1, &one.address, far);
        let writing = thread::spawn(move || while out.write_all(&noise(CHUNK, 3)).is_ok() {});
        into.read_exact(&mut vec![0; 20 * CHUNK]).unwrap();
        drop(into);
        writing.join().unwrap();
        assert!(told(received).unwrap_err().starts_with("the process on this node does not take"));
        assert!(told(sent).is_err());
        moves(&one, &other, 2, 60 * CHUNK).into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// A source that says what this says, whose memory is a pool of its own.
fn liar(target: &Node, mode: ChunkMode, say: impl FnOnce(&mut ChunkPool, (u64, u64)) -> Vec<Word>) -> String {
    let mut pool = pool(mode, 4);
    let (mut near, far) = connection();
    let (mut into, received) = target.carry(false, 7, pool.address(), far);
    let door = pool.remote(3).unwrap();
    near.write_all(&Word::Hello { address: door.0, key: door.1 }.encode()).unwrap();
    let mut bytes = [0; WORD_BYTES];
    near.read_exact(&mut bytes).unwrap();
    assert!(matches!(Word::decode(&bytes), Some(Word::Hello { .. })));
    near.set_nonblocking(true).unwrap();
    let begins = target.address <= pool.address().to_vec();
    if begins {
        // It reaches for the door, and says so.
        let mut heard = [0; WORD_BYTES];
        while near.read(&mut heard).map_or(true, |length| length == 0) {
            pool.poll(&mut Vec::new()).unwrap();
        }
        assert_eq!(Word::decode(&heard), Some(Word::Linked));
    } else {
        near.write_all(&Word::Linked.encode()).unwrap();
    }
    let chunk = pool.remote(0).unwrap();
    for word in say(&mut pool, chunk) {
        near.write_all(&word.encode()).unwrap();
    }
    let mut found = Vec::new();
    into.set_nonblocking(true).unwrap();
    loop {
        pool.poll(&mut Vec::new()).unwrap();
        match into.read_to_end(&mut found) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    assert_eq!(found, b"", "what is not so was passed on");
    told(received).unwrap_err()
}

#[test]
fn what_is_not_so_is_not_passed_on() {
    let node = Node::new(ChunkMode::Read, 8);
    let filled = |pool: &mut ChunkPool| {
        pool.memory(0).unwrap().fill(5);
        xxh3_64(&[5; 100])
    };
    let word = |rank, offset, length, checksum, (address, key): (u64, u64)| Word::Chunk { rank, offset, length, checksum, address, key };
    let why = liar(&node, ChunkMode::Read, |pool, at| vec![word(7, 0, 100, filled(pool) + 1, at)]);
    assert_eq!(why, "a chunk at byte 0 is not what was sent");
    let nonsense = "the other node said what makes no sense: ";
    for (rank, offset, length) in [(6, 0, 100), (7, 1, 100), (7, 0, 0), (7, 0, CHUNK as u32 + 1), (7, u64::MAX, 100)] {
        let why = liar(&node, ChunkMode::Read, |pool, at| vec![word(rank, offset, length, filled(pool), at)]);
        assert_eq!(why, format!("{nonsense}a chunk of another place, rank or length"));
    }
    let why = liar(&node, ChunkMode::Read, |_, _| vec![Word::Written { offset: 0 }]);
    assert_eq!(why, format!("{nonsense}what a target is not told"));
    let why = liar(&node, ChunkMode::Read, |_, _| vec![Word::End { offset: 1 }]);
    assert_eq!(why, format!("{nonsense}what a target is not told"));
    let why = liar(&node, ChunkMode::Read, |_, _| vec![Word::Linked]);
    assert_eq!(why, format!("{nonsense}a greeting out of turn"));
    // Memory that nobody may read.
    let why = liar(&node, ChunkMode::Read, |pool, (address, key)| vec![word(7, 0, 100, filled(pool), (address, key ^ 1))]);
    assert!(why.starts_with("the provider failed") || why.starts_with("the other node closed"), "{why}");
    let other = Node::new(ChunkMode::Read, 8);
    moves(&node, &other, 2, 60 * CHUNK).into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_is_known_of_a_chunk_is_void_once_it_is_renewed() {
    let (mut ours, mut theirs) = (pool(ChunkMode::Read, 4), pool(ChunkMode::Read, 4));
    let peer = ours.peer(theirs.address()).unwrap();
    theirs.memory(1).unwrap().fill(7);
    let remote = theirs.remote(1).unwrap();
    let read = |ours: &mut ChunkPool, theirs: &mut ChunkPool| {
        while !ours.begin(0, 100, peer, remote).unwrap() {
            ours.poll(&mut Vec::new()).unwrap();
            theirs.poll(&mut Vec::new()).unwrap();
        }
        assert!(ours.memory(0).is_err(), "an operation uses it");
        let mut ended = Vec::new();
        while ended.is_empty() {
            ours.poll(&mut ended).unwrap();
            theirs.poll(&mut Vec::new()).unwrap();
        }
        ended[0].result
    };
    assert_eq!(read(&mut ours, &mut theirs), Ok(()));
    assert_eq!(ours.memory(0).unwrap()[..100], [7; 100]);
    theirs.renew(1, &random).unwrap();
    assert!(read(&mut ours, &mut theirs).is_err());
}

#[test]
fn what_cannot_be_used_is_named() {
    let open = |library: &str, provider: &str| {
        let opened = ChunkPool::open(Some(library.as_ref()), (provider, LOCAL), PoolAccess::Read, (4, CHUNK), &random);
        opened.err().unwrap().to_string()
    };
    assert_eq!(open("/no/libfabric.so", "tcp"), "libfabric cannot be loaded as /no/libfabric.so");
    let why = open(libfabric().to_str().unwrap(), "nosuch");
    assert!(why.starts_with("libfabric has no provider \"nosuch\""), "{why}");
}
