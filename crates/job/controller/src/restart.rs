//! How a job goes on from a checkpoint: which one is taken, on which hosts.

use crate::batch::{InBatch, daemons_of};
use crate::being_restarted;
use crate::branch;
use crate::candidates::Candidates;
use crate::checkpoint_plan::{PeriodicOptions, plan};
use crate::embedded::Embedded;
use crate::error::RunError;
use crate::failover::{last_controller, watch};
use crate::healing_options::HealingOptions;
use crate::host_connections::connect_hosts;
use crate::hosts::{Host, check_distinct};
use crate::input::{Source, Wanted};
use crate::job_lock::JobLock;
use crate::job_tiers::{configured, drop_credentials, reference, tier_rate};
use crate::journal_file::Journal;
use crate::journaling;
use crate::kill_request;
use crate::life::{Constants, Life};
use crate::lock_identity::LockIdentity;
use crate::made_spaces::Begins;
use crate::manifest::{ImageEntry, Line, Manifest, ManifestError, check_owner, files, lineage, numbers};
use crate::output::{self, Output};
use crate::overruled;
use crate::record::{JobDirectory, JobRecord, RecordError};
use crate::run::LifeEnd;
use crate::signals::Signals;
use crate::start::{JobStart, absent, begin, load_key, names, put_failure_on_record, tell_beyond_slots};
use crate::tiers::is_plain;
use crate::time_left::process_began;
use crate::upkeep;
use crate::wish::Wish;
use mend_coordination::checkpoint::image_name;
use mend_image::cpu::CpuNeeds;
use mend_job::choice::{Blame, CheckpointChoice, Checks, LoadFailure, Step};
use mend_job::gathering::{LastRun, RestartHosts, WantedHosts, restart_places};
use mend_job::healing::Healing;
use mend_job::safeguard::Kept;
use mend_job::setup::{Restoring, SearchSetup};
use mend_journal::Event as Happened;
use mend_journal::event::cut;
use mend_messages::job::{Program, Rank};
use mend_messages::tier::TierSpec;
use mend_policy::restarts::Restart;
use mend_report::with_causes;
use mend_sealed::{Key, SealError};
use mend_settings::SettingError;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio::sync::mpsc;

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
    /// Whether it goes on by itself.
    pub healing: HealingOptions,
    /// No message of ours on standard error unless something is wrong.
    pub quiet: bool,
    /// The batch job that it goes on in.
    pub batch: Option<InBatch>,
    /// When the run began that it is a life of, seconds since 1970; `None`: it begins with this process.
    pub run_began: Option<u64>,
    /// Whether somebody restarts it, or it goes on by itself.
    pub begins: Begins,
    /// The host of each rank that has lived to the end of the life before, by rank; none: the checkpoint's hosts decide.
    pub stood: Vec<Option<String>>,
}

impl RestartSpec {
    /// A job goes on by itself, from its newest checkpoint that is good, on the hosts that it had.
    pub(crate) fn of_next_life(checkpoints: &Path, id: &str, tiers: &[TierSpec], constants: &Constants, end: &LifeEnd) -> Self {
        Self {
            candidates: Candidates::to_go_on_from(checkpoints, id),
            hosts: Vec::new(),
            spares: Vec::new(),
            // A manifest of a job with the shared directory alone names no tier, and the setting may.
            tiers: Some(tiers.to_vec()),
            repeat_output: false,
            input: Wanted::Continued,
            any_owner: constants.any_owner,
            encryption_key: constants.encryption_key.clone(),
            periodic: PeriodicOptions { as_before: true, ..PeriodicOptions::default() },
            healing: constants.options,
            quiet: constants.quiet,
            batch: constants.batch.clone(),
            run_began: Some(end.run_began),
            begins: Begins::ByItself,
            stood: end.stood.clone(),
        }
    }
}

