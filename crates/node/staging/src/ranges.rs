//! `mend-data ranges`: fetches ranges of files from their sources, for a mount of a data space that lacks them. Requests come in frames by standard input, one at a
//! time, until it ends.

use crate::fetch::{Fetcher, Origins, Sink, Taken};
use crate::mirrors::{open, told};
use mend_data::ranges::Range;
use mend_data::request::{RangeAnswer, RangeRequest};
use mend_data::space::BLOCK;
use mend_messages::frame;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes of a range.
const MAX_RANGE_BYTES: u64 = 4 << 20;

/// Blocks, as a plan wants them.
struct Kept {
    blocks: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl Sink for Kept {
    fn wants(&self, block: u64) -> bool {
        !self.blocks.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&block)
    }

    fn take(&self, block: u64, bytes: &[u8]) -> io::Result<Taken> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(block, bytes.to_vec());
        Ok(Taken::Good)
    }
}

/// Serves until standard input ends. The exit code.
pub async fn serve(fetcher: &Fetcher) -> i32 {
    while let Ok(request) = tokio::task::block_in_place(next) {
        let (answer, bytes) = match fetch(request, fetcher).await {
            Ok(bytes) => (RangeAnswer::Bytes(bytes.len() as u64), bytes),
            Err(why) => (RangeAnswer::Failed(why), Vec::new()),
        };
        if tokio::task::block_in_place(|| say(&answer, &bytes)).is_err() {
            break;
        }
    }
    0
}

fn next() -> io::Result<RangeRequest> {
    let mut input = io::stdin().lock();
    let mut prefix = [0; 4];
    input.read_exact(&mut prefix)?;
    let mut body = vec![0; frame::body_length(prefix).map_err(io::Error::other)?];
    input.read_exact(&mut body)?;
    frame::decode(&body).map_err(io::Error::other)
}

fn say(answer: &RangeAnswer, bytes: &[u8]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(&frame::encode(answer).map_err(io::Error::other)?)?;
    output.write_all(bytes)?;
    output.flush()
}

async fn fetch(request: RangeRequest, fetcher: &Fetcher) -> Result<Vec<u8>, String> {
    let RangeRequest { mut sources, size, range } = request;
    if range.length > MAX_RANGE_BYTES || range.end() > size {
        return Err("the range is not one of the file".to_owned());
    }
    let origins = open(&mut sources, fetcher, true).await;
    // Plans are of whole blocks, as checksums of spaces are.
    let whole = Range::between(range.offset / BLOCK * BLOCK, range.end().div_ceil(BLOCK).saturating_mul(BLOCK).min(size));
    let kept = Arc::new(Kept { blocks: Mutex::default() });
    let origins: Origins = Arc::new(origins);
    let fetched = fetcher.fetch_blocks(&origins, size, vec![whole], BLOCK, &kept).await.map_err(|error| error.to_string())?;
    if !fetched.lost.is_empty() {
        return Err(told(&sources, &fetched.blames));
    }
    let blocks = std::mem::take(&mut *kept.blocks.lock().unwrap_or_else(PoisonError::into_inner));
    let bytes: Vec<u8> = blocks.into_values().flatten().collect();
    let from = (range.offset - whole.offset) as usize;
    bytes.get(from..from + range.length as usize).map(<[u8]>::to_vec).ok_or_else(|| "the source sent too little".to_owned())
}
