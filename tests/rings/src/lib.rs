//! The file of the fabric's ring, and those that it uses, compiled with `cfg(loom)`: what is checked is what is shipped.
//!
//! The tests stand in `ring/modelled.rs`, beside the ring.

#[cfg(test)]
#[path = "../../../crates/rank/fabric/src/channel"]
#[expect(dead_code, reason = "what is checked is how records go from one end to the other")]
mod channel {
    /// What the ring says of the fabric's error of this name.
    #[derive(Debug)]
    pub enum ChannelError {
        /// The peer broke the protocol.
        Protocol(String),
    }

    mod ring;
}

#[cfg(test)]
#[path = "../../../crates/rank/fabric/src/engine"]
#[expect(dead_code, reason = "the ring uses a part of it")]
mod engine {
    pub mod buffers;
    pub mod packet;
}
