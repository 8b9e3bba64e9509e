//! Daemons, as one client finds targets by them. Who looks for several targets of a node at the same time asks over one connection, one after the other: each handshake
//! costs more than a question.

use mend_data::space::target::{Found, Wanted};
use mend_messages::auth::Purpose;
use mend_messages::job::Secret;
use mend_wire::{Connection, connect};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex as TurnMutex, MutexGuard};
use tokio::time::timeout;

/// How long one that asks is waited for, before another connects by itself: what was asked for may take long to begin.
const TURN_TIMEOUT: Duration = Duration::from_millis(50);

/// Daemons that somebody asks now. A connection is closed when nobody does any more.
#[derive(Debug, Default)]
pub(super) struct Daemons(Mutex<HashMap<SocketAddr, Weak<SharedConnection>>>);

/// What those who ask one daemon have in common.
#[derive(Debug, Default)]
struct SharedConnection {
    kept: TurnMutex<Kept>,
    /// Whoever has the turn is connecting: the others cannot do it any sooner.
    connects: AtomicBool,
}

#[derive(Debug, Default)]
enum Kept {
    #[default]
    Nothing,
    Connection(Box<Asking>),
    /// It could not be reached, as was known then.
    Failure(Instant, Unfound),
}

/// Whoever has it may find a connection that another one has made, and leaves its own to the next.
#[derive(Debug)]
pub(super) struct Daemon {
    address: SocketAddr,
    place: Arc<SharedConnection>,
}

/// Why a daemon named no port.
#[derive(Clone, Debug)]
pub(super) enum Unfound {
    /// It said nothing in time.
    Silent,
    /// It is not to be had, or refuses.
    Told {
        /// What stands in the way.
        why: String,
        /// What to do; may be empty.
        hint: String,
    },
}

impl Unfound {
    fn told(error: &dyn std::error::Error, hint: &str) -> Self {
        Self::Told { why: mend_report::with_causes(error), hint: hint.to_owned() }
    }
}

/// How long a daemon is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Until it has proven itself.
    pub reached: Duration,
    /// Until it has answered: it may have to make the target.
    pub answered: Duration,
}

impl Daemons {
    /// The daemon at an address, to be held as long as its target is being reached.
    pub fn at(&self, address: SocketAddr) -> Daemon {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = all.get(&address).and_then(Weak::upgrade).unwrap_or_default();
        all.retain(|_, place| place.strong_count() > 0);
        all.insert(address, Arc::downgrade(&place));
        Daemon { address, place }
    }
}

impl Daemon {
    /// The port of a target, as the daemon says. `runtime` drives nothing meanwhile.
    pub fn find(&self, runtime: &Runtime, wanted: &Wanted, secret: &Secret, limits: Limits) -> Result<u16, Unfound> {
        let came = Instant::now();
        match runtime.block_on(self.turn()) {
            Some(mut kept) => self.find_over((&mut kept, &self.place.connects), came, wanted, secret, limits),
            // Over a connection that nobody else waits for.
            None => self.find_over((&mut Kept::Nothing, &AtomicBool::default()), came, wanted, secret, limits),
        }
    }

    /// Over what is kept, or a new connection, which is kept then. `connects` is true while one is made.
    fn find_over(
        &self,
        (kept, connects): (&mut Kept, &AtomicBool),
        came: Instant,
        wanted: &Wanted,
        secret: &Secret,
        limits: Limits,
    ) -> Result<u16, Unfound> {
        match std::mem::take(kept) {
            Kept::Connection(mut asking) => {
                let asked = Instant::now();
                match asking.ask(wanted, limits.answered) {
                    Ok(found) => {
                        *kept = Kept::Connection(asking);
                        return told(found);
                    }
                    Err(unfound) if asked.elapsed() >= limits.answered => return Err(unfound),
                    // The daemon was started anew, or takes no second question.
                    Err(_) => {}
                }
            }
            // Found out while it was waited for.
            Kept::Failure(at, unfound) if at >= came => {
                *kept = Kept::Failure(at, unfound.clone());
                return Err(unfound);
            }
            Kept::Nothing | Kept::Failure(..) => {}
        }
        connects.store(true, Ordering::Relaxed);
        let connected = Asking::new(self.address, secret, limits.reached);
        connects.store(false, Ordering::Relaxed);
        match connected {
            Ok(mut asking) => {
                let found = asking.ask(wanted, limits.answered)?;
                *kept = Kept::Connection(Box::new(asking));
                told(found)
            }
            Err(unfound) => {
                *kept = Kept::Failure(Instant::now(), unfound.clone());
                Err(unfound)
            }
        }
    }

