//! Puts and gets one object of an S3-compatible store.
//!
//! ```text
//! mend-object put s3://BUCKET/KEY BYTES     standard input becomes the object, if it has exactly this length
//! mend-object get s3://BUCKET/KEY           the object goes to standard output
//! mend-object delete s3://BUCKET/KEY…       the objects are no more
//! ```
//! A program of its own, so that the daemon on each node stays small, and a store that hangs holds up nobody else.
//! Invariants: an object appears whole or not at all; credentials come from the environment, as the S3 client reads
//! them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …), and are printed nowhere. Faults assumed: whoever feeds standard
//! input dies in the middle; the store refuses, or does not answer.

use bytes::Bytes;
use mend_object::{Download, ObjectError, open};
use object_store::{ObjectStoreExt, WriteMultipart};
use std::io::{self, Read, Write};
use std::process::ExitCode;

/// Least length of a part; a store takes 10,000 of them, all but the last at least 5 MiB long.
const PART_BYTES: u64 = 8 << 20;
const MAX_PARTS: u64 = 9000;
/// Parts under way at once.
const MAX_CONCURRENT_PARTS: usize = 4;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // Two providers could be compiled in by others; this one is meant. It fails only if it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.map_err(ObjectError::from).and_then(|runtime| runtime.block_on(run(&words)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            mend_report::tell!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(words: &[String]) -> Result<(), ObjectError> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["put", address, bytes] => put(address, bytes.parse().map_err(|_| ObjectError::Usage)?).await,
        ["get", address] => get(address).await,
        ["delete", ref addresses @ ..] if !addresses.is_empty() => {
            let mut first = Ok(());
            for address in addresses {
                // One that stays keeps no other.
                let deleted = delete(address).await;
                first = first.and(deleted);
            }
            first
        }
        _ => Err(ObjectError::Usage),
    }
}

async fn delete(address: &str) -> Result<(), ObjectError> {
    let (store, key) = open(address, None).await?;
    match store.delete(&key).await {
        Err(object_store::Error::NotFound { .. }) => Ok(()),
        deleted => Ok(deleted?),
    }
}

async fn put(address: &str, wanted: u64) -> Result<(), ObjectError> {
    let (store, key) = open(address, None).await?;
    let mut input = io::stdin().lock();
    if wanted <= PART_BYTES {
        let mut content = Vec::new();
        input.read_to_end(&mut content)?;
        exactly(content.len() as u64, wanted)?;
        store.put(&key, content.into()).await?;
        return Ok(());
    }
    let part = PART_BYTES.max(wanted.div_ceil(MAX_PARTS)) as usize;
    let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(&key).await?, part);
    let fed = feed(&mut input, wanted, part, &mut upload).await;
    match fed {
        Ok(()) => drop(upload.finish().await?),
        Err(error) => {
            // Parts that stay cost money; the error that led here is the one to tell.
            let _ = upload.abort().await;
            return Err(error);
        }
    }
    Ok(())
}

async fn feed(input: &mut impl Read, wanted: u64, part: usize, upload: &mut WriteMultipart) -> Result<(), ObjectError> {
    let mut found = 0;
    loop {
        let mut piece = Vec::new();
        let length = input.take(part as u64).read_to_end(&mut piece)?;
        found += length as u64;
        if length == 0 || found > wanted {
            return exactly(found, wanted);
        }
        upload.wait_for_capacity(MAX_CONCURRENT_PARTS).await?;
        upload.put(Bytes::from(piece));
    }
}

fn exactly(found: u64, wanted: u64) -> Result<(), ObjectError> {
    if found == wanted { Ok(()) } else { Err(ObjectError::Length { found, wanted }) }
}

async fn get(address: &str) -> Result<(), ObjectError> {
    let mut content = Download::begin(address).await?;
    let mut output = io::stdout().lock();
    while let Some(piece) = content.next().await? {
        output.write_all(&piece)?;
    }
    output.flush()?;
    Ok(())
}
