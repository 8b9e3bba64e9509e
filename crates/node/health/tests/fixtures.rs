//! Sensors that this machine may lack, by files as the kernel and smartctl give them: below another root, and from a program that prints them.

use mend_health::{edac, hwmon, smart};
use mend_messages::health::Grade;
use mend_policy::health::marks::Marks;
use mend_policy::health::watch::{Kind, Sample};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn named<'a>(samples: &'a [Sample], sensor: &str) -> &'a Sample {
    let found = samples.iter().find(|sample| sample.sensor == sensor);
    found.unwrap_or_else(|| panic!("no {sensor} in {:?}", samples.iter().map(|sample| &sample.sensor).collect::<Vec<_>>()))
}

#[test]
fn chips_are_read_with_their_own_marks() {
    let samples: Vec<Sample> = hwmon::list(&fixtures().join("node")).iter().filter_map(hwmon::read).collect();
    let package = named(&samples, "hwmon:coretemp/Package id 0");
    assert_eq!(
        (package.value, package.unit.as_str(), package.marks, package.told),
        (Some(54.0), "°C", Marks::new(84.0, 94.0), Grade::Well)
    );
    let fan = named(&samples, "hwmon:nct6775/fan1");
    assert_eq!((fan.value, fan.marks), (Some(1480.0), Marks::new(720.0, 600.0)));
    // One that is not connected has no minimum, and its alarm means nothing.
    assert_eq!((named(&samples, "hwmon:nct6775/fan2").marks, named(&samples, "hwmon:nct6775/fan2").told), (None, Grade::Well));
    assert_eq!(named(&samples, "hwmon:nct6775/in0").value, Some(1.208));
    assert!(!samples.iter().any(|sample| sample.sensor.contains("temp7")), "a sensor with a fault is passed over");
    let disk = named(&samples, "hwmon:drivetemp/temp1");
    assert_eq!(disk.marks.zip(disk.value).map(|(marks, value)| marks.reached(value)), Some(Grade::High));
    assert_eq!(hwmon::list(Path::new("/nowhere")), []);
}

#[test]
fn memory_errors_are_counters() {
    let samples = edac::read(&fixtures().join("node"));
    let corrected = named(&samples, "edac:mc0/corrected");
    assert_eq!((corrected.value, corrected.kind, corrected.marks), (Some(12.0), Kind::Counter, Marks::new(100.0, 1000.0)));
    assert_eq!((named(&samples, "edac:mc0/uncorrected").value, samples.len()), (Some(0.0), 2));
}

/// A program that prints what smartctl prints of the device that is named last.
fn smartctl(directory: &Path, scan: &str) -> PathBuf {
    let (path, smart) = (directory.join("smartctl"), fixtures().join("smart"));
    let text = format!(
        "#!/bin/sh\nfor last; do :; done\ncase $last in --scan) cat {0}/{scan};; *) cat {0}/$(basename $last).json;; esac\n",
        smart.display()
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn disks_say_how_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let program = smartctl(directory.path(), "scan.json");
    let read = smart::read(&program, Duration::from_secs(60)).await.unwrap();
    // The one that may not be asked keeps the others from nothing, and is named.
    let silent: Vec<_> = read.iter().filter_map(|(source, read)| Some((source.as_str(), read.as_ref().err()?.failed))).collect();
    assert_eq!(silent, [("smart:/dev/sda", false)]);
    let samples: Vec<Sample> = read.into_iter().filter_map(|(_, read)| read.ok()).flatten().collect();
    assert_eq!(named(&samples, "smart:/dev/sdb/health").told, Grade::High);
    let reallocated = named(&samples, "smart:/dev/sdb/reallocated");
    assert_eq!((reallocated.value, reallocated.kind), (Some(3912.0), Kind::Counter));
    let pending = named(&samples, "smart:/dev/sdb/pending");
    assert_eq!((pending.value, pending.kind), (Some(17.0), Kind::Rise));
    assert_eq!(
        (named(&samples, "smart:/dev/nvme0/warning").told, named(&samples, "smart:/dev/nvme0/worn").value),
        (Grade::Well, Some(3.0))
    );
}

#[tokio::test]
async fn what_smartctl_cannot_do_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let none = smart::read(&smartctl(directory.path(), "nvme0.json"), Duration::from_secs(60)).await.unwrap_err();
    assert!(!none.failed && none.error.contains("no disk"), "{none:?}");
    let broken = smart::read(&smartctl(directory.path(), "missing.json"), Duration::from_secs(60)).await.unwrap_err();
    assert!(broken.failed && broken.error.contains("no JSON"), "{broken:?}");
    // One disk of several: it says nothing, least of all that it is well.
    let program = smartctl(directory.path(), "scan.json");
    let text = fs::read_to_string(&program).unwrap().replace("case $last in", "case $last in */sdb) echo hangs;;");
    fs::write(&program, text).unwrap();
    let read = smart::read(&program, Duration::from_secs(60)).await.unwrap();
    let (_, silent) = read.iter().find(|(source, _)| source == "smart:/dev/sdb").unwrap();
    assert!(silent.as_ref().is_err_and(|why| why.failed && why.source == "smart:/dev/sdb"), "{silent:?}");
    assert!(read.iter().any(|(_, read)| read.is_ok()));
}
