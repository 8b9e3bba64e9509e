use super::super::*;
use super::*;
use crate::server::Served;
use mend_data::space::target::Claim;
use mend_data::space::{Entry, Kind, block_sum};

const SPACE: Id = [7; 16];

fn open(directory: &Path) -> Store {
    Store::open(directory, &SPACE, true).unwrap()
}

fn entry(id: u8, epoch: u32) -> Entry {
    let file = Written { stripe: BLOCK, objects: vec![[0, 1], [1, 2]], epoch, filling: Vec::new(), mode: 0o644 };
    Entry { id: [id; 16], version: 1 + u64::from(epoch), path: format!("f{id}"), made_ns: 0, kind: Kind::Written(file) }
}

fn ask(store: &Store, request: Request, payload: &[u8]) -> Result<(Answer, Vec<u8>), Failed> {
    store.carry_out(request, payload).map_err(|failure| failure.kind)
}

/// It comes to know the file; of a new one the object is made.
fn put(store: &Store, entry: &Entry) -> Result<(Answer, Vec<u8>), Failed> {
    let fresh = if entry.version == 1 { vec![1] } else { Vec::new() };
    ask(store, Request::Adopt { entry: Box::new(entry.clone()), positions: vec![1], fresh }, &[])
}

/// The start of the node that it tells.
fn write(store: &Store, epoch: u32, offset: u64, bytes: &[u8]) -> Result<Id, Failed> {
    write_as(store, epoch, offset, bytes, false)
}

fn write_as(store: &Store, epoch: u32, offset: u64, bytes: &[u8], appends: bool) -> Result<Id, Failed> {
    let file = entry(1, epoch);
    let index = |at| index_in_file(file.written().unwrap(), 1, offset / BLOCK + at);
    let sum = sum_of_pieces(&piece_sums(&file.id, offset, bytes, index).collect::<Vec<_>>());
    let request =
        Request::WriteRange { file: [1; 16], epoch, position: 1, offset, length: bytes.len() as u32, sum, changed_ns: 5, appends };
    ask(store, request, bytes).map(|(answer, _)| if let Answer::Held { boot } = answer { boot } else { panic!("{answer:?}") })
}

fn read(store: &Store, offset: u64, length: u32) -> Result<Vec<u8>, Failed> {
    ask(store, Request::ReadRange { file: [1; 16], position: 1, offset, length }, &[]).map(|(_, bytes)| bytes)
}

fn sync(store: &Store, boot: Id) -> Result<(), Failed> {
    ask(store, Request::Sync { file: [1; 16], epoch: 0, position: 1, boot }, &[]).map(drop)
}

fn cut(store: &Store, length: u64) -> Result<(), Failed> {
    ask(store, Request::Cut { file: [1; 16], epoch: 0, position: 1, length, changed_ns: 5 }, &[]).map(drop)
}

/// Numbers that look drawn, the same each time.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

#[test]
fn ranges_are_merged_and_read_back_as_a_plain_file_would_have_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    let (mut model, mut drawn) = (Vec::<u8>::new(), Drawn(5));
    for step in 0..400_u64 {
        let (at, length) = (drawn.below(5 * BLOCK), 1 + drawn.below(2 * BLOCK));
        match drawn.below(8) {
            0 => {
                cut(&store, at).unwrap();
                model.resize(at as usize, 0);
            }
            1 => sync(&store, store.writing.boot).unwrap(),
            2 => {
                // Killed in between: nothing that was answered is lost while the node lives.
                drop(store);
                store = open(directory.path());
            }
            _ => {
                let bytes: Vec<u8> = (0..length).map(|byte| (byte * step) as u8 | 1).collect();
                write(&store, 0, at, &bytes).unwrap();
                let end = (at + length) as usize;
                model.resize(model.len().max(end), 0);
                model[at as usize..end].copy_from_slice(&bytes);
            }
        }
        let (at, length) = (drawn.below(6 * BLOCK), drawn.below(2 * BLOCK));
        let end = (at + length).min(model.len() as u64);
        let expected = model.get(at as usize..end as usize).unwrap_or_default();
        assert!(read(&store, at, length as u32).unwrap() == expected, "step {step}");
        assert_eq!(store.used.load(std::sync::atomic::Ordering::Relaxed), model.len() as u64, "step {step}");
    }
    let (_, shapes) = ask(&store, Request::Shapes { files: vec![[1; 16], [9; 16]] }, &[]).unwrap();
    let shapes: Vec<Vec<Shape>> = postcard::from_bytes(&shapes).unwrap();
    assert_eq!(shapes.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0]);
    assert_eq!((shapes[0][0].position, shapes[0][0].length), (1, model.len() as u64));
}

