//! What carries bytes from and to a rank's process: its output, standard input and PMI.

use super::RankContext;
use crate::channels::OurEnds;
use crate::input::Feed;
use crate::output::Pump;
use mend_messages::daemon::{FromDaemon, Stream};
use tokio::sync::oneshot;

/// Everything that carries bytes from and to the process.
#[derive(Debug)]
pub(super) struct RankPipes {
    pub(super) pumps: [Pump; 3],
    pub(super) stdin: Option<Feed>,
    pub(super) pmi: Feed,
}

impl RankPipes {
    pub(super) async fn ended(&mut self) {
        for pump in &mut self.pumps {
            pump.ended().await;
        }
    }

    pub(super) fn feeds(&self) -> impl Iterator<Item = &Feed> {
        self.stdin.iter().chain([&self.pmi])
    }

    pub(super) fn flush(&self, done: oneshot::Sender<()>) {
        // A pump that ended has nothing left to flush.
        answer_after(self.pumps.iter().map(Pump::flushed).collect(), done);
    }

    pub(super) fn hold(&self, done: oneshot::Sender<()>) {
        answer_after(self.feeds().map(Feed::hold).collect(), done);
    }
}

fn answer_after(all: Vec<oneshot::Receiver<()>>, done: oneshot::Sender<()>) {
    tokio::spawn(async move {
        for one in all {
            // An error means that there is nothing to wait for.
            let _ = one.await;
        }
        // Whoever asked may have gone.
        let _ = done.send(());
    });
}

pub(super) fn connect(context: &RankContext, ours: OurEnds) -> std::io::Result<RankPipes> {
    let rank = context.rank;
    let output = move |stream| move |bytes| FromDaemon::Output { rank, stream, bytes };
    let stdin = ours.stdin.map(|pipe| Feed::new(pipe, Some((context.urgent.clone(), rank)))).transpose()?;
    let pmi = Feed::new(ours.pmi.try_clone()?, None)?;
    let pumps = [
        Pump::new(ours.stdout, context.ordered.clone(), output(Stream::Stdout))?,
        Pump::new(ours.stderr, context.ordered.clone(), output(Stream::Stderr))?,
        Pump::new(ours.pmi, context.ordered.clone(), move |bytes| FromDaemon::Pmi { rank, bytes })?,
    ];
    Ok(RankPipes { pumps, stdin, pmi })
}