    /// `None` where another one has asked for long.
    async fn turn(&self) -> Option<MutexGuard<'_, Kept>> {
        loop {
            match timeout(TURN_TIMEOUT, self.place.kept.lock()).await {
                Ok(turn) => return Some(turn),
                Err(_) if self.place.connects.load(Ordering::Relaxed) => {}
                Err(_) => return None,
            }
        }
    }
}

fn told(found: Found) -> Result<u16, Unfound> {
    match found {
        Found::Port(port) => Ok(port),
        Found::Refused { why, hint } => Err(Unfound::Told { why, hint }),
    }
}

/// A connection to a daemon, and what drives it.
#[derive(Debug)]
struct Asking {
    connection: Connection,
    runtime: Runtime,
}

impl Asking {
    fn new(address: SocketAddr, secret: &Secret, limit: Duration) -> Result<Self, Unfound> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| Unfound::told(&error, ""))?;
        let reached = runtime.block_on(async { timeout(limit, connect(address, Purpose::Space, secret)).await });
        let connection = reached.map_err(|_| Unfound::Silent)?.map_err(|error| Unfound::told(&error, error.hint()))?;
        Ok(Self { connection, runtime })
    }

    fn ask(&mut self, wanted: &Wanted, limit: Duration) -> Result<Found, Unfound> {
        let Self { connection, runtime } = self;
        let asked = async {
            connection.sender.send(wanted).await.map_err(|error| Unfound::told(&error, ""))?;
            let answered = connection.receiver.receive().await;
            answered.map_err(|error| Unfound::told(&error, "install the same release of Mend on every node"))
        };
        runtime.block_on(async { timeout(limit, asked).await }).unwrap_or(Err(Unfound::Silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_wire::Greeted;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use tokio::net::TcpListener;

    const SECRET: Secret = Secret([7; 32]);
    const LIMITS: Limits = Limits { reached: Duration::from_secs(20), answered: Duration::from_secs(20) };
    /// A target that begins when the test says so.
    const SLOW_TARGET: &str = "/slow";

    /// A daemon that answers so many questions per connection.
    struct Served {
        address: SocketAddr,
        connections: Arc<AtomicUsize>,
        begin_slow: tokio::sync::mpsc::UnboundedSender<()>,
    }

    async fn answer(
        stream: tokio::net::TcpStream,
        questions: usize,
        slow: &TurnMutex<tokio::sync::mpsc::UnboundedReceiver<()>>,
    ) -> Option<()> {
        let mut connection = Greeted::accepted(stream, &[Purpose::Space]).await.ok()?.prove_as_acceptor(&SECRET, &[]).await.ok()?;
        for _ in 0..questions {
            let wanted: Wanted = connection.receiver.receive().await.ok()?;
            if wanted.directory == SLOW_TARGET {
                slow.lock().await.recv().await;
            }
            let port = wanted.directory.strip_prefix("/port/").and_then(|port| port.parse().ok());
            let refused = Found::Refused { why: "it has no number".into(), hint: String::new() };
            connection.sender.send(&port.map_or(refused, Found::Port)).await.ok()?;
        }
        Some(())
    }

    fn daemon(questions: usize) -> Served {
        let (said, told) = mpsc::channel();
        let (begin_slow, slow) = tokio::sync::mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        std::thread::spawn(move || {
            Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                said.send(listener.local_addr().unwrap()).unwrap();
                let slow = Arc::new(TurnMutex::new(slow));
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    counted.fetch_add(1, Ordering::Relaxed);
                    let slow = slow.clone();
                    tokio::spawn(async move { answer(stream, questions, &slow).await });
                }
            });
        });
        Served { address: told.recv().unwrap(), connections, begin_slow }
    }

    fn find(daemon: &Daemon, directory: &str, limits: Limits) -> Result<u16, Unfound> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        daemon.find(&runtime, &Wanted { space: [1; 16], directory: directory.to_owned(), create: false }, &SECRET, limits)
    }

    fn find_all(address: SocketAddr, limits: Limits) -> Vec<Result<u16, Unfound>> {
        let daemons = Daemons::default();
        // All are there before the first asks.
        let asking: Vec<(Daemon, String)> = (1..=8).map(|port| (daemons.at(address), format!("/port/{port}"))).collect();
        std::thread::scope(|scope| {
            let asked: Vec<_> = asking.iter().map(|(daemon, directory)| scope.spawn(move || find(daemon, directory, limits))).collect();
            asked.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn whoever_asks_at_the_same_time_shares_a_connection() {
        let served = daemon(usize::MAX);
        let found: Vec<u16> = find_all(served.address, LIMITS).into_iter().map(Result::unwrap).collect();
        assert_eq!(found, [1, 2, 3, 4, 5, 6, 7, 8]);
        // On a busy machine some do not wait for their turn.
        assert!(served.connections.load(Ordering::Relaxed) < 8);
    }

    #[test]
    fn one_after_the_other_shares_it_too_and_a_refusal_ends_nothing() {
        let served = daemon(usize::MAX);
        let daemons = Daemons::default();
        let daemon = daemons.at(served.address);
        assert_eq!(find(&daemon, "/port/3", LIMITS).unwrap(), 3);
        assert!(matches!(find(&daemon, "/other", LIMITS), Err(Unfound::Told { why, .. }) if why == "it has no number"));
        assert_eq!(find(&daemons.at(served.address), "/port/4", LIMITS).unwrap(), 4);
        assert_eq!(served.connections.load(Ordering::Relaxed), 1);
        drop(daemon);
        assert_eq!(find(&daemons.at(served.address), "/port/5", LIMITS).unwrap(), 5);
        assert_eq!(served.connections.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_daemon_that_takes_one_question_per_connection_is_asked_over_others() {
        let found: Vec<u16> = find_all(daemon(1).address, LIMITS).into_iter().map(Result::unwrap).collect();
        assert_eq!(found, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn one_that_is_answered_late_holds_up_no_other() {
        let served = daemon(usize::MAX);
        let daemons = Daemons::default();
        let (slow, other) = (daemons.at(served.address), daemons.at(served.address));
        std::thread::scope(|scope| {
            let late = scope.spawn(move || find(&slow, SLOW_TARGET, LIMITS));
            while served.connections.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(find(&other, "/port/2", LIMITS).unwrap(), 2);
            served.begin_slow.send(()).unwrap();
            assert!(late.join().unwrap().is_err());
        });
    }

    #[test]
    fn a_daemon_that_says_nothing_is_waited_for_once() {
        // Connections are taken by the kernel, and by nobody else.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let short = Limits { reached: Duration::from_millis(700), answered: Duration::from_millis(700) };
        let found = find_all(listener.local_addr().unwrap(), short);
        assert!(found.iter().all(|found| matches!(found, Err(Unfound::Silent))), "{found:?}");
        listener.set_nonblocking(true).unwrap();
        let connections = std::iter::from_fn(|| listener.accept().ok()).count();
        assert!((1..8).contains(&connections), "{connections}");
    }
}
