//! How a job begins: new ([`run`]) or from a checkpoint ([`restart`]).

use crate::candidates::Candidates;
use crate::embedded::Embedded;
use crate::error::{RunError, with_causes};
use crate::hosts::{Host, check_distinct, slots};
use crate::input::{Input, Source, Wanted};
use crate::job::{Event, Job, RankPhase, RankState};
use crate::journal_file::Journal;
use crate::journaling::{self, Noted};
use crate::losses::Losses;
use crate::manifest::{Line, Manifest, check_owner, files, lineage, numbers};
use crate::nodes::{Node, Reached, attach};
use crate::operation::Saving;
use crate::output::{self, Output};
use crate::periodic::{Periodic, Plan, Wishes};
use crate::put_files::put_files;
use crate::reach::{Need, reach_all};
use crate::record::{JobDirectory, JobRecord, now, try_below};
use crate::recover::{Checks, Search};
use crate::shown::Found;
use crate::tiers::{Tiering, Told, is_plain, open_order};
use crate::trail::Mark;
use crate::{client, removal, serve};
use mend_coordination::placement::{place, replace};
use mend_coordination::pmi::PmiServer;
use mend_journal::Event as Happened;
use mend_journal::event::cut;
use mend_messages::agent::ImageId;
use mend_messages::daemon::{JobIntroduction, RestoreSource, ToDaemon};
use mend_messages::job::{NodeIndex, Program, Rank, Secret};
use mend_messages::tier::{Tier, TierSpec, parse_tiers};
use mend_policy::restarts::{Restart, Restarts};
use mend_sealed::Key;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Events that may wait before the daemons are held back.
const WAITING_EVENTS: usize = 256;

/// Of the object store's client: ranks do not get them where object storage is a tier.
const CREDENTIALS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

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
    pub wishes: Wishes,
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
    pub wishes: Wishes,
    /// No message of ours on standard error unless something is wrong.
    pub quiet: bool,
}

/// A key that cannot be used is told before anything starts; the nodes read it again for themselves.
fn load_key(file: Option<&Path>) -> Result<Option<Key>, RunError> {
    Ok(file.map(Key::load).transpose()?)
}

/// Everything a new or restarted job has in common.
struct Beginning {
    directory: JobDirectory,
    id: String,
    identity: [u8; 16],
    program: Program,
    places: Vec<NodeIndex>,
    phase: RankPhase,
    pmi: PmiServer,
    output: Output,
    /// How far standard input was read, and where the rest comes from; `None` if there is none.
    input: (Mark, Option<Source>),
    checkpoints: PathBuf,
    encryption_key: Option<PathBuf>,
    /// What is in that file.
    key: Option<Key>,
    plan: Plan,
    quiet: bool,
    tiers: Vec<TierSpec>,
    /// The checkpoint whose images are to be looked for in its tiers.
    recovery: Option<(Manifest, PathBuf)>,
    checks: Checks,
    /// What restarts took before.
    restarts: Restarts,
    /// What this one reads.
    restoring: Option<Restart>,
    /// For the journal, of the time before there was one.
    notes: Vec<Happened>,
}

