//! Processes restored from chains of images by the real restorer. The incremental images are made here, from full ones of the
//! same life: what equals the older image is kept.

mod support;

use mend_image::chain::Chain;
use mend_image::fixed::Fixed;
use mend_image::launch::Mode;
use mend_image::merge::merge;
use mend_image::record::{HEAD_SIZE, Kind, RecordHead, mapping};
use mend_image::write::StreamWriter;
use mend_image::{HEADER_SIZE, Header, kept, read_header};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use support::{ENDLESS_TICKS, Rank, Source, compile};

const PAGE: u64 = 4096;

fn records(bytes: &[u8]) -> Vec<(Kind, RecordHead, &[u8])> {
    let (mut all, mut at) = (Vec::new(), HEADER_SIZE);
    while at < bytes.len() {
        let head = RecordHead::decode(&bytes[at..]).unwrap();
        let payload = &bytes[at + HEAD_SIZE..][..head.length as usize];
        all.push((Kind::from_number(head.kind).unwrap(), head, payload));
        at += HEAD_SIZE + head.padded_length() as usize;
    }
    all
}

fn open(files: &[PathBuf]) -> Chain<File> {
    Chain::open(files.iter().map(|file| File::open(file).unwrap())).unwrap()
}

fn pages(chain: &mut Chain<File>) -> BTreeMap<u64, Vec<u8>> {
    let mut pages = BTreeMap::new();
    for piece in chain.pieces().to_vec() {
        let bytes = chain.read(&piece).unwrap();
        pages.extend((piece.start..).step_by(PAGE as usize).zip(bytes.chunks(PAGE as usize).map(<[u8]>::to_vec)));
    }
    pages
}

/// Writes the full image `newer` again, on the chain `older`. Returns how many pages it kept.
fn rewrite(newer: &Path, older: &[PathBuf], target: &Path) -> usize {
    let bytes = std::fs::read(newer).unwrap();
    let mut below = open(older);
    let known = pages(&mut below);
    let above = open(&[newer.to_path_buf()]);
    let base = below.newest().header;
    let private = |chain: &Chain<File>, page| {
        chain.newest().mapping_of(page).is_some_and(|found| found.flags & (mapping::SHARED | mapping::VDSO | mapping::VVAR) == 0)
    };
    let header = Header { base: base.id, sequence: base.sequence + 1, ..read_header(&bytes).unwrap() };
    let mut writer = StreamWriter::new(File::create(target).unwrap(), &header).unwrap();
    let (mut count, mut stored) = (0, std::collections::BTreeSet::new());
    let mut keep = |writer: &mut StreamWriter<File>, page: u64| {
        let mut range = [0; kept::RANGE];
        kept::put((page, page + PAGE), &mut range).unwrap();
        writer.record(Kind::Kept, 0, 0, &range).unwrap();
        count += 1;
    };
    for (kind, head, payload) in records(&bytes) {
        match kind {
            Kind::End => {}
            Kind::Pages => {
                let mut run: Vec<u8> = Vec::new();
                let mut at = head.address;
                for content in payload.chunks(PAGE as usize) {
                    stored.insert(at);
                    if known.get(&at).is_some_and(|known| known == content) && private(&above, at) {
                        if !run.is_empty() {
                            writer.record(Kind::Pages, 0, at - run.len() as u64, &run).unwrap();
                            run.clear();
                        }
                        keep(&mut writer, at);
                    } else {
                        run.extend(content);
                    }
                    at += PAGE;
                }
                if !run.is_empty() {
                    writer.record(Kind::Pages, 0, at - run.len() as u64, &run).unwrap();
                }
            }
            kind => writer.record(kind, head.index, head.address, payload).unwrap(),
        }
    }
    // Untouched in both: kept as well, as a tracker would say that nothing was written there.
    for found in above.newest().mappings.iter().filter(|found| found.object == mapping::NO_OBJECT) {
        for page in (found.start..found.end).step_by(PAGE as usize).take(100) {
            let anonymous = below.newest().mapping_of(page).is_some_and(|older| older.object == mapping::NO_OBJECT);
            if anonymous && private(&above, page) && private(&below, page) && !stored.contains(&page) && !known.contains_key(&page) {
                keep(&mut writer, page);
            }
        }
    }
    writer.finish().unwrap();
    count
}

/// Three images of one life as a chain, newest first; the life is over.
fn life(rank: &mut Rank) -> Vec<PathBuf> {
    let directory = rank.directory.clone();
    let mut chain: Vec<PathBuf> = Vec::new();
    for number in 0..3 {
        rank.await_more(3);
        let [full, target] = ["full", "image"].map(|name| directory.join(format!("{name}-{number}")));
        rank.save(&full);
        rank.resume();
        if chain.is_empty() {
            std::fs::rename(&full, &target).unwrap();
        } else {
            assert!(rewrite(&full, &chain, &target) > 100);
            let lengths = [&target, &full].map(|file| std::fs::metadata(file).unwrap().len());
            assert!(lengths[0] < lengths[1], "{lengths:?}");
        }
        chain.insert(0, target);
    }
    chain
}

