//! Daemons that a batch system has started on the nodes of an allocation: one command of its own, whose standard output they report on, a line each. A word on its
//! standard input ends them. If that ends without one, this controller was lost: they go on as long as the job has another one, or may have.
//!
//! ```text
//! ready NODE PORT       it listens
//! signal NODE NUMBER    the batch system has sent it a signal
//! ```
//! Faults assumed: the command takes its time, ends, or reports of fewer nodes than it was to start; nonsense in its output.

use crate::embedded::end_by_word;
use crate::error::RunError;
use crate::signals::Signals;
use mend_batch::{BatchNode, BatchSystem};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader, Split};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// Without news for so long, those that did not report are taken for absent. Prologs of the batch system may take a while.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// When the user is told what is being waited for.
const TELL_AFTER: Duration = Duration::from_secs(5);

/// They run as long as this is there.
#[derive(Debug)]
pub(crate) struct BatchDaemons {
    child: Child,
    ports: BTreeMap<String, u16>,
}

/// What a line says.
#[derive(Debug, PartialEq, Eq)]
enum Report {
    Ready { node: String, port: u16 },
    Signal(i32),
}

fn report(line: &str) -> Option<Report> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["ready", node, port] => Some(Report::Ready { node: node.into(), port: port.parse().ok()? }),
        ["signal", _, number] => number.parse().ok().map(Report::Signal),
        _ => None,
    }
}

impl BatchDaemons {
    /// Starts them, and waits until all are ready, or no more seem to come.
    pub(crate) async fn start(system: &dyn BatchSystem, nodes: &[BatchNode], signals: Signals) -> Result<Self, RunError> {
        let failed = |why: String| RunError::BatchDaemons { system: system.name(), why };
        let program = mend_settings::find_part("mendd").ok_or_else(|| failed("mendd is not installed beside mend".into()))?;
        let mut command = Command::from(system.launcher(nodes, &program, &["--under-batch"]));
        let name = command.as_std().get_program().to_string_lossy().into_owned();
        // In a group of its own: it outlives what ends this process by a key or a closed terminal, and so do the daemons.
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true).spawn();
        let mut child = child.map_err(|error| failed(format!("{name}: {error}")))?;
        let stdout = child.stdout.take().ok_or_else(|| failed("it has no standard output".into()))?;
        let mut lines = BufReader::new(stdout).split(b'\n');
        let wanted: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let ports = match gather(&mut lines, &wanted, (system.name(), &name), &signals, (TELL_AFTER, READY_LIMIT)).await {
            Ok(ports) => ports,
            Err(why) => {
                // Daemons that start late find this, and end.
                end_by_word(child).await;
                return Err(failed(why));
            }
        };
        tokio::spawn(listen(lines, signals));
        Ok(Self { child, ports })
    }

    /// Whether their command lives.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ports of those that are ready.
    pub(crate) fn ports(&self) -> &BTreeMap<String, u16> {
        &self.ports
    }

    /// Lets them end and waits for that, at most some seconds.
    pub(crate) async fn stop(self) {
        end_by_word(self.child).await;
    }
}

/// Hears of the daemons on the `wanted` nodes until all are ready or none has been for a while. Which `system` is to start them, by which `command`, is told after the
/// first `patience`; after the second no more are expected.
async fn gather<R: AsyncBufRead + Unpin>(
    lines: &mut Split<R>,
    wanted: &[&str],
    (system, command): (&str, &str),
    signals: &Signals,
    patience: (Duration, Duration),
) -> Result<BTreeMap<String, u16>, String> {
    let mut ports = BTreeMap::new();
    let mut told = false;
    while ports.len() < wanted.len() {
        match timeout(if told { patience.1 } else { patience.0 }, lines.next_segment()).await {
            Ok(Ok(Some(line))) => match report(&text(&line)) {
                Some(Report::Ready { node, port }) => drop(ports.insert(node, port)),
                Some(Report::Signal(signal)) => signals.time_up(signal).await,
                None => tracing::info!(line = &*text(&line), "the daemons' command says"),
            },
            Ok(Ok(None) | Err(_)) => return Err(format!("{command} ended before they were ready (what it said is above)")),
            Err(_) if told => break,
            Err(_) => {
                told = true;
                let missing: Vec<&str> = wanted.iter().copied().filter(|node| !ports.contains_key(*node)).collect();
                mend_report::tell!("mend: waiting for {system} to start mendd on {}", missing.join(", "));
            }
        }
    }
    if ports.is_empty() {
        return Err(format!("no node has reported within {} s", (patience.0 + patience.1).as_secs()));
    }
    Ok(ports)
}

/// A site's prologue may print what is not UTF-8 there.
fn text(line: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(line)
}

async fn listen(mut lines: Split<BufReader<ChildStdout>>, signals: Signals) {
    while let Ok(Some(line)) = lines.next_segment().await {
        if let Some(Report::Signal(signal)) = report(&text(&line)) {
            signals.time_up(signal).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// What comes of these lines of a command that goes on.
    async fn gathered(text: &str) -> Result<BTreeMap<String, u16>, String> {
        let (mut says, hears) = tokio::io::duplex(1 << 12);
        says.write_all(text.as_bytes()).await.unwrap();
        let patience = (Duration::from_millis(1), Duration::from_millis(50));
        let signals = Signals::new().0;
        gather(&mut BufReader::new(hears).split(b'\n'), &["n1", "n2"], ("Slurm", "srun"), &signals, patience).await
    }

    #[tokio::test]
    async fn nodes_that_do_not_report_are_absent_and_if_none_does_that_is_the_cause() {
        assert_eq!(gathered("ready n1 4711\nready n2 4712\n").await.unwrap().len(), 2);
        assert_eq!(gathered("ready n2 4712\n").await.unwrap(), BTreeMap::from([("n2".to_owned(), 4712)]));
        assert_eq!(gathered("0: ready n1 4711\n").await.unwrap_err(), "no node has reported within 0 s");
    }

    #[test]
    fn reports() {
        assert_eq!(report("ready n1 4711"), Some(Report::Ready { node: "n1".into(), port: 4711 }));
        assert_eq!(report("signal n1 15"), Some(Report::Signal(15)));
        for nonsense in ["", "ready", "ready n1", "ready n1 70000", "signal n1 x", "slurmstepd: error: ready n1 1 2"] {
            assert_eq!(report(nonsense), None, "{nonsense}");
        }
    }
}
