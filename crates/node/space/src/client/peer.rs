//! One target, as a client sees it: found through its node's daemon, asked over connections that are kept.
//!
//! Requests can be repeated without harm, so one whose connection broke is sent once more over a new one: the target may have been started anew. What was asked over the broken one
//! may arrive late, when others have written the same place. So that connection is given up: nothing is asked over any that was there before until the target has heard of that. A target that
//! cannot be reached is not tried again for a moment, so that a thousand reads do not wait for it one after the other.

use super::daemons::{Daemons, Limits, Unfound};
use super::leased::Leased;
use crate::link::{Fault, Link, Pieces, context, whole};
use mend_data::space::target::{Answer, Hello, MAX_IDS, Request, Wanted, Welcome};
use mend_data::space::written::Shape;
use mend_data::space::{Id, Target};
use mend_messages::auth::Purpose;
use mend_messages::job::Secret;
use mend_wire::{HandshakeError, connect};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a target that could not be reached is left alone, at first. The time doubles with each failure, up to the second one.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(16)];
/// How long a target may take that is made, since its database has to be written, or that begins in a bucket, since all its entries have to be read.
const MAKING: Duration = Duration::from_secs(40);
/// How long an answer is waited for that is late already.
const LEAST_ANSWER_TIME: Duration = Duration::from_millis(1);
/// Connections that are kept.
const MAX_IDLE_CONNECTIONS: usize = 16;
/// An answer is late that takes so many times as long as those before.
const TIMES_USUAL: u32 = 4;
/// What part of the difference a shorter answer takes off the time that is usual.
const FORGETS: u64 = 8;
/// Connections to a target that are begun at once. A target, and the daemon that finds four of one node, take the handshakes of [`mend_wire::MAX_PENDING_OF_PEER`].
const BEGUN: usize = 4;

/// A target.
#[derive(Debug)]
pub struct Peer {
    /// What it is.
    pub target: Target,
    /// Daemons that can serve it, its own first; and until when one is left alone that could not.
    daemons: Vec<(SocketAddr, Mutex<Option<Instant>>)>,
    space: Id,
    secret: Secret,
    patience: Duration,
    create: bool,
    /// How its client finds targets.
    finding: Arc<Daemons>,
    /// Which client it is, and what that knows for certain until it changes it.
    leased: Arc<Leased>,
    idle: Mutex<Vec<Link>>,
    /// Number of the next connection.
    next: AtomicU64,
    /// Connections whose answers are not waited for any more, as long as the target has not been told.
    given_up: Mutex<Vec<u64>>,
    /// Turns to begin a connection.
    turns: Semaphore,
    /// Until when it is left alone, how long that was, and why.
    lost: Mutex<Option<(Instant, Duration, Fault)>>,
    /// How long its answers to reads took lately, microseconds: at once as long as a longer one, and shorter bit by bit.
    usual: AtomicU64,
    /// Somebody asked another one because this one said nothing, and it has said nothing since.
    silent: AtomicBool,
    /// It did not give what can be had elsewhere, too, for longer than is usual of it, and has answered no read since. Its process may answer all else: a medium can stand still.
    unheard: AtomicBool,
    /// Reads whose answers are waited for.
    reading: AtomicUsize,
}

/// A read whose answer is waited for.
struct Reading<'a>(&'a AtomicUsize);

