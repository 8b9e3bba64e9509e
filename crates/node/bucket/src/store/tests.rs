use super::*;
use crate::writes::CHUNK;
use mend_data::space::target::{Lacking, MAX_PAYLOAD, MAX_VERIFIED};
use mend_data::space::{BLOCK, File, Kind, Striping, block_sum};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::atomic::{AtomicU32, Ordering};

const SPACE: Id = [7; 16];
const ROOT: &str = "spaces/input-0/07";

/// The bucket itself, as others see it.
struct Behind(Arc<InMemory>, tokio::runtime::Runtime);

impl Behind {
    fn new() -> Self {
        Self(Arc::new(InMemory::new()), tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap())
    }

    fn opened(&self, create: bool) -> Result<Store, Failure> {
        Store::open(Bucket::over(self.0.clone(), ROOT), &SPACE, create, Box::new(|| {}))
    }

    fn names(&self) -> Vec<String> {
        use futures_util::TryStreamExt;
        let found = self.0.list(None).map_ok(|found| found.location.to_string());
        let mut names: Vec<String> = self.1.block_on(found.try_collect()).unwrap();
        names.sort_unstable();
        names
    }

    fn of(&self, part: &str) -> Vec<String> {
        self.names().into_iter().filter(|name| name.contains(part)).collect()
    }

    fn get(&self, name: &str) -> Vec<u8> {
        self.1.block_on(async { self.0.get(&Path::from(name)).await.unwrap().bytes().await.unwrap().to_vec() })
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        self.1.block_on(self.0.put(&Path::from(name), bytes.to_vec().into())).unwrap();
    }

    fn delete(&self, name: &str) {
        self.1.block_on(self.0.delete(&Path::from(name))).unwrap();
    }
}

fn ask(store: &Store, request: Request, payload: &[u8]) -> Result<(Answer, Vec<u8>), Failed> {
    assert!(request.is_sound(), "{request:?}");
    store.carry_out(request, payload).map_err(|failure| failure.kind)
}

/// A file with one object, on the first target.
fn file(id: u8, size: u64) -> Entry {
    let kind = File { size, stripe: 1 << 20, targets: vec![0], keepers: vec![0], sources: Vec::new(), replicas: Vec::new() };
    Entry { id: [id; 16], version: 1, path: format!("in/{id}.dat"), made_ns: 5, kind: Kind::File(kind) }
}

fn content(size: u64) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect()
}

fn write(store: &Store, entry: &Entry, offset: u64, bytes: &[u8]) {
    for (piece, at) in bytes.chunks(MAX_PAYLOAD as usize).zip((offset..).step_by(MAX_PAYLOAD as usize)) {
        ask(store, Request::Write { file: entry.id, position: 0, offset: at, length: piece.len() as u32 }, piece).unwrap();
    }
}

fn life(store: &Store) -> Id {
    let Ok((Answer::Seen { life, .. }, _)) = ask(store, Request::Look, &[]) else { panic!("it does not say how it is") };
    life
}

fn finish(store: &Store, entry: &Entry) {
    let length = entry.file().unwrap().size;
    ask(store, Request::Settle { file: entry.id, position: 0, length, life: life(store) }, &[]).unwrap();
    ask(store, Request::Sums { file: entry.id, page: 0, length: 16 }, &[9; 16]).unwrap();
    ask(store, Request::Put { entry: Box::new(entry.clone()), positions: vec![0] }, &[]).unwrap();
}

fn stage(store: &Store, entry: &Entry) -> Vec<u8> {
    let bytes = content(entry.file().unwrap().size);
    ask(store, Request::Begin { entry: Box::new(entry.clone()) }, &[]).unwrap();
    write(store, entry, 0, &bytes);
    finish(store, entry);
    bytes
}

fn read(store: &Store, entry: &Entry, offset: u64, length: u32) -> Result<Vec<u8>, Failed> {
    ask(store, Request::Read { file: entry.id, position: 0, offset, length }, &[]).map(|(_, bytes)| bytes)
}

fn lacking(store: &Store) -> Lacking {
    postcard::from_bytes(&ask(store, Request::Lacking { at: 0 }, &[]).unwrap().1).unwrap()
}

