//! Checksums of a file's blocks, of bytes in any pieces.

use mend_data::sums::Sum;

/// Checksums of bytes that come in pieces.
#[derive(Default)]
pub struct Summing {
    block: Vec<u8>,
    sums: Vec<Sum>,
    length: u64,
}

impl Summing {
    pub fn take(&mut self, mut bytes: &[u8]) {
        const BLOCK: usize = mend_data::sums::BLOCK as usize;
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.block.is_empty() && bytes.len() >= BLOCK {
                self.sums.push(Sum::of(&bytes[..BLOCK]));
                bytes = &bytes[BLOCK..];
                continue;
            }
            let taken = bytes.len().min(BLOCK - self.block.len());
            self.block.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.block.len() == BLOCK {
                self.sums.push(Sum::of(&self.block));
                self.block.clear();
            }
        }
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn end(mut self) -> Vec<Sum> {
        if !self.block.is_empty() {
            self.sums.push(Sum::of(&self.block));
        }
        self.sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_length_have_the_same_sums() {
        let bytes: Vec<u8> = (0..5 << 19).map(|at: u32| ((at * 7) >> 3) as u8).collect();
        let summed = |length: usize| {
            let mut summing = Summing::default();
            bytes.chunks(length).for_each(|piece| summing.take(piece));
            assert_eq!(summing.length(), bytes.len() as u64);
            summing.end()
        };
        let whole: Vec<Sum> = bytes.chunks(1 << 20).map(Sum::of).collect();
        for length in [1000, 1 << 16, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, bytes.len()] {
            assert_eq!(summed(length), whole, "{length}");
        }
        assert_eq!(Summing::default().end(), []);
    }
}
