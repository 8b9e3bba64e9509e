//! Building a rank from an image: what is checked before, what the restorer is given, what it says.
//!
//! The image's bytes never pass through the daemon, unless it is encrypted ([`mend_transfer::process_stream`]): it looks at the header (peeking at a socket, so that the restorer
//! still finds it there) and hands the descriptor on.
//! Faults assumed: the image is foreign, torn or of another machine; its source stalls or dies; the restorer fails.

use crate::bounded;
use crate::clock;
use crate::privileges::Isolation;
use crate::supervisor::namespace::FIRST_DRAWN_PID;
use crate::supervisor::order::Launch;
use mend_image::cpu::{Cpu, CpuMismatch};
use mend_image::launch::{Arguments, Failure, GO, ImageFds, Mode, Role, STATUS_HEAD, Status};
use mend_image::link::{self, LinkError};
use mend_image::{Header, ImageError, read_header};
use mend_messages::agent::{ImageId, LOCK_LIMIT_S, RollbackOrder};
use mend_messages::daemon::{JobIntroduction, RestoreBlame, Way};
use mend_messages::files::PutBack;
use mend_messages::job::Rank;
use mend_report::process_hint;
use mend_sealed::{Key, SealError};
use mend_transfer::TransferError;
use mend_transfer::peer::{BegunImage, ExpectedTransfer, receive_header};
use mend_transfer::process_stream::{self, Opened, StreamFault};
use mend_transfer::progress::Progress;
use mend_transfer::stored;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;

use crate::channels::RankEnds;

/// Descriptor numbers in the restorer: 0 to 2 are `/dev/null`.
const NULL_STREAMS: usize = 3;
const CONTROL_FD: i32 = 3;
const AGENT_FD: i32 = 4;
/// The image, what it builds on, then the roles.
const FIRST_IMAGE_FD: i32 = 5;

/// How long a restored agent may take to reopen files and the like, and to get locks on files after a restart.
const REBUILD_LIMIT: Duration = Duration::from_secs(60);
const LOCK_LIMIT: Duration = Duration::from_secs(LOCK_LIMIT_S);