fn changes(store: &Store) -> Vec<Change> {
    match ask(store, Request::Changes { after: 0, lease: false }, &[]) {
        Ok((Answer::Changes { changes, more: false, .. }, _)) => changes,
        other => panic!("{other:?}"),
    }
}

/// Removes what is to be removed, and ends.
fn behind_them(store: &Store) {
    *held(&store.gone) = channel().0;
    store.begun();
}

#[test]
fn what_was_staged_is_read_by_ranges_and_by_whoever_serves_the_target_next() {
    let behind = Behind::new();
    let entry = file(1, 2 * CHUNK + 100_000);
    let store = behind.opened(true).unwrap();
    let bytes = stage(&store, &entry);
    assert_eq!(behind.of("/objects/").len(), 3);
    assert_eq!(behind.of("/begun/"), Vec::<String>::new());
    for again in [store, behind.opened(false).unwrap()] {
        for (offset, length) in [(0, 5), (CHUNK - 3, 70_000), (2 * CHUNK, 100_000), (7, MAX_PAYLOAD)] {
            assert!(read(&again, &entry, offset, length) == Ok(bytes[offset as usize..][..length as usize].to_vec()), "{offset}, {length}");
        }
        assert_eq!(read(&again, &entry, 2 * CHUNK, 100_001), Err(Failed::Short));
        assert_eq!(read(&again, &entry, 3 * CHUNK, 1), Err(Failed::Absent));
        assert_eq!(changes(&again), [Change::There(Box::new(entry.clone()))]);
        assert_eq!(ask(&again, Request::ReadSums { file: entry.id, page: 0 }, &[]).unwrap().1, [9; 16]);
        assert_eq!(lacking(&again), []);
        let Ok((Answer::Seen { used, free, .. }, _)) = ask(&again, Request::Look, &[]) else { break };
        assert_eq!((used, free), (entry.file().unwrap().size, UNBOUNDED));
    }
}

#[test]
fn a_target_is_where_it_was_made_and_of_one_space_alone() {
    let behind = Behind::new();
    assert_eq!(behind.opened(false).err().map(|failure| failure.kind), Some(Failed::Absent));
    assert_eq!(behind.names(), Vec::<String>::new());
    drop(behind.opened(true).unwrap());
    drop(behind.opened(true).unwrap());
    let other = Store::open(Bucket::over(behind.0.clone(), ROOT), &[8; 16], true, Box::new(|| {}));
    assert_eq!(other.err().map(|failure| failure.kind), Some(Failed::Nonsense));
    // What was tried is gone.
    assert_eq!(behind.names(), [format!("{ROOT}/about"), format!("{ROOT}/owner")]);
}

#[test]
fn bytes_come_in_any_order_and_what_is_written_later_lies_over_what_is_there() {
    let behind = Behind::new();
    let store = behind.opened(true).unwrap();
    let entry = file(1, CHUNK + 3 * BLOCK);
    let mut bytes = content(CHUNK + 3 * BLOCK);
    for at in [CHUNK + BLOCK, 0, CHUNK / 2, CHUNK, CHUNK + 2 * BLOCK] {
        let until = if at < CHUNK { at + CHUNK / 2 } else { at + BLOCK };
        write(&store, &entry, at, &bytes[at as usize..until as usize]);
    }
    finish(&store, &entry);
    assert!(read(&store, &entry, 5, MAX_PAYLOAD) == Ok(bytes[5..5 + CHUNK as usize].to_vec()));
    // A damaged block is written back.
    bytes[2 * BLOCK as usize..3 * BLOCK as usize].fill(1);
    write(&store, &entry, 2 * BLOCK, &vec![1; BLOCK as usize]);
    assert!(read(&store, &entry, BLOCK, 3 * BLOCK as u32) == Ok(bytes[BLOCK as usize..4 * BLOCK as usize].to_vec()));
    ask(&store, Request::Settle { file: entry.id, position: 0, length: CHUNK + 3 * BLOCK, life: life(&store) }, &[]).unwrap();
    let again = behind.opened(false).unwrap();
    assert!(read(&again, &entry, 0, CHUNK as u32) == Ok(bytes[..CHUNK as usize].to_vec()));
}

