//! Plug-ins: executables that say more about the node. docs/health.md has the contract.
//!
//! ```text
//! exit code 0: well    1: low mark passed    2: high mark passed    anything else: it could not tell
//! standard output: JSON, { "text", "sensors": [{ "name", "value", "unit", "low", "high", "grade", "counter", "text" }] }, or one line of text
//! ```
//! So LBNL's Node Health Check and monitoring plug-ins (Nagios) work as they are.

use crate::program::{self, Ended, ProgramFailure};
use crate::unread;
use mend_messages::health::{Grade, Unread};
use mend_policy::health::marks::Marks;
use mend_policy::health::watch::{Kind, Sample};
use mend_report::with_causes;
use serde::Deserialize;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Sensors of one plug-in, at most.
const MOST_SENSORS: usize = 256;
/// Longest text and name that are kept, characters.
const MOST_TEXT: usize = 200;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said {
    text: String,
    sensors: Vec<SaidSensor>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SaidSensor {
    name: String,
    value: Option<f64>,
    unit: String,
    low: Option<f64>,
    high: Option<f64>,
    grade: Grade,
    counter: bool,
    text: String,
}

/// The executables in a directory, by name; or why one of them is not run.
///
/// # Errors
/// The directory is not there, or others may write to it.
pub fn list(directory: &Path) -> Result<Vec<PathBuf>, Unread> {
    let source = || format!("plugins:{}", directory.display());
    program::trusted(directory).map_err(|error| unread(&source(), with_causes(&error), true))?;
    let executable = |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    let visible = crate::names(directory).into_iter().filter(|name| !name.starts_with('.') && !name.ends_with('~'));
    Ok(visible.map(|name| directory.join(name)).filter(executable).collect())
}

/// What a plug-in's sensors are called: `plugin:NAME`.
#[must_use]
pub fn name(path: &Path) -> String {
    format!("plugin:{}", path.file_name().unwrap_or_default().to_string_lossy())
}

/// Runs one.
///
/// # Errors
/// It was not run, hung, or could not tell.
pub async fn read(path: &Path, limit: Duration) -> Result<Vec<Sample>, Unread> {
    let failed = |error: ProgramFailure| unread(&name(path), format!("{} {}", path.display(), with_causes(&error)), true);
    program::trusted(path).map_err(failed)?;
    let ended = program::run(path, &[], b"", limit).await.map_err(failed)?;
    understood(&name(path), &ended)
}

fn understood(plugin: &str, ended: &Ended) -> Result<Vec<Sample>, Unread> {
    let grade = match ended.status.code() {
        Some(0) => Grade::Well,
        Some(1) => Grade::Low,
        Some(2) => Grade::High,
        _ => return Err(unread(plugin, format!("ended with {}: {}", ended.status, cut(ended.first_line())), true)),
    };
    let said = if ended.stdout.trim_start().starts_with('{') {
        serde_json::from_str(&ended.stdout).map_err(|error| unread(plugin, format!("its JSON cannot be used: {error}"), true))?
    } else {
        Said { text: ended.first_line().to_owned(), sensors: Vec::new() }
    };
    let own = Sample { sensor: plugin.to_owned(), told: grade, text: cut(&said.text), ..Sample::default() };
    let sensor = |said: SaidSensor| {
        let marks = said.low.zip(said.high).and_then(|(low, high)| Marks::new(low, high));
        let useless = marks.is_none() && (said.low.is_some() || said.high.is_some());
        Sample {
            sensor: format!("{plugin}/{}", cut(&said.name)),
            value: said.value,
            unit: cut(&said.unit),
            kind: if said.counter { Kind::Counter } else { Kind::Level },
            marks,
            told: said.grade,
            text: if useless { "not judged: `low` and `high` are both needed, and must differ".to_owned() } else { cut(&said.text) },
        }
    };
    let sensors = said.sensors.into_iter().take(MOST_SENSORS).filter(|sensor| !sensor.name.trim().is_empty());
    Ok(std::iter::once(own).chain(sensors.map(sensor)).collect())
}

/// One line of bounded length, without what a terminal would obey.
fn cut(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(code: i32, stdout: &str) -> Ended {
        Ended { status: ExitStatus::from_raw(code << 8), stdout: stdout.into(), stderr: String::new() }
    }

    #[test]
    fn node_health_check_s_line_and_exit_code_will_do() {
        let line = "ERROR:  nhc:  Health check failed:  check_fs_mount:  /scratch not mounted";
        let found = understood("plugin:nhc", &ended(1, line)).unwrap();
        assert_eq!((found[0].told, found[0].text.as_str(), found.len()), (Grade::Low, line, 1));
        assert_eq!(understood("plugin:nhc", &ended(0, "")).unwrap()[0].told, Grade::Well);
        // Nagios: 2 is critical, 3 unknown.
        assert_eq!(understood("plugin:x", &ended(2, "CRITICAL - 99 C")).unwrap()[0].told, Grade::High);
        let unknown = understood("plugin:x", &ended(3, "UNKNOWN - no answer")).unwrap_err();
        assert!(unknown.failed && unknown.error.contains("no answer"), "{unknown:?}");
    }

    #[test]
    fn json_brings_sensors_with_marks() {
        let text = r#"{"text": "cooling", "later": 1, "sensors": [
            {"name": "inlet", "value": 31.5, "unit": "°C", "low": 30, "high": 40},
            {"name": "leaks", "value": 2, "counter": true, "low": 1, "high": 3}, {"name": "pump", "grade": "high", "text": "stands"}, {"name": " "}]}"#;
        let found = understood("plugin:rack", &ended(0, text)).unwrap();
        assert_eq!(found.len(), 4);
        assert_eq!((found[1].sensor.as_str(), found[1].value, found[1].marks), ("plugin:rack/inlet", Some(31.5), Marks::new(30.0, 40.0)));
        assert_eq!((found[2].kind, found[3].told), (Kind::Counter, Grade::High));
        let broken = understood("plugin:rack", &ended(0, "{\"sensors\": [}")).unwrap_err();
        assert!(broken.failed && broken.error.contains("JSON"));
    }

    proptest! {
        #[test]
        fn any_output_is_understood_or_refused(code in 0i32..256, text in ".{0,300}") {
            if let Ok(samples) = understood("plugin:x", &ended(code, &text)) {
                prop_assert!(samples.iter().all(|sample| !sample.text.chars().any(char::is_control) && sample.text.chars().count() <= MOST_TEXT));
            }
        }
    }
}
