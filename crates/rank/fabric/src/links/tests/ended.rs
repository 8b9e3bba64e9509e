//! Ranks that end while others compute: what they have sent is taken before an image.

use super::*;
use crate::engine::packet::Kind;
use rustix::fd::OwnedFd;
use std::time::{Duration, Instant};

const SHM: Wishes = DEFAULT;
const TCP: Wishes = &[&[Medium::Tcp]];

impl World {
    /// Rank 0 sends so many messages, at which rank 1 has not looked, and ends; the map says so if rank 1 is `told`. What a process has that
    /// it forked, if it `forked` one.
    fn ends(&mut self, count: usize, bytes: usize, told: bool, forked: bool) -> Vec<OwnedFd> {
        let body = vec![7u8; bytes];
        let packet = self.first_of(bytes);
        for _ in 0..count {
            self.nodes[0].links.post(1, &packet, &[Segment::of(&body)]);
            assert!(!self.nodes[0].links.peers[1].pending(), "the channel takes not all");
        }
        let links = &self.nodes[0].links;
        let outgoing = links.peers.iter().filter_map(|peer| peer.outbound.channel_ref()).map(|channel| channel.socket());
        let sockets = outgoing.chain(links.inbound.iter().flatten().map(|inbound| inbound.channel.socket()));
        let kept = sockets.filter(|_| forked).map(|socket| socket.try_clone_to_owned().unwrap()).collect();
        self.entries[0].ended = told;
        self.publish();
        self.nodes[0].links = Links::default();
        kept
    }

    /// As an agent drains rank 1.
    fn drain(&mut self) {
        let Node { engine, links, .. } = &mut self.nodes[1];
        links.begin_suspend();
        let began = Instant::now();
        loop {
            links.progress(engine);
            if links.undrained(engine).is_empty() {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "the drain does not end");
        }
        assert_eq!(links.lost(), []);
    }

    /// The process of rank 1 is another one.
    fn is_restored(&mut self) {
        self.nodes[1].links.close_port();
        self.nodes[1].links.forget();
        self.entries[1].generation += 1;
        self.entries[1].address = Some(self.nodes[1].links.listen(identity(1, 2, 1)).unwrap());
        self.publish();
        self.nodes[1].links.resume();
    }
}

#[test]
fn what_a_rank_sent_before_it_ended_is_in_the_image() {
    for (wishes, nodes, count, bytes) in [(SHM, [0, 0], 5, 100), (TCP, [0, 1], 5, 100), (TCP, [0, 1], 17, 60_000), (OFI, [0, 1], 3, 100)] {
        for (told, forked) in [(false, false), (true, false), (true, true)] {
            // Before it is told nobody knows that more comes than the socket has.
            if !told && bytes > 100 {
                continue;
            }
            let mut world = World::over(&nodes, wishes, 1);
            let kept = world.ends(count, bytes, told, forked);
            world.drain();
            let channels = world.nodes[1].links.inbound.iter().flatten().filter(|inbound| inbound.channel.keeps()).count();
            assert_eq!(channels, usize::from(forked && wishes != OFI));
            world.is_restored();
            drop(kept);
            world.have_arrived(count + 1, bytes);
        }
    }
}

#[test]
fn nobody_waits_for_the_answer_of_a_rank_that_has_ended() {
    for nodes in [[0, 0], [0, 1]] {
        let mut world = World::new(&nodes, 1);
        world.exchange(1, 0);
        let kept = world.ends(1, 100, true, true);
        assert_eq!(kept.len(), 2);
        world.drain();
        assert!(matches!(world.nodes[1].links.peers[0].outbound, crate::peer::Outbound::Draining { .. }));
        world.nodes[1].links.resume();
        world.have_arrived(2, 100);
    }
}

#[test]
fn a_message_that_has_come_in_part_is_waited_for() {
    let mut world = World::over(&[0, 1], TCP, 1);
    let kept = world.ends(0, 100, true, true);
    let mut header = Header::new(Kind::Eager);
    (header.payload, header.length) = (100, 100);
    let packet = [header.as_bytes() as &[u8], &[7; 100]].concat();
    let (first, rest) = packet.split_at(150.min(packet.len() - 1));
    let send = |bytes: &[u8]| assert_eq!(rustix::io::write(&kept[0], bytes).unwrap(), bytes.len());
    send(first);
    let Node { engine, links, .. } = &mut world.nodes[1];
    links.begin_suspend();
    for _ in 0..100 {
        links.progress(engine);
        assert_eq!(links.undrained(engine), [0]);
    }
    send(rest);
    world.drain();
    world.is_restored();
    world.have_arrived(2, 100);
}

#[test]
fn what_is_lost_with_a_port_is_told_of() {
    let mut world = World::over(&[0, 1], OFI, 1);
    world.first_of(0);
    assert_eq!(world.over_ports(), (1, 1));
    world.nodes[1].links.close_port();
    let (losses, more) = world.nodes[1].links.losses(Duration::ZERO);
    assert_eq!((losses.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), more), (vec![0], false));
}

#[test]
fn what_a_port_holds_is_taken_though_the_end_of_the_channel_is_noticed_first() {
    let mut world = World::over(&[0, 1], OFI, 1);
    world.ends(3, 100, false, false);
    let Node { engine, links, .. } = &mut world.nodes[1];
    let number = links.peers[0].inbound.unwrap();
    links.inbound_event(engine, number);
    std::thread::sleep(Duration::from_millis(1100));
    while links.peers[0].inbound.is_some() {
        links.receive(engine, number);
    }
    world.have_arrived(4, 100);
}
