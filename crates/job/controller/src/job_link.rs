//! A job's messages to and from one node's daemon, over as many connections as it takes.
//!
//! ```text
//! introduced ─► connected ── breaks ──► reconnecting ── Resumed ──► connected
//!      │            │                       └─ refused, nobody listens, too long ──► lost
//!      │            ├─ Left ──► lost (as the job wanted)
//!      └─ refused   ├─ silence ──► reconnecting
//!                   └─ nonsense ──► lost
//! ```
//! A task of its own carries them, so that a slow terminal or a busy event loop never looks like a dead node. It pings some fifteen times within the silence that a
//! node may keep, many nodes at the same moment, so that this process is woken once for them, and at least every second, but no more while an answer is several times as late as any was lately: a node that is lost got its last ping just before. Silence
//! is counted only while it waits, and of that only the time in which this process could run. After a fifth of that silence the connection is
//! given up for another one, which a daemon that lives accepts: so the job's lease on the node ends soon if it does not.
//! Invariants: messages are delivered once and in order ([`Link`]); after [`NodeLoss`] none come; what a daemon has not had when its
//! connection is given up never reaches it, and a ping that reaches it late counts from when it was sent ([`mend_coordination::lease`]), so that its lease is
//! over when one that began at [`Lost::last_word`] is. Faults assumed: the connection breaks at any
//! byte; the daemon dies, stands still, or has given the job up.

use crate::detached::lock;
use crate::failover::pulse::NodePulse;
use mend_job::event::NodeLoss;
use mend_messages::auth::Purpose;
use mend_messages::daemon::{FromDaemon, JobIntroduction, Resumption, Succession, ToDaemon};
use mend_messages::job::{NodeIndex, Secret};
use mend_patience::{Patience, patiently};
use mend_wire::{Connection, HandshakeError, Link, LinkEnd, Source, connect};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Interval, interval, sleep};

/// Longest time between two pings, and how many there are at least in a lease and in the silence that is borne.
const PINGS: (Duration, u32) = (Duration::from_secs(1), 15);
/// So many nodes are pinged at the same moment, which wakes this process once for all of them; and so many such moments there are between two pings of a node.
const TOGETHER: (u32, u32) = (32, 16);
/// Bounds of the pause between two attempts to connect again.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How long one attempt may take, at most: a packet that was lost is not sent again before a second has passed.
const ATTEMPT_TIME: Duration = Duration::from_secs(2);
/// How long to try after the daemon closed the connection, as it does when it ends. One that lives answers at once.
const CLOSED_LIMIT: Duration = Duration::from_secs(2);

/// After how much silence a connection is given up for another one, at most, and which part of the silence that is borne.
const SUSPICION: (Duration, u32) = (Duration::from_secs(3), 5);
/// So many times as late as any answer to a ping was lately, one is late.
const LATE_ROUND_TRIPS: u32 = 4;
/// So many of the last answers are what is lately.
const MAX_ROUND_TRIPS: usize = 8;

/// What a node's task reports.
#[derive(Debug)]
pub enum NodeEvent {
    /// A message, with its number; 0: it came before messages were numbered.
    Message(u64, FromDaemon),
    /// Its connection broke, for this reason, and there is another one. Nothing was lost.
    Reconnected(String),
    /// No more will come.
    Lost(Lost),
}

/// How a node was lost.
#[derive(Debug)]
pub struct Lost {
    /// How that showed.
    pub how: NodeLoss,
    /// No word from here renews its lease from later on.
    pub last_word: Instant,
}

