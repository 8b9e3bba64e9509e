//! The hash by which a mapped file is known again ([`mend_image::record::Object`]): of its beginning and its end.

use mend_image::record::object;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::Xxh3;

/// A file as its beginning and end show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// xxh3-64 of the first and the last [`object::SAMPLE`] bytes.
    pub hash: u64,
    /// It begins as an ELF file does.
    pub elf: bool,
}

impl Sample {
    /// Of a file of so many bytes.
    ///
    /// # Errors
    /// It cannot be read, or is shorter.
    pub fn of(file: &File, size: u64) -> io::Result<Self> {
        let mut hash = Xxh3::new();
        let mut piece = vec![0; object::SAMPLE.min(size) as usize];
        file.read_exact_at(&mut piece, 0)?;
        hash.update(&piece);
        let elf = piece.starts_with(b"\x7fELF");
        let tail = size - piece.len() as u64;
        file.read_exact_at(&mut piece, tail)?;
        hash.update(&piece);
        Ok(Self { hash: hash.digest(), elf })
    }
}
