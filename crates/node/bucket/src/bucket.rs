//! Objects of a bucket by their names below the target's own prefix, each request within a time.
//!
//! Faults assumed: the store refuses, says that it is busy, does not answer, or has lost an object. What can pass is tried again for as long as the clients of the target wait for an answer; then
//! they are told what the store said.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use mend_data::space::Id;
use mend_data::space::target::Failed;
use mend_object::{ObjectError, Patience, brief};
use mend_report::with_causes;
use mend_space::server::Failure;
use mend_wire::secret::to_hex;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Runtime;
use tokio::time::error::Elapsed;

/// Requests under way at once for what is asked for together.
const AT_ONCE: usize = 64;
/// Threads that drive connections to the store.
const THREADS: usize = 2;
/// How long a store that does not answer is left alone, at first. The time doubles with each failure, up to the second one.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(16)];
/// What to do about credentials; the daemon's environment is what counts.
const CREDENTIALS: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in mendd's environment on that node, for a user who may list, read, write and delete there";
const ENDPOINT: &str =
    "set AWS_ENDPOINT_URL (and AWS_ALLOW_HTTP=true for one without TLS) in mendd's environment on that node, and see that the store runs";

/// An object, as a listing has it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Below the target's prefix.
    pub name: String,
    /// How many bytes it has.
    pub size: u64,
    /// How long ago it was stored, by the clocks of both sides.
    pub age: Duration,
    /// Another one whenever other bytes are stored; not all stores tell it.
    pub tag: Option<String>,
}

/// A place in a bucket.
#[derive(Debug)]
pub struct Bucket {
    runtime: Runtime,
    store: Arc<dyn ObjectStore>,
    root: Path,
    /// As people know it.
    shown: String,
    limit: Duration,
    /// Until when it is left alone, how long that was, and why.
    silent: Mutex<Option<(Instant, Duration, String)>>,
}

impl Bucket {
    /// The place of a space's target below `s3://BUCKET/PREFIX`. The store is not asked. `patience`: how long clients of the target wait.
    ///
    /// # Errors
    /// If the address is none, or nothing says what the credentials are.
    pub fn connect(address: &str, space: &Id, patience: Duration) -> Result<Self, Failure> {
        // What the store says has to come to the client before it has lost patience.
        let limit = patience * 3 / 4;
        let runtime = runtime()?;
        let patience = Patience { request: limit, retries: limit / 2 };
        let opened = runtime.block_on(mend_object::open(&format!("{}/{}", address.trim_end_matches('/'), to_hex(space)), Some(patience)));
        let (store, root) = opened.map_err(|error| match error {
            ObjectError::Usage => failed(format!("{address} is no place in a bucket"), "write s3://BUCKET/PREFIX"),
            ObjectError::Credentials(_) => failed("no credentials for the store are known".to_owned(), CREDENTIALS),
            other => failed(other.to_string(), ENDPOINT),
        })?;
        Ok(Self { runtime, store: Arc::new(store), root, shown: address.to_owned(), limit, silent: Mutex::default() })
    }

    /// A place in any store.
    #[cfg(test)]
    pub fn over(store: Arc<dyn ObjectStore>, root: &str) -> Self {
        Self {
            runtime: runtime().unwrap(),
            store,
            root: Path::from(root),
            shown: root.to_owned(),
            limit: Duration::from_secs(5),
            silent: Mutex::default(),
        }
    }

