//! Memory pressure: the share of time in which all tasks that had something to do waited for memory.
//!
//! Source: the kernel's Documentation/accounting/psi.rst. Low mark 20 %, high mark 60 % of the last ten seconds (`full avg10`); 60 % is where
//! systemd-oomd begins to kill (oomd.conf(5)).

use mend_messages::health::Unread;
use mend_policy::health::marks::Marks;
use mend_policy::health::watch::Sample;
use std::path::Path;

/// What memory pressure is called.
pub const SENSOR: &str = "memory:pressure";

/// Reads it below a root.
///
/// # Errors
/// The kernel does not measure it.
pub fn read(root: &Path) -> Result<Sample, Unread> {
    let path = root.join("proc/pressure/memory");
    let text = std::fs::read_to_string(&path).map_err(|error| {
        crate::unread(SENSOR, format!("{}: {error} (a kernel with CONFIG_PSI, booted with psi=1, measures it)", path.display()), false)
    })?;
    let value = parse(&text).ok_or_else(|| crate::unread(SENSOR, format!("{}: no `full avg10=`", path.display()), true))?;
    Ok(Sample { sensor: SENSOR.into(), value: Some(value), unit: "%".into(), marks: Marks::new(20.0, 60.0), ..Sample::default() })
}

fn parse(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("full "))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_format_is_read() {
        let text = "some avg10=3.10 avg60=1.00 avg300=0.20 total=123\nfull avg10=2.05 avg60=0.50 avg300=0.10 total=99\n";
        assert_eq!((parse(text), parse("some avg10=1"), parse("full avg10=x")), (Some(2.05), None, None));
        assert!(read(Path::new("/")).is_ok_and(|sample| sample.value.is_some()) || !Path::new("/proc/pressure/memory").exists());
        assert!(!read(Path::new("/nowhere")).unwrap_err().failed);
    }
}
