//! How a job begins: new ([`run`]) or from a checkpoint ([`restart`]).

use crate::candidates::Candidates;
use crate::checkpoint_plan::{PeriodicOptions, plan};
use crate::embedded::Embedded;
use crate::error::RunError;
use crate::host_connections::connect_hosts;
use crate::hosts::{Host, check_distinct, slots};
use crate::input::{InputReader, Source, Wanted};
use crate::journal_file::Journal;
use crate::journaling;
use crate::manifest::{self, Line, Manifest, ManifestError, check_owner, files, lineage, numbers};
use crate::nodes::{ConnectedNode, Node, attach};
use crate::output::{self, Output};
use crate::record::{JobDirectory, JobRecord, now, try_below};
use crate::run::{Arrival, Shell, run as run_to_its_end};
use crate::shown_output::ShownOutput;
use crate::stream_digest::Mark;
use crate::texts::Names;
use crate::tiers::is_plain;
use crate::{client, removal, serve};
use mend_coordination::checkpoint::image_name;
use mend_coordination::placement::place;
use mend_coordination::pmi::PmiServer;
use mend_job::choice::{CheckpointChoice, Checks, LoadFailure, Step};
use mend_job::gathering::{LastRun, RestartHosts, WantedHosts, restart_places};
use mend_job::safeguard::Kept;
use mend_job::setup::{Adopted, AdoptedImage, CheckpointPlan, Moving, NodeSetup, Restoring, Saving, SearchSetup, Setup, TierSetup};
use mend_journal::Event as Happened;
use mend_journal::event::cut;
use mend_messages::agent::SaveMode;
use mend_messages::daemon::JobIntroduction;
use mend_messages::job::{NodeIndex, Program, Rank, Secret};
use mend_messages::tier::{ImageRef, Tier, TierSpec, parse_tiers};
use mend_policy::restarts::{Restart, Restarts};
use mend_report::with_causes;
use mend_sealed::{Key, SealError};
use mend_settings::SettingError;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Events that may wait before the daemons are held back.
const MAX_WAITING_EVENTS: usize = 256;

/// Of the object store's client: ranks do not get them where object storage is a tier.
const CREDENTIAL_VARIABLES: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// What `mend run` was asked for.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// Number of ranks, at least 1.
    pub ranks: u32,
    /// Hosts; none means this machine.
    pub hosts: Vec<Host>,
    /// Hosts that get no rank at first.
    pub spares: Vec<Host>,
    /// Program, environment and working directory.
    pub program: Program,
    /// Where checkpoints go; `None` for the job's own directory.
    pub checkpoints: Option<PathBuf>,
    /// Tiers that keep them; `None` for those of the setting.
    pub tiers: Option<Vec<TierSpec>>,
    /// File with the key that images are encrypted with; absolute.
    pub encryption_key: Option<PathBuf>,
    /// When they are taken, and which are kept.
    pub periodic: PeriodicOptions,
    /// No message of ours on standard error unless something is wrong.
    pub quiet: bool,
}

/// What `mend restart` was asked for.
#[derive(Clone, Debug)]
pub struct RestartSpec {
    /// The checkpoints it may begin from.
    pub candidates: Candidates,
    /// Other hosts than before; none means those of the checkpoint that still answer.
    pub hosts: Vec<Host>,
    /// Hosts that get no rank at first, besides.
    pub spares: Vec<Host>,
    /// Other tiers than before.
    pub tiers: Option<Vec<TierSpec>>,
    /// Print also what was printed before the job ended.
    pub repeat_output: bool,
    /// What standard input is taken for.
    pub input: Wanted,
    /// Take checkpoints that another user wrote.
    pub any_owner: bool,
    /// File with the key that images are encrypted with; absolute.
    pub encryption_key: Option<PathBuf>,
    /// When checkpoints are taken from now on, and which are kept.
    pub periodic: PeriodicOptions,
    /// No message of ours on standard error unless something is wrong.
    pub quiet: bool,
}

/// A key that cannot be used is told before anything starts; the nodes read it again for themselves.
fn load_key(file: Option<&Path>) -> Result<Option<Key>, RunError> {
    Ok(file.map(Key::load).transpose()?)
}

