//! The contract between a daemon's rank supervisor and `mend-restorer`: command line, control socket, hand-over.
//!
//! ```text
//! supervisor                                 mend-restorer (pid = Header::pid in its PID namespace)
//!   exec mend-restorer --image-fd A[,A…] --control-fd B --agent-fd C --attach stdin=D … --mode restart
//!                                            reads the stream from A up to its end record, not a byte further; then, of
//!                                            the images that it builds on, newest first, what it needs
//!   ◄──────────────────── Unread{role, bytes} ── 0 or more: bytes that the program had not read yet; the daemon
//!                                            writes them into its end of that role's new pipe or socket first
//!   ◄──────────────────────── Ready{bytes, us} ── memory and threads stand
//!   ── GO (1 byte) ─────────────────────────►  jumps into the restored threads; B and A are closed
//!                                            from here on the restored agent speaks on C (`FromAgent::Restored`)
//! ```
//! Instead of `Ready` there may be one `Failed`, after which the restorer exits with 1. End of file on B instead of
//! `GO` makes it exit with 1 as well. A, B, C and the attached descriptors are inherited, blocking, without close-on-exec.
//!
//! The restorer needs `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN` in the user namespace that owns its PID namespace
//! (to give threads their ids); it drops whatever the saved process did not have before it jumps.
//! The pid is in the header. A daemon that receives a stream looks at the first [`crate::HEADER_SIZE`] bytes with
//! `recv(MSG_PEEK | MSG_WAITALL)` and hands the socket over untouched; a file it opens anew.
//! The daemon gives a restored rank the same roles as at start: a role that the image uses and that isn't attached
//! reads end of file (`stdin`) or swallows output.

use crate::link::MAX_CHAIN;
use xxhash_rust::xxh3::xxh3_64;

/// What a descriptor that outlives the process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Read end of standard input.
    Stdin = 0,
    /// Write end of standard output.
    Stdout = 1,
    /// Write end of standard error.
    Stderr = 2,
    /// The rank's PMI socket (`PMI_FD`).
    Pmi = 3,
}

/// All roles, in the order of their numbers.
pub const ROLES: [Role; 4] = [Role::Stdin, Role::Stdout, Role::Stderr, Role::Pmi];

impl Role {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Stdin => "stdin",
            Role::Stdout => "stdout",
            Role::Stderr => "stderr",
            Role::Pmi => "pmi",
        }
    }

    /// The role with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Role> {
        ROLES.get(number as usize).copied()
    }
}

/// Why the process is restored; decides about files that are longer than they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// From a checkpoint: files written to are cut back to their recorded length.
    Restart,
    /// Moved while the job runs: files are never cut, other ranks may have appended to them.
    Migrate,
}

impl Mode {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Restart => "restart",
            Mode::Migrate => "migrate",
        }
    }
}

/// Descriptors of an image and of those it builds on, newest first: at least one, at most [`MAX_CHAIN`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ImageFds {
    fds: [i32; MAX_CHAIN],
    count: usize,
}

impl ImageFds {
    /// The image alone.
    #[must_use]
    pub fn one(fd: i32) -> Self {
        let mut fds = [-1; MAX_CHAIN];
        fds[0] = fd;
        Self { fds, count: 1 }
    }

    /// From as many as there are; `None` if there are none or too many.
    pub fn collect(all: impl IntoIterator<Item = i32>) -> Option<Self> {
        let (mut fds, mut count) = ([-1; MAX_CHAIN], 0);
        for fd in all {
            *fds.get_mut(count)? = fd;
            count += 1;
        }
        (count > 0).then_some(Self { fds, count })
    }

    /// The descriptors of all images, newest first.
    #[must_use]
    pub fn all(&self) -> &[i32] {
        &self.fds[..self.count]
    }

    fn parse(text: &[u8]) -> Result<Self, ArgumentError> {
        let mut failed = None;
        let each = text.split(|byte| *byte == b',').map_while(|one| number(one).map_err(|error| failed = Some(error)).ok());
        let fds = Self::collect(each);
        failed.map_or(fds.ok_or(ArgumentError::Value), Err)
    }
}

impl core::fmt::Debug for ImageFds {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.all().fmt(formatter)
    }
}

/// Most files that can be named as not put back.
pub const MAX_NOT_PUT_BACK: usize = 64;

/// The files that a checkpoint keeps beside its images ([`crate::record::object::KEPT_BESIDE`]) are as they were by now, all but some. What others wrote to
/// them after this process was saved is in them: its own pages of them may be older.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PutBack {
    /// XXH3 of the paths of the others.
    except: [u64; MAX_NOT_PUT_BACK],
    count: usize,
}

