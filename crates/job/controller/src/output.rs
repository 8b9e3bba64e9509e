//! The ranks' output: printed in the order it comes, counted per rank, and after a restart not printed twice.
//!
//! A checkpoint notes how much each rank had printed. A restarted rank prints the rest again; what an earlier life of
//! the job already printed beyond the checkpoint is skipped, byte for byte, so that the outputs of `mend run` and
//! `mend restart`, put one after the other, read as if nothing had happened.

use crate::manifest::Printed;
use mend_messages::daemon::Stream;
use mend_messages::job::Rank;
use std::collections::BTreeMap;
use std::io::Write;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Chunks that may wait for a slow terminal before the ranks are held back.
const WAITING_CHUNKS: usize = 64;

/// Counts and prints.
#[derive(Debug)]
pub struct Output {
    printed: BTreeMap<Rank, Printed>,
    skip: BTreeMap<Rank, Printed>,
    chunks: mpsc::Sender<(Stream, Vec<u8>)>,
    printer: JoinHandle<()>,
    changed: bool,
}

fn counter(printed: &mut Printed, stream: Stream) -> &mut u64 {
    match stream {
        Stream::Stdout => &mut printed.stdout,
        Stream::Stderr => &mut printed.stderr,
    }
}

impl Output {
    /// `at_checkpoint` is what the restored ranks had printed, `already` what the job had printed when it ended.
    /// Both empty for a new job.
    #[must_use]
    pub fn new(at_checkpoint: BTreeMap<Rank, Printed>, already: &BTreeMap<Rank, Printed>) -> Self {
        let skip = already
            .iter()
            .map(|(rank, already)| {
                let then = at_checkpoint.get(rank).copied().unwrap_or_default();
                let skip =
                    Printed { stdout: already.stdout.saturating_sub(then.stdout), stderr: already.stderr.saturating_sub(then.stderr) };
                (*rank, skip)
            })
            .collect();
        let (chunks, mut waiting) = mpsc::channel::<(Stream, Vec<u8>)>(WAITING_CHUNKS);
        let printer = tokio::task::spawn_blocking(move || {
            while let Some((stream, bytes)) = waiting.blocking_recv() {
                // A reader that went away (`| head`) is no reason to end the job.
                let _ = match stream {
                    Stream::Stdout => {
                        let mut out = std::io::stdout().lock();
                        out.write_all(&bytes).and_then(|()| out.flush())
                    }
                    Stream::Stderr => std::io::stderr().write_all(&bytes),
                };
            }
        });
        Self { printed: at_checkpoint, skip, chunks, printer, changed: false }
    }

    /// Takes what a rank wrote.
    pub async fn write(&mut self, rank: Rank, stream: Stream, bytes: &[u8]) {
        self.changed = true;
        *counter(self.printed.entry(rank).or_default(), stream) += bytes.len() as u64;
        let skip = counter(self.skip.entry(rank).or_default(), stream);
        let skipped = (*skip).min(bytes.len() as u64);
        *skip -= skipped;
        let rest = &bytes[skipped as usize..];
        if !rest.is_empty() {
            let _ = self.chunks.send((stream, rest.to_vec())).await;
        }
    }

    /// What each rank has printed in all its lives.
    #[must_use]
    pub fn printed(&self) -> &BTreeMap<Rank, Printed> {
        &self.printed
    }

    /// What the user has seen: while a restarted job catches up, more than [`Output::printed`].
    #[must_use]
    pub fn seen(&self) -> BTreeMap<Rank, Printed> {
        let mut seen = self.printed.clone();
        for (rank, skip) in &self.skip {
            let printed = seen.entry(*rank).or_default();
            printed.stdout += skip.stdout;
            printed.stderr += skip.stderr;
        }
        seen
    }

    /// True once after each change.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Waits until all is printed.
    pub async fn finish(self) {
        drop(self.chunks);
        let _ = self.printer.await;
    }
}
