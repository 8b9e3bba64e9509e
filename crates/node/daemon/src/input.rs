//! Bytes for a rank: standard input and PMI replies.
//!
//! A feed is a task with its own queue, so that a rank that does not read holds up nobody else. Standard input is
//! bounded by the controller, which sends on only after [`FromDaemon::StdinTaken`]; PMI by its lockstep.
//! Invariant: every byte is written, dropped because nobody can read it any more, or handed back by [`Feed::stop`].
//! Faults assumed: the reader is gone, or never reads.

use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use crate::outbox::Urgent;
use mend_messages::daemon::FromDaemon;
use mend_messages::job::Rank;
use std::collections::VecDeque;

/// The writing end of a feed. When it is dropped the descriptor closes.
#[derive(Debug)]
pub struct Feed {
    pieces: mpsc::UnboundedSender<Piece>,
    orders: mpsc::UnboundedSender<Order>,
}

/// What a feed that was stopped leaves.
#[derive(Debug, Default)]
pub struct UnwrittenInput {
    /// Bytes that were not written.
    pub bytes: Vec<u8>,
    /// The writing end, if it was not closed: whoever reads sees no end before this is dropped.
    #[expect(dead_code, reason = "it is kept open, not used")]
    end: Option<AsyncFd<OwnedFd>>,
}

#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    acknowledged: bool,
}

#[derive(Debug)]
enum Order {
    Hold(oneshot::Sender<()>),
    Release,
    Stop(oneshot::Sender<UnwrittenInput>),
}

impl Feed {
    /// Starts to write to `target` (non-blocking); the `listener` hears of each piece that was pushed and written, and of holds. An
    /// empty piece closes the target.
    ///
    /// # Errors
    /// If the descriptor cannot be waited for.
    pub fn new(target: OwnedFd, listener: Option<(Urgent, Rank)>) -> io::Result<Self> {
        #[expect(deprecated, reason = "sound for OwnedFd, which keeps its number; the replacement is unsafe for the sake of other types")]
        let target = AsyncFd::new(target)?;
        let (pieces, queue) = mpsc::unbounded_channel();
        let (orders, ordered) = mpsc::unbounded_channel();
        let writer = Writer { target: Some(target), queue, waiting: VecDeque::new(), current: None, written: 0, listener };
        tokio::spawn(obey(writer, ordered));
        Ok(Self { pieces, orders })
    }

    /// Queues bytes. What a reader that is gone does not take is dropped.
    pub fn push(&self, bytes: Vec<u8>) {
        let _ = self.pieces.send(Piece { bytes, acknowledged: true });
    }

    /// Queues bytes that the controller has been told of in an earlier process of the rank.
    pub fn push_again(&self, bytes: Vec<u8>) {
        let _ = self.pieces.send(Piece { bytes, acknowledged: false });
    }

    /// Writes nothing from the moment the returned receiver completes until [`Feed::release`].
    pub fn hold(&self) -> oneshot::Receiver<()> {
        let (held, holding) = oneshot::channel();
        let _ = self.orders.send(Order::Hold(held));
        holding
    }

    /// Goes on after [`Feed::hold`].
    pub fn release(&self) {
        let _ = self.orders.send(Order::Release);
    }

    /// Ends the feed, but not yet what is read from it.
    pub async fn stop(self) -> UnwrittenInput {
        let (asker, answer) = oneshot::channel();
        let _ = self.orders.send(Order::Stop(asker));
        answer.await.unwrap_or_default()
    }
}

async fn obey(mut writer: Writer, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut held = false;
    loop {
        let order = tokio::select! {
            // An order comes between two writes, so that what is held or handed back was not written.
            biased;
            order = orders.recv() => order,
            () = writer.run(), if !held => None,
        };
        match order {
            Some(Order::Hold(holding)) => {
                held = true;
                writer.tell_hold();
                // Whoever asked may have gone.
                let _ = holding.send(());
            }
            Some(Order::Release) => held = false,
            Some(Order::Stop(asker)) => return drop(asker.send(writer.left())),
            None => return,
        }
    }
}

struct Writer {
    target: Option<AsyncFd<OwnedFd>>,
    queue: mpsc::UnboundedReceiver<Piece>,
    /// Out of the queue, before what is in it.
    waiting: VecDeque<Piece>,
    current: Option<Piece>,
    /// Bytes of the current piece that are written.
    written: usize,
    listener: Option<(Urgent, Rank)>,
}

impl Writer {
    /// Writes pieces until there can be no more. Cancel safe: what was written counts as written.
    async fn run(&mut self) {
        loop {
            if self.current.is_none() {
                let next = match self.waiting.pop_front() {
                    Some(piece) => Some(piece),
                    None => self.queue.recv().await,
                };
                let Some(piece) = next else { return };
                (self.current, self.written) = (Some(piece), 0);
            }
            let end = self.current.as_ref().is_some_and(|piece| piece.bytes.is_empty());
            if end || self.write_current().await.is_err() {
                // The end, or nobody reads any more.
                self.target = None;
            }
            if let (Some(Piece { acknowledged: true, .. }), Some((urgent, rank)), false) = (self.current.take(), &self.listener, end) {
                urgent.send(FromDaemon::StdinTaken { rank: *rank });
            }
        }
    }

