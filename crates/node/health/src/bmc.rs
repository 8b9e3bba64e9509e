//! The node's management controller: temperatures, fans, voltages and its event log, over IPMI.
//!
//! `ipmitool shell` is asked, one that lives on: so its session stays open and the controller's list of sensors is fetched once. A reading
//! costs this node less than a millisecond.
//!
//! ```text
//! start ── `sensor` ──► marks ── `sdr elist full` at intervals, `sensor` now and then ──► samples
//!                                └─ `sel info`, and `sel list last N` when there are more entries
//!   ◄── a pause ── it ends, or is silent for too long (killed)
//! ```
//! Marks are the controller's own: non-critical is low, critical (else non-recoverable) is high; above and below, as it has them.

use crate::program::{self, ProgramFailure};
use mend_messages::health::{Grade, Unread};
use mend_policy::health::marks::Marks;
use mend_policy::health::watch::{Kind, Sample};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// What it is called where it fails.
pub const NAME: &str = "bmc";
/// What the shell prints when it is done.
const PROMPT: &[u8] = b"ipmitool> ";
/// Longest output of one command, bytes.
const MOST_OUTPUT: usize = 1 << 20;
/// All marks are read again after so many readings.
const MARKS_EVERY: u32 = 100;
/// The event log is looked at after so many readings.
const LOG_EVERY: u32 = 5;
/// Entries of the log that are read at a time, at most.
const MOST_ENTRIES: u64 = 32;
/// Words of log entries that tell of something that fails. What crosses a mark is known from the sensor itself.
const FAILURE_WORDS: [&str; 11] = [
    "uncorrectable",
    "failure",
    "fault",
    "failed",
    "predictive",
    "ierr",
    "thermal trip",
    "fatal",
    "non-recoverable",
    "redundancy lost",
    "machine check",
];

/// Where the controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bmc {
    /// This node's own, by its device.
    Local,
    /// One that is reached over the network.
    Network {
        /// Name or address.
        host: String,
        /// UDP port.
        port: u16,
        /// User; may be empty.
        user: String,
        /// File with the password.
        password: Option<PathBuf>,
        /// Number of the cipher suite.
        cipher: u64,
    },
}

