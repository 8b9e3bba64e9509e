//! The protocol between ranks as a model: every step of `links` that decides something, between ranks that the daemon's
//! requests reach in any order, over channels whose packets, acknowledgements and ends arrive in any order that sockets
//! allow. What the steps stand for is named with each. Sockets, handshakes and memory are left out: an opening is one
//! message that is answered or not.

use crate::grants::Word;
use crate::steps::Step;
use crate::world::{Channel, Node, Out, Packet, Peer, Phase, Rank, World, bit};
use stateright::{Model, Property};

/// Parts of the protocol that can be taken out, to show that the checks would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    Nothing,
    /// A drain ends when the marker is in the channel.
    Acknowledgement,
    /// An opening that was given up can replace its successor.
    Number,
    /// Sends go on while a peer is suspended.
    Hold,
    /// A channel that broke is opened again although packets may be lost.
    Loss,
    /// The number of a marker is not looked at.
    MarkerNumber,
    /// An agent that has let a peer go does not listen to it further.
    Service,
    /// Resume leaves peers held, as if one field were forgotten.
    Release,
    /// A marker is acknowledged although reads of the sender's memory are under way.
    ReadsEnd,
    /// Reads are begun although a marker has come.
    Pause,
    /// What could not be read after all is not asked for.
    Repeat,
    /// A suspended rank does not bar its memory.
    Bar,
    /// A region's end is not told.
    Version,
    /// The word is not looked at once more after a copy.
    SecondLook,
    /// A grant that comes while the channel is drained is not kept.
    Granted,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub ranks: u8,
    /// Messages from one rank to another.
    pub flows: Vec<(Rank, Rank, u8)>,
    /// Between whom messages are long.
    pub long: Vec<(Rank, Rank)>,
    /// One-sided operations of one rank on another.
    pub puts: Vec<(Rank, Rank, u8)>,
    /// What may be begun: sets of ranks that move, 0 for a checkpoint of all.
    pub operations: Vec<u8>,
    pub rounds: u8,
    pub aborts: u8,
    pub breaks: u8,
    /// Ranks that may begin, at any time, to compute until all operations are over: only their agents act meanwhile.
    pub computing: u8,
    /// Regions that end, and are exposed again.
    pub closes: u8,
    pub without: Without,
}

/// Packets a channel holds.
const ROOM: usize = 2;
/// Openings of one rank to one that a run may need; a run that needs more never ends.
const OPENINGS: u8 = 12;

impl Job {
    fn all(&self) -> u8 {
        (1 << self.ranks) - 1
    }

    /// True if somebody moves the packets of this rank: its program, or the agent (`Fabric::suspend`, `Fabric::suspend_peer`,
    /// `Agent::await_message`).
    fn serves(&self, world: &World, at: Rank) -> bool {
        let node = &world.nodes[at as usize];
        if !node.computes {
            return true;
        }
        match world.phase {
            Phase::Suspending { asked, done, .. } if asked & !done & bit(at) != 0 => true,
            // It is parked.
            Phase::Resuming { movers, saved: true, resumed, .. } if resumed & bit(at) == 0 && (movers == 0 || movers & bit(at) != 0) => {
                false
            }
            _ => node.suspended || (self.without != Without::Service && node.peers.iter().any(|peer| peer.held)),
        }
    }

    /// Ranks begin to compute, and come back.
    fn compute_steps(&self, world: &World, steps: &mut Vec<Step>) {
        let over = world.phase == Phase::Idle && world.operations == 0;
        for at in (0..self.ranks).filter(|at| self.computing & bit(*at) != 0) {
            match (world.nodes[at as usize].computes, over) {
                (true, true) => steps.push(Step::Return(at)),
                (false, false) => steps.push(Step::Compute(at)),
                _ => {}
            }
        }
    }

    /// `Links::advance_handshake`, once the peer has said HELLO.
    fn advance_handshake(&self, world: &mut World, number: usize) -> bool {
        let channel = world.channel(number).clone();
        let (at, from) = (channel.to, channel.from);
        let refuse = |world: &mut World| world.channel(number).receiver = false;
        let peer = world.look(at, from).clone();
        let old_opening = (channel.generation, channel.number) <= peer.admitted && self.without != Without::Number;
        let lossy = peer.ended.is_some_and(|generation| channel.generation <= generation) && self.without != Without::Loss;
        if lossy || old_opening {
            refuse(world);
            return true;
        }
        if let Some(old) = peer.inbound {
            if !peer.drained {
                return false;
            }
            world.drop_inbound(at, old);
        }
        world.channel(number).accepted = true;
        let peer = world.peer(at, from);
        (peer.inbound, peer.from_generation, peer.drained) = (Some(number), channel.generation, true);
        peer.admitted = (channel.generation, channel.number);
        self.show(world, at);
        true
    }

