//! One-sided operations in the model: granted, done by the origin in the target's memory, or by packets (`channel::direct`,
//! `links::grants`). An access has three steps, between which other ranks take theirs: a look at the target's word, the
//! copy, another look. Here every operation writes a mark of its own. A region that is closed is exposed again, elsewhere, with its key.

use crate::model::{Job, Without};
use crate::steps::Step;
use crate::world::{Channel, Out, Packet, Peer, Phase, Rank, World, bit};

/// What the target shows the origin, in the channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Word {
    pub version: u8,
    pub barred: bool,
}

/// `direct::Target`, for one region; it goes with the channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Key {
    #[default]
    Unknown,
    Asked(u8),
    Granted(u8),
}

/// An access under way, which its rank does nothing besides: the operation, the version of its grant, whether the copy was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    pub which: u8,
    pub version: u8,
    pub copied: bool,
}

/// The operations of one rank on another, with that peer of the first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operations {
    /// Those that are left: first and end.
    pub left: (u8, u8),
    pub key: Key,
    pub access: Option<Access>,
    /// Those that wait for the target's answer, and (bits) those that are complete.
    pub waiting: u8,
    pub complete: u8,
    /// With the peer of the target: the marks (bits) of its own memory.
    pub marks: u8,
}

impl Job {
    pub fn operations_on(&self, at: Rank, of: Rank) -> Operations {
        let count = self.puts.iter().find(|put| (put.0, put.1) == (at, of)).map_or(0, |put| put.2);
        Operations { left: (0, count), key: Key::Unknown, access: None, waiting: 0, complete: 0, marks: 0 }
    }

    /// `Links::show`.
    pub fn show(&self, world: &mut World, at: Rank) {
        let node = &world.nodes[at as usize];
        let word = Word { version: node.version, barred: node.suspended && self.without != Without::Bar };
        let shown = |channel: &&mut Channel| channel.to == at && channel.accepted && channel.receiver;
        world.channels.iter_mut().flatten().filter(shown).for_each(|channel| channel.word = word);
    }

    /// What can be done about one-sided operations.
    pub fn operation_steps(&self, world: &World, steps: &mut Vec<Step>) {
        for (at, of, _) in &self.puts {
            let operations = &world.look(*at, *of).operations;
            match operations.access {
                Some(Access { copied: false, .. }) => steps.push(Step::Copy(*at, *of)),
                Some(_) => steps.push(Step::LookAgain(*at, *of)),
                None if operations.left.0 < operations.left.1 => steps.push(Step::Put(*at, *of)),
                None => {}
            }
        }
        let closed = |rank: &Rank| self.puts.iter().any(|put| put.1 == *rank);
        if world.closes > 0 {
            steps.extend((0..self.ranks).filter(closed).map(Step::Close));
        }
    }

    /// False: the step has no effect.
    pub fn step_operation(&self, world: &mut World, step: Step) -> bool {
        match step {
            Step::Put(at, of) => self.put(world, at, of),
            Step::Copy(at, of) => {
                self.copy(world, at, of);
                true
            }
            Step::LookAgain(at, of) => {
                self.look_again(world, at, of);
                true
            }
            // `Engine::unregister`, and a region of the same key.
            Step::Close(at) => {
                world.closes -= 1;
                world.nodes[at as usize].region += 1;
                if self.without != Without::Version {
                    world.nodes[at as usize].version += 1;
                    self.show(world, at);
                }
                true
            }
            _ => false,
        }
    }

    /// `Engine::write`.
    fn put(&self, world: &mut World, at: Rank, of: Rank) -> bool {
        let suspended = world.nodes[at as usize].suspended;
        let word = word(world, at, of).filter(|_| open(world.look(at, of), suspended));
        let peer = world.peer(at, of);
        let which = peer.operations.left.0;
        if let Some(word) = word {
            peer.operations.look(word);
        }
        // `Engine::access` and `Links::reach`.
        if let Key::Granted(version) = peer.operations.key
            && peer.operations.waiting == 0
            && !peer.held
        {
            match word {
                Some(Word { barred: false, .. }) => {
                    peer.operations.access = Some(Access { which, version, copied: false });
                    return true;
                }
                Some(_) => return false,
                None if suspended => return false,
                None => {}
            }
        }
        // `Target::ask`.
        let asked = word.filter(|word| peer.operations.key == Key::Unknown && !word.barred);
        if let Some(word) = asked {
            peer.operations.key = Key::Asked(word.version);
        }
        peer.send(Packet::Put { which, asks: asked.is_some() });
        true
    }

