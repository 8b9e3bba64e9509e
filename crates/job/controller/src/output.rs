//! The ranks' output: printed in the order it comes, counted per rank, and after a restart not printed twice.
//!
//! A checkpoint notes how much each rank had printed, and a checksum of it. A restarted rank prints the rest again; what an earlier life
//! of the job already showed beyond the checkpoint is held back and compared, line by line ([`crate::stream_digest`]), with what was shown: where
//! it is the same, it is dropped, so that the outputs of `mend run` and `mend restart`, put one after the other, read as if nothing
//! had happened; where it is not, the user is told, and it is printed from the beginning of that line on.

use crate::detached;
use crate::error::RunError;
use crate::failover::confirmations::Printing;
use crate::failover::flush::{Destination, Flush};
use crate::lock_identity::LockIdentity;
use crate::manifest::Printed;
use crate::replayed_output::{Divergence, Replay};
use crate::shown_output::{self, ShownLog, ShownOutput};
use crate::standard_streams::{FullDiskWait, named, show};
use crate::stream_digest::Mark;
use crate::teller::{Message, Teller};
use mend_job::replay::Compared;
use mend_messages::daemon::Stream;
use mend_messages::job::Rank;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendError;
use tokio::task::JoinHandle;

/// Counts, compares and prints.
#[derive(Debug)]
pub struct Output {
    streams: BTreeMap<(Rank, Stream), Replay>,
    /// Streams that have differed, or were compared again, of which the log alone has what is about to be printed.
    unprinted: BTreeMap<(Rank, Stream), Unprinted>,
    /// Nobody waits for room there. Daemons keep what is not printed, and hold ranks back when that is much, so that no more than that waits here.
    waiting: mpsc::UnboundedSender<Waiting>,
    /// Messages of ours go there from here, so that nobody but the printer waits for whoever reads standard error.
    teller: Teller,
    /// Messages of ours among what waits.
    messages: Arc<AtomicUsize>,
    printer: JoinHandle<bool>,
    /// The printer does not wait for room for ever any more.
    over: Arc<AtomicBool>,
    /// That the printer has ended too early was told.
    dead: bool,
    /// Makes durable what is printed, if daemons keep it until then.
    flushed: Arc<OnceLock<Flush>>,
}

/// What is about to be printed of a stream, and what has come since.
#[derive(Debug)]
struct Unprinted {
    /// Goes when it is printed, and durable.
    printing: Weak<()>,
    all: Compared,
}

impl Unprinted {
    fn is_so(&self) -> bool {
        self.printing.strong_count() > 0
    }
}

/// What the printer does next.
enum Waiting {
    Print(Chunk),
    /// A message of ours.
    Tell(Message),
}

/// One message less waits behind output when this is dropped, however its telling ended.
struct Told<'a>(&'a AtomicUsize);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is to be printed of a stream.
#[derive(Debug)]
struct Chunk {
    rank: Rank,
    stream: Stream,
    bytes: Vec<u8>,
    anew: Option<Divergence>,
    /// Goes when it is printed, and durable.
    printing: Option<Printing>,
}

