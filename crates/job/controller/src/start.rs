//! How a job begins: a new one ([`first_life`]), and what that has in common with one that goes on ([`crate::restart`]).

use crate::arrival::{Arrival, Early, while_staged};
use crate::batch::{InBatch, daemons_of};
use crate::being_restarted;
use crate::branch::Branch;
use crate::checkpoint_plan::{PeriodicOptions, plan};
use crate::data_watch;
use crate::drained;
use crate::embedded::Embedded;
use crate::end_on_record::put_end_on_record;
use crate::error::RunError;
use crate::failover;
use crate::failover::log::LifeRecord;
use crate::failover::watch::LockWatch;
use crate::healing_options::HealingOptions;
use crate::host_connections::connect_hosts;
use crate::hosts::{Host, check_distinct, slots};
use crate::input::{InputReader, Source};
use crate::input_file::InputFile;
use crate::job_lock::JobLock;
use crate::job_tiers::{adopted, configured, drop_credentials, tier_rate};
use crate::journal_file::Journal;
use crate::journaling;
use crate::known_jobs::batch_job_around;
use crate::life::{Constants, Life};
use crate::lock_identity::LockIdentity;
use crate::made_spaces::{Begins, MadeSpaces};
use crate::manifest::{ManifestError, listed_at_first};
use crate::moving::{moving, transport};
use crate::nodes::{ConnectedNode, Node, attach};
use crate::output::Output;
use crate::programs;
use crate::record::{JobDirectory, JobRecord, now, try_below};
use crate::run::{Parts, Shell, run as run_to_its_end, streams};
use crate::shown_output::ShownOutput;
use crate::signals::Signals;
use crate::stream_digest::Mark;
use crate::tiers::is_plain;
use crate::time_left::{process_began, time_left_s};
use crate::watchers::{self, Watchers};
use crate::{client, portable, removal, serve};
use mend_coordination::placement::place;
use mend_coordination::pmi::PmiServer;
use mend_coordination::worlds::Worlds;
use mend_data::request::Wanted;
use mend_job::event::MeasuredRates;
use mend_job::gathering::WantedHosts;
use mend_job::healing::Healing;
use mend_job::safeguard::Kept;
use mend_job::setup::{CheckpointPlan, NodeSetup, Restoring, Saving, Setup, TierSetup};
use mend_journal::Event as Happened;
use mend_messages::agent::{Compression, SaveMode};
use mend_messages::daemon::JobIntroduction;
use mend_messages::job::{MAX_RANKS, NodeIndex, Program, Rank, Secret};
use mend_messages::tier::TierSpec;
use mend_policy::restarts::Restarts;
use mend_sealed::Key;
use mend_settings::SettingError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Events that may wait before the daemons are held back.
pub(crate) const MAX_WAITING_EVENTS: usize = 256;

/// What `mend run` was asked for.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// Number of ranks, at least 1; `None`: what the batch system was asked for, else 1.
    pub ranks: Option<u32>,
    /// Hosts; none means this machine.
    pub hosts: Vec<Host>,
    /// Hosts that get no rank at first.
    pub spares: Vec<Host>,
    /// Nodes of an allocation that get no rank at first.
    pub spare_nodes: u32,
    /// Program, environment and working directory.
    pub program: Program,
    /// Where checkpoints go; `None` for the job's own directory.
    pub checkpoints: Option<PathBuf>,
    /// Tiers that keep them; `None` for those of the setting.
    pub tiers: Option<Vec<TierSpec>>,
    /// File with the key that images are encrypted with; absolute.
    pub encryption_key: Option<PathBuf>,
    /// What is staged into data spaces before its ranks start.
    pub stage: Vec<Wanted>,
    /// When they are taken, and which are kept.
    pub periodic: PeriodicOptions,
    /// Whether it goes on by itself.
    pub healing: HealingOptions,
    /// No message of ours on standard error unless something is wrong.
    pub quiet: bool,
}

/// A key that cannot be used is told before anything starts; the nodes read it again for themselves.
pub(crate) fn load_key(file: Option<&Path>) -> Result<Option<Key>, RunError> {
    Ok(file.map(Key::load).transpose()?)
}

