//! The sources of one file, which are mirrors: whether they answer, hold the same, and still do when all is fetched.

use crate::failure::{DAMAGED, Failure};
use crate::fetch::{Fetcher, Origins};
use crate::origin::Origin;
use crate::progress::Progress;
use futures_util::future::join_all;
use mend_data::plan::Fault;
use mend_data::ranges;
use mend_data::record::{Source, Version};
use mend_data::sums::{BLOCK, Sum, Sums};
use std::time::Duration;

/// Blocks by which a new source is compared with checksums that are known.
const COMPARED: u64 = 8;

/// The sources as an error tells them: each with what is wrong.
pub fn told(sources: &[Source], blames: &[Option<String>]) -> String {
    let one = |(source, blame): (&Source, &Option<String>)| format!("{}: {}", source.uri, blame.as_deref().unwrap_or("it was not needed"));
    sources.iter().zip(blames).map(one).collect::<Vec<_>>().join("; ")
}

/// What is told if a part that was fetched earlier is of no use.
pub fn told_of_new_begin(shown: &str) -> String {
    format!(
        "mend data: {shown}: a source has changed or is missing since an earlier command fetched a part of it; that part is fetched again"
    )
}

/// Tells of sources that failed where others did not.
pub fn tell_of_failed(shown: &str, sources: &[Source], blames: &[Option<String>], progress: &Progress) {
    for (source, blame) in sources.iter().zip(blames).filter_map(|(source, blame)| blame.as_ref().map(|blame| (source, blame))) {
        progress.tell(&format!("mend data: {shown}: {} failed, others did not: {blame}", source.uri));
    }
}

/// The failure of a file of which no source delivered all, and what helps: `failure` says what each is to blame for.
pub fn broken_off(failure: Failure, blames: &[Option<String>]) -> Failure {
    let (hint, code) = match blames.iter().flatten().any(|blame| blame.contains("has changed")) {
        true => ("a source changed while it was fetched; repeat the command to have what it holds now", DAMAGED),
        false => ("repeat the command to go on: what was fetched is not fetched again", failure.code),
    };
    Failure { hint: hint.to_owned(), code, ..failure }
}

/// What a fault is told as.
pub fn blame(fault: &Fault) -> String {
    let (Fault::Passing(why) | Fault::Final(why)) = fault;
    why.clone()
}

/// Opens sources, and asks each for its version. One that has another than it had is not used.
pub async fn open(sources: &mut [Source], fetcher: &Fetcher, trusted: bool) -> Vec<Result<Origin, Fault>> {
    let silence = fetcher.settings.silence;
    let opened = sources.iter().map(|source| async move {
        let origin = Origin::open(source, silence, trusted)?;
        let mut asked = 0;
        loop {
            asked += 1;
            match origin.version(silence).await {
                Ok(version) => return Ok((origin, version)),
                Err(Fault::Passing(_)) if asked < fetcher.settings.attempts => {
                    tokio::time::sleep(Duration::from_millis(100 << asked.min(5))).await
                }
                Err(fault) => return Err(fault),
            }
        }
    });
    let opened: Vec<Result<(Origin, Version), Fault>> = join_all(opened).await;
    let mut origins = Vec::new();
    for (source, opened) in sources.iter_mut().zip(opened) {
        origins.push(opened.and_then(|(origin, version)| {
            if let Some(why) = source.version.as_ref().and_then(|then| then.changed(&version)) {
                return Err(Fault::Final(format!("it has changed since: {why}")));
            }
            origin.expect(&version);
            source.version = Some(version);
            Ok(origin)
        }));
    }
    origins
}

/// So many blocks of a file of this size: the first, the last, and others evenly between.
fn spread(size: u64, count: u64) -> Vec<u64> {
    let last = ranges::blocks(size).saturating_sub(1);
    let mut indices: Vec<u64> = (0..count).map(|at| last * at / count.saturating_sub(1).max(1)).collect();
    indices.dedup();
    indices
}