/// Everything a new or restarted job has in common.
struct JobStart {
    directory: JobDirectory,
    id: String,
    identity: [u8; 16],
    program: Program,
    places: Vec<NodeIndex>,
    pmi: PmiServer,
    output: Output,
    /// How far standard input was read, and where the rest comes from; `None` if there is none.
    input: (Mark, Option<Source>),
    checkpoints: PathBuf,
    encryption_key: Option<PathBuf>,
    /// What is in that file.
    key: Option<Key>,
    plan: CheckpointPlan,
    quiet: bool,
    tiers: Vec<TierSpec>,
    /// What restarts took before.
    restarts: Restarts,
    restoring: Option<Restoring>,
    /// Number of the checkpoint that it goes on from.
    from: Option<u64>,
    /// For the journal, of the time before there was one.
    notes: Vec<Happened>,
}

/// How images are taken, as the settings say.
fn saving() -> Result<Saving, SettingError> {
    let mode = if mend_settings::CHECKPOINT_MODE.choice()? == "stop" { SaveMode::Stop } else { SaveMode::CopyOnWrite };
    let rate = mend_settings::WRITE_RATE.number()?;
    Ok(Saving { mode, rate: (rate > 0).then_some(rate << 20), keep_files: mend_settings::KEEP_FILES.number()? << 20 })
}

/// How ranks are copied that run on, as the settings say.
fn moving() -> Result<Moving, SettingError> {
    let (threshold, rounds) = (mend_settings::PRECOPY_THRESHOLD.number()? << 10, mend_settings::PRECOPY_ROUNDS.number()?);
    Ok(Moving { threshold, rounds: rounds as u32 })
}

/// Bytes per second that copies to tiers may take; 0: no bound.
fn tier_rate() -> Result<u64, SettingError> {
    Ok(mend_settings::TIER_RATE.number()?.saturating_mul(1 << 20))
}

fn reference(number: u64, image: &manifest::ImageEntry) -> ImageRef {
    ImageRef { number, rank: image.rank, bytes: image.bytes, checksum: image.checksum, id: image.id }
}

/// What there is of older checkpoints.
fn adopted(checkpoints: &Path, key: Option<&Key>) -> Vec<Adopted> {
    let adopt = |number: u64| {
        let directory = checkpoints.join(number.to_string());
        let manifest = manifest::load(&directory, key).ok()?;
        let image = |entry: &manifest::ImageEntry| AdoptedImage {
            image: reference(number, entry),
            host: entry.host.clone(),
            base: entry.base,
            shared: fs::metadata(directory.join(entry.file())).is_ok_and(|found| found.len() == entry.bytes),
        };
        Some(Adopted { number, periodic: manifest.periodic, images: manifest.images.iter().map(image).collect() })
    };
    numbers(checkpoints).into_iter().filter_map(adopt).collect()
}

