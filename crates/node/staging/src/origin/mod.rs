//! Where a file permanently lives: one source, whatever kind it is of.
//!
//! ```text
//! file://            Local    this machine's file systems
//! http(s), s3, …     Remote   OpenDAL, over a transport that checks what HTTP servers answer
//! NAME://            Plugin   a program mend-source-NAME
//! ```
//! Every kind says its version, gives ranges and (most) list what is below a directory. A fault says whether it may pass. Faults assumed: a source that
//! is slow, silent, gone, that changes, or sends other bytes than it was asked for; the last is for the caller to find, by checksums.

pub mod credentials;
mod http;
mod local;
pub use local::holes;
mod plugin;
pub mod remote;

use self::http::Seen;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use mend_data::plan::Fault;
use mend_data::ranges::Range;
use mend_data::record::{Source, Version};
use mend_data::uri::Address;
use std::sync::Arc;
use std::time::Duration;

/// One source, opened.
pub enum Origin {
    /// A file of this machine.
    Local(local::Local),
    /// On a server.
    Remote(Box<remote::Remote>),
    /// Through a program.
    Plugin(plugin::Plugin),
}

/// Bytes on their way.
pub enum Body {
    /// Of a file of this machine.
    Local(local::Reading),
    /// From a server, with what counts all that comes from there.
    Remote(BoxStream<'static, Result<Bytes, Fault>>, Arc<Seen>),
    /// From a program.
    Plugin(Box<plugin::Reading>),
}

/// A program watches its own silence, and kills it.
pub async fn within<T>(silence: Duration, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let silent = |_| Fault::Passing(format!("it sent nothing for {} ms", silence.as_millis()));
    tokio::time::timeout(silence, answer).await.map_err(silent)?
}

/// The same of a server that may send much before what was asked for.
async fn while_alive<T>(silence: Duration, seen: &Seen, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let mut answer = std::pin::pin!(answer);
    loop {
        let before = seen.skipped();
        let answered = within(silence, async { Ok(answer.as_mut().await) }).await;
        match answered {
            Ok(answer) => return answer,
            Err(_) if seen.skipped() != before => {}
            Err(silent) => return Err(silent),
        }
    }
}

impl Origin {
    /// Opens a source. Connections are made when they are needed.
    pub fn open(source: &Source, silence: Duration, trusted: bool) -> Result<Self, Fault> {
        let address = Address::parse(&source.uri).map_err(|error| Fault::Final(error.to_string()))?;
        if !trusted && let Some(reference) = &source.credentials {
            return Err(Fault::Final(format!(
                "another user wrote that its credentials are in {reference}, or may have, and who writes that could have them sent anywhere: take the right to write the file from others (`chmod go-w`) if it is yours, or name the source yourself"
            )));
        }
        let credentials = || credentials::Credentials::read(source.credentials.as_deref());
        match address.scheme.as_str() {
            "file" => Ok(Self::Local(local::Local::new(&address))),
            scheme if mend_data::uri::SCHEMES.contains(&scheme) => {
                remote::Remote::open(&source.uri, &address, source.endpoint.as_deref(), &credentials()?, silence)
                    .map(Box::new)
                    .map(Self::Remote)
            }
            scheme => plugin::Plugin::find(scheme, &source.uri, source.credentials.as_deref(), silence).map(Self::Plugin),
        }
    }

    /// What it holds now.
    pub async fn version(&self, silence: Duration) -> Result<Version, Fault> {
        match self {
            Self::Local(local) => local.version(),
            Self::Remote(remote) => within(silence, remote.version()).await,
            Self::Plugin(plugin) => plugin.version().await,
        }
    }

    /// Answers from now on are of this version, or faults.
    pub fn expect(&self, version: &Version) {
        if let Self::Remote(remote) = self {
            remote.expect(version);
        }
    }

    /// True if each answer is compared with the version that is expected.
    pub fn compares_answers(&self) -> bool {
        matches!(self, Self::Remote(remote) if remote.compares_answers())
    }

    /// Asks for a range.
    pub async fn read(&self, range: Range, silence: Duration) -> Result<Body, Fault> {
        match self {
            Self::Local(local) => local.read(range).map(Body::Local),
            Self::Remote(remote) => {
                let stream = while_alive(silence, remote.seen(), remote.read(range)).await?;
                Ok(Body::Remote(stream, remote.seen().clone()))
            }
            Self::Plugin(plugin) => plugin.read(range).await.map(Box::new).map(Body::Plugin),
        }
    }

    /// True once it has answered a request for a range with the whole file.
    pub fn ignores_ranges(&self) -> bool {
        matches!(self, Self::Remote(remote) if remote.ignores_ranges())
    }

    /// Names of the files below it, as they stand in an address. It may take long, but each has to come in time.
    pub async fn list(&self, silence: Duration) -> Result<Vec<String>, Fault> {
        match self {
            Self::Local(local) => local.list(),
            Self::Remote(remote) => remote.list(silence).await,
            Self::Plugin(plugin) => plugin.list().await,
        }
    }

    /// Ranges of a file that are known to be zeros without being read.
    pub fn holes(&self, size: u64) -> Vec<Range> {
        match self {
            Self::Local(local) => local.holes(size),
            Self::Remote(_) | Self::Plugin(_) => Vec::new(),
        }
    }
}

impl Body {
    /// The next bytes; `None` at the end.
    pub async fn next(&mut self, silence: Duration) -> Result<Option<Bytes>, Fault> {
        match self {
            Self::Local(reading) => reading.next(),
            Self::Remote(stream, seen) => while_alive(silence, seen, async { stream.next().await.transpose() }).await,
            Self::Plugin(reading) => reading.next().await,
        }
    }
}
