//! Whether bytes can be put behind the end of an object. Whoever asks holds its lock, so nobody else puts any there before they are written.

use super::Opened;
use std::io;
use std::os::unix::fs::FileExt;

impl Opened {
    /// True if it ends there, or has these bytes there: who asks again did not hear the answer.
    pub(super) fn is_free_for(&self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        if self.length <= offset {
            return Ok(true);
        }
        let mut there = vec![0; self.length.saturating_sub(offset).min(bytes.len() as u64) as usize];
        self.bytes.read_exact_at(&mut there, offset)?;
        Ok(there == bytes)
    }
}
