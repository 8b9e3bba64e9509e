//! Two ports of a real core provider in one process: which end connects, and what each may send when.

use super::super::{ChannelError, Incoming, Outgoing};
use super::port::{Port, SharedPort, lock};
use super::*;
use crate::engine::buffers::{Payload, Segment};
use crate::engine::packet::{Header, Kind};
use mend_fabric_sys::Library;
use mend_fabric_sys::core_provider::Origin;
use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;

/// Rounds in which a provider connects and delivers many times over.
const ROUNDS: usize = 300;

fn path() -> CString {
    let venv = std::env::var("MEND_VENV").unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../.venv").into());
    CString::new(format!("{venv}/lib/mpich/libfabric.so.1")).unwrap()
}

fn provider() -> String {
    std::env::var("MEND_OFI_PROVIDER").unwrap_or_else(|_| "tcp".into())
}

/// Of the libfabric that the whole process uses, the one with the lowest address first.
fn ports<const COUNT: usize>() -> [SharedPort; COUNT] {
    let library = Library::load(&path()).unwrap_or_else(|| panic!("no libfabric at {:?}; run `make setup`", path()));
    let mut ports = [(); COUNT].map(|()| Port::open(Origin::Programs(library), &provider(), IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap());
    ports.sort_by_cached_key(|port| lock(port).core.address.clone());
    ports
}

fn two_ports() -> (SharedPort, SharedPort) {
    let [low, high] = ports();
    (low, high)
}

/// A channel, and the sockets' other ends, which keep it open.
fn channel(from: &SharedPort, to: &SharedPort) -> (OfiOutgoing, OfiIncoming) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let opening = OfiOpening::begin(from).unwrap();
    let admission = OfiAdmission::begin(to, &opening.contact()).unwrap();
    let contact = admission.contact();
    (opening.finish(near.into(), &contact).unwrap(), admission.finish(far.into()))
}

fn poll(ports: [&SharedPort; 2]) {
    for port in ports {
        lock(port).poll();
    }
    std::thread::yield_now();
}

fn post(outgoing: &mut OfiOutgoing, id: u64) {
    let mut header = Header::new(Kind::Marker);
    header.id = id;
    assert!(outgoing.send(&header, &[] as &[Segment]).unwrap());
}

fn take(incoming: &mut OfiIncoming) -> Vec<u64> {
    let mut got = Vec::new();
    incoming
        .receive(1 << 20, &mut |header: &Header, _: Payload| -> Result<(), ChannelError> {
            got.push(header.id);
            Ok(())
        })
        .unwrap();
    got
}

#[test]
fn of_two_ends_only_the_one_with_the_lower_address_begins() {
    let (low, high) = two_ports();
    let ports = [&low, &high];
    let (mut up, mut up_end) = channel(&low, &high);
    let (mut down, mut down_end) = channel(&high, &low);
    post(&mut down, 7);
    for _ in 0..ROUNDS {
        poll(ports);
        assert!(!down.flush().unwrap(), "the higher end sent before the lower one has connected");
        assert_eq!(take(&mut up_end), []);
    }
    // The lower end begins, with packets of its own or with the credits that the other one waits for.
    post(&mut up, 8);
    let (mut above, mut below) = (Vec::new(), Vec::new());
    while above.is_empty() || below.is_empty() {
        poll(ports);
        up.flush().unwrap();
        down.flush().unwrap();
        above.extend(take(&mut up_end));
        below.extend(take(&mut down_end));
    }
    assert_eq!((above, below), (vec![8], vec![7]));
}

#[test]
fn a_sender_with_the_higher_address_is_given_its_first_credits_once() {
    let (low, high) = two_ports();
    let (mut down, mut end) = channel(&high, &low);
    let mut got = Vec::new();
    for id in 0..ROUNDS as u64 {
        post(&mut down, id);
        while got.len() as u64 <= id {
            poll([&low, &high]);
            down.flush().unwrap();
            got.extend(take(&mut end));
        }
    }
    assert_eq!(got, (0..ROUNDS as u64).collect::<Vec<_>>());
    // Whoever sleeps while nothing goes on is not kept awake by what it owes.
    while end.arm() {
        poll([&low, &high]);
        take(&mut end);
    }
}