#[test]
fn of_blocks_only_those_that_are_different_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    let (one, two) = (vec![1; BLOCK as usize], vec![2; 100]);
    write(&store, 0, 0, &one).unwrap();
    write(&store, 0, 2 * BLOCK, &two).unwrap();
    // Object 1 of 2: its blocks are the file's odd ones.
    let padded: Vec<u8> = two.iter().copied().chain(std::iter::repeat(0)).take(BLOCK as usize).collect();
    let sums = [block_sum(&[1; 16], 1, &one), 9, block_sum(&[1; 16], 5, &padded), 9];
    let told = |sums: &[u128]| {
        let payload: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let request = Request::ReadBlocks { file: [1; 16], position: 1, first: 0, count: sums.len() as u32 };
        ask(&store, request, &payload).map(|(_, bytes)| bytes)
    };
    let decoded = |bytes: &Vec<u8>| format!("{:?}", blocks::decode(bytes, 4).unwrap().iter().map(BlockTold::length).collect::<Vec<_>>());
    let same = told(&sums).unwrap();
    assert_eq!(
        blocks::decode(&same, 4).unwrap(),
        [BlockTold::Same(BLOCK as u32), BlockTold::Zeros(BLOCK as u32), BlockTold::Same(100), BlockTold::Zeros(0)]
    );
    let all = told(&[0, 0, 0, 0]).unwrap();
    assert_eq!(decoded(&all), decoded(&same));
    assert_eq!(blocks::decode(&all, 4).unwrap()[2], BlockTold::Bytes(&two));
    // After another write, the old checksum is no longer good; and damage is no content.
    write(&store, 0, 2 * BLOCK, b"x").unwrap();
    assert!(matches!(blocks::decode(&told(&sums).unwrap(), 4).unwrap()[2], BlockTold::Bytes(bytes) if bytes[..2] == *b"x\x02"));
    OpenOptions::new().write(true).open(store.path(&[1; 16], 1)).unwrap().write_all_at(b"x", 7).unwrap();
    assert_eq!(told(&[9, 9, 9, 9]), Err(Failed::Medium));
}

#[test]
fn damage_is_found_and_never_taken_for_content() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    let boot = write(&store, 0, 0, &vec![5; 3 * BLOCK as usize]).unwrap();
    sync(&store, boot).unwrap();
    let object = OpenOptions::new().write(true).open(store.path(&[1; 16], 1)).unwrap();
    object.write_all_at(b"x", BLOCK + 7).unwrap();
    assert_eq!(read(&store, 0, 10), Ok(vec![5; 10]));
    assert_eq!(read(&store, BLOCK, 1), Err(Failed::Medium));
    // A part of the damaged block cannot be written, all of it can.
    assert_eq!(write(&store, 0, BLOCK + 9, b"yy"), Err(Failed::Medium));
    assert_eq!(cut(&store, BLOCK + 3), Err(Failed::Medium));
    write(&store, 0, BLOCK, &vec![6; BLOCK as usize]).unwrap();
    assert_eq!(read(&store, BLOCK - 1, 3), Ok(vec![5, 6, 6]));
    // What was synced is damaged as well if the target begins anew.
    sync(&store, boot).unwrap();
    object.write_all_at(b"x", 7).unwrap();
    drop(store);
    assert_eq!(read(&open(directory.path()), 0, 1), Err(Failed::Medium));
}

#[test]
fn a_block_that_was_being_written_is_taken_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    write(&store, 0, 0, &vec![5; 2 * BLOCK as usize]).unwrap();
    let path = store.path(&[1; 16], 1);
    drop(store);
    // As if it had ended between the bytes and their checksum.
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"new", BLOCK).unwrap();
    let store = open(directory.path());
    assert_eq!(read(&store, BLOCK - 1, 5), Ok(b"\x05new\x05".to_vec()));
    sync(&store, store.writing.boot).unwrap();
    assert!(!beside(&path, ".open").exists());
}

