//! What the controller orders about copies of checkpoints in tiers.

use super::Job;
use mend_messages::portable::PortableOrder;
use mend_messages::tier::{ImageOrigin, TierOrder};
use std::time::Instant;

impl Job {
    /// Has it done. Where a save goes comes later.
    pub(super) fn tier(&mut self, order: TierOrder) {
        let now = Instant::now();
        match order {
            TierOrder::Open { stores, keep, rate } => self.tiers.open(stores, &keep, rate),
            TierOrder::Save { seq, rank, number, stores, needed, order } => {
                self.tiers.place((seq, rank), number, &stores, needed, order);
            }
            TierOrder::Manifest { task, number, to, text } => self.tiers.manifest(task, number, to, text),
            TierOrder::Copy { task, image, from, to } => self.tiers.copy(task, image, from, to),
            TierOrder::Send { image, from, address, token, hurry } => self.tiers.send(image, from, address, token, hurry),
            TierOrder::Receive { task, image, store, token } => {
                let arrival = self.rendezvous.expect(token, now);
                self.tiers.receive(task, image, &store, arrival);
            }
            TierOrder::Fetch { task, image, from, spare, check } => {
                let arrival = match &from {
                    ImageOrigin::Node { token } => Some(self.rendezvous.expect(*token, now)),
                    _ => None,
                };
                self.tiers.fetch((task, image, check), from, spare, arrival);
            }
            TierOrder::Inventory { task } => self.tiers.inventory(task),
            TierOrder::Remove { place, number, ranks } => self.tiers.remove(&place, number, ranks),
            TierOrder::Close => self.tiers.close(),
            TierOrder::Portable(PortableOrder::Receive { name, bytes, token }) => {
                let arrival = self.rendezvous.expect(token, now);
                self.tiers.receive_portable(name, bytes, arrival);
            }
            TierOrder::OpenPortable { tiers } => self.tiers.open_portable(tiers),
            TierOrder::Portable(order) => self.tiers.portable_order(order),
        }
    }
}
