//! What ranks write (output, PMI), on its way to the controller.
//!
//! Each stream of a rank has a pump that reads at most [`MAX_CHUNK_BYTES`] bytes and waits until the job's queue takes them: a
//! controller that does not read stops its ranks' output, not the daemon.
//! Invariants: bytes of one stream keep their order; a flush answers after everything that was in the pipe when it was
//! asked for is in the queue. Faults assumed: a pipe may be held open by a process that nobody knows; a pump that was
//! told to finish ends [`IDLE_TIMEOUT`] after the last byte.

use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::outbox::Ordered;
use mend_messages::daemon::FromDaemon;

/// Most bytes in one message.
pub const MAX_CHUNK_BYTES: usize = 64 << 10;

/// How long a finishing pump waits for more from a pipe that does not end.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

enum Request {
    Flush(oneshot::Sender<()>),
    Finish,
}

/// One running pump. Dropping it stops it at once.
#[derive(Debug)]
pub struct Pump {
    requests: mpsc::UnboundedSender<Request>,
    task: JoinHandle<()>,
}

impl Pump {
    /// Starts to carry what can be read from `source` (non-blocking), each piece as the message that `wrap` makes of it.
    ///
    /// # Errors
    /// If the descriptor cannot be waited for.
    pub fn new(source: OwnedFd, out: Ordered, wrap: impl Fn(Vec<u8>) -> FromDaemon + Send + 'static) -> io::Result<Self> {
        #[expect(deprecated, reason = "sound for OwnedFd, which keeps its number; the replacement is unsafe for the sake of other types")]
        let source = AsyncFd::new(source)?;
        let (requests, asked) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            // An error means that the pipe or the job is gone: either way there is nothing left to carry.
            let _ = carry(&source, &out, wrap, asked).await;
        });
        Ok(Self { requests, task })
    }

    /// Completes when all that is in the pipe now is on its way. For a pump that ended, at once.
    pub fn flushed(&self) -> oneshot::Receiver<()> {
        let (done, flushed) = oneshot::channel();
        // If the pump has ended, `done` is dropped here, which completes the receiver.
        let _ = self.requests.send(Request::Flush(done));
        flushed
    }

    /// Makes the pump end when its pipe has been idle for a moment, even if somebody holds it open.
    pub fn finish(&self) {
        // A pump that ended has finished.
        let _ = self.requests.send(Request::Finish);
    }

    /// Completes at the end of the stream. Cancel safe.
    pub async fn ended(&mut self) {
        if !self.task.is_finished() {
            // A pump neither panics nor is cancelled by others.
            let _ = (&mut self.task).await;
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    source: &AsyncFd<OwnedFd>,
    out: &Ordered,
    wrap: impl Fn(Vec<u8>) -> FromDaemon,
    mut asked: mpsc::UnboundedReceiver<Request>,
) -> io::Result<()> {
    let mut buffer = vec![0; MAX_CHUNK_BYTES];
    let mut finishing = false;
    loop {
        let (guard, request) = if finishing {
            match timeout(IDLE_TIMEOUT, source.readable()).await {
                Ok(ready) => (Some(ready?), None),
                Err(_) => return Ok(()),
            }
        } else {
            tokio::select! {
                ready = source.readable() => (Some(ready?), None),
                request = asked.recv() => (None, request),
            }
        };
        // Reading goes past the reactor, which may not have heard yet of bytes that a flush must carry.
        loop {
            match rustix::io::read(source, &mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => out.send(wrap(buffer[..length].to_vec())).await?,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        // What arrives after EAGAIN is a new edge for the reactor, so forgetting the old one loses nothing.
        if let Some(mut guard) = guard {
            guard.clear_ready();
        }
        match request {
            // Whoever asked may have gone.
            Some(Request::Flush(done)) => drop(done.send(())),
            Some(Request::Finish) => finishing = true,
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::queues;
    use mend_messages::daemon::Stream;
    use mend_wire::Source;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn pump() -> (Pump, OwnedFd, crate::outbox::Outbox) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let (_, ordered, outbox) = queues();
        let pump = Pump::new(reader, ordered, |bytes| FromDaemon::Output { rank: 1, stream: Stream::Stdout, bytes }).unwrap();
        (pump, writer, outbox)
    }

    fn text(message: Option<FromDaemon>) -> Vec<u8> {
        match message {
            Some(FromDaemon::Output { bytes, .. }) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_flush_answers_after_what_was_in_the_pipe() {
        let (pump, writer, mut outbox) = pump();
        rustix::io::write(&writer, b"before").unwrap();
        pump.flushed().await.unwrap();
        assert_eq!(text(outbox.next(true).await), b"before");
    }

    #[tokio::test]
    async fn a_pipe_that_is_held_open_does_not_hold_up_the_end() {
        let (mut pump, writer, mut outbox) = pump();
        rustix::io::write(&writer, b"last").unwrap();
        pump.finish();
        pump.ended().await;
        assert_eq!(text(outbox.next(true).await), b"last");
    }

    #[tokio::test]
    async fn a_flush_of_an_ended_stream_does_not_wait() {
        let (mut pump, writer, _outbox) = pump();
        drop(writer);
        pump.ended().await;
        assert!(pump.flushed().await.is_err());
    }
}