async fn begin(beginning: JobStart, reached: Vec<ConnectedNode>, embedded: Option<Embedded>) -> Result<i32, RunError> {
    let JobStart { directory, id, identity, program, places, checkpoints, key, plan, quiet, tiers, restarts, notes, .. } = beginning;
    // Ranks and daemons read them too, but could only say that they use the default.
    mend_settings::CHANNELS.words()?;
    mend_settings::TRACKING.choice()?;
    mend_settings::PID_NAMESPACE.choice()?;
    let encrypt_data = mend_settings::ENCRYPT_DATA.choice()? == "on";
    if encrypt_data {
        check_encryptable(&program.env)?;
    }
    let reserve = mend_settings::DISK_RESERVE.number()? << 20;
    let (saving, drain_timeout) = (saving()?, mend_settings::DRAIN_TIMEOUT.milliseconds()?);
    let tier_setup = match is_plain(&tiers) {
        true => None,
        false => {
            let writers = mend_settings::TIER_WRITERS.number()? as usize;
            Some(TierSetup { specs: tiers.clone(), rate: tier_rate()?, writers })
        }
    };
    let _lock = directory.lock(&id)?;
    let secret = Secret(mend_wire::random_bytes());
    directory.write_secret(&secret)?;
    let (arrivals, incoming) = mpsc::channel(MAX_WAITING_EVENTS);
    let (more, asked) = mpsc::channel(1);
    let (taken, source) = beginning.input;
    let bind = if embedded.is_some() { "127.0.0.1" } else { "0.0.0.0" };
    let doors = directory.path().to_owned();
    let controller_port =
        serve::listen(bind, directory.path(), secret.clone(), arrivals.clone(), Arrival::Ask).await.map_err(RunError::Listen)?;
    let record = JobRecord {
        id: id.clone(),
        command: program.argv.clone(),
        size: places.len() as u32,
        hosts: reached.iter().map(|node| node.name.clone()).collect(),
        controller_host: client::host_name(),
        controller_port,
        controller_pid: std::process::id(),
        started: now(),
        epoch: directory.next_epoch(),
        ended: None,
        checkpoints: checkpoints.clone(),
        plan: Some(plan),
        restarts: restarts.clone(),
        lost: Vec::new(),
    };
    directory.write("job.json", &record)?;
    let mut journal = Journal::open(directory.path());
    journal.record(journaling::beginning(&record, beginning.from));
    notes.into_iter().for_each(|event| journal.record(event));
    for node in &reached {
        journal.record_of(Some(&node.name), None, Happened::NodeReached { address: node.address.to_string() });
    }
    if !quiet {
        eprintln!("mend: job {id}: {} rank(s) on {}", places.len(), record.hosts.join(", "));
    }
    let (node_timeout, lease) = (mend_settings::NODE_TIMEOUT.milliseconds()?, mend_settings::LEASE.milliseconds()?);
    let mut nodes: Vec<Node> = Vec::new();
    for (index, node) in reached.into_iter().enumerate() {
        let introduction = JobIntroduction {
            id: id.clone(),
            identity,
            secret: secret.clone(),
            size: places.len() as u32,
            epoch: record.epoch,
            session: mend_wire::random_bytes(),
            node: index as NodeIndex,
            program: program.clone(),
            encryption_key: beginning.encryption_key.clone(),
            encrypt_data,
            node_timeout_ms: node_timeout.as_millis() as u64,
            lease_ms: lease.as_millis() as u64,
        };
        nodes.push(attach(node, index as NodeIndex, introduction, arrivals.clone(), Arrival::Node));
    }
    watch_signals(&arrivals);
    let setup = Setup {
        id: id.clone(),
        identity,
        token_key: mend_wire::random_bytes(),
        nodes: nodes.iter().map(|node| NodeSetup { name: node.name.clone(), address: node.address }).collect(),
        places,
        checkpoints: checkpoints.clone(),
        listed: numbers(&checkpoints),
        adopted: if tier_setup.is_some() { adopted(&checkpoints, key.as_ref()) } else { Vec::new() },
        plan,
        tiers: tier_setup,
        saving,
        moving: moving()?,
        drain_timeout_us: drain_timeout.as_micros() as u64,
        reserve,
        node_timeout_us: node_timeout.as_micros() as u64,
        restarts,
        pmi: beginning.pmi,
        stdin: source.is_some(),
        restoring: beginning.restoring,
    };
    let names =
        Names { job: id, command: program.argv.clone(), nodes: nodes.iter().map(|node| node.name.clone()).collect(), checkpoints, quiet };
    // Manifests of the shared directory alone name no tiers.
    let tiers = if setup.tiers.is_some() { tiers } else { Vec::new() };
    let input = InputReader::new(taken, source.is_some().then_some(more));
    if let Some(source) = source {
        tokio::spawn(source.read(arrivals.clone(), Arrival::Stdin, asked));
    }
    let local = embedded.is_some();
    let shell =
        Shell { directory, record, journal, identity, program, local, key, tiers, nodes, names, input, output: beginning.output, arrivals };
    let result = run_to_its_end(shell, setup, incoming).await;
    serve::close(&doors);
    if let Some(embedded) = embedded {
        embedded.stop().await;
    }
    result
}

