//! Signals to this process: told to the life of the job that runs, or to nobody between two lives.

use crate::detached;
use crate::run::Arrival;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Where signals go.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    listener: Arc<Mutex<Listener>>,
    strays: mpsc::UnboundedSender<i32>,
}

#[derive(Debug, Default)]
struct Listener {
    events: Option<mpsc::Sender<Arrival>>,
    /// Until then a signal does what it does to any process.
    watching: bool,
}

impl Signals {
    /// Nobody watches yet. The receiver gets those that come while no life of the job runs, once one has.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<i32>) {
        let (strays, receiver) = mpsc::unbounded_channel();
        (Self { listener: Arc::default(), strays }, receiver)
    }

    fn listener(&self) -> MutexGuard<'_, Listener> {
        // Every change is whole before anything can panic.
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on SIGINT, SIGTERM and SIGHUP are told to this life of the job, for as long as it listens. To a detached job SIGHUP is nothing.
    pub(crate) fn tell(&self, events: mpsc::Sender<Arrival>) {
        let mut listener = self.listener();
        listener.events = Some(events);
        if std::mem::replace(&mut listener.watching, true) {
            return;
        }
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            let Ok(mut stream) = signal(kind) else { continue };
            let signals = self.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if kind == SignalKind::hangup() && detached::is_detached() {
                        continue;
                    }
                    signals.pass_on(kind.as_raw_value()).await;
                }
            });
        }
    }

    async fn pass_on(&self, signal: i32) {
        let events = self.listener().events.clone();
        let told = match events {
            Some(events) => events.send(Arrival::Signal(signal)).await.is_ok(),
            None => false,
        };
        if !told {
            let _ = self.strays.send(signal);
        }
    }
}
