//! A job in an allocation of a batch system: its nodes, the daemons on them, what the batch system says while the job runs.
//!
//! ```text
//! BatchSession::find ──► its turn ──► unfinished? ── yes ──► a restart, on the allocation's nodes
//!                                          └─ no ──► share_out: which nodes get ranks, which are spares
//! the job is on record ──► the turn is the next one's of the same command
//! before each life: ensure_daemons ──► one command of the batch system's (`batch_daemons`)
//! a signal of the batch system ──► Arrival::TimeUp ──► the machine's last checkpoint ──► end ──► others have stopped, too ──► requeue
//! this controller is lost ──► its successor has the same session, by `BatchLife`
//! ```
//! Invariant: a job goes on by itself only in the batch job that it began in, when that is queued again, and at the same
//! command in the same directory.

use crate::batch_daemons::BatchDaemons;
use crate::batch_life::BatchLife;
use crate::batch_others;
use crate::batch_question::ask;
use crate::batch_turn::Turn;
use crate::drained;
use crate::error::{NODE_LOST, RunError};
use crate::hosts::Host;
use crate::known_jobs;
use crate::nodes::DaemonAddresses;
use crate::record::{BatchRecord, JobDirectory, JobRecord, by_itself};
use crate::signals::Signals;
use crate::wish::Wish;
use mend_batch::{BatchError, BatchNode, BatchSystem};
use mend_messages::job::Program;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex as ShortMutex, PoisonError};
use std::time::Instant;
use tokio::sync::{Mutex, mpsc};

/// An allocation, and where this job stands in its batch job.
pub type InBatch = (Arc<BatchSession>, BatchRecord);

/// The allocation that this process is in.
#[derive(Debug)]
pub struct BatchSession {
    system: Arc<dyn BatchSystem>,
    nodes: Vec<BatchNode>,
    daemons: Mutex<Daemons>,
    /// Held until the job is on record.
    turn: ShortMutex<Option<Turn>>,
}

/// The daemons on the allocation's nodes.
#[derive(Debug)]
enum Daemons {
    /// There are none yet.
    None,
    /// This process has started them.
    Started(BatchDaemons),
    /// A lost controller has, with these ports. They end by themselves when the job is over.
    Inherited(BTreeMap<String, u16>),
}

/// Whether it ended before its program did, so that a restart goes on with it.
fn may_go_on(record: &JobRecord) -> bool {
    let Some((_, how)) = &record.ended else { return true };
    record.exit_code == Some(NODE_LOST) && *how != by_itself(NODE_LOST)
}

fn host(node: &BatchNode) -> Host {
    Host { name: node.name.clone(), slots: node.slots }
}

/// Of so many nodes those that ranks may take: one at least.
fn hosts_left(nodes: usize, spares: u32) -> usize {
    nodes.saturating_sub(spares as usize).max(1)
}

/// How the daemons of a job's allocation are reached, on all nodes of it; of a job in none: no other way than by their names.
///
/// # Errors
/// As of [`BatchSession::ensure_daemons`].
pub(crate) async fn daemons_of(in_batch: Option<&InBatch>, signals: &Signals) -> Result<DaemonAddresses, RunError> {
    match in_batch {
        Some((session, _)) => session.ensure_daemons(signals).await,
        None => Ok(BTreeMap::new()),
    }
}

impl BatchSession {
    /// The allocation, if this is in one.
    ///
    /// # Errors
    /// [`RunError::Batch`].
    pub(crate) async fn find() -> Result<Option<Self>, RunError> {
        let Some(system) = mend_batch::detect()? else { return Ok(None) };
        mend_settings::REQUEUE.choice()?;
        let system: Arc<dyn BatchSystem> = system.into();
        let asked = system.clone();
        let nodes = ask(move || asked.nodes()).await?;
        Ok(Some(Self { system, nodes, daemons: Mutex::new(Daemons::None), turn: ShortMutex::default() }))
    }

