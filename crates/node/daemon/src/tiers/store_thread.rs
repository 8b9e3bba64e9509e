//! A store of one job, in whose file system a thread of its own does what there is to do: it may hang, as where a file server is away.
//!
//! ```text
//! the job's loop ── what to do, in order ──► the store's thread ──► the file system
//!                ◄── what came of it; or that there has been no answer for STORE_PATIENCE
//! ```
//! Invariants: nobody waits in the loop; what is asked is done in the order in which it was asked; as long as one thing takes longer than [`STORE_PATIENCE`], everything else that waits for an answer
//! gets the error that says so, and is not begun any more. What is only to be done ([`StoreThread::have_done`]) is done when the file system answers again. Faults assumed: it never does; then the thread stays, and nothing else.

use mend_messages::tier::NodeStore;
use mend_transfer::node_store::OpenNodeStore;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long one thing may take; what should take no time takes longer where a disk is busy.
pub const STORE_PATIENCE: Duration = Duration::from_secs(5);
/// How often the job's directory is touched while the job is here; `MEND_TIER_HOURS` count from the last time.
const TOUCH_INTERVAL: Duration = Duration::from_secs(600);
/// Things that may wait to be done.
const MAX_WAITING: usize = 4096;

type Todo = Box<dyn FnOnce(&mut Access) + Send>;

/// See the module's head.
#[derive(Debug)]
pub struct StoreThread {
    /// The store that this is about.
    pub store: NodeStore,
    todos: Option<Sender<Todo>>,
    state: Arc<State>,
    ended: Option<oneshot::Receiver<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// When what is done now was begun.
    since: Mutex<Option<Instant>>,
    waiting: AtomicUsize,
    patience: Duration,
    /// The job has left, and may go on here by another thread of the same store: nothing is done any more.
    left: AtomicBool,
}

impl State {
    fn set(&self, since: Option<Instant>) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    fn hangs(&self) -> bool {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|since| since.elapsed() >= self.patience)
    }

    /// What comes of something, or that nothing does.
    async fn outcome<T>(&self, mut heard: oneshot::Receiver<T>, store: &NodeStore) -> io::Result<T> {
        loop {
            let patience = if self.hangs() { Duration::ZERO } else { self.patience };
            match timeout(patience, &mut heard).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(_)) => return Err(silence(store, self.patience)),
                // It may wait behind others, each of which is answered.
                Err(_) if self.hangs() => return Err(silence(store, self.patience)),
                Err(_) => {}
            }
        }
    }
}