    /// The same, with this time for a request.
    #[cfg(test)]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// How long one request may take.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// As people know it.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    fn key(&self, name: &str) -> Path {
        // Names have nothing in them that would be encoded.
        Path::from_iter(self.root.parts().chain(Path::from(name).parts().collect::<Vec<_>>()))
    }

    fn name(&self, key: &Path) -> String {
        key.as_ref().strip_prefix(self.root.as_ref()).unwrap_or_default().trim_start_matches('/').to_owned()
    }

    /// Waits for a request, or says that it takes too long. A store that does not answer is left alone for a moment, so that not each of a thousand reads waits for it.
    fn wait<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        self.is_left_alone()?;
        let limited = async { tokio::time::timeout(self.limit, request).await };
        self.told(self.runtime.block_on(limited))
    }

    /// An error while the store is left alone.
    fn is_left_alone(&self) -> Result<(), Failure> {
        match &*held(&self.silent) {
            Some((until, _, why)) if Instant::now() < *until => Err(Failure::new(Failed::Medium, why.clone())),
            _ => Ok(()),
        }
    }

    /// What came of a request that was not waited for longer than for one.
    fn told<T>(&self, done: Result<Result<T, Error>, Elapsed>) -> Result<T, Failure> {
        let failure = match done {
            Ok(Ok(done)) => {
                *held(&self.silent) = None;
                return Ok(done);
            }
            Ok(Err(error)) => self.failure(&error),
            Err(_) => failed(format!("the store of {} did not answer for {} ms", self.shown, self.limit.as_millis()), ENDPOINT),
        };
        if failure.why.ends_with(ENDPOINT) {
            let mut silent = held(&self.silent);
            let pause = silent.as_ref().map_or(PAUSES[0], |(_, pause, _)| (*pause * 2).min(PAUSES[1]));
            *silent = Some((Instant::now() + pause, pause, failure.why.clone()));
        }
        Err(failure)
    }

    /// What is told of an error.
    fn failure(&self, error: &Error) -> Failure {
        let shown = &self.shown;
        let whole = with_causes(error);
        match error {
            _ if whole.contains("NoSuchBucket") => {
                failed(format!("the bucket of {shown} is not there"), "make the bucket, or name another one")
            }
            _ if matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. }) || refuses(&whole) => {
                failed(format!("the store refuses its credentials for {shown} ({})", code(&whole)), CREDENTIALS)
            }
            Error::NotFound { .. } => Failure::new(Failed::Absent, format!("{shown} lacks an object")),
            _ if whole.contains("status code: 416") => {
                Failure::new(Failed::Short, format!("an object of {shown} is shorter than it must be"))
            }
            _ if ["error sending request", "onnect", "timed out", "dns"].iter().any(|sign| whole.contains(sign)) => {
                failed(format!("the store of {shown} cannot be reached: {}", brief(error)), ENDPOINT)
            }
            _ => failed(format!("the store of {shown} failed: {}", brief(error)), ""),
        }
    }

    /// The bytes of an object; `None` if there is none.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let key = self.key(name);
        absent_is_none(self.wait(async { self.store.get(&key).await?.bytes().await }).map(|bytes| bytes.to_vec()))
    }

    /// Bytes of an object, fewer if it ends before; `None` if there is none.
    pub fn get_range(&self, name: &str, range: Range<u64>) -> Result<Option<Vec<u8>>, Failure> {
        let key = self.key(name);
        match absent_is_none(self.wait(self.store.get_range(&key, range)).map(|bytes| bytes.to_vec())) {
            // It begins behind the end.
            Err(Failure { kind: Failed::Short, .. }) => Ok(Some(Vec::new())),
            got => got,
        }
    }

    /// The bytes of many objects, in their order; `None` of those that are not there. It takes as long as it takes.
    pub fn get_all(&self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
        let one = |name: &String| {
            let key = self.key(name);
            async move {
                match self.store.get(&key).await {
                    Err(Error::NotFound { .. }) => Ok(None),
                    got => got?.bytes().await.map(|bytes| Some(bytes.to_vec())),
                }
            }
        };
        let all = stream::iter(names.iter().map(one)).buffered(AT_ONCE).try_collect();
        self.runtime.block_on(all).map_err(|error: Error| self.failure(&error))
    }

    /// Stores an object; it is durable then.
    pub fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), Failure> {
        let key = self.key(name);
        self.wait(self.store.put(&key, bytes.into())).map(drop)
    }

    /// Stores an object that may be long. It takes as long as it takes.
    pub fn put_long(&self, name: &str, bytes: Vec<u8>) -> Result<(), Failure> {
        let key = self.key(name);
        self.runtime.block_on(self.store.put(&key, bytes.into())).map(drop).map_err(|error| self.failure(&error))
    }

    /// Stores many small objects, each within the time of a request. Which ones are stored, by their places, and why not all.
    pub fn put_all(&self, objects: Vec<(String, Vec<u8>)>) -> (Vec<usize>, Result<(), Failure>) {
        if let Err(failure) = self.is_left_alone() {
            return (Vec::new(), Err(failure));
        }
        let one = |(place, (name, bytes)): (usize, (String, Vec<u8>))| {
            let key = self.key(&name);
            async move { (place, tokio::time::timeout(self.limit, self.store.put(&key, bytes.into())).await) }
        };
        let mut stored = Vec::new();
        let all = async {
            let mut putting = stream::iter(objects.into_iter().enumerate().map(one)).buffer_unordered(AT_ONCE);
            while let Some((place, done)) = putting.next().await {
                match done {
                    Ok(Ok(_)) => stored.push(place),
                    failed => return failed.map(|done| done.map(drop)),
                }
            }
            Ok(Ok(()))
        };
        let done = self.runtime.block_on(all);
        (stored, self.told(done))
    }

    /// Removes objects, whether they are there or not. It takes as long as it takes, unless a time is said: then `false` says that some are left.
    pub fn delete(&self, names: Vec<String>, within: Option<Duration>) -> Result<bool, Failure> {
        let keys: Vec<Result<Path, Error>> = names.iter().map(|name| Ok(self.key(name))).collect();
        let removed = self.store.delete_stream(stream::iter(keys).boxed()).try_for_each(|_| async { Ok(()) });
        let removed = async {
            match within {
                Some(within) => tokio::time::timeout(within, removed).await.ok(),
                None => Some(removed.await),
            }
        };
        match self.runtime.block_on(removed) {
            None => Ok(false),
            Some(Ok(()) | Err(Error::NotFound { .. })) => Ok(true),
            Some(Err(error)) => Err(self.failure(&error)),
        }
    }

    /// All objects below a name, at most so many. It takes as long as it takes.
    pub fn list(&self, below: &str, most: usize) -> Result<Vec<Listed>, Failure> {
        let prefix = if below.is_empty() { self.root.clone() } else { self.key(below) };
        let now = SystemTime::now();
        let listed = self.store.list(Some(&prefix)).take(most).map_ok(|found| Listed {
            name: self.name(&found.location),
            size: found.size,
            age: now.duration_since(found.last_modified.into()).unwrap_or_default(),
            tag: found.e_tag,
        });
        self.runtime.block_on(listed.try_collect()).map_err(|error| self.failure(&error))
    }

    /// As [`Self::list`], names and lengths of all, each page of them within the time that one request may take.
    pub fn list_soon(&self, below: &str) -> Result<Vec<(String, u64)>, Failure> {
        let prefix = self.key(below);
        let mut listing = self.store.list(Some(&prefix));
        let mut listed = Vec::new();
        // What came with the page before is there at once.
        while let Some(found) = self.wait(listing.try_next())? {
            listed.push((self.name(&found.location), found.size));
        }
        Ok(listed)
    }
}

/// What a mutex holds.
pub fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What it holds is only ever changed as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn runtime() -> Result<Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?)
}

/// A failure of the medium. What to do stands behind a tab, where the daemon looks for it.
fn failed(why: String, hint: &str) -> Failure {
    Failure::new(Failed::Medium, if hint.is_empty() { why } else { format!("{why}\t{hint}") })
}

/// True of an answer of a store that knows the credentials not, or grants them too little.
fn refuses(whole: &str) -> bool {
    ["status code: 401", "status code: 403"].iter().any(|sign| whole.contains(sign))
}

/// The store's own word for an error.
fn code(whole: &str) -> &str {
    whole.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map_or("no permission", |(code, _)| code)
}

fn absent_is_none<T>(done: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match done {
        Err(Failure { kind: Failed::Absent, .. }) => Ok(None),
        done => done.map(Some),
    }
}
