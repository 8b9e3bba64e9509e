//! Byte ranges on their way to both copies of each object.
//!
//! ```text
//! write ──► both copies of all pieces at once
//! append ──► first copy of the first piece, of the second, … ──► second copies         another one's bytes are there: it is refused, and nothing of it is anywhere
//! refused by one copy and not by the other ──► noted ──► sync: the copy that took it is made anew from the other one, if they differ
//! ```
//! Invariant: a file that was synced without an error has two copies that are the same. Faults assumed: a target is full, or refuses for another reason; one takes so long that the claim to
//! append is over, or this process stands still for so long.

use super::lost::Lost;
use super::moving::shape_of;
use super::names::now_ns;
use super::peer::Peer;
use super::writer::{Apart, Refused, State, Writer, distinct, held};
use super::written_copies::some_sums;
use crate::link::Fault;
use mend_data::ranges::Range;
use mend_data::space::target::{Claim, Failed, MAX_VERIFIED, NOBODY, Request};
use mend_data::space::written::{CLAIM, Written, piece_sums, pieces, sum_of_pieces};
use mend_data::space::{BLOCK, Id};
use std::collections::{BTreeSet, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Bytes that go to a target at once.
const PIECE: u64 = 1 << 20;
/// After this part of its time a claim is made again.
const RENEWED: Duration = Duration::from_secs(CLAIM / 2);

fn note(apart: &mut Apart, copy: (u16, u16), (range, why): (Range, Fault)) {
    let (all, _) = apart.entry(copy).or_insert((range, why));
    *all = Range::between(all.offset.min(range.offset), all.end().max(range.end()));
}

/// Bytes on their way.
struct Outgoing<'a> {
    file: Id,
    offset: u64,
    bytes: &'a [u8],
    /// Checksums of their pieces in blocks.
    sums: Vec<u128>,
    changed_ns: i64,
    /// Which piece was taken by which target, and by which map.
    took: Mutex<HashSet<(usize, u16, u32)>>,
}

impl<'a> Outgoing<'a> {
    fn new(file: &Id, offset: u64, bytes: &'a [u8]) -> Self {
        let first = offset / BLOCK;
        let sums = piece_sums(file, offset, bytes, |at| first + at).collect();
        Self { file: *file, offset, bytes, sums, changed_ns: now_ns(), took: Mutex::default() }
    }

    /// The same, with the same numbers, whatever the map: what changes is which targets objects are on.
    fn pieces(&self, known: &Written) -> Vec<(u16, u64, Range)> {
        pieces(known, Range { offset: self.offset, length: self.bytes.len() as u64 }, PIECE).collect()
    }

    fn has(&self, number: usize, at: u16, known: &Written) -> bool {
        held(&self.took).contains(&(number, at, known.epoch))
    }

    /// Has a target take a piece.
    fn send(&self, state: &State, known: &Written, (number, at, peer): (usize, u16, &Peer), appends: bool) -> Result<(), Fault> {
        let Some((position, place, piece)) = self.pieces(known).into_iter().nth(number) else { return Ok(()) };
        let (from, first) = ((piece.offset - self.offset) as usize, self.offset / BLOCK);
        let bytes = &self.bytes[from..from + piece.length as usize];
        let blocks = (piece.offset / BLOCK - first) as usize..(piece.end().div_ceil(BLOCK) - first) as usize;
        let (epoch, sum, length) = (known.epoch, sum_of_pieces(&self.sums[blocks]), bytes.len() as u32);
        let request =
            Request::WriteRange { file: self.file, epoch, position, offset: place, length, sum, changed_ns: self.changed_ns, appends };
        let (answer, _) = peer.ask(&request, bytes)?;
        Writer::note_unsynced(state, epoch, (position, at), answer, peer)?;
        held(&self.took).insert((number, at, epoch));
        Ok(())
    }
}

impl Writer {
    /// Writes bytes; both targets of each have them then.
    ///
    /// # Errors
    /// [`Refused`]. What was written before stays.
    pub fn write(&self, file: &Id, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        let (state, out) = (self.state(file), Outgoing::new(file, offset, bytes));
        let done = self.to_both(&state, &out);
        self.is_over(&state, &out, done)
    }