/// Everything a new or restarted job has in common.
pub(crate) struct JobStart {
    pub(crate) directory: JobDirectory,
    /// Which lock of the job this process holds.
    pub(crate) holder: LockIdentity,
    pub(crate) healing: Healing,
    pub(crate) signals: Signals,
    pub(crate) id: String,
    pub(crate) identity: [u8; 16],
    pub(crate) program: Program,
    pub(crate) places: Vec<NodeIndex>,
    /// Some of these are where ranks lived, and not where the checkpoint has them.
    pub(crate) moved: bool,
    pub(crate) worlds: Worlds,
    /// Ranks of spawned worlds that had ended before.
    pub(crate) gone: Vec<Rank>,
    pub(crate) output: Output,
    /// How far standard input was read, and where the rest comes from; `None` if there is none.
    pub(crate) input: (Mark, Option<Source>),
    pub(crate) checkpoints: PathBuf,
    /// Which of these it goes on from.
    pub(crate) branch: Branch,
    pub(crate) encryption_key: Option<PathBuf>,
    /// What is in that file.
    pub(crate) key: Option<Key>,
    pub(crate) plan: CheckpointPlan,
    pub(crate) quiet: bool,
    pub(crate) tiers: Vec<TierSpec>,
    /// What restarts took before.
    pub(crate) restarts: Restarts,
    /// What was measured of ranks that moved.
    pub(crate) rates: BTreeMap<Rank, MeasuredRates>,
    pub(crate) restoring: Option<Restoring>,
    /// Hosts that were wanted and do not answer.
    pub(crate) absent: Vec<String>,
    /// Number of the checkpoint that it goes on from.
    pub(crate) from: Option<u64>,
    /// The batch job that it is in.
    pub(crate) batch: Option<InBatch>,
    /// For the journal, of the time before there was one.
    pub(crate) notes: Vec<Happened>,
    /// What is staged before its ranks start.
    pub(crate) stage: Vec<Wanted>,
    /// A user waits for it: it has not begun again by itself.
    pub(crate) by_user: bool,
    /// Whether it is a first life, and who wants it, if not.
    pub(crate) begins: Begins,
    /// What the user wrote about failures.
    pub(crate) options: HealingOptions,
    /// Take checkpoints that another user wrote.
    pub(crate) any_owner: bool,
    /// When the run began that it is a life of, seconds since 1970.
    pub(crate) run_began: u64,
}

/// How images are taken, as the settings say.
fn saving() -> Result<Saving, SettingError> {
    let mode = if mend_settings::CHECKPOINT_MODE.choice()? == "stop" { SaveMode::Stop } else { SaveMode::CopyOnWrite };
    let rate = mend_settings::WRITE_RATE.number()?;
    Ok(Saving { mode, rate: (rate > 0).then_some(rate << 20), keep_files: mend_settings::KEEP_FILES.number()? << 20 })
}