/// What it takes to go on with a job on a node.
pub struct JobLink {
    /// Number of the node in the job.
    pub node: NodeIndex,
    /// Its daemon.
    pub address: SocketAddr,
    /// The user's secret, which proves this side to the daemon.
    pub secret: Secret,
    /// How long the daemon may be silent.
    pub silence: Duration,
    /// How long it goes on with the job without a ping.
    pub lease: Duration,
    /// The job's identity, as it was introduced.
    pub identity: [u8; 16],
    /// Which start of the job this is.
    pub epoch: u64,
    /// What proves to the daemon that a new connection goes on with this start.
    pub session: [u8; 16],
    /// What was sent and delivered.
    pub link: Arc<Link<ToDaemon>>,
    /// Number of the last message on the link that was an order, not a ping; and how many there were.
    pub orders: Arc<SentOrders>,
    /// What says that this controller is still the job's; `None`: nobody else can be.
    pub pulse: Option<NodePulse>,
}

/// How far a node's orders have come.
#[derive(Debug, Default)]
pub struct SentOrders {
    /// How many were put on the link.
    count: AtomicU64,
    /// Number of the last of them on the link.
    last: AtomicU64,
}

impl SentOrders {
    /// True if so many orders were given, and the daemon has had all of them.
    pub fn all_arrived(&self, given: u64, link: &Link<ToDaemon>) -> bool {
        self.count.load(Ordering::Acquire) == given && link.acknowledged() >= self.last.load(Ordering::Acquire)
    }
}

/// How a job begins on a node, or goes on there.
pub enum Opening {
    /// It is introduced on this connection.
    Introduce(Connection, Box<JobIntroduction>),
    /// The daemon has taken this controller for the successor of a lost one, of whose orders it has not had these.
    Succeeded(Connection, VecDeque<ToDaemon>),
    /// The daemon of the lost controller could not be reached.
    Lost(Lost),
}

/// Commands, and pings.
struct Commands {
    /// Of the controller before this one.
    earlier: VecDeque<ToDaemon>,
    queue: mpsc::UnboundedReceiver<ToDaemon>,
    ping: PingTimes,
    began: Instant,
    /// Messages that were put on the link.
    pushed: u64,
    orders: Arc<SentOrders>,
    pulse: Option<NodePulse>,
    link: Arc<Link<ToDaemon>>,
    pings: Arc<SharedPings>,
}

/// The pings that were put on the link.
#[derive(Debug, Default)]
struct Pings {
    /// The first one's number on the link.
    first: u64,
    /// When the last one was sent.
    last: Option<Instant>,
    /// The daemon had one before the last was sent: it can tell how old that is.
    heard: bool,
    /// When those were sent that are not answered.
    unanswered: VecDeque<Instant>,
    /// How long the last answers took.
    round_trips: VecDeque<Duration>,
    /// What the daemon said is being taken here, which may take long: what it says next is not heard meanwhile.
    taking: bool,
}

impl Pings {
    /// The message of this number is one, and the daemon has had those up to another one.
    fn sent(&mut self, number: u64, acknowledged: u64, now: Instant) {
        match self.last {
            None => self.first = number,
            Some(_) => self.heard |= acknowledged >= self.first,
        }
        self.last = Some(now);
        self.unanswered.push_back(now);
    }

    fn answered(&mut self, now: Instant) {
        self.round_trips.extend(self.unanswered.pop_front().map(|sent| now.saturating_duration_since(sent)));
        self.round_trips.drain(..self.round_trips.len().saturating_sub(MAX_ROUND_TRIPS));
    }

    /// Whether an answer is late: several times as late as any was lately. Nobody may be there any more.
    fn is_late(&self, now: Instant) -> bool {
        let longest = self.round_trips.iter().max();
        !self.taking
            && longest
                .zip(self.unanswered.front())
                .is_some_and(|(way, sent)| now.saturating_duration_since(*sent) > *way * LATE_ROUND_TRIPS)
    }

    /// When the last one was sent that renews the lease, if the daemon can tell how old it is.
    fn last_word(&self) -> Option<Instant> {
        self.last.filter(|_| self.heard)
    }
}

/// What is known of them, for who sends and who hears.
#[derive(Debug, Default)]
struct SharedPings {
    known: Mutex<Pings>,
    /// The daemon has said something.
    answered: Notify,
}