#[test]
fn what_is_begun_is_found_again_and_what_an_earlier_process_had_in_memory_is_not_believed() {
    let behind = Behind::new();
    let entry = file(1, CHUNK + 2 * BLOCK);
    let bytes = content(CHUNK + 2 * BLOCK);
    let store = behind.opened(true).unwrap();
    let first = life(&store);
    ask(&store, Request::Begin { entry: Box::new(entry.clone()) }, &[]).unwrap();
    write(&store, &entry, 0, &bytes[..(CHUNK + BLOCK) as usize]);
    drop(store);
    let store = behind.opened(false).unwrap();
    let settle = |length, life| Request::Settle { file: entry.id, position: 0, length, life };
    assert_eq!(ask(&store, settle(CHUNK + 2 * BLOCK, first), &[]), Err(Failed::Absent));
    assert_eq!(changes(&store), []);
    let (_, sums) = ask(&store, Request::Verify { file: entry.id, position: 0, first: 0, count: MAX_VERIFIED }, &[]).unwrap();
    let sums: Vec<u128> = sums.chunks(16).map(|sum| u128::from_le_bytes(sum.try_into().unwrap())).collect();
    let right: Vec<u128> = bytes.chunks(BLOCK as usize).zip(0..).map(|(block, index)| block_sum(&entry.id, index, block)).collect();
    let blocks = (CHUNK / BLOCK) as usize;
    assert_eq!((sums.len(), &sums[..blocks], &sums[blocks..]), (blocks + 2, &right[..blocks], &[0, 0][..]));
    write(&store, &entry, CHUNK, &bytes[CHUNK as usize..]);
    assert_eq!(ask(&store, settle(CHUNK, life(&store)), &[]), Err(Failed::Short));
    finish(&store, &entry);
    assert!(read(&store, &entry, CHUNK - 1, 5) == Ok(bytes[CHUNK as usize - 1..][..5].to_vec()));
    // What will not be leaves nothing.
    let never = file(2, 5);
    ask(&store, Request::Begin { entry: Box::new(never.clone()) }, &[]).unwrap();
    write(&store, &never, 0, b"never");
    ask(&store, Request::Discard { file: never.id }, &[]).unwrap();
    assert_eq!(behind.of(&"02".repeat(16)), Vec::<String>::new());
}

#[test]
fn lost_short_and_changed_objects_are_told() {
    let behind = Behind::new();
    let store = behind.opened(true).unwrap();
    let entries = [file(1, 3 * CHUNK), file(2, CHUNK + 5), file(3, 100_000)];
    entries.iter().for_each(|entry| drop(stage(&store, entry)));
    assert_eq!(lacking(&store), []);
    let chunk = |id: u8, number: u64| format!("{ROOT}/objects/{}/0/{number}", format!("{id:02x}").repeat(16));
    behind.delete(&chunk(1, 1));
    behind.put(&chunk(2, 1), b"shor");
    let mut damaged = behind.get(&chunk(3, 0));
    damaged[70_000] ^= 1;
    behind.put(&chunk(3, 0), &damaged);
    // What reads find is not overlooked by a listing of before.
    assert_eq!(read(&store, &entries[0], CHUNK, 5), Err(Failed::Absent));
    assert_eq!(read(&store, &entries[1], CHUNK, 5), Err(Failed::Short));
    let mut found = lacking(&store);
    found.sort_unstable();
    assert_eq!(found, [([1; 16], 0), ([2; 16], 0)]);
    let (_, sums) = ask(&store, Request::Verify { file: [3; 16], position: 0, first: 0, count: 2 }, &[]).unwrap();
    let right = content(100_000);
    assert_eq!(sums[..16], block_sum(&[3; 16], 0, &right[..BLOCK as usize]).to_le_bytes());
    assert_ne!(sums[16..], block_sum(&[3; 16], 1, &right[BLOCK as usize..]).to_le_bytes());
    // They are written again, and all is well.
    write(&store, &entries[0], CHUNK, &content(3 * CHUNK)[CHUNK as usize..2 * CHUNK as usize]);
    write(&store, &entries[1], CHUNK, &content(CHUNK + 5)[CHUNK as usize..]);
    for (entry, length) in [(&entries[0], 3 * CHUNK), (&entries[1], CHUNK + 5)] {
        ask(&store, Request::Settle { file: entry.id, position: 0, length, life: life(&store) }, &[]).unwrap();
    }
    assert_eq!(lacking(&store), []);
    // An entry that was changed is not believed.
    behind.put(&format!("{ROOT}/entries/{}", "01".repeat(16)), b"something else");
    assert_eq!(changes(&behind.opened(false).unwrap()).len(), 2);
}

