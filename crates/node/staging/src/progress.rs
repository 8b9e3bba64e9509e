//! A bar on a terminal; nothing elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far a command is.
pub struct Progress {
    bar: ProgressBar,
    fetched: AtomicU64,
}

impl Progress {
    /// Shown on standard error if that is a terminal and nobody asked for quiet.
    pub fn new(quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(Some(0), if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
        if let Ok(style) =
            ProgressStyle::with_template("{wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}  {msg}")
        {
            bar.set_style(style);
        }
        Self { bar, fetched: AtomicU64::new(0) }
    }

    /// So many bytes more are to be had, of which some are there.
    pub fn wants(&self, bytes: u64, there: u64) {
        self.bar.inc_length(bytes);
        self.bar.inc(there);
        self.bar.reset_eta();
    }

    /// What is being worked on.
    pub fn names(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// So many bytes have come.
    pub fn came(&self, bytes: u64) {
        self.fetched.fetch_add(bytes, Ordering::Relaxed);
        self.bar.inc(bytes);
    }

    /// A line that stays.
    pub fn tell(&self, line: &str) {
        self.bar.suspend(|| mend_report::tell!("{line}"));
    }

    /// No bar any more.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