impl<'a> Reading<'a> {
    fn of(reading: &'a AtomicUsize, request: &Request) -> Option<Self> {
        matches!(request, Request::Read { .. }).then(|| {
            reading.fetch_add(1, Ordering::Relaxed);
            Self(reading)
        })
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What came of a request whose answer is not waited for long.
pub(super) enum Shortly {
    Answered(Result<(Answer, Pieces), Fault>),
    /// No answer yet, on the connection over which it was asked at that time; nothing was asked if there was none.
    Late(Option<(Box<Link>, Instant)>),
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they hold is only ever changed as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peer {
    /// A target of a space, which these other daemons can serve, too. One that is silent for longer than `patience` is lost. With `create` its directory is made.
    pub(super) fn new(
        target: Target,
        others: &[SocketAddr],
        space: Id,
        secret: Secret,
        patience: Duration,
        create: bool,
        (finding, leased): (Arc<Daemons>, Arc<Leased>),
    ) -> Self {
        // One that is made is made by its own node, which must have what that takes.
        let others = if create { &[] } else { others };
        let daemons = std::iter::once(&target.address).chain(others).map(|address| (*address, Mutex::default())).collect();
        Self {
            target,
            daemons,
            space,
            secret,
            patience,
            create,
            finding,
            leased,
            idle: Mutex::default(),
            next: AtomicU64::new(0),
            given_up: Mutex::default(),
            turns: Semaphore::new(BEGUN),
            lost: Mutex::default(),
            usual: AtomicU64::new(0),
            silent: AtomicBool::new(false),
            unheard: AtomicBool::new(false),
            reading: AtomicUsize::new(0),
        }
    }

    /// Asks, and waits for the answer with the bytes behind it.
    ///
    /// # Errors
    /// [`Fault`]. What the target itself refuses is [`Fault::Failed`].
    pub fn ask(&self, request: &Request, payload: &[u8]) -> Result<(Answer, Vec<u8>), Fault> {
        self.ask_and_tell(request, payload, &|| {}).map(|(answer, pieces)| (answer, whole(pieces)))
    }

    /// As [`Self::ask`], with a file's bytes in pieces of a block each; `begun` is called when an answer begins to come.
    pub(super) fn ask_and_tell(&self, request: &Request, payload: &[u8], begun: &dyn Fn()) -> Result<(Answer, Pieces), Fault> {
        let _changing = self.leased.changing(request.changed());
        self.ask_over_any(request, payload, begun)
    }

    fn ask_over_any(&self, request: &Request, payload: &[u8], begun: &dyn Fn()) -> Result<(Answer, Pieces), Fault> {
        let _reading = Reading::of(&self.reading, request);
        let asked = Instant::now();
        let begun = &|| {
            self.silent.store(false, Ordering::Relaxed);
            self.took(request, asked);
            begun();
        };
        if let Some(mut link) = self.kept() {
            match exchange(&mut link, request, payload, begun) {
                Ok(answered) => return self.answered(link, answered),
                Err(_) => self.give_up(link),
            }
        }
        self.ask_anew(request, payload, begun)
    }

    /// Asks over a connection that was kept, and waits for the [usual time](Self::unusual) at most, of which `least` is the least.
    pub(super) fn ask_shortly(&self, request: &Request, least: Duration) -> Shortly {
        let Some(mut link) = self.kept() else { return Shortly::Late(None) };
        let asked = Instant::now();
        let begun = &|| {
            self.silent.store(false, Ordering::Relaxed);
            self.took(request, asked);
        };
        let answered = link.ask(request, &[]).and_then(|()| match link.comes_within(self.unusual(least))? {
            true => link.answer(begun).map(Some),
            false => Ok(None),
        });
        match answered {
            Ok(Some(answered)) => Shortly::Answered(self.answered(link, answered)),
            Ok(None) => Shortly::Late(Some((Box::new(link), asked))),
            Err(_) => {
                self.give_up(link);
                Shortly::Late(None)
            }
        }
    }

    /// Waits on for an answer that is late, as long as for any.
    pub(super) fn wait_on(&self, request: &Request, link: Link, asked: Instant) {
        let _reading = Reading::of(&self.reading, request);
        match self.end(link, asked) {
            Some(_) => self.took(request, asked),
            None => drop(self.ask_over_any(request, &[], &|| {})),
        }
    }

    /// Reads from one that was [unheard](Self::is_unheard), so that it is known when it gives something again; not if somebody does so, or it is left alone.
    pub(super) fn try_again(self: &Arc<Self>, request: &Request) {
        let is_alone = || held(&self.lost).as_ref().is_some_and(|(until, _, _)| Instant::now() < *until);
        if !self.is_unheard() || is_alone() || self.reading.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let (peer, request) = (self.clone(), request.clone());
        let begun = std::thread::Builder::new().name("read".to_owned()).spawn(move || {
            let _reading = Reading(&peer.reading);
            drop(peer.ask_over_any(&request, &[], &|| {}));
        });
        if begun.is_err() {
            self.reading.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes how long an answer took.
    pub(super) fn took(&self, request: &Request, asked: Instant) {
        if matches!(request, Request::Read { .. }) {
            self.unheard.store(false, Ordering::Relaxed);
            let took = u64::try_from(asked.elapsed().min(self.patience).as_micros()).unwrap_or(u64::MAX);
            let usual = self.usual.load(Ordering::Relaxed);
            // Of two that come at once either may count.
            self.usual.store(took.max(usual - usual.saturating_sub(took) / FORGETS), Ordering::Relaxed);
        }
    }

    /// After how long without an answer this is not what is usual of it.
    pub(super) fn unusual(&self, least: Duration) -> Duration {
        self.usual().saturating_mul(TIMES_USUAL).max(least).min(self.patience)
    }

    /// How long its answers to reads took lately.
    pub fn usual(&self) -> Duration {
        Duration::from_micros(self.usual.load(Ordering::Relaxed))
    }

    /// A connection that was kept and can be used.
    fn kept(&self) -> Option<Link> {
        if held(&self.given_up).is_empty() { held(&self.idle).pop() } else { None }
    }

    /// The answer to what was asked over it is not waited for any more.
    fn give_up(&self, link: Link) {
        held(&self.given_up).push(link.number);
        link.abandon();
        // Those that are kept are as old.
        held(&self.idle).clear();
    }

    /// Sends a request over a connection that was kept; `None` if there is none that takes it.
    pub(super) fn begin(&self, request: &Request) -> Option<Link> {
        let mut link = self.kept()?;
        match link.ask(request, &[]) {
            Ok(()) => Some(link),
            Err(_) => {
                self.give_up(link);
                None
            }
        }
    }

    /// Waits for the answer to a request that was sent so at that time; `None` if none comes: it is to be asked again then.
    pub(super) fn end(&self, mut link: Link, sent: Instant) -> Option<Result<(Answer, Vec<u8>), Fault>> {
        match self.wait(&mut link, sent.elapsed()) {
            Ok(answered) => Some(self.answered(link, answered).map(|(answer, pieces)| (answer, whole(pieces)))),
            Err(_) => {
                self.give_up(link);
                None
            }
        }
    }

    fn wait(&self, link: &mut Link, waited: Duration) -> io::Result<(Answer, Pieces)> {
        // Others were waited for before it.
        let late = waited > self.patience / 8;
        if late {
            link.wait_at_most(self.patience.saturating_sub(waited).max(LEAST_ANSWER_TIME))?;
        }
        let answered = link.answer(&|| self.silent.store(false, Ordering::Relaxed))?;
        if late {
            link.wait_at_most(self.patience)?;
        }
        Ok(answered)
    }

    /// Asks over a new connection.
    fn ask_anew(&self, request: &Request, payload: &[u8], begun: &dyn Fn()) -> Result<(Answer, Pieces), Fault> {
        // Those that are kept are as old.
        held(&self.idle).clear();
        if let Some((until, _, fault)) = &*held(&self.lost)
            && Instant::now() < *until
        {
            return Err(fault.clone());
        }
        let attempt = || -> Result<io::Result<_>, Fault> {
            let mut link = self.dial()?;
            match exchange(&mut link, request, payload, begun) {
                Ok(answered) => Ok(Ok((link, answered))),
                Err(error) => {
                    self.give_up(link);
                    Ok(Err(error))
                }
            }
        };
        let asked = match attempt() {
            // The process that was found has ended because another node had taken over: there is another one.
            Ok(Err(error)) if self.daemons.len() > 1 && !is_silence(&error) => attempt(),
            asked => asked,
        };
        let asked = asked.and_then(|answered| answered.map_err(|error| self.broken(&error)));
        match asked {
            Ok((link, answered)) => {
                *held(&self.lost) = None;
                self.answered(link, answered)
            }
            Err(fault) => {
                let mut lost = held(&self.lost);
                let pause = lost.as_ref().map_or(PAUSES[0], |(_, pause, _)| (*pause * 2).min(PAUSES[1]));
                *lost = Some((Instant::now() + pause, pause, fault.clone()));
                Err(fault)
            }
        }
    }

    /// Closes the connections that are kept.
    pub(super) fn rest(&self) {
        held(&self.idle).clear();
    }

    /// True if it could not be reached when it was asked last.
    pub fn is_lost(&self) -> bool {
        held(&self.lost).is_some()
    }

    /// Why it could not be reached when it was asked last; `None`: it could.
    pub(super) fn loss(&self) -> Option<Fault> {
        held(&self.lost).as_ref().map(|(_, _, fault)| fault.clone())
    }

    /// Notes that it has said nothing for a moment.
    pub(super) fn is_silent_now(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Notes that it gives nothing for longer than is usual of it.
    pub(super) fn is_unheard_now(&self) {
        self.is_silent_now();
        self.unheard.store(true, Ordering::Relaxed);
    }

    /// True if it gave nothing for so long, and has answered no read since.
    pub(super) fn is_unheard(&self) -> bool {
        self.unheard.load(Ordering::Relaxed)
    }

    /// True if another one that has the same should be asked first: it is lost, or said nothing when it was asked last.
    pub(super) fn is_doubtful(&self) -> bool {
        self.silent.load(Ordering::Relaxed) || self.is_lost()
    }

    fn answered(&self, link: Link, (answer, payload): (Answer, Pieces)) -> Result<(Answer, Pieces), Fault> {
        let mut idle = held(&self.idle);
        if idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push(link);
        }
        match answer {
            Answer::Failed { kind, why } => Err(Fault::Failed { target: self.target.name(), kind, why }),
            answer => Ok((answer, payload)),
        }
    }

    /// Length and time of the objects that it has of these files, which ranks write.
    pub fn shapes(&self, files: Vec<Id>) -> Result<Vec<Vec<Shape>>, Fault> {
        let count = files.len();
        let (_, bytes) = self.ask(&Request::Shapes { files }, &[])?;
        self.shapes_told(&bytes, count)
    }

    /// What it answered to that.
    pub(super) fn shapes_told(&self, bytes: &[u8], count: usize) -> Result<Vec<Vec<Shape>>, Fault> {
        postcard::from_bytes(bytes).ok().filter(|told: &Vec<Vec<Shape>>| told.len() == count).ok_or_else(|| nonsense(self))
    }

    fn lost(&self, why: impl Into<String>, hint: impl Into<String>) -> Fault {
        Fault::Lost { target: self.target.name(), why: why.into(), hint: hint.into(), silent_ms: None }
    }

    fn broken(&self, error: &io::Error) -> Fault {
        if !is_silence(error) {
            return self.lost(error.to_string(), "");
        }
        let ms = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
        let why = format!("it said nothing for {ms} ms");
        Fault::Lost { target: self.target.name(), why, hint: String::new(), silent_ms: Some(ms) }
    }

    /// Finds the target through its daemon, and connects to it.
    fn dial(&self) -> Result<Link, Fault> {
        // In a thread of its own: the caller may be one that drives other connections.
        std::thread::scope(|scope| {
            let dialling = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| self.broken(&error))?;
                let begins = self.create || self.target.is_in_bucket();
                let limits = Limits { reached: self.patience, answered: if begins { self.patience.max(MAKING) } else { self.patience } };
                let meet = |address: SocketAddr| {
                    // Until the target is reached: others of its node are looked for meanwhile.
                    let daemon = self.finding.at(address);
                    let wanted = Wanted { space: self.space, directory: self.target.directory.clone(), create: self.create };
                    let port = daemon.find(&runtime, &wanted, &self.secret, limits).map_err(|unfound| match unfound {
                        Unfound::Silent => self.broken(&io::ErrorKind::TimedOut.into()),
                        Unfound::Told { why, hint } => self.lost(why, hint),
                    })?;
                    let meeting = async { tokio::time::timeout(self.patience, self.meet(SocketAddr::new(address.ip(), port))).await };
                    runtime.block_on(meeting).unwrap_or_else(|_| Err(self.broken(&io::ErrorKind::TimedOut.into())))
                };
                // Nobody closes the turns.
                let _turn = runtime.block_on(self.turns.acquire());
                self.first_of(meet)
            });
            dialling.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked))
        })
    }

