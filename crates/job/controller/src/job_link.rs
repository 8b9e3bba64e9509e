//! A job's messages to and from one node's daemon, over as many connections as it takes.
//!
//! ```text
//! introduced ─► connected ── breaks ──► reconnecting ── Resumed ──► connected
//!      │            │                       └─ refused, nobody listens, too long ──► lost
//!      │            ├─ Left ──► lost (as the job wanted)
//!      └─ refused   └─ silence, nonsense ──► lost
//! ```
//! A task of its own carries them, so that a slow terminal or a busy event loop never looks like a dead node. It pings every second. Silence
//! is counted only while it waits, and of that only the time in which this process could run.
//! Invariants: messages are delivered once and in order ([`Link`]); after [`NodeLoss`] none come. Faults assumed: the connection breaks at any
//! byte; the daemon dies, stands still, or has given the job up.

use mend_job::event::NodeLoss;
use mend_messages::auth::Purpose;
use mend_messages::daemon::{FromDaemon, JobIntroduction, Resumption, ToDaemon};
use mend_messages::job::Secret;
use mend_patience::{Patience, patiently};
use mend_wire::{Connection, HandshakeError, Link, LinkEnd, Source, connect};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Bounds of the pause between two attempts to connect again.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// How long one attempt may take: a packet that was lost is not sent again before a second has passed.
const ATTEMPT_TIME: Duration = Duration::from_secs(2);
/// How long to try after the daemon closed the connection, as it does when it ends. One that lives answers at once.
const CLOSED_LIMIT: Duration = Duration::from_secs(2);

/// What a node's task reports.
#[derive(Debug)]
pub enum NodeEvent {
    /// A message.
    Message(FromDaemon),
    /// Its connection broke, for this reason, and there is another one. Nothing was lost.
    Reconnected(String),
    /// No more will come.
    Lost(NodeLoss),
}

/// What it takes to go on with a job on a node.
pub struct JobLink {
    /// Its daemon.
    pub address: SocketAddr,
    /// The user's secret, which proves this side to the daemon.
    pub secret: Secret,
    /// How long the daemon may be silent.
    pub silence: Duration,
    /// The job's identity, as it was introduced.
    pub identity: [u8; 16],
    /// Which start of the job this is.
    pub epoch: u64,
    /// What proves to the daemon that a new connection goes on with this start.
    pub session: [u8; 16],
    /// What was sent and delivered.
    pub link: Link<ToDaemon>,
}

/// Commands, and a ping every second.
struct Commands {
    queue: mpsc::UnboundedReceiver<ToDaemon>,
    ping: Interval,
}

impl Source for Commands {
    type Message = ToDaemon;

    async fn next(&mut self, _room: bool) -> Option<ToDaemon> {
        tokio::select! {
            message = self.queue.recv() => message,
            _ = self.ping.tick() => Some(ToDaemon::Ping),
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
        mut connection: Connection,
        introduction: JobIntroduction,
        queue: mpsc::UnboundedReceiver<ToDaemon>,
        tell: &(impl Fn(NodeEvent) -> F + Sync),
    ) -> NodeLoss {
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
        let mut ping = interval(PING_INTERVAL);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut commands = Commands { queue, ping };
        loop {
            let deliver = |message| async {
                match message {
                    FromDaemon::Pong => true,
                    FromDaemon::Left => false,
                    message => tell(NodeEvent::Message(message)).await,
                }
            };
            let (why, limit) = match self.link.run(connection, Some(self.silence), &mut commands, deliver).await {
                LinkEnd::Finished | LinkEnd::Unwanted => return NodeLoss::Broken("it left the job".into()),
                LinkEnd::Silent(limit) => return NodeLoss::Silent(limit.as_millis() as u64),
                LinkEnd::Nonsense(why) => return NodeLoss::Broken(why),
                LinkEnd::Closed => ("the peer closed the connection".to_owned(), CLOSED_LIMIT.min(self.silence)),
                LinkEnd::Reset => ("the peer reset the connection".to_owned(), CLOSED_LIMIT.min(self.silence)),
                LinkEnd::Broken(why) => (why, self.silence),
            };
            connection = match self.reconnected(limit).await {
                Some(connection) => connection,
                None => return NodeLoss::Broken(why),
            };
            if !tell(NodeEvent::Reconnected(why)).await {
                return NodeLoss::Broken("the job has ended".into());
            }
        }
    }

    /// Another connection, which goes on where the last one ended. `None` if there is none within the limit, or the daemon or the job is gone.
    async fn reconnected(&self, limit: Duration) -> Option<Connection> {
        let mut patience = Patience::with_pause(limit, ATTEMPT_TIME);
        let mut pause = RECONNECT_PAUSES.0;
        loop {
            match patiently(ATTEMPT_TIME, connect(self.address, Purpose::Job, &self.secret)).await {
                Ok(Ok(mut connection)) => match self.resumed(&mut connection).await {
                    Ok(()) => return Some(connection),
                    Err(Unresumed::Broken) => {}
                    Err(Unresumed::Gone) => return None,
                },
                // Its host answers, but the daemon is gone, and with it all ranks.
                Ok(Err(error)) if is_refused(&error) => return None,
                Ok(Err(_)) | Err(_) => {}
            }
            if patience.is_over() {
                return None;
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
            Ok(FromDaemon::Resumed { delivered }) => self.link.resume(delivered).map_err(|_| Unresumed::Gone),
            Ok(_) | Err(NodeLoss::Silent(_)) => Err(Unresumed::Gone),
            Err(NodeLoss::Broken(_)) => Err(Unresumed::Broken),
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
