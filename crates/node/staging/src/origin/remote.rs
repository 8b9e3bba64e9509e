//! Sources on servers, through OpenDAL: http(s), s3, sftp, webdav(s), ftp(s).
//!
//! OpenDAL's own layers for retries and timeouts are left out: the plan decides what is asked again, and of whom. sftp goes through the program `ssh`, so
//! that keys, agents, jump hosts and known hosts are those of its configuration.

use super::credentials::Credentials;
use super::http::{Checked, Seen};
use super::within;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use mend_data::plan::Fault;
use mend_data::ranges::Range;
use mend_data::record::Version;
use mend_data::uri::{Address, decoded, encoded};
use opendal::options::ListOptions;
use opendal::raw::normalize_path;
use opendal::{EntryMode, Error, ErrorKind, HttpTransporter, Metadata, OperationContext, Operator, services};
use opendal_http_transport_reqwest::ReqwestTransport;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Longest wait for a connection: whoever answers later, answers too late.
const CONNECT: Duration = Duration::from_secs(10);
/// Most letters of what a server said.
const MAX_SAID_LETTERS: usize = 200;

/// A file or directory on a server.
pub struct Remote {
    operator: Operator,
    path: String,
    lists: bool,
    /// It is asked over HTTP, whose answers say of which version they are.
    over_http: bool,
    seen: Arc<Seen>,
}

/// What an error of OpenDAL's means for the plan.
pub fn fault(error: &Error) -> Fault {
    let what = match error.kind() {
        ErrorKind::NotFound => return Fault::Final("it is not there".to_owned()),
        ErrorKind::PermissionDenied => return Fault::Final("it refuses: no permission, or wrong credentials".to_owned()),
        ErrorKind::ConditionNotMatch => return Fault::Final(format!("it has changed: {}", error.message())),
        ErrorKind::IsADirectory => return Fault::Final("it is a directory: end both names with a slash".to_owned()),
        ErrorKind::ConfigInvalid => return Fault::Final(brief(error)),
        _ => brief(error),
    };
    if what.contains("signing credential") {
        return Fault::Final(
            "there are no credentials for it: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name them with --credentials".to_owned(),
        );
    }
    // Services do not classify these: HTTP's 401, FTP's 530.
    let status = error.context_http().is_some_and(|status| (400..500).contains(&status) && status != 408 && status != 425 && status != 429);
    if status || what.contains("[530]") || what.contains("Permission denied (") || what.contains("Host key verification failed") {
        return Fault::Final(what);
    }
    Fault::Passing(what)
}

/// Which version of a file a server describes.
pub fn version(found: &Metadata) -> Version {
    let modified_ns = found.last_modified().and_then(|time| i64::try_from(time.into_inner().as_nanosecond()).ok());
    Version { size: found.content_length(), etag: found.etag().map(str::to_owned), modified_ns }
}

/// Where a WebDAV server is asked.
pub fn webdav_endpoint(address: &Address<'_>) -> String {
    format!("{}://{}", if address.scheme == "webdav" { "http" } else { "https" }, address.place)
}

/// The status of an HTTP answer that led to an error.
trait Status {
    fn context_http(&self) -> Option<u16>;
}

impl Status for Error {
    fn context_http(&self) -> Option<u16> {
        // OpenDAL keeps the answer only as the text of its context: `response: Parts { status: 401, …`.
        let text = self.to_string();
        let (_, rest) = text.split_once("status: ")?;
        rest.get(..3)?.parse().ok()
    }
}

/// Message and causes of an error on one short line.
fn brief(error: &Error) -> String {
    let mut text = match error.context_http() {
        Some(status) => format!("it answered with status {status}"),
        None => error.message().trim().to_owned(),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_SAID_LETTERS).collect()
}

/// Of sources, which answer at once or not at all.
fn client(silence: Duration) -> Result<reqwest::Client, Fault> {
    static CLIENT: OnceLock<Result<reqwest::Client, String>> = OnceLock::new();
    let made = CLIENT.get_or_init(|| {
        let builder = reqwest::Client::builder().user_agent(concat!("mend/", env!("CARGO_PKG_VERSION")));
        builder.connect_timeout(CONNECT.min(silence)).read_timeout(silence).build().map_err(|error| mend_report::with_causes(&error))
    });
    made.clone().map_err(Fault::Final)
}

