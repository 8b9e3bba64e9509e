//! The end of an endpoint: what it has sent is with its peers before it closes.
//!
//! An MPI library closes right after its last sends. Some of these wait for their receivers: for room, a channel, a receive that a peer posts
//! after hours. Peers that live are waited for, however long that takes. Nobody waits for one who receives no more: an endpoint that begins
//! to close refuses what nobody has asked for, and so does one that is closed. So two ranks that end never wait for each other's receives.
//!
//! With several endpoints in a process, all close them in the same order (they run the same program). Of a message for an endpoint of another
//! number the order says nothing, so that is waited for without limit by the last endpoint alone.

use crate::engine::Engine;
use crate::fabric::{Fabric, State};
use crate::idle::NAP;
use crate::links::Links;
use mend_patience::{Patience, next_look};
use std::time::{Duration, Instant};

/// How long closing an endpoint waits for a sign of peers that cannot be reached.
const FLUSH_TIME: Duration = Duration::from_secs(3);

/// Least pause between two looks meanwhile.
const LEAST_PAUSE: Duration = Duration::from_micros(20);

/// What an endpoint that closes still has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    /// For peers of whom nothing tells that they live.
    ForTheSilent,
    /// For a peer that lives.
    ForTheLiving,
}

/// What the endpoint of this number, which is shut, still has to do.
pub(crate) fn left(engine: &Engine, links: &mut Links, number: u16) -> Left {
    let last = engine.is_shut();
    let mut awaited = engine.awaited(number);
    awaited.retain(|(peer, _)| !links.gone(*peer));
    let in_order = |to: Option<u16>| last || to.is_none_or(|to| to == number);
    // All are looked at: where no channel tells whether one lives, one is opened.
    let living = awaited.iter().filter(|(peer, to)| links.lives(*peer) && in_order(*to)).count();
    if living > 0 || links.owes() || last && links.unconfirmed() {
        Left::ForTheLiving
    } else if awaited.is_empty() && links.idle() {
        Left::Nothing
    } else {
        Left::ForTheSilent
    }
}

impl Fabric {
    /// Closes an endpoint, when what it sent is with its peers: see the module.
    pub(crate) fn close_endpoint(&self, number: u16) {
        let mut state = self.lock();
        let State { engine, links, .. } = &mut *state;
        engine.shut_endpoint(links, number);
        let mut patience = Patience::with_pause(FLUSH_TIME, 10 * NAP);
        let mut moved = Instant::now();
        loop {
            let State { engine, links, .. } = &mut *state;
            match left(engine, links, number) {
                Left::Nothing => break,
                Left::ForTheLiving => patience.renew(),
                // The time of a checkpoint or a migration does not count.
                Left::ForTheSilent if links.on_hold() => patience.renew(),
                Left::ForTheSilent if patience.is_over() => break,
                Left::ForTheSilent => {}
            }
            // Others want the lock in any case.
            if state.progress() {
                patience.renew();
                moved = Instant::now();
                drop(state);
            } else {
                // Some channels cannot be slept on.
                drop(self.sleep(state, NAP));
                std::thread::sleep(next_look(moved.elapsed(), LEAST_PAUSE));
            }
            state = self.lock();
        }
        let State { engine, links, .. } = &mut *state;
        engine.close_endpoint(links, number);
        if engine.endpoints.iter().all(Option::is_none) {
            links.set_closed(true);
        }
    }
}