/// Runs a life of the job to its end. The lock belongs to what is returned: whoever has it keeps it where no life begins.
///
/// # Errors
/// What keeps it from beginning. The job's record may say that it runs then.
pub(crate) async fn begin(
    beginning: JobStart,
    reached: Vec<ConnectedNode>,
    embedded: Option<Embedded>,
) -> Result<impl FnOnce(JobLock) -> Life, RunError> {
    let JobStart { mut directory, id, identity, program, places, checkpoints, key, plan, quiet, tiers, restarts, notes, .. } = beginning;
    directory.hold(beginning.holder);
    // Ranks and daemons read them too, but could only say that they use the default.
    mend_settings::CHANNELS.words()?;
    mend_settings::TRACKING.choice()?;
    // Nodes let go of what isn't listed.
    let listed = listed_at_first(&checkpoints).map_err(|source| ManifestError::Io { path: checkpoints.clone(), source })?;
    let listed = beginning.branch.with_elsewhere(listed);
    mend_settings::PID_NAMESPACE.choice()?;
    let unused_features = mend_settings::IGNORE_CPU_FEATURES.features()?;
    let encrypt_data = mend_settings::ENCRYPT_DATA.choice()? == "on";
    let compression = match mend_settings::MIGRATE_COMPRESS.choice()? {
        "off" => Compression::Off,
        "always" => Compression::Always,
        _ => Compression::Auto,
    };
    let transport = transport(encrypt_data)?;
    if encrypt_data {
        check_encryptable(&program.env)?;
        program.further.iter().try_for_each(|further| check_encryptable(&further.env))?;
    }
    let reserve = mend_settings::DISK_RESERVE.number()? << 20;
    let (saving, drain_timeout) = (saving()?, mend_settings::DRAIN_TIMEOUT.milliseconds()?);
    let tier_setup = match is_plain(&tiers) {
        true => None,
        false => {
            let writers = mend_settings::TIER_WRITERS.number()? as usize;
            let wide_percent = mend_settings::WIDE_FAILURES.number()? as u32;
            Some(TierSetup { specs: tiers.clone(), rate: tier_rate()?, writers, wide_percent })
        }
    };
    let (node_timeout, lease) = (mend_settings::NODE_TIMEOUT.milliseconds()?, mend_settings::LEASE.milliseconds()?);
    let secret = Secret(mend_wire::random_bytes());
    directory.write_secret(&secret)?;
    let (arrivals, mut incoming) = mpsc::channel(MAX_WAITING_EVENTS);
    let (more, asked) = mpsc::channel(1);
    let (taken, source) = beginning.input;
    let doors = serve::listen(serve::address(embedded.is_some()), directory.path(), secret.clone(), arrivals.clone(), Arrival::Ask)
        .await
        .map_err(RunError::Listen)?;
    let record = JobRecord {
        id: id.clone(),
        command: program.command(),
        cwd: Some(program.cwd.clone()),
        size: places.len() as u32,
        first: beginning.worlds.first_size(),
        hosts: reached.iter().map(|node| node.name.clone()).collect(),
        controller_host: client::host_name(),
        controller_port: doors.port,
        controller_pid: std::process::id(),
        started: now(),
        epoch: directory.next_epoch(),
        ended: None,
        exit_code: None,
        goes_on: false,
        unsent: Vec::new(),
        checkpoints: checkpoints.clone(),
        keep_files: Some(saving.keep_files),
        plan: Some(plan),
        restarts: restarts.clone(),
        rates: beginning.rates.clone(),
        lost: Vec::new(),
        lease_ms: Some(lease.as_millis() as u64),
        ranks_until_ms: None,
        absent: beginning.absent,
        batch: beginning.batch.as_ref().map(|(_, place)| place.clone()),
        // A successor of this controller has another environment.
        within: match beginning.run_began == process_began() {
            true => batch_job_around(),
            false => directory.record().ok().and_then(|record| record.within),
        },
        branch: beginning.branch.clone(),
    };
    directory.write("job.json", &record)?;
    being_restarted::forget(&directory);
    beginning.batch.iter().for_each(|(session, _)| session.end_turn());
    let mut journal = Journal::open(directory.path());
    journal.record(journaling::beginning(&record, beginning.from));
    notes.into_iter().for_each(|event| journal.record(event));
    for node in &reached {
        journal.record_of(Some(&node.name), None, Happened::NodeReached { address: node.address.to_string() });
    }
    // `mend drain` finds the job on these nodes from now on, and has found it on others until now. A job that goes on by itself is waited for there.
    if beginning.by_user
        && embedded.is_none()
        && let Some(host) = drained::any_of(places.iter().filter_map(|node| record.hosts.get(*node as usize)))?
    {
        let error = RunError::Drained { host };
        journal.end_for(error.exit_code(), journaling::cause_of(&error));
        return Err(error);
    }
    if !quiet {
        mend_report::tell!("mend: job {id}: {} rank(s) on {}", places.len() - beginning.gone.len(), record.hosts.join(", "));
    }
    let spaces = MadeSpaces::of(&program);
    beginning.signals.tell(arrivals.clone());
    let addresses = reached.iter().map(|node| node.address).collect();
    let status = while_staged(&record, addresses, &places, &beginning.worlds, &beginning.gone);
    let mut early = Early { arrivals: Vec::new(), directory: directory.path().to_owned(), status, started: record.started };
    let had = spaces.begin(&id, beginning.begins, beginning.stage, reached, quiet, (&mut incoming, &mut early)).await;
    let reached = match had {
        Ok(reached) => reached,
        Err(error) => {
            // A restart may be tried again when its nodes are there.
            if beginning.from.is_none() || !error.wants_nodes() {
                journal.end_for(error.exit_code(), journaling::cause_of(&error));
            }
            // What could not be made has been removed by whoever made it; this was made, and a node did not answer after that.
            if beginning.from.is_none() && !matches!(error, RunError::Data { .. }) {
                spaces.end(&id, &[]).await;
            }
            return Err(error);
        }
    };
    let printed = streams(&beginning.output.printed());
    let setup = Setup {
        id: id.clone(),
        identity,
        token_key: mend_wire::random_bytes(),
        nodes: reached.iter().map(|node| NodeSetup { name: node.name.clone(), address: node.address }).collect(),
        places,
        checkpoints: checkpoints.clone(),
        listed,
        abandoned: beginning.branch.abandoned().to_vec(),
        elsewhere: beginning.branch.elsewhere(),
        adopted: if tier_setup.is_some() { adopted(&checkpoints, key.as_ref()) } else { Vec::new() },
        plan,
        tiers: tier_setup,
        saving,
        moving: moving(&transport)?,
        drain_timeout_us: drain_timeout.as_micros() as u64,
        reserve,
        node_timeout_us: node_timeout.as_micros() as u64,
        restarts,
        rates: beginning.rates,
        // Of one program alone: the machine has one measure for all ranks.
        program_rates: program.argv.first().filter(|_| program.further.is_empty()).and_then(|program| programs::rates(program)),
        goes_back: mend_settings::BACK_MIGRATION.choice()? == "on",
        follows_data: data_watch::mode(&program),
        time_left_s: time_left_s(beginning.run_began, beginning.batch.as_ref()).await?,
        worlds: beginning.worlds,
        gone: beginning.gone,
        stdin: source.is_some(),
        restoring: beginning.restoring,
        healing: beginning.healing.is_wanted().then(|| beginning.healing.clone()),
    };
    let batch_life = match &beginning.batch {
        Some((session, place)) => Some(session.life(place).await),
        None => None,
    };
    let life = LifeRecord {
        setup,
        program,
        sessions: reached.iter().map(|_| mend_wire::random_bytes()).collect(),
        epoch: record.epoch,
        lease_ms: lease.as_millis() as u64,
        node_timeout_ms: node_timeout.as_millis() as u64,
        directory_timeout_s: mend_settings::DIRECTORY_TIMEOUT.number()?,
        encryption_key: beginning.encryption_key.clone(),
        any_owner: beginning.any_owner,
        quiet,
        options: beginning.options,
        healing: beginning.healing,
        tiers: tiers.clone(),
        printed,
        input: taken,
        input_file: InputFile::of_this_process(),
        local: embedded.is_some(),
        batch: batch_life,
        moved: beginning.moved,
        run_began: beginning.run_began,
        holder: beginning.holder.number(),
    };
    let told = failover::begin_log(directory.path(), beginning.holder, &life)?;
    let watch_with = |secret| LockWatch::begin(directory.path(), beginning.holder, &life, secret);
    let lock_watch = reached.first().filter(|_| told.is_some()).map(|node| watch_with(&node.secret));
    let successor = told.is_some().then(|| failover::command(directory.path())).flatten();
    let mut nodes: Vec<Node> = Vec::new();
    for (index, node) in reached.into_iter().enumerate() {
        let introduction = JobIntroduction {
            id: id.clone(),
            identity,
            secret: secret.clone(),
            size: record.size,
            epoch: record.epoch,
            ranks: ranks_on(&life.setup, index as NodeIndex),
            session: life.sessions[index],
            node: index as NodeIndex,
            program: life.program.clone(),
            encryption_key: beginning.encryption_key.clone(),
            encrypt_data,
            compression,
            transport: transport.clone(),
            node_timeout_ms: life.node_timeout_ms,
            lease_ms: life.lease_ms,
            unused_features,
            successor: successor.clone(),
            worlds: life.setup.worlds.spawned().cloned().collect(),
        };
        nodes.push(attach(
            node,
            index as NodeIndex,
            introduction,
            lock_watch.as_ref().map(|watch| watch.pulse.clone()),
            arrivals.clone(),
            Arrival::Node,
        ));
    }
    // There is room for what was taken out.
    early.arrivals.into_iter().for_each(|arrival| drop(arrivals.try_send(arrival)));
    let input = InputReader::new(taken, source.is_some().then_some(more));
    let reading = source.map(|source| tokio::spawn(source.read(arrivals.clone(), Arrival::Stdin, asked)));
    let setup = life.setup.clone();
    let local = embedded.is_some();
    let session = beginning.batch.map(|(session, _)| session);
    let Watchers { traffic, offloads } = watchers::begin(&life.program, &life.setup, (session, &[]), &arrivals)?;
    let shell = Shell::of(
        life,
        Parts {
            directory,
            record,
            journal,
            local,
            key,
            nodes,
            input,
            output: beginning.output,
            arrivals,
            told,
            heard: None,
            watch: lock_watch,
            traffic,
        },
    );
    let end = run_to_its_end(shell, setup, incoming).await;
    if let Some(reading) = reading {
        // Another life reads what it has not.
        reading.abort();
        let _ = reading.await;
    }
    drop(doors);
    let end = end.pass_on(&beginning.signals);
    let signals = beginning.signals;
    Ok(move |lock| Life { end, embedded, lock, id, checkpoints, tiers, signals, offloads, spaces })
}

