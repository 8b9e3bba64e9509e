use super::*;
use crate::server::Served;
use mend_data::space::{BLOCK, File as StripedFile, Kind};

const SPACE: Id = [7; 16];

fn open(directory: &Path) -> Store {
    Store::open(directory, &SPACE, true).unwrap()
}

fn entry(id: u8, size: u64) -> Entry {
    let file = StripedFile { size, stripe: BLOCK, targets: vec![0], keepers: vec![0], sources: Vec::new(), replicas: Vec::new() };
    Entry { id: [id; 16], version: 1, path: format!("f{id}"), made_ns: 0, kind: Kind::File(file) }
}

fn ask(store: &Store, request: Request, payload: &[u8]) -> Result<(Answer, Vec<u8>), Failed> {
    store.carry_out(request, payload).map_err(|failure| failure.kind)
}

fn life(store: &Store) -> Id {
    let Ok((Answer::Seen { life, .. }, _)) = ask(store, Request::Look, &[]) else { panic!("it does not tell of itself") };
    life
}

fn used(store: &Store) -> u64 {
    let Ok((Answer::Seen { used, .. }, _)) = ask(store, Request::Look, &[]) else { panic!("it does not tell of itself") };
    used
}

fn write(store: &Store, file: Id, bytes: &[u8]) {
    ask(store, Request::Write { file, position: 0, offset: 0, length: bytes.len() as u32 }, bytes).unwrap();
}

fn put(store: &Store, entry: &Entry) -> Result<(Answer, Vec<u8>), Failed> {
    ask(store, Request::Put { entry: Box::new(entry.clone()), positions: vec![0] }, &[])
}

fn known(store: &Store) -> Vec<Change> {
    let Ok((Answer::Changes { changes, more: false, .. }, _)) = ask(store, Request::Changes { after: 0, lease: false }, &[]) else {
        panic!("no changes")
    };
    changes
}

fn keep(store: &Store, id: u8) -> Entry {
    let entry = entry(id, 5);
    write(store, entry.id, b"12345");
    ask(store, Request::Settle { file: entry.id, position: 0, length: 5, life: life(store) }, &[]).unwrap();
    ask(store, Request::Sums { file: entry.id, page: 0, length: 16 }, &[9; 16]).unwrap();
    put(store, &entry).unwrap();
    entry
}

#[test]
fn what_was_put_is_there_after_the_process_and_what_was_not_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let kept = keep(&store, 1);
    write(&store, [2; 16], b"half");
    let before = life(&store);
    drop(store);
    let store = open(directory.path());
    assert_ne!(life(&store), before);
    assert_eq!(known(&store), [Change::There(Box::new(kept.clone()))]);
    let read = Request::Read { file: kept.id, position: 0, offset: 1, length: 3 };
    assert_eq!(ask(&store, read, &[]).unwrap().1, b"234");
    assert_eq!(ask(&store, Request::ReadSums { file: kept.id, page: 0 }, &[]).unwrap().1, [9; 16]);
    let half = Request::Read { file: [2; 16], position: 0, offset: 0, length: 1 };
    assert_eq!(ask(&store, half, &[]).unwrap_err(), Failed::Absent);
    assert_eq!(used(&store), 5);
}

#[test]
fn an_object_is_whole_or_its_entry_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let (short, absent) = (entry(1, 5), entry(2, 5));
    write(&store, short.id, b"123");
    let settle = |length, life| Request::Settle { file: short.id, position: 0, length, life };
    assert_eq!(ask(&store, settle(5, life(&store)), &[]).unwrap_err(), Failed::Short);
    assert_eq!(ask(&store, settle(3, [0; 16]), &[]).unwrap_err(), Failed::Absent);
    assert_eq!(put(&store, &short).unwrap_err(), Failed::Short);
    assert_eq!(put(&store, &absent).unwrap_err(), Failed::Absent);
    assert_eq!(known(&store), []);
    let read = Request::Read { file: short.id, position: 0, offset: 0, length: 4 };
    assert_eq!(ask(&store, read, &[]).unwrap_err(), Failed::Short);
}

