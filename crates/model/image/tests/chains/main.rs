//! Chains of images: whatever a process did between its images, the chain holds its memory as it was at the newest; merging
//! changes nothing; chains that make no sense are refused.

mod history;

use history::{BASE, PAGE, PAGES, Process, Step, image, kept_payload, private, step};
use mend_image::chain::{Chain, Fault};
use mend_image::diff::{Difference, How, diff};
use mend_image::link::LinkError;
use mend_image::merge::merge;
use mend_image::record::{Kind, Mapping, mapping};
use mend_image::verify::verify;
use mend_image::{Header, ImageError, read_header};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::Cursor;

type Images = Vec<Vec<u8>>;

fn open(images: &Images) -> Chain<Cursor<&Vec<u8>>> {
    Chain::open(images.iter().map(Cursor::new)).unwrap()
}

/// Memory as a restore of the chain makes it: mapped pages with their content. Each page is written at most once.
fn restored(chain: &mut Chain<Cursor<&Vec<u8>>>) -> BTreeMap<u64, u8> {
    let mapped = |mapping: &Mapping| (mapping.start..mapping.end).step_by(PAGE as usize).map(|at| ((at - BASE) / PAGE, 0));
    let mut memory: BTreeMap<u64, u8> = chain.newest().mappings.iter().flat_map(mapped).collect();
    let mut written = std::collections::BTreeSet::new();
    for piece in chain.pieces().to_vec() {
        let bytes = chain.read(&piece).unwrap();
        assert_eq!(bytes.len() as u64, piece.end - piece.start);
        for (page, content) in ((piece.start - BASE) / PAGE..).zip(bytes.chunks(PAGE as usize)) {
            assert!(content.iter().all(|byte| *byte == content[0]));
            assert!(written.insert(page), "page {page} is written twice");
            *memory.get_mut(&page).unwrap() = content[0];
        }
    }
    memory
}

fn merged(images: &Images) -> Vec<u8> {
    let mut bytes = Vec::new();
    let end = merge(&mut open(images), &mut bytes).unwrap();
    assert_eq!(verify(&mut bytes.as_slice()).unwrap().unwrap().end, end);
    bytes
}

proptest! {
    #[test]
    fn a_chain_holds_what_the_process_had(
        lives in proptest::collection::vec((proptest::collection::vec(step(), 0..40), any::<u64>(), any::<bool>()), 1..7),
        (from, length) in (0..6usize, 1..6usize),
    ) {
        let mut process = Process::default();
        process.act(&Step::Map { page: 0, count: PAGES });
        // Newest first.
        let mut images: Images = Vec::new();
        let mut memories = Vec::new();
        for (number, (steps, seed, full)) in lives.into_iter().enumerate() {
            steps.iter().for_each(|step| process.act(step));
            let base = images.first().filter(|_| !full).map(|newest| read_header(newest).unwrap());
            if base.is_none() {
                images.clear();
                memories.clear();
            }
            images.insert(0, process.save(base.as_ref(), number as u8 + 1, seed));
            memories.insert(0, process.memory.clone());
        }
        prop_assert!(open(&images).verify().is_ok());
        for at in 0..images.len() {
            prop_assert_eq!(&restored(&mut open(&images[at..].to_vec())), &memories[at]);
        }
        // The whole chain in one image.
        let whole = vec![merged(&images)];
        prop_assert_eq!(&restored(&mut open(&whole)), &memories[0]);
        diff(&mut open(&images), &mut open(&whole), |found| panic!("{found:?}")).unwrap();
        // The older end of it, with the newer images still on it.
        let from = from.min(images.len() - 1);
        let mut shorter = images[..from].to_vec();
        shorter.push(merged(&images[from..].to_vec()));
        prop_assert_eq!(&restored(&mut open(&shorter)), &memories[0]);
        // And any damage is noticed by whoever reads it.
        let length = length.min(images.len());
        let victim = &mut images[length - 1];
        let at = victim.len() / 2;
        victim[at] ^= 1;
        let damaged = Chain::open(images.iter().map(Cursor::new)).and_then(|mut chain| chain.verify());
        prop_assert_eq!(damaged.unwrap_err().member, length - 1);
    }

    #[test]
    fn differences_are_those_of_the_memory(before in proptest::collection::vec(step(), 0..60), after in proptest::collection::vec(step(), 0..20)) {
        let mut process = Process::default();
        process.act(&Step::Map { page: 0, count: PAGES });
        before.iter().for_each(|step| process.act(step));
        let (first, old) = (vec![process.save(None, 1, 0)], process.memory.clone());
        after.iter().for_each(|step| process.act(step));
        let (second, new) = (vec![process.save(None, 2, 0)], process.memory.clone());
        let mut found = BTreeMap::new();
        diff(&mut open(&first), &mut open(&second), |Difference { start, end, how }| {
            for at in (start..end).step_by(PAGE as usize) {
                assert!(found.insert((at - BASE) / PAGE, how).is_none());
            }
        }).unwrap();
        let expected = |page| {
            let (old, new) = (old.get(&page).copied().unwrap_or(0), new.get(&page).copied().unwrap_or(0));
            let how = if old == 0 { How::New } else if new == 0 { How::Gone } else { How::Changed };
            (old != new).then_some((page, how))
        };
        prop_assert_eq!(found, (0..PAGES).filter_map(expected).collect());
    }
}