async fn begin(
    beginning: Beginning,
    reached: Vec<Reached>,
    embedded: Option<Embedded>,
    first_orders: impl FnOnce(&Job, Option<Vec<Vec<PathBuf>>>),
) -> Result<i32, RunError> {
    let Beginning {
        directory,
        id,
        identity,
        program,
        places,
        phase,
        pmi,
        output,
        input: (taken, source),
        checkpoints,
        encryption_key,
        key,
        plan,
        quiet,
        tiers,
        recovery,
        checks,
        restarts,
        mut restoring,
        notes,
    } = beginning;
    // Ranks and daemons read them too, but could only say that they use the default.
    mend_settings::CHANNELS.words()?;
    mend_settings::TRACKING.choice()?;
    mend_settings::PID_NAMESPACE.choice()?;
    mend_settings::DISK_RESERVE.number()?;
    let _lock = directory.lock(&id)?;
    let secret = Secret(mend_wire::random_bytes());
    directory.write_secret(&secret)?;
    let (events, mut incoming) = mpsc::channel(WAITING_EVENTS);
    let (more, asked) = mpsc::channel(1);
    let bind = if embedded.is_some() { "127.0.0.1" } else { "0.0.0.0" };
    let doors = directory.path().to_owned();
    let controller_port =
        serve::listen(bind, directory.path(), secret.clone(), events.clone(), Event::Ask).await.map_err(RunError::Listen)?;
    let record = JobRecord {
        id: id.clone(),
        command: program.argv.clone(),
        size: places.len() as u32,
        hosts: reached.iter().map(|node| node.name.clone()).collect(),
        controller_host: client::host_name(),
        controller_port,
        controller_pid: std::process::id(),
        started: now(),
        ended: None,
        checkpoints,
        plan: Some(plan),
        restarts,
        lost: Vec::new(),
    };
    directory.write("job.json", &record)?;
    let mut journal = Journal::open(directory.path());
    journal.record(journaling::beginning(&record, recovery.as_ref().map(|(manifest, _)| manifest.number)));
    notes.into_iter().for_each(|event| journal.record(event));
    for node in &reached {
        journal.record_of(Some(&node.name), None, Happened::NodeReached { address: node.address.to_string() });
    }
    if !quiet {
        eprintln!("mend: job {id}: {} rank(s) on {}", places.len(), record.hosts.join(", "));
    }
    let node_timeout = mend_settings::NODE_TIMEOUT.milliseconds()?;
    let mut nodes: Vec<Node> = Vec::new();
    for (index, node) in reached.into_iter().enumerate() {
        let introduction = JobIntroduction {
            id: id.clone(),
            identity,
            secret: secret.clone(),
            size: places.len() as u32,
            node: index as NodeIndex,
            program: program.clone(),
            encryption_key: encryption_key.clone(),
            node_timeout_ms: node_timeout.as_millis() as u64,
        };
        nodes.push(attach(node, index as NodeIndex, introduction, events.clone(), Event::Node));
    }
    watch_signals(&events);
    let (mut found, mut told) = (None, Told::default());
    // What a restart reads may be in other tiers than what it will write.
    let read = recovery.as_ref().map(|(manifest, _)| manifest.tiers.as_slice()).unwrap_or_default();
    if !(is_plain(&tiers) && is_plain(read)) {
        let all: Vec<TierSpec> = tiers.iter().chain(read).cloned().collect();
        let order = open_order(&all, &record.checkpoints)?;
        nodes.iter().for_each(|node| node.send(order.clone()));
    }
    if let Some((manifest, checkpoint)) = recovery.as_ref().filter(|(manifest, _)| !is_plain(&manifest.tiers)) {
        let search = Search {
            manifest,
            directory: checkpoint,
            key: key.as_ref(),
            specs: read,
            places: &places,
            nodes: &mut nodes,
            events: &mut incoming,
            told: &mut told,
            checks,
        };
        let began = Instant::now();
        found = match search.run().await {
            Ok(found) => Some(found),
            Err(error) => {
                journal.end_for(error.exit_code(), journaling::cause_of(&error));
                let record = JobRecord { ended: Some((now(), error.to_string())), ..record };
                directory.write("job.json", &record)?;
                return Err(error);
            }
        };
        if let Some(restoring) = &mut restoring {
            restoring.read_us = began.elapsed().as_micros() as u64;
        }
    }
    if let Some((manifest, checkpoint)) = recovery.as_ref().filter(|(manifest, _)| !manifest.files.is_empty())
        && let Err(error) = put_files(manifest, checkpoint, &places, &mut nodes, &mut incoming).await
    {
        let record = JobRecord { ended: Some((now(), error.to_string())), ..record };
        directory.write("job.json", &record)?;
        return Err(error);
    }
    let first_task = found.as_ref().map_or(0, |found| found.last_task);
    let tiers = Tiering::new(tiers, nodes.len() as u32, identity, (plan.keep, first_task), told)?;
    let used = places.iter().collect::<BTreeSet<_>>().len() as u32;
    let periodic = Periodic::new(plan, used, tiers.is_none(), &record.restarts, events.clone());
    if let (false, Some(sentence)) = (quiet, periodic.sentence()) {
        eprintln!("mend: {sentence}");
    }
    let rank = |&node: &NodeIndex| RankState { node, generation: 1, open: true, address: None, phase, agent: false };
    journal.decide(journaling::places(&places, |node| record.hosts[node as usize].clone()));
    let mut job = Job {
        directory,
        record,
        journal,
        noted: Noted::default(),
        identity,
        program,
        local: embedded.is_some(),
        quiet,
        key,
        nodes,
        ranks: places.iter().map(rank).collect(),
        pmi,
        output,
        operation: None,
        periodic,
        last_number: 0,
        background: None,
        waiting: VecDeque::new(),
        pending: BTreeMap::new(),
        next_seq: 0,
        map_version: 0,
        map_dirty: false,
        started: Instant::now(),
        tidied: Instant::now(),
        restart: None,
        restoring,
        tiers,
        resumed_at_us: None,
        input: Input::new(taken, source.is_some().then_some(more)),
        drain_timeout: mend_settings::DRAIN_TIMEOUT.milliseconds()?,
        losses: Losses::new(node_timeout),
        saving: Saving::from_settings()?,
        exit_code: 0,
        interrupted: None,
        spawn_told: false,
        ending: None,
    };
    job.open_tiers();
    job.adopt(&found.as_ref().map(|found| found.holdings.clone()).unwrap_or_default());
    first_orders(&job, found.map(|found| found.files));
    job.start_upkeep(false);
    if let Some(source) = source {
        tokio::spawn(source.read(events.clone(), asked));
    }
    if phase == RankPhase::Starting {
        job.input.ask();
    }
    drop(events);
    let result = job.run(incoming).await;
    serve::close(&doors);
    if let Some(embedded) = embedded {
        embedded.stop().await;
    }
    result
}