#[test]
fn what_is_gone_stays_gone_and_takes_its_bytes_along() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let kept = keep(&store, 1);
    let never = [3; 16];
    ask(&store, Request::Forget { ids: vec![kept.id, never] }, &[]).unwrap();
    assert_eq!(known(&store), [Change::Gone(kept.id), Change::Gone(never)]);
    assert_eq!(put(&store, &kept).unwrap_err(), Failed::Nonsense);
    assert_eq!(put(&store, &entry(3, 0)).unwrap_err(), Failed::Nonsense);
    assert_eq!(ask(&store, Request::ReadSums { file: kept.id, page: 0 }, &[]).unwrap_err(), Failed::Absent);
    assert_eq!(used(&store), 0);
    let left = fs::read_dir(directory.path().join("objects/01")).unwrap().count();
    assert_eq!(left, 0);
    // Once more is as good, and adds nothing.
    ask(&store, Request::Forget { ids: vec![kept.id] }, &[]).unwrap();
    assert_eq!(known(&store).len(), 2);
}

#[test]
fn a_failed_file_s_bytes_go_and_a_kept_one_s_stay() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let kept = keep(&store, 1);
    write(&store, [2; 16], b"half");
    for file in [kept.id, [2; 16]] {
        ask(&store, Request::Discard { file }, &[]).unwrap();
    }
    let read = |file| ask(&store, Request::Read { file, position: 0, offset: 0, length: 1 }, &[]).map(|(_, bytes)| bytes);
    assert_eq!((read(kept.id), read([2; 16])), (Ok(b"1".to_vec()), Err(Failed::Absent)));
}

#[test]
fn other_directories_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &Path, space: &Id, create| Store::open(path, space, create).unwrap_err().why;
    assert!(refused(directory.path(), &SPACE, false).contains("no target"));
    drop(open(&directory.path().join("a")));
    assert!(refused(&directory.path().join("a"), &[8; 16], true).contains("another data space"));
    fs::create_dir(directory.path().join("b")).unwrap();
    fs::write(directory.path().join("b/mine"), "").unwrap();
    assert!(refused(&directory.path().join("b"), &SPACE, true).contains("other files"));
    let open_to_all = directory.path().join("c");
    fs::create_dir(&open_to_all).unwrap();
    fs::set_permissions(&open_to_all, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    assert!(refused(&open_to_all, &SPACE, true).contains("others may write"));
}

#[test]
fn changes_come_in_pieces_and_are_numbered_on() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let long = "x/".repeat(2000) + "y";
    let all: Vec<Entry> = (0..300_u16)
        .map(|number| {
            let mut id = [0; 16];
            id[..2].copy_from_slice(&number.to_be_bytes());
            Entry { id, path: long.clone(), ..entry(0, 0) }
        })
        .collect();
    all.iter().for_each(|entry| drop(ask(&store, Request::Put { entry: Box::new(entry.clone()), positions: vec![] }, &[]).unwrap()));
    let (mut after, mut heard, mut pieces) = (0, Vec::new(), 0);
    loop {
        let Ok((Answer::Changes { upto, more, changes, .. }, _)) = ask(&store, Request::Changes { after, lease: false }, &[]) else {
            panic!("no changes")
        };
        heard.extend(changes);
        (after, pieces) = (upto, pieces + 1);
        if !more {
            break;
        }
    }
    assert!(pieces > 1);
    assert_eq!(heard, all.into_iter().map(|entry| Change::There(Box::new(entry))).collect::<Vec<_>>());
}

fn moved(entry: &Entry, targets: Vec<u16>) -> Entry {
    let Kind::File(file) = entry.kind.clone() else { panic!("no file") };
    Entry { version: entry.version + 1, kind: Kind::File(StripedFile { targets, ..file }), ..entry.clone() }
}

