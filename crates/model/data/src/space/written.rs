//! Files that ranks write: what is known of one, and where its bytes are.
//!
//! ```text
//! file:      │ stripe 0 │ stripe 1 │ stripe 2 │ …          objects: [[a, b], [b, c]]
//! object 0:  on targets a and b, the same bytes             object 1: on targets b and c
//! ```
//! An entry says where objects are, and nothing that a write changes: a file is as long as its objects make it ([`size`]), so two nodes that write beyond its end need not
//! agree on a size. Objects have holes; what is in none of them reads as zeros. Each object is on two different targets, of two nodes if there are two, and both take each write before it counts.
//! In a space of one copy both are the same target: what it has goes with it.
//!
//! What does change is the name, and where an object's copies are. Then the entry is told again with a higher version, and of one entry the highest counts.

use super::layout::Layout;
use super::placement::{NoPlace, RESERVE};
use super::{BLOCK, COPIES, Id, MAX_TARGETS, Striping, block_sum};
use crate::ranges::Range;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed, xxh3_128};

/// How long a claim lasts that nobody renews, seconds.
pub const CLAIM: u64 = 20;
/// Permission bits that a file of a space can have.
pub const MODES: u32 = 0o777;

/// A file that ranks write. It has no source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Bytes in one object before the next one's turn.
    pub stripe: u64,
    /// For each object its two targets, or twice the same one. The first one is read.
    pub objects: Vec<[u16; COPIES]>,
    /// How often a copy came onto another target. Who writes by an older map is refused.
    pub epoch: u32,
    /// Objects whose second copy takes what is written, and lacks some of what was written before.
    pub filling: Vec<u16>,
    /// Permissions, of [`MODES`].
    pub mode: u32,
}

impl Written {
    /// True if this can be a file of a space with so many targets.
    #[must_use]
    pub fn is_sound(&self, targets: usize) -> bool {
        let good = |[one, two]: &[u16; COPIES]| usize::from(*one) < targets && usize::from(*two) < targets;
        let count = (1..=MAX_TARGETS).contains(&self.objects.len());
        // A copy that is filled from itself would never be whole.
        let fills = |at: &u16| self.objects.get(usize::from(*at)).is_some_and(|[one, two]| one != two);
        let filling = self.filling.len() <= self.objects.len() && self.filling.iter().all(fills);
        count && filling && self.objects.iter().all(good) && self.mode & !MODES == 0 && Striping { size: self.stripe, count: 0 }.is_sound()
    }

