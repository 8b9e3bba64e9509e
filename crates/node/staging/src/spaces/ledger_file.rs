//! Where it stands what was sent from a space: `$MEND_HOME/spaces/NAME.sent/`, a file for each place that files were sent to.
//!
//! Who has the turn to send appends to it; each line is durable before what follows from it is done. Faults assumed: a sender is killed while it writes a line, and the next one
//! begins a line of its own.

use crate::failure::{FAILED, Failure};
use mend_data::offload::ledger::{Head, Ledger, Line};
use mend_data::space::Id;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// A ledger to which lines are added.
pub struct LedgerFile {
    file: File,
    path: PathBuf,
    /// What it says.
    pub ledger: Ledger,
}

/// A directory beside the space's description.
pub fn below(space: &str, end: &str) -> Result<PathBuf, Failure> {
    let home = mend_settings::home().map_err(|error| Failure::bad_value(error.to_string(), "see `mend settings`"))?;
    Ok(home.join("spaces").join(format!("{space}.{end}")))
}

fn directory(space: &str) -> Result<PathBuf, Failure> {
    below(space, "sent")
}

fn place(space: &str, head: &Head) -> Result<PathBuf, Failure> {
    let of = format!("{}\n{}", head.uri, head.endpoint.as_deref().unwrap_or_default());
    Ok(directory(space)?.join(format!("{:016x}", xxh3_64(of.as_bytes()))))
}

fn text(path: &PathBuf) -> io::Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What was sent from this space to a place, as it stands now.
pub fn read(space: &str, head: &Head) -> Result<Ledger, Failure> {
    let path = place(space, head)?;
    let text = text(&path).map_err(|error| Failure::system(path.display(), &error))?;
    Ok(text.and_then(|text| Ledger::read(&text, head)).unwrap_or_default())
}

/// All that was sent from a space, wherever to. What cannot be read says nothing.
pub fn all(space: &str, id: &Id) -> Vec<Ledger> {
    let listed = directory(space).ok().and_then(|directory| fs::read_dir(directory).ok());
    let texts = listed.into_iter().flatten().filter_map(|found| text(&found.ok()?.path()).ok()?);
    texts.filter_map(|text| Ledger::of_space(&text, id)).collect()
}

/// Nothing of a space that is no more has to be known.
pub fn forget(space: &str) -> Result<(), Failure> {
    for directory in [directory(space)?, below(space, "begun")?] {
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Failure::system(directory.display(), &error)),
            _ => {}
        }
    }
    Ok(())
}

impl LedgerFile {
    /// Opens one, for who has the turn to send. One of an earlier space of this name is replaced.
    pub fn open(space: &str, head: &Head) -> Result<Self, Failure> {
        Self::open_at(place(space, head)?, head)
    }

    fn open_at(path: PathBuf, head: &Head) -> Result<Self, Failure> {
        let opened = || -> io::Result<(File, Ledger)> {
            let found = text(&path)?;
            let known = found.and_then(|text| Ledger::read(&text, head));
            let anew = known.as_ref().map_or_else(|| Some(Line::Head(head.clone()).encode()), |ledger| ledger.compacted(head));
            if let Some(anew) = anew {
                if let Some(directory) = path.parent() {
                    fs::create_dir_all(directory)?;
                    mend_durable::sync_name(directory)?;
                }
                mend_durable::write(&path, anew.as_bytes())?;
            }
            let mut file = OpenOptions::new().read(true).append(true).mode(0o600).open(&path)?;
            let mut last = [b'\n'];
            if file.seek(SeekFrom::End(0))? > 0 {
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
            }
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
            Ok((file, known.unwrap_or_default()))
        };
        match opened() {
            Ok((file, ledger)) => Ok(Self { file, path, ledger }),
            Err(error) => Err(Self::failure(&path, &error)),
        }
    }

    fn failure(path: &std::path::Path, error: &io::Error) -> Failure {
        Failure::new(
            format!("what was sent cannot be noted in {}: {error}", path.display()),
            "make room there, or name another directory with MEND_HOME, which has the space's description as well",
            FAILED,
        )
    }

    /// Adds a line; it is durable when this returns.
    pub fn note(&mut self, line: Line) -> Result<(), Failure> {
        let written = self.file.write_all(line.encode().as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // What is there of it must not spoil the next one.
            let _ = self.file.write_all(b"\n");
            return Err(Self::failure(&self.path, &error));
        }
        self.ledger.learn(line);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_a_killed_sender_left_are_ended_and_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let head = Head { space: [1; 16], uri: "file:///a".into(), endpoint: None };
        let begun = |path: &str| Line::Begun { path: path.into(), part: String::new() };
        let torn = begun("torn").encode();
        fs::write(&path, format!("{}{}{}", Line::Head(head.clone()).encode(), begun("first").encode(), &torn[..torn.len() / 2])).unwrap();
        let opened = || LedgerFile::open_at(path.clone(), &head).unwrap();
        let mut ledger = opened();
        assert!(ledger.ledger.is_ours("first") && !ledger.ledger.is_ours("torn"));
        ledger.note(begun("last")).unwrap();
        assert!(opened().ledger.is_ours("first") && opened().ledger.is_ours("last"));
        let other = Head { space: [2; 16], ..head.clone() };
        assert!(!LedgerFile::open_at(path.clone(), &other).unwrap().ledger.is_ours("first"));
        assert!(!opened().ledger.is_ours("first"));
    }
}