#[test]
fn what_is_on_another_target_now_goes_and_the_map_is_told_on() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let kept = keep(&store, 1);
    let there = moved(&kept, vec![1]);
    let put = |entry: &Entry| ask(&store, Request::Put { entry: Box::new(entry.clone()), positions: Vec::new() }, &[]);
    put(&there).unwrap();
    assert_eq!(known(&store), [Change::There(Box::new(there.clone()))]);
    assert_eq!(used(&store), 0);
    assert_eq!(ask(&store, Request::Read { file: kept.id, position: 0, offset: 0, length: 5 }, &[]), Err(Failed::Absent));
    // What is out of date changes nothing.
    put(&kept).unwrap();
    assert_eq!(known(&store), [Change::There(Box::new(there))]);
}

#[test]
fn a_target_tells_what_it_lacks_and_what_its_blocks_sum_up_to() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let kept = keep(&store, 1);
    let lacking = || {
        let (_, bytes) = ask(&store, Request::Lacking { at: 0 }, &[]).unwrap();
        postcard::from_bytes::<Vec<(Id, u16)>>(&bytes).unwrap()
    };
    let verify = || ask(&store, Request::Verify { file: kept.id, position: 0, first: 0, count: 9 }, &[]).map(|(_, sums)| sums);
    assert_eq!(lacking(), []);
    assert_eq!(verify().unwrap(), mend_data::space::block_sum(&kept.id, 0, b"12345").to_le_bytes());
    fs::write(store.path(&kept.id, 0), b"123").unwrap();
    assert_eq!(lacking(), [(kept.id, 0)]);
    assert_eq!(verify().unwrap(), [0; 16]);
    fs::remove_file(store.path(&kept.id, 0)).unwrap();
    assert_eq!(lacking(), [(kept.id, 0)]);
    assert_eq!(verify(), Err(Failed::Absent));
}

#[test]
fn one_heals_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let heal = |who: u8, verify_after, done| ask(&store, Request::Heal { who: [who; 16], verify_after, done }, &[]).map(drop);
    heal(1, None, false).unwrap();
    heal(1, None, false).unwrap();
    assert_eq!(heal(2, None, false), Err(Failed::Busy));
    heal(1, None, true).unwrap();
    heal(2, Some(100), false).unwrap();
    heal(2, None, true).unwrap();
    assert_eq!(heal(1, Some(100), false), Err(Failed::Busy));
    heal(1, Some(0), false).unwrap();
}

/// A second copy of an object comes onto a target that keeps the entry already, for another object.
fn copied(store: &Store, entry: &Entry, replicas: Vec<Option<u16>>, positions: Vec<u16>) -> Result<(Answer, Vec<u8>), Failed> {
    let Kind::File(file) = entry.kind.clone() else { panic!("no file") };
    let entry = Entry { version: entry.version + 1, kind: Kind::File(StripedFile { replicas, ..file }), ..entry.clone() };
    ask(store, Request::Put { entry: Box::new(entry), positions }, &[])
}

#[test]
fn a_second_copy_counts_once_and_goes_with_the_map_that_has_none() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let Kind::File(file) = entry(1, 2 * BLOCK).kind else { panic!("no file") };
    let wide = Entry { kind: Kind::File(StripedFile { targets: vec![0, 1], ..file }), ..entry(1, 2 * BLOCK) };
    let write = |position| {
        let bytes = vec![7; BLOCK as usize];
        ask(&store, Request::Write { file: wide.id, position, offset: 0, length: BLOCK as u32 }, &bytes).unwrap();
        ask(&store, Request::Settle { file: wide.id, position, length: BLOCK, life: life(&store) }, &[]).unwrap();
    };
    write(0);
    put(&store, &wide).unwrap();
    assert_eq!(used(&store), BLOCK);
    // Not before its bytes are there.
    assert_eq!(copied(&store, &wide, vec![None, Some(0)], vec![0, 1]).unwrap_err(), Failed::Absent);
    write(1);
    assert_eq!(used(&store), BLOCK);
    let both = |store: &Store| [0, 1].map(|position| store.path(&wide.id, position).exists());
    copied(&store, &wide, vec![None, Some(0)], vec![0, 1]).unwrap();
    copied(&store, &wide, vec![None, Some(0)], vec![0, 1]).unwrap();
    assert_eq!((used(&store), both(&store)), (2 * BLOCK, [true, true]));
    let next = Entry { version: 2, ..wide.clone() };
    copied(&store, &next, Vec::new(), vec![0]).unwrap();
    assert_eq!((used(&store), both(&store)), (BLOCK, [true, false]));
}

