//! `mend-bucket`: serves a target of a data space whose objects are in a bucket of an S3-compatible store. Started by `mendd`, never by people.
//!
//! ```text
//! client ──encrypted TCP──► mend-bucket (a node of the target) ──S3──► PREFIX/NAME-0/SPACE/…
//! ```
//! It answers as `mend-space target` does for a directory, so nothing else in a space knows the difference. All that it knows is in the bucket when it is acknowledged: another node may serve
//! the target at any time. A program of its own, so that neither the daemon nor what ranks load carries a client of object stores.

mod bucket;
mod catalogue;
mod listing;
mod store;
mod writes;

use bucket::Bucket;
use mend_space::server::{Failure, serve};
use mend_wire::secret::from_hex;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;
use store::Store;

const USAGE: &str = "mend-bucket is a part of mend: it is started by mendd";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // Two providers could be compiled in by others; this one is meant. It fails only if it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let code = match words[..] {
        ["target", space, address, how @ ("open" | "create")] => match (from_hex(space), secret()) {
            (Some(space), Ok(secret)) => serve(&space, secret, || {
                let patience = mend_settings::SPACE_TIMEOUT.milliseconds().unwrap_or(Duration::from_secs(5));
                let bucket = Bucket::connect(address, &space, patience)?;
                Ok(Arc::new(Store::open(bucket, &space, how == "create", Box::new(|| std::process::exit(0)))?))
            }),
            (Some(_), Err(Failure { why, .. })) => {
                let _ = writeln!(io::stdout(), "refused {why}");
                1
            }
            (None, _) => misused(),
        },
        _ => misused(),
    };
    // Not by returning: threads may wait for a store that does not answer.
    std::process::exit(code);
}

fn misused() -> i32 {
    mend_report::tell!("{}", mend_report::failure("mend-bucket", USAGE, "mend data --help"));
    64
}

fn secret() -> Result<mend_messages::job::Secret, Failure> {
    let failed = |why: String| Failure::new(mend_data::space::target::Failed::Medium, why);
    let path = mend_settings::secret_file().map_err(|error| failed(mend_report::with_causes(&error)))?;
    mend_wire::secret::load(&path).map_err(|error| failed(mend_report::with_causes(&error)))
}