/// Where a source holds other bytes than the checksums say; `None` if it is not seen to. Some blocks alone are looked at.
///
/// # Errors
/// The source does not give them.
pub async fn differs(origin: &Origin, size: u64, sums: &Sums, fetcher: &Fetcher) -> Result<Option<u64>, Fault> {
    let indices = spread(size, COMPARED);
    let own = sample(origin, size, &indices, fetcher).await?;
    Ok(indices
        .into_iter()
        .zip(own)
        .find(|(index, own)| sums.get(*index).is_some_and(|known| known != *own))
        .map(|(index, _)| index * BLOCK))
}

/// The sums of these blocks, in order.
async fn sample(origin: &Origin, size: u64, indices: &[u64], fetcher: &Fetcher) -> Result<Vec<Sum>, Fault> {
    let mut sums = Vec::new();
    for &index in indices {
        let mut bytes = Vec::new();
        let mut body = origin.read(ranges::block(index, size), fetcher.settings.silence).await?;
        while let Some(piece) = body.next(fetcher.settings.silence).await? {
            bytes.extend_from_slice(&piece);
        }
        sums.push(Sum::of(&bytes));
    }
    Ok(sums)
}

/// Leaves out mirrors that hold something else than the first source that can be had. The size of the file.
pub async fn agree(sources: &[Source], origins: &mut [Result<Origin, Fault>], fetcher: &Fetcher) -> Option<u64> {
    let sizes: Vec<Option<u64>> =
        sources.iter().zip(&*origins).map(|(source, origin)| origin.as_ref().ok().and(source.version.as_ref()).map(|it| it.size)).collect();
    let first = sizes.iter().position(Option::is_some)?;
    let size = sizes[first]?;
    let mut expected = None;
    for at in first + 1..origins.len() {
        let Some(own) = sizes[at] else { continue };
        if own != size {
            origins[at] = Err(Fault::Final(format!("it has {own} bytes, {} has {size}", sources[first].uri)));
            continue;
        }
        if size == 0 {
            continue;
        }
        if expected.is_none() {
            let Ok(origin) = &origins[first] else { return None };
            // If the first one fails now, the plan will find that out; until then nobody can be compared with it.
            expected = sample(origin, size, &spread(size, 3), fetcher).await.ok();
        }
        let Ok(origin) = &origins[at] else { continue };
        let own = sample(origin, size, &spread(size, 3), fetcher).await;
        match (&expected, own) {
            (Some(expected), Ok(own)) if *expected == own => {}
            (Some(_), Ok(_)) => origins[at] = Err(Fault::Final(format!("it holds other bytes than {}", sources[first].uri))),
            (None, Ok(_)) => origins[at] = Err(Fault::Final(format!("it could not be compared with {}", sources[first].uri))),
            (_, Err(fault)) => origins[at] = Err(fault),
        }
    }
    Some(size)
}

/// That the sources still hold what was fetched of them.
pub async fn unchanged(sources: &[Source], origins: &Origins, used: &[bool], silence: Duration) -> Result<(), String> {
    for ((source, origin), _) in sources.iter().zip(origins.iter()).zip(used).filter(|(_, used)| **used) {
        let (Ok(origin), Some(then)) = (origin, &source.version) else { continue };
        // A source that has gone since cannot have changed what it sent.
        if let Some(why) = origin.version(silence).await.ok().and_then(|now| then.changed(&now)) {
            return Err(format!("{} has changed ({why})", source.uri));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_the_first_the_last_and_some_between() {
        assert_eq!(spread(1, 8), [0]);
        assert_eq!(spread(3 * BLOCK, 3), [0, 1, 2]);
        assert_eq!(spread(2 * BLOCK, 8), [0, 1]);
        assert_eq!(spread(100 * BLOCK + 1, 3), [0, 50, 100]);
        assert_eq!(spread(71 * BLOCK, 8), [0, 10, 20, 30, 40, 50, 60, 70]);
    }
}
