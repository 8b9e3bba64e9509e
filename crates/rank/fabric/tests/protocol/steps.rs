//! What can happen in the model.

use crate::world::{Rank, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Pump(Rank, Rank),
    Open(Rank, Rank),
    Greet(usize),
    Accepted(usize),
    Receive(usize),
    SenderEnd(usize),
    ReceiverEnd(usize),
    Marker(Rank, Rank),
    Acknowledged(usize),
    Begin(u8),
    Ask(Rank),
    Answer(Rank),
    Commit,
    Abort,
    Map(Rank),
    Resume(Rank),
    Break(usize),
    /// A receive is posted for a long message that was announced.
    Match(Rank, Rank),
    /// A read begins, and ends.
    Start(Rank, Rank),
    Read(Rank, Rank),
    /// It turns out to be impossible.
    Refused(Rank, Rank),
    /// The last read before a marker has ended.
    Drained(Rank, Rank),
    /// A one-sided operation begins, and copies, and looks whether that counts.
    Put(Rank, Rank),
    Copy(Rank, Rank),
    LookAgain(Rank, Rank),
    /// A region ends.
    Close(Rank),
    /// A program computes, and comes back.
    Compute(Rank),
    Return(Rank),
}

impl Step {
    /// The rank whose process takes it; none is the daemon's or nobody's.
    pub fn by(self, world: &World) -> Option<Rank> {
        let channel = |number: usize| world.channels[number].as_ref();
        match self {
            Self::Pump(at, _)
            | Self::Open(at, _)
            | Self::Marker(at, _)
            | Self::Match(at, _)
            | Self::Start(at, _)
            | Self::Read(at, _)
            | Self::Refused(at, _)
            | Self::Drained(at, _)
            | Self::Put(at, _)
            | Self::Copy(at, _)
            | Self::LookAgain(at, _)
            | Self::Ask(at)
            | Self::Answer(at)
            | Self::Map(at)
            | Self::Resume(at)
            | Self::Close(at)
            | Self::Compute(at)
            | Self::Return(at) => Some(at),
            Self::Greet(number) | Self::Receive(number) | Self::SenderEnd(number) => channel(number).map(|channel| channel.to),
            Self::Accepted(number) | Self::ReceiverEnd(number) | Self::Acknowledged(number) => channel(number).map(|channel| channel.from),
            Self::Begin(_) | Self::Commit | Self::Abort | Self::Break(_) => None,
        }
    }

    /// True for what happens whether or not packets are moved: requests to the agent, and what the program does besides.
    pub fn is_request(self) -> bool {
        matches!(self, Self::Ask(_) | Self::Answer(_) | Self::Map(_) | Self::Resume(_) | Self::Compute(_) | Self::Return(_))
    }

    /// True for what only a call of the program can do.
    pub fn is_programs(self) -> bool {
        matches!(self, Self::Match(..) | Self::Put(..) | Self::Copy(..) | Self::LookAgain(..) | Self::Close(_))
    }

    /// True for the further steps of an access that has begun.
    pub fn is_access(self) -> bool {
        matches!(self, Self::Copy(..) | Self::LookAgain(..))
    }
}
