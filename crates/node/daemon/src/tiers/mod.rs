//! The tiers of one job's checkpoints, as far as they are on this node: where its ranks save, what is copied to and from
//! here. What is asked for, and in which order, is the controller's business (`mend_messages::tier`).
//!
//! Invariants: every task is answered once; the loop that serves the job never waits for a copy: each runs in a thread
//! of its own, with the lowest priority unless a restart waits for it. Nor does it wait for a file system: what there is to do in a store is done by a thread of that store, in order ([`store_thread`]). When the job leaves, its copies end, and what
//! they had not finished is removed. Faults assumed: as in [`image`] and [`mend_transfer::node_store`].

mod node_tiers;
mod portable;
mod reserved;
mod room;
mod store_thread;
mod stores;
mod turns;

pub use self::node_tiers::NodeTiers;
use self::portable::OWNERS_TIME;
pub use self::portable::opening::Offered;
use self::portable::opening::Opening;
use self::reserved::Reserved;
use self::room::ImageDestination;
use self::store_thread::StoreThread;
pub use self::stores::ChosenPlace;
use self::stores::Located;
use crate::outbox::Urgent;
use crate::stay::Stay;
use mend_coordination::checkpoint::image_name;
use mend_messages::daemon::{FromDaemon, JobIntroduction};
use mend_messages::job::Rank;
use mend_messages::portable::{FileName, PortableOrder, PortableReport};
use mend_messages::tier::{Destination, ImageLocation, ImageOrigin, ImageRef, NodeStore, TierDone, TierReport, TierSpec};
use mend_node_job::event::Effect;
use mend_report::with_causes;
use mend_sealed::Key;
use mend_transfer::image::{self, Mover};
use mend_transfer::object::ObjectSource;
use mend_transfer::peer::{self, ExpectedTransfer, Token};
use mend_transfer::peer_image::IncomingImage;
use mend_transfer::progress::Progress;
use mend_transfer::stage::Expected;
use mend_transfer::{TransferError, object};
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Room beyond what an image may take: its tables, and the file system's own.
const SPACE_MARGIN_BYTES: u64 = 4 << 20;
/// How long it is before what object storage did not remove is tried again.
const REMOVAL_PAUSES: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(120)];
/// How often the controller of a job that leaves hears that copies go on.
const NEWS_INTERVAL: Duration = Duration::from_secs(1);
/// How long it is told that old copies are being removed: a disk that hangs keeps no job from going on elsewhere.
const REMOVING_TIME: Duration = Duration::from_secs(600);

/// See the module's head.
#[derive(Debug)]
pub struct Tiers {
    job: Arc<JobIntroduction>,
    node: String,
    urgent: Urgent,
    patience: Duration,
    /// What images are encrypted with.
    key: Option<Key>,
    progress: Arc<Progress>,
    stores: Vec<Arc<StoreThread>>,
    /// Takes places that were chosen.
    chosen: mpsc::UnboundedSender<ChosenPlace>,
    /// Of copies behind the job.
    paced: Mover,
    /// Of what others pace, or a restart waits for: only its end is asked for.
    unbounded: Mover,
    reserved: Reserved,
    /// Shared with other jobs.
    shared: NodeTiers,
    /// Files of portable checkpoints, if ranks have a place for them here.
    portable: Option<Opening>,
    work: JoinSet<()>,
    /// Removals on this node: always carried out, before the job has left.
    removals: JoinSet<()>,
    /// The daemon is needed for those from object storage, which the job does not wait for.
    stay: Arc<Stay>,
}

impl Tiers {
    /// None are open yet. What comes through `chosen` is to be given to [`Tiers::placed`].
    pub fn new(
        job: Arc<JobIntroduction>,
        (node, stay, shared): (&str, &Arc<Stay>, &NodeTiers),
        (urgent, chosen): (Urgent, mpsc::UnboundedSender<ChosenPlace>),
        patience: Duration,
        key: Option<Key>,
        progress: Arc<Progress>,
    ) -> Self {
        let (paced, unbounded) = (Mover::new(0, progress.clone()), Mover::new(0, progress.clone()));
        Self {
            job,
            node: node.to_owned(),
            urgent,
            patience,
            key,
            stores: Vec::new(),
            chosen,
            progress,
            paced,
            unbounded,
            reserved: Reserved::default(),
            shared: shared.clone(),
            portable: None,
            work: JoinSet::new(),
            removals: JoinSet::new(),
            stay: stay.clone(),
        }
    }

