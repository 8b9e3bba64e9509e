//! Blocks of a file that ranks write, as a target tells of them to whoever may have them already.
//!
//! Whoever reads says which checksums it knows, and gets only what is different. So each read is of what the target has when it is asked, and what a node's cache has of it
//! does not travel. In HTTP's words: a GET with `If-None-Match` for each block (RFC 9110, section 13.1.2).
//!
//! ```text
//! for each block: kind (1 byte), how many bytes of it are in the object (4 bytes)      then the bytes of those that are told, one after the other
//! ```

use super::BLOCK;

/// Most blocks of one request: what is told of them is at most half of [`MAX_PAYLOAD`](super::target::MAX_PAYLOAD).
pub const MAX_BLOCKS: u32 = 32;
/// Bytes of what stands before the bytes of blocks, for each.
const HEAD: usize = 5;

/// What is told of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockTold<'a> {
    /// It has the checksum that was sent; so many bytes of it are in the object.
    Same(u32),
    /// So many bytes, all zero.
    Zeros(u32),
    /// It is not what whoever asks has: these are its bytes.
    Bytes(&'a [u8]),
}

impl BlockTold<'_> {
    /// How many bytes of the block are in the object.
    #[must_use]
    pub const fn length(&self) -> u32 {
        match self {
            Self::Same(length) | Self::Zeros(length) => *length,
            Self::Bytes(bytes) => bytes.len() as u32,
        }
    }
}

/// As it is sent.
#[must_use]
pub fn encode(blocks: &[BlockTold<'_>]) -> Vec<u8> {
    let bytes: usize = blocks.iter().map(|block| if let BlockTold::Bytes(bytes) = block { bytes.len() } else { 0 }).sum();
    let mut all = Vec::with_capacity(blocks.len() * HEAD + bytes);
    for block in blocks {
        all.push(match block {
            BlockTold::Same(_) => 0,
            BlockTold::Zeros(_) => 1,
            BlockTold::Bytes(_) => 2,
        });
        all.extend(block.length().to_le_bytes());
    }
    for block in blocks {
        if let BlockTold::Bytes(bytes) = block {
            all.extend_from_slice(bytes);
        }
    }
    all
}

/// What is told of so many blocks; `None` if it is not that.
#[must_use]
pub fn decode(all: &[u8], count: u32) -> Option<Vec<BlockTold<'_>>> {
    let (heads, mut bytes) = all.split_at_checked((count as usize).checked_mul(HEAD)?)?;
    let mut blocks = Vec::with_capacity(heads.len() / HEAD);
    for head in heads.chunks_exact(HEAD) {
        let length = u32::from_le_bytes(head[1..].try_into().ok()?);
        if u64::from(length) > BLOCK {
            return None;
        }
        blocks.push(match head[0] {
            0 => BlockTold::Same(length),
            1 => BlockTold::Zeros(length),
            2 => {
                let (of_block, rest) = bytes.split_at_checked(length as usize)?;
                bytes = rest;
                BlockTold::Bytes(of_block)
            }
            _ => return None,
        });
    }
    bytes.is_empty().then_some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_come_as_they_were_told(told in prop::collection::vec((0_u8..3, prop::collection::vec(any::<u8>(), 0..40)), 0..MAX_BLOCKS as usize), cut in any::<usize>()) {
            let blocks: Vec<BlockTold<'_>> = told
                .iter()
                .map(|(kind, bytes)| match kind {
                    0 => BlockTold::Same(bytes.len() as u32),
                    1 => BlockTold::Zeros(bytes.len() as u32),
                    _ => BlockTold::Bytes(bytes),
                })
                .collect();
            let sent = encode(&blocks);
            prop_assert_eq!(decode(&sent, blocks.len() as u32), Some(blocks.clone()));
            prop_assert_eq!(decode(&sent, blocks.len() as u32 + 1), None);
            let shorter = cut % sent.len().max(1);
            prop_assert!(sent.is_empty() || decode(&sent[..shorter], blocks.len() as u32).is_none());
        }

        #[test]
        fn whatever_comes_is_bounded(sent in prop::collection::vec(any::<u8>(), 0..200), count in any::<u32>()) {
            for block in decode(&sent, count).unwrap_or_default() {
                prop_assert!(u64::from(block.length()) <= BLOCK);
            }
        }
    }
}
