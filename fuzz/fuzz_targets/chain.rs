//! Chains of images from anybody's disk. The input describes images that are sealed with true checksums: what is tried is how
//! they name each other, what they keep and store and where. Whatever comes, opening ends without a panic and with bounded
//! memory; and a chain that is accepted has each live page once, within its mappings, and is equal in effect to what it is
//! merged into.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mend_fuzz::chains::{Image, PAGE, build};
use mend_image::chain::Chain;
use mend_image::diff::diff;
use mend_image::merge::merge;
use std::io::Cursor;

fuzz_target!(|images: Vec<Image>| {
    let Some(images) = images.iter().take(6).map(build).collect::<Option<Vec<_>>>() else { return };
    let open = || Chain::open(images.iter().map(Cursor::new));
    let Ok(mut chain) = open() else { return };
    let mut last = 0;
    for piece in chain.pieces() {
        assert!(last <= piece.start && piece.start < piece.end, "a page is there twice");
        let inside = |at| chain.newest().mapping_of(at).is_some();
        assert!((piece.start..piece.end).step_by(PAGE as usize).all(inside), "a page is outside of all mappings");
        last = piece.end;
    }
    chain.verify().expect("what was sealed has its checksums");
    let mut merged = Vec::new();
    merge(&mut chain, &mut merged).expect("an accepted chain can be merged");
    let mut whole = Chain::open([Cursor::new(&merged)]).expect("what was merged is an image");
    assert_eq!(whole.members()[0].live, chain.members().iter().map(|member| member.live).sum::<u64>());
    diff(&mut chain, &mut whole, |found| panic!("{found:?}")).expect("both can be read");
});
