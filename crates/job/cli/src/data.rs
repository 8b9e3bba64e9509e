//! `mend data`: what is asked for becomes a request, and this process `mend-data`, which carries it out.

use crate::failure::Failure;
use crate::replicate::{Replicate, Scripts};
use crate::space;
use clap::{Args, Subcommand};
use mend_data::directives;
use mend_data::request::{PathBytes, Request, SpaceRequest, StageOptions, Wanted};
use mend_data::uri::Address;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// The program that carries it out.
const PROGRAM: &str = "mend-data";

/// `mend data`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Fetch files from where they permanently live, and remember that with them.
    Stage(Stage),
    /// Find what of files is lost or damaged, by reading all of them.
    Check(Check),
    /// Fetch what is lost or damaged again, and put it in.
    Repair(Repair),
    /// Show where a file came from, add a source or remove one.
    Sources(Sources),
    /// Rename a file together with what Mend keeps beside it.
    Mv(Move),
    /// Make a data space: directories of nodes over which files are striped.
    Create(space::Create),
    /// Remove a data space with all that is in it.
    Destroy(space::Destroy),
    /// List data spaces, or what is in one.
    Ls(space::List),
    /// Show how much room a data space has, by targets.
    Df(space::Df),
    /// Remove files of a data space.
    Rm(space::Remove),
    /// Show on which targets a file of a data space is.
    Getstripe(space::GetStripe),
    /// Say how new files of a directory of a data space are striped.
    Setstripe(space::SetStripe),
    /// Make second copies of files of a data space, or remove them.
    Replicate(Replicate),
    /// Copy a file out of a data space.
    Get(space::Get),
    /// Send files that ranks wrote into a data space to where they are kept.
    Offload(space::Offload),
    /// Show which ranks of a job read the same parts of a data space, and which moves that would be worth.
    Patterns(space::Patterns),
    /// Mount a data space on this node.
    Mount(space::Mount),
    /// Take a mount down.
    Unmount(space::Unmount),
}

/// `mend data stage`.
#[derive(Debug, Args)]
#[command(override_usage = "mend data stage [OPTIONS] <URI>… <PATH>\n       mend data stage [OPTIONS] --script <FILE>")]
#[command(after_help = "\
Examples:
  mend data stage https://archive/in.dat /scratch/in.dat
  mend data stage s3://bucket/in.dat sftp://me@archive/in.dat /scratch/    two sources that hold the same
  mend data stage webdav://archive/run7/ /scratch/run7/                    all files below a directory
  mend data stage s3://bucket/in.dat in.dat --credentials file:$HOME/.archive
  mend data stage file:///archive/run7/ input:run7                         into a data space; see mend data create --help
  mend data stage --script job.sh                                          what its #MEND, #BB and #DW lines say

Addresses: file:///PATH, http(s)://, s3://BUCKET/KEY, sftp://, webdav(s)://, ftp(s)://, and NAME:// of a program mend-source-NAME. A \
file appears under its name when it is whole and durable. A command that was interrupted is repeated: what it had fetched and can be \
verified is not fetched again.

Credentials are named, never kept: env:PREFIX (variables PREFIX_USER, PREFIX_PASSWORD, PREFIX_TOKEN, PREFIX_ACCESS_KEY_ID, …), file:PATH \
(lines NAME = VALUE, mode 0600), profile:NAME (the file $MEND_HOME/credentials/NAME).