    /// `Links::receive`, one packet.
    fn receive(&self, world: &mut World, number: usize) {
        let packet = world.channel(number).packets.remove(0);
        let (at, from) = (world.channel(number).to, world.channel(number).from);
        if let Packet::Marker(marker) = packet {
            self.receive_marker(world, number, marker);
            return;
        }
        let peer = world.peer(at, from);
        if peer.drained || peer.marker.is_some() {
            (peer.drained, peer.marker, peer.may_pull) = (false, None, true);
        }
        self.receive_long(world, at, from, packet);
        self.receive_operation(world, at, from, packet);
        match packet {
            Packet::Message(which) | Packet::Offer(which) => {
                let peer = world.peer(at, from);
                let expected = peer.got;
                peer.got = which + 1;
                if which != expected {
                    world.wrong = Some(if which < expected { "a message came twice or late" } else { "a message was passed over" });
                }
            }
            _ => {}
        }
    }

    /// `Links::begin_suspend` and `Links::begin_suspend_peer`.
    fn ask(&self, world: &mut World, at: Rank, movers: u8) {
        if movers == 0 || movers & bit(at) != 0 {
            world.nodes[at as usize].suspended = true;
            self.show(world, at);
            (0..self.ranks).filter(|of| *of != at).for_each(|of| world.begin_drain(at, of));
            return;
        }
        for of in (0..self.ranks).filter(|of| movers & bit(*of) != 0) {
            let hold = self.without != Without::Hold;
            let peer = world.peer(at, of);
            peer.held = hold;
            world.begin_drain(at, of);
        }
    }

    /// `Links::drain_step` (for those that suspend) or `Links::peer_drained`, with `Links::lost`.
    fn may_answer(&self, world: &World, at: Rank, movers: u8) -> bool {
        let draining = |of: Rank| matches!(world.look(at, of).out, Out::Draining { .. });
        let lost = |of: Rank| matches!(world.look(at, of).out, Out::Lost(_));
        let others = || (0..self.ranks).filter(|of| *of != at);
        if movers == 0 || movers & bit(at) != 0 {
            return others().all(|of| !draining(of) && !lost(of));
        }
        others().filter(|of| movers & bit(*of) != 0).all(|of| !draining(of) && !lost(of))
    }

    fn commit(&self, world: &mut World, movers: u8) {
        let concerned = |channel: &Channel| movers == 0 || movers & (bit(channel.from) | bit(channel.to)) != 0;
        if world.in_flight(concerned) {
            world.wrong = Some("a message is in flight when its ranks are saved");
        }
        if world.accesses(|at, of| movers == 0 || movers & (bit(at) | bit(of)) != 0) {
            world.wrong = Some("a rank's memory is written when it is saved");
        }
        if world.reads(concerned) {
            world.wrong = Some("a rank's memory is read when it is saved");
        }
        // `Links::forget` at the target; the source is killed with its sockets.
        for mover in (0..self.ranks).filter(|rank| movers & bit(*rank) != 0) {
            for of in (0..self.ranks).filter(|of| *of != mover) {
                world.close_outbound(mover, of);
                world.fail_pulls(mover, of);
                let peer = world.peer(mover, of);
                (peer.inbound, peer.ended, peer.admitted, peer.used) = (None, None, (0, 0), false);
            }
            world.channels.iter_mut().flatten().filter(|channel| channel.to == mover).for_each(|channel| channel.receiver = false);
            world.nodes[mover as usize].generation += 1;
        }
        world.phase = Phase::Resuming { movers, saved: true, mapped: 0, resumed: 0 };
    }

