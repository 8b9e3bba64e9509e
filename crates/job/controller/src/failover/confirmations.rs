//! What daemons may forget of what they have sent: what the machine was told and a successor would find in the log, and, of output, what is printed.
//!
//! A daemon keeps each message until it is confirmed. Confirmations are of all messages up to a number, so that output which is still being printed
//! holds back those behind it.

use crate::detached::lock;
use mend_messages::daemon::ToDaemon;
use mend_messages::job::NodeIndex;
use mend_wire::Link;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

#[derive(Debug)]
struct OfNode {
    link: Arc<Link<ToDaemon>>,
    heard: u64,
    printing: BTreeSet<u64>,
}

impl OfNode {
    fn confirm(&self) {
        self.link.confirm(self.printing.first().map_or(self.heard, |first| first - 1));
    }
}

/// Of all nodes of the job.
#[derive(Clone, Debug)]
pub struct Confirmations(Arc<Mutex<Vec<OfNode>>>);

/// Output that is being printed. It is printed when this is dropped.
#[derive(Debug)]
pub struct Printing {
    confirmations: Confirmations,
    node: NodeIndex,
    number: u64,
}

impl Drop for Printing {
    fn drop(&mut self) {
        self.confirmations.with(self.node, |node| {
            node.printing.remove(&self.number);
        });
    }
}

impl Confirmations {
    /// Links, with the number of the last message that the machine was told.
    pub fn new(links: Vec<(Arc<Link<ToDaemon>>, u64)>) -> Self {
        let of_node = |(link, heard)| OfNode { link, heard, printing: BTreeSet::new() };
        Self(Arc::new(Mutex::new(links.into_iter().map(of_node).collect())))
    }

    fn with(&self, node: NodeIndex, change: impl FnOnce(&mut OfNode)) {
        if let Some(node) = lock(&self.0).get_mut(node as usize) {
            change(node);
            node.confirm();
        }
    }

    /// The machine was told a message of the node, or does not need it.
    pub fn heard(&self, node: NodeIndex, number: u64) {
        self.with(node, |node| node.heard = node.heard.max(number));
    }

    /// A message of the node is output, which is about to be printed.
    pub fn printing(&self, node: NodeIndex, number: u64) -> Printing {
        self.with(node, |node| {
            node.printing.insert(number);
        });
        Printing { confirmations: self.clone(), node, number }
    }

    /// Number of the last message of each node that the machine was told; `None` while something is being printed.
    pub fn settled(&self) -> Option<Vec<u64>> {
        let nodes = lock(&self.0);
        nodes.iter().all(|node| node.printing.is_empty()).then(|| nodes.iter().map(|node| node.heard).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_is_being_printed_holds_back_what_follows() {
        let link = Arc::new(Link::confirming(0));
        let all = Confirmations::new(vec![(link, 0)]);
        all.heard(0, 1);
        let first = all.printing(0, 2);
        all.heard(0, 2);
        let second = all.printing(0, 3);
        all.heard(0, 4);
        let confirmed = || {
            let nodes = lock(&all.0);
            nodes[0].printing.first().map_or(nodes[0].heard, |first| first - 1)
        };
        assert_eq!((confirmed(), all.settled()), (1, None));
        drop(second);
        assert_eq!(confirmed(), 1);
        drop(first);
        assert_eq!((confirmed(), all.settled()), (4, Some(vec![4])));
    }
}
