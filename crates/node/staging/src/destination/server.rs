//! Servers that files are sent to: s3, sftp, webdav(s), ftp(s).
//!
//! An S3 object is there when its last part was taken (a multipart upload), and OpenDAL gives an FTP file its name when its last byte was taken. On the others a file has another name until
//! it was read back. S3 is asked to take an object only if nothing has its name, unless it says that it has no such conditions. WebDAV's PUT is our own: OpenDAL would have all of the file in memory.

use super::summing::Summing;
use super::{About, Named};
use crate::origin::credentials::Credentials;
use crate::origin::remote::{Service, fault, version, webdav_endpoint};
use crate::origin::within;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use mend_data::plan::Fault;
use mend_data::record::Version;
use mend_data::sums::Sum;
use mend_data::uri::{Address, encoded};
use opendal::raw::oio::Write;
use opendal::raw::{OpWrite, Service as _};
use opendal::{Buffer, Error, ErrorKind, Operator, Writer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Bytes of a part of a multipart upload, unless there would be too many.
const PART: u64 = 16 << 20;
/// Parts that are under way at once.
const AT_ONCE: usize = 2;
/// Most parts that S3 takes, less some.
const MOST_PARTS: u64 = 9000;
/// The slowest server that is not given up, bytes a second.
const LEAST_SPEED: u64 = 64 << 10;
/// Pieces that wait for a PUT to take them.
const WAITING: usize = 2;

/// A directory on a server.
pub struct Server {
    operator: Operator,
    /// With a slash at its end, unless it is all that there is.
    base: String,
    kind: Kind,
    silence: Duration,
}

enum Kind {
    /// True once the store has said that it has no conditions.
    S3(Arc<AtomicBool>),
    Sftp,
    Ftp,
    Webdav(Dav),
}

/// How a WebDAV server is asked.
struct Dav {
    client: reqwest::Client,
    endpoint: String,
    user: String,
    password: String,
    token: String,
}

/// A file on its way.
pub enum Sending {
    /// Through OpenDAL.
    Service(Box<Writer>, Duration),
    /// The same to S3, if nothing has its name; what is told if the store has no such conditions.
    New(Box<Writer>, Duration, Arc<AtomicBool>),
    /// A PUT, which takes what is put into the channel.
    Put(mpsc::Sender<Result<Bytes, std::io::Error>>, JoinHandle<Result<(), Fault>>, Duration),
    /// It has no bytes: OpenDAL's own writer passes nothing on that is empty.
    Empty(Box<Operator>, String, Duration),
}

/// How long a server may take for so many bytes.
fn patience(silence: Duration, bytes: u64) -> Duration {
    silence + Duration::from_secs(bytes / LEAST_SPEED)
}

/// A client that has no patience of its own: how long an answer may take depends on what is sent.
fn client() -> Result<reqwest::Client, Fault> {
    let built =
        reqwest::Client::builder().user_agent(concat!("mend/", env!("CARGO_PKG_VERSION"))).connect_timeout(Duration::from_secs(10)).build();
    built.map_err(|error| Fault::Final(mend_report::with_causes(&error)))
}

impl Server {
    pub fn open(
        uri: &str,
        address: &Address<'_>,
        endpoint: Option<&str>,
        credentials: &Credentials,
        silence: Duration,
    ) -> Result<Self, Fault> {
        let client = client()?;
        let Service { operator, path, .. } = Service::open(uri, address, endpoint, credentials, client.clone())?;
        let path = path.trim_matches('/');
        let base = if path.is_empty() { String::new() } else { format!("{path}/") };
        let given = |name: &str| credentials.get(name).unwrap_or_default().to_owned();
        let kind = match address.scheme.as_str() {
            "s3" => Kind::S3(Arc::default()),
            "sftp" => Kind::Sftp,
            "ftp" | "ftps" => Kind::Ftp,
            _ => Kind::Webdav(Dav {
                client,
                endpoint: webdav_endpoint(address),
                user: address.user.map_or_else(|| given("user"), str::to_owned),
                password: given("password"),
                token: given("token"),
            }),
        };
        Ok(Self { operator, base, kind, silence })
    }

    fn at(&self, name: &str) -> String {
        format!("{}{name}", self.base)
    }

    pub fn renames(&self) -> bool {
        matches!(self.kind, Kind::Sftp | Kind::Webdav(_))
    }

    pub async fn version(&self, path: &str) -> Result<Option<Version>, Fault> {
        let path = self.at(path);
        let asked = async {
            match self.operator.stat(&path).await {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                found => found.map(Some).map_err(|error| fault(&error)),
            }
        };
        let Some(found) = within(self.silence, asked).await? else { return Ok(None) };
        if found.is_dir() {
            return Err(Fault::Final("a directory has its name there".to_owned()));
        }
        Ok(Some(version(&found)))
    }

    pub async fn begin(&self, name: &str, about: About) -> Result<Sending, Fault> {
        let (path, size) = (self.at(name), about.size);
        match &self.kind {
            Kind::Webdav(dav) => {
                if let Some((directory, _)) = path.rsplit_once('/') {
                    let made = async { self.operator.create_dir(&format!("{directory}/")).await.map_err(|error| fault(&error)) };
                    within(self.silence, made).await?;
                }
                Ok(dav.put(&path, size, self.silence))
            }
            Kind::Ftp if size == 0 => Ok(Sending::Empty(Box::new(self.operator.clone()), path, self.silence)),
            Kind::S3(unconditional) => {
                let part = PART.max(size.div_ceil(MOST_PARTS).next_multiple_of(1 << 20));
                let is_new = !about.replaces && !unconditional.load(Ordering::Relaxed);
                let writer = self.operator.writer_with(&path).chunk(part as usize).concurrent(AT_ONCE).if_not_exists(is_new).await;
                let (writer, patience) = (Box::new(writer.map_err(|error| fault(&error))?), patience(self.silence, part * AT_ONCE as u64));
                Ok(if is_new { Sending::New(writer, patience, unconditional.clone()) } else { Sending::Service(writer, patience) })
            }
            Kind::Sftp | Kind::Ftp => {
                let writer = self.operator.writer(&path).await.map_err(|error| fault(&error))?;
                Ok(Sending::Service(Box::new(writer), patience(self.silence, PART)))
            }
        }
    }

    pub async fn sums(&self, name: &str, size: u64) -> Result<Vec<Sum>, Fault> {
        let mut summing = Summing::default();
        if size == 0 {
            return Ok(summing.end());
        }
        let path = self.at(name);
        let opened = async {
            let reader = self.operator.reader(&path).await.map_err(|error| fault(&error))?;
            reader.into_stream(0..size).await.map_err(|error| fault(&error))
        };
        let mut pieces = within(self.silence, opened).await?;
        while let Some(piece) = within(self.silence, async { pieces.next().await.transpose().map_err(|error| fault(&error)) }).await? {
            Iterator::for_each(piece, |bytes: Bytes| summing.take(&bytes));
        }
        if summing.length() == size {
            Ok(summing.end())
        } else {
            Err(Fault::Passing(format!("{} of {size} bytes came back", summing.length())))
        }
    }

    pub async fn publish(&self, part: &str, path: &str, replaces: bool) -> Result<Named, Fault> {
        if !replaces && self.version(path).await?.is_some() {
            return Ok(Named::Taken);
        }
        let (part, path) = (self.at(part), self.at(path));
        within(self.silence, async { self.operator.rename(&part, &path).await.map_err(|error| fault(&error)) }).await?;
        Ok(Named::Done)
    }

    pub async fn remove(&self, part: &str) -> Result<(), Fault> {
        let part = self.at(part);
        let removed = async {
            match self.operator.delete(&part).await {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(fault(&error)),
                _ => Ok(()),
            }
        };
        within(self.silence, removed).await
    }
}

impl Dav {
    fn put(&self, path: &str, size: u64, silence: Duration) -> Sending {
        let (give, mut taken) = mpsc::channel::<Result<Bytes, std::io::Error>>(WAITING);
        let body = reqwest::Body::wrap_stream(stream::poll_fn(move |context| taken.poll_recv(context)));
        let mut request = self.client.put(format!("{}/{}", self.endpoint, encoded(path))).header(http::header::CONTENT_LENGTH, size);
        if !self.token.is_empty() {
            request = request.bearer_auth(&self.token);
        } else if !self.user.is_empty() {
            request = request.basic_auth(&self.user, Some(&self.password));
        }
        let answer = tokio::spawn(async move {
            let answer = request.body(body).send().await.map_err(|error| Fault::Passing(mend_report::with_causes(&error)))?;
            let said = format!("it answered with status {}", answer.status().as_u16());
            match answer.status().as_u16() {
                200..300 => Ok(()),
                507 => Err(Fault::Final(format!("{said}: it is full"))),
                408 | 425 | 429 | 500.. => Err(Fault::Passing(said)),
                _ => Err(Fault::Final(said)),
            }
        });
        Sending::Put(give, answer, silence)
    }
}

/// What it means that a store did not take an object that was to be a new one. One without such conditions is asked again without.
fn not_new(error: &Error, unconditional: &AtomicBool) -> Result<Named, Fault> {
    match error.kind() {
        ErrorKind::ConditionNotMatch => Ok(Named::Taken),
        // Somebody else writes the same name just now.
        ErrorKind::Conflict => Err(Fault::Passing("somebody else writes to the same name".to_owned())),
        _ if error.to_string().contains("NotImplemented") => {
            unconditional.store(true, Ordering::Relaxed);
            Err(Fault::Passing("it takes no conditions".to_owned()))
        }
        _ => Err(fault(error)),
    }
}

async fn answered(answer: JoinHandle<Result<(), Fault>>) -> Result<(), Fault> {
    answer.await.unwrap_or_else(|error| Err(Fault::Passing(error.to_string())))
}

impl Sending {
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Fault> {
        match self {
            Self::Service(writer, patience) | Self::New(writer, patience, _) => {
                within(*patience, async { writer.write(bytes).await.map_err(|error| fault(&error)) }).await
            }
            Self::Put(give, answer, silence) => {
                let length = bytes.len() as u64;
                let given = within(patience(*silence, length), async { Ok(give.send(Ok(bytes)).await.is_ok()) }).await;
                match given {
                    Ok(true) => Ok(()),
                    // It has answered before it had all: that says why.
                    Ok(false) => {
                        let early = || Err(Fault::Passing("it ended the connection".to_owned()));
                        within(*silence, async { answer.await.unwrap_or_else(|_| early()) }).await.and_then(|()| early())
                    }
                    Err(fault) => Err(fault),
                }
            }
            Self::Empty(..) => Ok(()),
        }
    }

    pub async fn finish(self) -> Result<Named, Fault> {
        match self {
            Self::Service(mut writer, patience) => {
                within(patience, async { writer.close().await.map(drop).map_err(|error| fault(&error)) }).await?;
            }
            Self::New(mut writer, patience, unconditional) => {
                let closed = within(patience, async { Ok(writer.close().await) }).await?;
                let Err(error) = closed else { return Ok(Named::Done) };
                let named = not_new(&error, &unconditional);
                // The parts that it has taken would stay.
                drop(tokio::time::timeout(patience, writer.abort()).await);
                return named;
            }
            Self::Put(give, answer, silence) => {
                drop(give);
                within(patience(silence, PART), answered(answer)).await?;
            }
            Self::Empty(operator, path, silence) => {
                let (context, service) = operator.into_parts();
                let written = async {
                    let mut writer = service.write(&context, &path, OpWrite::new())?;
                    writer.write(Buffer::new()).await?;
                    writer.close().await
                };
                within(silence, async { written.await.map_err(|error| fault(&error)) }).await?;
            }
        }
        Ok(Named::Done)
    }

    pub async fn abandon(self) {
        match self {
            // Where that cannot be done, it has no name, or another one.
            Self::Service(mut writer, patience) | Self::New(mut writer, patience, _) => {
                drop(tokio::time::timeout(patience, writer.abort()).await);
            }
            Self::Put(give, answer, _) => {
                // An end would be taken for that of the file, if its length is right.
                drop(give.send(Err(std::io::ErrorKind::ConnectionAborted.into())).await);
                answer.abort();
            }
            Self::Empty(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_conditions_is_asked_without_them_and_a_name_that_is_taken_stays() {
        let unconditional = AtomicBool::new(false);
        let said = |kind, what: &str| not_new(&Error::new(kind, what), &unconditional);
        assert_eq!(said(ErrorKind::ConditionNotMatch, "PreconditionFailed"), Ok(Named::Taken));
        assert!(matches!(said(ErrorKind::Conflict, "ConditionalRequestConflict"), Err(Fault::Passing(_))));
        assert!(!unconditional.load(Ordering::Relaxed));
        assert!(matches!(said(ErrorKind::Unexpected, "S3Error { code: \"NotImplemented\" }"), Err(Fault::Passing(_))));
        assert!(unconditional.load(Ordering::Relaxed));
    }
}
