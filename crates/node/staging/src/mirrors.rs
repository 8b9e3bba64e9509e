//! The sources of one file, which are mirrors: whether they answer, hold the same, and still do when all is fetched.

use crate::failure::{DAMAGED, Failure, UNREACHABLE};
use crate::fetch::{Fetcher, Origins, Sink, Taken};
use crate::origin::Origin;
use crate::progress::Progress;
use futures_util::future::join_all;
use mend_data::plan::Fault;
use mend_data::ranges;
use mend_data::record::{Source, Version};
use mend_data::sums::{BLOCK, Sum, Sums};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

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

/// The exit code and what helps where no source gives what is needed of a file: each is to blame for something, or was not needed.
pub fn no_help(blames: &[Option<String>]) -> (i32, &'static str) {
    match blames.iter().flatten().all(|blame| blame.contains("has changed")) {
        true => (DAMAGED, "what a source holds now is never mixed in; `mend data stage --force` fetches all of it"),
        false => (UNREACHABLE, "repeat the command to go on"),
    }
}

/// What a fault is told as.
pub fn blame(fault: &Fault) -> String {
    let (Fault::Passing(why) | Fault::Final(why)) = fault;
    why.clone()
}

/// Asks once more after faults that may pass.
async fn again<T, Asked: Future<Output = Result<T, Fault>>>(fetcher: &Fetcher, ask: impl Fn() -> Asked) -> Result<T, Fault> {
    let mut asked = 0;
    loop {
        asked += 1;
        match ask().await {
            Err(Fault::Passing(_)) if asked < fetcher.settings.attempts => {
                tokio::time::sleep(Duration::from_millis(100 << asked.min(5))).await;
            }
            answered => return answered,
        }
    }
}

