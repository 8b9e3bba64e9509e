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
//! node may keep, and at least every second. Silence
//! is counted only while it waits, and of that only the time in which this process could run. After a fifth of that silence the connection is
//! given up for another one, which a daemon that lives accepts: so the job's lease on the node ends soon if it does not.
//! Invariants: messages are delivered once and in order ([`Link`]); after [`NodeLoss`] none come; what a daemon has not had when its
//! connection is given up never reaches it, so that its lease ends by [`Lost::last_word`]. Faults assumed: the connection breaks at any
//! byte; the daemon dies, stands still, or has given the job up.

use mend_job::event::NodeLoss;
use mend_messages::auth::Purpose;
use mend_messages::daemon::{FromDaemon, JobIntroduction, Resumption, ToDaemon};
use mend_messages::job::Secret;
use mend_patience::{Patience, patiently};
use mend_wire::{Connection, HandshakeError, Link, LinkEnd, Source, connect};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

/// Longest time between two pings, and how many there are at least in a lease and in the silence that is borne.
const PINGS: (Duration, u32) = (Duration::from_secs(1), 15);
/// Bounds of the pause between two attempts to connect again.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How long one attempt may take, at most: a packet that was lost is not sent again before a second has passed.
const ATTEMPT_TIME: Duration = Duration::from_secs(2);
/// How long to try after the daemon closed the connection, as it does when it ends. One that lives answers at once.
const CLOSED_LIMIT: Duration = Duration::from_secs(2);

/// After how much silence a connection is given up for another one, at most, and which part of the silence that is borne.
const SUSPICION: (Duration, u32) = (Duration::from_secs(3), 5);

/// What a node's task reports.
#[derive(Debug)]
pub enum NodeEvent {
    /// A message.
    Message(FromDaemon),
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
    /// No word from here reaches its daemon after this.
    pub last_word: Instant,
}

/// What it takes to go on with a job on a node.
pub struct JobLink {
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
    pub link: Link<ToDaemon>,
}

/// Commands, and pings.
struct Commands {
    queue: mpsc::UnboundedReceiver<ToDaemon>,
    ping: Interval,
    began: Instant,
}

impl Source for Commands {
    type Message = ToDaemon;

    async fn next(&mut self, _room: bool) -> Option<ToDaemon> {
        tokio::select! {
            message = self.queue.recv() => message,
            _ = self.ping.tick() => Some(ToDaemon::Ping { at_us: self.began.elapsed().as_micros() as u64 }),
        }
    }
}

/// Why a connection does not go on with the job.
enum Unresumed {
    /// It broke, too.
    Broken,
    /// The daemon does not have the job any more.
    Gone,
}

/// True if nobody listens at the address.
fn is_refused(error: &HandshakeError) -> bool {
    matches!(error, HandshakeError::Connect { source, .. } if source.kind() == std::io::ErrorKind::ConnectionRefused)
}

impl JobLink {
    /// Introduces the job and carries its messages until the node is lost, or has left the job as it was told to.
    pub async fn carry<F: Future<Output = bool> + Send>(
        self,
        connection: Connection,
        introduction: JobIntroduction,
        queue: mpsc::UnboundedReceiver<ToDaemon>,
        tell: &(impl Fn(NodeEvent) -> F + Sync),
    ) -> Lost {
        let mut last_word = Instant::now();
        let how = self.carry_until_lost(connection, introduction, queue, tell, &mut last_word).await;
        Lost { how, last_word }
    }

    async fn carry_until_lost<F: Future<Output = bool> + Send>(
        &self,
        mut connection: Connection,
        introduction: JobIntroduction,
        queue: mpsc::UnboundedReceiver<ToDaemon>,
        tell: &(impl Fn(NodeEvent) -> F + Sync),
        last_word: &mut Instant,
    ) -> NodeLoss {
        // Without it, what is under way may reach the daemon late, and its lease ends later than is thought here.
        let _ = connection.forget_when_dropped();
        if let Err(error) = connection.sender.send(&ToDaemon::Introduce(Box::new(introduction))).await {
            return NodeLoss::Broken(error.to_string());
        }
        let answer = match self.answer(&mut connection).await {
            Ok(answer) => answer,
            Err(how) => return how,
        };
        let refused = matches!(answer, FromDaemon::Refused { .. });
        if !tell(NodeEvent::Message(answer)).await || refused {
            return NodeLoss::Broken("it refused the job".into());
        }
        let mut ping = interval(PINGS.0.min(self.silence.min(self.lease) / PINGS.1));
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut commands = Commands { queue, ping, began: Instant::now() };
        loop {
            let deliver = |message| async {
                match message {
                    FromDaemon::Left => false,
                    message => tell(NodeEvent::Message(message)).await,
                }
            };
            let suspicion = SUSPICION.0.min(self.silence / SUSPICION.1);
            let end = self.link.run(connection, Some(suspicion), &mut commands, deliver).await;
            *last_word = Instant::now();
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
                Err(Unresumed::Gone) => return NodeLoss::Gone(why),
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
                        Err(Unresumed::Gone) => return Err(Unresumed::Gone),
                    }
                }
                // Its host answers, but the daemon is gone, and with it all ranks.
                Ok(Err(error)) if is_refused(&error) => return Err(Unresumed::Gone),
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
        match self.answer(connection).await {
            Ok(FromDaemon::Resumed { delivered }) => self.link.resume(delivered).map_err(|_| Unresumed::Broken),
            // It says that the job's ranks there have ended.
            Ok(_) => Err(Unresumed::Gone),
            Err(_) => Err(Unresumed::Broken),
        }
    }

    /// The daemon's first message on a connection.
    async fn answer(&self, connection: &mut Connection) -> Result<FromDaemon, NodeLoss> {
        match patiently(self.silence, connection.receiver.receive::<FromDaemon>()).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(NodeLoss::Broken(error.to_string())),
            Err(_) => Err(NodeLoss::Silent(self.silence.as_millis() as u64)),
        }
    }
}
