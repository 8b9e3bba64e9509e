//! Lines of a file in `/proc`, read without allocating.

use crate::memory::maps::SMAPS_READ_BYTES;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// A file that is read line by line.
pub(crate) struct Lines<'a> {
    file: BorrowedFd<'a>,
    /// Longer than any line: a path has at most 4096 bytes, each at most fourfold.
    buffer: [u8; 20 << 10],
    filled: usize,
    at: usize,
}

impl<'a> Lines<'a> {
    pub fn of(file: BorrowedFd<'a>) -> Self {
        Self { file, buffer: [0; 20 << 10], filled: 0, at: 0 }
    }

    pub fn next(&mut self) -> Result<Option<&[u8]>, Errno> {
        loop {
            if let Some(length) = self.buffer[self.at..self.filled].iter().position(|byte| *byte == b'\n') {
                let line = self.at..self.at + length;
                self.at = line.end + 1;
                return Ok(Some(&self.buffer[line]));
            }
            self.buffer.copy_within(self.at..self.filled, 0);
            (self.filled, self.at) = (self.filled - self.at, 0);
            let free = &mut self.buffer[self.filled..];
            let piece = free.len().min(SMAPS_READ_BYTES);
            match rustix::io::read(self.file, &mut free[..piece]) {
                Ok(0) if self.filled == 0 => return Ok(None),
                Ok(0) => return Err(Errno::IO),
                Ok(count) => self.filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