/// Opens sources, and asks each for its version. One that has another than it had is not used.
pub async fn open(sources: &mut [Source], fetcher: &Fetcher, trusted: bool) -> Vec<Result<Origin, Fault>> {
    let silence = fetcher.settings.silence;
    let opened = sources.iter().map(|source| async move {
        let origin = Origin::open(source, silence, trusted)?;
        let version = again(fetcher, || origin.version(silence)).await?;
        Ok((origin, version))
    });
    let opened: Vec<Result<(Origin, Version), Fault>> = join_all(opened).await;
    let mut origins = Vec::new();
    for (source, opened) in sources.iter_mut().zip(opened) {
        origins.push(opened.and_then(|(origin, version)| {
            if let Some(why) = source.changed(&version) {
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

/// What mirrors agree on.
pub struct Agreed {
    /// The size of the file; `None`: no source says it.
    pub size: Option<u64>,
    /// Those that hold something else, not those that cannot be read.
    pub differ: Vec<usize>,
}

/// Leaves out mirrors that hold something else than the first source that can be read. Where the file's checksums are `known`, they tell what a mirror holds, and none is read here.
pub async fn agree(sources: &[Source], origins: &mut [Result<Origin, Fault>], fetcher: &Fetcher, known: bool) -> Agreed {
    let sizes: Vec<Option<u64>> =
        sources.iter().zip(&*origins).map(|(source, origin)| origin.as_ref().ok().and(source.version.as_ref()).map(|it| it.size)).collect();
    let mut first: Option<(usize, u64, Vec<Sum>)> = None;
    let mut differ = Vec::new();
    for at in 0..origins.len() {
        let Some(own) = sizes[at] else { continue };
        if let Some((first, size, _)) = &first
            && own != *size
        {
            origins[at] = Err(Fault::Final(format!("it has {own} bytes, {} has {size}", sources[*first].uri)));
            differ.push(at);
            continue;
        }
        // One that is alone has nothing to be compared with; whether it can be read is seen when it is.
        let is_alone = first.is_none() && !(at + 1..origins.len()).any(|later| origins[later].is_ok() && sizes[later].is_some());
        if known || own == 0 || is_alone {
            first.get_or_insert((at, own, Vec::new()));
            continue;
        }
        let Ok(origin) = &origins[at] else { continue };
        let places = spread(own, 3);
        let sums = match again(fetcher, || sample(origin, own, &places, fetcher)).await {
            Ok(sums) => sums,
            Err(fault) => {
                origins[at] = Err(fault);
                continue;
            }
        };
        let (first, _, expected) = first.get_or_insert_with(|| (at, own, sums.clone()));
        if *expected != sums {
            origins[at] = Err(Fault::Final(format!("it holds other bytes than {}", sources[*first].uri)));
            differ.push(at);
        }
    }
    Agreed { size: first.map(|(_, size, _)| size), differ }
}

/// A block that one mirror has given.
#[derive(Clone, Copy)]
pub struct Given {
    pub block: u64,
    pub sum: Sum,
    /// The number of the mirror that sent it.
    pub by: usize,
}

/// Compares what one mirror holds with what others have given, until a block differs.
struct Same {
    given: HashMap<u64, Sum>,
    differs: Mutex<Option<u64>>,
}

impl Sink for Same {
    fn wants(&self, block: u64) -> bool {
        self.given.contains_key(&block)
    }

    fn take(&self, block: u64, bytes: &[u8]) -> io::Result<Taken> {
        if self.given.get(&block).is_none_or(|sum| *sum == Sum::of(bytes)) {
            return Ok(Taken::Good);
        }
        *self.differs.lock().unwrap_or_else(PoisonError::into_inner) = Some(block);
        // Nothing else of it needs to be fetched.
        Err(io::Error::other("it differs"))
    }
}

/// Which of these mirrors holds another block than the one that has given it, and such a block. All are asked at once, and one that fails no more.
pub async fn other(origins: &Origins, asked: Vec<usize>, size: u64, given: &[Given], fetcher: &Fetcher) -> Option<(usize, u64)> {
    let compared = asked.into_iter().map(|at| async move {
        let given: HashMap<u64, Sum> = given.iter().filter(|one| one.by != at).map(|one| (one.block, one.sum)).collect();
        let blocks: Vec<u64> = given.keys().copied().collect();
        let same = Arc::new(Same { given, differs: Mutex::default() });
        let _ = fetcher.fetch_from(at, origins, size, ranges::of_blocks(blocks, size), &same).await;
        let differs = *same.differs.lock().unwrap_or_else(PoisonError::into_inner);
        differs.map(|block| (at, block))
    });
    join_all(compared).await.into_iter().flatten().next()
}

/// What the sources of a file hold by the end is not seen to be what was fetched of them.
#[derive(Debug)]
pub enum Unsure {
    /// One has changed.
    Changed(String),
    /// One does not say, whose answers say nothing of their version either.
    Silent(String),
}

impl fmt::Display for Unsure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Changed(what) | Self::Silent(what)) = self;
        formatter.write_str(what)
    }
}

impl Unsure {
    /// The failure of what was done meanwhile, which is `done` with it. What is `kept` is gone on with by the next command, if the source has not changed then.
    pub fn failure(&self, shown: &str, done: &str, changed_hint: &str, kept: bool) -> Failure {
        match self {
            Self::Changed(what) => Failure::new(format!("{shown}: {what} while it was {done}"), changed_hint, DAMAGED),
            Self::Silent(what) => {
                let hint = if kept {
                    "repeat the command when it answers: what was fetched is not fetched again"
                } else {
                    "repeat the command when it answers"
                };
                Failure::new(format!("{shown}: {what} since it was {done}"), hint, UNREACHABLE)
            }
        }
    }
}

/// That the sources still hold what was fetched of them. One whose answers were all compared with its version and that has gone since cannot have changed what it sent; of others only this
/// look tells.
pub async fn unchanged(sources: &[Source], origins: &Origins, used: &[bool], fetcher: &Fetcher) -> Result<(), Unsure> {
    for ((source, origin), _) in sources.iter().zip(origins.iter()).zip(used).filter(|(_, used)| **used) {
        let Ok(origin) = origin else { continue };
        if source.version.is_none() {
            continue;
        }
        match again(fetcher, || origin.version(fetcher.settings.silence)).await {
            Ok(now) => {
                if let Some(why) = source.changed(&now) {
                    return Err(Unsure::Changed(format!("{} has changed ({why})", source.uri)));
                }
            }
            Err(_) if origin.compares_answers() => {}
            Err(fault) => {
                return Err(Unsure::Silent(format!("{} does not say whether it has changed ({})", source.uri, blame(&fault))));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::waited;
    use crate::settings::Settings;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const SIZE: u64 = 3 * BLOCK;

    /// A server that says how long its file is, and gives nobody a byte; how often it was asked for some.
    fn forbidding() -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("http://{}/x", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        std::thread::spawn(move || {
            for mut connection in listener.incoming().flatten() {
                let mut lines = BufReader::new(connection.try_clone().unwrap()).lines().map_while(Result::ok);
                let is_head = lines.next().is_some_and(|line| line.starts_with("HEAD"));
                lines.find(String::is_empty);
                let answer = match is_head {
                    true => format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\nConnection: close\r\n\r\n"),
                    false => "HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
                };
                counted.fetch_add(usize::from(!is_head), Ordering::Relaxed);
                let _ = connection.write_all(answer.as_bytes());
            }
        });
        (uri, asked)
    }

    #[test]
    fn a_mirror_that_cannot_be_read_does_not_differ_and_is_asked_once() {
        let directory = tempfile::tempdir().unwrap();
        let (uri, asked) = forbidding();
        let local = |name: &str, byte: u8| {
            let path = directory.path().join(name);
            std::fs::write(&path, vec![byte; SIZE as usize]).unwrap();
            format!("file://{}", path.display())
        };
        let mut sources = [local("one", 1), uri, local("two", 2)].map(|uri| Source { uri, ..Source::default() });
        let fetcher = Fetcher::new(Settings::small());
        waited(async {
            let mut opened = open(&mut sources, &fetcher, true).await;
            assert!(opened.iter().all(Result::is_ok));
            let agreed = agree(&sources, &mut opened, &fetcher, false).await;
            assert_eq!((agreed.size, agreed.differ), (Some(SIZE), vec![2]));
            assert!(opened[1].as_ref().is_err_and(|fault| matches!(fault, Fault::Final(_))));
            let origins: Origins = Arc::new(open(&mut sources, &fetcher, true).await);
            asked.store(0, Ordering::Relaxed);
            let sum = Sum::of(&[1; BLOCK as usize]);
            let given = [0, 1, 2].map(|block| Given { block, sum, by: 0 });
            assert_eq!(other(&origins, vec![0, 1], SIZE, &given, &fetcher).await, None);
            assert_eq!(asked.load(Ordering::Relaxed), 1);
            let differs = other(&origins, vec![0, 1, 2], SIZE, &given, &fetcher).await;
            assert!(differs.is_some_and(|(at, _)| at == 2), "{differs:?}");
        });
    }

    #[test]
    fn blocks_are_the_first_the_last_and_some_between() {
        assert_eq!(spread(1, 8), [0]);
        assert_eq!(spread(3 * BLOCK, 3), [0, 1, 2]);
        assert_eq!(spread(2 * BLOCK, 8), [0, 1]);
        assert_eq!(spread(100 * BLOCK + 1, 3), [0, 50, 100]);
        assert_eq!(spread(71 * BLOCK, 8), [0, 10, 20, 30, 40, 50, 60, 70]);
    }
}