    /// Its layout; as long as a file can be.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout { size: i64::MAX as u64, stripe: self.stripe.max(1), count: self.objects.len().max(1) as u64 }
    }

    /// Targets that have all of an object.
    #[must_use]
    pub fn whole(&self, position: u16) -> &[u16] {
        let copies = self.objects.get(usize::from(position)).map_or(&[][..], |copies| &copies[..]);
        let one = self.filling.contains(&position) || matches!(copies, [one, two] if one == two);
        if one { copies.get(..1).unwrap_or_default() } else { copies }
    }

    /// True if some of it is on one target alone, and was never to be on two.
    #[must_use]
    pub fn has_one_copy(&self) -> bool {
        self.objects.iter().any(|[one, two]| one == two)
    }

    /// The file with other targets in the place of those that have lost copies; what has to be copied there is [filling](Self::filling) then. `is_lost` and `is_there` tell of a copy, by its
    /// object's place and its target, whether it has to be made anew, and whether it is there all the same: the last one of an object stays. `free` has the free bytes of each target
    /// that may get one, `node` tells targets of one node by the same number. `length` tells how long an object is. `None` if nothing is lost.
    ///
    /// # Errors
    /// [`NoPlace::NoTarget`] if no copy of an object is there, or it was never to have two; else as [`place`].
    pub fn moved(
        &self,
        free: &[Option<u64>],
        is_lost: impl Fn(u16, u16) -> bool,
        is_there: impl Fn(u16, u16) -> bool,
        length: impl Fn(u16) -> u64,
        node: impl Fn(u16) -> usize,
    ) -> Result<Option<Self>, NoPlace> {
        // Several objects may come onto one.
        let mut left = free.to_vec();
        let mut new = self.clone();
        for (position, copies) in (0_u16..).zip(&mut new.objects) {
            if !copies.iter().any(|at| is_lost(position, *at)) {
                continue;
            }
            let good = self.good(position, &is_lost, &is_there).filter(|_| copies[0] != copies[1]).ok_or(NoPlace::NoTarget)?;
            let others = || (0_u16..).zip(&left).filter_map(|(at, free)| Some((at, (*free)?))).filter(|(at, _)| *at != good);
            if others().next().is_none() {
                return Err(NoPlace::TooFew { wanted: COPIES, there: free.iter().flatten().count() });
            }
            let needed = length(position).saturating_add(RESERVE);
            let roomy = others().filter(|(_, free)| *free >= needed);
            let chosen = roomy.max_by_key(|(at, free)| (node(*at) != node(good), *free, *at));
            let (other, most) = chosen.ok_or(NoPlace::Full { needed, count: 1, roomy: 0 })?;
            left[usize::from(other)] = Some(most - length(position));
            *copies = [good, other];
            if !new.filling.contains(&position) {
                new.filling.push(position);
            }
        }
        let moved = new != *self;
        new.epoch = new.epoch.saturating_add(1);
        Ok(moved.then_some(new))
    }

    /// The same where no other target takes a copy: those that have lost one get it again. `free` has the free bytes of each target that may get one, or has one.
    ///
    /// # Errors
    /// As [`Self::moved`].
    pub fn again(
        &self,
        free: &[Option<u64>],
        is_lost: impl Fn(u16, u16) -> bool,
        is_there: impl Fn(u16, u16) -> bool,
    ) -> Result<Self, NoPlace> {
        let mut new = self.clone();
        for (position, copies) in (0_u16..).zip(&mut new.objects) {
            if !copies.iter().any(|at| is_lost(position, *at)) {
                continue;
            }
            let good = self.good(position, &is_lost, &is_there).ok_or(NoPlace::NoTarget)?;
            let other = copies.iter().copied().find(|at| *at != good).ok_or(NoPlace::NoTarget)?;
            if [good, other].iter().any(|at| free.get(usize::from(*at)).copied().flatten().is_none()) {
                return Err(NoPlace::TooFew { wanted: COPIES, there: free.iter().flatten().count() });
            }
            *copies = [good, other];
            if !new.filling.contains(&position) {
                new.filling.push(position);
            }
        }
        new.epoch = new.epoch.saturating_add(1);
        Ok(new)
    }

    /// What [`Self::moved`] has made of this, but no two copies on one node where that can be helped: the target that has lost one gets it again, if it `takes` that
    /// (an object's place and the target) and is on another node.
    #[must_use]
    pub fn apart(&self, mut moved: Self, takes: impl Fn(u16, u16) -> bool, node: impl Fn(u16) -> usize) -> Self {
        for (position, (before, copies)) in (0_u16..).zip(self.objects.iter().zip(&mut moved.objects)) {
            let [good, other] = *copies;
            if before.contains(&other) || node(good) != node(other) {
                continue;
            }
            let again = before.iter().copied().find(|at| *at != good && node(*at) != node(good) && takes(position, *at));
            copies[1] = again.unwrap_or(other);
        }
        moved
    }

    /// The target whose copy of an object stays.
    fn good(&self, position: u16, is_lost: impl Fn(u16, u16) -> bool, is_there: impl Fn(u16, u16) -> bool) -> Option<u16> {
        let there = || self.whole(position).iter().copied().filter(|at| is_there(position, *at));
        there().find(|at| !is_lost(position, *at)).or_else(|| there().next())
    }

    /// Places of objects that a target has.
    pub fn positions(&self, target: u16) -> impl Iterator<Item = u16> + '_ {
        (0_u16..).zip(&self.objects).filter(move |(_, copies)| copies.contains(&target)).map(|(position, _)| position)
    }

    /// How long an object of a file of this size is.
    #[must_use]
    pub fn object_length(&self, position: usize, size: u64) -> u64 {
        Layout { size, ..self.layout() }.object_length(position)
    }
}

/// What a target tells of an object of a written file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Its place.
    pub position: u16,
    /// Its bytes.
    pub length: u64,
    /// When it was written last, nanoseconds since 1970.
    pub changed_ns: i64,
}

