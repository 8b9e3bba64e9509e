//! Makes durable what was printed and what the machine was told, and only then lets daemons forget it: the node of a controller may lose its power.
//!
//! ```text
//! printed, told ──► waits, at most its time or for MAX_WAITING messages ──► fsync: output, record of what was shown, log ──► confirmed
//! ```
//! One thread does it, for all that has come meanwhile at once, so that nobody waits for the disk but the daemons, which keep what is not confirmed and, when that is
//! much, let ranks wait. Invariant: the record of what was shown is made durable after what it tells of. Faults assumed: a disk that is full (nothing is confirmed until there is room,
//! and the user is told once); a disk that fails (said in the log of `mend`; the job runs on); a standard output that cannot be made durable, as a pipe.

use super::confirmations::{Confirmations, Printing};
use crate::detached::{SharedSpool, lock};
use crate::spool::is_full;
use mend_job::durable::SOON_US;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time until output is made durable, but for the time that takes.
const INTERVAL: Duration = Duration::from_micros(SOON_US);
/// Pieces of output after which it is done at once: daemons keep some more without waiting.
const MAX_WAITING: usize = 32;

/// Between two tries while a disk is full.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Where output goes.
#[derive(Clone, Debug)]
pub enum Destination {
    /// To the job's spool.
    Spool(SharedSpool),
    /// To standard output and standard error of this process.
    Own,
}

impl Destination {
    /// Makes durable what is there. What cannot be (a terminal, a pipe) has been given away.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn sync(&self) -> io::Result<()> {
        match self {
            Self::Spool(spool) => {
                let file = lock(spool).newest()?;
                file.map_or(Ok(()), |file| file.sync_data())
            }
            Self::Own => sync_regular(rustix::stdio::stdout()).and_then(|()| sync_regular(rustix::stdio::stderr())),
        }
    }
}