#[test]
fn who_was_replaced_acknowledges_nothing() {
    let behind = Behind::new();
    let told = Arc::new(AtomicU32::new(0));
    let count = told.clone();
    let replaced = move || {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let first = Store::open(Bucket::over(behind.0.clone(), ROOT), &SPACE, true, Box::new(replaced)).unwrap();
    let (old, new) = (file(1, 5), file(2, 5));
    let bytes = stage(&first, &old);
    let second = behind.opened(false).unwrap();
    assert_eq!(changes(&second).len(), 1);
    // Reading is right at both: a staged file never changes.
    assert_eq!(read(&first, &old, 0, 5), Ok(bytes.clone()));
    write(&first, &new, 0, &bytes);
    ask(&first, Request::Settle { file: new.id, position: 0, length: 5, life: life(&first) }, &[]).unwrap();
    assert_eq!(ask(&first, Request::Put { entry: Box::new(new.clone()), positions: vec![0] }, &[]), Err(Failed::Busy));
    assert_eq!(ask(&first, Request::Forget { ids: vec![old.id] }, &[]), Err(Failed::Busy));
    assert_eq!(told.load(Ordering::Relaxed), 2);
    // It serves what it is asked for by those who know no better, and what was not acknowledged may be there: as after any failure.
    drop(first);
    assert_eq!(read(&second, &old, 0, 5), Ok(bytes));
}

#[test]
fn what_is_removed_goes_with_all_that_belongs_to_it_and_does_not_come_back() {
    let behind = Behind::new();
    behind.put("spaces/other/thing", b"of somebody else");
    behind.put("spaces/input-0/071/thing", b"of another space");
    let store = behind.opened(true).unwrap();
    let (gone, stays) = (file(1, CHUNK + 1), file(2, 9));
    stage(&store, &gone);
    stage(&store, &stays);
    ask(&store, Request::Forget { ids: vec![gone.id, [5; 16]] }, &[]).unwrap();
    behind_them(&store);
    assert_eq!(behind.of(&"01".repeat(16)), [format!("{ROOT}/entries/{}", "01".repeat(16))]);
    assert_eq!(ask(&store, Request::Put { entry: Box::new(gone.clone()), positions: vec![] }, &[]), Err(Failed::Nonsense));
    let again = behind.opened(false).unwrap();
    assert_eq!(changes(&again).iter().filter(|change| matches!(change, Change::Gone(_))).count(), 2);
    // The file came onto another target.
    let Kind::File(inside) = stays.kind.clone() else { unreachable!() };
    let moved = Entry { version: 2, kind: Kind::File(File { targets: vec![1], ..inside }), ..stays.clone() };
    ask(&again, Request::Put { entry: Box::new(moved), positions: Vec::new() }, &[]).unwrap();
    assert_eq!(behind.of(&format!("objects/{}", "02".repeat(16))), Vec::<String>::new());
    assert_eq!(ask(&again, Request::Leave, &[]).unwrap().0, Answer::Done);
    assert_eq!(behind.names(), ["spaces/input-0/071/thing", "spaces/other/thing"]);
}

#[test]
fn what_was_left_behind_goes_when_nobody_can_be_writing_it() {
    let behind = Behind::new();
    let store = behind.opened(true).unwrap();
    let entry = file(1, 9);
    stage(&store, &entry);
    // A copy that was begun, and a file of which nothing else is known, both a moment ago.
    for (id, position) in [(1, 1), (4, 0)] {
        ask(&store, Request::Write { file: [id; 16], position, offset: 0, length: 5 }, b"bytes").unwrap();
        ask(&store, Request::Settle { file: [id; 16], position, length: 5, life: life(&store) }, &[]).unwrap();
    }
    // One that was removed while the bucket did not answer.
    ask(&store, Request::Forget { ids: vec![[6; 16]] }, &[]).unwrap();
    behind.put(&format!("{ROOT}/objects/{}/0/0", "06".repeat(16)), b"left");
    drop(store);
    let again = behind.opened(false).unwrap();
    again.tidy().unwrap();
    assert_eq!(behind.of("/objects/").len(), 3);
    assert_eq!(behind.of(&format!("objects/{}", "06".repeat(16))), Vec::<String>::new());
    ask(&again, Request::Discard { file: entry.id }, &[]).unwrap();
    assert_eq!(behind.of(&format!("objects/{}", "01".repeat(16))).len(), 1);
}

#[test]
fn who_was_replaced_removes_nothing() {
    let behind = Behind::new();
    let (first, file) = (behind.opened(true).unwrap(), file(1, CHUNK + 5));
    ask(&first, Request::Begin { entry: Box::new(file.clone()) }, &[]).unwrap();
    let second = behind.opened(false).unwrap();
    stage(&second, &self::file(2, 5));
    write(&second, &file, 0, &content(CHUNK + 5));
    finish(&second, &file);
    let stored = behind.names();
    // It believes still that the file stands still, and that nobody has taken over.
    let later = Instant::now() + first.stays.staged + Duration::from_secs(1);
    assert_eq!(first.sweep(later).unwrap_err().kind, Failed::Busy);
    assert_eq!(ask(&first, Request::Discard { file: file.id }, &[]), Err(Failed::Busy));
    assert_eq!(first.remove_objects(&file.id, &[]).unwrap_err().kind, Failed::Busy);
    assert_eq!(behind.names(), stored);
    assert_eq!(lacking(&second), []);
}

#[test]
fn what_is_sent_again_while_a_target_looks_for_what_was_left_behind_stays() {
    let behind = Behind::new();
    let store = behind.opened(true).unwrap();
    let (left, again) = (file(1, 9), file(2, 9));
    stage(&store, &file(3, 9));
    for entry in [&left, &again] {
        write(&store, entry, 0, &content(9));
        ask(&store, Request::Settle { file: entry.id, position: 0, length: 9, life: life(&store) }, &[]).unwrap();
        ask(&store, Request::Sums { file: entry.id, page: 0, length: 16 }, &[9; 16]).unwrap();
    }
    // A copy that was begun of a file that is there.
    ask(&store, Request::Write { file: [3; 16], position: 1, offset: 0, length: 5 }, b"bytes").unwrap();
    ask(&store, Request::Settle { file: [3; 16], position: 1, length: 5, life: life(&store) }, &[]).unwrap();
    let mut store = behind.opened(false).unwrap();
    let found = store.left_behind().unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), [&[1; 16], &[2; 16], &[3; 16]]);
    write(&store, &again, 0, &content(9));
    ask(&store, Request::Settle { file: again.id, position: 0, length: 9, life: life(&store) }, &[]).unwrap();
    store.stays = begun::Stays { staged: Duration::ZERO, others: Duration::ZERO };
    found.into_iter().for_each(|(file, begun)| store.tidy_one(&file, begun).unwrap());
    store.stays = begun::Stays::set();
    let names = |id: &str| behind.of(&format!("/{}/", id.repeat(16))).len();
    assert_eq!((names("01"), names("02"), names("03")), (0, 2, 2));
    finish(&store, &again);
    assert_eq!(read(&store, &again, 0, 9), Ok(content(9)));
}