/// How long a file is that has these objects.
#[must_use]
pub fn size(file: &Written, shapes: &[Shape]) -> u64 {
    let layout = file.layout();
    let there = shapes.iter().filter(|shape| shape.length > 0 && usize::from(shape.position) < file.objects.len());
    let ends = there.map(|shape| layout.file_offset(usize::from(shape.position), shape.length - 1).saturating_add(1));
    ends.max().unwrap_or(0).min(i64::MAX as u64)
}

/// When a file was changed last that has these objects, nanoseconds since 1970; `None` if there are none. Clients' clocks differ, and writes overtake each other: what changes one object may bear an earlier
/// time than another object has. So that the file's time changes with each of them, but for one change in 1000 of those, what is below a microsecond stands for all objects, unless all have the same time.
#[must_use]
pub fn changed_ns(shapes: &[Shape]) -> Option<i64> {
    let last = shapes.iter().map(|shape| shape.changed_ns).max()?;
    if shapes.iter().all(|shape| shape.changed_ns == last) {
        return Some(last);
    }
    let all: Vec<u8> = shapes.iter().flat_map(|shape| [shape.length.to_le_bytes(), shape.changed_ns.to_le_bytes()]).flatten().collect();
    Some(last.saturating_sub(last.rem_euclid(1000)).saturating_add((xxh3_64(&all) % 1000) as i64))
}

/// Pieces of a range of bytes, each in one object and cut where that has a multiple of `most`: the place, where it is in the object, and in the file.
pub fn pieces(file: &Written, range: Range, most: u64) -> impl Iterator<Item = (u16, u64, Range)> + use<> {
    let (layout, most) = (file.layout(), most.max(1));
    layout.extents(range).flat_map(move |extent| {
        let end = extent.offset + extent.range.length;
        (extent.offset / most..end.div_ceil(most)).map(move |step| {
            let from = (step * most).max(extent.offset);
            let length = (step + 1).saturating_mul(most).min(end) - from;
            (extent.position as u16, from, Range { offset: extent.range.offset + (from - extent.offset), length })
        })
    })
}

/// Targets for a new file, each byte of which is on so many of them: one or two. `free` has the free bytes of each; `None` means that it does not answer. `node` tells targets of one
/// node by the same number.
///
/// # Errors
/// [`NoPlace`], also if fewer targets answer than a byte is to be on.
pub fn place(
    free: &[Option<u64>],
    striping: Striping,
    copies: usize,
    mode: u32,
    file: &Id,
    node: impl Fn(u16) -> usize,
) -> Result<Written, NoPlace> {
    let copies = copies.clamp(1, COPIES);
    let there = free.iter().flatten().count();
    if there < copies {
        return Err(NoPlace::TooFew { wanted: copies, there });
    }
    let known = (0_u16..).zip(free).filter_map(|(at, free)| Some((at, (*free)?)));
    let mut roomy: Vec<u16> = known.filter(|(_, free)| *free > RESERVE).map(|(at, _)| at).collect();
    if roomy.len() < copies {
        return Err(NoPlace::Full { needed: RESERVE, count: copies, roomy: roomy.len() });
    }
    // By chance, or all first stripes would be on one; neighbours in this order are each other's second copy, unless they are on one node.
    roomy.sort_unstable_by_key(|at| xxh3_64_with_seed(file, u64::from(*at)));
    let count = if striping.count == 0 { roomy.len() } else { usize::from(striping.count).min(roomy.len()) };
    let nodes: Vec<usize> = roomy.iter().map(|at| node(*at)).collect();
    let mut seconds = vec![0_u32; roomy.len()];
    let object = |at: usize| {
        let others = (1..roomy.len()).map(|step| (at + step) % roomy.len());
        let second = others.filter(|_| copies > 1).min_by_key(|other| (nodes[*other] == nodes[at], seconds[*other]));
        let second = second.unwrap_or(at);
        seconds[second] += 1;
        [roomy[at], roomy[second]]
    };
    let objects = (0..count).map(object).collect();
    Ok(Written { stripe: striping.size, objects, epoch: 0, filling: Vec::new(), mode: mode & MODES })
}