    /// The kernel copies: into what the grant was for, whatever that is now.
    fn copy(&self, world: &mut World, at: Rank, of: Rank) {
        let Some(access) = &mut world.peer(at, of).operations.access else { return };
        access.copied = true;
        let Access { which, version, .. } = *access;
        if let Phase::Resuming { movers, saved: true, resumed, .. } = world.phase
            && (movers == 0 || movers & bit(of) != 0)
            && resumed & bit(of) == 0
        {
            world.wrong = Some("a rank's memory is written while it is saved");
        }
        if world.nodes[of as usize].region == version {
            world.peer(of, at).operations.marks |= 1 << which;
        }
    }

    /// The second look of `Target::access`. What does not count is done again, by packets.
    fn look_again(&self, world: &mut World, at: Rank, of: Rank) {
        let word = word(world, at, of);
        let marks = world.look(of, at).operations.marks;
        let operations = &mut world.peer(at, of).operations;
        let Some(Access { which, .. }) = operations.access.take() else { return };
        match word {
            Some(word) if self.without != Without::SecondLook => operations.look(word),
            _ => {}
        }
        if !matches!(operations.key, Key::Granted(_)) {
            world.peer(at, of).send(Packet::Put { which, asks: false });
            return;
        }
        operations.left.0 += 1;
        operations.complete |= 1 << which;
        if marks & 1 << which == 0 {
            world.wrong = Some("an operation is complete whose bytes are not in the region");
        }
    }

    /// `Engine::written`, `Links::granted` and `Engine::finish_write`, for a packet at `at` from `of`.
    pub fn receive_operation(&self, world: &mut World, at: Rank, of: Rank, packet: Packet) {
        match packet {
            Packet::Put { which, asks } => {
                let node = &world.nodes[at as usize];
                let version = (!node.suspended || self.without == Without::Bar).then_some(node.version);
                let peer = world.peer(at, of);
                peer.operations.marks |= 1 << which;
                if asks {
                    let version = version.filter(|_| peer.inbound.is_some());
                    peer.posted.push(Packet::Grant(version));
                }
                peer.posted.push(Packet::PutDone(which));
            }
            Packet::Grant(version) => {
                let dropped = self.without == Without::Granted && !open(world.look(at, of), world.nodes[at as usize].suspended);
                let Some(word) = word(world, at, of).filter(|_| !dropped) else { return };
                let operations = &mut world.peer(at, of).operations;
                operations.look(word);
                operations.key = match (operations.key, version) {
                    (Key::Asked(asked), Some(version)) if asked == version => Key::Granted(version),
                    (Key::Asked(_), _) => Key::Unknown,
                    (key, _) => key,
                };
            }
            Packet::PutDone(which) => {
                let operations = &mut world.peer(at, of).operations;
                operations.waiting -= 1;
                operations.complete |= 1 << which;
            }
            _ => {}
        }
    }
}

/// `Links::direct`: the target's memory may be touched.
fn open(peer: &Peer, suspended: bool) -> bool {
    matches!(peer.out, Out::Open(_)) && !peer.held && !suspended
}

fn word(world: &World, at: Rank, of: Rank) -> Option<Word> {
    let channel = world.look(at, of).out.channel()?;
    world.channels[channel].as_ref().map(|channel| channel.word)
}

impl Peer {
    /// An operation goes by packets.
    fn send(&mut self, put: Packet) {
        self.operations.left.0 += 1;
        self.operations.waiting += 1;
        self.posted.push(put);
    }
}

impl Operations {
    /// `Target::look`.
    fn look(&mut self, word: Word) {
        if let Key::Asked(version) | Key::Granted(version) = self.key
            && version != word.version
        {
            self.key = Key::Unknown;
        }
    }

    /// True if all are complete, and left their marks with the target's side of them.
    pub fn over(&self, target: &Self) -> bool {
        let all = (1 << self.left.1) - 1;
        self.complete == all && target.marks == all && self.waiting == 0 && !matches!(self.key, Key::Asked(_))
    }
}

impl World {
    /// True if an access is under way between ranks of such a pair.
    pub fn accesses(&self, of: impl Fn(Rank, Rank) -> bool) -> bool {
        let ranks = || 0..self.nodes.len() as Rank;
        ranks().any(|at| ranks().any(|to| of(at, to) && self.look(at, to).operations.access.is_some()))
    }
}