    /// What a successor of this controller has to know.
    pub(crate) async fn life(&self, place: &BatchRecord) -> BatchLife {
        let ports = match &*self.daemons.lock().await {
            Daemons::None => BTreeMap::new(),
            Daemons::Started(daemons) => daemons.ports().clone(),
            Daemons::Inherited(ports) => ports.clone(),
        };
        let node = |node: &BatchNode| (node.name.clone(), node.address.clone(), node.slots);
        BatchLife {
            system: self.system.name().to_owned(),
            variables: self.system.variables(),
            nodes: self.nodes.iter().map(node).collect(),
            ports,
            place: place.clone(),
        }
    }

    /// The allocation that a lost controller was in, of whose nodes this is one.
    ///
    /// # Errors
    /// [`RunError::Batch`].
    pub(crate) fn inherited(life: BatchLife) -> Result<Option<InBatch>, RunError> {
        let Some(system) = mend_batch::resumed(&life.system, &life.variables)? else { return Ok(None) };
        let node = |(name, address, slots)| BatchNode { name, address, slots };
        let nodes = life.nodes.into_iter().map(node).collect();
        let daemons = Mutex::new(Daemons::Inherited(life.ports));
        let session = Self { system: system.into(), nodes, daemons, turn: ShortMutex::default() };
        Ok(Some((Arc::new(session), life.place)))
    }

    /// For how many ranks the nodes have room that are neither spares nor unusable.
    pub(crate) fn room(&self, spares: u32, without: &BTreeSet<String>) -> u32 {
        let hosts = self.all_hosts(without);
        let most = hosts_left(hosts.len(), spares).min(hosts.len());
        let room: u64 = hosts[..most].iter().map(|host| u64::from(host.slots)).sum();
        u32::try_from(room).unwrap_or(u32::MAX)
    }

