//! Files of portable checkpoints on the nodes of a running job: what a daemon tells of them, and what other daemons are told then. Decisions are
//! `mend_coordination::portable`'s.

use super::Job;
use crate::event::Notice;
use mend_coordination::portable::Step;
use mend_messages::daemon::ToDaemon;
use mend_messages::job::NodeIndex;
use mend_messages::portable::{PortableOrder, PortableReport};
use mend_messages::tier::TierOrder;

impl Job {
    /// Has ranks write to the nodes' stores of the first tier, if it has any.
    pub(crate) fn open_portable(&mut self) {
        let Some(tiering) = self.tiers.as_ref().filter(|tiering| tiering.specs.first().is_some_and(|first| first.tier.store().is_some()))
        else {
            return;
        };
        let order = TierOrder::OpenPortable { tiers: tiering.specs.clone() };
        self.send_to_all(&ToDaemon::Tier(Box::new(order)));
    }

    /// A daemon tells of its files.
    pub(crate) fn portable_report(&mut self, node: NodeIndex, report: PortableReport) {
        if let PortableReport::NotCopied { name, tier, why } = &report {
            self.tell_of_portable(name.checkpoint, tier, why);
        }
        let alive = self.roster.alive();
        let steps = self.tiers.as_mut().map(|tiering| tiering.portable.reported(node, report, &alive));
        self.do_portable(steps.unwrap_or_default());
    }

    /// People are told once of each tier.
    fn tell_of_portable(&mut self, number: u64, tier: &str, why: &str) {
        let Some(tiering) = &mut self.tiers else { return };
        let (tier, why) = (tier.to_owned(), why.to_owned());
        if tiering.told_of_portable.insert(tier.clone()) {
            self.tell(Notice::PortableNotCopied { tier, number, why });
        }
    }

    /// A node is lost, with its files.
    pub(crate) fn portable_lost(&mut self, node: NodeIndex) {
        let alive = self.roster.alive();
        let steps = self.tiers.as_mut().map(|tiering| tiering.portable.lost(node, &alive));
        self.do_portable(steps.unwrap_or_default());
    }

    fn do_portable(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Order(node, order) => self.order(node, TierOrder::Portable(order)),
                Step::Transfer { name, bytes, from, to, hurry } => {
                    let Some(address) = self.roster.nodes.get(to as usize).map(|node| node.setup.address) else { continue };
                    let token = self.tokens.draw();
                    self.order(to, TierOrder::Portable(PortableOrder::Receive { name: name.clone(), bytes, token }));
                    self.order(from, TierOrder::Portable(PortableOrder::Send { name, address, token, hurry }));
                }
            }
        }
    }
}