/// Ranks read their channels from their own environment, which may be of another day.
fn check_encryptable(environment: &[(String, String)]) -> Result<(), RunError> {
    let channels = environment.iter().find(|(name, _)| name == mend_settings::CHANNELS.name).map(|(_, value)| value);
    match channels.filter(|channels| channels.split(',').any(|word| word.trim() == "ofi")) {
        Some(channels) => Err(RunError::Unencryptable { channels: channels.clone() }),
        None => Ok(()),
    }
}

/// Ranks share what slots there are, as under MPICH's mpiexec, but not unnoticed.
pub(crate) fn tell_beyond_slots(quiet: bool, ranks: u32, hosts: &[Host]) {
    if let (false, Some(slots)) = (quiet, slots(hosts).filter(|slots| u64::from(ranks) > *slots)) {
        mend_report::tell!("mend: {ranks} ranks on hosts with slots for {slots}: they get more than their slots, in the same order again");
    }
}

/// The first life of a new job.
///
/// # Errors
/// What keeps it from beginning.
pub(crate) async fn first_life(mut spec: RunSpec, in_batch: Option<InBatch>, signals: Signals) -> Result<(Life, Constants), RunError> {
    let ranks = spec.ranks.unwrap_or(1);
    let key = load_key(spec.encryption_key.as_deref())?;
    let base = spec.checkpoints.map(|base| std::path::absolute(&base).unwrap_or(base));
    if let Some(path) = &base {
        try_below(path).map_err(|source| RunError::CheckpointDirectory { path: path.clone(), source })?;
    }
    let plan = plan(&spec.periodic, None)?;
    let healing = spec.healing.begin()?;
    let expiry = removal::expiry()?;
    let tiers = configured(spec.tiers.take())?;
    drop_credentials(&mut spec.program, &tiers);
    let all: Vec<Host> = spec.hosts.iter().chain(&spec.spares).cloned().collect();
    check_distinct(&all)?;
    let wanted = WantedHosts::of_start(&names(&spec.hosts), &names(&spec.spares), Kept::default());
    let mut notes = Vec::new();
    let addresses = daemons_of(in_batch.as_ref(), &signals).await?;
    let (reached, embedded) = connect_hosts(wanted, &addresses, None, &mut notes).await?;
    let absent = absent(names(&all), &reached);
    let wanted: Vec<u32> = if spec.hosts.is_empty() { vec![0] } else { spec.hosts.iter().map(|host| host.slots).collect() };
    let places = place(ranks, &wanted)?;
    tell_beyond_slots(spec.quiet, ranks, &spec.hosts);
    let (directory, id) = JobDirectory::create(spec.program.argv.first().map_or("", String::as_str))?;
    let requests = portable::place(directory.path()).to_string_lossy().into_owned();
    spec.program.environments().for_each(|environment| {
        environment.retain(|(name, _)| name != portable::VARIABLE);
        environment.push((portable::VARIABLE.to_owned(), requests.clone()));
    });
    let checkpoints = match base {
        Some(base) => base.join(&id),
        None => directory.path().join("checkpoints"),
    };
    let identity = mend_wire::random_bytes::<16>();
    let pmi = PmiServer::new(ranks, &identity).of_programs(&spec.program.boundaries());
    let pmi = match universe(ranks, &all) {
        Some(universe) => pmi.of_universe(universe),
        None => pmi,
    };
    let input = (Mark::default(), Some(Source::new(&directory)));
    let lock = directory.lock(&id)?;
    let beginning = JobStart {
        output: Output::new(directory.path(), lock.identity(), &BTreeMap::new(), ShownOutput::default())?,
        holder: lock.identity(),
        healing,
        signals,
        absent,
        input,
        directory,
        id,
        identity,
        program: spec.program,
        places,
        moved: false,
        worlds: pmi.into(),
        gone: Vec::new(),
        checkpoints,
        branch: Branch::default(),
        encryption_key: spec.encryption_key.clone(),
        key: key.clone(),
        plan,
        quiet: spec.quiet,
        tiers,
        restarts: Restarts::default(),
        rates: BTreeMap::new(),
        restoring: None,
        from: None,
        batch: in_batch.clone(),
        notes,
        stage: spec.stage,
        by_user: true,
        begins: Begins::Anew,
        options: spec.healing,
        any_owner: false,
        run_began: process_began(),
    };
    // Not for one that is refused.
    expiry.into_iter().for_each(|days| removal::expire(days, spec.quiet));
    let name = beginning.id.clone();
    let begun = begin(beginning, reached, embedded).await;
    let life = begun.inspect_err(|error| put_failure_on_record(&name, lock.identity(), error))?(lock);
    let (options, encryption_key, quiet) = (spec.healing, spec.encryption_key, spec.quiet);
    let constants = Constants { options, encryption_key, key, any_owner: false, quiet, batch: in_batch };
    Ok((life, constants))
}

