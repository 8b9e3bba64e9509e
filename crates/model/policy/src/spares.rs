//! Which node a rank goes to that moves and names none: a spare, else the one with the most room.

use mend_messages::daemon::NodeRoom;
use mend_messages::job::NodeIndex;

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