#[test]
fn who_has_an_old_map_or_wrote_before_the_node_failed_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert_eq!(write(&store, 0, 0, b"x"), Err(Failed::Absent));
    put(&store, &entry(1, 0)).unwrap();
    write(&store, 0, 0, b"x").unwrap();
    assert_eq!(sync(&store, [9; 16]), Err(Failed::Absent));
    put(&store, &entry(1, 1)).unwrap();
    assert_eq!(write(&store, 0, 0, b"y"), Err(Failed::Moved));
    write(&store, 1, 1, b"y").unwrap();
    assert_eq!(read(&store, 0, 5), Ok(b"xy".to_vec()));
    let request = Request::WriteRange { file: [1; 16], epoch: 1, position: 1, offset: 0, length: 1, sum: 0, changed_ns: 5, appends: false };
    assert_eq!(ask(&store, request, b"z").unwrap_err(), Failed::Nonsense);
    ask(&store, Request::Forget { ids: vec![[1; 16]] }, &[]).unwrap();
    assert_eq!(write(&store, 1, 0, b"x"), Err(Failed::Absent));
    assert_eq!(fs::read_dir(directory.path().join("objects/01")).unwrap().count(), 0);
}

#[test]
fn an_object_that_was_lost_does_not_become_zeros_by_a_new_name() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    write(&store, 0, 0, b"x").unwrap();
    fs::remove_file(store.path(&[1; 16], 1)).unwrap();
    put(&store, &Entry { version: 2, path: "renamed".into(), ..entry(1, 0) }).unwrap();
    assert_eq!(read(&store, 0, 1), Err(Failed::Absent));
}

/// Two whose claims to append overlap expect the same end.
#[test]
fn of_two_that_append_at_the_same_end_the_second_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    write_as(&store, 0, 0, b"one ", true).unwrap();
    // Whoever asks again did not hear the answer.
    write_as(&store, 0, 0, b"one ", true).unwrap();
    for other in [&b"two "[..], b"one two", b"on"] {
        assert_eq!(write_as(&store, 0, 0, other, true).err(), (other != b"on").then_some(Failed::Busy));
    }
    write_as(&store, 0, 4, b"two", true).unwrap();
    assert_eq!(read(&store, 0, 9), Ok(b"one two".to_vec()));
}

#[test]
fn one_claims_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let claim = |who: u8, over| ask(&store, Request::Claim { claim: Claim::Path("a".into()), who: [who; 16], over }, &[]).map(drop);
    claim(1, false).unwrap();
    claim(1, false).unwrap();
    assert_eq!(claim(2, false), Err(Failed::Busy));
    assert_eq!(claim(2, true), Err(Failed::Busy));
    claim(1, true).unwrap();
    claim(2, false).unwrap();
}

/// File 1, a copy of which is made at position 1.
fn half_copied() -> Entry {
    let Kind::Written(file) = entry(1, 1).kind else { panic!("no written file") };
    Entry { kind: Kind::Written(Written { filling: vec![1], ..file }), ..entry(1, 1) }
}

/// The copy that is made at position 1 of file 1 gets these bytes.
fn fill(store: &Store, offset: u64, bytes: &[u8]) -> Result<(), Failed> {
    let (length, sum) = (bytes.len() as u32, range_sum(bytes));
    let request = Request::Fill { file: [1; 16], epoch: 1, position: 1, offset, length, sum, changed_ns: 5 };
    ask(store, request, bytes).map(drop)
}

#[test]
fn what_is_written_while_a_copy_is_made_stays() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let moved = half_copied();
    let adopt = || ask(&store, Request::Adopt { entry: Box::new(moved.clone()), positions: vec![1], fresh: vec![1] }, &[]).unwrap();
    adopt();
    write(&store, 1, 3, b"new").unwrap();
    write(&store, 1, 8, b"er").unwrap();
    fill(&store, 0, b"before now").unwrap();
    assert_eq!(read(&store, 0, 20), Ok(b"befnew ner".to_vec()));
    ask(&store, Request::Cut { file: [1; 16], epoch: 1, position: 1, length: 4, changed_ns: 5 }, &[]).unwrap();
    fill(&store, 2, b"longer").unwrap();
    assert_eq!(read(&store, 0, 20), Ok(b"beln".to_vec()));
    drop(store);
    let store = open(directory.path());
    assert_eq!(fill(&store, 0, b"x"), Err(Failed::Absent));
}