impl Output {
    /// `at_checkpoint` is what the restored ranks had printed, `found` what the user has seen when the job ended. Both empty for a new job.
    /// It is kept on record in the job's directory, for the holder of its lock. A detached job's goes there itself.
    ///
    /// # Errors
    /// If it cannot be spooled.
    pub fn new(
        directory: &Path,
        holder: LockIdentity,
        at_checkpoint: &BTreeMap<Rank, Printed>,
        found: ShownOutput,
    ) -> Result<Self, RunError> {
        let spool = detached::spool_in(directory)?;
        if let (Some(spool), Some(known)) = (&spool, found.spooled_until)
            && let Err(error) = detached::lock(spool).forget_behind(known)
        {
            tracing::warn!(%error, "what is spooled and not on record cannot be removed");
        }
        if let Some((rank, stream, bytes)) = found.doubt {
            let stream = named(stream);
            mend_report::tell!(
                "mend: the last {bytes} bytes of rank {rank}'s {stream} may be printed twice: the job was killed while it printed them"
            );
        }
        let mut streams = BTreeMap::new();
        for (rank, printed) in at_checkpoint {
            for stream in [Stream::Stdout, Stream::Stderr] {
                streams.insert((*rank, stream), Replay::new(printed.mark(stream), found.digests.get(&(*rank, stream))));
            }
        }
        for (key, digest) in &found.digests {
            streams.entry(*key).or_insert_with(|| Replay::new(Mark::default(), Some(digest)));
        }
        let (waiting, mut next) = mpsc::unbounded_channel();
        let messages = Arc::new(AtomicUsize::new(0));
        let mut record = ShownLog::new(directory, holder, found.digests, spool.is_some());
        let told = messages.clone();
        let mut room = FullDiskWait::default();
        let over = room.over();
        let teller = Teller::begin();
        let tells = teller.hand();
        let destination = spool.map_or(Destination::Own, Destination::Spool);
        let flushed: Arc<OnceLock<Flush>> = Arc::default();
        let flush = flushed.clone();
        let printer = tokio::task::spawn_blocking(move || {
            while let Some(waiting) = next.blocking_recv() {
                let step = AssertUnwindSafe(|| match waiting {
                    Waiting::Print(mut chunk) => {
                        print(&mut record, &destination, &chunk, &mut room);
                        if let (Some(printing), Some(flush)) = (chunk.printing.take(), flush.get()) {
                            flush.printed(printing, &destination, record.file());
                        }
                    }
                    Waiting::Tell(tell) => {
                        let _told = Told(&told);
                        tells.tell_and_wait(tell);
                    }
                });
                // A defect of ours in one message must not cost what ranks print after it. The panic has said what it was.
                let _ = std::panic::catch_unwind(step);
            }
            // Where output was lost, the record ends before that, as if this process had been killed: a restart prints it.
            let is_whole = !room.has_lost();
            if is_whole {
                record.close();
            }
            is_whole
        });
        Ok(Self { streams, unprinted: BTreeMap::new(), waiting, teller, messages, printer, over, dead: false, flushed })
    }

    /// From now on what is printed is made durable by this.
    pub fn flush_by(&self, flush: Flush) {
        // There is one for each.
        let _ = self.flushed.set(flush);
    }

    /// Whether what comes on a stream is compared with what was shown, or follows what was and is not printed yet: nobody else keeps it all.
    #[must_use]
    pub fn compares(&self, rank: Rank, stream: Stream) -> bool {
        let key = (rank, stream);
        self.streams.get(&key).is_some_and(|replay| !replay.ahead.is_empty()) || self.unprinted.get(&key).is_some_and(Unprinted::is_so)
    }

    /// What is held back of such streams, or not printed yet.
    #[must_use]
    pub fn compared(&self) -> Vec<((Rank, Stream), Compared)> {
        let compared = self.streams.iter().filter(|(_, replay)| !replay.ahead.is_empty());
        let held = compared.map(|(key, replay)| (*key, Compared { start: replay.agreed, bytes: replay.held.clone(), ended: false }));
        // A stream is one or the other.
        let unprinted = self.unprinted.iter().filter(|(_, unprinted)| unprinted.is_so());
        held.chain(unprinted.map(|(key, unprinted)| (*key, unprinted.all.clone()))).collect()
    }

    /// What a lost controller has taken of such streams is compared again: what it held back, and what it may not have printed. To be called when it
    /// is known what makes durable what is printed.
    pub fn compare_again(&mut self, compared: &[((Rank, Stream), Compared)]) {
        for ((rank, stream), Compared { bytes, ended, .. }) in compared {
            self.take((*rank, *stream), bytes, None, true);
            if *ended {
                self.stream_ended(*rank, *stream);
            }
        }
    }

    /// This is about to be printed, and the log alone has it.
    fn keep(&mut self, key: (Rank, Stream), all: Compared, printing: Option<Printing>) -> Printing {
        let held = Arc::new(());
        self.unprinted.insert(key, Unprinted { printing: Arc::downgrade(&held), all });
        printing.unwrap_or_else(Printing::of_no_message).holding(held)
    }

    /// Where a stream will stand behind these bytes.
    #[must_use]
    pub fn behind(&self, rank: Rank, stream: Stream, bytes: &[u8]) -> Mark {
        self.streams.get(&(rank, stream)).map(|replay| replay.now).unwrap_or_default().after(bytes)
    }

    /// Prints what is already counted: a lost controller had taken it, and may not have printed it.
    pub fn print(&mut self, rank: Rank, stream: Stream, bytes: Vec<u8>, printing: Option<Printing>) {
        self.put(Waiting::Print(Chunk { rank, stream, bytes, anew: None, printing }));
    }