#[test]
fn where_the_provider_fails_nothing_more_is_taken_or_told_at_once() {
    let (low, high) = two_ports();
    let (mut up, _up_end) = channel(&low, &high);
    let (down, mut down_end) = channel(&high, &low);
    lock(&low).fault = Some(ChannelError::Provider("a device is gone".into()));
    for _ in 0..2 {
        assert!(!up.send(&Header::new(Kind::Marker), &[] as &[Segment]).unwrap() && !up.flush().unwrap());
        assert_eq!(take(&mut down_end), []);
    }
    // It must be looked at again, and its rank stays awake for that.
    assert!(up.unsent() && up.arm() && down_end.arm());
    // A peer that ends meanwhile has closed a channel, no more.
    drop(down);
    let mut ignore = |_: &Header, _: Payload| -> Result<(), ChannelError> { Ok(()) };
    assert!(matches!(down_end.receive(1 << 20, &mut ignore), Err(ChannelError::Closed)));
}

#[test]
fn peers_that_do_not_read_leave_buffers_to_others() {
    let [lowest, low, high] = ports();
    // None of these has a credit, and each has something for it; there are fewer buffers.
    let mut waiting: Vec<_> = (0..45).map(|_| channel(&low, &lowest)).collect();
    waiting.iter_mut().for_each(|(outgoing, _)| post(outgoing, 1));
    let (mut up, mut up_end) = channel(&low, &high);
    post(&mut up, 2);
    let mut got = Vec::new();
    for _ in 0..ROUNDS {
        poll([&low, &high]);
        up.flush().unwrap();
        got.extend(take(&mut up_end));
    }
    assert_eq!(got, [2]);
}

#[test]
fn first_credits_that_the_provider_refuses_end_the_channel_and_cost_nothing() {
    let (low, high) = two_ports();
    let (mut down, mut down_end) = channel(&high, &low);
    (1..4).for_each(|id| post(&mut down, id));
    lock(&low).answer = Some(Err(rustix::io::Errno::NETUNREACH.raw_os_error()));
    for _ in 0..2 {
        assert_eq!(take(&mut down_end), []);
    }
    assert!(down_end.arm(), "it must be looked at again");
    down_end.broken.age();
    let mut ignore = |_: &Header, _: Payload| -> Result<(), ChannelError> { Ok(()) };
    assert!(matches!(down_end.receive(1 << 20, &mut ignore), Err(ChannelError::Provider(what)) if what.contains("refuses a send")));
    drop(down_end);
    assert!(matches!(down.acknowledged(), Err(ChannelError::Closed)));
    let kept = down.take_back().expect("nothing has left");
    assert_eq!(kept.iter().map(|packet| packet.header.id).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn what_has_left_is_not_given_back() {
    let (low, high) = two_ports();
    let (mut up, _up_end) = channel(&low, &high);
    post(&mut up, 1);
    for _ in 0..ROUNDS {
        poll([&low, &high]);
        up.flush().unwrap();
    }
    assert!(!up.unsent() && up.take_back().is_none());
}

/// Nothing that it could do: the provider tells when it takes messages again.
#[test]
fn a_sender_sleeps_while_the_provider_takes_nothing() {
    let (low, high) = two_ports();
    let (mut up, mut up_end) = channel(&low, &high);
    lock(&low).stall();
    post(&mut up, 1);
    assert!(!up.flush().unwrap() && up.unsent() && !up.arm());
    lock(&low).answer = None;
    let mut got = Vec::new();
    while got.is_empty() {
        poll([&low, &high]);
        up.flush().unwrap();
        got.extend(take(&mut up_end));
    }
    assert_eq!(got, [1]);
}
