//! What controller and daemons say of the tiers of checkpoints, by the sides that have it in their messages.

use super::values::{address, id, order};
use mend_messages::portable::{FileName, Part, PortableOrder, PortableReport};
use mend_messages::tier::{
    Destination, Holding, ImageLocation, ImageOrigin, ImageRef, NodeStore, TierDone, TierOrder, TierReport, parse_tiers,
};

pub fn image() -> ImageRef {
    ImageRef { number: 7, rank: 1, bytes: 1 << 20, checksum: 77, id: id(2) }
}

fn file() -> FileName {
    FileName::new("0123456789abcdef0123456789abcdef", 48, 3, Part::Variables).unwrap()
}

pub fn tier_orders() -> Vec<TierOrder> {
    let store = || NodeStore::Directory("/scratch".into());
    let object = || "s3://bucket/job/7".to_owned();
    vec![
        TierOrder::Open { stores: vec![NodeStore::Memory, store()], keep: vec![6, 7], rate: 1 << 28 },
        TierOrder::Save { seq: 9, rank: 1, number: 7, stores: vec![NodeStore::Memory], needed: 1 << 20, order: order() },
        TierOrder::Manifest { task: 1, number: 7, to: Destination::Object(object()), text: b"{}".to_vec() },
        TierOrder::Copy {
            task: 2,
            image: image(),
            from: ImageLocation::NodeStore(NodeStore::Memory),
            to: Destination::File("/srv/7/rank-1.image".into()),
        },
        TierOrder::Send {
            image: image(),
            from: ImageLocation::File("/srv/7/rank-1.image".into()),
            address: address(),
            token: [3; 16],
            hurry: true,
        },
        TierOrder::Receive { task: 3, image: image(), store: store(), token: [3; 16] },
        TierOrder::Fetch { task: 4, image: image(), from: ImageOrigin::Node { token: [3; 16] }, spare: "/srv/spare".into(), check: true },
        TierOrder::Fetch { task: 5, image: image(), from: ImageOrigin::Object(object()), spare: "/srv/spare".into(), check: false },
        TierOrder::Inventory { task: 6 },
        TierOrder::Remove { place: Destination::NodeStore(store()), number: 6, ranks: vec![0, 1] },
        TierOrder::Close,
        TierOrder::OpenPortable { tiers: parse_tiers("memory,partner,shared").unwrap() },
        TierOrder::Portable(PortableOrder::Send { name: file(), address: address(), token: [3; 16], hurry: true }),
        TierOrder::Portable(PortableOrder::Receive { name: file(), bytes: 1 << 20, token: [3; 16] }),
        TierOrder::Portable(PortableOrder::Kept { name: file() }),
        TierOrder::Portable(PortableOrder::Missing { name: file() }),
        TierOrder::Portable(PortableOrder::Lost { names: vec![file(), file().with(Part::Seal)] }),
        TierOrder::Portable(PortableOrder::Turn { tier: "shared".into(), turn: 3 }),
    ]
}

pub fn tier_reports() -> Vec<TierReport> {
    let holding = Holding { store: NodeStore::Memory, number: 7, images: vec![(0, 1 << 20), (1, 1 << 21)] };
    vec![
        TierReport::Placed { rank: 1, number: 7, place: ImageLocation::NodeStore(NodeStore::Memory) },
        TierReport::PassedOver { store: NodeStore::Directory("/scratch".into()), why: "no room".into() },
        TierReport::Done { task: 1, result: Ok(TierDone::Stored) },
        TierReport::Done { task: 4, result: Ok(TierDone::Image("/srv/7/rank-1.image".into())) },
        TierReport::Done { task: 6, result: Ok(TierDone::Holdings(vec![holding])) },
        TierReport::Done { task: 7, result: Err("no such image".into()) },
        TierReport::Portable(PortableReport::Holds { files: vec![(file(), 1 << 20), (file().with(Part::Seal), 300)] }),
        TierReport::Portable(PortableReport::Offer { name: file(), bytes: 1 << 20 }),
        TierReport::Portable(PortableReport::Wanted { name: file() }),
        TierReport::Portable(PortableReport::Taken { name: file(), result: Ok(1 << 20) }),
        TierReport::Portable(PortableReport::Taken { name: file(), result: Err("no room".into()) }),
        TierReport::Portable(PortableReport::Gone { key: file().key().to_owned(), checkpoint: 7 }),
        TierReport::Portable(PortableReport::Asks { tier: "shared".into(), turn: 3 }),
        TierReport::Portable(PortableReport::Over { tier: "shared".into(), turn: 3 }),
        TierReport::Portable(PortableReport::NotCopied { name: file(), tier: "shared".into(), why: "no space left on device".into() }),
    ]
}
