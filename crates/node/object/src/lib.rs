//! Clients of an S3-compatible store, for Mend's programs that talk to one.
//!
//! Invariant: address and credentials come from the environment, as the S3 client reads them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …), and are printed nowhere.

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, RetryConfig};
use std::io;
use std::time::Duration;

mod download;
pub use download::Download;

/// Variables that name credentials, or where they are, or that none are needed.
const CREDENTIAL_VARIABLES: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
];
/// How long a machine may take to say what its role's credentials are; most have none, and answer nothing.
const ROLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why an object cannot be had or stored.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// No address of an object, or no verb of `mend-object`.
    #[error("usage: mend-object put s3://BUCKET/KEY BYTES | get s3://BUCKET/KEY | delete s3://BUCKET/KEY…")]
    Usage,
    /// The store's answer, or that there is none.
    #[error("the store cannot be used: {}", brief(.0))]
    Store(#[from] object_store::Error),
    /// Nothing says what the credentials are.
    #[error(
        "no credentials for the store: this machine has no role that gives any ({0}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for \
         mendd, and AWS_ENDPOINT_URL if the store is not Amazon's"
    )]
    Credentials(String),
    /// Another length than was announced.
    #[error("the content ended after {found} of {wanted} bytes")]
    Length {
        /// Bytes that came.
        found: u64,
        /// Bytes that were announced.
        wanted: u64,
    },
    /// Another object has its name now than when it was begun.
    #[error("it was replaced or removed after {0} bytes had come")]
    Replaced(u64),
    /// What a program's own input and output give.
    #[error("standard input or output: {0}")]
    Stream(#[from] io::Error),
}

/// The first line of an error: stores answer with pages.
#[must_use]
pub fn brief(error: &object_store::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().chars().take(300).collect()
}

/// How long a store is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For one request, with its bytes.
    pub request: Duration,
    /// For a request that is repeated, from its first attempt to the beginning of its last one.
    pub retries: Duration,
}

/// What makes a client for the bucket of `s3://BUCKET/KEY`, and the key.
async fn builder(address: &str) -> Result<(AmazonS3Builder, Path), ObjectError> {
    let (bucket, key) = address.strip_prefix("s3://").and_then(|place| place.split_once('/')).ok_or(ObjectError::Usage)?;
    let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    if CREDENTIAL_VARIABLES.iter().all(|name| std::env::var_os(name).is_none()) {
        let once = builder.clone().with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() }).build()?;
        match tokio::time::timeout(ROLE_TIMEOUT, once.credentials().get_credential()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(ObjectError::Credentials(brief(&error))),
            Err(_) => return Err(ObjectError::Credentials("no answer".into())),
        }
    }
    Ok((builder, Path::from(key)))
}

/// A client for the bucket of `s3://BUCKET/KEY`, and the key. Without `patience` it waits for as long as the library does.
///
/// # Errors
/// [`ObjectError::Usage`] for another address, [`ObjectError::Credentials`] if there are none. The store itself is not asked.
pub async fn open(address: &str, patience: Option<Patience>) -> Result<(AmazonS3, Path), ObjectError> {
    let (mut builder, key) = builder(address).await?;
    if let Some(Patience { request, retries }) = patience {
        let limit = format!("{}ms", request.as_millis().max(1));
        for key in [ClientConfigKey::Timeout, ClientConfigKey::ConnectTimeout] {
            builder = builder.with_config(AmazonS3ConfigKey::Client(key), &limit);
        }
        let backoff = BackoffConfig { max_backoff: retries / 4, ..BackoffConfig::default() };
        builder = builder.with_retry(RetryConfig { max_retries: 3, retry_timeout: retries, backoff });
    }
    Ok((builder.build()?, key))
}