    /// Has all copies take what they have not taken.
    fn to_both(&self, state: &State, out: &Outgoing<'_>) -> Result<(), Refused> {
        let lacked = |known: &Written, at: u16| -> Vec<usize> {
            let pieces = out.pieces(known).into_iter().enumerate();
            let of = pieces.filter(|(_, (position, _, _))| known.objects[usize::from(*position)].contains(&at));
            of.map(|(number, _)| number).filter(|number| !out.has(*number, at, known)).collect()
        };
        let part = |known: &Written| -> Vec<u16> {
            let holders = distinct(out.pieces(known).iter().flat_map(|(position, _, _)| known.objects[usize::from(*position)]));
            holders.into_iter().filter(|at| !lacked(known, *at).is_empty()).collect()
        };
        let work = |known: &Written, at: u16, peer: &Peer| -> Result<(), Fault> {
            lacked(known, at).into_iter().try_for_each(|number| out.send(state, known, (number, at, peer), false))
        };
        self.on_all(&out.file, work, part)
    }

    fn is_over(&self, state: &State, out: &Outgoing<'_>, done: Result<(), Refused>) -> Result<(), Refused> {
        if let Err(refused) = &done
            && let Ok((_, known)) = self.now(&out.file)
        {
            for (number, (position, place, piece)) in out.pieces(&known).into_iter().enumerate() {
                let took = |at: u16| held(&out.took).iter().any(|(taken, by, _)| (*taken, *by) == (number, at));
                self.note_apart(state, &known, (position, Range { offset: place, length: piece.length }), refused, took);
            }
        }
        done?;
        self.keep(&out.file, out.offset, out.bytes, &out.sums);
        Ok(())
    }

    /// Writes bytes behind the end. Where they begin, and how many there are: nobody else's come between them. Fewer than were given: an error came after them.
    ///
    /// # Errors
    /// [`Refused::Appending`] if another node does that, too. It is not waited for: the kernel lets no rank be killed or stopped that waits for a mount.
    pub fn append(&self, file: &Id, bytes: &[u8]) -> Result<(u64, usize), Refused> {
        let state = self.state(file);
        // Ranks of this node append one after the other.
        let mut appending = held(&state.appending);
        let (mut begins, mut done) = (None, 0);
        loop {
            let piece = &bytes[done..bytes.len().min(done + PIECE as usize)];
            let at = begins.map(|begins| begins + done as u64);
            let wrote = self.claim_end(file, &mut appending, at).and_then(|end| self.write_behind(file, end, piece).map(|()| end));
            match wrote {
                Ok(end) => drop(begins.get_or_insert(end)),
                Err(refused) if begins.is_none() => return Err(refused),
                // Whoever was told of an error only would append once more what is there already.
                Err(_) => break,
            }
            done += piece.len();
            if done == bytes.len() {
                break;
            }
        }
        Ok((begins.unwrap_or_default(), done))
    }

    /// Claims a file for appending, if it is not any more, and says where it ends. Whoever has begun to append expects that end: if the claim was another node's since, it may be
    /// another one.
    fn claim_end(&self, file: &Id, appending: &mut Option<Instant>, expected: Option<u64>) -> Result<u64, Refused> {
        let is_ours = appending.is_some_and(|since| since.elapsed() <= RENEWED);
        if !is_ours {
            let (_, known) = self.now(file)?;
            if !self.claim_all(&known.objects[0], &Claim::Append(*file))? {
                *appending = None;
                return Err(Refused::Appending);
            }
            *appending = Some(Instant::now());
        }
        if let Some(expected) = expected.filter(|_| is_ours) {
            return Ok(expected);
        }
        let (entry, _) = self.now(file)?;
        let (end, _) = self.shape(&entry)?;
        if expected.is_some_and(|expected| expected != end) { Err(Refused::Appending) } else { Ok(end) }
    }