/// The first life of a job that is restarted.
///
/// # Errors
/// What keeps it from beginning.
pub(crate) async fn first_life_of_restart(
    mut spec: RestartSpec,
    signals: Signals,
    strays: &mut mpsc::UnboundedReceiver<Wish>,
) -> Result<(Life, Constants), RunError> {
    check_distinct(&spec.hosts.iter().chain(&spec.spares).cloned().collect::<Vec<_>>())?;
    let key = load_key(spec.encryption_key.as_deref())?;
    let mut notes = Notes::default();
    let healing = spec.healing.begin()?;
    let (job, newest) = (spec.candidates.job().unwrap_or_default().to_owned(), spec.candidates.newest());
    let life = tokio::select! {
        biased;
        life = restart_newest(&mut spec, key.as_ref(), healing, &signals, &mut notes) => life,
        // Before the first try, or between two of them.
        Some(wish) = strays.recv() => Err(wish.end(&job, newest)),
        () = kill_request::wanted_of_restart(&job) => Err(RunError::Killed),
    };
    if let (Err(error), false, Some(job)) = (&life, notes.written, spec.candidates.job()) {
        notes.write(job, error);
    }
    if let (Err(error), Some(job), Some(lock)) = (&life, notes.open.take(), notes.lock()) {
        put_failure_on_record(&job, lock, error);
    }
    let RestartSpec { healing: options, encryption_key, any_owner, quiet, batch, .. } = spec;
    Ok((life?, Constants { options, encryption_key, key, any_owner, quiet, batch }))
}

/// What happens at a restart before its controller has the journal.
#[derive(Default)]
pub(crate) struct Notes {
    events: Vec<Happened>,
    /// The controller has it, and has written what follows.
    pub(crate) written: bool,
    /// The lock of the job of this name.
    lock: Option<(String, JobLock)>,
    waiting: bool,
    told_of_overruled: bool,
    /// The job whose record says that it goes on, though this restart of it has failed.
    open: Option<String>,
    /// The last try placed ranks where they lived, and not where the checkpoint has them.
    moved: bool,
    /// The daemon of the life before, which may keep ranks that stand still.
    embedded: Option<Embedded>,
}

impl Notes {
    fn passed_over(&mut self, candidates: &mut Candidates) {
        let event = |(checkpoint, error)| Happened::PassedOver { checkpoint, error: cut(error) };
        self.events.extend(candidates.take_passed().into_iter().map(event));
    }

    /// Of a job whose lock is held, and whose own daemon may live.
    pub(crate) fn of(job: &str, lock: JobLock, embedded: Option<Embedded>) -> Self {
        Self { lock: Some((job.to_owned(), lock)), embedded, ..Self::default() }
    }

    /// Says once that nodes are waited for.
    pub(crate) fn tell_of_waiting(&mut self, error: &RunError, until: Instant) {
        if !std::mem::replace(&mut self.waiting, true) {
            let left = until.saturating_duration_since(Instant::now()).as_secs_f32().ceil();
            mend_report::tell!("mend: {}; the job waits for nodes, for {left} s", with_causes(error));
        }
    }

    /// Says once what of this environment has no effect, if somebody restarts the job: one that goes on by itself has no other environment than before.
    fn tell_of_overruled(&mut self, spec: &RestartSpec, program: &Program) {
        if spec.run_began.is_none() && !std::mem::replace(&mut self.told_of_overruled, true) {
            overruled::tell(&program.env);
        }
    }

    /// Ends this process if the job's lock was held and is not any more: a successor has the job.
    pub(crate) fn leave_if_succeeded(&self) {
        if let Some((id, _)) = self.lock.as_ref().filter(|(_, lock)| !lock.is_ours()) {
            watch::leave(id);
        }
    }

    /// The lock and the daemon of this process, if it still has them: no other one may have the job before they go.
    pub(crate) fn into_rest(self) -> Option<(JobLock, Option<Embedded>)> {
        self.lock.map(|(_, lock)| (lock, self.embedded))
    }

    /// Which lock is held.
    pub(crate) fn lock(&self) -> Option<LockIdentity> {
        self.lock.as_ref().map(|(_, lock)| lock.identity())
    }