/// A life has not begun, and nobody tries it again: the job is over if this process has put on record that it runs.
pub(crate) fn put_failure_on_record(id: &str, lock: LockIdentity, error: &RunError) {
    let is_ours = |record: &JobRecord| {
        record.ended.is_none() && record.controller_pid == std::process::id() && record.controller_host == client::host_name()
    };
    if JobDirectory::open(id).and_then(|directory| directory.record()).is_ok_and(|record| is_ours(&record)) {
        put_end_on_record(id, lock, error.to_string(), error.exit_code());
    }
}

fn ranks_on(setup: &Setup, node: NodeIndex) -> Vec<Rank> {
    let here = (0..).zip(&setup.places).filter(|(_, place)| **place == node).map(|(rank, _)| rank);
    here.filter(|rank| !setup.gone.contains(rank)).collect()
}

/// What programs are told of how many processes the job may have (`MPI_UNIVERSE_SIZE`): the slots of its hosts, if all have some, or the ranks that it has.
fn universe(ranks: u32, hosts: &[Host]) -> Option<u32> {
    let slots = slots(hosts)?.max(u64::from(ranks));
    Some(u32::try_from(slots).unwrap_or(u32::MAX).min(MAX_RANKS))
}

/// Those that are not among the nodes.
pub(crate) fn absent(mut wanted: Vec<String>, reached: &[ConnectedNode]) -> Vec<String> {
    wanted.retain(|name| reached.iter().all(|node| node.name != *name));
    wanted
}

pub(crate) fn names(hosts: &[Host]) -> Vec<String> {
    hosts.iter().map(|host| host.name.clone()).collect()
}
