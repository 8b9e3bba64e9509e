//! Signals to this process: told to the life of the job that runs, or to nobody between two lives.

use crate::arrival::Arrival;
use crate::detached;
use crate::wish::Wish;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Whether this process ignores a signal (proc_pid_status(5), `SigIgn`). What cannot be read is not ignored.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

/// Where signals go.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    listener: Arc<Mutex<Listener>>,
    strays: mpsc::UnboundedSender<Wish>,
}

#[derive(Debug, Default)]
struct Listener {
    events: Option<mpsc::Sender<Arrival>>,
    /// Until then a signal does what it does to any process.
    watching: bool,
    /// A batch system sends signals, too.
    under_batch: bool,
    /// When it sent the last one.
    time_was_up: Option<Instant>,
}

impl Signals {
    /// Nobody watches yet. The receiver gets those that come while no life of the job runs, once one has.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Wish>) {
        let (strays, receiver) = mpsc::unbounded_channel();
        (Self { listener: Arc::default(), strays }, receiver)
    }

    fn listener(&self) -> MutexGuard<'_, Listener> {
        // Every change is whole before anything can panic.
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on SIGTERM, SIGUSR1 and SIGUSR2 are a batch system's.
    pub(crate) fn are_of_batch(&self) {
        self.listener().under_batch = true;
    }

    /// From now on SIGINT, SIGTERM and SIGHUP are told to this life of the job, for as long as it listens. SIGHUP is nothing to a detached job, and
    /// where whoever started this process has it ignored (nohup(1)).
    pub(crate) fn tell(&self, events: mpsc::Sender<Arrival>) {
        let mut listener = self.listener();
        listener.events = Some(events);
        if std::mem::replace(&mut listener.watching, true) {
            return;
        }
        let of_user = [SignalKind::interrupt(), SignalKind::hangup()].map(|kind| (kind, false));
        let of_batch = [SignalKind::user_defined1(), SignalKind::user_defined2()].map(|kind| (kind, true));
        let either = (SignalKind::terminate(), listener.under_batch);
        let watched = of_user.into_iter().chain([either]).chain(of_batch.into_iter().filter(|_| listener.under_batch));
        for (kind, time_up) in watched {
            if kind == SignalKind::hangup() && is_ignored(kind) {
                continue;
            }
            let Ok(mut stream) = signal(kind) else { continue };
            let signals = self.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if kind == SignalKind::hangup() && detached::is_detached() {
                        continue;
                    }
                    let number = kind.as_raw_value();
                    signals.pass_on(if time_up { Arrival::TimeUp(number) } else { Arrival::Signal(number) }).await;
                }
            });
        }
    }

    /// A batch system has sent this signal, here or to the daemons.
    pub(crate) async fn time_up(&self, signal: i32) {
        self.pass_on(Arrival::TimeUp(signal)).await;
    }

    /// When a batch system's last signal came.
    pub(crate) fn time_was_up(&self) -> Option<Instant> {
        self.listener().time_was_up
    }

    async fn pass_on(&self, arrival: Arrival) {
        let events = {
            let mut listener = self.listener();
            if matches!(arrival, Arrival::TimeUp(_)) {
                listener.time_was_up = Some(Instant::now());
            }
            listener.events.clone()
        };
        let left = match events {
            Some(events) => events.send(arrival).await.err().map(|unsent| unsent.0),
            None => Some(arrival),
        };
        left.and_then(|arrival| arrival.wish(None)).into_iter().for_each(|wish| self.keep(wish));
    }

    /// It is for whoever listens between two lives.
    pub(crate) fn keep(&self, wish: Wish) {
        let _ = self.strays.send(wish);
    }
}
