//! What both ends of an `ofi` channel tell each other in the handshake: where their endpoint is, and the number that
//! messages to them begin with.

use super::super::ChannelError;
use mend_fabric_sys::core_provider::MAX_ADDRESS;

/// Encoded contact, bytes.
pub const CONTACT_LENGTH: usize = 112;
const MAX_PROVIDER: usize = 32;

/// An end of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Name of the core provider.
    pub provider: String,
    /// Format of the address.
    pub format: u32,
    /// Address of the endpoint.
    pub address: Vec<u8>,
    /// Number of the line; nobody else knows it.
    pub line: u64,
}

impl Contact {
    /// Wire form.
    ///
    /// # Errors
    /// The provider's name or address is too long to be told.
    pub fn encode(&self) -> Result<[u8; CONTACT_LENGTH], ChannelError> {
        if self.provider.len() > MAX_PROVIDER || self.address.len() > MAX_ADDRESS {
            return Err(ChannelError::Provider("the provider's name or address is too long".into()));
        }
        let mut bytes = [0; CONTACT_LENGTH];
        bytes[..self.provider.len()].copy_from_slice(self.provider.as_bytes());
        bytes[32..36].copy_from_slice(&self.format.to_le_bytes());
        bytes[36..40].copy_from_slice(&(self.address.len() as u32).to_le_bytes());
        bytes[40..40 + self.address.len()].copy_from_slice(&self.address);
        bytes[104..].copy_from_slice(&self.line.to_le_bytes());
        Ok(bytes)
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(bytes: &[u8; CONTACT_LENGTH]) -> Result<Self, ChannelError> {
        let (mut word, mut long) = ([0; 4], [0; 8]);
        word.copy_from_slice(&bytes[32..36]);
        let format = u32::from_le_bytes(word);
        word.copy_from_slice(&bytes[36..40]);
        let length = u32::from_le_bytes(word) as usize;
        long.copy_from_slice(&bytes[104..]);
        let name = bytes[..MAX_PROVIDER].split(|byte| *byte == 0).next().unwrap_or_default();
        match (std::str::from_utf8(name), bytes[40..40 + MAX_ADDRESS].get(..length)) {
            (Ok(provider), Some(address)) if !provider.is_empty() && !address.is_empty() => {
                Ok(Self { provider: provider.to_owned(), format, address: address.to_vec(), line: u64::from_le_bytes(long) })
            }
            _ => Err(ChannelError::Protocol("not a contact".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_survives_its_wire_form_and_lies_do_not() {
        let contact = Contact { provider: "verbs;ofi_rxm".into(), format: 2, address: vec![9; MAX_ADDRESS], line: 77 };
        let mut bytes = contact.encode().unwrap();
        assert_eq!(Contact::decode(&bytes).unwrap(), contact);
        bytes[36] = MAX_ADDRESS as u8 + 1;
        assert!(Contact::decode(&bytes).is_err());
        bytes[36] = 0;
        assert!(Contact::decode(&bytes).is_err());
        assert!(Contact { provider: "x".repeat(33), ..contact }.encode().is_err());
    }
}
