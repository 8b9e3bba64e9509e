//! Which files ranks of this node have open for writing, told to the targets that have them: what is open is not sent away yet.
//!
//! Faults assumed: this process ends without a word, and what it said is over after a while; a target does not answer, and is told at the next time. A file that is sent
//! although it is open is no harm: it changes, and is sent again.

use super::names::Client;
use mend_data::space::Id;
use mend_data::space::target::{MAX_IDS, Request};
use mend_data::space::written::CLAIM;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// After this part of its time it is said again.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(CLAIM / 4);

/// What targets were told, and when.
#[derive(Debug)]
pub struct Holds {
    who: Id,
    told: HashMap<u16, (Instant, BTreeSet<Id>)>,
}

impl Default for Holds {
    fn default() -> Self {
        Self { who: mend_wire::random_bytes(), told: HashMap::new() }
    }
}

impl Holds {
    /// Tells targets that these files are open for writing, and no others: those to which it is new, or that have to hear it again. Of more than
    /// [`MAX_IDS`] files on one target the others are not told.
    pub fn tell(&mut self, client: &Client, open: &BTreeSet<Id>) {
        let mut wanted: BTreeMap<u16, BTreeSet<Id>> = self.told.keys().map(|at| (*at, BTreeSet::new())).collect();
        {
            let names = client.names();
            for entry in open.iter().filter_map(|file| names.entry(file)) {
                for at in entry.written().into_iter().flat_map(|file| file.objects.iter().flatten()) {
                    let files = wanted.entry(*at).or_default();
                    if files.len() < MAX_IDS {
                        files.insert(entry.id);
                    }
                }
            }
        }
        wanted.retain(|at, files| match self.told.get(at) {
            Some((since, told)) => told != files || !files.is_empty() && since.elapsed() >= RENEWAL_INTERVAL,
            None => !files.is_empty(),
        });
        let targets: Vec<u16> = wanted.keys().copied().collect();
        let now = Instant::now();
        let told = client.each(&targets, |at, peer| {
            let files = wanted.get(&at).map(|files| files.iter().copied().collect()).unwrap_or_default();
            peer.ask(&Request::Holds { who: self.who, files }, &[]).is_ok()
        });
        for (at, _) in targets.into_iter().zip(told).filter(|(_, told)| *told == Some(true)) {
            match wanted.remove(&at) {
                Some(files) if !files.is_empty() => drop(self.told.insert(at, (now, files))),
                _ => drop(self.told.remove(&at)),
            }
        }
    }
}
