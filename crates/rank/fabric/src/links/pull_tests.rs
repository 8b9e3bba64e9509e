//! Reads by a device that takes its time: what a drain, a failure and a restore make of a read under way.

use super::tests::{World, identity};
use super::*;
use crate::channel::{ChannelError, Deliver, Incoming, NotPulled, Pulled, Puller};
use crate::engine::buffers::Buffers;
use crate::engine::pull::Piece;
use crate::engine::{Message, Receive};
use rustix::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// Reads that were started, and the tokens of those that have ended.
#[derive(Default)]
struct Device {
    started: Vec<(u64, Piece, Segment)>,
    ended: Vec<(u64, Result<(), NotPulled>)>,
    cancelled: bool,
}

/// A channel whose reads the device does.
struct Slow {
    channel: Box<dyn Incoming>,
    device: Arc<Mutex<Device>>,
}

impl Puller for Slow {
    fn kind(&self) -> u32 {
        1
    }
    fn chunk(&self) -> usize {
        30_000
    }
    fn read(&mut self, token: u64, remote: Piece, local: Segment) -> Result<Pulled, NotPulled> {
        let mut device = self.device.lock().unwrap();
        if device.started.len() == 3 {
            return Ok(Pulled::Full);
        }
        device.started.push((token, remote, local));
        Ok(Pulled::Started)
    }
    fn completed(&mut self) -> Option<(u64, Result<(), NotPulled>)> {
        self.device.lock().unwrap().ended.pop()
    }
    fn cancel(&mut self) {
        let mut device = self.device.lock().unwrap();
        device.started.clear();
        device.cancelled = true;
    }
}

impl Incoming for Slow {
    fn receive(&mut self, budget: usize, deliver: Deliver<'_>) -> Result<usize, ChannelError> {
        self.channel.receive(budget, deliver)
    }
    fn event(&mut self) -> Result<(), ChannelError> {
        self.channel.event()
    }
    fn acknowledge(&mut self, marker: u64) -> Result<(), ChannelError> {
        assert!(self.device.lock().unwrap().started.is_empty(), "a marker was acknowledged during a read");
        self.channel.acknowledge(marker)
    }
    fn puller(&mut self) -> Option<&mut dyn Puller> {
        Some(self)
    }
    fn polled(&self) -> bool {
        self.channel.polled()
    }
    fn arm(&mut self) -> bool {
        self.channel.arm()
    }
    fn disarm(&mut self) {
        self.channel.disarm();
    }
    fn socket(&self) -> BorrowedFd<'_> {
        self.channel.socket()
    }
    fn descriptors(&self, f: &mut dyn FnMut(i32)) {
        self.channel.descriptors(f);
    }
    fn mapping(&self) -> Option<(usize, usize)> {
        self.channel.mapping()
    }
    fn forget(self: Box<Self>) {
        self.channel.forget();
    }
}

/// Two ranks, of which the second has begun to read a message of the first.
struct Scene {
    world: World,
    device: Arc<Mutex<Device>>,
    /// What is sent; lent until the end.
    body: Vec<u8>,
    memory: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let mut world = World::new(&[0, 0], 1);
        let device = Arc::new(Mutex::new(Device::default()));
        let body: Vec<u8> = (0..150_000usize).map(|at| (at * 7 + at / 255) as u8).collect();
        let mut memory = vec![0; body.len()];
        send(&mut world, b"x");
        let mut first = [0];
        receive(&mut world, &mut first);
        while completions(&mut world, 1).is_empty() {
            world.progress();
        }
        for inbound in world.nodes[1].links.inbound.iter_mut().flatten() {
            let channel = std::mem::replace(&mut inbound.channel, Box::new(Nothing));
            inbound.channel = Box::new(Slow { channel, device: Arc::clone(&device) });
        }
        receive(&mut world, &mut memory);
        send(&mut world, &body);
        while device.lock().unwrap().started.is_empty() {
            world.progress();
        }
        Self { world, device, body, memory }
    }

    /// Ends the reads that were started; how many there were.
    fn end_reads(&mut self, outcome: Result<(), NotPulled>) -> usize {
        let mut device = self.device.lock().unwrap();
        let started = std::mem::take(&mut device.started);
        for (token, remote, local) in &started {
            let source = Segment { base: remote.address as *mut u8, len: local.len };
            Buffers::One(*local).fill(0, Payload { parts: [source, Segment::EMPTY] });
            device.ended.push((*token, outcome));
        }
        started.len()
    }

    /// Progress, and the drain of rank 0 if there is one.
    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.world.progress();
            self.world.nodes[0].links.drain_step();
        }
    }

    fn draining(&self) -> bool {
        matches!(self.world.nodes[0].links.peers[1].outbound, Outbound::Draining { .. })
    }

    /// The message arrives, once and whole, and its sender completes.
    fn arrives(mut self) {
        let mut done = Vec::new();
        for _ in 0..100_000 {
            self.end_reads(Ok(()));
            self.rounds(1);
            done.extend(completions(&mut self.world, 1));
            if !done.is_empty() && self.world.nodes[0].engine.awaited(0).is_empty() {
                break;
            }
        }
        assert_eq!((done.len(), done[0].error, done[0].len as usize), (1, 0, self.body.len()));
        assert!(self.memory == self.body);
        assert_eq!(self.world.nodes[0].links.offered, 0);
        self.rounds(50);
        assert!(completions(&mut self.world, 1).is_empty());
    }
}