fn silence(store: &NodeStore, limit: Duration) -> io::Error {
    let directory = match store {
        NodeStore::Memory => "/dev/shm".to_owned(),
        NodeStore::Directory(path) => path.display().to_string(),
    };
    let why = format!("the file system of {directory} has not answered for {} s (look at it on that node)", limit.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// The store, as soon as it was opened.
struct Access {
    open: Option<Arc<OpenNodeStore>>,
    begin: Box<dyn Fn() -> io::Result<OpenNodeStore> + Send>,
}

impl Access {
    fn open(&mut self) -> io::Result<Arc<OpenNodeStore>> {
        if let Some(open) = &self.open {
            return Ok(open.clone());
        }
        let open = Arc::new((self.begin)()?);
        self.open = Some(open.clone());
        Ok(open)
    }
}

impl StoreThread {
    /// Of this store, which `begin` opens when it is needed.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(store: NodeStore, begin: impl Fn() -> io::Result<OpenNodeStore> + Send + 'static) -> io::Result<Self> {
        Self::patient(store, STORE_PATIENCE, begin)
    }

    fn patient(store: NodeStore, patience: Duration, begin: impl Fn() -> io::Result<OpenNodeStore> + Send + 'static) -> io::Result<Self> {
        let state = Arc::new(State { patience, ..State::default() });
        let (todos, wanted) = channel::<Todo>();
        let (end, ended) = oneshot::channel();
        let of_thread = state.clone();
        let run = move || {
            let mut access = Access { open: None, begin: Box::new(begin) };
            loop {
                let todo: Todo = match wanted.recv_timeout(TOUCH_INTERVAL) {
                    Ok(todo) => todo,
                    Err(RecvTimeoutError::Disconnected) => break,
                    // Whether it hangs then is seen by who asks for something.
                    Err(RecvTimeoutError::Timeout) => {
                        of_thread.waiting.fetch_add(1, Ordering::Relaxed);
                        Box::new(|access| access.open.iter().for_each(|open| open.touch()))
                    }
                };
                if !of_thread.left.load(Ordering::Acquire) {
                    of_thread.set(Some(Instant::now()));
                    todo(&mut access);
                    of_thread.set(None);
                }
                of_thread.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            if of_thread.left.load(Ordering::Acquire) {
                // Closing it removes the directory if that is empty, which the job may be about to use.
                std::mem::forget(access);
                return;
            }
            of_thread.set(Some(Instant::now()));
            drop(access);
            of_thread.set(None);
            let _ = end.send(());
        };
        std::thread::Builder::new().name("mendd-store".into()).spawn(run)?;
        Ok(Self { store, todos: Some(todos), state, ended: Some(ended) })
    }

    /// Queues something. False if that cannot be: too much waits.
    fn queue(&self, todo: Todo) -> bool {
        if self.state.waiting.fetch_add(1, Ordering::Relaxed) < MAX_WAITING
            && self.todos.as_ref().is_some_and(|todos| todos.send(todo).is_ok())
        {
            return true;
        }
        self.state.waiting.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Has something done in the store, and yields what comes of it. Its turn is taken now, whenever that is waited for.
    pub fn ask<T: Send + 'static, F: FnOnce(&Arc<OpenNodeStore>) -> io::Result<T> + Send + 'static>(
        &self,
        todo: F,
    ) -> impl Future<Output = io::Result<T>> + Send + use<T, F> {
        let (say, heard) = oneshot::channel();
        if !self.state.hangs() {
            self.queue_answered(say, todo);
        }
        let (state, store) = (self.state.clone(), self.store.clone());
        async move { state.outcome(heard, &store).await.and_then(|done| done) }
    }

    /// The same where nobody stands still meanwhile: it is waited for as long as `limit`, also behind what takes long.
    pub fn ask_within<T: Send + 'static, F: FnOnce(&Arc<OpenNodeStore>) -> io::Result<T> + Send + 'static>(
        &self,
        limit: Duration,
        todo: F,
    ) -> impl Future<Output = io::Result<T>> + Send + use<T, F> {
        let (say, heard) = oneshot::channel();
        self.queue_answered(say, todo);
        let store = self.store.clone();
        async move { timeout(limit, heard).await.ok().and_then(Result::ok).unwrap_or_else(|| Err(silence(&store, limit))) }
    }

    /// Queues something that is not begun any more when nobody waits for it.
    fn queue_answered<T: Send + 'static>(
        &self,
        say: oneshot::Sender<io::Result<T>>,
        todo: impl FnOnce(&Arc<OpenNodeStore>) -> io::Result<T> + Send + 'static,
    ) {
        self.queue(Box::new(move |access| {
            let open = (!say.is_closed()).then(|| access.open());
            // Opening may have taken so long that nobody waits for it any more.
            if let Some(open) = open.filter(|_| !say.is_closed()) {
                let _ = say.send(open.and_then(|open| todo(&open)));
            }
        }));
    }

    /// Has something done, also if it is not waited for any more: what comes of it goes to `late` then, in the thread.
    pub fn have_done<T, F, G>(&self, todo: F, late: G) -> impl Future<Output = io::Result<T>> + Send + use<T, F, G>
    where
        T: Send + 'static,
        F: FnOnce(&Arc<OpenNodeStore>) -> T + Send + 'static,
        G: FnOnce(T) + Send + 'static,
    {
        let (say, heard) = oneshot::channel();
        self.queue(Box::new(move |access| match access.open().map(|open| todo(&open)) {
            Ok(done) => {
                if let Err(Ok::<T, io::Error>(done)) = say.send(Ok(done)) {
                    late(done);
                }
            }
            Err(error) => drop(say.send(Err(error))),
        }));
        let (state, store) = (self.state.clone(), self.store.clone());
        async move { state.outcome(heard, &store).await.and_then(|done| done) }
    }

    /// Ends it when all is done, and waits for that, unless the file system hangs. If the job `goes_on` then, what is not done yet never is: it would be done beside what the job does next.
    pub async fn end(mut self, goes_on: bool) {
        self.todos = None;
        if let Some(ended) = self.ended.take()
            && self.state.outcome(ended, &self.store).await.is_err()
            && goes_on
        {
            self.state.left.store(true, Ordering::Release);
        }
    }

    /// The same of one that others still use.
    pub fn leave_if_it_hangs(&self) {
        if self.state.hangs() {
            self.state.left.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender};

    fn store(directory: &tempfile::TempDir) -> NodeStore {
        NodeStore::Directory(directory.path().to_owned())
    }

    /// Of a directory that hangs until the other end is dropped.
    fn hanging(directory: &tempfile::TempDir, patience: Duration) -> (StoreThread, Sender<()>) {
        let (release, hung) = channel::<()>();
        let (of, hung): (_, Mutex<Receiver<()>>) = (store(directory), Mutex::new(hung));
        let begin = move || {
            let _ = hung.lock().unwrap().recv();
            OpenNodeStore::open(of.clone(), "n", &[1; 16])
        };
        (StoreThread::patient(store(directory), patience, begin).unwrap(), release)
    }

    #[tokio::test]
    async fn what_is_asked_is_done_in_order_whenever_it_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let (thread, release) = hanging(&directory, Duration::from_secs(60));
        drop(release);
        let order: Arc<Mutex<Vec<u32>>> = Arc::default();
        let asked: Vec<_> = (0..10)
            .map(|number| {
                let order = order.clone();
                thread.ask(move |_| {
                    order.lock().unwrap().push(number);
                    Ok(number)
                })
            })
            .collect();
        for (number, one) in asked.into_iter().enumerate().rev() {
            assert_eq!(one.await.unwrap() as usize, number);
        }
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
        let path = thread.ask(|open| Ok(open.image(1, 0))).await.unwrap();
        thread.end(true).await;
        assert!(!path.parent().unwrap().parent().unwrap().exists(), "it is closed in its thread");
    }

    #[tokio::test]
    async fn a_directory_that_hangs_is_told_by_name_and_what_waited_for_it_is_not_begun() {
        let directory = tempfile::tempdir().unwrap();
        let (thread, release) = hanging(&directory, Duration::from_millis(50));
        let begun = Arc::new(AtomicUsize::new(0));
        let ask = || {
            let begun = begun.clone();
            thread.ask(move |_| {
                begun.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        };
        let (first, second) = tokio::join!(ask(), ask());
        for error in [first.unwrap_err(), second.unwrap_err(), ask().await.unwrap_err()] {
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(error.to_string().contains(directory.path().to_str().unwrap()), "{error}");
        }
        let (late, came) = oneshot::channel();
        let waited = thread.have_done(
            |_| 7,
            move |done| {
                let _ = late.send(done);
            },
        );
        assert!(waited.await.is_err());
        drop(release);
        assert_eq!(came.await, Ok(7));
        assert_eq!(begun.load(Ordering::Relaxed), 0);
        assert!(ask().await.is_ok(), "it answers again");
    }

    /// What was queued would be done beside the job's next life, in the same directory.
    #[tokio::test]
    async fn one_that_hangs_is_not_waited_for_at_the_end_and_does_nothing_more_if_the_job_goes_on() {
        for goes_on in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let (thread, release) = hanging(&directory, Duration::from_millis(50));
            assert!(thread.ask(|_| Ok(())).await.is_err());
            let (late, came) = oneshot::channel();
            let done = thread.have_done(
                |_| (),
                move |()| {
                    let _ = late.send(());
                },
            );
            assert!(done.await.is_err());
            thread.end(goes_on).await;
            drop(release);
            // Whoever is not asked any more lets go of the question.
            assert_eq!(came.await.is_err(), goes_on);
        }
    }

    #[tokio::test]
    async fn who_has_time_waits_until_it_answers_again() {
        let directory = tempfile::tempdir().unwrap();
        let (thread, release) = hanging(&directory, Duration::from_millis(50));
        assert!(thread.ask(|_| Ok(())).await.is_err());
        let asked = thread.ask_within(Duration::from_secs(60), |_| Ok(7));
        drop(release);
        assert_eq!(asked.await.unwrap(), 7);
    }
}
