//! The code that the kernel maps into every process (vdso(7)).

use std::fs::{File, read_to_string};
use std::io;
use std::os::unix::fs::FileExt;

/// Longest that it may be, bytes: some pages.
const MAX_BYTES: u64 = 1 << 20;

/// Its bytes; `None` if this process has none.
///
/// # Errors
/// The address space cannot be read.
pub fn bytes() -> io::Result<Option<Vec<u8>>> {
    let maps = read_to_string("/proc/self/maps")?;
    let Some((start, end)) = maps.lines().find(|line| line.ends_with("[vdso]")).and_then(range) else { return Ok(None) };
    let mut bytes = vec![0; end.saturating_sub(start).min(MAX_BYTES) as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, start)?;
    Ok(Some(bytes))
}

/// Its hash and its length, as images have them (`mend_image::Header`); `None` if this process has none, or may not read it.
#[must_use]
pub fn identity() -> Option<(u64, u64)> {
    bytes().ok()?.map(|bytes| (xxhash_rust::xxh3::xxh3_64(&bytes), bytes.len() as u64))
}

fn range(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_an_elf_image_and_the_same_each_time() {
        let first = super::bytes().unwrap();
        assert!(first.as_ref().is_none_or(|bytes| bytes.starts_with(b"\x7fELF")));
        assert_eq!(super::bytes().unwrap(), first);
        assert_eq!(super::range("7ffd000-7ffe000 r-xp 00000000 00:00 0 [vdso]"), Some((0x7ffd000, 0x7ffe000)));
        assert_eq!(super::range("x"), None);
    }
}
