//! Bringing a lab up: checks, then two forks and the namespaces that the lab lives in.
//!
//! Invariants: until the user's command says so the lab depends on it (the starter's connection): it ends at
//! whatever point the command is interrupted. As an ordinary user the lab lives in a user namespace that maps the
//! user to the same ids as outside, and all its programs hold the capabilities of that namespace.
//! Faults assumed: kernels and containers that refuse user namespaces, each with its own remedy.

use std::env;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use mend_kernel::namespaces::{close_other_files, fork_and_run, keep_capabilities_over_exec, map_identity, thread_count, unshare};
use mend_kernel::signal_queue::reset_dispositions;
use rustix::process::{WaitOptions, getegid, geteuid, waitpid};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities};

use crate::client::Lab;
use crate::daemons;
use crate::error::{LabError, doing};
use crate::holder;
use crate::mounts::choose_base;
use crate::network;
use crate::plan::{self, Bandwidth, LabName, LabPlan};
use crate::protocol::{Detach, Failure, LabConnection, Progress};

/// What lab to bring up.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// The name of the lab.
    pub name: LabName,
    /// How many nodes besides `head`: 1 to 64.
    pub nodes: u32,
    /// What every node's link carries in each direction; `None` for as much as the machine can.
    pub bandwidth: Option<Bandwidth>,
    /// Whether to start the node daemon in every node but `head`.
    pub daemons: bool,
}

/// A lab that ends when this is dropped, unless it is detached.
#[derive(Debug)]
pub struct Fresh {
    /// The lab.
    pub lab: Lab,
    starter: LabConnection,
}

impl Fresh {
    /// Lets the lab live on without this process.
    ///
    /// # Errors
    /// `Connection` when the lab has died already.
    pub fn detach(self) -> Result<Lab, LabError> {
        match self.starter.send(&Detach, &[]) {
            Ok(()) => Ok(self.lab),
            Err(source) => Err(LabError::Connection { lab: self.lab.name().to_string(), source }),
        }
    }

    /// What becomes readable when the lab ends.
    pub(crate) fn watch(&self) -> &LabConnection {
        &self.starter
    }
}

/// Brings a lab up and returns when every node (and its daemon) answers.
///
/// # Errors
/// `Threads` when the calling process has more than one thread; the others say what the user can change.
pub fn up(options: &UpOptions) -> Result<Fresh, LabError> {
    let nodes = plan::plan_nodes(options.nodes)?;
    network::check_tools(options.bandwidth.is_some())?;
    let daemon = options.daemons.then(daemons::find).transpose()?;
    let own_home = env::var_os("MEND_HOME").map(PathBuf::from);
    let base = choose_base(&needed_directories(own_home.as_ref()))?;
    let uid = geteuid().as_raw();
    let plan = LabPlan {
        home: own_home.unwrap_or_else(|| plan::shared(&base).join(".mend")),
        name: options.name.clone(),
        bandwidth: options.bandwidth,
        nodes,
        base,
        daemon,
    };
    if thread_count().map_err(doing("count threads"))? != 1 {
        return Err(LabError::Threads);
    }
    let outside = match holder::bind_outside(&plan.name.socket(uid)) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            return Err(LabError::AlreadyUp(plan.name.to_string()));
        }
        other => other.map_err(doing("bind the lab's socket"))?,
    };
    let (starter, theirs) = LabConnection::pair().map_err(doing("make a socket pair"))?;
    let name = plan.name.clone();
    let between = fork_and_run(move || {
        // SAFETY: a process just forked: nothing but these two is used from here on, and no handler is needed.
        let closed = unsafe {
            reset_dispositions();
            close_other_files(&[theirs.as_fd(), outside.as_fd()])
        };
        let entered = closed.map_err(|error| Failure::new(format!("close files: {error}"))).and_then(|()| enter(plan, outside, &theirs));
        match entered {
            Ok(()) => 0,
            Err(failure) => {
                let _ = theirs.send(&Progress::Failed(failure), &[]);
                1
            }
        }
    })
    .map_err(doing("fork"))?;
    let outcome = starter.receive::<Progress>();
    let _ = waitpid(Some(between), WaitOptions::empty());
    match outcome {
        Ok(Some((Progress::Up, _))) => Ok(Fresh { lab: Lab::find(&name)?, starter }),
        Ok(Some((Progress::Failed(failure), _))) => Err(LabError::Setup { message: failure.message, hint: failure.hint }),
        Ok(None) => Err(LabError::Setup { message: "its first process died".to_owned(), hint: None }),
        Err(source) => Err(LabError::Connection { lab: name.to_string(), source }),
    }
}

/// Directories that must stay visible in the lab.
fn needed_directories(home: Option<&PathBuf>) -> Vec<PathBuf> {
    let variables = ["HOME", "MEND_LIBDIR", "MEND_SHARED", "VIRTUAL_ENV", "TMPDIR"];
    let named = variables.iter().filter_map(env::var_os).map(PathBuf::from);
    named.chain(home.cloned()).chain(env::current_dir()).chain(env::current_exe()).collect()
}

/// In the child of `up`: leaves the user's session, makes the lab's namespaces and forks the holder into them.
fn enter(plan: LabPlan, outside: OwnedFd, starter: &LabConnection) -> Result<(), Failure> {
    let plain = |what: &'static str| move |error: io::Error| Failure::new(format!("{what}: {error}"));
    rustix::process::setsid().map_err(|error| plain("setsid")(error.into()))?;
    silence().map_err(plain("open /dev/null"))?;
    env::set_current_dir("/").map_err(plain("chdir"))?;
    let own = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN | CapabilitySet::SYS_CHROOT;
    let privileged = capabilities(None).is_ok_and(|sets| sets.effective.contains(own));
    if !privileged {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        unshare(UnshareFlags::NEWUSER).map_err(|error| refused(&error))?;
        map_identity(uid, gid).map_err(|error| refused(&error))?;
        keep_capabilities_over_exec().map_err(|error| refused(&error))?;
    }
    let namespaces = UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC | UnshareFlags::NEWPID;
    unshare(namespaces).map_err(|error| refused(&error))?;
    let theirs = rustix::io::fcntl_dupfd_cloexec(starter, 3).map_err(|error| plain("dup")(error.into()))?;
    fork_and_run(|| holder::live(plan, outside, LabConnection::new(theirs), !privileged)).map_err(plain("fork"))?;
    Ok(())
}

/// Detaches the standard streams: a lab must not keep the pipe open of who started it.
fn silence() -> io::Result<()> {
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Explains a refused namespace.
fn refused(error: &io::Error) -> Failure {
    let setting = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let message = format!("the kernel refuses to make namespaces: {error}");
    for kind in ["user", "pid", "net", "mnt", "uts", "ipc"] {
        let path = format!("/proc/sys/user/max_{kind}_namespaces");
        if setting(&path).as_deref() == Some("0") {
            let hint = format!("namespaces are switched off here: `sysctl -w user.max_{kind}_namespaces=10000` as root");
            return Failure::hinting(message, hint);
        }
    }
    if setting("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        let hint = "ordinary users may not make them: `sysctl -w kernel.unprivileged_userns_clone=1` as root";
        return Failure::hinting(message, hint);
    }
    let apparmor = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    if setting(apparmor).as_deref() == Some("1") {
        let hint = "AppArmor restricts them: \
                    `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` as root";
        return Failure::hinting(message, hint);
    }
    Failure::hinting(message, "a container's seccomp filter or a limit on namespaces may be in the way: run it outside, or as root")
}
