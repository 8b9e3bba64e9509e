//! What a node's daemon measures of it: reads sensors at intervals, and keeps the verdict of [`mend_policy::health`].
//!
//! ```text
//! local: pressure, disks, hwmon, edac ──┐
//! bmc (ipmitool), smart (smartctl) ─────┼─ samples ─► NodeWatch ─► verdict ─► the jobs on this node
//! plug-ins ─────────────────────────────┘     ▲
//! predictor ───── time to the high mark ──────┘
//! ```
//! Reading order: [`monitor`] (who reads what, when), then one file per source. Invariants: what cannot be read makes no node sick; it is named.
//! Nothing here waits for a sensor longer than its time: a file is read on a thread of its own, a program is killed. Faults assumed: files
//! that hang or hold nonsense; programs that hang, print for ever, or leave children behind.

pub mod bmc;
pub mod disks;
pub mod edac;
pub mod hwmon;
pub mod monitor;
pub mod options;
pub mod plugins;
pub mod predictor;
pub mod pressure;
pub mod program;
pub mod smart;

use mend_messages::health::Unread;

/// Something that is not read.
#[must_use]
pub fn unread(source: &str, error: impl Into<String>, failed: bool) -> Unread {
    Unread { source: source.to_owned(), error: error.into(), failed }
}

/// A file's text without blanks around it, if there is such a file.
fn text(path: &std::path::Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// A file's number, if it holds one.
fn number(path: &std::path::Path) -> Option<f64> {
    text(path)?.parse().ok().filter(|number: &f64| number.is_finite())
}

/// The names in a directory, in order; none if it is not there.
fn names(directory: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