/// Why no process was built.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// This node cannot give back process ids.
    #[error("this node cannot restore ranks: {reason}")]
    NotHere {
        /// What the kernel said at start.
        reason: String,
    },
    /// No restorer.
    #[error("{name} is not installed beside mendd")]
    NoRestorer {
        /// The name that it would have.
        name: String,
    },
    /// The image file cannot be read.
    #[error("cannot read the image {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// No image was named.
    #[error("no image was named to restore the rank from")]
    NoImage,
    /// The transfer did not come or broke.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The image is unusable.
    #[error("the image {from} cannot be used")]
    Image {
        /// File or source.
        from: String,
        /// What is wrong with it.
        source: ImageError,
    },
    /// The image is not what the next newer one builds on.
    #[error("the image {from} does not fit")]
    Link {
        /// The file, or the place, that it comes from.
        from: String,
        /// How it does not fit.
        source: LinkError,
    },
    /// The encryption stands in the way.
    #[error("the image {from} cannot be used")]
    Sealed {
        /// The file, or the place, that it comes from.
        from: String,
        /// What is wrong with the key or the encryption.
        source: SealError,
    },
    /// An encrypted image stopped opening on the way.
    #[error("the image {from} cannot be used: {why}")]
    Unsealable {
        /// The file, or the place, that it comes from.
        from: String,
        /// What ended it.
        why: String,
    },
    /// The image is of something else.
    #[error("the image {from} is of {found}, not of {wanted}")]
    Foreign {
        /// File or source.
        from: String,
        /// What it holds.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// Another processor.
    #[error("the image was taken on {host}")]
    Processor {
        /// Host it was saved on.
        host: String,
        /// What is missing here.
        source: CpuMismatch,
    },
    /// The executable is not on this node.
    #[error("the program {program} is not on this node")]
    NoProgram {
        /// Its path.
        program: String,
        /// What the look-up came to.
        source: io::Error,
    },
    /// The clocks cannot be turned on.
    #[error("this node's clocks are behind the saved ones, and it has no time namespaces to make up for it")]
    Clocks,
    /// The restorer reported a failure.
    #[error("{text}{}", errno_text(*errno))]
    Refused {
        /// What kind.
        failure: Failure,
        /// What exactly.
        text: String,
        /// Error number, or 0.
        errno: i32,
    },
    /// The restorer ended without a word, or said nonsense.
    #[error("mend-restorer ended without saying why")]
    Speechless,
    /// Its control socket could not be used.
    #[error("mend-restorer could not be reached")]
    Control(#[source] io::Error),
    /// The restored agent did not report.
    #[error("the restored process did not report within {} s", .0.as_secs())]
    AgentSilent(Duration),
    /// The restored agent cannot go on.
    #[error("{0}")]
    Agent(String),
    /// The restored agent found a file that is no longer as it was.
    #[error("{0}")]
    Files(String),
}

fn errno_text(errno: i32) -> String {
    if errno == 0 { String::new() } else { format!(": {}", io::Error::from_raw_os_error(errno)) }
}

impl RestoreError {
    /// What is to blame: of a bad image another one may do, and files may be others by now.
    pub fn blame(&self) -> RestoreBlame {
        match self {
            Self::Unreadable { .. } | Self::Image { .. } | Self::Foreign { .. } | Self::Link { .. } | Self::Unsealable { .. } => {
                RestoreBlame::Image
            }
            // Damage may look like another key.
            Self::Sealed { source, .. } if *source != SealError::NoKey => RestoreBlame::Image,
            Self::Refused { failure: Failure::Image | Failure::Stream, .. } => RestoreBlame::Image,
            Self::Refused { failure: Failure::File, .. } | Self::Files(_) => RestoreBlame::Files,
            _ => RestoreBlame::Other,
        }
    }

    /// What a user can do; may be empty.
    pub fn hint(&self) -> String {
        match self {
            Self::NotHere { .. } => "allow unprivileged user namespaces there (sysctl user.max_user_namespaces, \
                kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), or choose another node"
                .into(),
            Self::NoRestorer { name } => format!("install {name} in the directory of mendd, or set MEND_LIBDIR"),
            Self::Unreadable { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                    "checkpoints must be readable on every node that restarts ranks: use a shared directory".into()
                }
                _ => process_hint(source).into(),
            },
            Self::Transfer(error) => error.hint().into(),
            Self::Image { source, .. } => source.hint().into(),
            Self::Sealed { source, .. } => source.hint().into(),
            Self::Unsealable { .. } => Failure::Image.hint().into(),
            Self::Link { source, .. } => source.hint().into(),
            Self::Foreign { .. } => "name a checkpoint of this job; `mend checkpoints` lists them".into(),
            Self::Processor { source: CpuMismatch::Features(missing), .. } => format!(
                "restore on a node that has them; if the program does not use them, say so with MEND_IGNORE_CPU_FEATURES={}",
                missing.list()
            ),
            Self::Processor { source: CpuMismatch::Registers { .. }, .. } => "restore on a node with the same kind of processor".into(),
            Self::NoProgram { .. } => "make the program available on this node under the same path".into(),
            Self::Clocks => "choose a node with Linux 5.6 or newer, or one that has been up longer".into(),
            Self::Refused { failure: Failure::Kernel, errno, .. } => kernel_hint(*errno).into(),
            Self::Refused { failure, .. } => failure.hint().into(),
            Self::Agent(_) | Self::Files(_) => {
                "what the program used must be on this node as it was when the image was taken; the cause says what was not".into()
            }
            Self::NoImage | Self::Speechless | Self::Control(_) | Self::AgentSilent(_) => "look at mendd's log on that node".into(),
        }
    }
}

/// For what the kernel refused the restorer, by its errno.
fn kernel_hint(errno: i32) -> &'static str {
    match Errno::from_raw_os_error(errno) {
        Errno::NOMEM => "free memory on this node, or raise its limits on memory and mappings (ulimit -v, ulimit -l, vm.max_map_count)",
        Errno::AGAIN => "raise the limit on processes (ulimit -u), or of the control group (pids.max)",
        Errno::PERM | Errno::ACCESS => "user namespaces, or what a security module allows in them, may be restricted on this node",
        Errno::EXIST => "another process or thread has a saved id: try again, or choose another node",
        _ => "",
    }
}

/// Where the image comes from.
#[derive(Debug)]
pub enum Source {
    /// Files of checkpoints.
    Files {
        /// The image and those it builds on, newest first.
        chain: Vec<PathBuf>,
        /// Which of the program's files have been put back.
        put_back: Option<PutBack>,
    },
    /// A transfer that another daemon opens.
    Transfer(ExpectedTransfer, Arc<JobIntroduction>, Way),
}

