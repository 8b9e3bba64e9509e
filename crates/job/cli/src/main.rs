//! `mend`: the command people use.
//!
//! `arguments` declares the command line, `mpiexec` the habits it takes over from mpiexec, `verbs` what the verbs on a
//! running job do, `checkpoints` the list of them, `journal` what happened to a job, `timeline` when it did, `launch` what `run` and `restart` do, `logs`, `attach` and `wait` what shows a detached job's output and waits for the end of jobs, `take_over` what goes on with a job whose controller is lost, `nodes` how nodes are, `bench` what measures moves, `portable` what asks programs for portable checkpoints, `pipe` what mounts the pipe, `data` what asks for input to be fetched, checked and repaired, `image` what looks into image files, `settings` the environment variables, `report` how results
//! are shown (text or JSON).

mod arguments;
mod attach;
mod bench;
mod checkpoints;
mod data;
mod drain;
mod explain;
mod failure;
mod image;
mod job_data;
mod journal;
mod launch;
mod logs;
mod migrate;
mod mpiexec;
mod nodes;
mod pipe;
mod portable;
mod programs;
mod removal;
mod replicate;
mod report;
mod settings;
mod space;
mod take_over;
mod timeline;
mod verbs;
mod version;
mod wait;

use arguments::{Arguments, Command};
use clap::Parser;
use failure::Failure;
use std::io::IsTerminal;

fn main() {
    let arguments = match mpiexec::rewrite(std::env::args_os().collect()) {
        Ok(arguments) => arguments,
        Err(failure) => std::process::exit(failure.report()),
    };
    let arguments = Arguments::parse_from(arguments);
    let code = match run(arguments.command) {
        Ok(code) => match report::written() {
            Err(failure) if code == 0 => failure.report(),
            _ => code,
        },
        Err(failure) => failure.report(),
    };
    // Not by returning: a thread may be blocked in a read of standard input for ever.
    std::process::exit(code);
}

fn run(command: Command) -> Result<i32, Failure> {
    // The lab must be entered before any thread is started.
    if let Command::Lab(command) = command {
        return Ok(mend_lab::run(command)?);
    }
    // Another program takes this one's place.
    if let Command::Data(command) = command {
        return data::run(command);
    }
    if let Command::Pipe(command) = command {
        return pipe::run(command);
    }
    // It is single-threaded, as a rank should be that is measured.
    if let Command::Bench(command) = command {
        return bench::run(command);
    }
    if let Command::TakeOver(_) = &command {
        return take_over::detach(|| carry_out(command).unwrap_or_else(|failure| failure.report()));
    }
    let detached = match &command {
        Command::Run(run) if run.detach => Some(run.quiet),
        Command::Restart(restart) if restart.detach => Some(restart.quiet),
        _ => None,
    };
    match detached {
        // As must the controller's process be made.
        Some(quiet) => launch::detach(quiet, || carry_out(command).unwrap_or_else(|failure| failure.report())),
        None => carry_out(command),
    }
}

fn carry_out(command: Command) -> Result<i32, Failure> {
    // `mend ps | grep -q …` ends like any filter. A job must outlive the reader of its output.
    if !matches!(command, Command::Run(_) | Command::Restart(_) | Command::TakeOver(_)) {
        mend_kernel::signal_queue::end_on_closed_pipe();
    }
    let filter = tracing_subscriber::EnvFilter::try_new(mend_settings::LOG.text())
        .map_err(|error| Failure::usage(format!("{}: {error}", mend_settings::LOG.name), "write for example MEND_LOG=debug"))?;
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        // It would say so with a macro that panics.
        .log_internal_errors(false)
        .init();
    // Ranks may share this machine. Without short slices we only answer later.
    let _ = mend_kernel::slice::shorten();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}"), "", 1))?;
    // As a task, on a thread where those run that wake it: to wake another thread takes longer than most of what it does.
    let task = runtime.spawn(async {
        match command {
            Command::Run(run) => launch::run(run).await,
            Command::Restart(restart) => launch::restart(restart).await,
            Command::Ps(ps) => verbs::ps(ps).await,
            Command::Checkpoint(verb) if verb.portable => portable::checkpoint(verb.job.as_deref(), verb.timeout, verb.json).await,
            Command::Checkpoint(verb) => verbs::checkpoint(verb).await,
            Command::Checkpoints(arguments) => checkpoints::run(arguments).await,
            Command::Migrate(arguments) => migrate::migrate(arguments).await,
            Command::Drain(arguments) => drain::drain(arguments).await,
            Command::Undrain(arguments) => drain::undrain(&arguments),
            Command::Health(arguments) => nodes::health(arguments).await,
            Command::Node(command) => nodes::node(command).await,
            Command::Explain(arguments) => verbs::explain(arguments).await,
            Command::Kill(verb) => verbs::kill(verb).await,
            Command::Rm(remove) => removal::run(&remove),
            Command::Log(log) => journal::log(log).await,
            Command::Logs(arguments) => logs::logs(arguments).await,
            Command::Attach(arguments) => attach::attach(arguments).await,
            Command::Wait(arguments) => wait::wait(arguments).await,
            Command::Timeline(arguments) => timeline::run(&arguments),
            Command::Image(command) => image::image(command),
            Command::Version(version) => version::version(&version),
            Command::TakeOver(arguments) => take_over::take_over(&arguments).await,
            Command::Settings(arguments) => settings::settings(&arguments),
            Command::Lab(_) | Command::Data(_) | Command::Pipe(_) | Command::Bench(_) => Ok(0),
        }
    });
    let result = runtime.block_on(task).unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
    runtime.shutdown_background();
    result
}
