//! To whom it is told what was healed, as soon as it is.

/// See the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// By a line.
    User,
    /// By an event.
    Daemon,
    Nobody,
}
