//! What disks say of themselves (SMART), by smartctl's JSON (smartctl(8), `--json`, smartmontools 7).
//!
//! A disk that says it fails is past the high mark. Sectors that were reallocated, or wait to be, are counted over an hour: low mark 1, high
//! mark 50. Those that wait become fewer again when they are written. NVMe: a critical warning is past the high mark; wear has the low mark 100 %, the high mark 120 %.

use crate::program::{self, ProgramFailure};
use crate::unread;
use mend_messages::health::{Grade, Unread};
use mend_policy::health::marks::Marks;
use mend_policy::health::watch::{Kind, Sample};
use mend_report::with_causes;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// What it is called where it fails.
pub const NAME: &str = "smart";
/// Attributes of ATA disks that are watched, by number: reallocated, pending and offline uncorrectable sectors, reported uncorrected errors.
const ATTRIBUTES: [(u64, &str, Kind); 4] =
    [(5, "reallocated", Kind::Counter), (187, "uncorrected", Kind::Counter), (197, "pending", Kind::Rise), (198, "offline", Kind::Rise)];
/// Devices, at most.
const MOST_DEVICES: usize = 64;

async fn asked(smartctl: &Path, arguments: &[&str], limit: Duration) -> Result<Value, Unread> {
    let failed = |error: ProgramFailure| unread(NAME, format!("{} {}", smartctl.display(), with_causes(&error)), true);
    let ended = program::run(smartctl, arguments, b"", limit).await.map_err(failed)?;
    serde_json::from_str(&ended.stdout).map_err(|error| {
        unread(NAME, format!("{} {}: no JSON ({error}): {}", smartctl.display(), arguments.join(" "), ended.first_line()), true)
    })
}

/// A disk's name among what is read, and what it says, or why it is not read.
pub type Read = (String, Result<Vec<Sample>, Unread>);

/// Reads all disks.
///
/// # Errors
/// There is none, or none may be read.
pub async fn read(smartctl: &Path, limit: Duration) -> Result<Vec<Read>, Unread> {
    let scanned = asked(smartctl, &["--json=c", "--scan"], limit).await?;
    let devices = scanned["devices"].as_array().cloned().unwrap_or_default();
    let (mut read, mut silent) = (Vec::new(), Vec::new());
    for device in devices.iter().take(MOST_DEVICES) {
        let (Some(name), Some(kind)) = (device["name"].as_str(), device["type"].as_str()) else { continue };
        // A disk that sleeps is left to sleep.
        let arguments = ["--json=c", "--nocheck=standby", "--health", "--attributes", "--device", kind, name];
        let source = format!("{NAME}:{name}");
        // One that hangs hides no other, and is as it was: it may be about to fail.
        match asked(smartctl, &arguments, limit).await.map(|found| understood(name, &found)) {
            Ok(Ok(some)) => read.push((source, Ok(some))),
            Ok(Err(why)) => silent.push((source.clone(), Err(unread(&source, why, false)))),
            Err(why) => read.push((source.clone(), Err(Unread { source, ..why }))),
        }
    }
    match (read.is_empty(), silent.first()) {
        // Mostly the same of all: only root may ask.
        (true, Some((_, Err(why)))) => Err(Unread { source: NAME.to_owned(), ..why.clone() }),
        (true, _) => Err(unread(NAME, "no disk that has it", false)),
        (false, _) => Ok(read.into_iter().chain(silent).collect()),
    }
}

/// What smartctl says of one device.
///
/// # Errors
/// Why it says nothing: mostly, that only root may ask.
pub fn understood(device: &str, found: &Value) -> Result<Vec<Sample>, String> {
    let sensor = |what: &str| format!("smart:{device}/{what}");
    let mut samples = Vec::new();
    if let Some(passed) = found["smart_status"]["passed"].as_bool() {
        let (told, text) = if passed { (Grade::Well, "") } else { (Grade::High, "the disk says that it fails") };
        samples.push(Sample { sensor: sensor("health"), told, text: text.into(), ..Sample::default() });
    }
    for attribute in found["ata_smart_attributes"]["table"].as_array().into_iter().flatten() {
        let watched = ATTRIBUTES.iter().find(|(id, ..)| attribute["id"].as_u64() == Some(*id));
        // The raw value's upper half is the vendor's.
        let value = attribute["raw"]["value"].as_u64().map(|raw| (raw & 0xffff_ffff) as f64);
        if let (Some((_, name, kind)), Some(value)) = (watched, value) {
            let (unit, marks) = ("per hour".into(), Marks::new(1.0, 50.0));
            samples.push(Sample { sensor: sensor(name), value: Some(value), unit, kind: *kind, marks, ..Sample::default() });
        }
    }
    let nvme = &found["nvme_smart_health_information_log"];
    if let Some(warning) = nvme["critical_warning"].as_u64() {
        let (told, text) = match warning {
            0 => (Grade::Well, String::new()),
            warning => (Grade::High, format!("critical warning {warning:#04x} (NVMe, Get Log Page 02h)")),
        };
        samples.push(Sample { sensor: sensor("warning"), told, text, ..Sample::default() });
    }
    if let Some(worn) = nvme["percentage_used"].as_f64() {
        samples.push(Sample {
            sensor: sensor("worn"),
            value: Some(worn),
            unit: "%".into(),
            marks: Marks::new(100.0, 120.0),
            ..Sample::default()
        });
    }
    if samples.is_empty() {
        let said = found["smartctl"]["messages"][0]["string"].as_str();
        return Err(said.map_or_else(|| format!("{device} says nothing of itself"), str::to_owned));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_may_not_be_asked_says_so() {
        let refused =
            serde_json::json!({"smartctl": {"messages": [{"string": "Smartctl open device: /dev/sda failed: Permission denied"}]}});
        assert!(understood("/dev/sda", &refused).unwrap_err().contains("Permission denied"));
        assert!(understood("/dev/sda", &Value::Null).is_err());
        assert!(understood("/dev/sda", &serde_json::json!({"ata_smart_attributes": {"table": 7}})).is_err());
    }
}
