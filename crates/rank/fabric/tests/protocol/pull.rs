//! Long messages in the model: announced, read by the receiver out of the sender's memory, acknowledged; or asked for and sent.
//! A read takes its time, as a device's does; the receive it is for may be posted at any time after the announcement.

use crate::model::{Job, Without};
use crate::steps::Step;
use crate::world::{Channel, Packet, Rank, World};

impl Job {
    /// True if messages from one to the other are long.
    pub fn long(&self, from: Rank, to: Rank) -> bool {
        self.long.contains(&(from, to))
    }

    /// `Engine::announced`, `cleared`, `acknowledged` and `landed`, for a packet about message `which` from `of` to `at` or back.
    pub fn receive_long(&self, world: &mut World, at: Rank, of: Rank, packet: Packet) {
        let peer = world.peer(at, of);
        match packet {
            Packet::Offer(which) => peer.announced.push(which),
            Packet::Ask(which) => peer.posted.push(Packet::Data(which)),
            Packet::Done(which) => peer.lent.retain(|lent| *lent != which),
            Packet::Data(which) => world.complete(at, of, which),
            _ => {}
        }
    }

    /// What can be done about long messages.
    pub fn long_steps(&self, world: &World, steps: &mut Vec<Step>) {
        for at in 0..self.ranks {
            for of in (0..self.ranks).filter(|of| *of != at) {
                let peer = world.look(at, of);
                if !peer.announced.is_empty() {
                    steps.push(Step::Match(at, of));
                }
                if peer.reading.is_some() {
                    steps.extend([Step::Read(at, of), Step::Refused(at, of)]);
                } else if !peer.pulls.is_empty() && peer.inbound.is_some() {
                    steps.push(Step::Start(at, of));
                } else if peer.marker.is_some() {
                    steps.push(Step::Drained(at, of));
                }
            }
        }
    }

    pub fn step_long(&self, world: &mut World, step: Step) {
        match step {
            // `Engine::serve` and `Links::pull`: the receive is posted.
            Step::Match(at, of) => {
                let allowed = world.look(at, of).may_pull || self.without == Without::Pause;
                let peer = world.peer(at, of);
                let which = peer.announced.remove(0);
                if allowed && peer.inbound.is_some() {
                    peer.pulls.push(which);
                } else {
                    peer.posted.push(Packet::Ask(which));
                }
            }
            // `Pulling::go_on`.
            Step::Start(at, of) => {
                let peer = world.peer(at, of);
                peer.reading = Some(peer.pulls.remove(0));
            }
            // `Links::pull_from` and `Engine::pulled`.
            Step::Read(at, of) => {
                let Some(which) = world.peer(at, of).reading.take() else { return };
                if !world.look(of, at).lent.contains(&which) {
                    world.wrong = Some("memory was read that is the application's again");
                }
                world.complete(at, of, which);
                world.peer(at, of).posted.push(Packet::Done(which));
            }
            Step::Refused(at, of) => {
                let peer = world.peer(at, of);
                let refused = peer.reading.take().filter(|_| self.without != Without::Repeat);
                peer.posted.extend(refused.map(Packet::Ask));
            }
            Step::Drained(at, of) => {
                let peer = world.peer(at, of);
                let (Some(marker), Some(channel)) = (peer.marker.take(), peer.inbound) else { return };
                peer.drained = true;
                world.channel(channel).acks.push(marker);
            }
            _ => {}
        }
    }

    /// A marker has come on a channel: `Delivery::packet`.
    pub fn receive_marker(&self, world: &mut World, number: usize, marker: u8) {
        let (at, of) = (world.channel(number).to, world.channel(number).from);
        let peer = world.peer(at, of);
        peer.may_pull = false;
        if self.without == Without::ReadsEnd || (peer.pulls.is_empty() && peer.reading.is_none()) {
            peer.drained = true;
            world.channel(number).acks.push(marker);
        } else {
            peer.marker = Some(marker);
        }
    }
}

impl World {
    fn complete(&mut self, at: Rank, of: Rank, which: u8) {
        let peer = self.peer(at, of);
        if peer.complete & 1 << which != 0 {
            self.wrong = Some("a long message came twice");
            return;
        }
        peer.complete |= 1 << which;
    }

    /// `Links::fail_pulls` and `Links::forget_pulls`: what was to be read is asked for.
    pub fn fail_pulls(&mut self, at: Rank, of: Rank) {
        let peer = self.peer(at, of);
        (peer.may_pull, peer.marker) = (false, None);
        let failed: Vec<u8> = peer.reading.take().into_iter().chain(std::mem::take(&mut peer.pulls)).collect();
        peer.posted.extend(failed.into_iter().map(Packet::Ask));
    }

    /// True if a read is under way between ranks of such a channel.
    pub fn reads(&self, of: impl Fn(&Channel) -> bool) -> bool {
        let reading = |channel: &&Channel| self.look(channel.to, channel.from).reading.is_some() && channel.receiver;
        self.channels.iter().flatten().filter(reading).any(of)
    }
}