    /// Takes the lock of the job, if it is not held.
    fn take_lock(&mut self, directory: &JobDirectory, job: &str) -> Result<(), RunError> {
        if !self.has_lock(job) {
            self.lock = Some((job.to_owned(), directory.lock(job)?));
        }
        Ok(())
    }

    fn has_lock(&self, job: &str) -> bool {
        self.lock.as_ref().is_some_and(|(held, _)| held == job)
    }

    /// No controller came to be.
    pub(crate) fn write(&mut self, job: &str, error: &RunError) {
        let Ok(directory) = JobDirectory::open(job) else { return };
        // Another one may run the job.
        if self.take_lock(&directory, job).is_err() {
            return;
        }
        let mut journal = Journal::open(directory.path());
        self.events.drain(..).for_each(|event| journal.record(event));
        journal.decide(Happened::RestartFailed { cause: journaling::cause_of(error) });
    }
}

/// One life of the job, from its newest checkpoint that can be used.
pub(crate) async fn restart_newest(
    spec: &mut RestartSpec,
    key: Option<&Key>,
    healing: Healing,
    signals: &Signals,
    notes: &mut Notes,
) -> Result<Life, RunError> {
    let mut choice = CheckpointChoice::new(spec.candidates.count(), Kept::default());
    let (mut step, mut manifest) = (choice.next_candidate(), None);
    let (mut failure, mut begun) = (RunError::from(spec.candidates.none()), false);
    loop {
        step = match step {
            Step::Load(at) => {
                upkeep::wait_for_round().await;
                match spec.candidates.load(at, key) {
                    Ok(found) => choice.loaded(Ok(!is_plain(&manifest.insert(found).tiers))),
                    Err(error) => {
                        let key = matches!(error, ManifestError::Sealed { source: SealError::NoKey, .. });
                        (failure, begun) = (error.into(), false);
                        choice.loaded(Err(if key { LoadFailure::NoKey } else { LoadFailure::Unusable }))
                    }
                }
            }
            Step::Begin(at, checks) => {
                let Some(manifest) = manifest.clone() else { return Err(failure) };
                if checks == Checks::Before {
                    mend_report::tell!("mend: {}; nothing ran from it, all copies are checked and good ones taken", with_causes(&failure));
                }
                notes.written = false;
                let directory = spec.candidates.directory(at).to_owned();
                let life = restart_from(manifest, &directory, (key, checks), spec, (healing.clone(), signals.clone()), notes).await;
                let error = match life {
                    Ok(Life { end: LifeEnd { result: Err(error), .. }, lock, id, .. }) if error.blame() != Blame::Elsewhere => {
                        notes.open = Some(id.clone());
                        notes.lock = Some((id, lock));
                        error
                    }
                    Ok(life) => return Ok(life),
                    Err(error) => error,
                };
                let blame = match error.blame() {
                    Blame::Image | Blame::Checkpoint | Blame::Places if std::mem::take(&mut notes.moved) => {
                        spec.stood.clear();
                        mend_report::tell!(
                            "mend: {}; the ranks that have moved since the checkpoint go where they were then",
                            with_causes(&error)
                        );
                        Blame::Places
                    }
                    blame => blame,
                };
                (failure, begun) = (error, true);
                choice.failed(blame)
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

/// Hosts for a restart from this checkpoint.
fn wanted_hosts(manifest: &Manifest, last: Option<&JobRecord>, spec: &RestartSpec) -> WantedHosts {
    let last = last.filter(|record| record.id == manifest.job);
    let wanted = WantedHosts::of_restart(
        &RestartHosts {
            named: names(&spec.hosts),
            spares: names(&spec.spares),
            of_checkpoint: manifest.hosts.clone(),
            local: manifest.local,
            last: last.map(|record| LastRun {
                hosts: [&record.hosts[..], &record.absent].concat(),
                lost: [&record.lost[..], &record.absent].concat(),
            }),
        },
        Kept::default(),
    );
    if wanted.no_spares {
        mend_report::tell!("mend: --spares without --hosts: the job runs on this machine alone, as before");
    }
    wanted
}

/// What each rank needs of a processor.
fn needs(manifest: &Manifest) -> Result<Vec<CpuNeeds>, SettingError> {
    let unused = mend_settings::IGNORE_CPU_FEATURES.features()?;
    let needs = manifest.images.iter().map(|image| image.needs.unwrap_or_default());
    Ok(needs.map(|needs| CpuNeeds { features: needs.features.without(unused), ..needs }).collect())
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
    (key, checks): (Option<&Key>, Checks),
    spec: &RestartSpec,
    (healing, signals): (Healing, Signals),
    notes: &mut Notes,
) -> Result<Life, RunError> {
    let lineage = lineage(images, &manifest, key)?;
    let worlds = manifest.worlds();
    let gone: Vec<Rank> = (0..worlds.size()).filter(|&rank| manifest.image(rank).is_none()).collect();
    let chains = files(images, &manifest, &lineage);
    if !spec.any_owner {
        check_owner(images, &manifest, &chains)?;
    }
    let directory = JobDirectory::open(&manifest.job)?;
    // Refused before any node is bothered.
    if !notes.has_lock(&manifest.job) {
        let named = names(&spec.hosts).into_iter().chain(names(&spec.spares)).collect();
        let lock = directory.lock(&manifest.job)?;
        being_restarted::note(&directory, lock.identity());
        let lock = last_controller::replace(&directory, lock, named).await?;
        notes.lock = Some((manifest.job.clone(), lock));
    }
    let record = directory.record().ok();
    let wanted = wanted_hosts(&manifest, record.as_ref(), spec);
    let all = wanted.hosts.iter().map(|(name, _)| name.clone()).collect();
    let addresses = daemons_of(spec.batch.as_ref(), &signals).await?;
    let (reached, embedded) = connect_hosts(wanted, &addresses, notes.embedded.take(), &mut notes.events).await?;
    let absent = absent(all, &reached);
    let slots: Option<Vec<u32>> = spec.hosts.iter().any(|host| host.slots > 0).then(|| spec.hosts.iter().map(|host| host.slots).collect());
    if slots.is_some() {
        tell_beyond_slots(spec.quiet, manifest.images.len() as u32, &spec.hosts);
    }
    let before: Vec<String> = manifest.images.iter().map(|image| image.host.clone()).collect();
    let stood = |image: &ImageEntry| spec.stood.get(image.rank as usize).cloned().flatten();
    let stood: Vec<Option<String>> = manifest.images.iter().map(stood).collect();
    let gathered: Vec<String> = reached.iter().map(|node| node.name.clone()).collect();
    let place = |stood: &[Option<String>]| restart_places(&before, stood, &gathered, &names(&spec.spares), slots.as_deref());
    let places = place(&stood)?;
    notes.moved = places != place(&[])?;
    let places = with_gone(&gone, places);
    let before = (!manifest.tiers.is_empty()).then(|| manifest.tiers.clone());
    let tiers = configured(spec.tiers.clone().or(before))?;
    let mut program = manifest.program.clone();
    drop_credentials(&mut program, &tiers);
    let plan = plan(&spec.periodic, record.as_ref().and_then(|record| record.plan.as_ref()))?;
    let taken = manifest.input.map(|input| input.at).unwrap_or_default();
    let source = Source::after(&directory, manifest.input, spec.input, spec.quiet).await?;
    let shown = output::found(&directory, &manifest.printed, spec.repeat_output);
    let recorded = record.as_ref().map(|record| record.checkpoints.as_path());
    let checkpoints = branch::directory_of(images, &manifest.job, recorded, &directory.path().join("checkpoints"));
    let mut branch = record.as_ref().map(|record| record.branch.clone()).unwrap_or_default();
    let given_up = if spec.candidates.are_chosen() { branch.choose(manifest.number, images, &checkpoints) } else { None };
    if !spec.quiet {
        let newest = numbers(&checkpoints).last().copied().unwrap_or(manifest.number);
        let older = if newest > manifest.number { format!(" (the newest is {newest})") } else { String::new() };
        mend_report::tell!("mend: restarting {} from checkpoint {}{older}", manifest.job, manifest.number);
        if let Some((first, last)) = given_up {
            let which = if first == last { format!("checkpoint {first} is") } else { format!("checkpoints {first} to {last} are") };
            mend_report::tell!("mend: {which} given up by that: --checkpoint takes such a one, nothing else does");
        }
        notes.tell_of_overruled(spec, &program);
    }
    let is_whole = || chains.iter().flatten().all(|image| image.is_file());
    let search = match is_plain(&manifest.tiers) || branch.elsewhere() == Some(manifest.number) && is_whole() {
        true => None,
        false => Some(SearchSetup {
            specs: manifest.tiers.clone(),
            rate: tier_rate()?,
            lineage: with_gone(
                &gone,
                lineage.iter().map(|line| line.iter().map(|(number, image)| reference(*number, image)).collect()).collect(),
            ),
            shared: shared_lengths(&checkpoints, &manifest),
            check: checks == Checks::Before,
        }),
    };
    let restoring = Restoring {
        number: manifest.number,
        chains: with_gone(&gone, chains),
        images: with_gone(&gone, manifest.images.iter().map(|image| image.id).collect()),
        needs: with_gone(&gone, needs(&manifest)?),
        reads: reads(&lineage),
        checkpoint: images.to_owned(),
        files: manifest.files_to_put(),
        search,
    };
    let Some(holder) = notes.lock() else { return Err(RecordError::Running { id: manifest.job }.into()) };
    let beginning = JobStart {
        output: Output::new(directory.path(), holder, &manifest.printed, shown)?,
        holder,
        healing,
        signals,
        absent,
        id: manifest.job.clone(),
        identity: manifest.identity,
        program,
        places,
        moved: notes.moved,
        worlds,
        gone,
        input: (taken, source),
        checkpoints,
        branch,
        encryption_key: spec.encryption_key.clone(),
        key: key.cloned(),
        plan,
        quiet: spec.quiet,
        directory,
        tiers,
        rates: record.as_ref().map(|record| record.rates.clone()).unwrap_or_default(),
        restarts: record.map(|record| record.restarts).unwrap_or_default(),
        restoring: Some(restoring),
        from: Some(manifest.number),
        batch: spec.batch.clone(),
        notes: std::mem::take(&mut notes.events),
        stage: Vec::new(),
        by_user: spec.run_began.is_none(),
        begins: spec.begins,
        options: spec.healing,
        any_owner: spec.any_owner,
        run_began: spec.run_began.unwrap_or_else(process_began),
    };
    notes.written = true;
    // The lock stays in the notes until there is a life that has it: whoever gives up, or tries again, holds it.
    let begun = begin(beginning, reached, embedded).await.inspect_err(|_| notes.open = Some(manifest.job.clone()))?;
    let Some((_, lock)) = notes.lock.take() else { return Err(RecordError::Running { id: manifest.job }.into()) };
    Ok(begun(lock))
}

/// One entry for each rank of the job, where there is one for each that had not ended.
fn with_gone<T: Default>(gone: &[Rank], entries: Vec<T>) -> Vec<T> {
    let mut entries = entries.into_iter();
    let mut all = Vec::with_capacity(entries.len() + gone.len());
    for rank in gone {
        all.extend(entries.by_ref().take((*rank as usize).saturating_sub(all.len())));
        all.push(T::default());
    }
    all.extend(entries);
    all
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

#[cfg(test)]
mod tests {
    use super::with_gone;

    #[test]
    fn ranks_that_had_ended_have_empty_entries() {
        assert_eq!(with_gone(&[], vec![1, 2]), [1, 2]);
        assert_eq!(with_gone(&[2, 3, 6], vec![1, 2, 5, 6, 8]), [1, 2, 0, 0, 5, 6, 0, 8]);
        assert_eq!(with_gone(&[1], vec![1]), [1, 0]);
    }
}
