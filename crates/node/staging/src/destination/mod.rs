//! Where files of a data space are sent: a directory, on whatever kind of service that can be written to.
//!
//! ```text
//! file://                  Directory  this machine's file systems
//! s3, sftp, webdav, ftp    Server     OpenDAL; a PUT of our own for WebDAV, which OpenDAL has whole in memory
//!
//! begun ── bytes ──► under another name, where the service renames ── read back ──► published
//!                └─► under no name until all of it is there (s3, ftp) ────────────► read back
//! ```
//! A file is seen under its name only when it is whole. What is there already is replaced only if it may be: a directory and S3 see to that when the name is given, of others it is asked
//! just before. Faults assumed: this process is killed at any moment; a server is slow, silent, gone, full, refuses, or keeps other bytes than it
//! was sent, which is for the caller to find: it reads back what arrived.

mod local;
mod server;
mod summing;

use crate::origin::credentials::Credentials;
use bytes::Bytes;
use mend_data::offload::check_destination;
use mend_data::plan::Fault;
use mend_data::record::Version;
use mend_data::sums::Sum;
use mend_data::uri::decoded;
use std::time::Duration;
pub use summing::Summing;

/// A place for files.
pub enum Destination {
    /// A directory of this machine.
    Local(local::Directory),
    /// On a server.
    Server(Box<server::Server>),
}

/// A file on its way.
pub enum Upload {
    /// Into a directory of this machine.
    Local(local::Writing),
    /// To a server.
    Server(server::Sending),
}

/// What a file gets, besides its bytes.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// How many bytes come.
    pub size: u64,
    /// Its permissions, where there are such.
    pub mode: u32,
    /// It takes the place of what has its name.
    pub replaces: bool,
}

/// What came of giving a file its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// It has it.
    Done,
    /// Something else has it, which must not be replaced.
    Taken,
}

impl Destination {
    /// Opens one. Nothing is written yet.
    ///
    /// # Errors
    /// If no file can be written to such an address, or its credentials are not there.
    pub fn open(uri: &str, endpoint: Option<&str>, credentials: Option<&str>, silence: Duration) -> Result<Self, Fault> {
        let address = check_destination(uri).map_err(Fault::Final)?;
        if address.scheme == "file" {
            return Ok(Self::Local(local::Directory::new(decoded(address.path))));
        }
        let credentials = Credentials::read(credentials)?;
        server::Server::open(uri, &address, endpoint, &credentials, silence).map(Box::new).map(Self::Server)
    }

    /// Makes the directory, if the one that it is in is there.
    pub fn prepare(&self) -> Result<(), Fault> {
        match self {
            Self::Local(directory) => directory.prepare(),
            // Servers make directories with the first file, or have none.
            Self::Server(_) => Ok(()),
        }
    }

    /// Why no file can have this path there.
    pub fn refuses(&self, path: &str) -> Option<&'static str> {
        match self {
            Self::Local(_) => None,
            Self::Server(_) if path.chars().any(char::is_control) => Some("its name has a control character, which no address can have"),
            Self::Server(_) if path.trim() != path => Some("its path begins or ends with a blank, which is lost on the way to a server"),
            Self::Server(_) => None,
        }
    }

    /// The name that a file has there until it is whole; `None` if the service shows it only then.
    pub fn part(&self, path: &str, unique: &str) -> Option<String> {
        let renames = match self {
            Self::Local(_) => true,
            Self::Server(server) => server.renames(),
        };
        let name = format!(".{unique}.mend-part");
        renames.then(|| path.rsplit_once('/').map_or(name.clone(), |(directory, _)| format!("{directory}/{name}")))
    }

    /// What it has under a path; `None` if nothing.
    pub async fn version(&self, path: &str) -> Result<Option<Version>, Fault> {
        match self {
            Self::Local(directory) => tokio::task::block_in_place(|| directory.version(path)),
            Self::Server(server) => server.version(path).await,
        }
    }

    /// Begins to write a file.
    pub async fn begin(&self, name: &str, about: About) -> Result<Upload, Fault> {
        match self {
            Self::Local(directory) => tokio::task::block_in_place(|| directory.begin(name)).map(Upload::Local),
            Self::Server(server) => server.begin(name, about).await.map(Upload::Server),
        }
    }

    /// The checksums of what it has, read anew.
    pub async fn sums(&self, name: &str, size: u64) -> Result<Vec<Sum>, Fault> {
        match self {
            Self::Local(directory) => tokio::task::block_in_place(|| directory.sums(name, size)),
            Self::Server(server) => server.sums(name, size).await,
        }
    }

    /// Gives a file its own name, durably.
    pub async fn publish(&self, part: &str, path: &str, about: About) -> Result<Named, Fault> {
        match self {
            Self::Local(directory) => tokio::task::block_in_place(|| directory.publish(part, path, about)),
            Self::Server(server) => server.publish(part, path, about.replaces).await,
        }
    }

    /// Removes what was begun. That it is not there is no error.
    pub async fn remove(&self, part: &str) -> Result<(), Fault> {
        match self {
            Self::Local(directory) => tokio::task::block_in_place(|| directory.remove(part)),
            Self::Server(server) => server.remove(part).await,
        }
    }
}

impl Upload {
    /// The next bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Fault> {
        match self {
            Self::Local(writing) => tokio::task::block_in_place(|| writing.write(&bytes)),
            Self::Server(sending) => sending.write(bytes).await,
        }
    }

    /// All bytes were given: it is there, and durable as far as the service says so.
    pub async fn finish(self) -> Result<Named, Fault> {
        match self {
            Self::Local(writing) => tokio::task::block_in_place(|| writing.finish()).map(|()| Named::Done),
            Self::Server(sending) => sending.finish().await,
        }
    }

    /// It will not be.
    pub async fn abandon(self) {
        match self {
            Self::Local(_) => {}
            Self::Server(sending) => sending.abandon().await,
        }
    }
}