    /// A rank is let go: it writes no image any more.
    pub fn release(&mut self, rank: Rank) {
        self.reserved.release(rank);
    }

    /// Gives room back that a save took which is over with this.
    pub fn follow(&mut self, effect: &Effect) {
        self.reserved.follow(effect);
    }

    /// See `TierOrder::Manifest`.
    pub fn manifest(&mut self, task: u64, number: u64, to: Destination, text: Vec<u8>) {
        match to {
            Destination::NodeStore(store) => {
                let open = self.opened(&store);
                self.run_after(task, open, move |open| {
                    open?.manifest(number, &text).map_err(|error| error.to_string())?;
                    Ok(TierDone::Stored)
                });
            }
            Destination::File(_) => self.answer(task, Err("a manifest has no business there".into())),
            Destination::Object(address) => self.run(task, true, move || {
                object::put_text(&text, &address).map_err(|error| with_causes(&error))?;
                Ok(TierDone::Stored)
            }),
        }
    }

    /// See `TierOrder::Copy`.
    pub fn copy(&mut self, task: u64, image: ImageRef, from: ImageLocation, to: Destination) {
        let (source, expected, mover) = (self.locate(&image, from), self.expected(image), self.paced.clone());
        let (number, rank) = (image.number, image.rank);
        let target: Located = match to {
            Destination::NodeStore(store) => self.in_store(&store, |thread| {
                thread.ask(move |open| {
                    open.prepare(number)?;
                    Ok(open.image(number, rank))
                })
            }),
            Destination::File(path) => Box::pin(std::future::ready(Ok(path))),
            Destination::Object(address) => {
                return self.run_after(task, source, move |source| {
                    let mut source = source.and_then(open_file)?;
                    mover.into_object(&mut source, &expected, &address).map_err(|error| with_causes(&error))?;
                    Ok(TierDone::Stored)
                });
            }
        };
        let both = async move {
            let source = source.await?;
            Ok((source, target.await?))
        };
        self.run_after(task, both, move |both: Result<_, String>| {
            let (source, target) = both?;
            mover.into_file(&mut open_file(source)?, &expected, &target).map_err(|error| with_causes(&error))?;
            Ok(TierDone::Stored)
        });
    }

    /// See `TierOrder::Send`.
    pub fn send(&mut self, image: ImageRef, from: ImageLocation, address: SocketAddr, token: Token, hurry: bool) {
        let mover = if hurry { self.unbounded.clone() } else { self.paced.clone() };
        let (source, job, patience) = (self.locate(&image, from), self.job.clone(), self.patience);
        self.work.spawn(async move {
            // Opened also when there is nothing to send: the receiver sees it end and need not wait.
            let opened = peer::open_copy(address, &job, token, patience).await;
            let source = source.await;
            let pour = move || {
                let stream = opened.map_err(|error| with_causes(&error))?;
                mover.pour(&source?, stream).map_err(|error| with_causes(&error))
            };
            if let Err(error) = work(!hurry, pour).await {
                tracing::warn!(rank = image.rank, error, "an image was not sent to another node");
            }
        });
    }

    /// See `TierOrder::Receive`; `arrival` is the other node's connection.
    pub fn receive(&mut self, task: u64, image: ImageRef, store: &NodeStore, arrival: ExpectedTransfer) {
        let promises = self.shared.promises.clone();
        let place = self.in_store(store, |thread| thread.ask(move |open| promises.place(open, &image)));
        let (expected, mover, patience, urgent) = (self.expected(image), self.unbounded.clone(), self.patience, self.urgent.clone());
        let job = self.job.clone();
        self.work.spawn(async move {
            let taken = peer::take(arrival, &job, patience).await;
            let result = keep(taken, place.await, expected, mover, true).await.map(|_| TierDone::Stored);
            urgent.send(FromDaemon::Tier(TierReport::Done { task, result }));
        });
    }