#[test]
fn an_object_that_comes_back_is_noted_anew() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    write(&store, 0, 0, b"first").unwrap();
    // It goes elsewhere while it is open, and comes back.
    let map = |epoch: u32, objects: Vec<[u16; 2]>, filling: Vec<u16>| {
        let mut entry = entry(1, epoch);
        entry.kind = Kind::Written(Written { objects, epoch, filling, ..entry.written().unwrap().clone() });
        Box::new(entry)
    };
    let elsewhere = map(1, vec![[0, 2], [2, 0]], Vec::new());
    ask(&store, Request::Put { entry: elsewhere, positions: Vec::new() }, &[]).unwrap();
    let again = map(2, vec![[0, 2], [2, 1]], vec![1]);
    ask(&store, Request::Adopt { entry: again, positions: vec![1], fresh: vec![1] }, &[]).unwrap();
    let boot = write(&store, 2, 0, b"second").unwrap();
    let note = beside(&store.path(&[1; 16], 1), ".open");
    assert!(note.exists());
    ask(&store, Request::Sync { file: [1; 16], epoch: 2, position: 1, boot }, &[]).unwrap();
    assert!(!note.exists());
    // Nothing more is noted of it once it is whole, or gone.
    ask(&store, Request::Put { entry: map(2, vec![[0, 2], [2, 1]], Vec::new()), positions: vec![1] }, &[]).unwrap();
    ask(&store, Request::Forget { ids: vec![[1; 16]] }, &[]).unwrap();
    assert!(store.writing.filling().is_empty() && store.writing.open().is_empty());
}

#[test]
fn a_map_that_comes_late_takes_nothing_away() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    let Kind::Written(file) = entry(1, 1).kind else { panic!("no written file") };
    let moved = Entry { kind: Kind::Written(Written { filling: vec![1], ..file.clone() }), ..entry(1, 1) };
    let adopt = |entry: &Entry| ask(&store, Request::Adopt { entry: Box::new(entry.clone()), positions: vec![1], fresh: vec![1] }, &[]);
    adopt(&moved).unwrap();
    write(&store, 1, 0, b"written").unwrap();
    // The answer was lost, so it is asked once more.
    adopt(&moved).unwrap();
    assert_eq!(read(&store, 0, 9), Ok(b"written".to_vec()));
    assert_eq!(store.writing.filling().len(), 1);
    let whole = Entry { version: 3, kind: Kind::Written(Written { filling: Vec::new(), ..file }), ..entry(1, 1) };
    ask(&store, Request::Put { entry: Box::new(whole), positions: vec![1] }, &[]).unwrap();
    assert!(store.writing.filling().is_empty(), "what is written is noted for ever");
    // Somebody was stopped while he moved the file, and another one has done it since.
    assert_eq!(adopt(&moved).unwrap_err(), Failed::Moved);
    assert_eq!(read(&store, 0, 9), Ok(b"written".to_vec()));
}

#[test]
fn an_object_that_its_medium_cut_short_is_lost_and_not_zeros() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    let boot = write(&store, 0, 0, &vec![5; 2 * BLOCK as usize + 100]).unwrap();
    sync(&store, boot).unwrap();
    let object = OpenOptions::new().write(true).open(store.path(&[1; 16], 1)).unwrap();
    let shapes = || {
        let (_, shapes) = ask(&store, Request::Shapes { files: vec![[1; 16]] }, &[]).unwrap();
        postcard::from_bytes::<Vec<Vec<Shape>>>(&shapes).unwrap()[0].len()
    };
    let lacking = || {
        let (_, lacking) = ask(&store, Request::Lacking { at: 1 }, &[]).unwrap();
        postcard::from_bytes::<mend_data::space::target::Lacking>(&lacking).unwrap()
    };
    assert_eq!((shapes(), lacking().len()), (1, 1), "the other object of this target was never made");
    // Within its last block.
    object.set_len(2 * BLOCK + 50).unwrap();
    assert_eq!(read(&store, 2 * BLOCK, 200), Err(Failed::Medium));
    assert_eq!(read(&store, 2 * BLOCK + 60, 10), Err(Failed::Medium));
    assert_eq!(read(&store, 0, 10), Ok(vec![5; 10]));
    // By a whole block.
    object.set_len(BLOCK).unwrap();
    assert_eq!(read(&store, BLOCK, 10), Err(Failed::Short));
    assert_eq!(write(&store, 0, 3 * BLOCK, b"behind it"), Err(Failed::Short));
    assert_eq!(cut(&store, 9 * BLOCK), Err(Failed::Short));
    assert_eq!(sync(&store, boot), Err(Failed::Short));
    assert_eq!((shapes(), lacking().len()), (0, 2));
}

