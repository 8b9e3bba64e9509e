//! Which rank goes to which node.

use mend_messages::daemon::NodeRoom;
use mend_messages::job::NodeIndex;

/// Why ranks cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// No host at all.
    #[error("there is no host to run on")]
    NoHosts,
}

/// Places `ranks` ranks in contiguous blocks. `slots[i]` is the number of ranks the user gave host `i` (`host:n`),
/// 0 where none was given. With slots for every host, hosts are filled in order and the list is begun again when it
/// is used up; otherwise the ranks are spread evenly.
///
/// # Errors
/// [`PlacementError::NoHosts`].
pub fn place(ranks: u32, slots: &[u32]) -> Result<Vec<NodeIndex>, PlacementError> {
    if slots.is_empty() {
        return Err(PlacementError::NoHosts);
    }
    if slots.iter().all(|&slots| slots > 0) {
        let order = (0..slots.len() as u32).flat_map(|node| std::iter::repeat_n(node, slots[node as usize] as usize));
        let order: Vec<NodeIndex> = order.collect();
        return Ok((0..ranks as usize).map(|rank| order[rank % order.len()]).collect());
    }
    let (hosts, ranks) = (slots.len() as u64, u64::from(ranks));
    Ok((0..ranks).map(|rank| (rank * hosts / ranks.max(1)) as NodeIndex).collect())
}

/// Places the ranks of a restart: a rank whose old host is still there stays, the others go to the emptiest node, in
/// rank order; among equally empty ones the first that is listed. `old[rank]` is `None` where the host is gone.
///
/// # Errors
/// [`PlacementError::NoHosts`].
pub fn replace(old: &[Option<NodeIndex>], nodes: u32) -> Result<Vec<NodeIndex>, PlacementError> {
    if nodes == 0 {
        return Err(PlacementError::NoHosts);
    }
    let mut load = vec![0u32; nodes as usize];
    for node in old.iter().flatten() {
        if let Some(load) = load.get_mut(*node as usize) {
            *load += 1;
        }
    }
    Ok(old
        .iter()
        .map(|node| match node {
            Some(node) if *node < nodes => *node,
            _ => {
                let node = (0..load.len()).min_by_key(|&node| load[node]).unwrap_or(0);
                load[node] += 1;
                node as NodeIndex
            }
        })
        .collect())
}

/// A node that a rank could move to.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Its number.
    pub node: NodeIndex,
    /// Ranks that are on it or on their way to it.
    pub ranks: u32,
    /// What it has told to have, without the memory that is promised to those on their way. `None`: nothing yet.
    pub room: Option<NodeRoom>,
}

impl Candidate {
    /// Whether a rank of so many bytes fits, as far as is known.
    #[must_use]
    pub fn fits(&self, needs: Option<u64>) -> bool {
        match (self.room, needs) {
            (Some(room), Some(needs)) => room.memory >= needs,
            _ => true,
        }
    }
}

/// Load by which nodes must differ to count as differently loaded, hundredths of a thread per processor: it is an average that lags.
const LOAD_DIFFERENCE: u32 = 50;

/// Target of a migration that names none, for a rank that `needs` so many bytes: of the nodes on which it fits the one with the fewest
/// ranks per processor (a spare has none), of these the first whose load is not much higher than the least.
#[must_use]
pub fn choose_target(candidates: &[Candidate], needs: Option<u64>) -> Option<NodeIndex> {
    let fitting: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.fits(needs)).collect();
    let all_known = fitting.iter().all(|candidate| candidate.room.is_some_and(|room| room.processors > 0));
    let processors = |candidate: &Candidate| match candidate.room {
        Some(room) if all_known => u64::from(room.processors),
        _ => 1,
    };
    // Compared as fractions.
    let fewer = |one: &&&Candidate, other: &&&Candidate| {
        (u64::from(one.ranks) * processors(other)).cmp(&(u64::from(other.ranks) * processors(one)))
    };
    let emptiest = fitting.iter().min_by(fewer)?;
    let load = |candidate: &Candidate| match candidate.room {
        Some(room) if all_known => room.load / room.processors,
        _ => 0,
    };
    let equal = || fitting.iter().filter(|candidate| fewer(candidate, &emptiest).is_eq());
    let least = equal().map(|candidate| load(candidate)).min()?;
    equal().find(|candidate| load(candidate) <= least.saturating_add(LOAD_DIFFERENCE)).map(|candidate| candidate.node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_slots() {
        assert_eq!(place(4, &[0, 0]).unwrap(), [0, 0, 1, 1]);
        assert_eq!(place(5, &[0, 0]).unwrap(), [0, 0, 0, 1, 1]);
        assert_eq!(place(1, &[0, 0, 0]).unwrap(), [0]);
        assert_eq!(place(5, &[1, 3]).unwrap(), [0, 1, 1, 1, 0]);
        assert_eq!(place(1, &[]), Err(PlacementError::NoHosts));
    }

    #[test]
    fn a_restart_keeps_what_it_can_and_fills_the_emptiest() {
        assert_eq!(replace(&[Some(0), Some(0), None, None], 2).unwrap(), [0, 0, 1, 1]);
        assert_eq!(replace(&[None, None, None], 1).unwrap(), [0, 0, 0]);
        assert_eq!(replace(&[Some(5), Some(1)], 2).unwrap(), [0, 1]);
    }

    fn candidate(node: NodeIndex, ranks: u32, room: Option<(u64, u32, u32)>) -> Candidate {
        Candidate { node, ranks, room: room.map(|(memory, processors, load)| NodeRoom { memory, processors, load }) }
    }

    #[test]
    fn a_migration_prefers_the_spare() {
        let unknown = |node, ranks| candidate(node, ranks, None);
        assert_eq!(choose_target(&[unknown(0, 2), unknown(2, 0)], Some(5)), Some(2));
        assert_eq!(choose_target(&[unknown(1, 1), unknown(2, 1)], None), Some(1));
        assert_eq!(choose_target(&[], None), None);
    }

    #[test]
    fn a_rank_goes_where_it_fits_and_where_processors_are_free() {
        let (small, large) = (candidate(1, 0, Some((10, 8, 0))), candidate(2, 3, Some((100, 8, 700))));
        assert_eq!(choose_target(&[small, large], Some(50)), Some(2));
        assert_eq!(choose_target(&[small, large], Some(10)), Some(1));
        assert_eq!(choose_target(&[small, large], Some(101)), None);
        assert_eq!(choose_target(&[small, large], None), Some(1));
        // Three ranks on 16 processors are fewer than two on 8.
        let (wide, narrow) = (candidate(1, 3, Some((100, 16, 0))), candidate(2, 2, Some((100, 8, 0))));
        assert_eq!(choose_target(&[narrow, wide], None), Some(1));
        // What is not known of one is not held against the other.
        assert_eq!(choose_target(&[candidate(2, 2, None), wide], None), Some(2));
    }

    #[test]
    fn of_equally_empty_nodes_one_that_others_use_is_avoided() {
        let room = |load| Some((100, 4, load));
        assert_eq!(choose_target(&[candidate(1, 0, room(400)), candidate(2, 0, room(10))], None), Some(2));
        assert_eq!(choose_target(&[candidate(1, 0, room(190)), candidate(2, 0, room(10))], None), Some(1));
    }
}
