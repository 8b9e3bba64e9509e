//! What the targets of data spaces have recorded of ranks, and what is made of it.

use mend_data::patterns::sharing::{self, KEPT, Placed as Where, RankTouches, Touched};
use mend_data::patterns::{Told, Who};
use mend_data::space::BLOCK;
use mend_data::space::target::{Answer, Request};
use mend_policy::placement::Placed;
use mend_space::client::Client;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Windows that are looked at: the last ones, as in the PARTE paper.
pub const WINDOWS: usize = KEPT;

/// A target: of which space, by its index, and which one of that.
type Target = (usize, u16);

/// Asks all targets of some spaces, and for what is new since it asked last.
pub struct Scanner {
    spaces: Vec<(String, Arc<Client>)>,
    /// Number of the next event.
    next: HashMap<Target, u64>,
    /// Microseconds for which ranks waited, as far as was told, by the target's place among all.
    waited: HashMap<(usize, Who), u64>,
}

impl Scanner {
    /// Of these spaces, by name.
    pub fn new(spaces: Vec<(String, Arc<Client>)>) -> Self {
        Self { spaces, next: HashMap::new(), waited: HashMap::new() }
    }

    /// What each target has that is new: nothing if it does not answer, and that is told to `lost`.
    pub fn ask(&mut self, mut lost: impl FnMut(String)) -> Vec<Vec<Told>> {
        let mut all = Vec::new();
        for (space, (name, client)) in self.spaces.iter().enumerate() {
            for target in 0..client.targets() as u16 {
                let next = self.next.entry((space, target)).or_default();
                all.push(ask(client, target, next).unwrap_or_else(|why| {
                    lost(format!("{name}: {why}"));
                    Vec::new()
                }));
            }
        }
        all
    }

    /// Microseconds for which ranks of a job waited for what was fetched, since that was asked last.
    pub fn waited_us(&mut self, targets: &[Vec<Told>], job: &str) -> u64 {
        let mut sum = 0;
        for (target, told) in targets.iter().enumerate() {
            let mut latest: HashMap<&Who, u64> = HashMap::new();
            for told in told {
                latest.extend(told.who.iter().zip(told.waited_us.iter().copied()).filter(|(who, _)| who.job == job && who.rank.is_some()));
            }
            for (who, us) in latest {
                let before = self.waited.entry((target, who.clone())).or_default();
                // A target that began anew counts from nothing.
                sum += us.checked_sub(*before).unwrap_or(us);
                *before = us;
            }
        }
        sum
    }
}

fn ask(client: &Client, target: u16, next: &mut u64) -> Result<Vec<Told>, String> {
    let peer = client.peer(target).map_err(|fault| fault.to_string())?;
    let mut all = Vec::new();
    loop {
        let told: Told = match peer.ask(&Request::Patterns { from: *next }, &[]).map_err(|fault| fault.to_string())? {
            (Answer::Bytes { .. }, bytes) => postcard::from_bytes(&bytes).unwrap_or_default(),
            _ => return Ok(all),
        };
        if told.first < *next {
            // It began anew.
            *next = 0;
            continue;
        }
        let more = told.more && !told.events.is_empty();
        *next = told.first.saturating_add(told.events.len() as u64);
        all.push(told);
        if !more {
            return Ok(all);
        }
    }
}

/// Of each rank its last windows together.
pub fn last_windows(ranks: &BTreeMap<u32, RankTouches>) -> BTreeMap<u32, Touched> {
    ranks.iter().map(|(rank, touches)| (*rank, touches.last(WINDOWS))).collect()
}

/// Bytes that nodes fetched in windows.
pub fn fetched<'a>(windows: impl IntoIterator<Item = &'a Touched>) -> u64 {
    windows.into_iter().flat_map(Touched::values).map(|counts| u64::from(counts.fetched) * BLOCK).sum()
}

/// Names of the nodes; where the ranks are and what their nodes fetch for them, in their order.
pub fn placed(ranks: &BTreeMap<u32, RankTouches>, last: &BTreeMap<u32, Touched>) -> (Vec<String>, Vec<Placed>) {
    let mut nodes: Vec<String> = ranks.values().map(|rank| rank.node.clone()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let there: BTreeMap<u32, Where<'_>> = ranks.iter().map(|(rank, touches)| (*rank, (touches.node.as_str(), &last[rank]))).collect();
    let costs = sharing::costs(&there);
    let number = |node: &str| nodes.binary_search_by(|one| one.as_str().cmp(node)).unwrap_or(0);
    let placed =
        costs.into_iter().map(|(rank, touched)| Placed { node: number(&ranks[&rank].node), touched, ..Placed::default() }).collect();
    (nodes, placed)
}
