//! A rank that holds noise or text and rewrites a part of it: the program that `mend bench` moves.

use super::{Content, bytes, dirty};
use crate::failure::Failure;
use clap::Args;
use std::io::Write;
use std::time::Duration;

/// Pause between two pieces that are rewritten.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSES_PER_SECOND: u64 = 100;
/// What each rank says when it holds all.
pub(super) const READY: &str = "ready";

/// `mend bench rank`.
#[derive(Debug, Args)]
pub struct BenchRank {
    /// What it holds
    #[arg(long, value_parser = bytes)]
    bytes: u64,
    /// What it rewrites, bytes per second
    #[arg(long, value_parser = dirty, default_value = "0")]
    dirty: u64,
    /// Of what
    #[arg(long, default_value = "noise")]
    content: Content,
}

impl BenchRank {
    /// Until it is killed.
    ///
    /// # Errors
    /// If there is not so much memory, or nobody hears that it is ready.
    pub fn run(self) -> Result<i32, Failure> {
        let words = usize::try_from(self.bytes / 8).unwrap_or(usize::MAX);
        let mut table: Vec<u64> = Vec::new();
        table.try_reserve_exact(words).map_err(|error| Failure::new(format!("no memory for {} bytes: {error}", self.bytes), "", 1))?;
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id()));
        let mut next = || match self.content {
            Content::Noise => noise.next(),
            Content::Text => noise.digits(),
        };
        table.extend((0..words).map(|_| next()));
        let mut out = std::io::stdout();
        writeln!(out, "{READY}").and_then(|()| out.flush()).map_err(|error| Failure::new(error.to_string(), "", 1))?;
        let (piece, mut at) = ((self.dirty / PAUSES_PER_SECOND / 8) as usize, 0);
        loop {
            std::thread::sleep(PAUSE);
            for _ in 0..piece.min(words) {
                table[at] = next();
                at = (at + 1) % words;
            }
        }
    }
}

/// Bytes without a pattern: xorshift64.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from 0 to 1 with four digits, as programs write them to files: "0.1234, ".
    fn digits(&mut self) -> u64 {
        let drawn = self.next();
        let digit = |place: u32| b'0' + (drawn >> (16 * place)) as u8 % 10;
        u64::from_le_bytes([b'0', b'.', digit(0), digit(1), digit(2), digit(3), b',', b' '])
    }
}
