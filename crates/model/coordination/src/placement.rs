//! Which rank begins on which node. Where one goes that moves is `mend_policy::spares`.

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
}
