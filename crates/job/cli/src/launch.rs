//! `mend run` and `mend restart`.

use crate::arguments::{Input, Restart, Run};
use crate::data;
use crate::failure::Failure;
use crate::job_data;
use crate::programs::{self, Given};
use mend_controller::branch;
use mend_controller::candidates::Candidates;
use mend_controller::detached::{self, Started};
use mend_controller::hosts::{self, parse_list};
use mend_controller::input::Wanted;
use mend_controller::job_end::{self, JobEnd};
use mend_controller::manifest::numbers;
use mend_controller::record::{JobRecord, RecordError};
use mend_controller::{Begins, RestartSpec, RunSpec, known_jobs, record};
use mend_messages::tier::{TierError, TierSpec, parse_tiers};
use std::io::Write;
use std::path::{Path, PathBuf};

fn tiers(list: Option<&str>) -> Result<Option<Vec<TierSpec>>, Failure> {
    let refuse = |error: TierError| Failure::new(format!("--tiers: {error}"), error.hint(), 64);
    list.map(parse_tiers).transpose().map_err(refuse)
}

/// This process's variables, and the names of those that are not UTF-8: not worth refusing a job for.
fn environment() -> (Vec<(String, String)>, Vec<String>) {
    let (mut env, mut left_out) = (Vec::new(), Vec::new());
    for (name, value) in std::env::vars_os() {
        match (name.to_str(), value.to_str()) {
            (Some(name), Some(value)) => env.push((name.to_owned(), value.to_owned())),
            _ => left_out.push(name.to_string_lossy().into_owned()),
        }
    }
    (env, left_out)
}

/// `mend run`.
pub async fn run(arguments: Run) -> Result<i32, Failure> {
    mend_settings::check()?;
    let here = std::env::current_dir().map_err(|error| Failure::new(format!("the working directory is gone: {error}"), "", 1))?;
    let (env, left_out) = environment();
    if !left_out.is_empty() && !arguments.quiet {
        mend_report::tell!("mend: these variables are not UTF-8, and ranks do not get them: {}", left_out.join(", "));
    }
    let mut env = programs::with(&env, &arguments.genv)?;
    let stage = arguments.data.stage_script.as_deref().map(data::directives).transpose()?.unwrap_or_default();
    let spaces = arguments.data.put_into(&mut env)?;
    let hosts = hosts::given(arguments.hosts.as_deref(), arguments.hostfile.as_deref())?;
    let spares = arguments.spares.as_deref().map(parse_list).transpose()?.unwrap_or_default();
    if hosts.is_empty() && !spares.is_empty() {
        return Err(Failure::usage("--spares without --hosts", "name the hosts to run on with --hosts"));
    }
    let (ranks, own, wdir, program) = (arguments.ranks, arguments.env, arguments.wdir, arguments.program);
    let (program, ranks) = Given { ranks, env, own, wdir, program }.programs(&here)?;
    job_data::check(&program.env)?;
    let spec = RunSpec {
        ranks,
        hosts,
        spares,
        spare_nodes: arguments.spare_nodes,
        program,
        checkpoints: arguments.checkpoint_dir.map(|path| lasting(&path)),
        tiers: tiers(arguments.tiers.as_deref())?,
        stage,
        periodic: arguments.periodic.options(),
        healing: arguments.healing.options(),
        encryption_key: key_file(arguments.encryption_key),
        quiet: arguments.quiet,
    };
    if !spaces.is_empty() {
        data::ready(spaces)?;
    }
    Ok(mend_controller::run(spec).await?)
}

/// A path that is the same from other directories, and when those that it leads through (`2/../3`) are gone.
fn lasting(path: &Path) -> PathBuf {
    let leads_up = path.components().any(|part| part == std::path::Component::ParentDir);
    let direct = || {
        // The end of it may be yet to be made.
        let (mut there, mut rest) = (path, Vec::new());
        loop {
            if let Ok(found) = if there.as_os_str().is_empty() { std::env::current_dir() } else { there.canonicalize() } {
                return Some(rest.iter().rev().fold(found, |path, name| path.join(name)));
            }
            rest.push(there.file_name()?);
            there = there.parent()?;
        }
    };
    leads_up.then(direct).flatten().or_else(|| std::path::absolute(path).ok()).unwrap_or_else(|| path.to_owned())
}

/// The flag's file, else the setting's; as a path that every node understands.
fn key_file(flag: Option<PathBuf>) -> Option<PathBuf> {
    let set = || Some(mend_settings::ENCRYPTION_KEY.text()).filter(|text| !text.is_empty()).map(PathBuf::from);
    flag.or_else(set).map(|path| lasting(&path))
}

/// True of a path, and of a directory beside which no job is meant: one without a checkpoint often has the name of the program, and so has the job.
fn names_a_directory(path: &Path) -> bool {
    let is_checkpoint = |path: &Path| path.join("manifest.json").exists();
    let holds = || is_checkpoint(path) || numbers(path).iter().any(|number| is_checkpoint(&path.join(number.to_string())));
    let is_a_job = || !matches!(known_jobs::find(path.to_str(), false), Err(RecordError::NoSuchJob { .. } | RecordError::EmptyName));
    path.components().count() > 1 || path.is_dir() && (path.to_str().is_none_or(|name| name.ends_with('/')) || holds() || !is_a_job())
}

