//! What daemons may forget of what they have sent: what the machine was told and a successor would find in the log, and, of output, what is printed; both durable.
//!
//! A daemon keeps each message until it is confirmed. Confirmations are of all messages up to a number, so that output which is still being printed
//! holds back those behind it. [`super::flush`] says when what was written is durable.

use crate::detached::lock;
use mend_job::durable::HeardMessages;
use mend_job::replay::SentOutput;
use mend_job::safeguard::Kept;
use mend_messages::daemon::ToDaemon;
use mend_messages::job::NodeIndex;
use mend_wire::Link;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Debug)]
struct OfNode {
    link: Arc<Link<ToDaemon>>,
    heard: HeardMessages,
    printing: BTreeMap<u64, Option<SentOutput>>,
}

impl OfNode {
    fn confirmed(&self) -> u64 {
        let durable = self.heard.confirmed();
        self.printing.keys().next().map_or(durable, |first| durable.min(first - 1))
    }
}

/// Of all nodes of the job.
#[derive(Clone, Debug)]
pub struct Confirmations(Arc<Mutex<Vec<OfNode>>>);

/// Output that is being printed. It is printed, and durable, when this is dropped.
#[derive(Debug)]
pub struct Printing {
    /// The daemon's message that it came with.
    message: Option<(Confirmations, NodeIndex, u64)>,
    /// Goes with it.
    held: Option<Arc<()>>,
}

impl Printing {
    /// Of output that comes with no message, or of one that was confirmed.
    pub fn of_no_message() -> Self {
        Self { message: None, held: None }
    }

    /// Has this go with it.
    pub fn holding(self, held: Arc<()>) -> Self {
        let mut printing = self;
        printing.held = Some(held);
        printing
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        let Some((confirmations, node, number)) = &self.message else { return };
        confirmations.with(*node, |node| {
            node.printing.remove(number);
        });
    }
}

/// What was heard of one node, and what of its output is not known to be durable.
pub type Heard = (u64, BTreeMap<u64, SentOutput>);

impl Confirmations {
    /// Links, with the number of the last message that the machine was told.
    pub fn new(links: Vec<(Arc<Link<ToDaemon>>, u64)>) -> Self {
        let of_node = |(link, heard)| OfNode { link, heard: HeardMessages::through(heard, Kept::default()), printing: BTreeMap::new() };
        Self(Arc::new(Mutex::new(links.into_iter().map(of_node).collect())))
    }

    fn with(&self, node: NodeIndex, change: impl FnOnce(&mut OfNode)) {
        if let Some(node) = lock(&self.0).get_mut(node as usize) {
            change(node);
            node.link.confirm(node.confirmed());
        }
    }

    /// The machine was told a message of the node, or does not need it. `waits`: it is written down, and is going to be durable.
    pub fn heard(&self, node: NodeIndex, number: u64, waits: bool) {
        self.with(node, |node| node.heard.hear(number, waits));
    }

    /// A message of the node is output, which is about to be printed. `output`: if a successor has to know of it.
    pub fn printing(&self, node: NodeIndex, number: u64, output: Option<SentOutput>) -> Printing {
        self.with(node, |node| {
            node.printing.insert(number, output);
        });
        Printing { message: Some((self.clone(), node, number)), held: None }
    }

    /// Number of the last message of each node that the machine was told: for [`Confirmations::durable`] when all that was written until now is durable.
    pub fn numbers(&self) -> Vec<u64> {
        lock(&self.0).iter().map(|node| node.heard.last()).collect()
    }

    /// What the machine was told of each node up to these messages is durable.
    pub fn durable(&self, numbers: &[u64]) {
        for (node, number) in (0..).zip(numbers) {
            self.with(node, |node| node.heard.is_durable(*number));
        }
    }

    /// What the daemon of a node may forget.
    #[cfg(test)]
    pub fn confirmed_of(&self, node: usize) -> u64 {
        lock(&self.0)[node].confirmed()
    }

    /// What was heard of each node.
    pub fn all_heard(&self) -> Vec<Heard> {
        let outputs = |node: &OfNode| node.printing.iter().filter_map(|(number, output)| Some((*number, output.clone()?))).collect();
        lock(&self.0).iter().map(|node| (node.heard.last(), outputs(node))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confirmed(all: &Confirmations) -> u64 {
        all.confirmed_of(0)
    }

    fn one_node() -> Confirmations {
        Confirmations::new(vec![(Arc::new(Link::confirming(0)), 0)])
    }

    #[test]
    fn output_that_is_being_printed_holds_back_what_follows() {
        let all = one_node();
        all.heard(0, 1, false);
        let first = all.printing(0, 2, None);
        all.heard(0, 2, false);
        let second = all.printing(0, 3, None);
        all.heard(0, 4, false);
        assert_eq!(confirmed(&all), 1);
        drop(second);
        assert_eq!(confirmed(&all), 1);
        drop(first);
        assert_eq!((confirmed(&all), all.numbers()), (4, vec![4]));
    }

    #[test]
    fn nothing_is_confirmed_before_it_is_durable() {
        let all = one_node();
        all.heard(0, 3, true);
        let numbers = all.numbers();
        all.heard(0, 4, true);
        assert_eq!((confirmed(&all), numbers.clone()), (0, vec![3]));
        all.durable(&numbers);
        assert_eq!(confirmed(&all), 3);
        all.durable(&all.numbers());
        assert_eq!(confirmed(&all), 4);
    }
}
