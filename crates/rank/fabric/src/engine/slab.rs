//! A table of operations whose numbers travel to peers.
//!
//! A number holds the slot and how often the slot was used, so that a late or forged number finds nothing instead
//! of somebody else's operation.

/// Slots with generations.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Stores a value and returns its number, which is never 0.
    pub fn insert(&mut self, value: T) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        entry.0 = entry.0.wrapping_add(1).max(1);
        entry.1 = Some(value);
        u64::from(entry.0) << 32 | u64::from(slot)
    }

    fn slot(&self, id: u64) -> Option<usize> {
        let slot = (id & 0xffff_ffff) as usize;
        let entry = self.slots.get(slot)?;
        (u64::from(entry.0) == id >> 32 && entry.1.is_some()).then_some(slot)
    }

    /// The value of a number.
    pub fn get(&self, id: u64) -> Option<&T> {
        self.slots[self.slot(id)?].1.as_ref()
    }

    /// The value of a number, to change.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let slot = self.slot(id)?;
        self.slots[slot].1.as_mut()
    }

    /// Takes the value out.
    pub fn remove(&mut self, id: u64) -> Option<T> {
        let slot = self.slot(id)?;
        self.free.push(slot as u32);
        self.slots[slot].1.take()
    }

    /// Numbers of all values for which `f` holds.
    pub fn find_all(&self, f: impl Fn(&T) -> bool) -> Vec<u64> {
        let hit = |(slot, entry): (usize, &(u32, Option<T>))| {
            entry.1.as_ref().filter(|value| f(value)).map(|_| u64::from(entry.0) << 32 | slot as u64)
        };
        self.slots.iter().enumerate().filter_map(hit).collect()
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, value)| value.as_ref())
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_not_reused() {
        let mut slab = Slab::default();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b");
        assert_ne!(first, second);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"b"));
        assert_eq!(slab.get(u64::MAX), None);
        assert_eq!(slab.len(), 1);
    }
}