fn sync_regular(file: impl AsFd) -> io::Result<()> {
    let found = rustix::fs::fstat(&file)?;
    if rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::RegularFile {
        rustix::fs::fdatasync(&file)?;
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Waiting {
    printed: Vec<Printing>,
    /// Could not be made durable before.
    refused: Vec<Printing>,
    /// Where that went, and the record of it.
    output: Option<(Destination, Option<Arc<File>>)>,
    told: Option<Arc<File>>,
    due: Option<Instant>,
    over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    news: Condvar,
}

/// Hands what was written to the thread that makes it durable.
#[derive(Clone, Debug)]
pub struct Flush(Arc<Shared>);

/// The thread. It ends, with all durable, when this is dropped.
#[derive(Debug)]
pub struct Flusher {
    flush: Flush,
    thread: Option<JoinHandle<()>>,
}

impl Flush {
    fn add(&self, within: Duration, change: impl FnOnce(&mut Waiting)) {
        let due = Instant::now() + within;
        let mut waiting = lock(&self.0.waiting);
        change(&mut waiting);
        waiting.due = Some(waiting.due.map_or(due, |before| before.min(due)));
        self.0.news.notify_one();
    }

    /// Output was printed there, and is on this record.
    pub fn printed(&self, printing: Printing, destination: &Destination, record: Option<Arc<File>>) {
        self.add(INTERVAL, |waiting| {
            waiting.printed.push(printing);
            waiting.output = Some((destination.clone(), record));
        });
    }

    /// Something that is to be durable within this time was written to the log of what the machine was told.
    pub fn told(&self, log: &Arc<File>, within: Duration) {
        self.add(within, |waiting| waiting.told = Some(log.clone()));
    }

    /// The disk is full: this is tried again. What came since goes to the same files, or to those in their place.
    fn refused(&self, before: Waiting) {
        self.add(RETRY_PAUSE, |waiting| {
            waiting.refused.extend(before.refused.into_iter().chain(before.printed));
            waiting.output = waiting.output.take().or(before.output);
            waiting.told = waiting.told.take().or(before.told);
        });
    }

    /// What is to be made durable, when it is time; `None`: no more will come.
    fn next(&self) -> Option<Waiting> {
        let mut waiting = lock(&self.0.waiting);
        loop {
            let left = waiting.due.map(|due| due.saturating_duration_since(Instant::now()));
            let due = waiting.over || waiting.printed.len() >= MAX_WAITING || left.is_some_and(|left| left.is_zero());
            waiting = match left {
                Some(_) if due => {
                    let over = waiting.over;
                    return Some(std::mem::replace(&mut *waiting, Waiting { over, ..Waiting::default() }));
                }
                Some(left) => self.0.news.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0,
                None if waiting.over => return None,
                None => self.0.news.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Flusher {
    /// Begins, for a job whose daemons these are.
    #[must_use]
    pub fn begin(confirmations: Confirmations) -> Self {
        Self::begin_with(confirmations, make_durable)
    }

    fn begin_with(confirmations: Confirmations, make_durable: impl Fn(&Waiting) -> io::Result<()> + Send + 'static) -> Self {
        let flush = Flush(Arc::default());
        let own = flush.clone();
        let thread = std::thread::Builder::new().name("flush".into()).spawn(move || {
            let mut told = false;
            while let Some(waiting) = own.next() {
                // Before anything is made durable: what comes later may not be. Nor is what was heard since, if only output is.
                let numbers = waiting.told.is_some().then(|| confirmations.numbers());
                match make_durable(&waiting) {
                    Ok(()) => confirmations.durable(&numbers.unwrap_or_default()),
                    Err(error) => {
                        if !std::mem::replace(&mut told, true) {
                            let keep = "the job's nodes keep it until there is room, and ranks that print much wait";
                            mend_report::tell!("mend: what the job prints and decides cannot be made durable ({error}): {keep}");
                        }
                        if !waiting.over {
                            own.refused(waiting);
                        }
                    }
                }
            }
        });
        Self { flush, thread: thread.ok() }
    }

    /// What hands work to it; `None` if no thread could be had: then nothing waits to be durable.
    #[must_use]
    pub fn flush(&self) -> Option<&Flush> {
        self.thread.is_some().then_some(&self.flush)
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        lock(&self.flush.0.waiting).over = true;
        self.flush.0.news.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An error is that of a full disk: with room all is as it should be.
fn make_durable(waiting: &Waiting) -> io::Result<()> {
    let output = waiting.output.as_ref();
    // One after the other: the record is not durable before what it tells of.
    let output_synced = output.map_or(Ok(()), |(destination, _)| destination.sync());
    run_on_unless_full(output_synced)?;
    run_on_unless_full(output.and_then(|(_, record)| record.as_ref()).map_or(Ok(()), |record| record.sync_data()))?;
    run_on_unless_full(waiting.told.as_ref().map_or(Ok(()), |log| log.sync_data()))
}

/// The job is not to stand still for a disk that fails: what is lost if the power fails, too, is more then.
fn run_on_unless_full(synced: io::Result<()>) -> io::Result<()> {
    match synced {
        Err(error) if is_full(&error) => Err(error),
        Err(error) => {
            tracing::warn!(%error, "what was printed or decided cannot be made durable");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::Spool;
    use mend_messages::daemon::Stream;
    use mend_wire::Link;

    #[test]
    fn what_was_printed_and_told_is_confirmed_when_it_is_durable() {
        let place = tempfile::tempdir().unwrap();
        let spool = Arc::new(Mutex::new(Spool::open(place.path(), 1 << 20).unwrap()));
        let log = Arc::new(File::create(place.path().join("told")).unwrap());
        let all = Confirmations::new(vec![(Arc::new(Link::confirming(0)), 0)]);
        let flusher = Flusher::begin(all.clone());
        let flush = flusher.flush().unwrap().clone();
        for number in 1..=100 {
            let printing = all.printing(0, number, None);
            all.heard(0, number, true);
            flush.told(&log, INTERVAL);
            lock(&spool).write(Stream::Stdout, b"line\n");
            flush.printed(printing, &Destination::Spool(spool.clone()), None);
        }
        drop(flusher);
        all.heard(0, 101, false);
        assert_eq!(all.all_heard(), [(101, std::collections::BTreeMap::new())]);
        assert_eq!(all.confirmed_of(0), 101);
    }

    #[test]
    fn what_was_told_since_is_not_confirmed_when_output_is_durable() {
        let place = tempfile::tempdir().unwrap();
        let spool = Arc::new(Mutex::new(Spool::open(place.path(), 1 << 20).unwrap()));
        let all = Confirmations::new(vec![(Arc::new(Link::confirming(0)), 0)]);
        let flusher = Flusher::begin(all.clone());
        // Its log is handed over a moment later.
        all.heard(0, 1, true);
        flusher.flush().unwrap().printed(all.printing(0, 2, None), &Destination::Spool(spool), None);
        drop(flusher);
        assert_eq!(all.confirmed_of(0), 0);
    }

    #[test]
    fn nothing_is_confirmed_while_the_disk_is_full() {
        let place = tempfile::tempdir().unwrap();
        let spool = Arc::new(Mutex::new(Spool::open(place.path(), 1 << 20).unwrap()));
        let log = Arc::new(File::create(place.path().join("told")).unwrap());
        let all = Confirmations::new(vec![(Arc::new(Link::confirming(0)), 0)]);
        let (tried, tries) = std::sync::mpsc::channel();
        let (let_go, may_go) = std::sync::mpsc::channel::<bool>();
        let flusher = Flusher::begin_with(all.clone(), move |waiting| {
            tried.send((waiting.printed.len(), waiting.refused.len())).unwrap();
            if may_go.recv().unwrap() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
        });
        let flush = flusher.flush().unwrap().clone();
        let print = |number| {
            let printing = all.printing(0, number, None);
            all.heard(0, number, true);
            flush.told(&log, INTERVAL);
            flush.printed(printing, &Destination::Spool(spool.clone()), None);
        };
        print(1);
        let mut seen = (0, 0);
        while seen.1 == 0 {
            seen = tries.recv().unwrap();
            assert_eq!(all.confirmed_of(0), 0);
            if seen.1 == 0 {
                let_go.send(false).unwrap();
            }
        }
        // It is tried again with what was refused, and what comes meanwhile has to wait as well.
        print(2);
        let_go.send(false).unwrap();
        tries.recv().unwrap();
        assert_eq!(all.confirmed_of(0), 0);
        // There is room; more answers than there can be tries.
        (0..16).for_each(|_| let_go.send(true).unwrap());
        drop(flusher);
        assert_eq!(all.confirmed_of(0), 2);
    }
}