/// Ranks read their channels from their own environment, which may be of another day.
fn check_encryptable(environment: &[(String, String)]) -> Result<(), RunError> {
    let channels = environment.iter().find(|(name, _)| name == mend_settings::CHANNELS.name).map(|(_, value)| value);
    match channels.filter(|channels| channels.split(',').any(|word| word.trim() == "ofi")) {
        Some(channels) => Err(RunError::Unencryptable { channels: channels.clone() }),
        None => Ok(()),
    }
}

fn watch_signals(events: &mpsc::Sender<Arrival>) {
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let Ok(mut stream) = signal(kind) else { continue };
        let events = events.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if events.send(Arrival::Signal(kind.as_raw_value())).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Ranks share what slots there are, as under MPICH's mpiexec, but not unnoticed.
fn tell_beyond_slots(quiet: bool, ranks: u32, hosts: &[Host]) {
    if let (false, Some(slots)) = (quiet, slots(hosts).filter(|slots| u64::from(ranks) > *slots)) {
        eprintln!("mend: {ranks} ranks on hosts with slots for {slots}: they get more than their slots, in the same order again");
    }
}

/// The tiers that were named, or those of the setting.
fn configured(named: Option<Vec<TierSpec>>) -> Result<Vec<TierSpec>, RunError> {
    Ok(match named {
        Some(tiers) => tiers,
        None => parse_tiers(&mend_settings::TIERS.text())?,
    })
}

/// Runs a new job to its end. Returns its exit code.
///
/// # Errors
/// See [`RunError`].
pub async fn run(mut spec: RunSpec) -> Result<i32, RunError> {
    let key = load_key(spec.encryption_key.as_deref())?;
    let base = spec.checkpoints.map(|base| std::path::absolute(&base).unwrap_or(base));
    if let Some(path) = &base {
        try_below(path).map_err(|source| RunError::CheckpointDirectory { path: path.clone(), source })?;
    }
    let plan = plan(&spec.periodic, None)?;
    removal::expire(spec.quiet)?;
    let tiers = configured(spec.tiers.take())?;
    if tiers.iter().any(|spec| matches!(spec.tier, Tier::Object(_))) {
        // They would be in every manifest and image, and with these in the store.
        spec.program.env.retain(|(name, _)| !CREDENTIAL_VARIABLES.contains(&name.as_str()));
    }
    let all: Vec<Host> = spec.hosts.iter().chain(&spec.spares).cloned().collect();
    check_distinct(&all)?;
    let wanted = WantedHosts::of_start(&names(&spec.hosts), &names(&spec.spares), Kept::default());
    let mut notes = Vec::new();
    let (reached, embedded) = connect_hosts(wanted, &mut notes).await?;
    let wanted: Vec<u32> = if spec.hosts.is_empty() { vec![0] } else { spec.hosts.iter().map(|host| host.slots).collect() };
    let places = place(spec.ranks, &wanted)?;
    tell_beyond_slots(spec.quiet, spec.ranks, &spec.hosts);
    let (directory, id) = JobDirectory::create(spec.program.argv.first().map_or("", String::as_str))?;
    let checkpoints = match base {
        Some(base) => base.join(&id),
        None => directory.path().join("checkpoints"),
    };
    let identity = mend_wire::random_bytes::<16>();
    let input = (Mark::default(), Some(Source::new(&directory)));
    let beginning = JobStart {
        output: Output::new(directory.path(), &BTreeMap::new(), ShownOutput::default()),
        input,
        directory,
        id,
        identity,
        program: spec.program,
        places,
        pmi: PmiServer::new(spec.ranks, &identity),
        checkpoints,
        encryption_key: spec.encryption_key.clone(),
        key,
        plan,
        quiet: spec.quiet,
        tiers,
        restarts: Restarts::default(),
        restoring: None,
        from: None,
        notes,
    };
    begin(beginning, reached, embedded).await
}

/// Continues a job from a checkpoint to its end: the newest whose images are good. Returns its exit code.
///
/// # Errors
/// See [`RunError`].
pub async fn restart(mut spec: RestartSpec) -> Result<i32, RunError> {
    check_distinct(&spec.hosts.iter().chain(&spec.spares).cloned().collect::<Vec<_>>())?;
    let key = load_key(spec.encryption_key.as_deref())?;
    let mut notes = Notes::default();
    let ended = restart_newest(&mut spec, key.as_ref(), &mut notes).await;
    if let (Err(error), false, Some(job)) = (&ended, notes.written, spec.candidates.job()) {
        notes.write(job, error);
    }
    ended
}

/// What happens at a restart before its controller has the journal.
#[derive(Default)]
struct Notes {
    events: Vec<Happened>,
    /// The controller has it, and has written what follows.
    written: bool,
}

impl Notes {
    fn passed_over(&mut self, candidates: &mut Candidates) {
        let event = |(checkpoint, error)| Happened::PassedOver { checkpoint, error: cut(error) };
        self.events.extend(candidates.take_passed().into_iter().map(event));
    }

    /// No controller came to be.
    fn write(&mut self, job: &str, error: &RunError) {
        let Ok(directory) = JobDirectory::open(job) else { return };
        // Another one may run the job.
        let Ok(_lock) = directory.lock(job) else { return };
        let mut journal = Journal::open(directory.path());
        self.events.drain(..).for_each(|event| journal.record(event));
        journal.decide(Happened::RestartFailed { cause: journaling::cause_of(error) });
    }
}

async fn restart_newest(spec: &mut RestartSpec, key: Option<&Key>, notes: &mut Notes) -> Result<i32, RunError> {
    let mut choice = CheckpointChoice::new(spec.candidates.count(), Kept::default());
    let (mut step, mut manifest) = (choice.next_candidate(), None);
    let (mut failure, mut begun) = (RunError::from(spec.candidates.none()), false);
    loop {
        step = match step {
            Step::Load(at) => match spec.candidates.load(at, key) {
                Ok(found) => choice.loaded(Ok(!is_plain(&manifest.insert(found).tiers))),
                Err(error) => {
                    let key = matches!(error, ManifestError::Sealed { source: SealError::NoKey, .. });
                    (failure, begun) = (error.into(), false);
                    choice.loaded(Err(if key { LoadFailure::NoKey } else { LoadFailure::Unusable }))
                }
            },
            Step::Begin(at, checks) => {
                let Some(manifest) = manifest.clone() else { return Err(failure) };
                if checks == Checks::Before {
                    eprintln!("mend: {}; nothing ran from it, all copies are checked and good ones taken", with_causes(&failure));
                }
                notes.written = false;
                let directory = spec.candidates.directory(at).to_owned();
                match restart_from(manifest, &directory, key, spec, checks, notes).await {
                    Ok(code) => return Ok(code),
                    Err(error) => {
                        let blame = error.blame();
                        (failure, begun) = (error, true);
                        choice.failed(blame)
                    }
                }
            }
            Step::PassOver(at) => {
                spec.candidates.pass_over(at, &failure, begun);
                notes.passed_over(&mut spec.candidates);
                notes.written = false;
                choice.next_candidate()
            }
            Step::End => return Err(failure),
        };
    }
}

fn names(hosts: &[Host]) -> Vec<String> {
    hosts.iter().map(|host| host.name.clone()).collect()
}

/// Hosts for a restart from this checkpoint.
fn wanted_hosts(manifest: &Manifest, last: Option<&JobRecord>, spec: &RestartSpec) -> WantedHosts {
    let last = last.filter(|record| record.id == manifest.job);
    let wanted = WantedHosts::of_restart(
        &RestartHosts {
            named: names(&spec.hosts),
            spares: names(&spec.spares),
            of_checkpoint: manifest.hosts.clone(),
            local: manifest.local,
            last: last.map(|record| LastRun { hosts: record.hosts.clone(), lost: record.lost.clone() }),
        },
        Kept::default(),
    );
    if wanted.no_spares {
        eprintln!("mend: --spares without --hosts: the job runs on this machine alone, as before");
    }
    wanted
}

/// What a restart has to read; no time yet.
fn reads(lineage: &[Line]) -> Restart {
    let images = || lineage.iter().flatten().map(|(_, image)| image);
    let bytes = |full: bool| images().filter(|image| image.base.is_none() == full).map(|image| image.bytes).fold(0, u64::saturating_add);
    Restart { read_us: 0, full: bytes(true), incremental: bytes(false) }
}

/// Continues a job from one checkpoint. All of its processes are gone when this returns.
async fn restart_from(
    manifest: Manifest,
    images: &Path,
    key: Option<&Key>,
    spec: &RestartSpec,
    checks: Checks,
    notes: &mut Notes,
) -> Result<i32, RunError> {
    let lineage = lineage(images, &manifest, key)?;
    let chains = files(images, &manifest, &lineage);
    if !spec.any_owner {
        check_owner(images, &manifest, &chains)?;
    }
    let directory = JobDirectory::open(&manifest.job)?;
    // Refused before any node is bothered; `begin` takes it for good.
    drop(directory.lock(&manifest.job)?);
    let record = directory.record().ok();
    let wanted = wanted_hosts(&manifest, record.as_ref(), spec);
    let (reached, embedded) = connect_hosts(wanted, &mut notes.events).await?;
    let slots: Option<Vec<u32>> = spec.hosts.iter().any(|host| host.slots > 0).then(|| spec.hosts.iter().map(|host| host.slots).collect());
    if slots.is_some() {
        tell_beyond_slots(spec.quiet, manifest.images.len() as u32, &spec.hosts);
    }
    let before: Vec<String> = manifest.images.iter().map(|image| image.host.clone()).collect();
    let gathered: Vec<String> = reached.iter().map(|node| node.name.clone()).collect();
    let places = restart_places(&before, &gathered, &names(&spec.spares), slots.as_deref())?;
    let before = (!manifest.tiers.is_empty()).then(|| manifest.tiers.clone());
    let tiers = configured(spec.tiers.clone().or(before))?;
    let plan = plan(&spec.periodic, record.as_ref().and_then(|record| record.plan.as_ref()))?;
    let taken = manifest.input.map(|input| input.at).unwrap_or_default();
    let source = Source::after(&directory, manifest.input, spec.input, spec.quiet)?;
    let shown = output::found(&directory, &manifest.printed, spec.repeat_output);
    let checkpoints = images.parent().map_or_else(|| directory.path().join("checkpoints"), PathBuf::from);
    if !spec.quiet {
        let newest = numbers(&checkpoints).last().copied().unwrap_or(manifest.number);
        let older = if newest > manifest.number { format!(" (the newest is {newest})") } else { String::new() };
        eprintln!("mend: restarting {} from checkpoint {}{older}", manifest.job, manifest.number);
    }
    let search = match is_plain(&manifest.tiers) {
        true => None,
        false => Some(SearchSetup {
            specs: manifest.tiers.clone(),
            rate: tier_rate()?,
            lineage: lineage.iter().map(|line| line.iter().map(|(number, image)| reference(*number, image)).collect()).collect(),
            shared: shared_lengths(&checkpoints, &manifest),
            check: checks == Checks::Before,
        }),
    };
    let restoring = Restoring {
        chains,
        images: manifest.images.iter().map(|image| image.id).collect(),
        reads: reads(&lineage),
        checkpoint: images.to_owned(),
        files: manifest.files.clone(),
        search,
    };
    let beginning = JobStart {
        id: manifest.job.clone(),
        identity: manifest.identity,
        program: manifest.program.clone(),
        places,
        pmi: manifest.pmi.clone(),
        output: Output::new(directory.path(), &manifest.printed, shown),
        input: (taken, source),
        checkpoints,
        encryption_key: spec.encryption_key.clone(),
        key: key.cloned(),
        plan,
        quiet: spec.quiet,
        directory,
        tiers,
        restarts: record.map(|record| record.restarts).unwrap_or_default(),
        restoring: Some(restoring),
        from: Some(manifest.number),
        notes: std::mem::take(&mut notes.events),
    };
    notes.written = true;
    begin(beginning, reached, embedded).await
}

/// Lengths of the images in the checkpoint directory.
fn shared_lengths(checkpoints: &Path, manifest: &Manifest) -> BTreeMap<(u64, Rank), u64> {
    let mut found = BTreeMap::new();
    for number in numbers(checkpoints) {
        for image in &manifest.images {
            if let Ok(file) = fs::metadata(checkpoints.join(number.to_string()).join(image_name(image.rank))) {
                found.insert((number, image.rank), file.len());
            }
        }
    }
    found
}
