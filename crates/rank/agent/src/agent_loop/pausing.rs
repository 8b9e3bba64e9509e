//! A rank that stands still until it goes back to an image: nodes of its job were lost.

use super::{Agent, Stage, refused};
use crate::capture::quiesced_process::HeldAllocator;
use crate::network::Network;
use crate::park::{Parked, park};
use crate::rollback::{possible, roll_back};
use mend_messages::agent::{FromAgent, Reply, Request, ToAgent};
use mend_report::with_causes;
use std::io;
use std::mem::ManuallyDrop;
use std::time::Duration;

const PARK_LIMIT: Duration = Duration::from_secs(2);

impl Agent {
    /// Parks the rank, and waits for what becomes of it. Returns only if it cannot be parked, or the daemon is gone.
    pub(super) fn pause(&mut self, seq: u64) -> io::Result<()> {
        let fail = |error: String| FromAgent::Reply { seq, reply: Reply::Failed { error, hint: String::new() } };
        self.precopy = None;
        if let Some(background) = &mut self.background {
            // It shares, or reads, memory that is about to change.
            if let Some(result) = background.give_up("the rank goes back to an earlier image") {
                self.tell_written(result)?;
            }
        }
        if let Err(error) = possible() {
            return self.link.send(&fail(with_causes(&error)));
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Suspended);
        // Never let go again, not even when the daemon is gone.
        let parked: ManuallyDrop<Parked> = match stage {
            Stage::Parked { fabric: None, .. } => {
                self.stage = stage;
                return self.link.send(&fail("it has not come out of an image yet".to_owned()));
            }
            Stage::Parked { threads, fabric } => {
                std::mem::forget(fabric);
                let threads = Box::leak(threads);
                // SAFETY: the process that it belongs to is never dropped or used again.
                ManuallyDrop::new(unsafe { std::ptr::read(&raw const threads.parked) })
            }
            stage => {
                // No thread may stand still that holds what the agent needs.
                // The fabric first, as a save does: a thread in it may need the allocator.
                let fabric = self.network.freeze();
                let allocator = HeldAllocator::hold();
                match park(PARK_LIMIT) {
                    Ok(parked) => {
                        std::mem::forget((allocator, fabric));
                        ManuallyDrop::new(parked)
                    }
                    Err(error) => {
                        drop(allocator);
                        drop(fabric);
                        self.stage = stage;
                        return self.link.send(&fail(with_causes(&error)));
                    }
                }
            }
        };
        self.link.send(&FromAgent::Reply { seq, reply: Reply::Paused })?;
        loop {
            let ToAgent::Request { seq, request } = self.link.receive()? else { continue };
            let reply = match (request, self.link.take_descriptor()) {
                (Request::RollBack(order), Some(socket)) => {
                    match roll_back(&parked, &order, &socket, self.tracker.observes_since(order.image)) {
                        Err(error) => Reply::Failed { error: with_causes(&error), hint: String::new() },
                    }
                }
                (Request::RollBack(_), None) => refused("no descriptor came with the request"),
                _ => refused("the rank is paused: it goes back to an image, or never goes on"),
            };
            self.link.send(&FromAgent::Reply { seq, reply })?;
        }
    }
}
