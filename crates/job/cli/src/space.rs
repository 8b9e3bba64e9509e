//! `mend data` about data spaces: arguments, and what is asked of `mend-data`.

use crate::failure::Failure;
use clap::Args;
use mend_data::offload::check_destination;
use mend_data::request::{OffloadOptions, PathBytes, SpaceRequest};
use mend_data::space::{COPIES, Striping, bucket_obstacle, default_directory, is_in_bucket};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// `mend data create`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data create input --nodes a,b,c                      a directory of /tmp on each
  mend data create input                                    in a job of Slurm's: on its nodes
  mend data create input --nodes a,b,c --directory /local/me/input
  mend data create input --target a:/nvme0/in --target a:/nvme1/in --stripe 4M --count 2
  mend data create input --nodes a,b --bucket s3://lab/spaces     in a bucket, which the nodes a and b serve

mendd must run on the nodes. A target's directory is made, or must be empty and yours. What the space is stands in $MEND_HOME/spaces: share that \
directory with the nodes, or copy the file. A directory in memory (/dev/shm/…) is fast, and gone with the node.

In a bucket (--bucket) files outlive all nodes. Each of the nodes serves a part of them, and takes over from one that is lost. The store and its credentials are those of \
mendd's environment there: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL. Ranks only read what was staged there.")]
pub struct Create {
    /// What it is called
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Nodes that get a target, with commas; default: those of the batch job
    #[arg(long, value_name = "LIST")]
    pub nodes: Option<String>,
    /// Directory of the targets of nodes; default: one in MEND_SPACE_DIRECTORY (/tmp)
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// The targets of nodes are in memory (/dev/shm)
    #[arg(long, conflicts_with = "directory")]
    pub memory: bool,
    /// The targets of nodes are in a bucket of an S3-compatible store, below this prefix
    #[arg(long, value_name = "s3://BUCKET/PREFIX", conflicts_with_all = ["directory", "memory"], value_parser = bucket)]
    pub bucket: Option<String>,
    /// One more target: a directory, or s3://BUCKET/PREFIX
    #[arg(long, value_name = "HOST:DIR", value_parser = target)]
    pub target: Vec<(String, String)>,
    /// Bytes on one target before the next one's turn, with K, M or G: a multiple of 64K, at most 1G
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = bytes)]
    pub stripe: u64,
    /// Over how many targets a file is spread; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub count: u16,
    /// Targets on which each byte is that ranks write: 2, or 1, which is lost with its target
    #[arg(long, value_name = "N", default_value_t = COPIES as u16, conflicts_with = "bucket", value_parser = clap::value_parser!(u16).range(1..=COPIES as i64))]
    pub copies: u16,
}

/// `mend data destroy`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data destroy input

A target that does not answer keeps what it has, and the space stays, so that it can be removed later. With --force the space is \
forgotten, and what such targets have is yours to remove.")]
pub struct Destroy {
    /// Which one
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Forget the space even where something of it cannot be removed
    #[arg(long)]
    pub force: bool,
}

/// `mend data ls`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data ls                   data spaces that are known here
  mend data ls input:
  mend data ls input:run7 --json")]
