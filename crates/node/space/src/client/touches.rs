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
const MOST: usize = 1 << 16;

/// By target, who, and file.
type Waiting = HashMap<(u16, Arc<Who>, Id), Vec<Touch>>;

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

    /// Somebody reads these bytes of a file.
    pub fn note(&self, who: &Arc<Who>, entry: &Entry, offset: u64, length: u32) {
        let Some(file) = entry.file() else { return };
        let end = offset.saturating_add(u64::from(length)).min(file.size);
        let layout = Layout::of(file);
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (waiting, count) = &mut *held;
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let (Some(target), Ok(block)) = (file.targets.get(layout.place(block * BLOCK).0), u32::try_from(block)) else { return };
            let touches = waiting.entry((*target, who.clone(), entry.id)).or_default();
            match touches.last_mut() {
                Some(last) if last.block + u32::from(last.count) == block && last.count < u16::MAX => last.count += 1,
                _ if *count >= MOST => return,
                _ => {
                    touches.push(Touch { block, count: 1, written: false });
                    *count += 1;
                }
            }
        }
    }

    /// Tells what waits.
    pub fn tell(&self, client: &Client) {
        let (waiting, _) = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut of_targets: HashMap<u16, Vec<Report>> = HashMap::new();
        for ((target, who, file), touches) in waiting {
            let reports = touches.chunks(MAX_TOUCHES).map(|touches| Report { who: (*who).clone(), file, touches: touches.to_vec() });
            of_targets.entry(target).or_default().extend(reports);
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
