//! An encrypted file, whole or damaged, and the places at which it is read.

use crate::damage;
use crate::input::{input_enum, input_struct};
use mend_sealed::{CHUNK, HEAD, Key, Sealer};
use std::io::Write;

const TAG: usize = 16;

input_enum! {
    /// What somebody did to the file.
    pub enum Damage {
        Flip { at: u32, mask: u8 },
        Cut { at: u32 },
        More { bytes: Vec<u8> },
        /// Two chunks change places.
        Swap { one: u8, other: u8 },
        Repeat { chunk: u8 },
        LeaveOut { chunk: u8 },
        /// A chunk of another file, of the same key.
        Foreign { chunk: u8 },
        /// Another head, or a part of one.
        Head { at: u8, bytes: Vec<u8> },
    }
}

input_enum! {
    /// What somebody does who reads it.
    pub enum Step {
        Read { length: u32 },
        Start { at: u32 },
        End { by: i64 },
        Current { by: i64 },
    }
}

input_struct! {
    /// A file and its reader.
    pub struct Sealed {
        /// Instead of a file that was sealed.
        pub raw: Option<Vec<u8>>,
        pub chunks: u8,
        pub more: u16,
        pub other_key: bool,
        pub damages: Vec<Damage>,
        pub steps: Vec<Step>,
    }
}

/// A file and what is known of it.
pub struct File {
    pub plain: Vec<u8>,
    /// As it was sealed.
    pub honest: Vec<u8>,
    /// As it is now.
    pub bytes: Vec<u8>,
}

/// The key with which all is sealed.
pub fn key() -> Key {
    Key::from_bytes([3; 32])
}

fn seal(plain: &[u8], salt: u8) -> Vec<u8> {
    let mut sealer = Sealer::new(Vec::new(), &key(), [salt; 32]).expect("memory");
    sealer.write_all(plain).expect("memory");
    sealer.finish().expect("memory").0
}

/// The file. Lengths lie around those of whole chunks.
pub fn build(input: &Sealed) -> File {
    let length = (usize::from(input.chunks % 3) * CHUNK + usize::from(input.more)).saturating_sub(TAG);
    let plain: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
    let honest = seal(&plain, 1);
    let mut bytes = input.raw.clone().unwrap_or_else(|| honest.clone());
    for damage in input.damages.iter().take(4) {
        damage.befall(&mut bytes, &plain);
    }
    File { plain, honest, bytes }
}

impl Damage {
    fn befall(&self, bytes: &mut Vec<u8>, plain: &[u8]) {
        match self {
            Self::Flip { at, mask } => damage::flip(bytes, *at, *mask),
            Self::Cut { at } => damage::cut(bytes, *at),
            Self::More { bytes: more } => bytes.extend(more),
            Self::Head { at, bytes: other } => {
                let at = usize::from(*at) % HEAD;
                bytes.iter_mut().take(HEAD).skip(at).zip(other).for_each(|(byte, other)| *byte = *other);
            }
            Self::Swap { .. } | Self::Repeat { .. } | Self::LeaveOut { .. } | Self::Foreign { .. } => {
                let (head, body) = bytes.split_at(HEAD.min(bytes.len()));
                let mut chunks: Vec<Vec<u8>> = body.chunks(CHUNK + TAG).map(<[u8]>::to_vec).collect();
                self.reorder(&mut chunks, plain);
                *bytes = [head, &chunks.concat()].concat();
            }
        }
    }

    fn reorder(&self, chunks: &mut Vec<Vec<u8>>, plain: &[u8]) {
        match self {
            Self::Swap { one, other } => damage::swap(chunks, *one, *other),
            Self::Repeat { chunk } => damage::repeat(chunks, *chunk),
            Self::LeaveOut { chunk } => damage::leave_out(chunks, *chunk),
            Self::Foreign { chunk } => damage::replace(chunks, *chunk, |number, _| {
                seal(plain, 2)[HEAD..].chunks(CHUNK + TAG).nth(number).unwrap_or_default().to_vec()
            }),
            _ => {}
        }
    }
}