/// In which order targets are asked who makes the file of a path: the same everywhere. The first one that answers decides.
#[must_use]
pub fn deciders(path: &str, targets: usize) -> Vec<u16> {
    let mut order: Vec<u16> = (0..targets).filter_map(|at| u16::try_from(at).ok()).collect();
    order.sort_unstable_by_key(|at| xxh3_64_with_seed(path.as_bytes(), u64::from(*at)));
    order
}

/// Checksums of a range's pieces, each in one block. That of a whole block is the one that is kept with it, so neither side reads the bytes twice. `offset`: where the range begins
/// in its file or object. `index`: the number in the file of the block that comes so many blocks after the first.
pub fn piece_sums<'a>(file: &'a Id, offset: u64, bytes: &'a [u8], index: impl Fn(u64) -> u64 + 'a) -> impl Iterator<Item = u128> + 'a {
    let (head, rest) = bytes.split_at(bytes.len().min((BLOCK - offset % BLOCK) as usize));
    let pieces = std::iter::once(head).filter(|head| !head.is_empty()).chain(rest.chunks(BLOCK as usize));
    (0..).zip(pieces).map(move |(at, piece)| match piece.len() as u64 {
        BLOCK => block_sum(file, index(at), piece),
        _ => xxh3_128(piece),
    })
}

/// The checksum of a range of bytes that a rank writes, on its way to a target: of its [`piece_sums`].
#[must_use]
pub fn sum_of_pieces(sums: &[u128]) -> u128 {
    let mut all = Xxh3::new();
    sums.iter().for_each(|sum| all.update(&sum.to_le_bytes()));
    all.digest128()
}