/// A restore that was asked for.
#[derive(Debug)]
pub struct Restoration {
    /// Which rank.
    pub rank: Rank,
    /// Number of ranks of the job.
    pub size: u32,
    /// The job's identity.
    pub job: [u8; 16],
    /// The image.
    pub source: Source,
    /// Which one it must be.
    pub image: Option<ImageId>,
    /// What opens it, if it is encrypted.
    pub key: Option<Key>,
    /// Where what is opened for the restorer counts.
    pub progress: Arc<Progress>,
    /// The end of its agent's socket that the process gets.
    pub agent: OwnedFd,
    /// What this node's processor offers to the job.
    pub processor: Cpu,
    /// What this node can do.
    pub isolation: Isolation,
    /// Whether a PID namespace that others of the job are in will do, if the image's ids are fit for it.
    pub shared: bool,
    /// `mend-restorer`.
    pub restorer: Option<PathBuf>,
    /// Longest silence of a transfer.
    pub patience: Duration,
    /// Address of this node, at which others reach it.
    pub here: IpAddr,
}

impl Restoration {
    /// Opens the image, checks its header, and says what to launch.
    pub async fn prepare(self) -> Result<(Launch, Building), RestoreError> {
        let (isolation, restorer) = (self.isolation.clone(), self.restorer.clone());
        let (time_namespaces, restorer) = bounded::apart(move || can_restore(&isolation, restorer.as_deref())).await?;
        let mut stream_faults = Vec::new();
        let (found, mode, put_back) = match self.source {
            Source::Files { chain, put_back } => {
                let mut found = Vec::new();
                for path in chain {
                    let Opened { image, header, stream_fault } = open_image(&path, self.key.clone(), self.progress.clone()).await?;
                    let from = path.display().to_string();
                    stream_faults.extend(stream_fault.map(|stream_fault| (Some(from.clone()), stream_fault)));
                    found.push((from, image, header));
                }
                (found, Mode::Restart, put_back)
            }
            Source::Transfer(arrival, job, way) => {
                let (patience, progress, place) = (self.patience, self.progress.clone(), (self.rank, self.here));
                let begun = match way {
                    Way::Direct => receive_header(arrival, &job, place, (patience, patience), progress).await,
                    Way::Local => receive_header(arrival, &job, place, (stored::MAX_STORING_TIME, patience), progress).await,
                    Way::Staged => stored::staged(arrival, &job, patience, progress).await,
                    Way::Shared(path) => stored::shared(arrival, &job, patience, path, progress).await,
                };
                let BegunImage { image, header, fault } = begun?;
                stream_faults.extend(fault.map(|fault| (None, fault)));
                (vec![("from the other node".to_owned(), image, header)], Mode::Migrate, None)
            }
        };
        let (mut froms, mut images, mut headers) = (Vec::new(), Vec::new(), Vec::new());
        for (from, image, bytes) in found {
            let header = read_header(&bytes).map_err(|source| RestoreError::Image { from: from.clone(), source })?;
            check_identity(&header, &from, self.job, self.rank, self.size)?;
            froms.push(from);
            images.push(image);
            headers.push(header);
        }
        if let (Some(wanted), Some(header), Some(from)) = (self.image, headers.first(), froms.first()) {
            check_moment(header, from, wanted)?;
        }
        link::check(&headers).map_err(|(at, source)| RestoreError::Link { from: froms.swap_remove(at), source })?;
        let header = headers.first().ok_or(RestoreError::NoImage)?;
        check_machine(header, &self.processor).await?;
        let clock = clock::offsets_for(header, time_namespaces).map_err(|clock::ClocksBehind| RestoreError::Clocks)?;
        let (ours, theirs) = UnixStream::pair().map_err(RestoreError::Control)?;
        let roles: Vec<Role> = mend_image::launch::ROLES.into_iter().filter(|&role| header.uses(role)).collect();
        let mut attach = [None; 4];
        let first_role = FIRST_IMAGE_FD + images.len() as i32;
        for (number, &role) in (first_role..).zip(&roles) {
            attach[role as usize] = Some(number);
        }
        let fds = ImageFds::collect(FIRST_IMAGE_FD..first_role).ok_or(RestoreError::NoImage)?;
        let told = put_back.as_ref().and_then(PutBack::argument);
        let arguments = Arguments { images: fds, control_fd: CONTROL_FD, agent_fd: AGENT_FD, attach, mode, put_back: told, in_place: None };
        let launch = Launch {
            isolated: true,
            shared: self.shared && header.lowest_thread >= FIRST_DRAWN_PID,
            pid: header.pid,
            clock,
            spaces: Vec::new(),
            whose: Vec::new(),
            shared_memory: None,
            portable: None,
            open_files: None,
            umask: None,
            path: restorer_for(restorer, header.zone).await?,
            argv: std::iter::once("mend-restorer".to_owned()).chain(arguments.words()).collect(),
            env: Vec::new(),
            cwd: "/".into(),
            privileged: true,
            numbers: (0..first_role + roles.len() as i32).collect(),
        };
        Ok((
            launch,
            Building {
                given: Some(RestorerDescriptors { images, control: theirs.into(), agent: self.agent }),
                roles,
                put_back,
                zone: header.zone,
                image: ImageId(header.id),
                control: ours,
                stream_faults,
                rebuild_limit: if mode == Mode::Restart { REBUILD_LIMIT + LOCK_LIMIT } else { REBUILD_LIMIT },
            },
        ))
    }
}