/// Why the controller says nothing.
#[derive(Debug, thiserror::Error)]
pub enum BmcFailure {
    /// The password could be read by others.
    #[error("the password file {} may be read by others: `chmod 600` it", .0.display())]
    Readable(PathBuf),
    /// The password file cannot be used.
    #[error("the password file {}", path.display())]
    Password {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// No ipmitool.
    #[error("ipmitool is not installed")]
    NoTool,
    /// It cannot be run.
    #[error("ipmitool cannot be run")]
    Run(#[source] io::Error),
    /// It ended.
    #[error("ipmitool ended: {0} (see MEND_BMC, MEND_BMC_USER, MEND_BMC_PASSWORD_FILE and MEND_BMC_CIPHER)")]
    Ended(String),
    /// It is silent.
    #[error("the controller did not answer within {} ms", .0.as_millis())]
    Silent(Duration),
}

impl From<BmcFailure> for Unread {
    fn from(failure: BmcFailure) -> Self {
        crate::unread(NAME, mend_report::with_causes(&failure), true)
    }
}

/// A password file that others can read is no secret.
fn secret(path: &Path) -> Result<(), BmcFailure> {
    let found = std::fs::metadata(path).map_err(|source| BmcFailure::Password { path: path.to_owned(), source })?;
    if found.permissions().mode() & 0o077 != 0 {
        return Err(BmcFailure::Readable(path.to_owned()));
    }
    Ok(())
}

impl Bmc {
    fn arguments(&self) -> Result<Vec<String>, BmcFailure> {
        let mut arguments = vec!["-c".to_owned()];
        match self {
            Self::Local => arguments.extend(["-I", "open"].map(str::to_owned)),
            Self::Network { host, port, user, password, cipher } => {
                let (port, cipher) = (port.to_string(), cipher.to_string());
                arguments.extend(["-I", "lanplus", "-L", "USER", "-C", &cipher, "-H", host, "-p", &port].map(str::to_owned));
                if !user.is_empty() {
                    arguments.extend(["-U".to_owned(), user.clone()]);
                }
                if let Some(path) = password {
                    secret(path)?;
                    arguments.extend(["-f".to_owned(), path.to_string_lossy().into_owned()]);
                }
            }
        }
        arguments.push("shell".into());
        Ok(arguments)
    }
}

/// A conversation with the controller.
#[derive(Debug)]
pub struct Session {
    _child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// What it says last on standard error.
    complaint: JoinHandle<String>,
    limit: Duration,
    readings: u32,
    marks: BTreeMap<String, Sides>,
}

/// What is known of the controller's log, whatever becomes of a conversation with it.
#[derive(Debug, Default)]
pub struct EventLog {
    /// Entries that it had when it was looked at last.
    entries: Option<u64>,
    /// Those that tell of something that fails, of what came since it was looked at first; and the last.
    bad: (u64, String),
}

/// Marks of a sensor, below and above.
type Sides = (Option<Marks>, Option<Marks>);

async fn last_line(errors: ChildStderr) -> String {
    let (mut lines, mut last) = (BufReader::new(errors).lines(), String::new());
    while let Ok(Some(line)) = lines.next_line().await {
        if !line.trim().is_empty() {
            last = line.trim().to_owned();
        }
    }
    last
}

impl Session {
    /// Begins one. An answer may take so long.
    ///
    /// # Errors
    /// See [`BmcFailure`].
    pub async fn begin(bmc: &Bmc, limit: Duration) -> Result<Self, BmcFailure> {
        let tool = program::find("ipmitool").ok_or(BmcFailure::NoTool)?;
        let mut child = Command::new(tool)
            .args(bmc.arguments()?)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(BmcFailure::Run)?;
        let (Some(input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take()) else {
            return Err(BmcFailure::Ended("it has no standard streams".into()));
        };
        let marks = BTreeMap::new();
        let complaint = tokio::spawn(last_line(errors));
        let mut session = Self { _child: child, input, output, complaint, limit, readings: 0, marks };
        session.answer().await?;
        Ok(session)
    }

    /// What comes up to the next prompt.
    async fn answer(&mut self) -> Result<String, BmcFailure> {
        let mut said = Vec::new();
        let listen = async {
            let mut piece = [0; 4096];
            while !said.ends_with(PROMPT) && said.len() < MOST_OUTPUT {
                match self.output.read(&mut piece).await {
                    Ok(0) => return Ok(true),
                    Ok(length) => said.extend_from_slice(&piece[..length]),
                    Err(error) => return Err(BmcFailure::Run(error)),
                }
            }
            Ok(false)
        };
        let said_all = timeout(self.limit, listen).await.map_err(|_| BmcFailure::Silent(self.limit))??;
        let said = String::from_utf8_lossy(&said).into_owned();
        if said_all {
            let complaint = timeout(self.limit, &mut self.complaint).await.ok().and_then(Result::ok).unwrap_or_default();
            return Err(BmcFailure::Ended(if complaint.is_empty() { said.trim().to_owned() } else { complaint }));
        }
        Ok(said)
    }

    async fn ask(&mut self, command: &str) -> Result<String, BmcFailure> {
        self.input.write_all(format!("{command}\n").as_bytes()).await.map_err(|error| BmcFailure::Ended(error.to_string()))?;
        self.answer().await
    }

    /// All sensors, and what is new in the log.
    ///
    /// # Errors
    /// See [`BmcFailure`]. The session is of no use then.
    pub async fn read(&mut self, log: &mut EventLog) -> Result<Vec<Sample>, BmcFailure> {
        let with_marks = self.readings.is_multiple_of(MARKS_EVERY);
        let with_log = self.readings.is_multiple_of(LOG_EVERY);
        self.readings = self.readings.wrapping_add(1);
        let said = self.ask(if with_marks { "sensor" } else { "sdr elist full" }).await?;
        let rows = rows(&said);
        if with_marks {
            self.marks = rows.iter().filter(|row| row.len() >= 10).map(|row| (row[0].clone(), sides(row))).collect();
        }
        let mut samples: Vec<Sample> = rows.iter().flat_map(|row| samples(row, self.marks.get(&row[0]))).collect();
        if with_log {
            self.look_at(log).await?;
        }
        if log.entries.is_some() {
            let (value, text) = log.bad.clone();
            let marks = Marks::new(1.0, 1000.0);
            let (sensor, unit) = (format!("{NAME}:event log"), "per hour".to_owned());
            samples.push(Sample { sensor, value: Some(value as f64), unit, kind: Kind::Counter, marks, text, ..Sample::default() });
        }
        Ok(samples)
    }

    async fn look_at(&mut self, log: &mut EventLog) -> Result<(), BmcFailure> {
        let said = self.ask("sel info").await?;
        let Some(entries) = entries(&said) else { return Ok(()) };
        let new = log.new_of(entries);
        if new > 0 {
            let said = self.ask(&format!("sel list last {new}")).await?;
            said.lines().filter_map(bad_entry).for_each(|text| log.bad = (log.bad.0 + 1, text));
        }
        // Those that could not be listed are new the next time.
        log.entries = Some(entries);
        Ok(())
    }
}

impl EventLog {
    /// How many are to be listed of a log that has so many. What was there at first is nobody's fault; a log with fewer than before was cleared, and all in it is new.
    fn new_of(&self, entries: u64) -> u64 {
        let known = self.entries.unwrap_or(entries);
        if entries < known { entries } else { entries - known }.min(MOST_ENTRIES)
    }
}

/// Lines of values.
fn rows(said: &str) -> Vec<Vec<String>> {
    let row = |line: &str| line.split(',').map(|field| field.trim().to_owned()).collect::<Vec<_>>();
    said.lines().map(row).filter(|row| row.len() >= 4 && !row[0].is_empty()).collect()
}

/// Marks of a row of `sensor`: name, value, unit, state, then below: non-recoverable, critical, non-critical, and above in reverse.
fn sides(row: &[String]) -> Sides {
    let of = |at: usize| row[at].parse::<f64>().ok();
    let side = |near: Option<f64>, far: Option<f64>, farthest: Option<f64>, sign: f64| {
        let high = far.or(farthest)?;
        // One that warns of nothing before it is critical, or has never been set.
        let near = near.filter(|near| (high - near) * sign > 0.0);
        Marks::new(near.unwrap_or(high - sign * high.abs() * 0.05), high)
    };
    (side(of(6), of(5), of(4), -1.0), side(of(7), of(8), of(9), 1.0))
}

/// What a row says: name, value, unit, state.
fn samples(row: &[String], marks: Option<&Sides>) -> Vec<Sample> {
    let (Ok(value), [name, _, unit, state]) = (row[1].parse::<f64>(), &row[..4]) else { return Vec::new() };
    let unit = match unit.as_str() {
        "degrees C" => "°C",
        "Volts" => "V",
        other => other,
    };
    // `nc`, `unc`, `lcr`, `ucr`, `nr` …: non-critical, critical, non-recoverable, below or above.
    let told = if state.ends_with("nr") || state.ends_with("cr") {
        Grade::High
    } else if state.ends_with("nc") {
        Grade::Low
    } else {
        Grade::Well
    };
    let text = if told > Grade::Well { format!("the controller says `{state}`") } else { String::new() };
    let sample = |sensor: String, marks: Option<Marks>| Sample {
        sensor,
        value: Some(value),
        unit: unit.to_owned(),
        marks,
        told,
        text: text.clone(),
        ..Sample::default()
    };
    match marks.copied().unwrap_or_default() {
        (Some(below), Some(above)) => {
            vec![sample(format!("{NAME}:{name}"), Some(above)), sample(format!("{NAME}:{name} (too low)"), Some(below))]
        }
        (one, other) => vec![sample(format!("{NAME}:{name}"), one.or(other))],
    }
}

fn entries(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.trim().strip_prefix("Entries")?.trim_start().strip_prefix(':')?.trim().parse().ok())
}

/// An entry of the log, if it tells of something that fails: number, date, time, sensor, event, direction.
fn bad_entry(line: &str) -> Option<String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() < 5 || fields[0].is_empty() || fields.last() == Some(&"Deasserted") {
        return None;
    }
    let what = fields[3..].join(", ");
    let lower = what.to_lowercase();
    FAILURE_WORDS.iter().any(|word| lower.contains(word)).then_some(what)
}

/// Whether this process may open the controller's device.
#[must_use]
pub fn is_local() -> bool {
    let devices = ["/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0"];
    devices.iter().any(|path| std::fs::OpenOptions::new().read(true).write(true).open(path).is_ok())
}

impl From<ProgramFailure> for BmcFailure {
    fn from(failure: ProgramFailure) -> Self {
        Self::Ended(mend_report::with_causes(&failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_on_where_it_was_left_whatever_happened_to_it() {
        let log = |entries| EventLog { entries, ..EventLog::default() };
        assert_eq!((log(None).new_of(100), log(Some(100)).new_of(100), log(Some(100)).new_of(103)), (0, 0, 3));
        // It was cleared.
        assert_eq!((log(Some(100)).new_of(3), log(Some(100)).new_of(0), log(Some(1)).new_of(500)), (3, 0, MOST_ENTRIES));
    }

    #[test]
    fn rows_have_marks_on_both_sides() {
        let said = "sensor\nCPU,50.000,degrees C,ok,na,na,na,85.000,95.000,105.000\nFAN,8000.000,RPM,ok,500.000,800.000,1000.000,na,na,na\n\
                    P12V,12.1,Volts,nc,10.2,10.8,11.4,12.6,13.2,na\nPSU,0x1,discrete,0x0180,na,na,na,na,na,na\nipmitool> ";
        let found = rows(said);
        assert_eq!(found.len(), 4);
        let of = |at: usize| samples(&found[at], Some(&sides(&found[at])));
        assert_eq!((of(0)[0].marks, of(0)[0].unit.as_str(), of(0)[0].told), (Marks::new(85.0, 95.0), "°C", Grade::Well));
        assert_eq!(of(1)[0].marks, Marks::new(1000.0, 800.0));
        assert_eq!(
            of(2).iter().map(|sample| (sample.marks, sample.told)).collect::<Vec<_>>(),
            [(Marks::new(12.6, 13.2), Grade::Low), (Marks::new(11.4, 10.8), Grade::Low)]
        );
        assert!(of(3).is_empty());
        let short = &rows("CPU,97,degrees C,ucr\n")[0];
        assert_eq!((samples(short, None)[0].told, samples(short, None)[0].marks), (Grade::High, None));
        let only_critical: Vec<String> = "T,1,degrees C,ok,na,na,na,na,100,na".split(',').map(str::to_owned).collect();
        assert_eq!(sides(&only_critical).1, Marks::new(95.0, 100.0));
    }

    #[test]
    fn entries_that_tell_of_a_failure_are_told_from_others() {
        assert_eq!(entries("SEL Information\nVersion          : 1.5\nEntries          : 17\n"), Some(17));
        assert_eq!(
            bad_entry("1,11/25/2026,22:41:00,Memory #0x02,Uncorrectable ECC,Asserted").as_deref(),
            Some("Memory #0x02, Uncorrectable ECC, Asserted")
        );
        for good in [
            "SEL has no entries",
            "2,a,b,Temperature CPU,Upper Non-critical going high,Asserted",
            "3,a,b,Power Supply,Failure detected,Deasserted",
        ] {
            assert_eq!(bad_entry(good), None, "{good}");
        }
    }
}