/// The checksum of bytes of a copy on their way to a target.
#[must_use]
pub fn range_sum(bytes: &[u8]) -> u128 {
    xxh3_128(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::{Catalogue, Change};
    use super::super::{Entry, Kind};
    use super::*;
    use proptest::prelude::*;

    fn file(count: u16, stripe: u64) -> Written {
        let objects = (0..count).map(|at| [at, (at + 1) % count.max(2)]).collect();
        Written { stripe: stripe * BLOCK, objects, epoch: 0, filling: Vec::new(), mode: 0o644 }
    }

    /// Each target has its node.
    fn own(at: u16) -> usize {
        at.into()
    }

    /// Where the targets are lost that have no room, and all else is there.
    fn moved_off(file: &Written, free: &[Option<u64>], length: impl Fn(u16) -> u64) -> Result<Option<Written>, NoPlace> {
        let is_lost = |_: u16, at: u16| free[usize::from(at)].is_none();
        file.moved(free, is_lost, |position, at| !is_lost(position, at), length, own)
    }

    #[test]
    fn each_byte_is_on_two_targets_or_there_is_no_file() {
        const GIB: u64 = 1 << 30;
        let all = Striping::default();
        assert_eq!(place(&[Some(GIB), None], all, 2, 0o644, &[0; 16], own), Err(NoPlace::TooFew { wanted: 2, there: 1 }));
        assert_eq!(place(&[Some(GIB), Some(5)], all, 2, 0o644, &[0; 16], own), Err(NoPlace::Full { needed: RESERVE, count: 2, roomy: 1 }));
        let two = place(&[Some(GIB), None, Some(GIB)], all, 2, 0o100_644, &[0; 16], own).unwrap();
        assert!(two.is_sound(3) && two.objects.len() == 2 && two.mode == 0o644);
        let one = place(&[Some(GIB); 3], Striping { count: 1, ..all }, 2, 0o644, &[0; 16], own).unwrap();
        assert!(one.is_sound(3) && one.objects.len() == 1);
        assert!(!Written { objects: vec![[1, 3]], ..one.clone() }.is_sound(3) && !Written { objects: vec![], ..one }.is_sound(3));
    }

    #[test]
    fn a_file_has_another_time_when_any_of_its_objects_has() {
        let shapes = |times: [i64; 3]| [0, 1, 2].map(|position| Shape { position, length: 7, changed_ns: times[usize::from(position)] });
        let told = |times| changed_ns(&shapes(times)).unwrap();
        assert_eq!((changed_ns(&[]), told([1_234_567; 3]), changed_ns(&shapes([5, 4, 3])[..1])), (None, 1_234_567, Some(5)));
        let before = told([1_000, 9_876_543, 2_000]);
        assert_eq!((before / 1000, told([1_000, 9_876_543, 2_000])), (9876, before));
        let (late, cut) = (told([3_000, 9_876_543, 2_000]), shapes([1_000, 9_876_543, 2_000]).map(|shape| Shape { length: 6, ..shape }));
        assert!(late != before && changed_ns(&cut) != Some(before));
        assert_eq!(told([-1, i64::MIN, -2]).div_euclid(1000), -1);
    }

    #[test]
    fn a_file_of_one_copy_is_lost_with_its_target_and_never_moved() {
        const GIB: u64 = 1 << 30;
        let all = Striping::default();
        let alone = place(&[None, Some(GIB)], all, 1, 0o644, &[0; 16], own).unwrap();
        assert_eq!((&alone.objects[..], alone.has_one_copy()), (&[[1, 1]][..], true));
        let file = place(&[Some(GIB); 3], all, 1, 0o644, &[0; 16], own).unwrap();
        assert!(file.is_sound(3) && file.objects.len() == 3 && file.objects.iter().all(|[one, two]| one == two));
        assert!((0..3).all(|position| file.whole(position).len() == 1) && (0..3).all(|at| file.positions(at).count() == 1));
        assert_eq!(moved_off(&file, &[Some(GIB); 3], |_| 0), Ok(None));
        assert_eq!(moved_off(&file, &[None, Some(GIB), Some(GIB)], |_| 0), Err(NoPlace::NoTarget));
        assert!(!Written { filling: vec![0], ..file }.is_sound(3), "nothing to fill it from");
        assert!(!place(&[Some(GIB); 3], all, 2, 0o644, &[0; 16], own).unwrap().has_one_copy());
        assert_eq!(place(&[None, None], all, 1, 0o644, &[0; 16], own), Err(NoPlace::TooFew { wanted: 1, there: 0 }));
    }

    #[test]
    fn a_lost_copy_is_made_again_from_the_other_one() {
        const GIB: u64 = 1 << 30;
        let file = Written { objects: vec![[0, 1], [1, 2], [2, 0]], ..file(1, 1) };
        assert_eq!(moved_off(&file, &[Some(GIB); 4], |_| 0), Ok(None));
        let moved = moved_off(&file, &[Some(GIB), None, Some(GIB), Some(9 * GIB)], |_| 0).unwrap().unwrap();
        assert_eq!((moved.objects.clone(), moved.filling.clone(), moved.epoch), (vec![[0, 3], [2, 3], [2, 0]], vec![0, 1], 1));
        assert!(moved.is_sound(4) && moved.whole(0) == [0] && moved.whole(2) == [2, 0]);
        // What was to have the second copy is lost, too: another one gets it. The first one must not be.
        let again = moved_off(&moved, &[Some(GIB), Some(GIB), Some(GIB), None], |_| 0).unwrap().unwrap();
        assert_eq!((again.objects, again.filling, again.epoch), (vec![[0, 2], [2, 1], [2, 0]], vec![0, 1], 2));
        assert_eq!(moved_off(&moved, &[None, Some(GIB), Some(GIB), Some(GIB)], |_| 0), Err(NoPlace::NoTarget));
        assert_eq!(moved_off(&file, &[None, None, Some(GIB)], |_| 0), Err(NoPlace::NoTarget));
        let two = Written { objects: vec![[0, 1]], ..file };
        assert_eq!(moved_off(&two, &[Some(GIB), None], |_| 0), Err(NoPlace::TooFew { wanted: 2, there: 1 }));
    }

    /// Two targets have each lost another object: what one of them has still is not dropped with what it has lost.
    #[test]
    fn the_last_copy_of_an_object_stays() {
        const GIB: u64 = 1 << 30;
        let file = Written { objects: vec![[0, 1], [2, 0]], ..file(1, 1) };
        let there = |position: u16, at: u16| ![(0, 0), (1, 2)].contains(&(position, at));
        let free = [None, Some(GIB), Some(GIB), Some(9 * GIB)];
        let all_of_one = file.moved(&free, |_, at| at == 0, there, |_| 0, own).unwrap().unwrap();
        assert_eq!((all_of_one.objects, all_of_one.filling), (vec![[1, 3], [0, 3]], vec![0, 1]));
        let these = file.moved(&free, |position, at| !there(position, at), there, |_| 0, own).unwrap().unwrap();
        assert_eq!(these.objects, [[1, 3], [0, 3]]);
        assert_eq!(file.moved(&free, |_, at| at == 0, |position, at| position == 0 && at == 1, |_| 0, own), Err(NoPlace::NoTarget));
        // With two targets, each gets again what it has lost.
        let file = Written { objects: vec![[0, 1], [1, 0]], ..file };
        let there = |position: u16, at: u16| ![(0, 0), (1, 1)].contains(&(position, at));
        let again = file.again(&[Some(GIB), Some(GIB)], |_, at| at == 0, there).unwrap();
        assert_eq!((again.objects, again.filling, again.epoch), (vec![[1, 0], [0, 1]], vec![0, 1], 1));
        assert_eq!(file.again(&[Some(GIB), None], |_, at| at == 0, there), Err(NoPlace::TooFew { wanted: 2, there: 1 }));
    }

    #[test]
    fn a_copy_is_made_where_all_of_it_and_of_the_others_has_room() {
        const GIB: u64 = 1 << 30;
        let file = Written { objects: vec![[0, 1], [2, 1]], ..file(1, 1) };
        let moved = |free: &[Option<u64>], length| moved_off(&file, free, |_| length).map(|new| new.unwrap().objects);
        let free = [Some(9 * GIB), None, Some(9 * GIB), Some(9 * GIB + 1)];
        assert_eq!(moved(&free, GIB), Ok(vec![[0, 3], [2, 0]]));
        let free = [Some(GIB), None, Some(GIB), Some(3 * GIB)];
        assert_eq!(moved(&free, GIB), Ok(vec![[0, 3], [2, 3]]));
        assert_eq!(moved(&free, 2 * GIB), Err(NoPlace::Full { needed: 2 * GIB + RESERVE, count: 1, roomy: 0 }));
        // On another node than the copy that is left, if one has room.
        let pairs = |at: u16| usize::from(at / 2);
        let file = Written { objects: vec![[0, 2]], ..file };
        let moved = |free: &[Option<u64>]| file.moved(free, |_, at| at == 2, |_, at| at == 0, |_| GIB, pairs).unwrap().unwrap().objects;
        assert_eq!(moved(&[Some(GIB), Some(9 * GIB), None, Some(2 * GIB)]), [[0, 3]]);
        assert_eq!(moved(&[Some(GIB), Some(9 * GIB), None, Some(GIB)]), [[0, 1]]);
        // If there is none, the one that has lost it gets it again, if it answers.
        let near = file.moved(&[Some(GIB), Some(9 * GIB), None], |_, at| at == 2, |_, at| at == 0, |_| 0, pairs).unwrap().unwrap();
        let apart = |takes: bool| file.apart(near.clone(), |position, at| takes && (position, at) == (0, 2), pairs);
        assert_eq!((&near.objects[..], apart(false) == near), (&[[0, 1]][..], true));
        assert_eq!((apart(true).objects, apart(true).filling, apart(true).epoch), (vec![[0, 2]], vec![0], 1));
        let far = Written { objects: vec![[0, 3]], ..near };
        assert_eq!(file.apart(far.clone(), |_, _| true, pairs), far);
    }

    proptest! {
        /// Names and maps are told in any order, and all come to know the same.
        #[test]
        fn what_was_told_last_counts_in_any_order(steps in prop::collection::vec((0_usize..3, any::<bool>()), 1..8), order in any::<u64>()) {
            let mut entry = Entry { id: [1; 16], version: 1, path: "a".into(), made_ns: 0, kind: Kind::Written(file(3, 1)) };
            let mut told = vec![entry.clone()];
            for (name, moves) in steps {
                entry.version += 1;
                entry.path = ["a", "b", "c/d"][name].into();
                if let (true, Kind::Written(file)) = (moves, &mut entry.kind) {
                    file.epoch += 1;
                    file.objects.rotate_left(1);
                }
                told.push(entry.clone());
            }
            let mut mixed = told.clone();
            mixed.sort_by_key(|entry| xxh3_64_with_seed(&entry.version.to_le_bytes(), order));
            let mut names = Catalogue::default();
            mixed.iter().chain(&mixed).for_each(|entry| names.learn(Change::There(Box::new(entry.clone()))));
            prop_assert_eq!(names.files(""), vec![&entry]);
            prop_assert_eq!(names.at(&entry.path), Some(&entry));
            names.learn(Change::Gone(entry.id));
            mixed.iter().for_each(|entry| names.learn(Change::There(Box::new(entry.clone()))));
            prop_assert!(names.files("").is_empty());
        }

        #[test]
        fn placed_files_are_sound(free in prop::collection::vec(prop::option::of(0_u64..1 << 30), 0..9), count in 0_u16..9, id in any::<[u8; 16]>(), copies in 1..=COPIES, hosts in prop::collection::vec(0_usize..4, 9)) {
            let node = |at: u16| hosts[usize::from(at)];
            if let Ok(placed) = place(&free, Striping { size: BLOCK, count }, copies, 0o777, &id, node) {
                prop_assert!(placed.is_sound(free.len()));
                prop_assert!(placed.objects.iter().flatten().all(|at| free[usize::from(*at)].is_some()));
                let roomy = (0..free.len() as u16).filter(|at| free[usize::from(*at)].is_some_and(|free| free > RESERVE));
                let several = roomy.map(node).collect::<std::collections::BTreeSet<_>>().len() > 1;
                for [one, two] in &placed.objects {
                    prop_assert_eq!(one == two, copies == 1);
                    prop_assert_eq!(node(*one) != node(*two), copies == 2 && several);
                }
            }
        }

        /// A target makes the checksum of what it is sent from the blocks of its object, the client from those of the file.
        #[test]
        fn both_sides_make_the_same_checksums(count in 1_u16..4, stripe in 1_u64..3, offset in 0_u64..5 * BLOCK, length in 0_u64..4 * BLOCK, most in 1_u64..4) {
            let (file, id) = (file(count, stripe), [7; 16]);
            let bytes: Vec<u8> = (0..length).map(|at| ((offset + at) / 7) as u8).collect();
            let sums: Vec<u128> = piece_sums(&id, offset, &bytes, |at| offset / BLOCK + at).collect();
            let mut next = 0;
            for (position, place, piece) in pieces(&file, Range { offset, length }, most * BLOCK) {
                let index = |at| file.layout().file_offset(usize::from(position), (place / BLOCK + at) * BLOCK) / BLOCK;
                let own = &bytes[(piece.offset - offset) as usize..(piece.end() - offset) as usize];
                let theirs: Vec<u128> = piece_sums(&id, place, own, index).collect();
                prop_assert_eq!(&theirs[..], &sums[next..next + theirs.len()]);
                prop_assert_eq!(next as u64, piece.offset / BLOCK - offset / BLOCK);
                next += theirs.len();
            }
            prop_assert_eq!(next, sums.len());
        }

        /// The size that objects tell is that of a file that was written in any order, whoever wrote what.
        #[test]
        fn sizes_merge(count in 1_u16..6, stripe in 1_u64..4, writes in prop::collection::vec((0_u64..40 * BLOCK, 1_u64..5 * BLOCK), 0..12)) {
            let file = file(count, stripe);
            let mut lengths = vec![0_u64; usize::from(count)];
            for (offset, length) in &writes {
                let mut next = *offset;
                for (position, at, range) in pieces(&file, Range { offset: *offset, length: *length }, BLOCK) {
                    prop_assert_eq!(range.offset, next);
                    prop_assert!(range.length <= BLOCK);
                    prop_assert_eq!(file.layout().place(range.offset), (usize::from(position), at));
                    next = range.end();
                    let known = &mut lengths[usize::from(position)];
                    *known = (*known).max(at + range.length);
                }
                prop_assert_eq!(next, offset + length);
            }
            let shapes: Vec<Shape> = (0_u16..).zip(&lengths).map(|(position, length)| Shape { position, length: *length, changed_ns: 0 }).collect();
            let end = writes.iter().map(|(offset, length)| offset + length).max().unwrap_or(0);
            prop_assert_eq!(size(&file, &shapes), end);
            // Cut to any size, objects tell that size.
            for cut in [0, 1, end / 2, end, end + BLOCK + 7] {
                let shapes: Vec<Shape> = (0..count)
                    .map(|position| Shape { position, length: file.object_length(usize::from(position), cut), changed_ns: 0 })
                    .collect();
                prop_assert_eq!(size(&file, &shapes), cut);
            }
        }
    }
}