    /// Takes what a rank wrote. `printing` goes when it is printed.
    pub fn write(&mut self, rank: Rank, stream: Stream, bytes: &[u8], printing: Option<Printing>) {
        self.take((rank, stream), bytes, printing, false);
    }

    /// `again`: a lost controller had it.
    fn take(&mut self, (rank, stream): (Rank, Stream), bytes: &[u8], mut printing: Option<Printing>, again: bool) {
        let replay = self.streams.entry((rank, stream)).or_default();
        let (bytes, anew) = replay.take(bytes);
        let (start, lines) = (replay.agreed, replay.lines);
        if (again || anew.is_some()) && !bytes.is_empty() {
            let all = Compared { start, bytes: bytes.clone(), ended: false };
            printing = Some(self.keep((rank, stream), all, printing));
        } else if let Some(unprinted) = self.unprinted.get_mut(&(rank, stream)) {
            if unprinted.is_so() {
                unprinted.all.bytes.extend_from_slice(&bytes);
            } else {
                self.unprinted.remove(&(rank, stream));
            }
        }
        if let Some(Divergence { at, .. }) = anew {
            let (line, stream, at) = (lines + 1, named(stream), at.at);
            self.tell(false, move || {
                mend_report::tell!(
                    "mend: rank {rank}: its {stream} is not what it was before the restart, from byte {at} on (line {line} since the checkpoint); it is printed from there"
                );
            });
        }
        if !bytes.is_empty() || anew.is_some() {
            self.put(Waiting::Print(Chunk { rank, stream, bytes, anew, printing }));
        }
    }

    /// A rank ended by itself: what it printed and could not be compared any more is printed.
    pub fn ended(&mut self, rank: Rank) {
        [Stream::Stdout, Stream::Stderr].into_iter().for_each(|stream| self.stream_ended(rank, stream));
    }

    fn stream_ended(&mut self, rank: Rank, stream: Stream) {
        let Some(replay) = self.streams.get_mut(&(rank, stream)).filter(|replay| !replay.ahead.is_empty()) else { return };
        let missing = replay.ahead.back().map_or(0, |end| end.at - replay.now.at);
        let (start, (bytes, anew)) = (replay.agreed, replay.differ());
        let what = named(stream);
        self.tell(false, move || {
            mend_report::tell!("mend: rank {rank} ended and has printed {missing} bytes less to {what} than it had before the restart");
        });
        if !bytes.is_empty() {
            let printing = self.keep((rank, stream), Compared { start, bytes: bytes.clone(), ended: true }, None);
            self.put(Waiting::Print(Chunk { rank, stream, bytes, anew: Some(anew), printing: Some(printing) }));
        }
    }

