//! `mend data get`, `mount`, `unmount`.

use super::{named, opened};
use crate::failure::{FAILED, Failure};
use crate::names::{PART, path_of};
use mend_data::request::PathBytes;
use mend_data::space::catalogue::Node;
use mend_data::space::is_name;
use mend_space::are_zeros;
use mend_space::client::{Pattern, Reader, Refused, Repairer, Writer};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount as kernel_unmount};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The program that serves a mount.
const PROGRAM: &str = "mend-space";
/// Memory for blocks on their way, bytes.
const CACHE: u64 = 64 << 20;
/// Bytes that are copied at once.
const PIECE: u32 = 1 << 20;

/// Copies a file out of a space. It appears when it is whole.
pub fn get(place: &str, to: PathBytes) -> Result<i32, Failure> {
    let (name, path) = named(place)?;
    let client = opened(name)?;
    let found = match client.names().look(path) {
        Some(Node::File(entry)) => Some(Arc::new(entry.clone())),
        _ => None,
    };
    let Some(entry) = found else {
        return Err(Failure::new(format!("{place} is no file that is there"), "`mend data ls NAME:` lists what is", FAILED));
    };
    let written = entry.written().map(|_| Writer::new(client.clone(), None));
    let size = match &written {
        Some(writer) => writer.shape(&entry)?.0,
        None => entry.file().map_or(0, |file| file.size),
    };
    let reader = Reader::new(client, CACHE, Repairer::find()).map_err(|error| Failure::system(PROGRAM, &error))?;
    let copy = |put: &mut dyn FnMut(&[u8]) -> io::Result<()>, shown: &str| -> Result<(), Failure> {
        let (pattern, mut at) = (Pattern::default(), 0);
        while at < size {
            let bytes = match &written {
                Some(writer) => {
                    let content = writer.read(&entry.id, at, PIECE).map_err(|refused| match refused {
                        Refused::Fault(fault) => fault.into(),
                        refused => Failure::new(format!("{place}: {refused}"), "", FAILED),
                    })?;
                    content.bytes
                }
                None => reader.read(&entry, at, PIECE, &pattern)?.bytes,
            };
            if bytes.is_empty() {
                // It was cut meanwhile.
                break;
            }
            put(&bytes).map_err(|error| Failure::system(shown, &error))?;
            at += bytes.len() as u64;
        }
        Ok(())
    };
    if to == b"-" {
        let mut out = io::stdout().lock();
        copy(&mut |bytes| out.write_all(bytes), "standard output")?;
        out.flush().map_err(|error| Failure::system("standard output", &error))?;
        return Ok(0);
    }
    let mut to = path_of(to);
    if to.is_dir() {
        to.push(path.rsplit('/').next().unwrap_or(path));
    }
    let shown = to.display().to_string();
    // A link's target is what is replaced, as by cp.
    to = fs::canonicalize(&to).unwrap_or(to);
    if fs::metadata(&to).is_ok_and(|found| !found.is_file()) {
        // A device or a pipe takes bytes, and stays what it is.
        let mut file = OpenOptions::new().write(true).open(&to).map_err(|error| Failure::system(&shown, &error))?;
        return copy(&mut |bytes| file.write_all(bytes), &shown).map(|()| 0);
    }
    let partial = partial_of(&to);
    let file = File::create_new(&partial).map_err(|error| Failure::system(partial.display(), &error))?;
    let mut length = 0;
    // Zeros stay holes.
    let put = &mut |bytes: &[u8]| -> io::Result<()> {
        let at = length;
        length += bytes.len() as u64;
        if are_zeros(bytes) { Ok(()) } else { file.write_all_at(bytes, at) }
    };
    let copied = copy(put, &shown).and_then(|()| {
        let published = file.set_len(length).and_then(|()| file.sync_all()).and_then(|()| mend_durable::rename(&partial, &to));
        published.map_err(|error| Failure::system(&shown, &error))
    });
    if copied.is_err() {
        let _ = fs::remove_file(&partial);
    }
    copied.map(|()| 0)
}

/// The name that a file has until it is whole: nobody else's, and short enough for any file system.
fn partial_of(to: &Path) -> PathBuf {
    to.with_file_name(format!(".{}.{PART}", mend_wire::secret::to_hex(&mend_wire::random_bytes::<16>())))
}