impl SharedPings {
    /// The daemon has said something, which is about to be taken.
    fn takes(&self, message: &FromDaemon) {
        let mut known = lock(&self.known);
        known.taking = true;
        if matches!(message, FromDaemon::Pong(_)) {
            known.answered(Instant::now());
        }
        self.answered.notify_one();
    }

    /// It is taken, or never will be.
    fn taken(&self) {
        lock(&self.known).taking = false;
    }
}

impl Commands {
    fn order(&mut self, message: ToDaemon) -> ToDaemon {
        self.orders.last.store(self.pushed, Ordering::Release);
        self.orders.count.fetch_add(1, Ordering::Release);
        message
    }
}

/// When a node is pinged: at once, and then every `pause`, when others are.
#[derive(Debug)]
struct PingTimes {
    next: Interval,
    /// One of the moments, of all such.
    moment: Instant,
    pause: Duration,
}

impl PingTimes {
    fn begin(node: NodeIndex, pause: Duration) -> Self {
        static FIRST_MOMENT: LazyLock<Instant> = LazyLock::new(Instant::now);
        let moment = *FIRST_MOMENT + pause / TOGETHER.1 * (node / TOGETHER.0 % TOGETHER.1);
        Self { next: interval(pause), moment, pause }
    }

    async fn come(&mut self) {
        self.next.tick().await;
        let at = self.following(Instant::now());
        self.next.reset_at(at.into());
    }

    /// The first moment after this time.
    fn following(&self, now: Instant) -> Instant {
        let Some(passed) = now.checked_duration_since(self.moment) else { return self.moment };
        let pauses = passed.as_nanos() / self.pause.as_nanos().max(1);
        self.moment + self.pause * u32::try_from(pauses + 1).unwrap_or(u32::MAX)
    }
}

/// Returns when a ping is due, and may be sent: the time to send with it.
async fn next_ping(ping: &mut PingTimes, began: Instant, pulse: Option<&NodePulse>, pings: &SharedPings) -> u64 {
    loop {
        ping.come().await;
        while lock(&pings.known).is_late(Instant::now()) {
            pings.answered.notified().await;
        }
        let at_us = match pulse {
            Some(pulse) => pulse.ping_us(),
            None => Some(began.elapsed().as_micros() as u64),
        };
        if let Some(at_us) = at_us {
            return at_us;
        }
    }
}

impl Source for Commands {
    type Message = ToDaemon;

    async fn next(&mut self, _room: bool) -> Option<ToDaemon> {
        if let Some(message) = self.earlier.pop_front() {
            self.pushed += 1;
            return Some(self.order(message));
        }
        let message = tokio::select! {
            message = self.queue.recv() => message,
            at_us = next_ping(&mut self.ping, self.began, self.pulse.as_ref(), &self.pings) => {
                self.pushed += 1;
                lock(&self.pings.known).sent(self.pushed, self.link.acknowledged(), Instant::now());
                return Some(ToDaemon::Ping { at_us });
            }
        };
        self.pushed += 1;
        message.map(|message| self.order(message))
    }
}

/// Why a connection does not go on with the job.
enum Unresumed {
    /// It broke, too.
    Broken,
    /// The daemon does not have the job any more. What it says of the lease, if that was over there.
    Gone(Option<String>),
}

/// True if nobody listens at the address.
fn is_refused(error: &HandshakeError) -> bool {
    matches!(error, HandshakeError::Connect { source, .. } if source.kind() == std::io::ErrorKind::ConnectionRefused)
}