The exit code is 0 if all is there, 65 if a source changed meanwhile, 69 if no source delivers, 64 for a script or an address that makes \
no sense, else 1.")]
pub struct Stage {
    /// Addresses that hold the same file or directory, then the path where it is to be, or NAME:PATH in a data space
    #[arg(required_unless_present = "script", conflicts_with = "script", num_args = 2.., value_name = "URI… PATH")]
    pub places: Vec<PathBuf>,
    /// Do what the directives of a job script say: #MEND stage-in URI… PATH, #BB or #DW stage_in source=… destination=… type=…
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// Where the credentials are: env:PREFIX, file:PATH or profile:NAME
    #[arg(long, value_name = "REFERENCE", value_parser = space::reference)]
    pub credentials: Option<String>,
    /// Server of s3 addresses, if it is not Amazon's; default: AWS_ENDPOINT_URL
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Replace what is there
    #[arg(long)]
    pub force: bool,
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend data check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data check /scratch/in.dat
  mend data check /scratch/run7 --json             all files below it
  mend data check input:run7                       in a data space: each target reads its own
  mend data check --script job.sh                  what the script stages in

Files are read from their medium, not from memory, and compared with the checksums of their blocks of 1 MiB. A file without checksums \
is read, or compared with its source on request.

The exit code is 0 if nothing is wrong, 65 if something is damaged, or gone and what is known of it stands beside it (files over 128 MiB, or without attributes), 69 if a source that was to be compared with does not \
answer, else 1. A file that was given by name and has no known source is an error.")]
pub struct Check {
    /// Files, and directories with all below them
    #[arg(required_unless_present = "script", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Check what a job script stages in
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// Compare files that have a source and no checksums with their source
    #[arg(long)]
    pub against_source: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend data repair`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data repair /scratch/in.dat
  mend data repair /scratch/run7                   all files below it
  mend data repair input:                          a data space: also what lost targets had, onto others

Files are checked, and blocks that are damaged are fetched from the file's sources, verified, and written in place: a job that has \
the file open keeps it. A source that has changed since is named and not used; then the next one is asked.

The exit code is 0 if all is whole, 65 if something stays damaged because its source has changed, 69 if no source delivers, else 1.")]
pub struct Repair {
    /// Files, and directories with all below them
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Compare files that have a source and no checksums with their source first
    #[arg(long)]
    pub against_source: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend data sources`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data sources /scratch/in.dat
  mend data sources /scratch/in.dat --add https://mirror/in.dat
  mend data sources /scratch/in.dat --remove https://archive/in.dat

A file that was not staged by Mend gets its first source so. `mend data check --against-source` then learns its checksums.")]
pub struct Sources {
    /// The file
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// A source to add, which must hold the same. Its length, and up to 8 of its blocks whose checksums are known, are compared
    #[arg(long, value_name = "URI")]
    pub add: Vec<String>,
    /// A source to remove
    #[arg(long, value_name = "URI")]
    pub remove: Vec<String>,
    /// Where the credentials of added sources are: env:PREFIX, file:PATH or profile:NAME
    #[arg(long, value_name = "REFERENCE", value_parser = space::reference)]
    pub credentials: Option<String>,
    /// Server of added s3 addresses, if it is not Amazon's; default: AWS_ENDPOINT_URL
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend data mv`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data mv in.dat input/in.dat

Within a file system. `mv` does as well for files up to 128 MiB where the file system has extended attributes.")]
pub struct Move {
    /// A file
    #[arg(value_name = "FROM")]
    pub from: PathBuf,
    /// Its new name, or a directory
    #[arg(value_name = "TO")]
    pub to: PathBuf,
}

fn bytes(path: &Path) -> PathBytes {
    path.as_os_str().as_bytes().to_vec()
}

/// Becomes `mend-data`.
///
/// # Errors
/// If that is not there, or what is asked for makes no sense.
pub fn run(command: DataCommand) -> Result<i32, Failure> {
    let request = match command {
        DataCommand::Stage(stage) => self::stage(stage)?,
        DataCommand::Check(Check { paths, script, against_source, json }) => {
            let mut all: Vec<PathBytes> = paths.iter().map(|path| bytes(path)).collect();
            all.extend(script.map(|script| directives(&script)).transpose()?.into_iter().flatten().map(|wanted| wanted.path));
            Request::Check { paths: all, against_source, json }
        }
        DataCommand::Repair(Repair { paths, against_source, json }) => {
            Request::Repair { paths: paths.iter().map(|path| bytes(path)).collect(), against_source, json }
        }
        DataCommand::Sources(Sources { path, add, remove, credentials, endpoint, json }) => {
            Request::Sources { path: bytes(&path), add, remove, credentials, endpoint, json }
        }
        DataCommand::Mv(Move { from, to }) => Request::Move { from: bytes(&from), to: bytes(&to) },
        DataCommand::Create(arguments) => Request::Space(arguments.request()?),
        DataCommand::Destroy(arguments) => Request::Space(arguments.into()),
        DataCommand::Ls(arguments) => Request::Space(arguments.into()),
        DataCommand::Df(arguments) => Request::Space(arguments.into()),
        DataCommand::Rm(arguments) => Request::Space(arguments.into()),
        DataCommand::Getstripe(arguments) => Request::Space(arguments.into()),
        DataCommand::Setstripe(arguments) => Request::Space(arguments.into()),
        DataCommand::Replicate(arguments) => match arguments.every {
            Some(seconds) => return follow_queue(&arguments, Duration::from_secs(seconds)),
            None => Request::Space(arguments.request(&mut Scripts::default())?),
        },
        DataCommand::Get(arguments) => Request::Space(arguments.into()),
        DataCommand::Offload(arguments) => Request::Space(arguments.request()?),
        DataCommand::Mount(arguments) => Request::Space(arguments.into()),
        DataCommand::Patterns(arguments) => Request::Space(arguments.into()),
        DataCommand::Unmount(arguments) => Request::Space(arguments.into()),
    };
    let (mut program, path) = carried_out(&request)?;
    Err(not_started(&path, &program.exec()))
}

/// What ends a command whose words make no sense: no second try changes that.
const MISUSED: i32 = 64;

/// Has second copies follow the queue until it is interrupted. What fails is told, and tried again the next time, unless it never can succeed.
fn follow_queue(arguments: &Replicate, pause: Duration) -> Result<i32, Failure> {
    arguments.check()?;
    let mut scripts = Scripts::default();
    loop {
        match arguments.request(&mut scripts) {
            Ok(request) => {
                let (mut program, path) = carried_out(&Request::Space(request))?;
                let done = program.status().map_err(|error| not_started(&path, &error))?;
                if done.code() == Some(MISUSED) {
                    return Ok(MISUSED);
                }
            }
            Err(failure) => drop(failure.report()),
        }
        std::thread::sleep(pause);
    }
}

/// That the data of a job can be had, or it is told why not before its ranks start.
///
/// # Errors
/// If it cannot; `mend-data` has said why.
pub fn ready(names: Vec<String>) -> Result<(), Failure> {
    let (mut program, path) = carried_out(&Request::Space(SpaceRequest::Ready { names }))?;
    let ended = program.status().map_err(|error| not_started(&path, &error))?;
    match ended.code() {
        Some(0) => Ok(()),
        code => Err(Failure::new("the job's data cannot be had, so its ranks were not started", "", code.unwrap_or(1))),
    }
}

fn not_started(program: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{} cannot be started: {error}", program.display()), "", 1)
}

/// The program that carries a request out, with that as its input.
fn carried_out(request: &Request) -> Result<(std::process::Command, PathBuf), Failure> {
    let program = mend_settings::find_part(PROGRAM).ok_or_else(|| {
        Failure::new(format!("there is no {PROGRAM} beside mend"), "`make install` installs it; MEND_LIBDIR names another directory", 1)
    })?;
    let failed = |error: std::io::Error| not_started(&program, &error);
    let request = postcard::to_stdvec(request).map_err(|error| Failure::new(error.to_string(), "", 1))?;
    // A list of paths may be longer than arguments can be.
    let mut input = File::from(memfd_create("mend-data", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?);
    input.write_all(&request).and_then(|()| input.rewind()).map_err(failed)?;
    let mut command = std::process::Command::new(&program);
    command.stdin(Stdio::from(input));
    Ok((command, program))
}

fn stage(stage: Stage) -> Result<Request, Failure> {
    let Stage { places, script, credentials, endpoint, force, quiet, json } = stage;
    let wanted = match (script, places.split_last()) {
        (Some(script), _) => directives(&script)?,
        (None, Some((path, uris))) => {
            let text = |uri: &PathBuf| uri.to_str().map(str::to_owned).ok_or_else(|| Failure::usage("an address is no text", ""));
            let uris = uris.iter().map(text).collect::<Result<Vec<_>, _>>()?;
            for uri in &uris {
                Address::parse(uri)
                    .map_err(|error| Failure::usage(error.to_string(), "for example https://HOST/PATH, file:///PATH; see --help"))?;
            }
            vec![Wanted { uris, path: bytes(path), line: None }]
        }
        (None, None) => Vec::new(),
    };
    Ok(Request::Stage { wanted, options: StageOptions { credentials, endpoint, force, quiet, json } })
}

/// What a job script stages in. Nothing is done if a line of it cannot be read.
pub fn directives(path: &Path) -> Result<Vec<Wanted>, Failure> {
    let text = std::fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display()), "name a job script"))?;
    let script = directives::read(&String::from_utf8_lossy(&text), &|name| std::env::var(name).ok());
    for (line, what) in &script.passed_over {
        mend_report::tell!("mend: {} line {line}: passed over: {what}", path.display());
    }
    if !script.problems.is_empty() {
        let lines: Vec<String> = script.problems.iter().map(|(line, why)| format!("line {line}: {why}")).collect();
        return Err(Failure::usage(
            format!("{}: {}", path.display(), lines.join("; ")),
            "nothing was done; `mend data stage --help` shows the directives",
        ));
    }
    let wanted = script.stage_in.into_iter();
    Ok(wanted.map(|one| Wanted { uris: one.uris, path: one.path.into_bytes(), line: Some(one.line) }).collect())
}