#[test]
fn what_is_begun_stays_from_its_last_byte_also_when_the_target_begins_anew() {
    let behind = Behind::new();
    let store = behind.opened(true).unwrap();
    let (gets, stands) = (file(1, CHUNK + 9), file(2, CHUNK + 9));
    for entry in [&gets, &stands] {
        ask(&store, Request::Begin { entry: Box::new(entry.clone()) }, &[]).unwrap();
        write(&store, entry, 0, &content(CHUNK));
    }
    let since = Instant::now();
    std::thread::sleep(Duration::from_millis(1500));
    write(&store, &gets, 0, &content(CHUNK));
    drop(store);
    let mut store = behind.opened(false).unwrap();
    store.stays = begun::Stays { staged: since.elapsed(), others: Duration::ZERO };
    held(&store.begun).clear();
    std::thread::sleep(Duration::from_millis(100));
    store.read_begun().unwrap();
    assert_eq!((store.being_staged(&gets.id), store.being_staged(&stands.id)), (Some(gets.clone()), None));
    store.tidy().unwrap();
    assert_eq!(behind.of(&"01".repeat(16)).len(), 2);
    assert_eq!(behind.of(&"02".repeat(16)), Vec::<String>::new());
}

#[test]
fn an_object_whose_chunks_take_long_to_list_is_settled() {
    let behind = Behind::new();
    let store = behind.opened(true).unwrap();
    let entry = file(1, 6 * CHUNK + 5);
    ask(&store, Request::Begin { entry: Box::new(entry.clone()) }, &[]).unwrap();
    write(&store, &entry, 0, &content(3 * CHUNK));
    drop(store);
    let slow = Arc::new(ThrottledStore::new(behind.0.clone(), ThrottleConfig::default()));
    let store = Store::open(Bucket::over(slow.clone(), ROOT).within(Duration::from_millis(200)), &SPACE, false, Box::new(|| {})).unwrap();
    write(&store, &entry, 3 * CHUNK, &content(6 * CHUNK + 5)[3 * CHUNK as usize..]);
    // Longer for all of them than one request may take.
    slow.config_mut(|config| config.wait_list_per_entry = Duration::from_millis(100));
    let settle = || ask(&store, Request::Settle { file: entry.id, position: 0, length: 6 * CHUNK + 5, life: life(&store) }, &[]);
    settle().unwrap();
    // Whoever did not wait that long need not wait again, and neither need who sent all of it to this process.
    slow.config_mut(|config| config.wait_list_per_entry = Duration::from_secs(3600));
    settle().unwrap();
    let other = file(2, 2 * CHUNK);
    ask(&store, Request::Begin { entry: Box::new(other.clone()) }, &[]).unwrap();
    write(&store, &other, 0, &content(2 * CHUNK));
    finish(&store, &other);
    finish(&store, &entry);
}