/// Mounts a space, by a process that goes on.
pub fn mount(name: &str, directory: PathBytes) -> Result<i32, Failure> {
    let name = name.trim_end_matches(':');
    if !is_name(name) {
        return Err(Failure::bad_value(format!("{name:?} is no name of a data space"), "`mend data ls` lists those that are known here"));
    }
    let directory = path_of(directory);
    let unusable = |error: io::Error| Failure::system(directory.display(), &error);
    let directory = fs::canonicalize(&directory).map_err(unusable)?;
    if fs::read_dir(&directory).map_err(unusable)?.next().is_some() {
        return Err(Failure::bad_value(
            format!("{} is not empty", directory.display()),
            "name an empty directory: what is in it would be hidden",
        ));
    }
    let program = mend_settings::find_part(PROGRAM).ok_or_else(|| {
        Failure::new(
            format!("there is no {PROGRAM} beside mend"),
            "`make install` installs it; MEND_LIBDIR names another directory",
            FAILED,
        )
    })?;
    let failed = |error: io::Error| Failure::new(format!("{PROGRAM} cannot be started: {error}"), "", FAILED);
    // In a group of its own: a terminal's Ctrl-C is not for it.
    let mut server = Command::new(program)
        .args(["mount", name])
        .arg(&directory)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = server.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
    }
    match line.trim_end().split_once(' ') {
        None if line.trim_end() == "ready" => Ok(0),
        Some(("refused", why)) => {
            let (why, hint) = why.split_once('\t').unwrap_or((why, ""));
            Err(Failure::new(why, hint, FAILED))
        }
        _ => Err(Failure::new(format!("{PROGRAM} ended without saying why"), "", FAILED)),
    }
}

/// Takes a mount down.
pub fn unmount(directory: PathBytes) -> Result<i32, Failure> {
    let directory = path_of(directory);
    let shown = directory.display();
    if is_mount_of_others(&directory) {
        let hint = format!("`umount {shown}` takes it down");
        return Err(Failure::new(format!("{shown} is no mount of a data space"), hint, FAILED));
    }
    match kernel_unmount(&directory, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(0),
        Err(Errno::PERM) => by_helper(&directory),
        Err(Errno::BUSY) => Err(Failure::new(format!("{shown} is in use"), "end the programs that have files open there", FAILED)),
        Err(Errno::INVAL | Errno::NOENT) => Err(Failure::new(format!("nothing is mounted at {shown}"), "", FAILED)),
        Err(errno) => Err(Failure::system(shown, &errno.into())),
    }
}

/// Whether what is mounted at a directory, if anything is, is none of ours (proc_pid_mountinfo(5)).
fn is_mount_of_others(directory: &Path) -> bool {
    // The directory itself may not answer.
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let real = match (absolute.parent().map(fs::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => absolute,
    };
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let ours = mounts.split(|byte| *byte == b'\n').rev().find_map(|line| of_mount(line, &real));
    ours == Some(false)
}

/// Whether a line of that file is of a data space, if it is of this directory.
fn of_mount(line: &[u8], directory: &Path) -> Option<bool> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    if unescaped(words.get(4)?) != directory.as_os_str().as_encoded_bytes() {
        return None;
    }
    let end = words.iter().position(|word| *word == b"-")?;
    let (kind, source) = (words.get(end + 1)?, words.get(end + 2)?);
    Some(kind.starts_with(b"fuse") && source.starts_with(b"mend-"))
}

/// Blanks, tabs, line feeds and backslashes are octal numbers there.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), word);
    while let Some((first, more)) = rest.split_first() {
        let number = more.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => (bytes.push(byte), rest = &more[3..]),
            None => (bytes.push(*first), rest = more),
        };
    }
    bytes
}

/// By the program that mounted it for who is not root.
fn by_helper(directory: &Path) -> Result<i32, Failure> {
    let done = Command::new("fusermount3").args(["-u", "--"]).arg(directory).status();
    match done {
        Ok(status) if status.success() => Ok(0),
        Ok(_) => Err(Failure::new(format!("{} cannot be unmounted", directory.display()), "", FAILED)),
        Err(error) => Err(Failure::new(format!("fusermount3 cannot be started: {error}"), "install fuse3", FAILED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_others_are_told_from_ours() {
        let line = |place: &str, kind: &str, source: &str| format!("36 35 98:0 / {place} rw,noatime shared:1 - {kind} {source} rw");
        let of = |line: &str, directory: &str| of_mount(line.as_bytes(), Path::new(directory));
        assert_eq!(of(&line("/mnt/a\\040b", "fuse.mend", "mend-input"), "/mnt/a b"), Some(true));
        assert_eq!(of(&line("/mnt/a", "fuse", "mend-input"), "/mnt/a"), Some(true));
        assert_eq!(of(&line("/mnt/a", "fuse.sshfs", "host:"), "/mnt/a"), Some(false));
        assert_eq!(of(&line("/mnt/a", "tmpfs", "mend-input"), "/mnt/a"), Some(false));
        assert_eq!(of(&line("/mnt/a", "tmpfs", "none"), "/mnt/b"), None);
        assert_eq!(of("", "/mnt/a"), None);
    }
}
