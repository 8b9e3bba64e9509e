//! Length-prefixed postcard frames, as bytes; reading and writing them is the callers' I/O.

use serde::{Serialize, de::DeserializeOwned};

/// Largest frame accepted, bytes. Output, PMI and maps of 10,000 ranks stay below.
pub const MAX_FRAME: usize = 16 << 20;

/// Why bytes are not a message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length prefix is over [`MAX_FRAME`]: an unproven peer, or a stream out of step.
    #[error("a frame of {0} bytes is announced, more than the {MAX_FRAME} that any message needs")]
    TooLong(usize),
    /// The body does not decode.
    #[error("a frame does not hold a message of this protocol")]
    Malformed,
}

/// Encodes `message` with its length prefix.
///
/// # Errors
/// [`FrameError::TooLong`] if the message encodes to more than [`MAX_FRAME`] bytes.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, FrameError> {
    let body = postcard::to_stdvec(message).map_err(|_| FrameError::Malformed)?;
    if body.len() > MAX_FRAME {
        return Err(FrameError::TooLong(body.len()));
    }
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Length of the body announced by a prefix.
///
/// # Errors
/// [`FrameError::TooLong`] over [`MAX_FRAME`].
pub fn body_length(prefix: [u8; 4]) -> Result<usize, FrameError> {
    let length = u32::from_le_bytes(prefix) as usize;
    if length > MAX_FRAME { Err(FrameError::TooLong(length)) } else { Ok(length) }
}

/// Decodes a body; trailing bytes are an error.
///
/// # Errors
/// [`FrameError::Malformed`].
pub fn decode<M: DeserializeOwned>(body: &[u8]) -> Result<M, FrameError> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::ToDaemon;

    #[test]
    fn round_trip() {
        let message = ToDaemon::Stdin { rank: 3, bytes: vec![1, 2, 3] };
        let frame = encode(&message).unwrap();
        let length = body_length(frame[..4].try_into().unwrap()).unwrap();
        assert_eq!(length, frame.len() - 4);
        assert_eq!(decode::<ToDaemon>(&frame[4..]).unwrap(), message);
    }

    #[test]
    fn lying_lengths_and_trailing_bytes_are_refused() {
        assert_eq!(body_length([0xff; 4]), Err(FrameError::TooLong(0xffff_ffff)));
        let mut frame = encode(&ToDaemon::Ping { at_us: 7 }).unwrap();
        frame.push(0);
        assert_eq!(decode::<ToDaemon>(&frame[4..]), Err(FrameError::Malformed));
    }
}