#[test]
fn a_copy_that_was_begun_goes_and_what_an_earlier_release_put_stays() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let kept = keep(&store, 1);
    let begin = |store: &Store| ask(store, Request::Write { file: kept.id, position: 3, offset: 0, length: 4 }, b"half").unwrap();
    let there = |store: &Store| [0, 3].map(|position| store.path(&kept.id, position).exists());
    begin(&store);
    assert_eq!(there(&store), [true, true]);
    ask(&store, Request::Discard { file: kept.id }, &[]).unwrap();
    assert_eq!((there(&store), used(&store)), ([true, false], 5));
    begin(&store);
    drop(store);
    let store = open(directory.path());
    assert_eq!((there(&store), used(&store)), ([true, false], 5));
    // As it was left by a release that did not write down what belongs to an entry.
    let begun = store.database.begin_write().unwrap();
    begun.delete_table(HELD).unwrap();
    begun.open_table(ABOUT).unwrap().remove(KNOWS_HELD).unwrap();
    begun.commit().unwrap();
    drop(store);
    let store = open(directory.path());
    assert_eq!((there(&store), used(&store)), ([true, false], 5));
    copied(&store, &kept, vec![Some(1)], vec![0]).unwrap();
    assert_eq!((there(&store), used(&store)), ([true, false], 5));
}

#[test]
fn what_is_being_staged_stays_unseen_and_can_be_compared() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let staged = entry(3, 5);
    let begin = Request::Begin { entry: Box::new(staged.clone()) };
    let verify = || Request::Verify { file: staged.id, position: 0, first: 0, count: 4 };
    ask(&store, begin.clone(), &[]).unwrap();
    write(&store, staged.id, b"12345");
    drop(store);
    let store = open(directory.path());
    assert_eq!(known(&store), []);
    let sum = mend_data::space::block_sum(&staged.id, 0, b"12345");
    assert_eq!(ask(&store, verify(), &[]).unwrap().1, sum.to_le_bytes());
    assert_eq!(used(&store), 0);
    ask(&store, Request::Discard { file: staged.id }, &[]).unwrap();
    assert_eq!(ask(&store, verify(), &[]).unwrap_err(), Failed::Absent);
    // What is there, or was removed, is not begun again.
    let kept = keep(&store, 1);
    assert_eq!(ask(&store, Request::Begin { entry: Box::new(kept.clone()) }, &[]).unwrap_err(), Failed::Nonsense);
    ask(&store, Request::Forget { ids: vec![kept.id] }, &[]).unwrap();
    assert_eq!(ask(&store, Request::Begin { entry: Box::new(kept) }, &[]).unwrap_err(), Failed::Nonsense);
}

#[test]
fn a_target_that_is_being_removed_takes_nothing_more_and_tells_of_no_losses() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("target");
    let store = Store::open(&path, &[1; 16], true).unwrap();
    ask(&store, Request::Leave, &[]).unwrap();
    let write = Request::Write { file: [2; 16], position: 0, offset: 0, length: 1 };
    assert_eq!(ask(&store, write, b"x").map(drop), Err(Failed::Nonsense));
    assert_eq!(ask(&store, Request::Lacking { at: 0 }, &[]).map(drop), Err(Failed::Nonsense));
    assert!(!path.exists());
}
