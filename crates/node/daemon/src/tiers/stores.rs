//! The stores of a job on this node: where its ranks save, what is in them, and what goes. The job's loop says what there is to do; the thread of each store does it ([`super::store_thread`]).

use super::room::{ImageDestination, Promise, Promises};
use super::store_thread::StoreThread;
use super::{Tiers, pass_over, work};
use mend_messages::agent::{SaveOrder, SaveTarget};
use mend_messages::daemon::FromDaemon;
use mend_messages::job::Rank;
use mend_messages::tier::{ImageLocation, ImageRef, NodeStore, TierDone, TierReport};
use mend_node_job::event::Event;
use mend_transfer::image::Mover;
use mend_transfer::node_store::{self, OpenNodeStore};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long the directories of a store may take to be read.
const INVENTORY_TIME: Duration = Duration::from_secs(60);

/// What comes of something in a store, or why nothing does.
pub(super) type Outcome<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;
pub(super) type Located = Outcome<PathBuf>;

/// Where a rank saves: chosen, for [`Tiers::placed`].
#[derive(Debug)]
pub struct ChosenPlace {
    seq: u64,
    rank: Rank,
    number: u64,
    place: ImageLocation,
    order: SaveOrder,
    promise: Option<Promise>,
}

impl Tiers {
    /// See `TierOrder::Open`. A store that cannot be used is left out, and the controller told: what would have been put
    /// there goes to the next.
    pub fn open(&mut self, stores: Vec<NodeStore>, keep: &[u64], rate: u64) {
        let age = Duration::from_secs(mend_settings::TIER_HOURS.number().unwrap_or(u64::MAX / 3600).saturating_mul(3600));
        self.paced = Mover::new(rate, self.progress.clone());
        for store in stores {
            let (opened, urgent, node) = (self.store(&store).map(|thread| thread.ask(|_| Ok(()))), self.urgent.clone(), self.node.clone());
            self.removals.spawn(async move {
                let opened = match opened {
                    Ok(opening) => opening.await,
                    Err(error) => Err(error),
                };
                match opened {
                    // It fails only as the daemon does.
                    Ok(()) => drop(tokio::task::spawn_blocking(move || node_store::sweep(&store, &node, age)).await),
                    Err(error) => pass_over(&urgent, &store, error.to_string()),
                }
            });
        }
        for store in self.stores.clone() {
            let keep = keep.to_vec();
            self.delete(store.have_done(move |open| open.tidy(&keep), |going| remove_all(&going)));
        }
    }

    /// The thread of a store.
    fn store(&mut self, wanted: &NodeStore) -> std::io::Result<Arc<StoreThread>> {
        if let Some(there) = self.stores.iter().find(|there| there.store == *wanted) {
            return Ok(there.clone());
        }
        let (store, node, identity) = (wanted.clone(), self.node.clone(), self.job.identity);
        let open = move || OpenNodeStore::open(store.clone(), &node, &identity);
        let thread = Arc::new(StoreThread::new(wanted.clone(), open)?);
        self.stores.push(thread.clone());
        Ok(thread)
    }

    /// Has somebody look where a rank saves. What is found comes to [`Tiers::placed`].
    pub fn place(&mut self, (seq, rank): (u64, Rank), number: u64, stores: &[NodeStore], needed: u64, order: SaveOrder) {
        self.reserved.begin(rank, number);
        let threads: Vec<_> = stores.iter().map(|store| (store.clone(), self.store(store))).collect();
        let (urgent, chosen, promises) = (self.urgent.clone(), self.chosen.clone(), self.shared.promises.clone());
        self.work.spawn(async move {
            let mut found = None;
            for (store, thread) in threads {
                let promises = promises.clone();
                let tried = match thread {
                    Ok(thread) => thread.ask(move |open| try_place((number, rank), open, &promises, needed)).await,
                    Err(error) => Err(error),
                };
                match tried {
                    Ok(place) => {
                        found = Some((ImageLocation::NodeStore(store), place));
                        break;
                    }
                    Err(error) => pass_over(&urgent, &store, error.to_string()),
                }
            }
            let last_resort = match &order.target {
                SaveTarget::File(path) => path.clone(),
                SaveTarget::Descriptor | SaveTarget::Begun => PathBuf::new(),
            };
            let (place, path, promise) = match found {
                Some((place, (path, promise))) => (place, path, Some(promise)),
                None => (ImageLocation::File(last_resort.clone()), last_resort, None),
            };
            let order = SaveOrder { target: SaveTarget::File(path), ..order };
            // The job may have left meanwhile.
            let _ = chosen.send(ChosenPlace { seq, rank, number, place, order, promise });
        });
        self.let_go();
    }

    /// A place was chosen: tells the controller. What the machine is told.
    pub fn placed(&mut self, chosen: ChosenPlace) -> Event {
        let ChosenPlace { seq, rank, number, place, order, promise } = chosen;
        if let Some(promise) = promise {
            self.reserved.keep((seq, rank), number, promise);
        }
        self.urgent.send(FromDaemon::Tier(TierReport::Placed { rank, number, place }));
        Event::Placed { seq, rank, order }
    }

