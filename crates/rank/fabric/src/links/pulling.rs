//! One read of a sender's memory.

use crate::channel::{NotPulled, Pulled, Puller};
use crate::engine::pull::Pull;

/// A read under way.
pub struct Pulling {
    pub pull: Pull,
    /// Bytes that were read or whose read was started.
    pub offset: usize,
    /// Reads that were started and have not ended.
    pub under_way: usize,
    pub failed: bool,
}

impl Pulling {
    /// Starts what can be started. False: the channel takes no more now.
    pub fn go_on(&mut self, puller: &mut dyn Puller, budget: &mut usize) -> bool {
        while !self.failed
            && let Some((remote, local)) = self.pull.next(self.offset, puller.chunk())
        {
            if *budget == 0 {
                return false;
            }
            match puller.read(self.pull.operation, remote, local) {
                Ok(Pulled::Done) => {}
                Ok(Pulled::Started) => self.under_way += 1,
                Ok(Pulled::Full) => return false,
                Err(NotPulled) => {
                    self.failed = true;
                    break;
                }
            }
            self.offset += local.len;
            *budget = budget.saturating_sub(local.len);
        }
        true
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<bool> {
        (self.under_way == 0 && (self.failed || self.offset >= self.pull.length)).then_some(!self.failed)
    }
}