pub struct List {
    /// A directory or file of a space, NAME:PATH; default: list the spaces
    #[arg(value_name = "NAME:PATH")]
    pub place: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend data df`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data df input
  mend data df input --json

The exit code is 69 if a target is lost.")]
pub struct Df {
    /// Which one
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend data rm`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data rm input:run7/in.dat
  mend data rm -r input:run7 output:old            directories with all below them")]
pub struct Remove {
    /// Files of spaces
    #[arg(required = true, value_name = "NAME:PATH")]
    pub places: Vec<String>,
    /// Directories with all below them, too
    #[arg(short, long)]
    pub recursive: bool,
}

/// `mend data getstripe`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data getstripe input:run7/in.dat            on which targets it is, and its second copies
  mend data getstripe input:run7                   how new files below it are spread")]
pub struct GetStripe {
    /// A file or directory of a space
    #[arg(value_name = "NAME:PATH")]
    pub place: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend data setstripe`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data setstripe input:run7 --stripe 4M
  mend data setstripe input:small --count 1        each file on one target

Files keep their stripes; new ones below the directory get these. The directory is made if it is not there. \
What is not named becomes 1M and all targets, whatever it was.")]
pub struct SetStripe {
    /// A directory of a space
    #[arg(value_name = "NAME:PATH")]
    pub place: String,
    /// Bytes on one target before the next one's turn, with K, M or G: a multiple of 64K, at most 1G
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = bytes)]
    pub stripe: u64,
    /// Over how many targets a file is spread; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub count: u16,
}

/// `mend data get`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data get output:run7/result.h5 .
  mend data get output:run7/result.h5 last.h5
  mend data get output:run7/log - | tail

A file that is there is replaced, as `cp` does, when all of it has come.")]
pub struct Get {
    /// A file of a space
    #[arg(value_name = "NAME:PATH")]
    pub place: String,
    /// Where it goes: a path, a directory, or - for standard output
    #[arg(value_name = "PATH")]
    pub to: PathBuf,
}

/// `mend data offload`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data offload output: file:///archive/run7
  mend data offload output:fields s3://bucket/run7 --credentials profile:archive
  mend data offload output: sftp://me@archive/run7 --dry-run

Sent are files that ranks wrote, under the names that they have in the space. A file that ranks have open for writing, or that has changed in the last seconds \
(--settle), is not sent. What arrived is read back and compared before it counts as sent, and has its name there only when it is whole (a server of ftp or s3 shows \
it before it is compared). What was sent is noted in $MEND_HOME/spaces: the next command sends what is new or has changed, and what is gone there. Nothing is \
removed there. A file that is there and came from elsewhere is not replaced.

Addresses: file:///PATH, s3://BUCKET/PATH, sftp://, webdav(s)://, ftp(s)://. Credentials are those of `mend data stage`.

While a job runs, `mend run --offload` does the same. The exit code is 0 if all has arrived, 69 if the place does not take it, 64 if it is none, else 1.")]
pub struct Offload {
    /// A space, or a directory or file in it
    #[arg(value_name = "NAME:[PATH]")]
    pub place: String,
    /// The directory that files are sent to
    #[arg(value_name = "URI")]
    pub uri: String,
    /// Seconds for which a file must not have changed. Default: MEND_OFFLOAD_SETTLE_S
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub settle: Option<u32>,
    /// Where the credentials are: env:PREFIX, file:PATH or profile:NAME. Default: MEND_OFFLOAD_CREDENTIALS
    #[arg(long, value_name = "REFERENCE", value_parser = reference)]
    pub credentials: Option<String>,
    /// Server of s3 addresses, if it is not Amazon's; default: AWS_ENDPOINT_URL
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Replace files that are there and did not come from this space
    #[arg(long)]
    pub force: bool,
    /// Only say what would be sent
    #[arg(long)]
    pub dry_run: bool,
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Offload {
    /// What is asked of `mend-data`.
    ///
    /// # Errors
    /// If files cannot be sent there.
    pub fn request(self) -> Result<SpaceRequest, Failure> {
        let Self { place, uri, settle, credentials, endpoint, force, dry_run, quiet, json } = self;
        check_destination(&uri)
            .map_err(|why| Failure::usage(why, "for example file:///archive/run7, s3://BUCKET/run7, sftp://HOST/PATH"))?;
        let set = || mend_settings::OFFLOAD_SETTLE.number().map_err(|error| Failure::usage(error.to_string(), "see `mend settings`"));
        let settle_ms = settle.map_or_else(set, |settle| Ok(settle.into()))?.saturating_mul(1000);
        let set = || Some(mend_settings::OFFLOAD_CREDENTIALS.text()).filter(|reference| !reference.is_empty());
        let credentials = credentials.or_else(set);
        let options = OffloadOptions { credentials, endpoint, settle_ms, force, dry_run, quiet, json, job: None };
        Ok(SpaceRequest::Offload { place, uri, options })
    }
}

/// `mend data mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data mount input /mnt/input

Ranks need no mount: `mend run --data NAME:DIR`. This one is for you, on this node, until `mend data unmount`. It takes /dev/fuse, and fusermount3 \
for who is not root.")]
pub struct Mount {
    /// Which space
    #[arg(value_name = "NAME")]
    pub name: String,
    /// An empty directory of this machine
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// `mend data patterns`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data patterns input
  mend data patterns input --job app-3f2a --svg heat.svg

Shown are the ranks that read or write files of the space through `mend run --data`: which parts each of them touches (darker: more often), which two ranks touch the same, what one passes on to the other, and \
which moves would have nodes fetch less. A rank shares a block with another one if both touch it in their last three windows. What all nodes read anyway, and what their caches have, is no reason to move.

With --paper ranks are compared by access counting diagrams, as the PARTE paper has it. There parts that neither reads count as agreement.

Targets remember the last million reads and writes, for as long as their processes live.")]
pub struct Patterns {
    /// Which space
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Of which job; default: the only one that has read there
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Blocks of 64 KiB that a rank reads in a window
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(8..=1_000_000))]
    pub window: u32,
    /// Compare by access counting diagrams
    #[arg(long)]
    pub paper: bool,
    /// Draw the map into a file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `mend data unmount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend data unmount /mnt/input")]
pub struct Unmount {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

fn path(path: &Path) -> PathBytes {
    path.as_os_str().as_bytes().to_vec()
}

/// `HOST:/DIR`.
fn target(text: &str) -> Result<(String, String), String> {
    let place = |directory: &str| directory.starts_with('/') || is_in_bucket(directory);
    let named = text.split_once(':').filter(|(host, directory)| !host.is_empty() && place(directory));
    let (host, directory) = named.ok_or("expected HOST:/DIR or HOST:s3://BUCKET/PREFIX")?;
    if is_in_bucket(directory) {
        bucket(directory)?;
    }
    Ok((host.to_owned(), directory.to_owned()))
}

/// Reads `s3://BUCKET/PREFIX` as the option has it; a "/" at the end is dropped.
fn bucket(text: &str) -> Result<String, String> {
    bucket_obstacle(text)
        .map_or_else(|| Ok(text.trim_end_matches('/').to_owned()), |why| Err(format!("expected s3://BUCKET/PREFIX: {why}")))
}

/// A number of bytes, with K, M or G.
pub fn bytes(text: &str) -> Result<u64, &'static str> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.filter(|number| *number > 0).ok_or("expected a number of bytes, for example 65536, 64K or 1M")
}

/// What is kept with a file must be no secret.
pub fn reference(text: &str) -> Result<String, &'static str> {
    let known = text.split_once(':').is_some_and(|(kind, place)| ["env", "file", "profile"].contains(&kind) && !place.is_empty());
    // A file's is kept as an absolute one: it is looked for from other directories later.
    let absolute = |path: &str| std::path::absolute(path).map_or_else(|_| text.to_owned(), |path| format!("file:{}", path.display()));
    if known {
        Ok(text.strip_prefix("file:").map_or_else(|| text.to_owned(), absolute))
    } else {
        Err("expected env:PREFIX, file:PATH or profile:NAME, and not the credentials themselves")
    }
}

/// How the nodes of the batch job are reached that this is in; none if it is in none.
fn nodes_of_batch() -> Result<Vec<String>, Failure> {
    let failed = |error: mend_batch::BatchError| Failure::new(mend_report::with_causes(&error), "name nodes with --nodes", 1);
    let nodes = mend_batch::detect().map_err(failed)?.map(|system| system.nodes()).transpose().map_err(failed)?;
    Ok(nodes.into_iter().flatten().map(|node| node.address).collect())
}

impl Create {
    /// What is asked for.
    ///
    /// # Errors
    /// If the directory is no text.
    pub fn request(self) -> Result<SpaceRequest, Failure> {
        let Self { name, nodes, directory, memory, bucket, target, stripe, count, copies } = self;
        let of_batch = if nodes.is_none() && target.is_empty() { nodes_of_batch()? } else { Vec::new() };
        if nodes.is_none() && of_batch.is_empty() && (directory.is_some() || memory || bucket.is_some()) {
            return Err(Failure::usage("--directory, --memory and --bucket are about nodes", "name nodes with --nodes"));
        }
        let base = if memory { "/dev/shm".to_owned() } else { mend_settings::SPACE_DIRECTORY.text() };
        let named = directory.is_some();
        let directory = directory.unwrap_or_else(|| default_directory(&base, &name, rustix::process::geteuid().as_raw()).into());
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        let directory = directory.into_os_string().into_string().map_err(|_| Failure::usage("the directory is no text", ""))?;
        // Nodes may share the one that is not named.
        let of_node = |at: usize| match &bucket {
            Some(place) => format!("{place}/{name}-{at}"),
            None if named => directory.clone(),
            None => format!("{directory}-{at}"),
        };
        let hosts = nodes.iter().flat_map(|nodes| nodes.split(',')).map(str::trim).filter(|host| !host.is_empty());
        let hosts: Vec<String> = hosts.map(str::to_owned).chain(of_batch).collect();
        if let Some(twice) = hosts.iter().enumerate().find_map(|(at, host)| hosts[..at].contains(host).then_some(host)) {
            return Err(Failure::usage(format!("node {twice} is named twice"), "--target gives a node several targets"));
        }
        let mut targets: Vec<(String, String)> = hosts.into_iter().enumerate().map(|(at, host)| (host, of_node(at))).collect();
        targets.extend(target);
        if targets.is_empty() {
            return Err(Failure::usage(
                "a data space has at least one target",
                "name nodes with --nodes, or --target HOST:DIR; in a job of Slurm's its nodes are taken",
            ));
        }
        Ok(SpaceRequest::Create { name, targets, striping: Striping { size: stripe, count }, copies: usize::from(copies) })
    }
}

impl From<List> for SpaceRequest {
    fn from(List { place, json }: List) -> Self {
        Self::List { place, json }
    }
}

impl From<Df> for SpaceRequest {
    fn from(Df { name, json }: Df) -> Self {
        Self::Df { name, json }
    }
}

impl From<Remove> for SpaceRequest {
    fn from(Remove { places, recursive }: Remove) -> Self {
        Self::Remove { places, recursive }
    }
}

impl From<Destroy> for SpaceRequest {
    fn from(Destroy { name, force }: Destroy) -> Self {
        Self::Destroy { name, force }
    }
}

impl From<GetStripe> for SpaceRequest {
    fn from(GetStripe { place, json }: GetStripe) -> Self {
        Self::GetStripe { place, json }
    }
}

impl From<SetStripe> for SpaceRequest {
    fn from(SetStripe { place, stripe, count }: SetStripe) -> Self {
        Self::SetStripe { place, striping: Striping { size: stripe, count } }
    }
}

impl From<Get> for SpaceRequest {
    fn from(Get { place, to }: Get) -> Self {
        Self::Get { place, to: path(&to) }
    }
}

impl From<Mount> for SpaceRequest {
    fn from(Mount { name, directory }: Mount) -> Self {
        Self::Mount { name, directory: path(&directory) }
    }
}

impl From<Patterns> for SpaceRequest {
    fn from(Patterns { name, job, window, paper, svg, json }: Patterns) -> Self {
        let svg = svg.map(|file| path(&std::path::absolute(&file).unwrap_or(file)));
        Self::Patterns { name, job, window, paper, svg, json }
    }
}

impl From<Unmount> for SpaceRequest {
    fn from(Unmount { directory }: Unmount) -> Self {
        Self::Unmount { directory: path(&directory) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_targets_are_read() {
        assert_eq!([bytes("65536"), bytes("64K"), bytes("2M"), bytes("1G")], [Ok(65536), Ok(65536), Ok(2 << 20), Ok(1 << 30)]);
        for bad in ["", "0", "M", "1T", "-1", "99999999999G"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(target("a:/b/c"), Ok(("a".to_owned(), "/b/c".to_owned())));
        assert!(target("a").is_err() && target("a:b").is_err() && target(":/b").is_err());
    }
}