/// An address with what no URI may hold as `%XX`.
fn sendable(uri: &str) -> String {
    let lawful = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    uri.bytes().map(|byte| if lawful(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// What is at an address, to be asked through a transport of HTTP.
pub struct Service {
    pub operator: Operator,
    /// Where it is there, without the first slash.
    pub path: String,
    seen: Arc<Seen>,
}

impl Service {
    pub fn open(
        uri: &str,
        address: &Address<'_>,
        endpoint: Option<&str>,
        credentials: &Credentials,
        client: reqwest::Client,
    ) -> Result<Self, Fault> {
        let given = |name: &str| credentials.get(name).unwrap_or_default();
        let user = address.user.or(credentials.get("user")).unwrap_or_default();
        let mut path = decoded(address.path).trim_start_matches('/').to_owned();
        let mut exactly = None;
        let made = match address.scheme.as_str() {
            "http" | "https" => {
                let whole = sendable(uri.split('#').next().unwrap_or_default()).replacen(
                    &format!("{}@", address.user.unwrap_or_default()),
                    "",
                    usize::from(address.user.is_some()),
                );
                exactly = Some(whole.parse().map_err(|_| Fault::Final("it is no address that can be asked".to_owned()))?);
                path = "file".to_owned();
                let endpoint = format!("{}://{}", address.scheme, address.place);
                Operator::new(
                    services::Http::default().endpoint(&endpoint).username(user).password(given("password")).token(given("token")),
                )
            }
            "webdav" | "webdavs" => Operator::new(
                services::Webdav::default()
                    .endpoint(&webdav_endpoint(address))
                    .username(user)
                    .password(given("password"))
                    .token(given("token")),
            ),
            "s3" => Operator::new(s3(address.place, endpoint, credentials)),
            "sftp" => {
                let at = if user.is_empty() { String::new() } else { format!("{user}@") };
                Operator::new(services::Sftp::default().endpoint(&format!("ssh://{at}{}", address.place)).root("/").key(given("key")))
            }
            _ => {
                let (user, password) = if user.is_empty() { ("anonymous", "anonymous@") } else { (user, given("password")) };
                let endpoint = format!("{}://{}", address.scheme, address.place);
                Operator::new(services::Ftp::default().endpoint(&endpoint).root("/").user(user).password(password))
            }
        };
        if exactly.is_none() {
            path = askable(&address.scheme, path)?;
        }
        let seen = Arc::new(Seen::default());
        let transport = Checked { inner: ReqwestTransport::new(client), exactly, seen: seen.clone() };
        let context = OperationContext::new().with_http_transport(HttpTransporter::new(transport));
        let operator = made.map_err(|error| fault(&error))?.with_context(context);
        Ok(Self { operator, path, seen })
    }
}

impl Remote {
    pub fn open(
        uri: &str,
        address: &Address<'_>,
        endpoint: Option<&str>,
        credentials: &Credentials,
        silence: Duration,
    ) -> Result<Self, Fault> {
        let Service { operator, path, seen } = Service::open(uri, address, endpoint, credentials, client(silence)?)?;
        let over_http = !matches!(address.scheme.as_str(), "sftp" | "ftp" | "ftps");
        Ok(Self { operator, path, lists: !address.scheme.starts_with("http"), over_http, seen })
    }

    pub async fn version(&self) -> Result<Version, Fault> {
        let found = self.operator.stat(&self.path).await.map_err(|error| fault(&error))?;
        if found.is_dir() {
            return Err(Fault::Final("it is a directory: end both names with a slash".to_owned()));
        }
        Ok(version(&found))
    }

    pub fn expect(&self, version: &Version) {
        self.seen.expect(version);
    }

    pub fn compares_answers(&self) -> bool {
        self.over_http
    }

    pub fn ignores_ranges(&self) -> bool {
        self.seen.ignores_ranges()
    }

    pub fn seen(&self) -> &Arc<Seen> {
        &self.seen
    }

    pub async fn read(&self, range: Range) -> Result<BoxStream<'static, Result<Bytes, Fault>>, Fault> {
        let reader = self.operator.reader(&self.path).await.map_err(|error| fault(&error))?;
        let mut stream = reader.into_stream(range.offset..range.end()).await.map_err(|error| fault(&error))?;
        // The request is sent here, not at the first byte: its answer tells whether ranges are ignored.
        let first = stream.try_next().await.map_err(|error| fault(&error))?;
        let first = futures_util::stream::iter(first.map(Ok));
        Ok(first.chain(stream).map(|piece| piece.map(|buffer| buffer.to_bytes()).map_err(|error| fault(&error))).boxed())
    }

    pub async fn list(&self, silence: Duration) -> Result<Vec<String>, Fault> {
        if !self.lists {
            return Err(Fault::Final("an HTTP server does not list what is in a directory: name the files, or use webdav://".to_owned()));
        }
        let options = ListOptions { recursive: true, ..ListOptions::default() };
        let lister = async { self.operator.lister_options(&self.path, options).await.map_err(|error| fault(&error)) };
        let mut lister = within(silence, lister).await?;
        let (mut names, mut is_empty) = (Vec::new(), true);
        loop {
            // OpenDAL's service for sftp takes for granted that names are UTF-8: it panics, or the task does that reads for it.
            let next = AssertUnwindSafe(lister.try_next()).catch_unwind();
            let next = async {
                let found = next.await.map_err(|_| not_text(&self.path))?;
                found.map_err(
                    |error| if error.to_string().contains("Background task failed") { not_text(&self.path) } else { fault(&error) },
                )
            };
            let Some(entry) = within(silence, next).await? else { break };
            is_empty = false;
            let is_file = match entry.metadata().mode() {
                EntryMode::FILE => true,
                EntryMode::DIR => false,
                EntryMode::Unknown => within(silence, self.leads_to_file(entry.path())).await?,
            };
            if is_file {
                let name = entry.path().strip_prefix(&self.path).filter(|name| !name.is_empty());
                let name = name.ok_or_else(|| Fault::Final(format!("it lists {:?}, which is not below it", entry.path())))?;
                names.push(encoded(name));
            }
        }
        // What is not there is listed as empty by most services.
        if is_empty {
            within(silence, async { self.operator.stat(&self.path).await.map_err(|error| fault(&error)) }).await?;
        }
        Ok(names)
    }

    /// Of a symbolic link. One that leads nowhere is no file, and neither is one to a directory.
    async fn leads_to_file(&self, path: &str) -> Result<bool, Fault> {
        match self.operator.stat(path).await {
            Ok(found) => Ok(found.is_file()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(fault(&error)),
        }
    }
}

/// Why a directory is not listed.
fn not_text(path: &str) -> Fault {
    Fault::Final(format!(
        "a name in /{path} or below it is not UTF-8, and such a directory is not listed over sftp, or the connection broke; rename it there (`find /{path} | grep -axv '.*'` on \
         that host shows it), or name each file that is wanted"
    ))
}

/// A path as OpenDAL asks for it, or why it would ask for another one.
fn askable(scheme: &str, path: String) -> Result<String, Fault> {
    if path.trim() != path {
        return Err(Fault::Final("its name begins or ends with a blank, and cannot be asked for over this protocol".to_owned()));
    }
    let normal = normalize_path(&path);
    match normal == path || path.is_empty() {
        true => Ok(path),
        false if scheme == "s3" => {
            Err(Fault::Final("its name has two slashes in a row, and cannot be asked for over this protocol".to_owned()))
        }
        false => Ok(normal),
    }
}

fn s3(bucket: &str, endpoint: Option<&str>, credentials: &Credentials) -> services::S3 {
    let variable = |names: &[&str]| names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let region = credentials.get("region").map(str::to_owned).or_else(|| variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
    let mut builder = services::S3::default().bucket(bucket).region(region.as_deref().unwrap_or("us-east-1"));
    if let Some(endpoint) = endpoint {
        builder = builder.endpoint(endpoint);
    }
    if let (Some(id), Some(secret)) = (credentials.get("access_key_id"), credentials.get("secret_access_key")) {
        builder = builder.access_key_id(id).secret_access_key(secret).session_token(credentials.get("session_token").unwrap_or_default());
    } else if credentials.is_empty() && variable(&["AWS_SKIP_SIGNATURE"]).is_some() {
        builder = builder.skip_signature();
    }
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_asked_for_as_it_is_or_not_at_all() {
        let asked = |scheme: &str, path: &str| askable(scheme, path.to_owned()).ok();
        assert_eq!(asked("sftp", "a b//c /"), Some("a b/c /".to_owned()));
        assert_eq!(asked("s3", ""), Some(String::new()));
        assert_eq!(asked("s3", "a b/c"), Some("a b/c".to_owned()));
        assert_eq!((asked("s3", "a//b"), asked("sftp", "a "), asked("ftp", " a"), asked("webdav", "a\n")), (None, None, None, None));
    }

    #[test]
    fn an_address_is_sent_as_it_was_written() {
        assert_eq!(sendable("http://a/b%20c d?x=1&y=é"), "http://a/b%20c%20d?x=1&y=%C3%A9");
    }
}