    /// Has something told: at once, or `behind` all that ranks have printed so far. Messages never overtake each other. Nobody waits here.
    pub fn tell(&mut self, behind: bool, tell: impl FnOnce() + Send + 'static) {
        if !behind && self.messages.load(Ordering::Relaxed) == 0 {
            return self.teller.tell(Box::new(tell));
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.put(Waiting::Tell(Box::new(tell)));
    }

    /// Hands it to the printer. Where that has ended, against all it was made for, messages are told here and the loss of output is.
    fn put(&mut self, what: Waiting) {
        match self.waiting.send(what) {
            Ok(()) => {}
            Err(SendError(Waiting::Tell(tell))) => {
                let _told = Told(&self.messages);
                self.teller.tell(tell);
            }
            Err(SendError(Waiting::Print(chunk))) => {
                if !std::mem::replace(&mut self.dead, true) {
                    self.teller.tell(Box::new(|| {
                        let what = "output of ranks is lost from here on: what prints it has ended";
                        mend_report::tell!("mend: {what}; `mend kill` ends the job, `mend restart` goes on from a checkpoint");
                    }));
                }
                drop(chunk);
            }
        }
    }

    /// What each rank has printed in all its lives.
    #[must_use]
    pub fn printed(&self) -> BTreeMap<Rank, Printed> {
        let mut printed: BTreeMap<Rank, Printed> = BTreeMap::new();
        for ((rank, stream), replay) in &self.streams {
            printed.entry(*rank).or_default().set(*stream, replay.now);
        }
        printed
    }

    /// When this says that the job is over, what a full disk does not take is soon lost.
    #[must_use]
    pub fn over(&self) -> Arc<AtomicBool> {
        self.over.clone()
    }

    /// Waits until all is printed and told. False if something of what ranks printed is missing.
    pub async fn finish(self) -> bool {
        drop(self.waiting);
        let is_whole = self.printer.await.unwrap_or(false);
        self.teller.finish().await;
        is_whole
    }
}

fn print(record: &mut ShownLog, destination: &Destination, Chunk { rank, stream, bytes, anew, .. }: &Chunk, room: &mut FullDiskWait) {
    if room.has_lost() {
        // No record is true any more. The other stream goes on.
        if matches!(destination, Destination::Own) && !room.has_lost_of(*stream) {
            let _ = show(*stream, bytes, room);
        }
        return;
    }
    let mut anew = *anew;
    if record.is_due() {
        // What cannot be made durable is on record all the same: it was printed.
        let _ = destination.sync();
    }
    let mut left = bytes.as_slice();
    for step in bytes.chunks(record.step(*stream)) {
        let begun = anew.take();
        // What is printed anew begins a line.
        let ahead: &[u8] = if begun.is_some_and(|anew| anew.open) { b"\n" } else { b"" };
        // Messages of ours go there, too: not between the record and what it is of.
        let mut spool = match destination {
            Destination::Spool(spool) => Some(detached::lock(spool)),
            Destination::Own => None,
        };
        let spooled = spool.as_ref().map(|spool| spool.positions());
        record.begin((*rank, *stream), step, begun.map(|anew| anew.at), ahead.len() as u64, spooled);
        let text = if ahead.is_empty() { step } else { &[ahead, step].concat() };
        match &mut spool {
            Some(spool) => spool.write(*stream, text),
            None => {
                // It is no reason to end the job.
                let _ = show(*stream, text, room).inspect_err(|error| room.refuse(*stream, error));
            }
        }
        left = &left[step.len()..];
        if room.has_lost() {
            if !left.is_empty() && !room.has_lost_of(*stream) {
                let _ = show(*stream, left, room);
            }
            return;
        }
        record.done();
        drop(spool);
        record.tell();
    }
}

/// How far each stream was shown, bytes.
pub type ShownStreams = BTreeMap<(Rank, Stream), u64>;

/// How far each stream was shown.
#[must_use]
pub fn shown(found: &ShownOutput) -> ShownStreams {
    found.digests.iter().map(|(key, digest)| (*key, digest.end().at)).collect()
}

/// What earlier lives of the job have shown; with `again`, what was shown beyond the checkpoint counts as not shown. What the checkpoint has and
/// was not shown no rank prints again: the user is told, and the streams go on behind it.
#[must_use]
pub fn found(directory: &crate::record::JobDirectory, at_checkpoint: &BTreeMap<Rank, Printed>, again: bool) -> ShownOutput {
    let mut found = shown_output::load(directory);
    // Where there is no record nothing is known of what was shown.
    let known = !found.digests.is_empty();
    for (rank, printed) in at_checkpoint {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let (mark, digest) = (printed.mark(stream), found.digests.entry((*rank, stream)).or_default());
            let missing = mark.at.saturating_sub(digest.end().at);
            if missing == 0 {
                continue;
            }
            digest.cut(mark);
            // Nor are these printed again.
            found.doubt = found.doubt.filter(|(of, on, _)| (of, on) != (rank, &stream));
            if known {
                let stream = named(stream);
                mend_report::tell!(
                    "mend: {missing} bytes that rank {rank} printed to {stream} before the checkpoint may never have been shown: the job was killed while they waited"
                );
            }
        }
    }
    if again {
        found.doubt = None;
        for ((rank, stream), digest) in &mut found.digests {
            digest.cut(at_checkpoint.get(rank).copied().unwrap_or_default().mark(*stream));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A controller is lost between two pieces of a line that is printed again.
    #[tokio::test]
    async fn what_a_lost_controller_held_back_is_printed_where_the_line_differs() {
        for (again, printed) in [("5 s\nend\n", ""), ("6 s\nend\n", "took 6 s\nend\n")] {
            let place = tempfile::tempdir().unwrap();
            let directory = crate::record::JobDirectory::at(place.path());
            let lock = directory.lock("a-job").unwrap();
            let mut output = Output::new(place.path(), lock.identity(), &BTreeMap::new(), ShownOutput::default()).unwrap();
            output.write(0, Stream::Stderr, b"one\ntook 5 s\nend\n", None);
            output.finish().await;
            let begin = |start: Mark| {
                let (mut printed, shown) = (Printed::default(), found(&directory, &BTreeMap::new(), false));
                printed.set(Stream::Stderr, start);
                Output::new(place.path(), lock.identity(), &BTreeMap::from([(0, printed)]), shown).unwrap()
            };
            let mut lost = begin(Mark::default().after(b"on"));
            assert!(lost.compares(0, Stream::Stderr));
            lost.write(0, Stream::Stderr, b"e\ntook ", None);
            let compared = lost.compared();
            assert_eq!(compared[0].1, Compared { start: Mark::default().after(b"one\n"), bytes: b"took ".to_vec(), ended: false });
            lost.finish().await;
            let mut output = begin(compared[0].1.start);
            output.compare_again(&compared);
            output.write(0, Stream::Stderr, again.as_bytes(), None);
            output.finish().await;
            let whole = if printed.is_empty() { "one\ntook 5 s\nend\n".to_owned() } else { format!("one\n{printed}") };
            assert_eq!(shown_output::load(&directory).digests[&(0, Stream::Stderr)].end(), Mark::default().after(whole.as_bytes()));
        }
    }

    /// The printer waits, and the stream goes on: who takes over has it all.
    #[tokio::test]
    async fn what_differs_is_kept_until_it_is_printed() {
        let place = tempfile::tempdir().unwrap();
        let directory = crate::record::JobDirectory::at(place.path());
        let lock = directory.lock("a-job").unwrap();
        let begin = || Output::new(place.path(), lock.identity(), &BTreeMap::new(), found(&directory, &BTreeMap::new(), false)).unwrap();
        let mut output = begin();
        output.write(0, Stream::Stderr, b"a\nb\nc\nd\n", None);
        output.finish().await;
        let mut lost = begin();
        let (let_go, may_go) = std::sync::mpsc::channel::<()>();
        lost.tell(true, move || may_go.recv().unwrap());
        lost.write(0, Stream::Stderr, b"a\n", None);
        lost.write(0, Stream::Stderr, b"X\n", None);
        assert!(lost.compares(0, Stream::Stderr));
        lost.write(0, Stream::Stderr, b"Y\n", None);
        let kept = Compared { start: Mark::default().after(b"a\n"), bytes: b"X\nY\n".to_vec(), ended: false };
        assert_eq!(lost.compared(), [((0, Stream::Stderr), kept)]);
        let unprinted = lost.unprinted[&(0, Stream::Stderr)].printing.clone();
        let_go.send(()).unwrap();
        lost.finish().await;
        assert_eq!(unprinted.strong_count(), 0);
        assert_eq!(shown_output::load(&directory).digests[&(0, Stream::Stderr)].end(), Mark::default().after(b"a\nX\nY\n"));
    }

    /// Its controller was lost before it had printed the rest.
    #[tokio::test]
    async fn what_is_held_back_of_a_rank_that_has_ended_is_printed() {
        let place = tempfile::tempdir().unwrap();
        let directory = crate::record::JobDirectory::at(place.path());
        let lock = directory.lock("a-job").unwrap();
        let begin = || Output::new(place.path(), lock.identity(), &BTreeMap::new(), found(&directory, &BTreeMap::new(), false)).unwrap();
        let mut output = begin();
        output.write(0, Stream::Stderr, b"a\nlonger\n", None);
        output.finish().await;
        for ended in [false, true] {
            let mut output = begin();
            output.compare_again(&[((0, Stream::Stderr), Compared { start: Mark::default(), bytes: b"a\nlo".to_vec(), ended })]);
            output.finish().await;
            let whole: &[u8] = if ended { b"a\nlo" } else { b"a\nlonger\n" };
            assert_eq!(shown_output::load(&directory).digests[&(0, Stream::Stderr)].end(), Mark::default().after(whole));
        }
    }

    /// The printer, which goes on after a message that panicked, and has no message waiting then.
    #[tokio::test]
    async fn a_message_that_panics_costs_no_output() {
        let place = tempfile::tempdir().unwrap();
        let lock = crate::record::JobDirectory::at(place.path()).lock("a-job").unwrap();
        let mut output = Output::new(place.path(), lock.identity(), &BTreeMap::new(), ShownOutput::default()).unwrap();
        output.tell(true, || panic!("on purpose"));
        let (told, hears) = std::sync::mpsc::channel();
        output.tell(false, move || told.send(()).unwrap());
        output.write(0, Stream::Stderr, b"printed after a message that panicked\n", None);
        let messages = output.messages.clone();
        output.finish().await;
        assert!(hears.recv().is_ok());
        assert_eq!(messages.load(Ordering::Relaxed), 0);
        let record = shown_output::load(&crate::record::JobDirectory::at(place.path()));
        let bytes = record.digests[&(0, Stream::Stderr)].end().at;
        assert_eq!(bytes, 38);
    }

    /// A checkpoint counts what waits to be printed.
    #[tokio::test]
    async fn what_the_checkpoint_has_and_was_not_shown_is_not_missed_further_on() {
        let place = tempfile::tempdir().unwrap();
        let directory = crate::record::JobDirectory::at(place.path());
        let lock = directory.lock("a-job").unwrap();
        let mut output = Output::new(place.path(), lock.identity(), &BTreeMap::new(), ShownOutput::default()).unwrap();
        output.write(0, Stream::Stderr, b"shown\n", None);
        output.finish().await;
        let (mut printed, mark) = (Printed::default(), Mark::default().after(b"shown\nwaits\n"));
        printed.set(Stream::Stderr, mark);
        let at_checkpoint = BTreeMap::from([(0, printed)]);
        let shown = found(&directory, &at_checkpoint, false);
        let mut output = Output::new(place.path(), lock.identity(), &at_checkpoint, shown).unwrap();
        output.write(0, Stream::Stderr, b"goes on\n", None);
        output.finish().await;
        let record = shown_output::load(&directory);
        assert!(record.digests[&(0, Stream::Stderr)].end().agrees(mark.after(b"goes on\n")));
    }

    /// Whoever hands over what is printed never waits for it: signals and verbs come the same way.
    #[tokio::test]
    async fn nobody_waits_for_the_printer() {
        let place = tempfile::tempdir().unwrap();
        let lock = crate::record::JobDirectory::at(place.path()).lock("a-job").unwrap();
        let mut output = Output::new(place.path(), lock.identity(), &BTreeMap::new(), ShownOutput::default()).unwrap();
        let (let_go, may_go) = std::sync::mpsc::channel::<()>();
        output.tell(true, move || may_go.recv().unwrap());
        (0..1000).for_each(|_| output.tell(true, || ()));
        let_go.send(()).unwrap();
        output.finish().await;
    }

    /// Nor for whoever reads messages.
    #[tokio::test]
    async fn nobody_waits_for_the_reader_of_a_message() {
        let place = tempfile::tempdir().unwrap();
        let lock = crate::record::JobDirectory::at(place.path()).lock("a-job").unwrap();
        let mut output = Output::new(place.path(), lock.identity(), &BTreeMap::new(), ShownOutput::default()).unwrap();
        let (let_go, may_go) = std::sync::mpsc::channel::<()>();
        let (told, hears) = std::sync::mpsc::channel();
        let first = told.clone();
        output.tell(false, move || first.send(may_go.recv_timeout(std::time::Duration::from_secs(20)).map(|()| 0)).unwrap());
        let second = told.clone();
        output.tell(true, move || second.send(Ok(1)).unwrap());
        output.tell(false, move || told.send(Ok(2)).unwrap());
        let_go.send(()).unwrap();
        output.finish().await;
        assert_eq!(hears.iter().collect::<Vec<_>>(), [Ok(0), Ok(1), Ok(2)]);
    }

    /// A restart prints it.
    #[test]
    fn what_follows_lost_output_does_not_count_as_shown() {
        let place = tempfile::tempdir().unwrap();
        let directory = crate::record::JobDirectory::at(place.path());
        let lock = directory.lock("a-job").unwrap();
        let mut record = ShownLog::new(place.path(), lock.identity(), crate::shown_output::StreamDigests::new(), false);
        let chunk = |bytes: &[u8]| Chunk { rank: 0, stream: Stream::Stderr, bytes: bytes.to_vec(), anew: None, printing: None };
        let mut room = FullDiskWait::default();
        print(&mut record, &Destination::Own, &chunk(b"shown\n"), &mut room);
        room.lose(Stream::Stdout);
        print(&mut record, &Destination::Own, &chunk(b"not on record\n"), &mut room);
        assert_eq!(shown_output::load(&directory).digests[&(0, Stream::Stderr)].end().at, 6);
    }
}
