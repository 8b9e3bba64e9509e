//! Why the value of a setting cannot be used.

/// A value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// Not a feature of a processor.
    #[error("{name} names {word}, which is no feature of a processor that Mend knows; /proc/cpuinfo lists those that a node has, as flags")]
    Feature {
        /// The variable.
        name: &'static str,
        /// What is no feature.
        word: String,
    },
    /// Not a number, or out of range.
    #[error("{name}={value}: expected a whole number from {min} to {max}")]
    Number {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// The least number.
        min: u64,
        /// The greatest number.
        max: u64,
    },
    /// Neither a word that it may be nor a number in range.
    #[error("{name}={value}: expected {words} or a whole number from {min} to {max}")]
    WordOrNumber {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        words: String,
        /// The least number.
        min: u64,
        /// The greatest number.
        max: u64,
    },
    /// The same, of a value that was given in another way than by the variable.
    #[error("expected {words} or a whole number from {min} to {max}")]
    Given {
        /// What it may be.
        words: String,
        /// The least number.
        min: u64,
        /// The greatest number.
        max: u64,
    },
    /// A word that is none of those.
    #[error("{name}={value}: expected some of {words}, separated by commas")]
    List {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        words: String,
    },
    /// Not one of the words.
    #[error("{name}={value}: expected one of {words}")]
    Choice {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        words: String,
    },
    /// It would be another directory for each process.
    #[error("{name} is {}, which is no absolute path", path.display())]
    RelativeHome {
        /// The variable.
        name: &'static str,
        /// Its value.
        path: std::path::PathBuf,
    },
    /// No default can be derived.
    #[error("neither {name} nor HOME is set")]
    NoHome {
        /// The variable.
        name: &'static str,
    },
}