impl PutBack {
    /// All but those at these paths. `None` if they are too many.
    pub fn all_but<'a>(paths: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        Self::of(paths.into_iter().map(xxh3_64))
    }

    fn of(hashes: impl IntoIterator<Item = u64>) -> Option<Self> {
        let (mut except, mut count) = ([0; MAX_NOT_PUT_BACK], 0);
        for hash in hashes {
            *except.get_mut(count)? = hash;
            count += 1;
        }
        Some(Self { except, count })
    }

    /// Whether the file at this path was put back.
    #[must_use]
    pub fn includes(&self, path: &[u8]) -> bool {
        self.count == 0 || !self.except[..self.count].contains(&xxh3_64(path))
    }

    fn parse(text: &[u8]) -> Result<Self, ArgumentError> {
        let mut words = text.split(|byte| *byte == b',');
        if words.next() != Some(b"all") {
            return Err(ArgumentError::Value);
        }
        let mut failed = false;
        let hash = |word: &[u8]| core::str::from_utf8(word).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        let hashes = words.map_while(|word| {
            let hash = hash(word);
            failed |= hash.is_none();
            hash
        });
        Self::of(hashes).filter(|_| !failed).ok_or(ArgumentError::Value)
    }

    #[cfg(feature = "std")]
    fn word(&self) -> std::string::String {
        self.except[..self.count].iter().fold("all".into(), |word, hash| std::format!("{word},{hash:x}"))
    }
}

impl core::fmt::Debug for PutBack {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.except[..self.count].fmt(formatter)
    }
}

/// The restorer's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Where the stream comes from, a file or a connected socket; and the images that it builds on.
    pub images: ImageFds,
    /// Stream socket or pipe pair end for [`Status`] and the go byte.
    pub control_fd: i32,
    /// The restored agent's connection to its daemon.
    pub agent_fd: i32,
    /// Descriptor per role, by role number; `None` if absent.
    pub attach: [Option<i32>; 4],
    /// What the restorer is started for.
    pub mode: Mode,
    /// Which of the program's files have been put back. `None`: none of them, as far as is known.
    pub put_back: Option<PutBack>,
    /// Address of the [`crate::handoff::Rollback`] of a living process that the restorer has been mapped into.
    pub in_place: Option<u64>,
}

/// Why a command line is not the restorer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// An option that is not known.
    #[error("unknown option")]
    Unknown,
    /// An option without a usable value.
    #[error("bad value for an option")]
    Value,
    /// One of `--image-fd`, `--control-fd`, `--agent-fd`, `--mode` is absent.
    #[error("a required option is missing")]
    Missing,
}

impl Arguments {
    /// Parses the words after the program's name.
    ///
    /// # Errors
    /// See [`ArgumentError`].
    pub fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<Self, ArgumentError> {
        let (mut images, mut control, mut agent, mut mode) = (None, None, None, None);
        let (mut attach, mut put_back, mut in_place) = ([None; 4], None, None);
        while let Some(option) = words.next() {
            let value = words.next().ok_or(ArgumentError::Value)?;
            match option {
                b"--image-fd" => images = Some(ImageFds::parse(value)?),
                b"--control-fd" => control = Some(number(value)?),
                b"--agent-fd" => agent = Some(number(value)?),
                b"--attach" => {
                    let split = value.iter().position(|byte| *byte == b'=').ok_or(ArgumentError::Value)?;
                    let role = ROLES.iter().find(|role| role.name().as_bytes() == &value[..split]).ok_or(ArgumentError::Value)?;
                    attach[*role as usize] = Some(number(&value[split + 1..])?);
                }
                b"--mode" => {
                    mode = Some(match value {
                        b"restart" => Mode::Restart,
                        b"migrate" => Mode::Migrate,
                        _ => return Err(ArgumentError::Value),
                    });
                }
                b"--put-back" => put_back = Some(PutBack::parse(value)?),
                b"--in-place" => {
                    let address = core::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    in_place = Some(address.filter(|address| *address != 0).ok_or(ArgumentError::Value)?);
                }
                _ => return Err(ArgumentError::Unknown),
            }
        }
        match (images, control, agent, mode) {
            (Some(images), Some(control_fd), Some(agent_fd), Some(mode)) => {
                Ok(Self { images, control_fd, agent_fd, attach, mode, put_back, in_place })
            }
            _ => Err(ArgumentError::Missing),
        }
    }