/// Whether ranks can be restored on this node at all: whether it has time namespaces for their clocks, and the restorer.
///
/// # Errors
/// What is missing.
pub fn can_restore(isolation: &Isolation, restorer: Option<&Path>) -> Result<(bool, PathBuf), RestoreError> {
    let time_namespaces = match isolation {
        Isolation::Available { clocks } => *clocks,
        Isolation::Refused { reason } => return Err(RestoreError::NotHere { reason: reason.clone() }),
    };
    let found = restorer.filter(|restorer| restorer.is_file()).ok_or(RestoreError::NoRestorer { name: restorer_name(0) })?;
    Ok((time_namespaces, found.to_owned()))
}

fn restorer_name(zone: u32) -> String {
    if zone == 0 { "mend-restorer".to_owned() } else { format!("mend-restorer-{zone}") }
}

/// The restorer that works in this zone of addresses; they lie side by side.
async fn restorer_for(first: PathBuf, zone: u32) -> Result<PathBuf, RestoreError> {
    if zone == 0 {
        return Ok(first);
    }
    let name = restorer_name(zone);
    let path = first.with_file_name(&name);
    bounded::apart(move || if path.is_file() { Ok(path) } else { Err(RestoreError::NoRestorer { name }) }).await
}

async fn open_image(path: &Path, key: Option<Key>, progress: Arc<Progress>) -> Result<Opened, RestoreError> {
    let owned = path.to_owned();
    // File systems may be slow: not in the thread that serves everybody.
    let opened = match tokio::task::spawn_blocking(move || process_stream::open(&owned, key.as_ref(), progress)).await {
        Ok(opened) => opened,
        Err(_) => Err(io::ErrorKind::Other.into()),
    };
    opened.map_err(|source| match source.get_ref().and_then(|inner| inner.downcast_ref::<SealError>()) {
        Some(&source) => RestoreError::Sealed { from: path.display().to_string(), source },
        None => RestoreError::Unreadable { path: path.to_owned(), source },
    })
}

fn check_identity(header: &Header, from: &str, job: [u8; 16], rank: Rank, size: u32) -> Result<(), RestoreError> {
    if header.job != job {
        return Err(RestoreError::Foreign { from: from.into(), found: "another job".into(), wanted: "this one".into() });
    }
    // A job may have more ranks by now than it had when the image was taken.
    if header.rank != rank || header.size > size {
        let found = format!("rank {} of {}", header.rank, header.size);
        return Err(RestoreError::Foreign { from: from.into(), found, wanted: format!("rank {rank} of {size}") });
    }
    Ok(())
}

fn check_moment(header: &Header, from: &str, image: ImageId) -> Result<(), RestoreError> {
    if header.id == image.0 {
        return Ok(());
    }
    let (found, wanted) = (format!("another moment (image {})", ImageId(header.id)), format!("this checkpoint (image {image})"));
    Err(RestoreError::Foreign { from: from.into(), found, wanted })
}

async fn check_machine(header: &Header, processor: &Cpu) -> Result<(), RestoreError> {
    header.cpu().runs_on(processor).map_err(|source| RestoreError::Processor { host: header.host().to_owned(), source })?;
    let program = header.executable().to_owned();
    bounded::apart(move || match std::fs::metadata(&program) {
        Err(source) => Err(RestoreError::NoProgram { program, source }),
        Ok(_) => Ok(()),
    })
    .await
}

#[derive(Debug)]
struct RestorerDescriptors {
    /// Newest first.
    images: Vec<OwnedFd>,
    control: OwnedFd,
    agent: OwnedFd,
}