fn header(id: u8, base: u8) -> Header {
    Header { id: [id; 16], base: [base; 16], sequence: u32::from(id) - 1, pid: 7, ..Header::default() }
}

fn refusal(images: &[Vec<u8>]) -> (usize, Fault) {
    let error = Chain::open(images.iter().map(Cursor::new)).expect_err("it was not refused");
    (error.member, error.source)
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let mappings = [private(BASE, BASE + 4 * PAGE)];
    let [full, first, second] = [(1, 0), (2, 1), (3, 2)].map(|(id, base)| image(&header(id, base), &mappings, &[]));
    assert!(Chain::open([&second, &first, &full].map(Cursor::new)).is_ok());
    let link = |images: &[&Vec<u8>]| match refusal(&images.iter().map(|image| image.to_vec()).collect::<Vec<_>>()) {
        (member, Fault::Link(error)) => (member, error),
        other => panic!("{other:?}"),
    };
    assert_eq!(link(&[]), (0, LinkError::Open { sequence: 0 }));
    assert_eq!(link(&[&second, &first]), (1, LinkError::Open { sequence: 1 }));
    assert_eq!(link(&[&second, &full]), (1, LinkError::Other));
    assert_eq!(link(&[&full, &full]), (1, LinkError::Closed));
    assert_eq!(link(&[&first, &second, &first]), (1, LinkError::Other));
    let another = image(&Header { rank: 3, ..header(1, 0) }, &mappings, &[]);
    assert_eq!(link(&[&first, &another]), (1, LinkError::Foreign));
    let long: Vec<Vec<u8>> = (1..=70).rev().map(|id| image(&header(id, id - 1), &mappings, &[])).collect();
    assert_eq!(link(&long.iter().collect::<Vec<_>>()), (64, LinkError::Long));
}

#[test]
fn pages_are_stored_or_kept_once_and_where_memory_is() {
    let mappings = [private(BASE, BASE + 4 * PAGE), Mapping { flags: mapping::SHARED, ..private(BASE + 8 * PAGE, BASE + 12 * PAGE) }];
    let full = image(&header(1, 0), &mappings, &[]);
    let kept = |from: u64, to: u64| (Kind::Kept, 0, kept_payload(&[(BASE + from * PAGE, BASE + to * PAGE)]));
    let pages = |from: u64, to: u64| (Kind::Pages, BASE + from * PAGE, vec![1; ((to - from) * PAGE) as usize]);
    let refused = |content: &[(Kind, u64, Vec<u8>)]| {
        let newest = image(&header(2, 1), &mappings, content);
        match Chain::open([&newest, &full].map(Cursor::new)) {
            Ok(_) => false,
            Err(error) => matches!((error.member, error.source), (0, Fault::Image(ImageError::Inconsistent { .. }))),
        }
    };
    assert!(!refused(&[kept(0, 2), pages(2, 4), pages(8, 9)]));
    assert!(refused(&[kept(0, 2), kept(1, 3)]), "kept twice");
    assert!(refused(&[kept(0, 2), pages(1, 3)]), "kept and stored");
    assert!(refused(&[pages(0, 2), pages(3, 4), pages(1, 2)]), "stored twice");
    assert!(refused(&[kept(3, 5)]) && refused(&[kept(20, 21)]), "kept outside of mappings");
    assert!(refused(&[kept(8, 9)]), "shared memory kept");
    assert!(refused(&[pages(5, 6)]), "stored outside of mappings");
    let beyond = [(Kind::Kept, 0, kept_payload(&[(u64::MAX - 2 * PAGE + 1, u64::MAX - PAGE + 1)]))];
    assert!(refused(&beyond));
}

#[test]
fn pages_of_an_older_image_that_a_newer_one_dropped_stay_away() {
    // Stored at first, then zero, then kept: it is zero, whatever the oldest image says.
    let mappings = [private(BASE, BASE + 2 * PAGE)];
    let kept = (Kind::Kept, 0, kept_payload(&[(BASE, BASE + 2 * PAGE)]));
    let full = image(&header(1, 0), &mappings, &[(Kind::Pages, BASE, vec![9; 2 * PAGE as usize])]);
    let zeroed = image(&header(2, 1), &mappings, &[(Kind::Kept, 0, kept_payload(&[(BASE, BASE + PAGE)]))]);
    let newest = image(&header(3, 2), &mappings, &[kept]);
    let chain = vec![newest, zeroed, full];
    assert_eq!(restored(&mut open(&chain)), [(0, 9), (1, 0)].into());
    let live: Vec<u64> = open(&chain).members().iter().map(|member| member.live / PAGE).collect();
    assert_eq!(live, [0, 0, 1]);
}
