//! A rank that stands still until it goes back to an image: nodes of its job were lost.

use super::{Agent, Stage, refused};
use crate::capture::quiesced_process::HeldAllocator;
use crate::descriptors::file_systems::{is_shared_file_system, magic_at};
use crate::memory::maps;
use crate::network::Network;
use crate::park::{Parked, park};
use crate::rollback::{possible, roll_back};
use mend_freestanding::{check, syscall};
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
        let reply = match sync_mapped_files() {
            Ok(()) => FromAgent::Reply { seq, reply: Reply::Paused },
            Err(error) => fail(format!("files that it has mapped cannot be written: {error}")),
        };
        self.link.send(&reply)?;
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

/// Has servers of files that other nodes see take what the program wrote through its mappings. A node that kept it would write it later, over what is put back.
fn sync_mapped_files() -> io::Result<()> {
    let is_shared = |path: &str| magic_at(path).is_some_and(is_shared_file_system);
    for area in maps::read()? {
        let is_written = area.shared && area.protection & libc::PROT_WRITE as u32 != 0 && area.identity != (0, 0) && !area.deleted;
        if is_written && is_shared(&area.name) {
            let arguments = [area.start as usize, (area.end - area.start) as usize, libc::MS_SYNC as usize, 0, 0, 0];
            // SAFETY: changes no memory.
            check(unsafe { syscall(libc::SYS_msync, arguments) }).map_err(io::Error::from_raw_os_error)?;
        }
    }
    Ok(())
}
