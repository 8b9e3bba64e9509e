//! What the mounts of a node touch, on its way to the targets that have it: once a second, whether the cache served it or a target.
//!
//! Faults assumed: a target does not answer; then what was to be told to it is dropped. Patterns are for advice, and nobody waits for them.

use super::names::Client;
use mend_data::patterns::{MAX_REPORTS, MAX_TOUCHES, Report, Touch, Who};
use mend_data::space::layout::Layout;
use mend_data::space::target::Request;
use mend_data::space::{BLOCK, Entry, Id};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often they are told.
const INTERVAL: Duration = Duration::from_secs(1);
/// Touches that wait, at most; what comes beyond is not told.
const MAX_WAITING_TOUCHES: usize = 1 << 16;

/// By target, who, and file: what was touched, and microseconds for which reads waited for it.
type Waiting = HashMap<(u16, Arc<Who>, Id), (Vec<Touch>, u64)>;

/// What somebody did with a part of a file.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// Read it, in that time: for each block whether it came over the network for that.
    Read(&'a [bool], Duration),
    /// Wrote so many bytes.
    Written(u64),
}

/// Touches that wait to be told.
#[derive(Debug, Default)]
pub struct Touches(Mutex<(Waiting, usize)>);

impl Touches {
    /// Has a thread tell them while the process lives.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn begin(client: Arc<Client>) -> std::io::Result<Arc<Self>> {
        let touches = Arc::new(Self::default());
        let telling = touches.clone();
        let tell = move || {
            loop {
                std::thread::sleep(INTERVAL);
                telling.tell(&client);
            }
        };
        std::thread::Builder::new().name("touches".to_owned()).spawn(tell)?;
        Ok(touches)
    }

    /// Somebody has read or written a file from `offset` on.
    pub fn note(&self, who: &Arc<Who>, entry: &Entry, offset: u64, seen: &Seen<'_>) {
        let layout = match (entry.file(), entry.written()) {
            (Some(file), _) => Layout::of(file),
            (None, Some(file)) => file.layout(),
            (None, None) => return,
        };
        let target = |position: usize| match (entry.file(), entry.written()) {
            (Some(file), _) => file.targets.get(position).copied(),
            (None, file) => file?.objects.get(position).map(|copies| copies[0]),
        };
        let (fetched, took, written, last) = match seen {
            Seen::Read(fetched, took) => (*fetched, *took, false, offset / BLOCK + fetched.len() as u64),
            Seen::Written(length) => (&[][..], Duration::ZERO, true, offset.saturating_add(*length).div_ceil(BLOCK)),
        };
        // Nobody waits for what the cache has.
        let waits = fetched.iter().filter(|fetched| **fetched).count() as u64;
        let waited_us = (took.as_micros() as u64).checked_div(waits).unwrap_or(0);
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (waiting, count) = &mut *held;
        let fetched = fetched.iter().copied().chain(std::iter::repeat(false));
        for (block, fetched) in (offset / BLOCK..last).zip(fetched) {
            let (Some(target), Ok(block)) = (target(layout.place(block * BLOCK).0), u32::try_from(block)) else { return };
            let (touches, waited) = waiting.entry((target, who.clone(), entry.id)).or_default();
            *waited += if fetched { waited_us } else { 0 };
            match touches.last_mut() {
                // A block that is read or written in small parts is touched once.
                Some(last) if !fetched && last.ends_with(block, written) => {}
                Some(last) if last.is_followed_by(block, written, fetched) => last.count += 1,
                _ if *count >= MAX_WAITING_TOUCHES => return,
                _ => {
                    touches.push(Touch { block, count: 1, written, fetched });
                    *count += 1;
                }
            }
        }
    }

    /// Tells what waits.
    pub fn tell(&self, client: &Client) {
        let (waiting, _) = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut of_targets: HashMap<u16, Vec<Report>> = HashMap::new();
        for ((target, who, file), (touches, mut waited_us)) in waiting {
            // The first of several reports has all of the time.
            let mut report = |touches: &[Touch]| {
                let waited_us = u32::try_from(std::mem::take(&mut waited_us)).unwrap_or(u32::MAX);
                Report { who: (*who).clone(), file, touches: touches.to_vec(), waited_us }
            };
            of_targets.entry(target).or_default().extend(touches.chunks(MAX_TOUCHES).map(&mut report));
        }
        for (target, reports) in of_targets {
            let Ok(peer) = client.peer(target) else { continue };
            let mut batch: Vec<Report> = Vec::new();
            for report in reports {
                let touches: usize = batch.iter().map(|report| report.touches.len()).sum();
                if batch.len() == MAX_REPORTS || touches + report.touches.len() > MAX_TOUCHES {
                    let _ = peer.ask(&Request::Touched { reports: std::mem::take(&mut batch) }, &[]);
                }
                batch.push(report);
            }
            let _ = peer.ask(&Request::Touched { reports: batch }, &[]);
        }
    }
}