impl JobLink {
    /// Introduces the job, or goes on in a lost controller's place, and carries its messages until the node is lost, or has left the job as it was told to.
    pub async fn carry<F: Future<Output = bool> + Send>(
        self,
        opening: Opening,
        queue: mpsc::UnboundedReceiver<ToDaemon>,
        tell: &(impl Fn(NodeEvent) -> F + Sync),
    ) -> Lost {
        let (connection, earlier) = match opening {
            Opening::Lost(Lost { how, last_word }) => return self.lost(how, last_word),
            Opening::Succeeded(connection, earlier) => (connection, earlier),
            Opening::Introduce(connection, introduction) => match self.introduce(connection, *introduction, tell).await {
                Ok(connection) => (connection, VecDeque::new()),
                Err(how) => return self.lost(how, Instant::now()),
            },
        };
        let mut last_word = Instant::now();
        let how = self.carry_until_lost(connection, earlier, queue, tell, &mut last_word).await;
        self.lost(how, last_word)
    }

    /// Nothing renews the node's lease any more. `last_word`: of this link.
    fn lost(&self, how: NodeLoss, last_word: Instant) -> Lost {
        let renewed = self.pulse.as_ref().and_then(NodePulse::give_up);
        Lost { how, last_word: renewed.map_or(last_word, |renewed| renewed.max(last_word)) }
    }

    async fn introduce<F: Future<Output = bool> + Send>(
        &self,
        mut connection: Connection,
        introduction: JobIntroduction,
        tell: &(impl Fn(NodeEvent) -> F + Sync),
    ) -> Result<Connection, NodeLoss> {
        // Without it, what is under way may reach the daemon late, and its lease ends later than is thought here.
        let _ = connection.forget_when_dropped();
        if let Err(error) = connection.sender.send(&ToDaemon::Introduce(Box::new(introduction))).await {
            return Err(NodeLoss::Broken(error.to_string()));
        }
        let answer = answer(&mut connection, self.silence).await?;
        let refused = matches!(answer, FromDaemon::Refused { .. });
        if !tell(NodeEvent::Message(0, answer)).await || refused {
            return Err(NodeLoss::Broken("it refused the job".into()));
        }
        Ok(connection)
    }

    async fn carry_until_lost<F: Future<Output = bool> + Send>(
        &self,
        mut connection: Connection,
        earlier: VecDeque<ToDaemon>,
        queue: mpsc::UnboundedReceiver<ToDaemon>,
        tell: &(impl Fn(NodeEvent) -> F + Sync),
        last_word: &mut Instant,
    ) -> NodeLoss {
        let ping = PingTimes::begin(self.node, PINGS.0.min(self.silence.min(self.lease) / PINGS.1));
        let (orders, pulse, link) = (self.orders.clone(), self.pulse.clone(), self.link.clone());
        let pings = Arc::<SharedPings>::default();
        let mut commands = Commands { earlier, queue, ping, began: Instant::now(), pushed: 0, orders, pulse, link, pings: pings.clone() };
        loop {
            pings.taken();
            let deliver = |message| async {
                pings.takes(&message);
                let more = match message {
                    FromDaemon::Left => false,
                    message => tell(NodeEvent::Message(self.link.delivered() + 1, message)).await,
                };
                pings.taken();
                more
            };
            let suspicion = SUSPICION.0.min(self.silence / SUSPICION.1);
            let end = self.link.run(connection, Some(suspicion), &mut commands, deliver).await;
            // What was agreed on at its beginning counts, too.
            *last_word = lock(&pings.known).last_word().map_or_else(Instant::now, |sent| sent.max(*last_word));
            let silent = matches!(end, LinkEnd::Silent(_));
            let (why, limit) = match end {
                LinkEnd::Finished | LinkEnd::Unwanted => return NodeLoss::Left,
                LinkEnd::Silent(_) => (format!("not a word for {} ms", suspicion.as_millis()), self.silence.saturating_sub(suspicion)),
                LinkEnd::Nonsense(why) => return NodeLoss::Broken(why),
                LinkEnd::Closed => ("the peer closed the connection".to_owned(), CLOSED_LIMIT.min(self.silence)),
                LinkEnd::Reset => ("the peer reset the connection".to_owned(), CLOSED_LIMIT.min(self.silence)),
                LinkEnd::Broken(why) => (why, self.silence),
            };
            connection = match self.reconnected(limit, last_word).await {
                Ok(connection) => connection,
                Err(Unresumed::Broken) if silent => return NodeLoss::Silent(self.silence.as_millis() as u64),
                Err(Unresumed::Broken) => return NodeLoss::Broken(why),
                Err(Unresumed::Gone(lease)) => return NodeLoss::Gone(lease.unwrap_or(why)),
            };
            if !tell(NodeEvent::Reconnected(why)).await {
                return NodeLoss::Broken("the job has ended".into());
            }
        }
    }

