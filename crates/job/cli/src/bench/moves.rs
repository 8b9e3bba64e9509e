//! Moves by each strategy, measured: a job for each number of ranks and size, whose ranks go to and fro between two nodes.

use super::measured::Measured;
use super::rank::READY;
use super::shown::Output;
use super::{BenchMoves, Strategy, Transport, interruption, mend, not_called, peak, shown};
use crate::failure::Failure;
use crate::report;
use mend_controller::hosts::{Host, check_distinct};
use mend_messages::control::MigrationDone;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a job may take until all its ranks hold what they are to hold.
const READY_TIMEOUT: Duration = Duration::from_secs(600);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A job that is killed, and removed, when this is dropped.
struct BenchJob {
    id: String,
    hosts: [String; 2],
    ranks: u32,
    transport: Transport,
    /// Where its ranks are.
    at: usize,
    /// Bytes of all its ranks, when they moved first.
    image: u64,
    /// Both nodes are this machine.
    one_machine: bool,
}

/// The two nodes that are named.
pub fn two_of(hosts: &[Host]) -> Result<[&str; 2], Failure> {
    let [one, other] = hosts else {
        let what = format!("ranks move between two nodes, and {} are named", hosts.len());
        return Err(Failure::usage(what, "for example --hosts a,b or --hosts 'n[1-2]'"));
    };
    if hosts.iter().any(|host| host.slots > 0) {
        return Err(Failure::usage("all ranks move, from one node to the other", "--ranks says how many; write the hosts without :RANKS"));
    }
    check_distinct(hosts)?;
    Ok([&one.name, &other.name])
}

/// Measures, and shows what came of it. The exit code.
pub fn measure(moves: &BenchMoves, nodes: [&str; 2]) -> Result<i32, Failure> {
    interruption::watch()?;
    let (csv, svg) = (Output::open(moves.csv.as_ref())?, Output::open(moves.svg.as_ref())?);
    let mut all = Vec::new();
    for &size in &moves.sizes {
        for &ranks in &moves.ranks {
            if !moves.json {
                mend_report::tell!("mend: {} in {ranks} rank(s)", report::size(size));
            }
            let start = |&transport| BenchJob::start(nodes, ranks, size, transport, moves);
            let mut jobs = moves.transports.iter().map(start).collect::<Result<Vec<_>, _>>()?;
            for job in &mut jobs {
                job.image = job.moved(Strategy::Pipeline, size, 0)?.bytes;
            }
            for run in 1..=moves.runs {
                for &strategy in &moves.strategies {
                    for job in &mut jobs {
                        interruption::check()?;
                        all.push(job.moved(strategy, size, run)?);
                    }
                }
            }
        }
    }
    let medians = shown::medians(&all);
    if moves.json {
        report::json(&all)?
    } else {
        shown::print(&medians)
    }
    csv.map_or(Ok(()), |csv| csv.write(&shown::csv(&all)))?;
    svg.map_or(Ok(()), |svg| svg.write(&shown::svg(&medians)))?;
    Ok(0)
}

/// What a verb prints.
fn printed(command: &mut Command) -> Result<String, Failure> {
    said(command).map(|(printed, _)| printed)
}

/// What a verb prints, and what it says besides.
fn said(command: &mut Command) -> Result<(String, String), Failure> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = interruption::output(command).map_err(|error| not_called(&error))?;
    let said = String::from_utf8_lossy(&done.stderr);
    if done.status.success() {
        return Ok((String::from_utf8_lossy(&done.stdout).into_owned(), said.into_owned()));
    }
    interruption::check()?;
    let said = said.trim().trim_start_matches("mend: ");
    let (what, hint) = said.split_once("\n  hint: ").unwrap_or((said, ""));
    Err(Failure::new(what, hint, done.status.code().unwrap_or(1)))
}

