//! What somebody does to bytes that are encrypted in pieces (records of a stream, chunks of a file): to the bytes, and to the pieces.
//! Numbers of any size stand for a place or a piece that there is; where there is none, nothing happens.

fn place(at: u32, length: usize) -> usize {
    at as usize % length.max(1)
}

/// Inverts bits of one byte.
pub fn flip(bytes: &mut [u8], at: u32, mask: u8) {
    let at = place(at, bytes.len());
    bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= mask);
}

/// Leaves out the end.
pub fn cut(bytes: &mut Vec<u8>, at: u32) {
    bytes.truncate(place(at, bytes.len() + 1));
}

/// Puts more bytes between those that there are.
pub fn insert(bytes: &mut Vec<u8>, at: u32, more: &[u8]) {
    let at = place(at, bytes.len() + 1);
    bytes.splice(at..at, more.iter().copied());
}

fn which(number: u8, pieces: &[Vec<u8>]) -> Option<usize> {
    usize::from(number).checked_rem(pieces.len())
}

/// Two pieces change places.
pub fn swap(pieces: &mut [Vec<u8>], one: u8, other: u8) {
    if let (Some(one), Some(other)) = (which(one, pieces), which(other, pieces)) {
        pieces.swap(one, other);
    }
}

/// A piece comes twice.
pub fn repeat(pieces: &mut Vec<Vec<u8>>, number: u8) {
    if let Some(piece) = which(number, pieces) {
        pieces.insert(piece, pieces[piece].clone());
    }
}

/// A piece is missing.
pub fn leave_out(pieces: &mut Vec<Vec<u8>>, number: u8) {
    if let Some(piece) = which(number, pieces) {
        pieces.remove(piece);
    }
}

/// A piece becomes another one, which is made for its number.
pub fn replace(pieces: &mut [Vec<u8>], number: u8, other: impl FnOnce(usize, &[u8]) -> Vec<u8>) {
    if let Some(piece) = which(number, pieces) {
        pieces[piece] = other(piece, &pieces[piece]);
    }
}
