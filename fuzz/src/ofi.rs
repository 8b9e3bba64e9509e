//! What a peer says of itself before a channel over a core provider, and its messages after that.

use crate::input::{input_enum, input_struct};
use mend_fabric::channel::ofi::contact::CONTACT_LENGTH;

input_struct! {
    /// A contact as it is told, field by field.
    pub struct Told {
        pub provider: Vec<u8>,
        pub format: u32,
        pub length: u32,
        pub address: Vec<u8>,
        pub line: u64,
    }
}

input_enum! {
    /// Of a peer, or of the end that it talks to. Lines are numbered; some numbers are of none.
    pub enum Act {
        /// The peer has a packet to send; the length that it announces may be another one.
        Packet { line: u8, kind: u8, tag: u8, length: u16, lie: Option<u32> },
        Junk { line: u8, bytes: Vec<u8> },
        /// A message with as much of that, in its order or with any number.
        Message { line: u8, sequence: Option<u32>, credits: u32, back: u8, length: u16 },
        Read { line: u8 },
        Repay { line: u8, credits: u8 },
        /// Uses up what may be sent.
        Spend { line: u8, messages: u8 },
        /// A send of this end fails.
        Fail { line: u8 },
        Close { line: u8 },
        Open { line: u8 },
    }
}

input_struct! {
    pub struct Peer {
        pub told: Told,
        pub acts: Vec<Act>,
    }
}

impl Told {
    /// In its wire form.
    pub fn wire(&self) -> [u8; CONTACT_LENGTH] {
        let mut bytes = [0; CONTACT_LENGTH];
        let mut put = |at: usize, room: usize, field: &[u8]| bytes[at..at + room].iter_mut().zip(field).for_each(|(to, from)| *to = *from);
        put(0, 32, &self.provider);
        put(32, 4, &self.format.to_le_bytes());
        put(36, 4, &self.length.to_le_bytes());
        put(40, 64, &self.address);
        put(104, 8, &self.line.to_le_bytes());
        bytes
    }
}