    /// Another connection, which goes on where the last one ended. None within the limit is [`Unresumed::Broken`].
    async fn reconnected(&self, limit: Duration, last_word: &mut Instant) -> Result<Connection, Unresumed> {
        // One that hangs must not outlast the limit: a node that stands still takes connections.
        let attempt = ATTEMPT_TIME.min(limit / 2);
        let mut patience = Patience::with_pause(limit, attempt);
        let mut pause = RECONNECT_PAUSES.0;
        loop {
            match patiently(attempt, connect(self.address, Purpose::Job, &self.secret)).await {
                Ok(Ok(mut connection)) => {
                    let _ = connection.forget_when_dropped();
                    let resumed = self.resumed(&mut connection).await;
                    *last_word = Instant::now();
                    match resumed {
                        Ok(()) => return Ok(connection),
                        Err(Unresumed::Broken) => {}
                        Err(gone) => return Err(gone),
                    }
                }
                // Its host answers, but the daemon is gone, and with it all ranks.
                Ok(Err(error)) if is_refused(&error) => return Err(Unresumed::Gone(None)),
                Ok(Err(_)) | Err(_) => {}
            }
            if patience.is_over() {
                return Err(Unresumed::Broken);
            }
            sleep(pause).await;
            pause = (pause * 2).min(RECONNECT_PAUSES.1);
        }
    }

    /// Agrees with the daemon on what each side has had.
    async fn resumed(&self, connection: &mut Connection) -> Result<(), Unresumed> {
        let resumption = Resumption { identity: self.identity, epoch: self.epoch, session: self.session, delivered: self.link.delivered() };
        connection.sender.send(&ToDaemon::Resume(resumption)).await.map_err(|_| Unresumed::Broken)?;
        match answer(connection, self.silence).await {
            Ok(FromDaemon::Resumed { delivered }) => self.link.resume(delivered).map_err(|_| Unresumed::Broken),
            Ok(FromDaemon::LeaseOver { ms, stood_still_ms }) => Err(Unresumed::Gone(Some(lease_over(ms, stood_still_ms)))),
            // It says that the job's ranks there have ended.
            Ok(_) => Err(Unresumed::Gone(None)),
            Err(_) => Err(Unresumed::Broken),
        }
    }
}

/// Why a daemon has ended its ranks, for people. Its own delay is told if it was a tenth of the lease or more.
fn lease_over(ms: u64, stood_still_ms: u64) -> String {
    let still =
        if stood_still_ms >= ms / 10 { format!(", for {stood_still_ms} ms of which the node itself stood still,") } else { String::new() };
    format!(
        "without a word from the job's controller for {ms} ms{still} it ended its ranks; a node or network that is so slow at times needs a longer {}",
        mend_settings::LEASE.name
    )
}

/// The daemon's first message on a connection.
async fn answer(connection: &mut Connection, silence: Duration) -> Result<FromDaemon, NodeLoss> {
    match patiently(silence, connection.receiver.receive::<FromDaemon>()).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(NodeLoss::Broken(error.to_string())),
        Err(_) => Err(NodeLoss::Silent(silence.as_millis() as u64)),
    }
}