impl BenchJob {
    fn start(hosts: [&str; 2], ranks: u32, size: u64, transport: Transport, moves: &BenchMoves) -> Result<Self, Failure> {
        let this = std::env::current_exe().map_err(|error| not_called(&error))?;
        let (count, each, dirty) = (ranks.to_string(), (size / u64::from(ranks)).to_string(), moves.dirty.to_string());
        // No checkpoint is wanted, whatever the settings say.
        let mut command =
            mend(&["run", "--quiet", "--detach", "-n", &count, "--hosts", hosts[0], "--spares", hosts[1], "--interval", "off", "--"])?;
        command.envs(transport.settings());
        command.arg(this).args(["bench", "rank", "--bytes", &each, "--dirty", &dirty, "--content", moves.content.word()]);
        let (id, said) = said(&mut command)?;
        mend_report::tell_part!("{said}");
        let id = id.trim().to_owned();
        let job = Self { id, hosts: hosts.map(str::to_owned), ranks, transport, at: 0, image: 0, one_machine: moves.one_machine };
        let begun = Instant::now();
        loop {
            interruption::check()?;
            let told = printed(&mut mend(&["logs", &job.id])?)?;
            if told.lines().filter(|line| line.trim() == READY).count() >= ranks as usize {
                return Ok(job);
            }
            let running = printed(&mut mend(&["ps", "--json"])?)?.contains(&job.id);
            if !running || begun.elapsed() > READY_TIMEOUT {
                let what = format!("the ranks of job {} do not come to hold {} each", job.id, report::size(size / u64::from(ranks)));
                return Err(Failure::new(what, format!("`mend logs {0}`, `mend log {0}` tell more", job.id), 1));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Moves all ranks to the other node.
    fn moved(&mut self, strategy: Strategy, size: u64, run: u32) -> Result<Measured, Failure> {
        let to = 1 - self.at;
        let ranks = if self.ranks == 1 { "0".to_owned() } else { format!("0-{}", self.ranks - 1) };
        let mut command = mend(&["migrate", &self.id, &ranks, "--to", &self.hosts[to], "--json"])?;
        let begun = Instant::now();
        let mut whole_us = 0;
        let mut ask = || {
            let told = printed(command.args(strategy.options()));
            whole_us = begun.elapsed().as_micros() as u64;
            told
        };
        let (told, most) = if self.one_machine { peak::of(ask) } else { (ask(), None) };
        let told = told?;
        let done: Vec<MigrationDone> =
            if self.ranks == 1 { serde_json::from_str(&told).map(|one| vec![one]) } else { serde_json::from_str(&told) }
                .map_err(|error| Failure::new(format!("a move was not told as it has to be: {error}"), "", 1))?;
        self.at = to;
        let mean = |phase: fn(&MigrationDone) -> u64| done.iter().map(phase).sum::<u64>() / done.len().max(1) as u64;
        let last = done.iter().max_by_key(|one| one.stopped_us);
        let bytes = done.iter().map(|one| one.bytes).sum();
        let stored = matches!(strategy, Strategy::Shared | Strategy::Local | Strategy::Staged);
        Ok(Measured {
            strategy: strategy.word(),
            transport: self.transport.word(),
            ranks: self.ranks,
            size,
            run,
            suspend_us: mean(|one| one.phases.suspend_us),
            write_us: mean(|one| one.phases.write_us),
            transfer_us: mean(|one| one.phases.transfer_us),
            restart_us: mean(|one| one.phases.restart_us),
            reconnect_us: mean(|one| one.phases.reconnect_us),
            stopped_us: last.map_or(0, |one| one.stopped_us),
            there_us: last.map_or(0, |one| one.stopped_us.saturating_sub(one.phases.reconnect_us)),
            whole_us,
            bytes,
            sent_bytes: done.iter().map(|one| one.sent_bytes).sum(),
            stopped_bytes: done.iter().map(|one| one.precopied.map_or(one.bytes, |live| live.stopped_bytes)).sum(),
            rounds: done.iter().filter_map(|one| Some(one.precopied?.rounds)).max().unwrap_or(0),
            stored_bytes: if stored { bytes } else { 0 },
            // A rank is on both nodes until it goes on. Those that are stopped go one after the other; of others nobody knows how many are twice there.
            peak_memory: most
                .filter(|_| self.ranks == 1 || strategy != Strategy::Live)
                .map(|most| most.saturating_sub(self.image / u64::from(self.ranks))),
        })
    }
}

impl Drop for BenchJob {
    fn drop(&mut self) {
        for verb in ["kill", "wait", "rm"] {
            if let Ok(mut command) = mend(&[verb, &self.id]) {
                interruption::apart(&mut command);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_controller::hosts::parse_list;

    #[test]
    fn two_nodes_are_named_as_in_mend_run() {
        let two = |list: &str| {
            let hosts = parse_list(list).unwrap();
            two_of(&hosts).map(|nodes| nodes.map(str::to_owned)).ok()
        };
        assert_eq!(two("a, b"), Some(["a", "b"].map(str::to_owned)));
        assert_eq!(two("n[09-10]"), Some(["n09", "n10"].map(str::to_owned)));
        assert_eq!(["a", "n[1-3]", "a,a", "n[1-2]:2"].map(two), [None, None, None, None]);
    }
}