    /// See `TierOrder::Fetch`; `arrival` is the other node's connection, if the image comes from one.
    pub fn fetch(
        &mut self,
        (task, image, check): (u64, ImageRef, bool),
        from: ImageOrigin,
        spare: PathBuf,
        arrival: Option<ExpectedTransfer>,
    ) {
        let (expected, mover) = (self.expected(image), self.unbounded.clone());
        let here = match from {
            ImageOrigin::NodeStore(store) => self.locate(&image, ImageLocation::NodeStore(store)),
            ImageOrigin::File(path) => self.locate(&image, ImageLocation::File(path)),
            ImageOrigin::Object(address) => {
                let place = self.place_for(&image, spare);
                return self.run_in_turn(task, place, move |place| {
                    let taken = ObjectSource::get(&address).and_then(|mut source| place.take(&mut source, &expected, &mover));
                    taken.map(TierDone::Image).map_err(|error| with_causes(&error))
                });
            }
            ImageOrigin::Node { .. } => {
                let (place, patience, urgent) = (self.place_for(&image, spare), self.patience, self.urgent.clone());
                let (job, turns) = (self.job.clone(), self.shared.fetches.clone());
                self.work.spawn(async move {
                    let result = match arrival {
                        Some(arrival) => {
                            // Before the turn: a file system that hangs holds up no other job's.
                            let place = place.await;
                            let taken = peer::take_in_turn(arrival, &turns, &job, patience).await;
                            let (taken, _turn) = taken.map_or_else(|error| (Err(error), None), |(image, turn)| (Ok(image), Some(turn)));
                            keep(taken, Ok(place), expected, mover, false).await.map(TierDone::Image)
                        }
                        None => Err("no transfer was announced".into()),
                    };
                    urgent.send(FromDaemon::Tier(TierReport::Done { task, result }));
                });
                return;
            }
        };
        self.run_in_turn(task, here, move |path| {
            let path = path?;
            let found = if check { mover.check(&path, &expected) } else { image::measure(&path, &expected) };
            found.map_err(|error| with_causes(&error))?;
            Ok(TierDone::Image(path))
        });
    }

    /// See `TierOrder::Remove`.
    pub fn remove(&mut self, place: &Destination, number: u64, ranks: Vec<Rank>) {
        match place {
            Destination::NodeStore(store) => self.remove_stored(store, number, ranks),
            Destination::Object(address) => {
                let (base, manifest) = address.split_at(address.rfind('/').map_or(0, |at| at + 1));
                let images: Vec<String> = ranks.into_iter().map(|rank| format!("{base}{}", image_name(rank))).collect();
                let manifest: Vec<String> = if manifest.is_empty() { Vec::new() } else { vec![address.clone()] };
                let (work, place) = (self.stay.work(), base.to_owned());
                tokio::task::spawn_blocking(move || {
                    // A manifest without images is better found than they without it.
                    let remove = || object::delete(&images).and_then(|()| object::delete(&manifest));
                    let removed = REMOVAL_PAUSES.into_iter().fold(remove(), |removed, pause| {
                        removed.or_else(|_| {
                            std::thread::sleep(pause);
                            remove()
                        })
                    });
                    if let Err(error) = removed {
                        tracing::warn!(
                            number,
                            place,
                            error = with_causes(&error),
                            "a checkpoint stays in object storage: it cannot be removed"
                        );
                    }
                    drop(work);
                });
            }
            Destination::File(_) => {}
        }
    }

    /// Files of portable checkpoints, as soon as their place is open.
    pub fn portable(&self) -> Offered {
        self.portable.as_ref().map(Offered::from).unwrap_or_default()
    }

    /// See `TierOrder::OpenPortable`. Without that ranks write to the directory.
    pub fn open_portable(&mut self, tiers: Vec<TierSpec>) {
        let (store, urgent) = (tiers.first().and_then(|first| first.tier.store()), self.urgent.clone());
        let failed = move |error: std::io::Error| store.iter().for_each(|store| pass_over(&urgent, store, error.to_string()));
        let what = (self.job.clone(), self.node.clone(), tiers);
        self.portable = Some(Opening::begin(what, self.urgent.clone(), self.paced.clone(), failed));
    }

