//! A provider's failure, kept for a while: a peer that has ended, or has closed its port after its last word, is no failure, but may look
//! like one before its connection ends.

use super::super::ChannelError;
use std::time::{Duration, Instant};

/// By then a peer that has ended has closed its connection, and one whose node is silent counts as dead (`MEND_NODE_TIMEOUT_MS`).
const GRACE_TIME: Duration = Duration::from_secs(15);

/// What broke one end of a channel, and since when.
#[derive(Default)]
pub struct Broken(Option<(Instant, ChannelError)>);

impl Broken {
    /// True from the first failure on: nothing may be tried any more.
    pub fn is(&self) -> bool {
        self.0.is_some()
    }

    /// As if its time of grace were over.
    #[cfg(test)]
    pub fn age(&mut self) {
        let Some((since, _)) = &mut self.0 else { panic!("it is broken") };
        *since -= GRACE_TIME;
    }

    /// The first failure.
    pub fn first(&self) -> Option<ChannelError> {
        self.0.as_ref().map(|(_, error)| error.clone())
    }

    /// Remembers the first failure; what it means now.
    ///
    /// # Errors
    /// What is no failure of a provider at once, the first that is one after the time of grace.
    pub fn bear(&mut self, error: ChannelError) -> Result<(), ChannelError> {
        if !matches!(error, ChannelError::Provider(_)) {
            return Err(error);
        }
        self.0.get_or_insert_with(|| (Instant::now(), error));
        self.look()
    }

    /// What is remembered, if the time of grace is over.
    ///
    /// # Errors
    /// That.
    pub fn look(&self) -> Result<(), ChannelError> {
        match &self.0 {
            Some((since, error)) if since.elapsed() > GRACE_TIME => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_late_and_what_is_none_at_once() {
        let mut broken = Broken::default();
        assert!(broken.look().is_ok() && !broken.is());
        assert!(matches!(broken.bear(ChannelError::Closed), Err(ChannelError::Closed)));
        assert!(!broken.is());
        assert!(broken.bear(ChannelError::Provider("first".into())).is_ok());
        assert!(broken.bear(ChannelError::Provider("second".into())).is_ok());
        assert!(broken.is() && broken.look().is_ok());
        broken.age();
        assert!(matches!(broken.look(), Err(ChannelError::Provider(what)) if what == "first"));
    }
}
