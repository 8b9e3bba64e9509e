//! What a test that passes did not show.

use std::io::Write as _;

/// Says so where it is seen although the test passes: what is printed as usual is not. `tests/run.py` names it at its end.
pub fn skipped(what: &str, why: &str) {
    // In one piece: other tests print, too.
    let _ = std::io::stderr().write_all(format!("skipped: {what}: {why}\n").as_bytes());
}