fn watch_signals(events: &mpsc::Sender<Event>) {
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let Ok(mut stream) = signal(kind) else { continue };
        let events = events.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if events.send(Event::Signal(kind.as_raw_value())).await.is_err() {
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
    let plan = Plan::new(&spec.wishes, None)?;
    removal::expire(spec.quiet)?;
    let tiers = configured(spec.tiers.take())?;
    if tiers.iter().any(|spec| matches!(spec.tier, Tier::Object(_))) {
        // They would be in every manifest and image, and with these in the store.
        spec.program.env.retain(|(name, _)| !CREDENTIALS.contains(&name.as_str()));
    }
    let all: Vec<Host> = spec.hosts.iter().chain(&spec.spares).cloned().collect();
    check_distinct(&all)?;
    let need = |place: usize| if place < spec.hosts.len() { Need::Must } else { Need::May };
    let names: Vec<(String, Need)> = all.into_iter().enumerate().map(|(place, host)| (host.name, need(place))).collect();
    let mut notes = Vec::new();
    let (reached, embedded) = reach_all(&names, &[], &mut notes).await?;
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
    let beginning = Beginning {
        output: Output::new(directory.path(), &BTreeMap::new(), Found::default()),
        directory,
        id,
        identity,
        program: spec.program,
        places,
        phase: RankPhase::Starting,
        pmi: PmiServer::new(spec.ranks, &identity),
        input,
        checkpoints,
        encryption_key: spec.encryption_key.clone(),
        key,
        plan,
        quiet: spec.quiet,
        tiers,
        recovery: None,
        checks: Checks::Before,
        restarts: Restarts::default(),
        restoring: None,
        notes,
    };
    let start_all = |job: &Job, _| {
        for rank in 0..job.ranks.len() as Rank {
            job.send_to_rank(rank, ToDaemon::Start { rank, stdin: rank == 0 });
        }
    };
    begin(beginning, reached, embedded, start_all).await
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
    loop {
        let newest = spec.candidates.newest(key);
        notes.passed_over(&mut spec.candidates);
        notes.written = false;
        let (manifest, directory) = newest?;
        let tiered = !is_plain(&manifest.tiers);
        let mut ended = restart_from(manifest.clone(), &directory, key, spec, Checks::WhileRestoring, notes).await;
        if let Err(error @ RunError::Restore { image: true, .. }) = &ended
            && tiered
        {
            eprintln!("mend: {}; nothing ran from it, all copies are checked and good ones taken", with_causes(error));
            ended = restart_from(manifest, &directory, key, spec, Checks::Before, notes).await;
        }
        match ended {
            Err(error) if spec.candidates.older_may_do(&directory, &error) => notes.passed_over(&mut spec.candidates),
            ended => return ended,
        }
    }
}

/// Hosts for a restart, none for this machine alone, and those to turn to if none of these answers. Without `--hosts` those of the job's
/// last run come first, wherever the checkpoint was taken.
fn wanted_hosts(manifest: &Manifest, last: Option<&JobRecord>, spec: &RestartSpec) -> (Vec<(String, Need)>, Vec<String>) {
    let last = last.filter(|record| record.id == manifest.job);
    let lost = |name: &String| last.is_some_and(|record| record.lost.contains(name));
    let local = manifest.local && last.is_none_or(|record| record.hosts == manifest.hosts);
    let named = !spec.hosts.is_empty();
    let known = match named {
        true => spec.hosts.iter().map(|host| (host.name.clone(), Need::Must)).collect(),
        // A job that ran on its own machine alone goes on that way.
        false if local => Vec::new(),
        false => {
            let hosts = last.map_or(&manifest.hosts, |record| &record.hosts).iter();
            let need = |name: &String| if lost(name) { Need::Lost } else { Need::May };
            hosts.map(|name| (name.clone(), need(name))).collect::<Vec<_>>()
        }
    };
    if local && !named && !spec.spares.is_empty() {
        eprintln!("mend: --spares without --hosts: the job runs on this machine alone, as before");
        return (Vec::new(), Vec::new());
    }
    // They come last.
    let spares = || spec.spares.iter().map(|spare| spare.name.clone());
    let hosts = known.into_iter().filter(|(name, _)| spares().all(|spare| spare != *name));
    let others = if named || local { Vec::new() } else { manifest.hosts.clone() };
    (hosts.chain(spares().map(|name| (name, Need::May))).collect(), others)
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
    let (wanted, others) = wanted_hosts(&manifest, record.as_ref(), spec);
    let (reached, embedded) = reach_all(&wanted, &others, &mut notes.events).await?;
    let size = manifest.images.len() as u32;
    // Spares get no rank, unless nobody else answers.
    let spare = |node: &Reached| spec.spares.iter().any(|spare| spare.name == node.name);
    let hosts = Some(reached.iter().filter(|node| !spare(node)).count()).filter(|hosts| *hosts > 0).unwrap_or(reached.len());
    let places = if spec.hosts.iter().any(|host| host.slots > 0) {
        tell_beyond_slots(spec.quiet, size, &spec.hosts);
        place(size, &spec.hosts.iter().map(|host| host.slots).collect::<Vec<_>>())?
    } else {
        let same = |host: &str| reached[..hosts].iter().position(|node| node.name == host).map(|node| node as NodeIndex);
        let old: Vec<Option<NodeIndex>> = manifest.images.iter().map(|image| same(&image.host)).collect();
        replace(&old, hosts as u32)?
    };
    let before = (!manifest.tiers.is_empty()).then(|| manifest.tiers.clone());
    let tiers = configured(spec.tiers.clone().or(before))?;
    let plan = Plan::new(&spec.wishes, record.as_ref().and_then(|record| record.plan.as_ref()))?;
    let taken = manifest.input.map(|input| input.at).unwrap_or_default();
    let source = Source::after(&directory, manifest.input, spec.input, spec.quiet)?;
    let fed = source.is_some();
    let shown = output::found(&directory, &manifest.printed, spec.repeat_output);
    let checkpoints = images.parent().map_or_else(|| directory.path().join("checkpoints"), PathBuf::from);
    if !spec.quiet {
        let newest = numbers(&checkpoints).last().copied().unwrap_or(manifest.number);
        let older = if newest > manifest.number { format!(" (the newest is {newest})") } else { String::new() };
        eprintln!("mend: restarting {} from checkpoint {}{older}", manifest.job, manifest.number);
    }
    let beginning = Beginning {
        id: manifest.job.clone(),
        identity: manifest.identity,
        program: manifest.program.clone(),
        places,
        phase: RankPhase::Restoring(false),
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
        recovery: Some((manifest.clone(), images.to_owned())),
        checks,
        restarts: record.map(|record| record.restarts).unwrap_or_default(),
        restoring: Some(reads(&lineage)),
        notes: std::mem::take(&mut notes.events),
    };
    notes.written = true;
    let ids: Vec<ImageId> = manifest.images.iter().map(|image| image.id).collect();
    let restore_all = move |job: &Job, found: Option<Vec<Vec<PathBuf>>>| {
        let chains = found.unwrap_or(chains);
        for rank in 0..job.ranks.len() as Rank {
            let source = RestoreSource::Files(chains[rank as usize].clone());
            let image = Some(ids[rank as usize]);
            job.send_to_rank(rank, ToDaemon::Restore { rank, source, image, stdin: fed && rank == 0 });
        }
    };
    begin(beginning, reached, embedded, restore_all).await
}