    /// Ends the claim to append, whoever has it: no rank that had the file open runs any more. A target that does not answer is passed over, and so is one of an older release, which
    /// refuses that.
    ///
    /// # Errors
    /// [`Refused`] if the file is not there.
    pub fn end_appending(&self, file: &Id) -> Result<(), Refused> {
        let (_, known) = self.now(file)?;
        let over = Request::Claim { claim: Claim::Append(*file), who: NOBODY, over: true };
        self.client.each(&distinct(known.objects[0].into_iter()), |_, peer| drop(peer.ask(&over, &[])));
        Ok(())
    }

    /// Writes bytes there if nothing else is there: the first copies decide, one piece after the other.
    fn write_behind(&self, file: &Id, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        let (state, out) = (self.state(file), Outgoing::new(file, offset, bytes));
        let positions: Vec<u16> = self.now(file).map(|(_, known)| out.pieces(&known).iter().map(|(position, _, _)| *position).collect())?;
        let firsts = positions.into_iter().enumerate().try_for_each(|(number, position)| {
            let work = |known: &Written, at: u16, peer: &Peer| out.send(&state, known, (number, at, peer), true);
            self.on_all(file, work, |known| vec![known.objects[usize::from(position)][0]])
        });
        let done = firsts.and_then(|()| self.to_both(&state, &out)).map_err(|refused| match refused {
            Refused::Fault(Fault::Failed { kind: Failed::Busy, .. }) => Refused::Appending,
            refused => refused,
        });
        self.is_over(&state, &out, done)
    }

    /// Notes which copies of an object took something that others refused.
    pub(super) fn note_apart(
        &self,
        state: &State,
        known: &Written,
        (position, range): (u16, Range),
        why: &Refused,
        took: impl Fn(u16) -> bool,
    ) {
        let copies = distinct(known.objects[usize::from(position)].into_iter());
        let (took, refused): (Vec<u16>, Vec<u16>) = copies.into_iter().partition(|at| took(*at));
        if refused.is_empty() {
            return;
        }
        let why = if let Refused::Fault(fault) = why { fault.clone() } else { Fault::Other(why.to_string()) };
        for at in took {
            note(&mut held(&state.apart), (position, at), (range, why.clone()));
        }
    }

    /// Makes copies the same of which one took what the other refused.
    pub(super) fn bring_together(&self, file: &Id, state: &State) -> Result<(), Refused> {
        let apart = std::mem::take(&mut *held(&state.apart));
        let made = self.make_same(file, &apart);
        if made.is_err() {
            // The next one tries again.
            let mut noted = held(&state.apart);
            apart.into_iter().for_each(|(copy, what)| note(&mut noted, copy, what));
        }
        made
    }

    fn make_same(&self, file: &Id, apart: &Apart) -> Result<(), Refused> {
        let Some((_, why)) = apart.values().next() else { return Ok(()) };
        let (_, known) = self.now(file)?;
        let mut anew = BTreeSet::new();
        for ((position, at), (range, _)) in apart {
            let copies = known.objects[usize::from(*position)];
            let other = copies.into_iter().find(|other| other != at).filter(|_| copies.contains(at));
            // The only one that is whole is what the other one is made from.
            let Some(other) = other.filter(|_| known.whole(*position) != [*at]) else { continue };
            if !anew.contains(&(*position, other)) && self.differ(file, *position, [*at, other], *range)? {
                anew.insert((*position, *at));
            }
        }
        if anew.is_empty() { Ok(()) } else { self.move_away(file, &Lost::Copies(&anew), why) }
    }

    /// True if two copies of an object are not the same there. What a target cannot give is lost or damaged, and for others to find.
    fn differ(&self, file: &Id, position: u16, copies: [u16; 2], range: Range) -> Result<bool, Fault> {
        let peers = [self.client.peer(copies[0])?, self.client.peer(copies[1])?];
        let [Ok(one), Ok(two)] = peers.map(|peer| shape_of(peer, file, position)) else { return Ok(false) };
        if one.length != two.length {
            return Ok(true);
        }
        let end = range.end().min(one.length).div_ceil(BLOCK);
        for first in (range.offset / BLOCK..end).step_by(MAX_VERIFIED as usize) {
            let count = u64::from(MAX_VERIFIED).min(end - first) as u32;
            let [Ok(Some(one)), Ok(Some(two))] = peers.map(|peer| some_sums(peer, file, position, first, count)) else { return Ok(false) };
            if one != two {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
