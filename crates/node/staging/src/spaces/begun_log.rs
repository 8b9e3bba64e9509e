//! What was fetched of a file that is being staged into a space: `$MEND_HOME/spaces/NAME.begun/`, two files for each destination, named by its hash.
//!
//! ```text
//! HASH.json    the space, and the file as it will be
//! HASH.log     from where, and which pieces of 1 MiB the targets have (`mend_data::resume`); locked by who fetches
//! ```
//! A claim is the checksum of the piece's checksums of 64 KiB. Whoever goes on has the targets read what they have, and compares. Faults assumed: killed at any step; the space is another one
//! now; targets were lost, or have let go of it.

use super::ledger_file::below;
use crate::failure::Failure;
use crate::partial::{BeginError, locked, rewrite};
use mend_data::resume::{self, Begun, Claim};
use mend_data::space::{Entry, Id, Space};
use mend_data::sums::Sum;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// The log of one file.
pub struct BegunLog {
    space: Id,
    described: PathBuf,
    path: PathBuf,
    log: Mutex<File>,
}

/// What an earlier command left.
pub struct Before {
    pub entry: Entry,
    pub begun: Begun,
    pub claims: Vec<Claim>,
}

impl BegunLog {
    /// Opens it, for this process alone; and what there is of an earlier command.
    ///
    /// # Errors
    /// If another process has it, or the system's error, as users are told.
    pub fn open(space: &Space, path: &str) -> Result<(Self, Option<Before>), Failure> {
        let shown = format!("{}:{path}", space.name);
        let directory = below(&space.name, "begun")?;
        let place = |end: &str| directory.join(format!("{:016x}.{end}", xxh3_64(path.as_bytes())));
        let opened = || -> Result<(Self, Option<Before>), BeginError> {
            fs::create_dir_all(&directory)?;
            let mut log = locked(&place("log"))?;
            let mut bytes = Vec::new();
            log.read_to_end(&mut bytes)?;
            let described = fs::read(place("json")).ok().and_then(|text| serde_json::from_slice::<(Id, Entry)>(&text).ok());
            let entry = described.filter(|(of, entry)| *of == space.id && entry.path == path && entry.is_sound(space.targets.len()));
            let before = entry.zip(resume::read(&bytes)).map(|((_, entry), (begun, claims, good))| (Before { entry, begun, claims }, good));
            if let Some((_, good)) = &before {
                log.set_len(*good as u64)?;
                log.seek(SeekFrom::End(0))?;
            }
            let begun = Self { space: space.id, described: place("json"), path: place("log"), log: Mutex::new(log) };
            Ok((begun, before.map(|(before, _)| before)))
        };
        opened().map_err(|error| error.told(&shown))
    }

    /// Begins anew.
    pub fn begin(&self, entry: &Entry, begun: &Begun) -> io::Result<()> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.set_len(0)?;
        log.rewind()?;
        self.describe(entry)?;
        log.write_all(&begun.head())
    }

    /// Goes on with what an earlier command left, and names sources that have joined.
    pub fn go_on(&self, entry: &Entry, begun: &Begun, before: &Begun, claims: &[Claim]) -> io::Result<()> {
        if let Some(anew) = begun.joined(before, claims) {
            rewrite(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner), &anew)?;
        }
        self.describe(entry)
    }

    /// Writes down what the file will be.
    fn describe(&self, entry: &Entry) -> io::Result<()> {
        mend_durable::write(&self.described, &serde_json::to_vec(&(self.space, entry))?)
    }

    /// The targets have this piece.
    pub fn claim(&self, piece: u64, sum: Sum) -> io::Result<()> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).write_all(&resume::entry(piece, sum))
    }

    /// The file is there, or will not be.
    pub fn end(self) -> io::Result<()> {
        fs::remove_file(&self.path)?;
        fs::remove_file(&self.described)
    }
}