/// Bytes of pages that the process has at the newest.
fn live(chain: &[PathBuf]) -> u64 {
    open(chain).pieces().iter().map(|piece| piece.end - piece.start).sum()
}

fn restart(chain: &[PathBuf], directory: &Path) {
    let mut rank = Rank::restore(Source::Chain(chain), Mode::Restart, directory).unwrap();
    assert_eq!(rank.restorer_placed, live(chain), "not each live page once");
    rank.resume();
    goes_on(rank);
}

/// It checks itself with each line that it prints.
fn goes_on(mut rank: Rank) {
    rank.await_more(5);
    let printed = String::from_utf8_lossy(&rank.kill()).into_owned();
    assert!(!printed.contains("LOST"), "{printed}");
}

fn whole_life(pid: u32, program: &str) {
    let mut rank = Rank::start(pid, &compile(program), &[ENDLESS_TICKS]);
    let directory = rank.directory.clone();
    let chain = life(&mut rank);
    rank.kill();
    restart(&chain, &directory);
    // Any member of the chain is an image with all that it builds on.
    restart(&chain[1..], &directory);
    let merged = directory.join("merged");
    merge(&mut open(&chain), File::create(&merged).unwrap()).unwrap();
    restart(&[merged], &directory);
}

#[test]
fn memory_of_all_kinds() {
    whole_life(2101, "apps/memory.c");
}

#[test]
fn threads() {
    whole_life(2102, "apps/threads.c");
}

/// The agent's own incremental images: four of one life, then the restored process again.
#[test]
fn what_the_agent_tracks_comes_back() {
    let mut rank = Rank::start(2104, &compile("apps/memory.c"), &[ENDLESS_TICKS]);
    let directory = rank.directory.clone();
    for life in 0..2 {
        let mut chain: Vec<PathBuf> = Vec::new();
        let mut id = None;
        for number in 0..4 {
            rank.await_more(2);
            let path = directory.join(format!("own-{life}-{number}"));
            let saved = rank.save_on(&path, id);
            rank.resume();
            assert!(saved.base == id || saved.note.is_some(), "full without a word: {saved:?}");
            id = Some(saved.id);
            // Where nothing can be noticed, each image is full: then the chain is one image.
            if saved.base.is_none() {
                chain.clear();
            }
            chain.insert(0, path);
        }
        rank.kill();
        assert_eq!(open(&chain).verify().unwrap().len(), chain.len());
        rank = Rank::restore(Source::Chain(&chain), Mode::Restart, &directory).unwrap();
        assert_eq!(rank.restorer_placed, live(&chain), "not each live page once");
        rank.resume();
    }
    goes_on(rank);
}

#[test]
fn a_chain_that_does_not_fit_is_refused() {
    let mut rank = Rank::start(2103, &compile("apps/counter.c"), &[ENDLESS_TICKS]);
    let directory = rank.directory.clone();
    let chain = life(&mut rank);
    rank.kill();
    let refusal = |chain: &[PathBuf]| match Rank::restore(Source::Chain(chain), Mode::Restart, &directory) {
        Ok(_) => panic!("it was not refused"),
        Err(refusal) => format!("{refusal:?}"),
    };
    let [newest, middle, full] = [0, 1, 2].map(|at| chain[at].clone());
    assert!(refusal(std::slice::from_ref(&newest)).contains("builds on another one (number 2 of its chain), which is not given"));
    assert!(refusal(&[newest.clone(), middle.clone()]).contains("(number 1 of its chain)"));
    assert!(refusal(&[newest.clone(), full.clone()]).contains("image 1 of those that the image builds on: it is not the image"));
    assert!(refusal(&[full.clone(), full.clone()]).contains("builds on no other one"));
    // A page that is needed of the oldest is damaged.
    let piece = *open(&chain).pieces().iter().find(|piece| piece.member == 2).unwrap();
    let mut bytes = std::fs::read(&full).unwrap();
    let place = records(&bytes)
        .iter()
        .find(|(kind, head, _)| *kind == Kind::Pages && head.address <= piece.start && piece.end <= head.address + head.length)
        .map(|(_, head, payload)| payload.as_ptr() as usize - bytes.as_ptr() as usize + (piece.start - head.address) as usize)
        .unwrap();
    bytes[place] ^= 1;
    std::fs::write(&full, &bytes).unwrap();
    assert!(
        refusal(&[newest.clone(), middle.clone(), full.clone()])
            .contains("image 2 of those that the image builds on: the image is damaged")
    );
    bytes[place] ^= 1;
    std::fs::write(&full, &bytes[..bytes.len() - 1]).unwrap();
    assert!(refusal(&[newest, middle, full]).contains("image 2 of those that the image builds on: the stream ends"));
}