    /// The words after the program's name.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn words(&self) -> std::vec::Vec<std::string::String> {
        use std::string::ToString;
        let mut words = std::vec::Vec::new();
        let images: std::vec::Vec<_> = self.images.all().iter().map(i32::to_string).collect();
        let (control, agent) = (self.control_fd.to_string(), self.agent_fd.to_string());
        for (option, value) in [("--image-fd", images.join(",")), ("--control-fd", control), ("--agent-fd", agent)] {
            words.push(option.to_string());
            words.push(value);
        }
        for (role, fd) in ROLES.iter().zip(self.attach) {
            if let Some(fd) = fd {
                words.push("--attach".to_string());
                words.push(std::format!("{}={fd}", role.name()));
            }
        }
        words.push("--mode".to_string());
        words.push(self.mode.name().to_string());
        if let Some(put_back) = &self.put_back {
            words.push("--put-back".to_string());
            words.push(put_back.word());
        }
        if let Some(address) = self.in_place {
            words.push("--in-place".to_string());
            words.push(address.to_string());
        }
        words
    }
}

fn number(text: &[u8]) -> Result<i32, ArgumentError> {
    core::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).filter(|fd| *fd >= 0).ok_or(ArgumentError::Value)
}

/// What the supervisor writes to let the restored process run.
pub const GO: u8 = b'G';

/// Bytes before the payload of a [`Status`].
pub const STATUS_HEAD: usize = 40;

/// Largest payload of a [`Status`], bytes.
pub const STATUS_PAYLOAD: usize = 1 << 20;

/// What kind of failure ended a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Wrong command line or descriptors: a defect of the caller.
    Launch = 1,
    /// The stream is torn, corrupt or of another version.
    Image = 2,
    /// This machine cannot run it: processor, kernel's vdso.
    Machine = 3,
    /// A file that the image needs is absent or another one.
    File = 4,
    /// The kernel refused something: memory, thread ids, address ranges.
    Kernel = 5,
    /// Reading the stream failed or it ended early.
    Stream = 6,
}

impl Failure {
    /// The failure with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Failure> {
        [Failure::Launch, Failure::Image, Failure::Machine, Failure::File, Failure::Kernel, Failure::Stream]
            .into_iter()
            .find(|failure| *failure as u32 == number)
    }

    /// What a user can do.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Failure::Launch => "this is a defect of Mend; please report it",
            Failure::Image => "use another checkpoint; `mend checkpoints` lists them",
            Failure::Machine => "restore on a node with the same kind of processor and the same kernel release",
            Failure::File => "make the file available on this node as it was when the image was taken",
            Failure::Kernel => "see the cause; memory limits and user namespace settings are the usual reasons",
            Failure::Stream => "the source went away or the file is incomplete; try again or use another checkpoint",
        }
    }
}

/// What the restorer says on its control descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status<'a> {
    /// Input that had arrived for the program but that it had not read when it was saved. At most
    /// [`STATUS_PAYLOAD`] bytes each, in order.
    Unread {
        /// For which descriptor.
        role: Role,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The process stands and waits for [`GO`].
    Ready {
        /// Bytes read from the stream.
        bytes: u64,
        /// Bytes of pages written to memory.
        placed: u64,
        /// Microseconds from the restorer's start.
        us: u64,
    },
    /// It cannot be restored.
    Failed {
        /// The kind of failure.
        failure: Failure,
        /// Errno of the failed system call, 0 if none was involved.
        errno: i32,
        /// What exactly, for people.
        text: &'a [u8],
    },
}

/// Why bytes are not a [`Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the restorer said something that is not its protocol")]
pub struct StatusError;

const STATUS_MAGIC: u32 = 0x7453_694d;