    /// `Links::set_map`.
    fn map(&self, world: &mut World, at: Rank) {
        for of in (0..self.ranks).filter(|of| *of != at) {
            let generation = world.nodes[of as usize].generation;
            let peer = world.peer(at, of);
            let moved = generation != peer.generation;
            peer.entry = generation;
            let reopen = match peer.out {
                Out::Lost(lost) => generation > lost,
                Out::Suspended(_) | Out::Opening(_) | Out::Open(_) | Out::Draining { .. } => moved,
                Out::Unknown => false,
            };
            if reopen {
                if world.look(at, of).used {
                    world.wrong = Some("a rank was replaced while messages to it were under way");
                }
                world.close_outbound(at, of);
                world.peer(at, of).used = false;
            }
        }
    }

    /// `Links::resume`.
    fn resume(&self, world: &mut World, at: Rank) {
        world.nodes[at as usize].suspended = false;
        self.show(world, at);
        for of in (0..self.ranks).filter(|of| *of != at) {
            let peer = world.peer(at, of);
            peer.held &= self.without == Without::Release;
            let same = peer.entry == peer.generation;
            match peer.out {
                Out::Suspended(channel) if same => peer.out = Out::Open(channel),
                Out::Suspended(_) => world.close_outbound(at, of),
                Out::Draining { channel, .. } => peer.out = Out::Open(channel),
                _ => {}
            }
        }
    }

    fn open(&self, world: &mut World, at: Rank, of: Rank) {
        world.nodes[at as usize].openings += 1;
        let (generation, number) = (world.nodes[at as usize].generation, world.nodes[at as usize].openings);
        let listens = world.look(at, of).entry == world.nodes[of as usize].generation;
        let free = world.channels.iter().position(Option::is_none).unwrap_or(world.channels.len());
        let channel = Channel {
            from: at,
            to: of,
            generation,
            number,
            accepted: false,
            packets: Vec::new(),
            acks: Vec::new(),
            sender: true,
            receiver: listens,
            word: Word::default(),
        };
        if free == world.channels.len() {
            world.channels.push(None);
        }
        world.channels[free] = Some(channel);
        let peer = world.peer(at, of);
        (peer.generation, peer.out) = (peer.entry, Out::Opening(free));
    }

    fn acknowledged(&self, world: &mut World, number: usize) {
        let marker = world.channel(number).acks.remove(0);
        let (at, of) = (world.channel(number).from, world.channel(number).to);
        let peer = world.peer(at, of);
        match peer.out {
            Out::Draining { channel, marker: wanted, sent: true }
                if channel == number && (marker == wanted || self.without == Without::MarkerNumber) =>
            {
                (peer.out, peer.used) = (Out::Suspended(channel), false);
            }
            _ => {}
        }
    }

    fn link_steps(&self, world: &World, steps: &mut Vec<Step>) {
        for at in 0..self.ranks {
            let node = &world.nodes[at as usize];
            for of in (0..self.ranks).filter(|of| *of != at) {
                let peer = &node.peers[of as usize];
                let free = !peer.held && !node.suspended;
                let room = |channel: usize| world.channels[channel].as_ref().is_some_and(|channel| channel.packets.len() < ROOM);
                match peer.out {
                    Out::Open(channel) if free && peer.waits() && room(channel) => steps.push(Step::Pump(at, of)),
                    Out::Unknown if free && peer.waits() && node.openings < OPENINGS => {
                        steps.push(Step::Open(at, of));
                    }
                    Out::Draining { channel, sent: false, .. } if room(channel) => steps.push(Step::Marker(at, of)),
                    _ => {}
                }
            }
        }
        for (number, channel) in world.channels.iter().enumerate() {
            let Some(channel) = channel else { continue };
            if channel.receiver && !channel.accepted && !world.nodes[channel.to as usize].suspended {
                // Also after the sender has given it up: its end may come later than its HELLO was read.
                steps.push(Step::Greet(number));
            }
            if channel.receiver && channel.accepted && !channel.packets.is_empty() {
                steps.push(Step::Receive(number));
            }
            if channel.receiver && !channel.sender && channel.packets.is_empty() {
                steps.push(Step::SenderEnd(number));
            }
            if channel.sender && channel.accepted && world.look(channel.from, channel.to).out == Out::Opening(number) {
                steps.push(Step::Accepted(number));
            }
            if channel.sender && !channel.acks.is_empty() {
                steps.push(Step::Acknowledged(number));
            } else if channel.sender && !channel.receiver {
                steps.push(Step::ReceiverEnd(number));
            }
            if world.breaks > 0 && channel.sender && channel.receiver && channel.accepted {
                steps.push(Step::Break(number));
            }
        }
    }