#[test]
fn a_space_ends_however_slow_its_store_is() {
    let behind = Behind::new();
    stage(&behind.opened(true).unwrap(), &file(1, 3 * CHUNK));
    let slow = Arc::new(ThrottledStore::new(behind.0.clone(), ThrottleConfig::default()));
    let store = Store::open(Bucket::over(slow.clone(), ROOT).within(Duration::from_millis(50)), &SPACE, false, Box::new(|| {})).unwrap();
    slow.config_mut(|config| config.wait_list_per_call = Duration::from_millis(60));
    slow.config_mut(|config| config.wait_delete_per_call = Duration::from_millis(60));
    let asked = std::iter::repeat_with(|| ask(&store, Request::Leave, &[])).take(9).position(|told| told.is_ok());
    assert_eq!((asked.is_some(), behind.names()), (true, Vec::new()));
}

#[test]
fn a_snapshot_is_believed_of_entries_that_are_as_they_were() {
    let behind = Behind::new();
    let store = behind.opened(true).unwrap();
    let directory = |number: u16| {
        let id = [[1; 14].as_slice(), &number.to_le_bytes()].concat();
        Entry { id: id.try_into().unwrap(), path: format!("d{number}"), kind: Kind::Directory(Striping::default()), ..file(0, 0) }
    };
    let put = |store: &Store, entry: Entry| drop(ask(store, Request::Put { entry: Box::new(entry), positions: Vec::new() }, &[]).unwrap());
    (0..300).for_each(|number| put(&store, directory(number)));
    let again = behind.opened(false).unwrap();
    behind_them(&again);
    assert_eq!(behind.of("/snapshot").len(), 1);
    put(&again, directory(300));
    ask(&again, Request::Forget { ids: vec![directory(7).id] }, &[]).unwrap();
    let seen = |store: &Store| -> std::collections::BTreeSet<String> {
        let paths = changes(store).into_iter().filter_map(|change| match change {
            Change::There(entry) => Some(entry.path),
            Change::Gone(_) => None,
        });
        paths.collect()
    };
    let third = behind.opened(false).unwrap();
    assert_eq!(third.snapshot.lock().unwrap().len(), 0, "two entries are no reason for another snapshot");
    assert_eq!((seen(&third).len(), seen(&third).contains("d7"), seen(&third).contains("d300")), (300, false, true));
    behind.put(&format!("{ROOT}/snapshot"), b"damaged");
    assert_eq!(seen(&behind.opened(false).unwrap()), seen(&third));
}