/// A restorer at work.
#[derive(Debug)]
pub struct Building {
    given: Option<RestorerDescriptors>,
    roles: Vec<Role>,
    put_back: Option<PutBack>,
    /// The zone of addresses that the image leaves free.
    zone: u32,
    image: ImageId,
    control: UnixStream,
    /// What may go wrong with streams out of encrypted files, with their names, or from another node.
    stream_faults: Vec<(Option<String>, StreamFault)>,
    /// How long its agent may take to reopen files and the like.
    pub rebuild_limit: Duration,
}

/// What a restorer says while it works.
#[derive(Debug)]
pub enum RestorerMessage {
    /// Bytes that the program had not read.
    Unread {
        /// From where.
        role: Role,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Waits for [`Building::go`].
    Ready {
        /// Bytes read.
        bytes: u64,
        /// Bytes of pages written to memory.
        placed: u64,
        /// Microseconds it took.
        us: u64,
    },
}

impl Building {
    /// Whether the image has something of this role.
    pub fn uses(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// The descriptors for the restorer, in the order of the launch's numbers. Yields them once.
    pub fn descriptors(&mut self, ends: RankEnds) -> io::Result<Vec<OwnedFd>> {
        let RestorerDescriptors { images, control, agent } = self.given.take().ok_or(io::ErrorKind::NotFound)?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let mut files = vec![null.try_clone()?.into(), null.try_clone()?.into(), null.into(), control, agent];
        files.extend(images);
        files.extend(ends.into_iter().filter(|(role, _)| self.uses(*role)).map(|(_, end)| end));
        Ok(files)
    }

    /// The same for a process that goes back in place, with the restorer's file before them, and what its agent is told. Yields them once.
    pub fn in_place(&mut self, restorer: File, ends: RankEnds) -> io::Result<(Vec<OwnedFd>, RollbackOrder)> {
        let images = self.given.as_ref().map_or(0, |given| given.images.len()) as u32;
        let files = self.descriptors(ends)?.into_iter().skip(NULL_STREAMS);
        let roles = self.roles.iter().map(|role| *role as u8).collect();
        let order = RollbackOrder { image: self.image, zone: self.zone, images, roles, put_back: self.put_back.clone() };
        Ok((std::iter::once(restorer.into()).chain(files).collect(), order))
    }

    /// What the restorer says.
    pub fn words(&self) -> io::Result<RestorerMessages> {
        let stream = self.control.try_clone()?;
        stream.set_nonblocking(true)?;
        Ok(RestorerMessages { stream: tokio::net::UnixStream::from_std(stream)?, stream_faults: self.stream_faults.clone() })
    }

    /// Lets the restored process run.
    pub fn go(&mut self) -> Result<(), RestoreError> {
        // One byte into an empty socket: does not block.
        io::Write::write_all(&mut self.control, &[GO]).map_err(RestoreError::Control)
    }
}

/// The restorer's words, one by one.
#[derive(Debug)]
pub struct RestorerMessages {
    stream: tokio::net::UnixStream,
    stream_faults: Vec<(Option<String>, StreamFault)>,
}

impl RestorerMessages {
    /// The next. An error is the last. Not cancel safe.
    pub async fn next(&mut self) -> Result<RestorerMessage, RestoreError> {
        let mut head = [0; STATUS_HEAD];
        self.stream.read_exact(&mut head).await.map_err(|_| RestoreError::Speechless)?;
        let length = Status::payload_length(&head).map_err(|_| RestoreError::Speechless)?;
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).await.map_err(|_| RestoreError::Speechless)?;
        match Status::decode(&head, &payload).map_err(|_| RestoreError::Speechless)? {
            Status::Unread { role, bytes } => Ok(RestorerMessage::Unread { role, bytes: bytes.to_vec() }),
            Status::Ready { bytes, placed, us } => Ok(RestorerMessage::Ready { bytes, placed, us }),
            Status::Failed { failure, errno, text } => {
                // To the restorer a file that does not open any further is one that ends.
                let stream_fault =
                    self.stream_faults.iter().find_map(|(from, stream_fault)| Some((from.clone(), stream_fault.get()?.clone())));
                match stream_fault {
                    Some((Some(from), why)) => return Err(RestoreError::Unsealable { from, why }),
                    Some((None, why)) => return Err(TransferError::Altered(why).into()),
                    None => {}
                }
                Err(RestoreError::Refused { failure, text: String::from_utf8_lossy(text).into_owned(), errno })
            }
        }
    }
}
