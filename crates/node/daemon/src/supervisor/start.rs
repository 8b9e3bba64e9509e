//! The last steps on the way to the rank's program, in the process that becomes it.

use super::order::{Launch, Step};
use super::{Refused, fork_as, order};
use mend_kernel::namespaces::fork_and_run;
use mend_kernel::program::{InheritedFile, execute};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, chdir, getpid, getrlimit, set_parent_process_death_signal, setpgid, setrlimit, umask,
};
use rustix::thread::{CapabilitySet, capabilities, clear_ambient_capability_set, set_capabilities};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// Forks the rank's process and waits until it runs the program or has failed to.
pub(super) fn start(launch: &Launch, files: Vec<OwnedFd>) -> Result<Pid, Refused> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| Refused { step: Step::Fork, errno: errno.raw_os_error() })?;
    let placed: Vec<InheritedFile> = files.into_iter().zip(&launch.numbers).map(|(file, &number)| InheritedFile { file, number }).collect();
    let mut writer = Some(writer);
    let child = move || {
        // In the child, once.
        let Some(mut writer) = writer.take() else { return 127 };
        let Refused { step, errno } = become_program(launch, &placed, &mut writer);
        let _ = File::from(writer).write_all(&encode(step, errno));
        127
    };
    // In the parent the closure's descriptors close with it, so the pipe ends when the child's copy does.
    let rank = if launch.isolated {
        let wanted = Pid::from_raw(launch.pid as i32).ok_or(Refused { step: Step::Fork, errno: Errno::INVAL.raw_os_error() })?;
        fork_as(wanted, child)
    } else {
        fork_and_run(child)
    }
    .map_err(Refused::at(Step::Fork))?;
    let mut failure = Vec::new();
    File::from(reader).read_to_end(&mut failure).map_err(Refused::at(Step::Fork))?;
    match decode(&failure) {
        None => Ok(rank),
        Some(refused) => Err(refused),
    }
}

fn become_program(launch: &Launch, placed: &[InheritedFile], report: &mut OwnedFd) -> Refused {
    match prepare(launch) {
        Err(refused) => refused,
        Ok((path, argv, env)) => Refused::at(Step::Execute)(execute(&path, &argv, &env, placed, report)),
    }
}

type Strings = (CString, Vec<CString>, Vec<CString>);

fn prepare(launch: &Launch) -> Result<Strings, Refused> {
    let refuse = |step| move |errno: Errno| Refused { step, errno: errno.raw_os_error() };
    // No session of its own: the scheduler would give each rank an equal part of a busy node, whatever its threads
    // (sched(7), autogroup), and an agent would wait for its rank's turn.
    setpgid(None, None).map_err(refuse(Step::Privileges))?;
    if !launch.isolated {
        // No namespace takes the rank along when the supervisor is killed; this does.
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(refuse(Step::Privileges))?;
    }
    if let Some(soft) = launch.open_files {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum }).map_err(refuse(Step::Privileges))?;
    }
    if let Some(mask) = launch.umask {
        umask(Mode::from_bits_truncate(mask));
    }
    chdir(&launch.cwd).map_err(refuse(Step::WorkingDirectory))?;
    if !launch.privileged {
        give_up_capabilities().map_err(refuse(Step::Privileges))?;
    }
    let invalid = |_| Refused { step: Step::Execute, errno: Errno::INVAL.raw_os_error() };
    let text = |text: String| CString::new(text).map_err(invalid);
    let pid = format!("MEND_RANK_PID={}", getpid().as_raw_nonzero());
    let env = launch.env.iter().map(|(name, value)| format!("{name}={value}")).chain([pid]);
    let path = CString::new(launch.path.as_os_str().as_bytes()).map_err(invalid)?;
    let argv = launch.argv.iter().cloned().map(text).collect::<Result<_, _>>()?;
    Ok((path, argv, env.map(text).collect::<Result<_, _>>()?))
}

/// Root keeps what root has (execve(2) gives it back); others start without any.
fn give_up_capabilities() -> Result<(), Errno> {
    // ENOSYS/EINVAL: a kernel without ambient capabilities, where there are none to clear.
    let _ = clear_ambient_capability_set();
    let mut sets = capabilities(None)?;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets)
}

fn encode(step: Step, errno: i32) -> Vec<u8> {
    // A fixed enum and an integer always encode; an empty report would mean success, so it must not be one.
    mend_messages::frame::encode(&order::Event::Failed { step, errno }).unwrap_or_else(|_| vec![0])
}

fn decode(report: &[u8]) -> Option<Refused> {
    if report.is_empty() {
        return None;
    }
    match report.get(4..).map(mend_messages::frame::decode) {
        Some(Ok(order::Event::Failed { step, errno })) => Some(Refused { step, errno }),
        _ => Some(Refused { step: Step::Execute, errno: Errno::IO.raw_os_error() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_success_and_anything_else_is_not() {
        assert!(decode(&[]).is_none());
        assert_eq!(decode(&[1, 2]).unwrap().errno, Errno::IO.raw_os_error());
        let refused = decode(&encode(Step::WorkingDirectory, 2)).unwrap();
        assert_eq!((refused.step, refused.errno), (Step::WorkingDirectory, 2));
    }
}
