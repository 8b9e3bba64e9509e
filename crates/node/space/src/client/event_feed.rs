//! Passes on what happens to a space: see [`super::events`].

use super::events::{Change, Standing, Waiting};
use super::names::Client;
use mend_messages::frame;
use mend_messages::space_report::{SpaceEvent, SpaceEvents};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often targets are looked at and what has happened is passed on.
const LOOK: Duration = Duration::from_secs(1);
impl Client {
    /// Has a thread pass on what happens, from now on and until nobody takes it.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn pass_events_on(self: &Arc<Self>, to: impl Write + Send + 'static) -> io::Result<()> {
        let mut first = Waiting::default();
        first.tell(SpaceEvent::Begun);
        *self.events.waiting() = Some(first);
        let client = self.clone();
        let pass_on = move || {
            let (begun, mut standings, mut to) = (Instant::now(), vec![Standing::default(); client.targets()], to);
            loop {
                let now_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                let events = client.what_happened(&mut standings, now_ms);
                if write(&mut to, &events).is_err() {
                    *client.events.waiting() = None;
                    return;
                }
                std::thread::sleep(LOOK);
            }
        };
        std::thread::Builder::new().name("events".to_owned()).spawn(pass_on).map(drop)
    }

    fn what_happened(&self, standings: &mut [Standing], now_ms: u64) -> SpaceEvents {
        let name = |at: u16| self.shared_peer(at).map(|peer| peer.target.name()).unwrap_or_default();
        // Before its lock is taken: whoever holds a target's may be about to tell something.
        let losses: Vec<_> = self.all().into_iter().map(|at| (at, self.shared_peer(at).and_then(|peer| peer.loss()))).collect();
        let mut waiting = self.events.waiting();
        let Some(waiting) = &mut *waiting else { return SpaceEvents::default() };
        for ((at, loss), standing) in losses.into_iter().zip(standings) {
            match (standing.look(loss.is_some(), now_ms), loss) {
                (Some(Change::Lost), Some(fault)) => waiting.tell(SpaceEvent::TargetLost { target: name(at), why: fault.of_target() }),
                (Some(Change::Back { lost_ms }), _) => waiting.tell(SpaceEvent::TargetBack { target: name(at), lost_ms }),
                _ => {}
            }
        }
        waiting.sum_up(now_ms, name);
        waiting.take()
    }
}

fn write(to: &mut impl Write, events: &SpaceEvents) -> io::Result<()> {
    if *events == SpaceEvents::default() {
        return Ok(());
    }
    to.write_all(&frame::encode(events).map_err(io::Error::other)?)?;
    to.flush()
}