    fn request_steps(&self, world: &World, steps: &mut Vec<Step>) {
        let ranks = || 0..self.ranks;
        match world.phase {
            Phase::Idle if world.operations > 0 => steps.extend(self.operations.iter().map(|movers| Step::Begin(*movers))),
            Phase::Idle => {}
            Phase::Suspending { movers, asked, done } => {
                steps.extend(ranks().filter(|rank| asked & bit(*rank) == 0).map(Step::Ask));
                let answers = |rank: &Rank| asked & !done & bit(*rank) != 0 && self.may_answer(world, *rank, movers);
                steps.extend(ranks().filter(answers).map(Step::Answer));
                if done == self.all() {
                    steps.push(Step::Commit);
                }
                let stuck = (0..self.ranks).any(|at| world.nodes[at as usize].peers.iter().any(|peer| matches!(peer.out, Out::Lost(_))));
                if world.aborts > 0 || stuck {
                    steps.push(Step::Abort);
                }
            }
            Phase::Resuming { mapped, resumed, .. } => {
                steps.extend(ranks().filter(|rank| mapped & bit(*rank) == 0).map(Step::Map));
                steps.extend(ranks().filter(|rank| mapped & !resumed & bit(*rank) != 0).map(Step::Resume));
            }
        }
    }
}