    /// Meets the target where the first of its daemons serves it, always in the same order, so that all clients find it at the same one. What its own daemon said counts if none does.
    fn first_of<T>(&self, meet: impl Fn(SocketAddr) -> Result<T, Fault>) -> Result<T, Fault> {
        let mut told = None;
        for pass in [false, true] {
            for (daemon, alone) in &self.daemons {
                let is_alone = held(alone).is_some_and(|until| Instant::now() < until);
                // Those that are left alone come last, if they are all there is.
                if is_alone != pass && self.daemons.len() > 1 {
                    continue;
                }
                match meet(*daemon) {
                    Ok(met) => {
                        *held(alone) = None;
                        return Ok(met);
                    }
                    Err(fault) => {
                        *held(alone) = Some(Instant::now() + PAUSES[1]);
                        told.get_or_insert(fault);
                    }
                }
            }
            if told.is_some() {
                break;
            }
        }
        Err(told.unwrap_or_else(|| self.lost("it has no daemon", "")))
    }

    async fn meet(&self, address: SocketAddr) -> Result<Link, Fault> {
        let refused = |error: HandshakeError| self.lost(mend_report::with_causes(&error), error.hint());
        let mut connection = connect(address, Purpose::Target, &self.secret).await.map_err(refused)?;
        let ours = mend_wire::random_bytes();
        let encrypts = mend_settings::ENCRYPT_DATA.choice().map_err(|error| self.lost(mend_report::with_causes(&error), ""))? == "on";
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let given_up = held(&self.given_up).iter().copied().take(MAX_IDS).collect();
        let hello = Hello { space: self.space, nonce: ours, encrypts, client: self.leased.client, number, given_up };
        connection.sender.send(&hello).await.map_err(|error| self.lost(mend_report::with_causes(&error), ""))?;
        let (theirs, encrypts) = match connection.receiver.receive::<Welcome>().await {
            Ok(Welcome::Yes { nonce, encrypts: theirs }) => (nonce, encrypts || theirs),
            Ok(Welcome::Refused) => return Err(self.lost("it is a target of another data space", "")),
            Err(error) => return Err(self.lost(mend_report::with_causes(&error), "")),
        };
        let stream = connection.into_tcp().ok_or_else(|| self.lost("it said more than it was asked", ""))?;
        let keys = mend_cipher::initiator(&self.secret, [&ours, &theirs], &context(&self.space));
        let stream = stream.into_std().map_err(|error| self.broken(&error))?;
        let mut link = Link::new(stream, keys, encrypts, Some(self.patience)).map_err(|error| self.broken(&error))?;
        link.number = number;
        held(&self.given_up).retain(|number| !hello.given_up.contains(number));
        Ok(link)
    }
}

/// True if nothing was said for too long.
fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// What a target answered is no answer to what it was asked.
pub(super) fn nonsense(peer: &Peer) -> Fault {
    Fault::Other(format!("target {} answered something else", peer.target.name()))
}

fn exchange(link: &mut Link, request: &Request, payload: &[u8], begun: &dyn Fn()) -> io::Result<(Answer, Pieces)> {
    link.ask(request, payload)?;
    link.answer(begun)
}