/// Stands in for a channel while it is wrapped.
struct Nothing;

impl Incoming for Nothing {
    fn receive(&mut self, _: usize, _: Deliver<'_>) -> Result<usize, ChannelError> {
        Ok(0)
    }
    fn event(&mut self) -> Result<(), ChannelError> {
        Ok(())
    }
    fn acknowledge(&mut self, _: u64) -> Result<(), ChannelError> {
        Ok(())
    }
    fn polled(&self) -> bool {
        true
    }
    fn arm(&mut self) -> bool {
        false
    }
    fn disarm(&mut self) {}
    fn socket(&self) -> BorrowedFd<'_> {
        rustix::stdio::stdin()
    }
    fn descriptors(&self, _: &mut dyn FnMut(i32)) {}
    fn mapping(&self) -> Option<(usize, usize)> {
        None
    }
    fn forget(self: Box<Self>) {}
}

fn send(world: &mut World, bytes: &[u8]) {
    let segments = [Segment::of(bytes)];
    let message = Message { to: (1, 0), tag: Some(5), data: None, segments: &segments, context: 0, flags: 0, inject: false };
    let node = &mut world.nodes[0];
    node.engine.send(&mut node.links, 0, &message).unwrap();
}

fn receive(world: &mut World, memory: &mut [u8]) {
    let buffers = Buffers::One(Segment { base: memory.as_mut_ptr(), len: memory.len() });
    let receive = Receive { tag: Some((5, 0)), source: Some((0, 0)), buffers, context: 1, flags: 0 };
    let node = &mut world.nodes[1];
    node.engine.receive(&mut node.links, 0, receive).unwrap();
}

fn completions(world: &mut World, rank: usize) -> Vec<crate::engine::completion::Completion> {
    let node = &mut world.nodes[rank];
    node.engine.queues.get_mut(node.queue).unwrap().entries.drain(..).collect()
}

#[test]
fn a_marker_is_acknowledged_after_the_reads() {
    let mut scene = Scene::new();
    scene.world.nodes[0].links.begin_suspend();
    scene.rounds(300);
    assert!(scene.draining());
    assert!(scene.end_reads(Ok(())) == 3 && scene.draining());
    while scene.draining() {
        scene.rounds(1);
        scene.end_reads(Ok(()));
    }
    scene.world.nodes[0].links.resume();
    scene.arrives();
}

#[test]
fn a_read_that_fails_in_a_drain_is_made_good_by_packets_after_it() {
    let mut scene = Scene::new();
    scene.world.nodes[0].links.begin_suspend();
    scene.rounds(300);
    scene.end_reads(Err(NotPulled));
    for _ in 0..10_000 {
        scene.rounds(1);
    }
    assert!(!scene.draining() && completions(&mut scene.world, 1).is_empty());
    scene.world.nodes[0].links.resume();
    scene.arrives();
}

#[test]
fn a_restored_process_asks_for_what_it_was_reading() {
    let mut scene = Scene::new();
    // Its channels are forgotten with the read under way, as if its image had been made then.
    scene.device.lock().unwrap().started.clear();
    scene.world.nodes[0].links.peers[1].used = false;
    let links = &mut scene.world.nodes[1].links;
    links.forget();
    let entry = &mut scene.world.entries[1];
    entry.generation += 1;
    entry.address = Some(links.listen(identity(1, 2, 0)).unwrap());
    scene.world.publish();
    scene.arrives();
}

#[test]
fn a_channel_that_ends_takes_its_reads_along() {
    let mut scene = Scene::new();
    let links = &mut scene.world.nodes[1].links;
    let number = links.peers[0].inbound.unwrap();
    let mut inbound = links.inbound[number as usize].take().unwrap();
    // Nothing that was sent is lost with it.
    inbound.drained = true;
    links.drop_inbound(number, *inbound);
    assert!(scene.device.lock().unwrap().cancelled);
    scene.world.nodes[0].links.peers[1].used = false;
    scene.arrives();
}

#[test]
fn reads_of_a_closed_endpoint_are_cancelled() {
    let mut scene = Scene::new();
    let node = &mut scene.world.nodes[1];
    node.engine.close_endpoint(&mut node.links, 0);
    assert!(scene.device.lock().unwrap().cancelled);
    assert!(!scene.world.nodes[1].links.pulls_wait());
}
