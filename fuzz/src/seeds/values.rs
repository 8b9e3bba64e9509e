//! Values that messages of several kinds have.

use mend_messages::agent::{Compression, ImageId, SaveMode, SaveOrder, SaveTarget};
use std::net::SocketAddr;

pub fn address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 7], 4711))
}

pub fn id(byte: u8) -> ImageId {
    ImageId([byte; 16])
}

pub fn order() -> SaveOrder {
    let target = SaveTarget::File("/srv/7/rank-0.image".into());
    SaveOrder {
        target,
        mode: SaveMode::CopyOnWrite,
        base: Some(id(1)),
        track: true,
        rate: Some(1 << 30),
        files_kept: true,
        compression: Compression::Auto,
    }
}