#[test]
fn what_ranks_write_is_refused_by_name() {
    let store = Behind::new().opened(true).unwrap();
    let request = Request::WriteRange { file: [1; 16], epoch: 1, position: 0, offset: 0, length: 0, sum: 0, changed_ns: 0, appends: false };
    let refused = store.carry_out(request, &[]).unwrap_err();
    assert_eq!((refused.kind, refused.why.as_str()), (Failed::Nonsense, "ranks cannot write to a bucket"));
    let shapes: Vec<Vec<Shape>> = postcard::from_bytes(&ask(&store, Request::Shapes { files: vec![[1; 16]; 3] }, &[]).unwrap().1).unwrap();
    assert_eq!(shapes, [const { Vec::new() }; 3]);
    // A directory is an entry alone.
    let entry = Entry { kind: Kind::Directory(Striping::default()), ..file(3, 0) };
    ask(&store, Request::Put { entry: Box::new(entry.clone()), positions: Vec::new() }, &[]).unwrap();
    assert_eq!(changes(&store), [Change::There(Box::new(entry))]);
}

#[test]
fn a_bucket_that_says_nothing_is_told_within_the_time_of_one_request() {
    let behind = Behind::new();
    let entry = file(1, 9);
    stage(&behind.opened(true).unwrap(), &entry);
    let slow = Arc::new(ThrottledStore::new(behind.0.clone(), ThrottleConfig::default()));
    let store = Store::open(Bucket::over(slow.clone(), ROOT).within(Duration::from_millis(50)), &SPACE, false, Box::new(|| {})).unwrap();
    assert_eq!(ask(&store, Request::ReadSums { file: entry.id, page: 0 }, &[]).unwrap().1, [9; 16]);
    slow.config_mut(|config| config.wait_get_per_call = Duration::from_secs(3600));
    let said = store.carry_out(Request::Read { file: entry.id, position: 0, offset: 0, length: 9 }, &[]).unwrap_err();
    assert_eq!(said.kind, Failed::Medium);
    assert!(
        said.why.contains("did not answer for 50 ms") && said.why.contains("AWS_ENDPOINT_URL") && !said.why.contains('\t'),
        "{}",
        said.why
    );
    *held(&store.seen) = None;
    assert_eq!(ask(&store, Request::Look, &[]), Err(Failed::Medium));
    // Checksums that were read are still had: what comes from sources can be compared.
    assert_eq!(ask(&store, Request::ReadSums { file: entry.id, page: 0 }, &[]).unwrap().1, [9; 16]);
    slow.config_mut(|config| config.wait_get_per_call = Duration::ZERO);
    assert_eq!(changes(&store).len(), 1);
    let tries = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(100));
        read(&store, &entry, 0, 9)
    });
    assert_eq!(tries.take(600).find(Result::is_ok), Some(Ok(content(9))));
}

#[test]
fn many_threads_write_one_object() {
    let behind = Behind::new();
    let store = behind.opened(true).unwrap();
    let entry = file(1, 2 * CHUNK + BLOCK);
    let bytes = content(2 * CHUNK + BLOCK);
    ask(&store, Request::Begin { entry: Box::new(entry.clone()) }, &[]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (store, entry, bytes) = (&store, &entry, &bytes);
            scope.spawn(move || {
                for at in (thread * BLOCK..2 * CHUNK + BLOCK).step_by(4 * BLOCK as usize) {
                    write(store, entry, at, &bytes[at as usize..(at + BLOCK) as usize]);
                }
            });
        }
    });
    finish(&store, &entry);
    for offset in [0, CHUNK] {
        assert!(read(&store, &entry, offset, MAX_PAYLOAD) == Ok(bytes[offset as usize..][..CHUNK as usize].to_vec()));
    }
}

#[test]
fn many_are_removed_although_all_of_them_take_longer_than_one_request_may() {
    let behind = Behind::new();
    drop(behind.opened(true).unwrap());
    let slow = ThrottledStore::new(behind.0.clone(), ThrottleConfig::default());
    slow.config_mut(|config| config.wait_put_per_call = Duration::from_millis(200));
    let bucket = Bucket::over(Arc::new(slow), ROOT).within(Duration::from_secs(1));
    let store = Store::open(bucket, &SPACE, false, Box::new(|| {})).unwrap();
    let ids = (0..512_u16)
        .map(|number| {
            let mut id = [9; 16];
            id[..2].copy_from_slice(&number.to_le_bytes());
            id
        })
        .collect();
    ask(&store, Request::Forget { ids }, &[]).unwrap();
    assert_eq!(changes(&store).len(), 512);
}
