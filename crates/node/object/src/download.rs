//! An object as it comes, however long that takes.
//!
//! ```text
//! GET ──► bytes ──► cut, or silent ──► GET of the rest, If-Match ──► bytes ──► all of them
//! ```
//! The library's own limits are for a whole GET: half a minute for a request with its body, three for what is asked again. Here silence counts, and faults since
//! the last byte. Invariant: all bytes are of one object. Faults assumed: the store cuts connections, is silent or away for a while; the object is replaced.

use crate::{ObjectError, builder};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::aws::{AmazonS3, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{ClientConfigKey, Error, GetOptions, GetRange, ObjectStore, RetryConfig};
use std::time::Duration;

/// For any byte to come.
const SILENCE: &str = "30s";
/// No limit, as the library knows none by a word.
const NO_LIMIT: &str = "3650days";
/// Faults in a row, with nothing that came between, before it is given up.
const FAULTS: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// One object on its way.
pub struct Download {
    /// Asks once: faults are counted here.
    store: AmazonS3,
    key: Path,
    size: u64,
    version: Option<String>,
    at: u64,
    faults: u32,
    body: Option<BoxStream<'static, object_store::Result<Bytes>>>,
}

impl Download {
    /// Asks for it, for as long as the library does.
    ///
    /// # Errors
    /// As for [`crate::open`], and the store's answer.
    pub async fn begin(address: &str) -> Result<Self, ObjectError> {
        let (mut builder, key) = builder(address).await?;
        for (key, limit) in [(ClientConfigKey::Timeout, NO_LIMIT), (ClientConfigKey::ReadTimeout, SILENCE)] {
            builder = builder.with_config(AmazonS3ConfigKey::Client(key), limit);
        }
        let store = builder.clone().with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() }).build()?;
        let first = match store.get_opts(&key, GetOptions::default()).await {
            // The library knows which answers may pass.
            Err(Error::Generic { .. }) => builder.build()?.get_opts(&key, GetOptions::default()).await,
            answer => answer,
        };
        let first = first?;
        let (size, version) = (first.meta.size, first.meta.e_tag.clone());
        Ok(Self { store, key, size, version, at: 0, faults: 0, body: Some(first.into_stream()) })
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The store does not give the rest, or has another object by now.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ObjectError> {
        while self.at < self.size {
            let came = match &mut self.body {
                Some(body) => body.next().await.transpose(),
                None => self.ask().await.map(|body| {
                    self.body = Some(body);
                    Some(Bytes::new())
                }),
            };
            let fault = match came {
                Ok(Some(bytes)) if bytes.is_empty() => continue,
                Ok(Some(bytes)) => {
                    self.at += bytes.len() as u64;
                    self.faults = 0;
                    return Ok(Some(bytes));
                }
                Ok(None) => ObjectError::Length { found: self.at, wanted: self.size },
                Err(Error::Precondition { .. } | Error::NotFound { .. }) => return Err(ObjectError::Replaced(self.at)),
                Err(error @ (Error::PermissionDenied { .. } | Error::Unauthenticated { .. })) => return Err(error.into()),
                Err(error) => error.into(),
            };
            self.body = None;
            self.faults += 1;
            // Bytes of two objects must not be mixed, and without a version nothing tells them apart.
            if self.faults > FAULTS || self.version.is_none() {
                return Err(fault);
            }
            tokio::time::sleep((FIRST_PAUSE * 2_u32.pow(self.faults - 1)).min(LONGEST_PAUSE)).await;
        }
        Ok(None)
    }

    async fn ask(&self) -> object_store::Result<BoxStream<'static, object_store::Result<Bytes>>> {
        let rest =
            GetOptions { if_match: self.version.clone(), range: Some(GetRange::Bounded(self.at..self.size)), ..GetOptions::default() };
        let answer = self.store.get_opts(&self.key, rest).await?;
        // A store may not know conditions.
        if answer.meta.e_tag != self.version || answer.meta.size != self.size {
            return Err(Error::Precondition { path: self.key.to_string(), source: "it has another version".into() });
        }
        Ok(answer.into_stream())
    }
}
