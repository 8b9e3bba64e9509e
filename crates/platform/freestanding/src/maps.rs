//! A line of `/proc/PID/maps`. Source: proc_pid_maps(5).

/// What a line says of one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The first address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
    /// `PROT_READ` (1), `PROT_WRITE` (2), `PROT_EXEC` (4).
    pub protection: u32,
    /// Whether what is written is seen by others that map the same (`MAP_SHARED`).
    pub shared: bool,
    /// Where in the file it begins, bytes.
    pub offset: u64,
    /// The file's device: major and minor number. (0, 0) without a file.
    pub device: (u64, u64),
    /// The file's inode, 0 without a file.
    pub inode: u64,
    /// Path or bracketed name as the kernel writes it: with `\012` for a newline, and with ` (deleted)` where that is so.
    pub name: &'a [u8],
}

impl<'a> Line<'a> {
    /// Reads "start-end permissions offset major:minor inode   name". `None`: it has another form.
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            rest = without_blanks(rest);
            let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            word
        };
        let (range, permissions, offset, device, inode) = (word(), word(), word(), word(), word());
        let (start, end) = pair(range, b'-')?;
        let bit = |letter: u8, bit: u32| if permissions.contains(&letter) { bit } else { 0 };
        Some(Self {
            start,
            end,
            protection: bit(b'r', 1) | bit(b'w', 2) | bit(b'x', 4),
            shared: permissions.last() == Some(&b's'),
            offset: hexadecimal(offset)?,
            device: pair(device, b':')?,
            inode: core::str::from_utf8(inode).ok()?.parse().ok()?,
            name: without_blanks(rest),
        })
    }

    /// The device as stat(2) numbers it.
    #[must_use]
    pub fn device_number(&self) -> u64 {
        let (major, minor) = self.device;
        minor & 0xff | major << 8 | (minor & !0xff) << 12
    }
}

fn without_blanks(text: &[u8]) -> &[u8] {
    &text[text.iter().position(|byte| *byte != b' ').unwrap_or(text.len())..]
}

fn pair(text: &[u8], between: u8) -> Option<(u64, u64)> {
    let at = text.iter().position(|byte| *byte == between)?;
    Some((hexadecimal(&text[..at])?, hexadecimal(&text[at + 1..])?))
}

fn hexadecimal(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_kinds() {
        let line = Line::parse(b"7f0a1000-7f0a3000 r-xp 00002000 fd:101 1234       /opt/with space/libc.so.6 (deleted)").unwrap();
        assert_eq!((line.start, line.end, line.protection, line.shared), (0x7f0a_1000, 0x7f0a_3000, 5, false));
        assert_eq!((line.offset, line.device, line.inode), (0x2000, (0xfd, 0x101), 1234));
        assert_eq!((line.device_number(), line.name), (0x10_fd01, &b"/opt/with space/libc.so.6 (deleted)"[..]));
        let line = Line::parse(b"7ffc0000-7ffd0000 rw-s 00000000 00:00 0 ").unwrap();
        assert_eq!((line.protection, line.shared, line.name), (3, true, &b""[..]));
        assert_eq!(Line::parse(b"7ffd1000-7ffd3000 r-xp 00000000 00:00 0       [vdso]").unwrap().name, b"[vdso]");
        for other in
            [&b"nonsense"[..], b"", b"1000-2000 r-xp", b"1000 r-xp 0 00:00 0", b"1000-2000 r-xp 0 0000 0", b"1000-2000 r-xp 0 00:00 x"]
        {
            assert_eq!(Line::parse(other), None);
        }
    }
}