/// What a daemon says that is asked for its vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// It votes for a successor.
    Successor,
    /// It has heard the controller.
    Controller,
    /// The job is not there, or nobody listens.
    Absent,
    /// The job has left it since its lease was over.
    LeaseOver,
}

/// Asks a daemon for its vote for a successor of a job's controller, which it gives if that was silent for so long. `None` if it does not answer in time.
pub async fn ask_vote(address: SocketAddr, secret: &Secret, of: Resumption, silence_ms: u64, limit: Duration) -> Option<Vote> {
    let asking = async {
        let mut connection = match connect(address, Purpose::Job, secret).await {
            Ok(connection) => connection,
            Err(error) => return is_refused(&error).then_some(Vote::Absent),
        };
        connection.sender.send(&ToDaemon::AskVote { of, silence_ms }).await.ok()?;
        match answer(&mut connection, limit).await {
            Ok(FromDaemon::Voted { successor: true }) => Some(Vote::Successor),
            Ok(FromDaemon::Voted { successor: false }) => Some(Vote::Controller),
            Ok(FromDaemon::Refused { .. }) => Some(Vote::Absent),
            Ok(FromDaemon::LeaseOver { .. }) => Some(Vote::LeaseOver),
            _ => None,
        }
    };
    patiently(limit, asking).await.ok().flatten()
}

/// How many ranks run on a node, of all jobs: none where nobody listens. `None` if it does not answer in time.
pub async fn ranks_there(address: SocketAddr, secret: &Secret, limit: Duration) -> Option<u32> {
    let asking = async {
        let mut connection = match connect(address, Purpose::Job, secret).await {
            Ok(connection) => connection,
            Err(error) => return is_refused(&error).then_some(0),
        };
        connection.sender.send(&ToDaemon::Look).await.ok()?;
        match answer(&mut connection, limit).await {
            Ok(FromDaemon::Seen(report)) => Some(report.ranks),
            _ => None,
        }
    };
    patiently(limit, asking).await.ok().flatten()
}

/// A connection to a daemon that is asked something again and again.
pub async fn open(address: SocketAddr, secret: &Secret) -> Option<Connection> {
    connect(address, Purpose::Job, secret).await.ok()
}

/// Asks a daemon whether it confirms this controller. `ping_us`: the lease is renewed, as by a ping of this time. `None` if the connection is of no use any more.
pub async fn confirms(connection: &mut Connection, of: &Resumption, ping_us: Option<u64>) -> Option<bool> {
    connection.sender.send(&ToDaemon::AskConfirmed { of: of.clone(), ping_us }).await.ok()?;
    let Ok(FromDaemon::Confirmed { yes }) = connection.receiver.receive().await else { return None };
    Some(yes)
}

/// Takes a lost controller's place at a daemon. Returns how many orders that has had, with the connection.
///
/// # Errors
/// How the node is lost.
pub async fn succeed(address: SocketAddr, secret: &Secret, succession: Succession, limit: Duration) -> Result<(Connection, u64), NodeLoss> {
    let attempt = async {
        let mut connection = match connect(address, Purpose::Job, secret).await {
            Ok(connection) => connection,
            Err(error) if is_refused(&error) => return Err(NodeLoss::Gone("nobody listens there".into())),
            Err(error) => return Err(NodeLoss::Broken(mend_report::with_causes(&error))),
        };
        let _ = connection.forget_when_dropped();
        let sent = connection.sender.send(&ToDaemon::Succeed(Box::new(succession))).await;
        sent.map_err(|error| NodeLoss::Broken(error.to_string()))?;
        match answer(&mut connection, limit).await? {
            FromDaemon::Succeeded { orders } => Ok((connection, orders)),
            _ => Err(NodeLoss::Gone("the job's ranks there have ended".into())),
        }
    };
    patiently(limit, attempt).await.unwrap_or(Err(NodeLoss::Silent(limit.as_millis() as u64)))
}

#[cfg(test)]
mod tests;