/// The checkpoints that `mend restart` may use: the one that is named, else all, newest first.
fn choose(job: Option<&str>, number: Option<u64>) -> Result<Candidates, Failure> {
    if let Some(path) = job.map(Path::new).filter(|path| names_a_directory(path)) {
        let directory = lasting(path);
        // A job's checkpoint directory, or one checkpoint.
        if directory.join("manifest.json").exists() || numbers(&directory).is_empty() {
            if number.is_some_and(|number| directory.file_name() != Some(number.to_string().as_ref())) {
                return Err(Failure::usage(
                    format!("{} is the directory of one checkpoint, and --checkpoint names another one", directory.display()),
                    "leave out --checkpoint, or name the job or the directory above it",
                ));
            }
            return Ok(Candidates::only(&directory));
        }
        // A job's own: what it has given up is passed over.
        let of_job = known_jobs::list()?.into_iter().find(|(_, record)| branch::is_same_place(&record.checkpoints, &directory));
        return Ok(match (of_job, number) {
            (Some((_, record)), None) => Candidates::of(&record),
            _ => Candidates::numbered(&directory, None, number),
        });
    }
    let (_, record) = known_jobs::find(job, false)?;
    if numbers(&record.checkpoints).is_empty() && Candidates::of(&record).count() == 0 {
        let with = |(_, other): (_, JobRecord)| (!numbers(&other.checkpoints).is_empty()).then_some(other.id);
        let others: Vec<String> = known_jobs::list()?.into_iter().filter_map(with).collect();
        let hint = match others[..] {
            [] => "take one with `mend checkpoint` while a job runs, or have them taken with `mend run --interval auto`".to_owned(),
            _ => format!("these have: {}; name one, `mend restart JOB`", record::some(&others)),
        };
        let which = if job.is_none() { ", the last one," } else { "" };
        return Err(Failure::new(format!("job {}{which} has no checkpoint", record.id), hint, 65));
    }
    Ok(match number {
        Some(number) => Candidates::numbered(&record.checkpoints, Some(&record.id), Some(number)),
        None => Candidates::of(&record),
    })
}

/// `mend restart`.
pub async fn restart(arguments: Restart) -> Result<i32, Failure> {
    mend_settings::check()?;
    let candidates = choose(arguments.job.as_deref(), arguments.checkpoint)?;
    let hosts = hosts::given(arguments.hosts.as_deref(), arguments.hostfile.as_deref())?;
    let spares = arguments.spares.as_deref().map(parse_list).transpose()?.unwrap_or_default();
    let spec = RestartSpec {
        candidates,
        hosts,
        spares,
        tiers: tiers(arguments.tiers.as_deref())?,
        repeat_output: arguments.repeat_output,
        input: match arguments.input {
            Input::Auto => Wanted::Auto,
            Input::Same => Wanted::Same,
            Input::New => Wanted::New,
        },
        any_owner: arguments.any_owner,
        periodic: arguments.periodic.options(),
        healing: arguments.healing.options(),
        encryption_key: key_file(arguments.encryption_key),
        quiet: arguments.quiet,
        batch: None,
        run_began: None,
        begins: Begins::ByHand,
        stood: Vec::new(),
    };
    Ok(mend_controller::restart(spec).await?)
}

/// `mend run --detach` and `mend restart --detach`: has `controller` run as a process of its own, until it returns its exit code.
pub fn detach(quiet: bool, controller: impl FnOnce() -> i32) -> Result<i32, Failure> {
    if detached::leaves_input() && !quiet {
        mend_report::tell!("mend: standard input is a pipe, which a detached job does not read; `< FILE` gives it a file");
    }
    let started = detached::start(controller).map_err(|error| Failure::new(format!("the job cannot be detached: {error}"), "", 1))?;
    match started {
        Started::Accepted(id) => Ok(accepted(quiet, &id)),
        Started::Ended(code) => Ok(code),
        Started::Lost(id, code) => {
            mend_report::tell!("mend: the controller of job {id} was lost before all ranks ran: another one is waited for");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| Failure::new(format!("cannot wait for job {id}: {error}"), "", 1))?;
            match runtime.block_on(job_end::wait_for_ranks(&id))? {
                None | Some(JobEnd::Ended { code: 0, .. }) => Ok(accepted(quiet, &id)),
                Some(JobEnd::Ended { code, how }) => {
                    mend_report::tell!("mend: job {id} has ended: {how}");
                    Ok(code)
                }
                Some(JobEnd::ControllerKilled) => Ok(code),
            }
        }
    }
}

/// All ranks of the job run, or have.
fn accepted(quiet: bool, id: &str) -> i32 {
    if !quiet {
        mend_report::tell!("mend: job {id} is detached: `mend attach {id}` follows its output, `mend wait {id}` waits for its end");
    }
    // Nobody may read it: the job runs all the same.
    let _ = writeln!(std::io::stdout(), "{id}");
    0
}