impl Model for Job {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let peer = |at: Rank, of: Rank| Peer {
            out: Out::Unknown,
            generation: 0,
            used: false,
            held: false,
            entry: 1,
            queue: (0, self.flows.iter().find(|flow| (flow.0, flow.1) == (at, of)).map_or(0, |flow| flow.2)),
            inbound: None,
            from_generation: 0,
            drained: true,
            ended: None,
            admitted: (0, 0),
            got: 0,
            posted: Vec::new(),
            lent: Vec::new(),
            announced: Vec::new(),
            pulls: Vec::new(),
            reading: None,
            complete: 0,
            may_pull: false,
            marker: None,
            operations: self.operations_on(at, of),
        };
        let node = |at| Node {
            peers: (0..self.ranks).map(|of| peer(at, of)).collect(),
            suspended: false,
            computes: false,
            generation: 1,
            markers: 0,
            openings: 0,
            version: 0,
            region: 0,
        };
        vec![World {
            nodes: (0..self.ranks).map(node).collect(),
            channels: Vec::new(),
            phase: Phase::Idle,
            operations: self.rounds,
            aborts: self.aborts,
            breaks: self.breaks,
            closes: self.closes,
            wrong: None,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.wrong.is_none() {
            self.link_steps(world, steps);
            self.long_steps(world, steps);
            self.request_steps(world, steps);
            self.operation_steps(world, steps);
            self.compute_steps(world, steps);
            // A rank that copies does nothing else.
            steps.retain(|step| step.is_access() || step.by(world).is_none_or(|rank| !world.accesses(|at, _| at == rank)));
            // The program of one that computes does nothing, and its packets wait for the agent.
            steps.retain(|step| step.is_request() || step.by(world).is_none_or(|rank| self.serves(world, rank)));
            steps.retain(|step| !step.is_programs() || step.by(world).is_none_or(|rank| !world.nodes[rank as usize].computes));
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            // `Links::post` and `Links::pump`.
            Step::Pump(at, of) => {
                let peer = world.peer(at, of);
                let Out::Open(channel) = peer.out else { return None };
                peer.used = true;
                let packet = if peer.posted.is_empty() {
                    let which = peer.queue.0;
                    peer.queue.0 += 1;
                    if self.long(at, of) {
                        peer.lent.push(which);
                        Packet::Offer(which)
                    } else {
                        Packet::Message(which)
                    }
                } else {
                    peer.posted.remove(0)
                };
                if let Packet::Data(which) = packet {
                    peer.lent.retain(|lent| *lent != which);
                }
                world.channel(channel).packets.push(packet);
            }
            Step::Open(at, of) => self.open(&mut world, at, of),
            Step::Greet(number) => {
                if !self.advance_handshake(&mut world, number) {
                    return None;
                }
            }
            // `Links::advance`.
            Step::Accepted(number) => {
                let (at, of) = (world.channel(number).from, world.channel(number).to);
                let peer = world.peer(at, of);
                (peer.out, peer.used) = (Out::Open(number), false);
            }
            Step::Receive(number) => self.receive(&mut world, number),
            Step::Match(..) | Step::Start(..) | Step::Read(..) | Step::Refused(..) | Step::Drained(..) => self.step_long(&mut world, step),
            Step::Put(..) | Step::Copy(..) | Step::LookAgain(..) | Step::Close(_) => {
                if !self.step_operation(&mut world, step) {
                    return None;
                }
            }
            Step::SenderEnd(number) => {
                let (at, accepted) = (world.channel(number).to, world.channel(number).accepted);
                if accepted {
                    world.drop_inbound(at, number);
                } else {
                    world.channel(number).receiver = false;
                }
            }
            Step::ReceiverEnd(number) => {
                let (at, of) = (world.channel(number).from, world.channel(number).to);
                if world.look(at, of).out == Out::Opening(number) {
                    world.close_outbound(at, of);
                } else {
                    if world.look(at, of).used && self.breaks == 0 {
                        world.wrong = Some("a channel ended under messages though nothing failed");
                    }
                    world.lose(at, of, self.without);
                }
            }
            // `Links::drain_step`.
            Step::Marker(at, of) => {
                let peer = world.peer(at, of);
                let Out::Draining { channel, marker, .. } = peer.out else { return None };
                peer.out = Out::Draining { channel, marker, sent: true };
                if self.without == Without::Acknowledgement {
                    (peer.out, peer.used) = (Out::Suspended(channel), false);
                }
                world.channel(channel).packets.push(Packet::Marker(marker));
            }
            Step::Acknowledged(number) => self.acknowledged(&mut world, number),
            Step::Begin(movers) => {
                world.operations -= 1;
                world.phase = Phase::Suspending { movers, asked: 0, done: 0 };
            }
            Step::Ask(at) => {
                let Phase::Suspending { movers, ref mut asked, .. } = world.phase else { return None };
                *asked |= bit(at);
                self.ask(&mut world, at, movers);
            }
            Step::Answer(at) => {
                let Phase::Suspending { movers, ref mut done, .. } = world.phase else { return None };
                *done |= bit(at);
                // `Links::close_peer`.
                for of in (0..self.ranks).filter(|of| movers & bit(*of) != 0 && movers & bit(at) == 0) {
                    if matches!(world.look(at, of).out, Out::Suspended(_)) {
                        world.close_outbound(at, of);
                    }
                }
            }
            Step::Commit => {
                let Phase::Suspending { movers, .. } = world.phase else { return None };
                self.commit(&mut world, movers);
            }
            Step::Abort => {
                let Phase::Suspending { movers, .. } = world.phase else { return None };
                world.aborts = world.aborts.saturating_sub(1);
                world.phase = Phase::Resuming { movers, saved: false, mapped: 0, resumed: 0 };
            }
            Step::Map(at) => {
                let Phase::Resuming { ref mut mapped, .. } = world.phase else { return None };
                *mapped |= bit(at);
                self.map(&mut world, at);
            }
            Step::Resume(at) => {
                let Phase::Resuming { ref mut resumed, .. } = world.phase else { return None };
                *resumed |= bit(at);
                let over = *resumed == self.all();
                self.resume(&mut world, at);
                if over {
                    world.phase = Phase::Idle;
                }
            }
            Step::Compute(at) | Step::Return(at) => {
                let node = &mut world.nodes[at as usize];
                node.computes = !node.computes;
            }
            // The connection breaks; what the receiver had not read is gone.
            Step::Break(number) => {
                world.breaks -= 1;
                let (to, channel) = (world.channel(number).to, world.channel(number));
                channel.packets.clear();
                channel.acks.clear();
                world.drop_inbound(to, number);
            }
        }
        world.sweep();
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("messages come once, in order, and never while saved", |_, world: &World| world.wrong.is_none()),
            Property::always("what can go no further is finished", |job: &Job, world: &World| {
                let mut steps = Vec::new();
                job.actions(world, &mut steps);
                // A handshake that waits for the old channel is tried again and again; that alone is no progress.
                let moves = steps.into_iter().any(|step| job.next_state(world, step).is_some());
                moves || world.wrong.is_some() || (world.phase == Phase::Idle && world.everything_arrived(job))
            }),
            Property::sometimes("all messages arrive", |job: &Job, world: &World| world.everything_arrived(job)),
        ]
    }
}