    /// Where an image from elsewhere is put: the first store that has room, else the spare place.
    pub(super) fn place_for(&self, image: &ImageRef, spare: PathBuf) -> impl Future<Output = ImageDestination> + Send + use<> {
        let (threads, promises, image) = (self.stores.clone(), self.shared.promises.clone(), *image);
        async move {
            for thread in threads {
                let promises = promises.clone();
                if let Ok(place) = thread.ask(move |open| promises.place(open, &image)).await {
                    return place.or(spare);
                }
            }
            ImageDestination::outside(spare)
        }
    }

    /// See `TierOrder::Inventory`. Of a store whose file system hangs nothing is told, but that.
    pub fn inventory(&mut self, task: u64) {
        let looks: Vec<_> =
            self.stores.iter().map(|thread| (thread.store.clone(), thread.ask_within(INVENTORY_TIME, |open| Ok(open.clone())))).collect();
        let urgent = self.urgent.clone();
        self.work.spawn(async move {
            let mut found = Vec::new();
            for (store, open) in looks {
                let held = match open.await {
                    Ok(open) => timeout(INVENTORY_TIME, work(false, move || Ok(open.holdings()))).await.unwrap_or_else(|_| {
                        Err(format!("its directories have not been read within {} s (look at them on that node)", INVENTORY_TIME.as_secs()))
                    }),
                    Err(error) if error.kind() == ErrorKind::TimedOut => Err(error.to_string()),
                    // Whoever opened it was told why it cannot be used.
                    Err(_) => Ok(Vec::new()),
                };
                match held {
                    Ok(held) => found.extend(held),
                    Err(why) => pass_over(&urgent, &store, why),
                }
            }
            urgent.send(FromDaemon::Tier(TierReport::Done { task, result: Ok(TierDone::Holdings(found)) }));
        });
        self.let_go();
    }

    /// See `TierOrder::Remove`.
    pub(super) fn remove_stored(&mut self, store: &NodeStore, number: u64, ranks: Vec<Rank>) {
        let Ok(thread) = self.store(store) else { return };
        if ranks.is_empty() {
            let going = move |open: &Arc<OpenNodeStore>| open.drop_checkpoint(number).into_iter().collect::<Vec<_>>();
            return self.delete(thread.have_done(going, |going| remove_all(&going)));
        }
        let late = ranks.clone();
        let open = thread.have_done(Arc::clone, move |open| open.remove(number, &late));
        self.removals.spawn(async move {
            if let Ok(open) = open.await {
                let _ = tokio::task::spawn_blocking(move || open.remove(number, &ranks)).await;
            }
        });
    }

    /// Removes what the job has in them.
    pub(super) fn clear_stores(&mut self) {
        for thread in std::mem::take(&mut self.stores) {
            let open = thread.have_done(Arc::clone, |open| open.clear());
            self.removals.spawn(async move {
                if let Ok(open) = open.await {
                    let _ = tokio::task::spawn_blocking(move || open.clear()).await;
                }
                end(thread, false).await;
            });
        }
    }

    /// Closes them.
    pub(super) async fn end_stores(&mut self) {
        for thread in std::mem::take(&mut self.stores) {
            end(thread, true).await;
        }
    }

    /// Removes directories that are out of the way, as soon as they are.
    fn delete(&mut self, going: impl Future<Output = std::io::Result<Vec<PathBuf>>> + Send + 'static) {
        self.removals.spawn(async move {
            if let Ok(going) = going.await {
                let _ = tokio::task::spawn_blocking(move || remove_all(&going)).await;
            }
        });
    }

    /// What comes of something that a store's thread is asked for.
    pub(super) fn in_store<T: Send + 'static, F: Future<Output = std::io::Result<T>> + Send + 'static>(
        &mut self,
        store: &NodeStore,
        ask: impl FnOnce(&StoreThread) -> F,
    ) -> Outcome<T> {
        let done = self.store(store).map(|thread| ask(&thread));
        Box::pin(async move {
            match done {
                Ok(done) => done.await,
                Err(error) => Err(error),
            }
            .map_err(|error| error.to_string())
        })
    }

    pub(super) fn opened(&mut self, store: &NodeStore) -> Outcome<Arc<OpenNodeStore>> {
        self.in_store(store, |thread| thread.ask(|open| Ok(open.clone())))
    }

    pub(super) fn locate(&mut self, image: &ImageRef, from: ImageLocation) -> Located {
        let (number, rank) = (image.number, image.rank);
        match from {
            ImageLocation::NodeStore(store) => {
                self.in_store(&store, |thread| thread.ask_within(INVENTORY_TIME, move |open| Ok(open.image(number, rank))))
            }
            ImageLocation::File(path) => Box::pin(std::future::ready(Ok(path))),
        }
    }
}

/// Room for an image in a store, and its path there.
fn try_place((number, rank): (u64, Rank), open: &OpenNodeStore, promises: &Promises, needed: u64) -> std::io::Result<(PathBuf, Promise)> {
    let promise = promises.promise(open, needed)?;
    open.prepare(number)?;
    Ok((open.image(number, rank), promise))
}

/// Ends the thread of a store. One that a task still uses ends with that.
async fn end(thread: Arc<StoreThread>, goes_on: bool) {
    if goes_on {
        thread.leave_if_it_hangs();
    }
    if let Some(thread) = Arc::into_inner(thread) {
        thread.end(goes_on).await;
    }
}

fn remove_all(directories: &[PathBuf]) {
    for directory in directories {
        // What stays is nobody's, and goes with the job or the next sweep.
        let _ = std::fs::remove_dir_all(directory);
    }
}
