//! An encrypted stream, and what somebody does to it on its way.

use crate::damage;
use crate::input::{input_enum, input_struct};
use mend_cipher::{Decryptor, Encryptor, HEAD, MAX_PLAIN, TAG};
use mend_messages::job::Secret;

input_enum! {
    /// What somebody did.
    pub enum Change {
        Flip { at: u32, mask: u8 },
        Cut { at: u32 },
        Insert { at: u32, bytes: Vec<u8> },
        /// Two records change places.
        Swap { one: u8, other: u8 },
        Repeat { record: u8 },
        LeaveOut { record: u8 },
        /// A record of the other direction.
        Reflected { record: u8 },
        /// Another head.
        Head { record: u8, value: u32 },
    }
}

input_struct! {
    /// A stream and its reader.
    pub struct Records {
        /// Lengths of what its records hold.
        pub lengths: Vec<u16>,
        pub changes: Vec<Change>,
        /// Bytes that are read at a time, less one.
        pub read: u16,
    }
}

/// A stream and what is known of it.
pub struct Stream {
    pub plain: Vec<u8>,
    /// As it was sent.
    pub honest: Vec<u8>,
    /// As it arrives.
    pub bytes: Vec<u8>,
    /// Where each record ends, and what has been given out by then.
    ends: Vec<(usize, usize)>,
}

/// Of the initiator's records: what makes them and what opens them.
pub fn keys() -> (Encryptor, Decryptor) {
    let (secret, nonces) = (Secret([3; 32]), [&[1; 32], &[2; 32]]);
    (mend_cipher::initiator(&secret, nonces, b"fuzz").0, mend_cipher::acceptor(&secret, nonces, b"fuzz").1)
}

/// Seals what each record is to hold; the last is empty.
fn seal(mut encryptor: Encryptor, plain: &[u8], lengths: &[usize]) -> Vec<Vec<u8>> {
    let (mut records, mut at) = (Vec::new(), 0);
    for (number, length) in lengths.iter().enumerate() {
        let mut record = [&[0; HEAD][..], &plain[at..at + length], &[0; TAG]].concat();
        encryptor.seal(&mut record, number + 1 == lengths.len());
        records.push(record);
        at += length;
    }
    records
}

/// The stream.
pub fn build(input: &Records) -> Stream {
    let mut lengths: Vec<usize> = input.lengths.iter().take(6).map(|length| usize::from(*length).min(MAX_PLAIN)).collect();
    lengths.push(0);
    let plain: Vec<u8> = (0..lengths.iter().sum()).map(|at: usize| (at % 251) as u8).collect();
    let honest = seal(keys().0, &plain, &lengths);
    let (secret, nonces) = (Secret([3; 32]), [&[1; 32], &[2; 32]]);
    let reflected = seal(mend_cipher::acceptor(&secret, nonces, b"fuzz").0, &plain, &lengths);
    let mut records = honest.clone();
    for change in input.changes.iter().take(4) {
        change.reorder(&mut records, &reflected);
    }
    let mut bytes = records.concat();
    for change in input.changes.iter().take(4) {
        change.befall(&mut bytes);
    }
    let ends = honest.iter().zip(&lengths).scan((0, 0), |(end, given), (record, length)| {
        (*end, *given) = (*end + record.len(), *given + length);
        Some((*end, *given))
    });
    Stream { plain, ends: ends.collect(), honest: honest.concat(), bytes }
}

impl Stream {
    /// Plain bytes in whole records of the first bytes.
    pub fn whole(&self, bytes: usize) -> usize {
        self.ends.iter().take_while(|(end, _)| *end <= bytes).last().map_or(0, |(_, given)| *given)
    }
}

impl Change {
    fn reorder(&self, records: &mut Vec<Vec<u8>>, reflected: &[Vec<u8>]) {
        match self {
            Self::Swap { one, other } => damage::swap(records, *one, *other),
            Self::Repeat { record } => damage::repeat(records, *record),
            Self::LeaveOut { record } => damage::leave_out(records, *record),
            Self::Reflected { record } => damage::replace(records, *record, |number, _| reflected[number % reflected.len()].clone()),
            Self::Head { record, value } => damage::replace(records, *record, |_, old| [&value.to_le_bytes(), &old[HEAD..]].concat()),
            Self::Flip { .. } | Self::Cut { .. } | Self::Insert { .. } => {}
        }
    }

    fn befall(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Flip { at, mask } => damage::flip(bytes, *at, *mask),
            Self::Cut { at } => damage::cut(bytes, *at),
            Self::Insert { at, bytes: more } => damage::insert(bytes, *at, more),
            _ => {}
        }
    }
}
