//! The process that serves mounts of a space on a node.
//!
//! ```text
//! mend data mount ──► mend-space mount NAME DIRECTORY     one mount, until it is unmounted
//! mendd ──socket──► mend-space ranks NAME ◄── descriptor of /dev/fuse ── each rank's supervisor, which has mounted it in the rank's namespace
//! ```
//! All mounts of a process have one cache. A rank's mount ends with its mount namespace, and the threads that serve it with that.

use super::view::{Files, MAX_READ};
use crate::client::{Holds, Reader, Repairer, Touches, find, heal_while_used};
use fuser::{Config, MountOption, Session, SessionACL};
use mend_data::patterns::Who;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::collections::BTreeSet;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest text of whose a mount is, bytes.
const MAX_WHO: usize = 1024;
/// How often targets are told which files are open for writing, if that is new to them. What was closed they are told sooner, but not more often than in the second time.
const TELL_HOLDS: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(50)];
/// How often lost targets are looked for.
const LOOK_FOR_LOST: Duration = Duration::from_secs(2);

/// Everything that a space needs to be seen, or why it cannot be, with what to do.
fn files(name: &str) -> Result<Files, (String, String)> {
    let client = find(name)?;
    let plain = |error: &dyn std::error::Error| (mend_report::with_causes(error), String::new());
    let cache = mend_settings::SPACE_CACHE.number().map_err(|error| plain(&error))? << 20;
    let reader = Reader::new(client.clone(), cache, Repairer::find()).map_err(|error| plain(&error))?;
    let looking = client.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LOOK_FOR_LOST);
            looking.look_for_lost();
        }
    });
    let touches = Touches::begin(client.clone()).map_err(|error| plain(&error))?;
    Ok(Files::new(client, reader, touches))
}

fn config() -> Result<Config, String> {
    let threads = mend_settings::SPACE_THREADS.number().map_err(|error| error.to_string())?;
    let mut config = Config::default();
    config.acl = SessionACL::Owner;
    config.n_threads = usize::try_from(threads).ok();
    config.clone_fd = true;
    Ok(config)
}

/// Mounts a space in a directory, says `ready` on standard output, and serves it until it is unmounted. The exit code.
pub fn mounted(name: &str, directory: &Path) -> i32 {
    let mount = || -> Result<Session<Files>, (String, String)> {
        let files = files(name)?;
        let mut config = config().map_err(|why| (why, String::new()))?;
        config.mount_options = vec![
            MountOption::RO,
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::DefaultPermissions,
            MountOption::FSName(format!("mend-{name}")),
            MountOption::Subtype("mend".to_owned()),
            MountOption::CUSTOM(format!("max_read={MAX_READ}")),
        ];
        Session::new(files, directory, &config).map_err(|error| {
            let hint = "/dev/fuse must be there and open to you (`ls -l /dev/fuse`), and fusermount3 installed for who is not root; \
                `mend run --data` needs no fusermount3, `mend data get` no mount";
            (format!("{} cannot be mounted: {error}", directory.display()), hint.to_owned())
        })
    };
    match mount() {
        Ok(session) => {
            ready();
            i32::from(session.run().is_err())
        }
        Err((why, hint)) => refused(&why, &hint),
    }
}

/// Whoever started this reads one line. It may be gone already: the mount is there all the same.
fn ready() {
    let mut out = io::stdout();
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
}

fn refused(why: &str, hint: &str) -> i32 {
    let _ = writeln!(io::stdout(), "refused {}\t{}", why.replace('\n', " "), hint.replace('\n', " "));
    1
}

/// Serves mounts whose descriptors come by standard input, a socket that keeps messages apart, until that ends. Says `ready`, or why not, on standard output, and then what happens to the space. The exit code.
pub fn ranks(name: &str) -> i32 {
    let (files, config) = match files(name).and_then(|files| Ok((files, config().map_err(|why| (why, String::new()))?))) {
        Ok(begun) => begun,
        Err((why, hint)) => return refused(&why, &hint),
    };
    if let Err(why) = heal_while_used(files.client(), files.writer().clone()) {
        mend_report::tell!("mend data: {name}: what is lost is not looked for: {why}");
    }
    let holds = Arc::new(Mutex::new(Holds::default()));
    tell_holds(files.clone(), holds.clone());
    ready();
    if let Err(why) = files.client().pass_events_on(io::stdout()) {
        mend_report::tell!("mend data: {name}: what happens to it does not come into the jobs' journals: {why}");
    }
    while let Ok(Some((descriptor, who))) = next_descriptor() {
        let (files, config) = (who.map_or_else(|| files.clone(), |(who, writable)| files.of(who, writable)), config.clone());
        let serve = move || {
            let left = files.clone();
            // A rank that ended before the kernel's first word leaves an error, and nobody to tell it.
            let _ = Session::from_fd(files, descriptor, SessionACL::Owner, config).and_then(Session::run);
            left.close_all();
        };
        if let Err(error) = std::thread::Builder::new().name("mount".to_owned()).spawn(serve) {
            mend_report::tell!("mend data: {name}: a mount cannot be served: {error}");
        }
    }
    files.tell_touches();
    holds.lock().unwrap_or_else(PoisonError::into_inner).tell(&files.client(), &BTreeSet::new());
    0
}

/// Tells targets what is open for writing, until the process ends.
fn tell_holds(files: Files, holds: Arc<Mutex<Holds>>) {
    let (close, closed) = sync_channel(1);
    files.tell_of_closes(close);
    std::thread::spawn(move || {
        let client = files.client();
        loop {
            if closed.recv_timeout(TELL_HOLDS[0]).is_ok() {
                std::thread::sleep(TELL_HOLDS[1]);
            }
            holds.lock().unwrap_or_else(PoisonError::into_inner).tell(&client, &files.open_for_writing());
        }
    });
}

/// A descriptor of a mount, whose that is, and whether ranks write there.
type Given = (OwnedFd, Option<(Who, bool)>);

/// The next one, and whose mount it is; `None` at the end.
fn next_descriptor() -> io::Result<Option<Given>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut whose = [0; MAX_WHO];
    loop {
        let received = recvmsg(rustix::stdio::stdin(), &mut [IoSliceMut::new(&mut whose)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let length = match received {
            Err(rustix::io::Errno::INTR) => continue,
            received => received?.bytes,
        };
        if length == 0 {
            return Ok(None);
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut rights) = message
                && let Some(descriptor) = rights.next()
            {
                // Before whose it is stands whether it may be written to.
                return Ok(Some((descriptor, Who::decoded(&whose[1..length]).map(|who| (who, whose[0] == 1)))));
            }
        }
    }
}