impl<'a> Status<'a> {
    /// Head for this status; the payload ([`Status::payload`]) follows it on the wire.
    #[must_use]
    pub fn head(&self) -> [u8; STATUS_HEAD] {
        let (kind, small, numbers) = match *self {
            Status::Unread { role, .. } => (1u32, role as u32, [0; 3]),
            Status::Ready { bytes, placed, us } => (2, 0, [bytes, us, placed]),
            Status::Failed { failure, errno, .. } => (3, failure as u32, [errno as u32 as u64, 0, 0]),
        };
        let mut head = [0; STATUS_HEAD];
        head[..4].copy_from_slice(&STATUS_MAGIC.to_le_bytes());
        head[4..6].copy_from_slice(&(kind as u16).to_le_bytes());
        head[6..8].copy_from_slice(&(small as u16).to_le_bytes());
        head[8..16].copy_from_slice(&(self.payload().len() as u64).to_le_bytes());
        for (place, number) in head[16..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        head
    }

    /// The bytes after the head.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        match *self {
            Status::Unread { bytes, .. } => bytes,
            Status::Ready { .. } => &[],
            Status::Failed { text, .. } => text,
        }
    }

    /// Length of the payload that a head announces.
    ///
    /// # Errors
    /// [`StatusError`] if this isn't a head or announces more than [`STATUS_PAYLOAD`].
    pub fn payload_length(head: &[u8; STATUS_HEAD]) -> Result<usize, StatusError> {
        let length = usize::try_from(field(head, 8)).map_err(|_| StatusError)?;
        if head[..4] != STATUS_MAGIC.to_le_bytes() || length > STATUS_PAYLOAD { Err(StatusError) } else { Ok(length) }
    }

    /// Decodes a head and the payload that it announced.
    ///
    /// # Errors
    /// [`StatusError`].
    pub fn decode(head: &[u8; STATUS_HEAD], payload: &'a [u8]) -> Result<Self, StatusError> {
        if Self::payload_length(head)? != payload.len() {
            return Err(StatusError);
        }
        let small = u32::from(u16::from_le_bytes([head[6], head[7]]));
        match u16::from_le_bytes([head[4], head[5]]) {
            1 => Ok(Status::Unread { role: Role::from_number(small).ok_or(StatusError)?, bytes: payload }),
            2 => Ok(Status::Ready { bytes: field(head, 16), us: field(head, 24), placed: field(head, 32) }),
            3 => Ok(Status::Failed {
                failure: Failure::from_number(small).ok_or(StatusError)?,
                errno: field(head, 16) as u32 as i32,
                text: payload,
            }),
            _ => Err(StatusError),
        }
    }
}

fn field(head: &[u8; STATUS_HEAD], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&head[at..at + 8]);
    u64::from_le_bytes(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_survive_the_command_line() {
        let arguments = Arguments {
            images: ImageFds::one(5),
            control_fd: 6,
            agent_fd: 7,
            attach: [Some(0), None, Some(9), Some(12)],
            mode: Mode::Migrate,
            put_back: None,
            in_place: None,
        };
        let words = arguments.words();
        assert_eq!(Arguments::parse(words.iter().map(|word| word.as_bytes())), Ok(arguments));
        assert_eq!(Arguments::parse([b"--image-fd".as_slice()].into_iter()), Err(ArgumentError::Value));
        assert_eq!(Arguments::parse([b"--image-fd".as_slice(), b"-3"].into_iter()), Err(ArgumentError::Value));
        let chain = Arguments { images: ImageFds::collect(9..40).unwrap(), ..arguments };
        assert_eq!(Arguments::parse(chain.words().iter().map(|word| word.as_bytes())), Ok(chain));
        let lives = Arguments { in_place: Some(0x7000_0000_1000), ..arguments };
        assert_eq!(Arguments::parse(lives.words().iter().map(|word| word.as_bytes())), Ok(lives));
        let long = std::vec![*b"3"; MAX_CHAIN + 1].join(&b',');
        let paths: [&[u8]; 2] = [b"/data/large", b"/data/unreadable"];
        for except in [&paths[..0], &paths] {
            let put_back = PutBack::all_but(except.iter().copied()).unwrap();
            let restart = Arguments { mode: Mode::Restart, put_back: Some(put_back), ..arguments };
            assert_eq!(Arguments::parse(restart.words().iter().map(|word| word.as_bytes())), Ok(restart));
            assert!(put_back.includes(b"/data/small") && put_back.includes(paths[0]) == except.is_empty());
        }
        assert_eq!(PutBack::all_but([paths[0]; MAX_NOT_PUT_BACK + 1]), None);
        for bad in [&b""[..], b"1f", b"all,", b"all,1f,x"] {
            assert_eq!(PutBack::parse(bad), Err(ArgumentError::Value));
        }
        for bad in [&b"3,"[..], b"", b"3,-1", b",", &long] {
            assert_eq!(ImageFds::parse(bad), Err(ArgumentError::Value));
        }
        assert_eq!(Arguments::parse(words[2..].iter().map(|word| word.as_bytes())), Err(ArgumentError::Missing));
    }

    #[test]
    fn statuses_survive_the_wire_and_garbage_is_refused() {
        for status in [
            Status::Unread { role: Role::Pmi, bytes: b"cmd=barrier_out\n" },
            Status::Ready { bytes: 1 << 40, placed: 1 << 39, us: 77 },
            Status::Failed { failure: Failure::File, errno: 2, text: b"/opt/app" },
        ] {
            let head = status.head();
            assert_eq!(Status::payload_length(&head).unwrap(), status.payload().len());
            assert_eq!(Status::decode(&head, status.payload()), Ok(status));
            let mut bad = head;
            bad[4] = 9;
            assert_eq!(Status::decode(&bad, status.payload()), Err(StatusError));
            bad = head;
            bad[12] = 0xff;
            assert_eq!(Status::payload_length(&bad), Err(StatusError));
        }
    }
}
