//! One direction of a channel at one end: what it takes from the port, and gives back when it ends.
//!
//! Invariant: a line's number is in the port as long as its `OwnLine` lives, and the receive buffers that its peer may fill are
//! posted before the peer is told of them.

use super::super::super::ChannelError;
use super::super::super::opening::nonce;
use super::super::CREDITS;
use super::lines::Line;
use super::{Contact, SharedPort, lock};

/// One direction of a channel at one end, as long as the channel lives.
pub struct OwnLine {
    /// The port.
    pub port: SharedPort,
    /// Number that messages to this end begin with.
    pub number: u64,
    grant: usize,
    peer: Option<(Vec<u8>, u64)>,
}

impl OwnLine {
    /// Begins a line on which the peer may have `grant` messages under way.
    ///
    /// # Errors
    /// No memory, or the provider takes no more buffers.
    pub fn begin(port: &SharedPort, outbound: bool, grant: usize) -> Result<Self, ChannelError> {
        let mut number = [0; 8];
        number.copy_from_slice(&nonce()?[..8]);
        let number = u64::from_le_bytes(number);
        let mut open = lock(port);
        open.wanted += grant;
        let line = Self { port: port.clone(), number, grant, peer: None };
        open.replenish();
        let enough = open.posted + open.held >= open.wanted;
        open.lines.insert(number, Line::new(outbound));
        drop(open);
        // Too late is too little: a message without a buffer would hold up others.
        if enough { Ok(line) } else { Err(ChannelError::Provider("the provider takes no more receive buffers".into())) }
    }

    /// Learns where the peer is; its number at the provider.
    ///
    /// # Errors
    /// The address is not one.
    pub fn meet(&mut self, contact: &Contact) -> Result<u64, ChannelError> {
        let mut port = lock(&self.port);
        let unusable = |what: String| Err(ChannelError::Provider(what));
        if contact.provider != port.core.provider || contact.format != port.core.format {
            return unusable(format!("the peer uses {:?}, this rank {:?}", contact.provider, port.core.provider));
        }
        if contact.address.len() != port.core.address.len() {
            return Err(ChannelError::Protocol("the peer's address is none".into()));
        }
        let to = match port.peers.get_mut(&contact.address) {
            Some((to, users)) => {
                *users += 1;
                *to
            }
            None => match port.core.insert(&contact.address) {
                Ok(to) => {
                    port.peers.insert(contact.address.clone(), (to, 1));
                    to
                }
                Err(errno) => {
                    let cause = std::io::Error::from_raw_os_error(errno);
                    return unusable(format!("{} refuses the peer's address: {cause}", port.core.provider));
                }
            },
        };
        let order = port.core.address.cmp(&contact.address);
        if let Some(line) = port.lines.get_mut(self.number) {
            line.theirs = contact.line;
            // The end with the lower address begins: see the module `ofi`.
            if line.outbound && order.is_le() {
                line.credits = CREDITS;
            } else if !line.outbound && order.is_lt() {
                line.owed = CREDITS;
            }
            if !line.outbound {
                port.sources.insert(to, self.number);
            }
        }
        drop(port);
        self.peer = Some((contact.address.clone(), to));
        Ok(to)
    }
}

impl Drop for OwnLine {
    fn drop(&mut self) {
        let mut port = lock(&self.port);
        port.wanted -= self.grant;
        if let Some(line) = port.lines.remove(self.number) {
            for number in line.unread() {
                port.done(number, self.number);
            }
        }
        if let Some((address, to)) = &self.peer
            && let Some((_, users)) = port.peers.get_mut(address)
        {
            *users -= 1;
            if *users == 0 {
                port.peers.remove(address);
                port.core.remove(*to);
            }
            if port.sources.get(to) == Some(&self.number) {
                port.sources.remove(to);
            }
        }
    }
}
