//! Errors of memory that the kernel counts (Documentation/admin-guide/ras.rst): corrected ones, and such as could not be corrected.
//!
//! Counted over an hour. Corrected errors: low mark 100, high mark 1000; a memory module that corrects so many an hour is known to fail more often
//! (Schroeder et al., "DRAM Errors in the Wild", SIGMETRICS 2009). One that is not corrected is past the low mark: the next may hit a rank.

use crate::{names, number};
use mend_policy::health::marks::Marks;
use mend_policy::health::watch::{Kind, Sample};
use std::path::Path;

/// Reads all counters below a root.
#[must_use]
pub fn read(root: &Path) -> Vec<Sample> {
    let base = root.join("sys/devices/system/edac/mc");
    let mut samples = Vec::new();
    for controller in names(&base) {
        let is_numbered = controller.strip_prefix("mc").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit()));
        for (file, what, marks) in [("ce_count", "corrected", (100.0, 1000.0)), ("ue_count", "uncorrected", (1.0, 10.0))] {
            let value = number(&base.join(&controller).join(file)).filter(|_| is_numbered);
            samples.extend(value.map(|value| Sample {
                sensor: format!("edac:{controller}/{what}"),
                value: Some(value),
                unit: "per hour".into(),
                kind: Kind::Counter,
                marks: Marks::new(marks.0, marks.1),
                ..Sample::default()
            }));
        }
    }
    samples
}