    /// Seconds since 1970 at which the allocation's time is over, if that is known.
    pub(crate) async fn ends_at(&self) -> Option<u64> {
        let system = self.system.clone();
        ask(move || system.ends_at()).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "it is not known how long the batch job may run");
            None
        })
    }

    /// How many ranks a job has that does not say, if the batch system was asked for so many.
    pub(crate) fn said_ranks(&self, spares: u32) -> Option<u32> {
        // With spares they would not fit.
        self.system.tasks().filter(|_| spares == 0)
    }

    /// Has daemons on the nodes. Returns those that the job does without, and says why: they are drained, or have no daemon. None if there are no others.
    ///
    /// # Errors
    /// As of [`BatchSession::ensure_daemons`], and [`RunError::Record`].
    pub(crate) async fn unusable(&self, signals: &Signals) -> Result<BTreeSet<String>, RunError> {
        let (addresses, drained) = (self.ensure_daemons(signals).await?, drained::list()?);
        let (system, nodes) = (self.system.clone(), self.nodes.clone());
        let draining = ask(move || system.draining(&nodes)).await.unwrap_or_else(|error| {
            // Ranks leave them later, when it can be asked.
            tracing::warn!(%error, "it is not known which nodes are drained");
            BTreeMap::new()
        });
        let why = |node: &BatchNode| match () {
            () if drained.contains(&node.name) => Some(format!("node {} is drained (`mend undrain {}`)", node.name, node.name)),
            () if draining.contains_key(&node.name) => {
                Some(format!("node {} is drained by the batch system: {}", node.name, draining[&node.name]))
            }
            () if !addresses.contains_key(&node.name) => {
                Some(format!("node {}: {} has started no mendd on it", node.name, self.system.name()))
            }
            () => None,
        };
        let found: BTreeMap<&String, String> = self.nodes.iter().filter_map(|node| Some((&node.name, why(node)?))).collect();
        if found.len() == self.nodes.len() {
            found.values().for_each(|why| mend_report::tell!("mend: {why}"));
            mend_report::tell!("mend: the batch job has no other node than these: they are taken, as far as they can be");
            return Ok(BTreeSet::new());
        }
        found.values().for_each(|why| mend_report::tell!("mend: left out: {why}"));
        Ok(found.into_keys().cloned().collect())
    }

    /// Nodes that get ranks, and spares: at least so many as are asked for, and those that are not needed.
    pub(crate) fn share_out(&self, ranks: u32, spares: u32, without: &BTreeSet<String>) -> (Vec<Host>, Vec<Host>) {
        let mut hosts = self.all_hosts(without);
        let most = hosts_left(hosts.len(), spares);
        if hosts.len() - most < spares as usize {
            mend_report::tell!("mend: {} of {spares} spare nodes: the allocation has no more that the job can use", hosts.len() - most);
        }
        let mut room = 0u64;
        let fills = |host: &Host| {
            let needed = room < u64::from(ranks);
            room += u64::from(host.slots);
            needed
        };
        let used = hosts[..most].iter().map(fills).filter(|needed| *needed).count();
        let spares = hosts.split_off(used.max(1));
        (hosts, spares)
    }

    /// All nodes but these, for a restart: ranks fill them in their order.
    pub(crate) fn all_hosts(&self, without: &BTreeSet<String>) -> Vec<Host> {
        self.nodes.iter().filter(|node| !without.contains(&node.name)).map(host).collect()
    }

    /// What the record of a job of this program says, and the job that it goes on with: one that an earlier run of the batch job began and did
    /// not finish. `ranks`: how many it is to have, if that was said; what an allocation has room for may differ from run to run. Others that begin the same
    /// wait until this one is on record.
    ///
    /// # Errors
    /// [`RunError::Record`].
    pub(crate) async fn place(&self, program: &Program, ranks: Option<u32>) -> Result<(BatchRecord, Option<JobRecord>), RunError> {
        let command = program.command();
        let turn = Turn::wait((self.system.name(), &self.system.run().job, &command)).await?;
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = turn;
        Ok(self.place_among(&known_jobs::list()?, &command, &program.cwd, ranks))
    }

    fn place_among(
        &self,
        all: &[(JobDirectory, JobRecord)],
        command: &[String],
        cwd: &Path,
        ranks: Option<u32>,
    ) -> (BatchRecord, Option<JobRecord>) {
        let run = self.system.run();
        let is_there = |record: &JobRecord| record.cwd.as_ref().is_none_or(|directory| directory == cwd);
        let same = |record: &JobRecord| record.command == command && ranks.is_none_or(|ranks| record.first_world() == ranks);
        let of_run = |record: &JobRecord| record.batch.clone().filter(|batch| self.is_own(batch));
        let is_of_this_run = |record: &JobRecord| of_run(record).is_some_and(|batch| batch.restarts == run.restarts);
        let begun = || all.iter().map(|(_, record)| record).filter(|record| same(record) && is_of_this_run(record));
        let (anywhere, here) = (begun().count() as u32, begun().filter(|record| is_there(record)).count() as u32);
        let unfinished = all.iter().find(|(directory, record)| {
            // Releases that did not write down the directory counted over all.
            let nth = if record.cwd.is_some() { here } else { anywhere };
            let before = of_run(record).is_some_and(|batch| batch.restarts < run.restarts && batch.nth == nth);
            let open = same(record) && is_there(record) && before && may_go_on(record) && !directory.is_running();
            open && record.branch.newest(&record.checkpoints).is_some()
        });
        (self.record(here), unfinished.map(|(_, record)| record.clone()))
    }

    /// Whether a record is of this batch job.
    fn is_own(&self, batch: &BatchRecord) -> bool {
        batch.system == self.system.name() && batch.job == self.system.run().job
    }

    /// The job is on record: who begins the same finds it there.
    pub(crate) fn end_turn(&self) {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The record of a job before which that run of the batch job had begun so many of the same command.
    pub(crate) fn record(&self, nth: u32) -> BatchRecord {
        let run = self.system.run();
        BatchRecord { system: self.system.name().into(), job: run.job, restarts: run.restarts, nth }
    }

    /// Has daemons on all nodes, and says how they are reached. What the batch system tells them goes to `signals`.
    ///
    /// # Errors
    /// [`RunError::Batch`], [`RunError::BatchDaemons`].
    async fn ensure_daemons(&self, signals: &Signals) -> Result<DaemonAddresses, RunError> {
        let mut daemons = self.daemons.lock().await;
        match &mut *daemons {
            Daemons::Started(running) => {
                if running.is_running() {
                    return Ok(self.addresses(running.ports()));
                }
            }
            Daemons::Inherited(ports) => return Ok(self.addresses(ports)),
            Daemons::None => {}
        }
        let started = BatchDaemons::start(&*self.system, &self.nodes_left().await, signals.clone()).await?;
        let addresses = self.addresses(started.ports());
        *daemons = Daemons::Started(started);
        Ok(addresses)
    }

    /// The nodes that the batch job still has: none of its commands runs where one is named that it has lost.
    async fn nodes_left(&self) -> Vec<BatchNode> {
        let (system, nodes) = (self.system.clone(), self.nodes.clone());
        let lost = ask(move || system.lost(&nodes)).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "it is not known which nodes the batch job has lost");
            BTreeSet::new()
        });
        self.nodes.iter().filter(|node| !lost.contains(&node.name)).cloned().collect()
    }

    /// How daemons with these ports are reached.
    fn addresses(&self, ports: &BTreeMap<String, u16>) -> DaemonAddresses {
        let reached = |node: &BatchNode| Some((node.name.clone(), (node.address.clone(), *ports.get(&node.name)?)));
        self.nodes.iter().filter_map(reached).collect()
    }

    /// Its nodes that are to be emptied, with the reasons. Waits for the batch system.
    pub(crate) fn draining(&self) -> Result<BTreeMap<String, String>, BatchError> {
        self.system.draining(&self.nodes)
    }

    /// Ends the daemons that this process has started.
    pub(crate) async fn stop(&self) {
        if let Daemons::Started(daemons) = std::mem::replace(&mut *self.daemons.lock().await, Daemons::None) {
            daemons.stop().await;
        }
    }

    /// The job's time is up, as was `told` then, and it has ended: has the batch job queued again, if that is wanted.
    pub(crate) async fn requeue(
        &self,
        (job, checkpoint): (&str, u64),
        quiet: bool,
        told: Option<Instant>,
        strays: &mut mpsc::UnboundedReceiver<Wish>,
    ) {
        let failed = |error: BatchError| {
            mend_report::tell!("mend: {} could not queue the batch job {} again: {error}", self.system.name(), self.system.run().job);
        };
        let again = match mend_settings::REQUEUE.choice().unwrap_or("never") {
            "always" => true,
            "preempted" => {
                let system = self.system.clone();
                ask(move || system.is_preempted()).await.unwrap_or_else(|error| {
                    failed(error);
                    false
                })
            }
            _ => false,
        };
        if !again {
            return;
        }
        batch_others::wait(&self.others(job), self.system.clone(), told, strays).await;
        if !quiet {
            // Before it does: it may end this process as soon as it has been told.
            let (system, batch) = (self.system.name(), &self.system.run().job);
            mend_report::tell!("mend: job {job} is stopped at checkpoint {checkpoint}; {system} queues the batch job {batch} again");
        }
        let system = self.system.clone();
        if let Err(error) = ask(move || system.requeue()).await {
            failed(error);
        }
    }

    /// The batch job's other jobs, of whichever run.
    fn others(&self, job: &str) -> Vec<JobDirectory> {
        let all = known_jobs::list().unwrap_or_else(|error| {
            tracing::warn!(%error, "it is not known whether other jobs have stopped");
            Vec::new()
        });
        let is_other = |record: &JobRecord| record.id != job && record.batch.as_ref().is_some_and(|batch| self.is_own(batch));
        all.into_iter().filter(|(_, record)| is_other(record)).map(|(directory, _)| directory).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mend_batch::BatchRun;
    use std::fs;
    use std::process::Command;

    /// Tasks that were asked for, and how often it was queued again.
    #[derive(Debug)]
    pub(crate) struct Allocation(pub(crate) Option<u32>, pub(crate) u32);

    impl BatchSystem for Allocation {
        fn ends_at(&self) -> Result<Option<u64>, BatchError> {
            Ok(None)
        }

        fn ends_at_by_now(&self) -> Result<Option<u64>, BatchError> {
            Ok(None)
        }

        fn name(&self) -> &'static str {
            "Batch"
        }

        fn run(&self) -> BatchRun {
            BatchRun { job: "1".into(), restarts: self.1 }
        }

        fn variables(&self) -> BTreeMap<String, String> {
            BTreeMap::new()
        }

        fn tasks(&self) -> Option<u32> {
            self.0
        }

        fn nodes(&self) -> Result<Vec<BatchNode>, BatchError> {
            Ok(Vec::new())
        }

        fn lost(&self, _: &[BatchNode]) -> Result<BTreeSet<String>, BatchError> {
            Ok(BTreeSet::new())
        }

        fn launcher(&self, _: &[BatchNode], program: &Path, _: &[&str]) -> Command {
            Command::new(program)
        }

        fn draining(&self, _: &[BatchNode]) -> Result<BTreeMap<String, String>, BatchError> {
            Ok(BTreeMap::new())
        }

        fn is_preempted(&self) -> Result<bool, BatchError> {
            Ok(false)
        }

        fn requeue(&self) -> Result<(), BatchError> {
            Ok(())
        }
    }

    fn session(slots: &[u32], tasks: Option<u32>) -> BatchSession {
        let node = |(at, &slots): (usize, &u32)| BatchNode { name: format!("n{at}"), address: format!("a{at}"), slots };
        BatchSession {
            system: Arc::new(Allocation(tasks, 0)),
            nodes: slots.iter().enumerate().map(node).collect(),
            daemons: Mutex::new(Daemons::None),
            turn: ShortMutex::default(),
        }
    }

    fn names(hosts: &[Host]) -> Vec<&str> {
        hosts.iter().map(|host| host.name.as_str()).collect()
    }

    #[test]
    fn nodes_that_ranks_do_not_fill_are_spares() {
        let three = session(&[2, 2, 2], None);
        for (ranks, spares, hosts) in [(6, 0, 3), (4, 0, 2), (3, 0, 2), (1, 0, 1), (9, 0, 3), (6, 1, 2), (6, 9, 1)] {
            let (found, left) = three.share_out(ranks, spares, &BTreeSet::new());
            assert_eq!((found.len(), left.len()), (hosts, 3 - hosts), "{ranks} ranks, {spares} spares");
        }
        let (hosts, spares) = three.share_out(4, 0, &BTreeSet::new());
        assert_eq!((names(&hosts), names(&spares)), (vec!["n0", "n1"], vec!["n2"]));
        let (hosts, spares) = three.share_out(4, 0, &["n0".to_owned()].into());
        assert_eq!((names(&hosts), names(&spares)), (vec!["n1", "n2"], vec![]));
    }

    #[test]
    fn a_job_without_a_number_takes_what_was_asked_for() {
        assert_eq!((session(&[2, 2, 1], Some(4)).said_ranks(0), session(&[2, 2, 1], None).said_ranks(0)), (Some(4), None));
        // Ranks have to fit on the nodes that are left.
        assert_eq!(session(&[2, 2, 1], Some(5)).said_ranks(1), None);
        for (spares, lost, room) in [(0, "", 5), (1, "", 4), (0, "n0", 3), (1, "n0", 2), (9, "n0 n1", 1)] {
            let without: BTreeSet<String> = lost.split_whitespace().map(str::to_owned).collect();
            assert_eq!(session(&[2, 2, 1], Some(5)).room(spares, &without), room, "{spares} spares, without {lost:?}");
        }
    }

    /// A job of the batch job `1`, with a checkpoint, as its first run began it.
    fn begun(home: &Path, id: &str, nth: u32, cwd: Option<&str>, ended: Option<i32>) -> (JobDirectory, JobRecord) {
        let place = home.join(id);
        let checkpoint = place.join("checkpoints/1");
        fs::create_dir_all(&checkpoint).unwrap();
        fs::write(checkpoint.join("manifest.json"), "{}").unwrap();
        let text = format!(
            r#"{{"id": "{id}", "command": ["./app"], "size": 4, "hosts": [], "controller_host": "a", "controller_port": 1,
            "controller_pid": 1, "started": 1000, "ended": null, "checkpoints": "{}"}}"#,
            place.join("checkpoints").display()
        );
        let mut record: JobRecord = serde_json::from_str(&text).unwrap();
        record.batch = Some(BatchRecord { system: "Batch".into(), job: "1".into(), restarts: 0, nth });
        record.cwd = cwd.map(Into::into);
        record.ended = ended.map(|code| (2000, by_itself(code)));
        record.exit_code = ended;
        (JobDirectory::at(&place), record)
    }

    /// With which job `./app` goes on when the batch job is queued again, and the how manieth one it is.
    fn found(all: &[(JobDirectory, JobRecord)], cwd: &str) -> (Option<String>, u32) {
        let again = BatchSession { system: Arc::new(Allocation(None, 1)), ..session(&[4], None) };
        let (place, unfinished) = again.place_among(all, &["./app".to_owned()], Path::new(cwd), Some(4));
        (unfinished.map(|record| record.id), place.nth)
    }

    #[test]
    fn a_job_goes_on_in_its_own_directory_whatever_a_script_passes_over() {
        let home = tempfile::tempdir().unwrap();
        let all = [begun(home.path(), "first", 0, Some("/a"), Some(0)), begun(home.path(), "second", 0, Some("/b"), None)];
        assert_eq!(found(&all, "/b"), (Some("second".into()), 0));
        assert_eq!([found(&all, "/a"), found(&all, "/c")], [(None, 0), (None, 0)]);
        // It has begun there in this run, too.
        let (directory, mut record) = begun(home.path(), "second", 0, Some("/b"), Some(0));
        record.batch = Some(BatchRecord { system: "Batch".into(), job: "1".into(), restarts: 1, nth: 0 });
        let all = [(directory, record), begun(home.path(), "third", 1, Some("/b"), None)];
        assert_eq!([found(&all, "/b"), found(&all, "/c")], [(Some("third".into()), 1), (None, 0)]);
    }

    #[test]
    fn a_record_without_a_directory_counts_in_any() {
        let home = tempfile::tempdir().unwrap();
        let all = [begun(home.path(), "first", 0, None, None)];
        assert_eq!(found(&all, "/c"), (Some("first".into()), 0));
    }

    #[test]
    fn jobs_of_a_release_that_counted_over_all_directories_are_found() {
        let home = tempfile::tempdir().unwrap();
        let mut all = [begun(home.path(), "first", 0, None, None), begun(home.path(), "second", 1, None, None)];
        assert_eq!(found(&all, "/a"), (Some("first".into()), 0));
        // It has gone on there.
        let place = BatchRecord { system: "Batch".into(), job: "1".into(), restarts: 1, nth: 0 };
        (all[0].1.cwd, all[0].1.batch) = (Some("/a".into()), Some(place));
        assert_eq!(found(&all, "/b"), (Some("second".into()), 0));
    }

    #[test]
    fn a_job_that_runs_is_not_gone_on_with() {
        let home = tempfile::tempdir().unwrap();
        let all = [begun(home.path(), "first", 0, Some("/a"), None), begun(home.path(), "second", 0, Some("/a"), None)];
        let _lock = all[0].0.lock("first").unwrap();
        assert_eq!(found(&all, "/a"), (Some("second".into()), 0));
    }
}
