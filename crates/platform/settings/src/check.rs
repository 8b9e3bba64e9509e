//! Whether what the environment says can be used, before any of it is.

use crate::{ALL, Kind, Setting, SettingError};

impl Setting {
    /// Whether its value is one that it may have. Paths and texts are looked at by those who use them.
    ///
    /// # Errors
    /// As the function that reads it.
    pub fn check(&self) -> Result<(), SettingError> {
        match self.kind {
            Kind::Path | Kind::Text => Ok(()),
            Kind::List(_) => self.words().map(drop),
            Kind::WordOrNumber { .. } => self.word_or_number(None).map(drop),
            Kind::Features => self.features().map(drop),
            Kind::Choice(_) => self.choice().map(drop),
            Kind::Number { .. } => self.number().map(drop),
        }
    }
}

/// Looks at all settings that the environment has. For programs that read some of them late: what cannot be used is told before anything is
/// begun.
///
/// # Errors
/// That of the first one that cannot be used.
pub fn check() -> Result<(), SettingError> {
    ALL.iter().filter(|setting| setting.is_set()).try_for_each(Setting::check)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_values_that_settings_may_have() {
        for setting in ALL.iter().filter(|setting| !setting.default.is_empty() && !setting.is_set()) {
            assert_eq!(setting.check(), Ok(()), "{}", setting.name);
        }
    }
}
