//! Entries in the order of their arrival, of which the first that fits is wanted.
//!
//! Nearly always that is the very first, or one soon after it, so a few are looked through. Where that finds nothing, a program
//! asks in another order than its messages come in (the opposite one, say), and each search would take as long as there
//! are entries: then those of one mask and tag are found by a hash, until the entries are gone.
//!
//! Invariant: times grow from entry to entry and none is given twice, so they are names, too: what an index names is either
//! here under that time or is not here any more.

use std::collections::{HashMap, VecDeque};

/// Entries to look through before an index is made.
const MIN_INDEXED_ENTRIES: usize = if cfg!(test) { 2 } else { 32 };
/// Masks of searches for which there may be an index at a time.
const MAX_MASKS: usize = 8;
/// Entries that are gone before an index is made anew, or the places of them taken out, besides as many as there are.
const MIN_GONE_ENTRIES: usize = if cfg!(test) { 4 } else { 1024 };

/// What an entry is found by.
pub trait Sought {
    /// Its tag, of which bits that do not count may be anything.
    fn tag(&self) -> u64;
    /// The bits of the tag that do not count for this entry, or `None` if each search says which.
    fn ignored(&self) -> Option<u64>;
}

/// Of one mask: times of the entries of each masked tag.
#[derive(Debug)]
struct Index {
    ignore: u64,
    times: HashMap<u64, VecDeque<i64>>,
}

/// See the module.
#[derive(Debug)]
pub struct Ordered<T> {
    /// The first and the last are there.
    entries: VecDeque<(i64, Option<T>)>,
    /// Places in the middle that are empty.
    holes: usize,
    indices: Vec<Index>,
    /// Entries that have gone since the indices were made.
    gone: usize,
    /// Entries that searches looked at, ever.
    #[cfg(test)]
    pub looks: usize,
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            holes: 0,
            indices: Vec::new(),
            gone: 0,
            #[cfg(test)]
            looks: 0,
        }
    }
}

impl<T: Sought> Ordered<T> {
    /// True if there is no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first entry.
    #[inline]
    pub fn front(&self) -> Option<&T> {
        self.entries.front().and_then(|(_, entry)| entry.as_ref())
    }