    /// See [`PortableOrder`].
    pub fn portable_order(&mut self, order: PortableOrder) {
        match (order, self.portable.as_ref().and_then(Opening::now)) {
            (PortableOrder::Send { name, address, token, hurry }, _) => self.send_portable(name, address, token, hurry),
            (PortableOrder::Kept { name }, Some(portable)) => portable.kept(name),
            (PortableOrder::Missing { name }, Some(portable)) => portable.missing(name, self.unbounded.clone()),
            (PortableOrder::Lost { names }, Some(portable)) => portable.lost(names),
            (PortableOrder::Turn { tier, turn }, Some(portable)) => portable.turn(tier, turn),
            // `Receive` comes with a connection.
            (_, _) => {}
        }
    }

    fn send_portable(&mut self, name: FileName, address: SocketAddr, token: Token, hurry: bool) {
        let mover = if hurry { self.unbounded.clone() } else { self.paced.clone() };
        let portable = self.portable.as_ref().and_then(Opening::now);
        let (job, patience, wanted) = (self.job.clone(), self.patience, name.clone());
        self.work.spawn(async move {
            // Opened also when there is nothing to send, as images are.
            let opened = peer::open_copy(address, &job, token, patience).await;
            let pour = move || {
                let stream = opened.map_err(|error| with_causes(&error))?;
                let source = portable.and_then(|portable| portable.find(&wanted)).ok_or("it is not here any more")?;
                mover.pour(&source, stream).map_err(|error| with_causes(&error))
            };
            if let Err(error) = work(!hurry, pour).await {
                tracing::warn!(%name, error, "a file of a portable checkpoint was not sent to another node");
            }
        });
    }

    /// See `PortableOrder::Receive`; `arrival` is the other node's connection.
    pub fn receive_portable(&mut self, name: FileName, bytes: u64, arrival: ExpectedTransfer) {
        let (portable, urgent) = (self.portable(), self.urgent.clone());
        let (mover, patience, job) = (self.unbounded.clone(), self.patience, self.job.clone());
        self.work.spawn(async move {
            let Some(portable) = portable.opened().await else {
                let result = Err("this node keeps no portable checkpoints: its log says why".to_owned());
                return urgent.send(FromDaemon::Tier(TierReport::Portable(PortableReport::Taken { name, result })));
            };
            let taken = peer::take(arrival, &job, patience).await;
            let (keeper, wanted) = (portable.clone(), name.clone());
            let result = work(true, move || {
                let place = keeper.place_for(&wanted, bytes).map_err(|error| error.to_string())?;
                let mut stream = taken.map_err(|error| with_causes(&error))?;
                mover.file_into_file(&mut stream, bytes, &place).map_err(|error| with_causes(&error))?;
                Ok(bytes)
            });
            portable.taken(name, result.await);
        });
    }

    /// See `TierOrder::Close`.
    pub fn close(&mut self) {
        self.cancel();
        if let Some(portable) = self.portable.take().and_then(|opening| opening.now()) {
            let last = Mover::new(0, self.progress.clone());
            self.removals.spawn_blocking(move || portable.close(&last, OWNERS_TIME));
        }
        self.clear_stores();
    }

    fn cancel(&self) {
        if let Some(portable) = self.portable.as_ref().and_then(Opening::now) {
            portable.end();
        }
        self.paced.cancel();
        self.unbounded.cancel();
    }

    /// Ends all copies. Those that wait for another node are not waited for: they find out by themselves, and what they
    /// write has names of its own until it is whole. What is being removed here is, and the last copies of portable checkpoints are: the controller is
    /// told that they go on, so that it waits, too.
    pub async fn leave(&mut self) {
        let _work = self.stay.work();
        self.cancel();
        self.work.abort_all();
        while self.work.join_next().await.is_some() {}
        if let Some(portable) = self.portable.take().and_then(|opening| opening.now()) {
            self.removals.spawn_blocking(move || portable.leave());
        }
        let (mut given, begun) = (self.progress.bytes_given(), Instant::now());
        while let Some(over) = timeout(NEWS_INTERVAL, self.removals.join_next()).await.map_or(Some(None), |one| one.map(Some)) {
            if over.is_none() && (given != self.progress.bytes_given() || begun.elapsed() < REMOVING_TIME) {
                given = self.progress.bytes_given();
                self.urgent.send(FromDaemon::Progress(Vec::new()));
            }
        }
        // What is empty is gone before the next life begins.
        self.end_stores().await;
    }

