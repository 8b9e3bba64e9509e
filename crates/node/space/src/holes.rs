//! Zeros that take no room, neither on the way to a target nor on its medium.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// True if there are bytes, and all of them are zero.
#[must_use]
pub fn are_zeros(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0) && bytes[1..] == bytes[..bytes.len() - 1]
}

/// Writes bytes to a file; a hole, if all of them are zero.
pub fn put(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    if are_zeros(bytes) { put_zeros(file, bytes, offset) } else { file.write_all_at(bytes, offset) }
}

/// Has a file read as zeros there, and be so long at least. Others write elsewhere in it meanwhile, so it is never cut.
fn put_zeros(file: &File, zeros: &[u8], offset: u64) -> io::Result<()> {
    let (end, length) = (offset + zeros.len() as u64, file.metadata()?.len());
    if length > offset {
        let there = length.min(end) - offset;
        match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, there) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.write_all_at(&zeros[..there as usize], offset)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    if length < end { file.write_all_at(&zeros[..1], end - 1) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn zeros_are_told_from_what_looks_like_them() {
        assert!(are_zeros(&[0]) && are_zeros(&[0; 70_000]));
        assert!(!are_zeros(&[]) && !are_zeros(&[7; 9]) && !are_zeros(&[0, 0, 1]) && !are_zeros(&[1, 0, 0]));
    }

    #[test]
    fn zeros_take_the_place_of_what_was_there_and_no_room() {
        let file = tempfile::tempfile().unwrap();
        let zeros = vec![0; 1 << 20];
        file.write_all_at(&vec![7; 2 << 20], 0).unwrap();
        put_zeros(&file, &zeros, 1 << 19).unwrap();
        // Over its end, and behind it.
        put_zeros(&file, &zeros, 3 << 19).unwrap();
        put_zeros(&file, &zeros, 7 << 20).unwrap();
        let about = file.metadata().unwrap();
        assert_eq!(about.len(), 8 << 20);
        let mut bytes = vec![1; 8 << 20];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..1 << 19].iter().all(|byte| *byte == 7) && are_zeros(&bytes[1 << 19..]));
        // Where the file system keeps holes.
        let sparse = tempfile::tempfile().unwrap();
        sparse.set_len(1 << 20).unwrap();
        if sparse.metadata().unwrap().blocks() == 0 {
            assert!(about.blocks() * 512 < 1 << 20, "{}", about.blocks());
        }
    }
}