#[test]
fn an_end_of_the_process_while_an_object_is_cut_leaves_no_checksums_behind_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    write(&store, 0, 0, &vec![5; 3 * BLOCK as usize]).unwrap();
    let path = store.path(&[1; 16], 1);
    drop(store);
    OpenOptions::new().write(true).open(path).unwrap().set_len(BLOCK).unwrap();
    let store = open(directory.path());
    let (_, shapes) = ask(&store, Request::Shapes { files: vec![[1; 16]] }, &[]).unwrap();
    assert_eq!(postcard::from_bytes::<Vec<Vec<Shape>>>(&shapes).unwrap()[0][0].length, BLOCK);
    cut(&store, 3 * BLOCK).unwrap();
    assert_eq!(read(&store, 2 * BLOCK, 3), Ok(vec![0; 3]));
}

#[test]
fn a_damaged_block_takes_back_what_it_had_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    let bytes: Vec<u8> = (0..2 * BLOCK + 100).map(|at| (at % 251) as u8).collect();
    let boot = write(&store, 0, 0, &bytes).unwrap();
    sync(&store, boot).unwrap();
    let verify = || ask(&store, Request::Verify { file: [1; 16], position: 1, first: 0, count: 9 }, &[]).unwrap().1;
    let mend = |epoch, block, bytes: &[u8]| {
        let request = Request::MendBlock { file: [1; 16], epoch, position: 1, block, length: bytes.len() as u32 };
        ask(&store, request, bytes).map(drop)
    };
    let before = verify();
    assert_eq!(before.len(), 3 * 16);
    let object = OpenOptions::new().write(true).open(store.path(&[1; 16], 1)).unwrap();
    object.write_all_at(b"?", BLOCK + 7).unwrap();
    // Its end is lost as well.
    object.set_len(2 * BLOCK + 60).unwrap();
    let damaged = verify();
    assert_eq!((&damaged[..16], &damaged[16..]), (&before[..16], &[0; 32][..]));
    let (second, third) = (&bytes[BLOCK as usize..2 * BLOCK as usize], &bytes[2 * BLOCK as usize..]);
    assert_eq!(mend(0, 1, third), Err(Failed::Absent));
    assert_eq!(mend(0, 1, &second[..5]), Err(Failed::Absent));
    assert_eq!(mend(0, 1, &[]), Err(Failed::Absent));
    assert_eq!(mend(1, 1, second), Err(Failed::Moved));
    assert_eq!(verify(), damaged);
    mend(0, 1, second).unwrap();
    mend(0, 2, third).unwrap();
    assert_eq!(verify(), before);
    assert_eq!(read(&store, 0, bytes.len() as u32 + 9).unwrap(), bytes);
    // What is as it was written stays so.
    mend(0, 1, third).unwrap();
    assert_eq!(verify(), before);
}

#[test]
fn a_long_object_that_was_open_is_served_while_its_checksums_are_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    for block in 0..200 {
        write(&store, 0, block * BLOCK, &vec![5; BLOCK as usize]).unwrap();
    }
    let path = store.path(&[1; 16], 1);
    let note = beside(&path, ".open");
    let bytes = OpenOptions::new().write(true).open(&path).unwrap();
    drop(store);
    bytes.write_all_at(b"new", 150 * BLOCK).unwrap();
    bytes.write_all_at(b"end", 200 * BLOCK).unwrap();
    let store = open(directory.path());
    assert_eq!(read(&store, 150 * BLOCK, 4), Ok(b"new\x05".to_vec()));
    assert_eq!(read(&store, 199 * BLOCK, 2 * BLOCK as u32).unwrap()[BLOCK as usize..], *b"end");
    write(&store, 0, 120 * BLOCK + 1, b"part").unwrap();
    sync(&store, store.writing.boot).unwrap();
    // All that was written is durable; what the rest of it is, nobody has looked at yet.
    assert!(note.exists());
    store.ascertain_all();
    assert!(!note.exists() && store.writing.open().is_empty());
    assert_eq!(read(&store, 120 * BLOCK, 6), Ok(b"\x05part\x05".to_vec()));
    bytes.write_all_at(b"x", 10 * BLOCK).unwrap();
    assert_eq!(read(&store, 10 * BLOCK, 1), Err(Failed::Medium));
    write(&store, 0, 0, &vec![6; BLOCK as usize]).unwrap();
    drop(store);
    // Written again before all was looked at: it is closed by the next one that syncs it.
    let store = open(directory.path());
    write(&store, 0, 3 * BLOCK, b"later").unwrap();
    store.ascertain_all();
    assert!(note.exists());
    sync(&store, store.writing.boot).unwrap();
    assert!(!note.exists());
}