    async fn write_current(&mut self) -> io::Result<()> {
        let (Some(target), Some(piece)) = (&self.target, &self.current) else { return Ok(()) };
        while self.written < piece.bytes.len() {
            let mut guard = target.writable().await?;
            match rustix::io::write(target, &piece.bytes[self.written..]) {
                Ok(length) => self.written += length,
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn tell_hold(&mut self) {
        let Some((urgent, rank)) = &self.listener else { return };
        while let Ok(piece) = self.queue.try_recv() {
            self.waiting.push_back(piece);
        }
        let begun = self.current.as_ref().filter(|piece| piece.acknowledged).map_or(0, |_| self.written);
        let pieces = self.current.iter().chain(&self.waiting).filter(|piece| !piece.acknowledged);
        let again: usize = pieces.map(|piece| piece.bytes.len()).sum();
        let partly = self.current.as_ref().filter(|piece| !piece.acknowledged).map_or(0, |_| self.written);
        urgent.send(FromDaemon::StdinHeld { rank: *rank, again: (again - partly) as u64, begun: begun as u64 });
    }

    fn left(mut self) -> UnwrittenInput {
        let mut bytes = self.current.take().map_or_else(Vec::new, |piece| piece.bytes[self.written..].to_vec());
        self.waiting.drain(..).for_each(|piece| bytes.extend(piece.bytes));
        while let Ok(piece) = self.queue.try_recv() {
            bytes.extend(piece.bytes);
        }
        UnwrittenInput { bytes, end: self.target }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_wire::Source;
    use rustix::pipe::{PipeFlags, pipe_with};

    fn feed() -> (Feed, OwnedFd) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        (Feed::new(writer, None).unwrap(), reader)
    }

    async fn read_all(reader: &OwnedFd) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 65536]);
        loop {
            match rustix::io::read(reader, &mut buffer) {
                Ok(0) | Err(Errno::AGAIN) => return all,
                Ok(length) => all.extend_from_slice(&buffer[..length]),
                Err(errno) => panic!("{errno}"),
            }
        }
    }

    #[tokio::test]
    async fn what_was_not_written_is_handed_back_and_nothing_else() {
        let (feed, reader) = feed();
        let bytes: Vec<u8> = (0..200_000u32).map(|number| number as u8).collect();
        for piece in bytes.chunks(50_000) {
            feed.push(piece.to_vec());
        }
        tokio::task::yield_now().await;
        let left = feed.stop().await.bytes;
        let mut whole = read_all(&reader).await;
        assert!(!left.is_empty());
        whole.extend(left);
        assert!(whole == bytes);
    }

    #[tokio::test]
    async fn a_held_feed_writes_nothing_until_it_is_released() {
        let (feed, reader) = feed();
        feed.hold().await.unwrap();
        feed.push(b"later".to_vec());
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(read_all(&reader).await, b"");
        feed.release();
        while read_all(&reader).await.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_hold_says_what_the_image_will_have() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        let (urgent, _ordered, mut outbox) = crate::outbox::queues();
        let feed = Feed::new(writer, Some((urgent, 3))).unwrap();
        feed.push_again(vec![1; 5000]);
        feed.push(vec![2; 100]);
        while rustix::io::ioctl_fionread(&reader).unwrap() < 4096 {
            tokio::task::yield_now().await;
        }
        feed.hold().await.unwrap();
        assert_eq!(outbox.next(true).await, Some(FromDaemon::StdinHeld { rank: 3, again: 904, begun: 0 }));
        assert_eq!(read_all(&reader).await.len(), 4096);
        feed.release();
        assert_eq!(outbox.next(true).await, Some(FromDaemon::StdinTaken { rank: 3 }));
        feed.hold().await.unwrap();
        assert_eq!(outbox.next(true).await, Some(FromDaemon::StdinHeld { rank: 3, again: 0, begun: 0 }));
        assert_eq!(read_all(&reader).await, [vec![1; 904], vec![2; 100]].concat());
    }

    #[tokio::test]
    async fn an_empty_piece_is_the_end_after_all_before_it() {
        let (feed, reader) = feed();
        feed.push(b"last".to_vec());
        feed.push(Vec::new());
        feed.push(b"beyond".to_vec());
        while rustix::event::poll(&mut [rustix::event::PollFd::new(&reader, rustix::event::PollFlags::HUP)], Some(&Default::default()))
            != Ok(1)
        {
            tokio::task::yield_now().await;
        }
        assert_eq!(read_all(&reader).await, b"last");
        assert_eq!(feed.stop().await.bytes, b"");
    }
}
