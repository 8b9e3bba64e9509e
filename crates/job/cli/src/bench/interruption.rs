//! SIGINT and SIGTERM while something is measured: they end what runs, and then what was made for it is removed, as after any failure.
//!
//! A thread takes the signals and hands them to the command that is waited for. Who waits looks afterwards ([`check`]). Commands that clean up are
//! in a group of their own ([`apart`]): a key at the terminal does not end them.

use crate::failure::Failure;
use mend_kernel::signal_queue::SignalQueue;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// The signal that has come; 0: none has.
static CAME: AtomicI32 = AtomicI32::new(0);
/// What is waited for. It is taken out before it is gone.
static WAITED_FOR: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// From now on these signals end no process of ours but what it waits for. To be called before other threads are started.
pub fn watch() -> Result<(), Failure> {
    static BEGUN: Once = Once::new();
    let mut result = Ok(());
    BEGUN.call_once(|| result = begin());
    result.map_err(|error| Failure::new(format!("signals cannot be watched: {error}"), "", 1))
}

fn begin() -> io::Result<()> {
    let queue = SignalQueue::new(&[Signal::INT.as_raw(), Signal::TERM.as_raw()])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        loop {
            let _ = poll(&mut [PollFd::new(&queue, PollFlags::IN)], None);
            if let Ok(Some(arrived)) = queue.next() {
                let _ = CAME.compare_exchange(0, arrived.signal, Ordering::SeqCst, Ordering::SeqCst);
                pass_on(&WAITED_FOR.lock().unwrap_or_else(PoisonError::into_inner));
            }
        }
    })?;
    Ok(())
}

fn pass_on(process: &Option<OwnedFd>) {
    if let Some(process) = process {
        let _ = pidfd_send_signal(process, Signal::TERM);
    }
}

/// Whether nobody wants this to end.
pub fn check() -> Result<(), Failure> {
    match CAME.load(Ordering::SeqCst) {
        0 => Ok(()),
        signal => Err(Failure::new(format!("ended by signal {signal}; what was made for it is removed"), "", 128 + signal)),
    }
}

/// Runs a command to its end, or until a signal comes and it has ended by that.
pub fn output(command: &mut Command) -> io::Result<Output> {
    let child = command.spawn()?;
    let process = Pid::from_raw(child.id() as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose()?;
    waited_for(child, process)
}

fn waited_for(child: Child, process: Option<OwnedFd>) -> io::Result<Output> {
    {
        let mut waited_for = WAITED_FOR.lock().unwrap_or_else(PoisonError::into_inner);
        *waited_for = process;
        if check().is_err() {
            pass_on(&waited_for);
        }
    }
    let output = child.wait_with_output();
    *WAITED_FOR.lock().unwrap_or_else(PoisonError::into_inner) = None;
    output
}

/// Runs a command that cleans up, in silence. What comes of it nobody can do anything about.
pub fn apart(command: &mut Command) {
    let _ = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}