    fn expected(&self, image: ImageRef) -> Expected {
        Expected { job: self.job.identity, image, key: self.key.clone() }
    }

    fn answer(&self, task: u64, result: Result<TierDone, String>) {
        self.urgent.send(FromDaemon::Tier(TierReport::Done { task, result }));
    }

    /// Runs a task in a thread of its own, and answers.
    fn run(&mut self, task: u64, humble: bool, todo: impl FnOnce() -> Result<TierDone, String> + Send + 'static) {
        let urgent = self.urgent.clone();
        self.work.spawn(async move {
            let result = work(humble, todo).await;
            urgent.send(FromDaemon::Tier(TierReport::Done { task, result }));
        });
        self.let_go();
    }

    /// The same with what somebody else finds out first.
    fn run_after<T: Send + 'static>(
        &mut self,
        task: u64,
        first: impl Future<Output = T> + Send + 'static,
        todo: impl FnOnce(T) -> Result<TierDone, String> + Send + 'static,
    ) {
        let urgent = self.urgent.clone();
        self.work.spawn(async move {
            let first = first.await;
            let result = work(true, move || todo(first)).await;
            urgent.send(FromDaemon::Tier(TierReport::Done { task, result }));
        });
        self.let_go();
    }

    /// The same for what a restart waits for, as many at a time as there are turns.
    fn run_in_turn<T: Send + 'static>(
        &mut self,
        task: u64,
        first: impl Future<Output = T> + Send + 'static,
        todo: impl FnOnce(T) -> Result<TierDone, String> + Send + 'static,
    ) {
        let (urgent, turns) = (self.urgent.clone(), self.shared.fetches.clone());
        self.work.spawn(async move {
            // A store that hangs takes no turn of other jobs.
            let first = first.await;
            let _turn = turns.acquire().await;
            let result = work(false, move || todo(first)).await;
            urgent.send(FromDaemon::Tier(TierReport::Done { task, result }));
        });
        self.let_go();
    }

    /// Of tasks that are over.
    fn let_go(&mut self) {
        while self.work.try_join_next().is_some() {}
        while self.removals.try_join_next().is_some() {}
    }
}

impl Drop for Tiers {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// The controller is told that a store cannot be used.
fn pass_over(urgent: &Urgent, store: &NodeStore, why: String) {
    tracing::info!(%store, why, "a tier is passed over");
    urgent.send(FromDaemon::Tier(TierReport::PassedOver { store: store.clone(), why }));
}

fn open_file(path: PathBuf) -> Result<File, String> {
    File::open(path).map_err(|error| error.to_string())
}

/// Keeps an image that another node sends. The file.
async fn keep(
    taken: Result<IncomingImage, TransferError>,
    place: Result<ImageDestination, String>,
    expected: Expected,
    mover: Mover,
    humble: bool,
) -> Result<PathBuf, String> {
    work(humble, move || {
        let place = place?;
        let mut stream = taken.map_err(|error| with_causes(&error))?;
        place.take(&mut stream, &expected, &mover).map_err(|error| with_causes(&error))
    })
    .await
}

/// In a thread of its own: those of the runtime, of which there are so many, are for what takes no time. A `humble` one is not felt by ranks.
async fn work<T: Send + 'static>(humble: bool, todo: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    let (done, over) = oneshot::channel();
    let thread = move || {
        if humble && let Err(error) = mend_kernel::background::stand_back() {
            tracing::debug!(%error, "a copy has the usual priority");
        }
        let _ = done.send(todo());
    };
    match std::thread::Builder::new().name("mendd-copy".into()).spawn(thread) {
        Ok(_) => over.await.unwrap_or_else(|_| Err("the daemon failed".into())),
        Err(error) => Err(with_causes(&TransferError::Source(error))),
    }
}

#[cfg(test)]
mod tests;
