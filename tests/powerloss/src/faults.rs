//! Which operation meets a failure. Operations that change something are counted, from the mount on.

use rustix::io::Errno;

/// Operations that change the disk or make it durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes into a file.
    Write,
    /// fsync of a file or directory.
    Sync,
    /// Everything about names, and lengths.
    Name,
}

impl Kind {
    /// By its word in an order.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "write" => Some(Self::Write),
            "sync" => Some(Self::Sync),
            "name" => Some(Self::Name),
            _ => None,
        }
    }
}

/// A failure of one operation that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Which kind.
    pub kind: Kind,
    /// How many of this kind go well before it.
    pub after: u64,
    /// What it says.
    pub errno: Errno,
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    counted: u64,
    cut_at: Option<u64>,
    failing: Option<Failing>,
    /// Most bytes that one write takes; 0 for all.
    pub short: u32,
    /// fsync says that all is durable, and does nothing.
    pub lie: bool,
    dead: bool,
}

impl Faults {
    /// Operations so far.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// The power fails after so many further operations.
    pub fn cut_after(&mut self, operations: u64) {
        self.cut_at = Some(self.counted + operations);
        self.dead = operations == 0;
    }

    /// One operation is to fail.
    pub fn fail(&mut self, failing: Failing) {
        self.failing = Some(failing);
    }

    /// True once the power has failed.
    #[must_use]
    pub fn dead(&self) -> bool {
        self.dead
    }

    /// Before any operation.
    ///
    /// # Errors
    /// `EIO` when the power has failed.
    pub fn alive(&self) -> Result<(), Errno> {
        if self.dead { Err(Errno::IO) } else { Ok(()) }
    }

    /// Before an operation that changes something. Its failure changes nothing.
    ///
    /// # Errors
    /// `EIO` when the power fails (or has), what was ordered when it is this one's turn to fail.
    pub fn admit(&mut self, kind: Kind) -> Result<(), Errno> {
        if self.cut_at.is_some_and(|at| self.counted >= at) {
            self.dead = true;
        }
        self.alive()?;
        self.counted += 1;
        if let Some(failing) = &mut self.failing
            && failing.kind == kind
        {
            if failing.after == 0 {
                let errno = failing.errno;
                self.failing = None;
                return Err(errno);
            }
            failing.after -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_power_fails_before_the_operation_and_for_good() {
        let mut faults = Faults::default();
        faults.admit(Kind::Write).unwrap();
        faults.cut_after(2);
        faults.admit(Kind::Name).unwrap();
        faults.admit(Kind::Sync).unwrap();
        assert!(!faults.dead());
        assert_eq!(faults.admit(Kind::Write), Err(Errno::IO));
        assert_eq!(faults.alive(), Err(Errno::IO));
        assert_eq!(faults.counted(), 3);
    }

    #[test]
    fn the_ordered_operation_fails_once() {
        let mut faults = Faults::default();
        faults.fail(Failing { kind: Kind::Sync, after: 1, errno: Errno::NOSPC });
        for _ in 0..3 {
            faults.admit(Kind::Write).unwrap();
        }
        faults.admit(Kind::Sync).unwrap();
        assert_eq!(faults.admit(Kind::Sync), Err(Errno::NOSPC));
        faults.admit(Kind::Sync).unwrap();
    }
}
