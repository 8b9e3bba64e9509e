//! The strategy that stops the program: all is written while its threads stand still.

use super::{Done, Strategy};
use crate::capture::write_error::WriteError;
use crate::capture::write_job::MemoryPart;
use crate::capture::writer::{Silent, Writer};

/// Suits every image. `stack` is the end of a stack for a process that makes the calls that send.
pub(super) struct Stop {
    pub stack: usize,
}

impl<'a> Strategy<'a> for Stop {
    fn write(self, mut writer: Writer<'a, Silent>) -> Result<Done, WriteError> {
        // SAFETY: all threads of the program stand still until this has returned.
        unsafe { writer.send_beside(self.stack) };
        writer.content(MemoryPart::Shared)?;
        writer.content(MemoryPart::Private)?;
        writer.end().map(Done::Written)
    }
}
