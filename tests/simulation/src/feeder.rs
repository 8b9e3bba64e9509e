//! What a daemon gives rank 0's process of standard input: a queue, a pipe, a program that reads it.
//!
//! As the daemon's feed does: pieces are written in order, those of the controller are acknowledged when they are written, what the image
//! had and its process had not read comes first and is not; nothing is written while it is held.

use std::collections::VecDeque;

/// Bytes that the pipe holds.
const PIPE_BYTES: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    bytes: Vec<u8>,
    acknowledged: bool,
}

/// What of an image is about standard input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputImage {
    /// How much the program had read.
    pub read: u64,
    /// What was in the pipe.
    pub unread: Vec<u8>,
}

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feeder {
    queue: VecDeque<Piece>,
    /// Bytes of the first piece that are written.
    written: usize,
    held: bool,
    pipe: Vec<u8>,
    closed: bool,
    /// How much the program has read.
    pub read: u64,
    /// It has read the end.
    pub at_end: bool,
}

/// The byte at this place of the job's input.
pub fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

impl Feeder {
    /// That of a process which comes out of an image. `fed`: more follows; else the end does.
    pub fn of_image(image: InputImage, fed: bool) -> Self {
        let mut feeder = Self { read: image.read, ..Self::default() };
        if !image.unread.is_empty() {
            feeder.queue.push_back(Piece { bytes: image.unread, acknowledged: false });
        }
        if !fed {
            feeder.push(Vec::new());
        }
        feeder
    }

    /// A piece from the controller; empty is the end.
    pub fn push(&mut self, bytes: Vec<u8>) {
        self.queue.push_back(Piece { bytes, acknowledged: true });
    }

    /// Writes what fits. How many pieces are to be acknowledged.
    pub fn write(&mut self) -> usize {
        let mut done = 0;
        while let Some(piece) = self.queue.front().filter(|_| !self.held) {
            self.closed |= piece.bytes.is_empty();
            let fits = (PIPE_BYTES - self.pipe.len()).min(piece.bytes.len() - self.written);
            self.pipe.extend_from_slice(&piece.bytes[self.written..self.written + fits]);
            self.written += fits;
            if self.written < piece.bytes.len() {
                break;
            }
            done += usize::from(piece.acknowledged && !piece.bytes.is_empty());
            self.written = 0;
            self.queue.pop_front();
        }
        done
    }

    /// The program reads some of it. An error if that is not what comes next.
    pub fn read_some(&mut self, most: usize) -> Result<(), String> {
        let length = most.min(self.pipe.len());
        for got in self.pipe.drain(..length).collect::<Vec<u8>>() {
            if got != byte(self.read) {
                return Err(format!("rank 0 reads {got} as byte {} of its input, instead of {}", self.read, byte(self.read)));
            }
            self.read += 1;
        }
        self.at_end |= self.closed && self.pipe.is_empty();
        Ok(())
    }

    /// True if there is something to write or read.
    pub fn has_work(&self) -> bool {
        !self.pipe.is_empty() || self.closed && !self.at_end || !self.held && !self.queue.is_empty()
    }

    /// Writes nothing any more: bytes of earlier processes that are still to come, and those of the piece under way that are written.
    pub fn hold(&mut self) -> (u64, u64) {
        self.held = true;
        let first = self.queue.front().map(|piece| piece.acknowledged);
        let begun = if first == Some(true) { self.written } else { 0 };
        let partly = if first == Some(false) { self.written } else { 0 };
        let again: usize = self.queue.iter().filter(|piece| !piece.acknowledged).map(|piece| piece.bytes.len()).sum();
        ((again - partly) as u64, begun as u64)
    }

    /// Writes again.
    pub fn release(&mut self) {
        self.held = false;
    }

    /// What an image of the process has.
    pub fn image(&self) -> InputImage {
        InputImage { read: self.read, unread: self.pipe.clone() }
    }

    /// What was not written.
    pub fn left(&self) -> Vec<u8> {
        let all: Vec<u8> = self.queue.iter().flat_map(|piece| piece.bytes.iter().copied()).collect();
        all[self.written..].to_vec()
    }
}