#[test]
fn who_waits_for_an_object_while_it_moves_hears_of_that() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    std::thread::scope(|scope| {
        let held = write_guard(store.writing.lock(&([1; 16], 1)));
        let late = [scope.spawn(|| write(&store, 0, 0, b"late").map(drop)), scope.spawn(|| cut(&store, 3))];
        // By then both have the map that was, and wait.
        std::thread::sleep(std::time::Duration::from_millis(300));
        let adopted = scope.spawn(|| put(&store, &entry(1, 1)).map(drop));
        while !matches!(store.known(&[1; 16]), Ok(Some(Change::There(known))) if known.written().unwrap().epoch == 1) {
            std::thread::yield_now();
        }
        let early = adopted.is_finished();
        drop(held);
        assert_eq!(late.map(|late| late.join().unwrap()), [Err(Failed::Moved), Err(Failed::Moved)]);
        adopted.join().unwrap().unwrap();
        assert!(!early, "somebody may still write by the map that was");
    });
}

#[test]
fn a_copy_that_is_made_anew_is_not_emptied_before_the_map_says_that_it_lacks_something() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    write(&store, 0, 0, b"content").unwrap();
    let Kind::Written(file) = entry(1, 1).kind else { panic!("no written file") };
    let again = Entry { kind: Kind::Written(Written { filling: vec![1], ..file }), ..entry(1, 1) };
    // It ends in the middle: when the object is empty, and its checksums are not.
    let sums = beside(&store.path(&[1; 16], 1), ".sums");
    fs::remove_file(&sums).unwrap();
    fs::create_dir(&sums).unwrap();
    ask(&store, Request::Adopt { entry: Box::new(again.clone()), positions: vec![1], fresh: vec![1] }, &[]).unwrap_err();
    let Ok(Some(Change::There(known))) = store.known(&[1; 16]) else { panic!("it is not known") };
    let length = fs::metadata(store.path(&[1; 16], 1)).unwrap().len();
    assert!(known.written().unwrap().filling == [1] || length > 0, "an empty object counts as whole");
}

#[test]
fn what_is_copied_of_a_file_with_holes_has_them_too() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    ask(&store, Request::Adopt { entry: Box::new(half_copied()), positions: vec![1], fresh: vec![1] }, &[]).unwrap();
    write(&store, 1, 100, b"meanwhile").unwrap();
    let zeros = vec![0; 1 << 20];
    fill(&store, 0, &zeros).unwrap();
    fill(&store, 1 << 20, &[7; 5]).unwrap();
    fill(&store, (1 << 20) + 5, &zeros).unwrap();
    let about = fs::metadata(store.path(&[1; 16], 1)).unwrap();
    assert_eq!(about.len(), (2 << 20) + 5);
    assert!(about.blocks() * 512 < 1 << 19, "{} bytes are on the medium", about.blocks() * 512);
    let mut expected = [&zeros[..], &[7; 5], &zeros].concat();
    expected[100..109].copy_from_slice(b"meanwhile");
    assert!(read(&store, 0, 4 << 20).unwrap() == expected);
    let boot = store.writing.boot;
    ask(&store, Request::Sync { file: [1; 16], epoch: 1, position: 1, boot }, &[]).unwrap();
    assert!(!store.is_short(&[1; 16], 1));
}

#[test]
fn an_object_was_changed_when_its_writers_say_and_each_write_is_seen_by_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    put(&store, &entry(1, 0)).unwrap();
    let shape = || -> Vec<Vec<Shape>> { postcard::from_bytes(&store.shapes(&[[1; 16]]).unwrap()).unwrap() };
    let cut = |length, changed_ns| {
        ask(&store, Request::Cut { file: [1; 16], epoch: 0, position: 1, length, changed_ns }, &[]).unwrap();
        shape()[0][0].changed_ns
    };
    let second = 1_000_000_000;
    assert_eq!(cut(9, 20 * second), 20 * second);
    // Of another writer, whose clock is behind, or who was overtaken.
    assert_eq!(cut(8, 19 * second), 20 * second + 1);
    ask(&store, Request::Stamp { file: [1; 16], changed_ns: 1000 * second }, &[]).unwrap();
    assert_eq!(cut(7, 21 * second), 21 * second);
}