    /// The entries in order, to look at.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|(_, entry)| entry.as_ref())
    }

    /// The entries in order.
    pub fn into_entries(self) -> impl Iterator<Item = T> {
        self.entries.into_iter().filter_map(|(_, entry)| entry)
    }

    /// Adds an entry. `time` is later than any that was given before.
    #[inline]
    pub fn push_back(&mut self, time: i64, entry: T) {
        if !self.indices.is_empty() {
            self.index(time, &entry);
        }
        self.entries.push_back((time, Some(entry)));
    }

    /// Puts an entry before all others. `time` is before any that was given.
    pub fn push_front(&mut self, time: i64, entry: T) {
        // It would have to go before what the indices have. This is seldom.
        self.indices.clear();
        self.entries.push_front((time, Some(entry)));
    }

    fn index(&mut self, time: i64, entry: &T) {
        let own = entry.ignored();
        if let Some(ignore) = own
            && !self.indices.iter().any(|index| index.ignore == ignore)
        {
            self.indices.push(Index { ignore, times: HashMap::new() });
        }
        for index in self.indices.iter_mut().filter(|index| own.is_none_or(|ignore| index.ignore == ignore)) {
            index.times.entry(entry.tag() & !index.ignore).or_default().push_back(time);
        }
    }

    /// Time and place of the first entry that `fits`, which implies that it has this tag as far as bits count. Which do not is said by
    /// the entry, or by `ignore` if entries do not say.
    #[inline]
    pub fn find(&mut self, tag: u64, ignore: u64, fits: impl Fn(&T) -> bool) -> Option<(i64, usize)> {
        let few = self.entries.len().min(MIN_INDEXED_ENTRIES);
        let found = self.look_through(0, few, &fits);
        if found.is_some() || few == self.entries.len() { found } else { self.find_beyond(tag, ignore, &fits) }
    }

    /// The same if it is none of the first few.
    fn find_beyond(&mut self, tag: u64, ignore: u64, fits: &impl Fn(&T) -> bool) -> Option<(i64, usize)> {
        let own = self.front()?.ignored().is_some();
        if self.indices.is_empty() || !own && !self.indices.iter().any(|index| index.ignore == ignore) {
            if self.indices.len() == MAX_MASKS {
                return self.look_through(MIN_INDEXED_ENTRIES, self.entries.len(), fits);
            }
            self.make(ignore, own);
        }
        let (mut first, mut looks) = (None, 0);
        for index in self.indices.iter_mut().filter(|index| own || index.ignore == ignore) {
            let key = tag & !index.ignore;
            let Some(times) = index.times.get_mut(&key) else { continue };
            let place = |time: &i64| self.entries.binary_search_by_key(time, |(time, _)| *time).ok();
            let there = |place: &usize| self.entries[*place].1.is_some();
            while times.front().is_some_and(|time| place(time).is_none_or(|place| !there(&place))) {
                times.pop_front();
            }
            let mut places = times.iter().inspect(|_| looks += 1).filter_map(|time| Some((*time, place(time)?)));
            let hit = places.find(|(_, place)| self.entries[*place].1.as_ref().is_some_and(fits));
            first = first.into_iter().chain(hit).min();
            if times.is_empty() {
                index.times.remove(&key);
            }
        }
        self.looked(looks);
        first
    }

    #[inline(always)]
    fn looked(&mut self, _entries: usize) {
        #[cfg(test)]
        {
            self.looks += _entries;
        }
    }

    fn look_through(&mut self, from: usize, to: usize, fits: &impl Fn(&T) -> bool) -> Option<(i64, usize)> {
        self.looked(to - from);
        let entries = self.entries.range(from..to).zip(from..);
        let mut there = entries.filter_map(|((time, entry), place)| entry.as_ref().map(|entry| (*time, place, entry)));
        there.find(|(_, _, entry)| fits(entry)).map(|(time, place, _)| (time, place))
    }

    /// Makes an index of the mask, or if entries have their `own`, of each.
    fn make(&mut self, ignore: u64, own: bool) {
        let before = std::mem::take(&mut self.indices);
        let mut masks: Vec<u64> = before.into_iter().map(|index| index.ignore).filter(|_| !own).collect();
        masks.extend((!own).then_some(ignore));
        self.indices = masks.into_iter().map(|ignore| Index { ignore, times: HashMap::new() }).collect();
        self.gone = 0;
        let entries = std::mem::take(&mut self.entries);
        for (time, entry) in &entries {
            if let Some(entry) = entry {
                self.index(*time, entry);
            }
        }
        self.entries = entries;
    }

    /// The entry at a place.
    #[inline]
    pub fn get(&self, place: usize) -> Option<&T> {
        self.entries.get(place).and_then(|(_, entry)| entry.as_ref())
    }

    /// Takes the entry at a place out; places are other ones then.
    #[inline]
    pub fn remove(&mut self, place: usize) -> Option<T> {
        if place == 0 && self.holes == 0 && self.indices.is_empty() {
            return self.entries.pop_front().and_then(|(_, entry)| entry);
        }
        self.remove_within(place)
    }

    fn remove_within(&mut self, place: usize) -> Option<T> {
        let taken = self.entries.get_mut(place)?.1.take()?;
        self.holes += 1;
        self.gone += 1;
        while self.entries.front().is_some_and(|(_, entry)| entry.is_none()) {
            self.entries.pop_front();
            self.holes -= 1;
        }
        while self.entries.back().is_some_and(|(_, entry)| entry.is_none()) {
            self.entries.pop_back();
            self.holes -= 1;
        }
        let there = self.entries.len() - self.holes;
        if self.holes > there + MIN_GONE_ENTRIES {
            self.entries.retain(|(_, entry)| entry.is_some());
            self.holes = 0;
        }
        if there == 0 || self.gone > there + MIN_GONE_ENTRIES {
            self.indices.clear();
        }
        Some(taken)
    }

    /// Takes the first entry out that `which` picks, looking at all before it.
    pub fn remove_first(&mut self, which: impl Fn(&T) -> bool) -> Option<T> {
        let place = self.entries.iter().position(|(_, entry)| entry.as_ref().is_some_and(&which))?;
        self.remove(place)
    }

    /// Places there are: of entries, and empty ones.
    #[cfg(test)]
    pub fn places(&self) -> usize {
        self.entries.len() + self.indices.iter().flat_map(|index| index.times.values()).map(VecDeque::len).sum::<usize>()
    }
}
