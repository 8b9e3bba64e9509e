//! Leases on what clients have heard of a target ([`Lease`]).
//!
//! ```text
//! hears with a lease ──► nothing changes for LEASE ──► hears again
//! another client changes something ──► waits for the end of all leases but its own; for CALM nobody gets one
//! ```
//! So one client that works alone asks once in a while instead of each time, and clients that share files wait for each other once, and then ask each time. Invariant: what a client
//! heard holds until its lease is over, counted from when it asked, or until it changes something itself. Faults assumed: clients and this process die at any moment, and the
//! process comes back: it knows nothing of the leases it gave, so nothing is changed before they are over.

use mend_data::space::Id;
use mend_data::space::target::Lease;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a lease holds, milliseconds: as long as whoever changes something may have to wait.
const LEASE_MS: u32 = 50;
const LEASE: Duration = Duration::from_millis(LEASE_MS as u64);
/// How long nobody gets a lease after somebody had to wait for one.
const CALM: Duration = Duration::from_secs(30);
/// Clients that are remembered. If there are more, those whose leases are over are forgotten.
const MAX_CLIENTS: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Leases(Mutex<Given>);

#[derive(Debug)]
struct Given {
    /// Nothing is changed before.
    from: Instant,
    /// Nobody gets a lease before.
    calm: Option<Instant>,
    clients: HashMap<Id, Client>,
    /// Clients that change something now, each as often as it does.
    changing: Vec<Id>,
    /// A number that no client was told yet.
    next: u64,
}

#[derive(Debug)]
struct Client {
    until: Instant,
    others: u64,
}

/// Somebody changes something for as long as it is there.
#[derive(Debug)]
pub(super) struct Changing<'a> {
    leases: &'a Leases,
    who: Id,
}

impl Leases {
    /// Of a process that begins now. `random`: so that what it tells differs from what an earlier one has told.
    pub fn begin(now: Instant, random: u64) -> Self {
        Self(Mutex::new(Given { from: now + LEASE, calm: None, clients: HashMap::new(), changing: Vec::new(), next: random }))
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        // Each change of it is a whole one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lease on what a client hears after this call.
    pub fn grant(&self, who: &Id, now: Instant) -> Lease {
        let mut given = self.given();
        if given.calm.is_some_and(|calm| now < calm) || given.changing.iter().any(|changing| changing != who) {
            return Lease::default();
        }
        if given.clients.len() >= MAX_CLIENTS {
            given.clients.retain(|_, client| now < client.until);
        }
        let Given { clients, next, .. } = &mut *given;
        let client = clients.entry(*who).or_insert_with(|| {
            *next = next.wrapping_add(1);
            Client { until: now, others: *next }
        });
        client.until = now + LEASE;
        Lease { ms: LEASE_MS, others: client.others }
    }

    /// A client is about to change something: how long it must wait before. Until what is returned is gone, nobody else gets a lease.
    pub fn change(&self, who: Id, now: Instant) -> (Changing<'_>, Duration) {
        let mut given = self.given();
        given.changing.push(who);
        let Given { clients, next, from, .. } = &mut *given;
        let (mut until, mut waits) = (*from, false);
        for (_, client) in clients.iter_mut().filter(|(other, _)| **other != who) {
            *next = next.wrapping_add(1);
            client.others = *next;
            waits |= now < client.until;
            until = until.max(client.until);
        }
        if waits {
            given.calm = Some(now + CALM);
        }
        (Changing { leases: self, who }, until.saturating_duration_since(now))
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut given = self.leases.given();
        if let Some(place) = given.changing.iter().position(|changing| *changing == self.who) {
            given.changing.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Id = [1; 16];
    const OTHER: Id = [2; 16];

    #[test]
    fn who_works_alone_never_waits_and_who_changes_what_others_have_heard_waits_once() {
        let begun = Instant::now();
        let leases = Leases::begin(begun, 7);
        // What an earlier process promised is over first.
        assert_eq!(leases.change(ONE, begun).1, LEASE);
        let now = begun + LEASE;
        let first = leases.grant(&ONE, now);
        assert_eq!((first.ms, leases.change(ONE, now).1), (LEASE_MS, Duration::ZERO));
        assert_eq!(leases.grant(&ONE, now), first, "its own changes are no news");
        let later = now + LEASE / 2;
        assert_eq!(leases.change(OTHER, later).1, LEASE / 2);
        assert_eq!(leases.change(OTHER, now + LEASE).1, Duration::ZERO);
        for who in [ONE, OTHER] {
            assert_eq!(leases.grant(&who, later + CALM - LEASE), Lease::default());
        }
        let again = leases.grant(&ONE, later + CALM);
        assert!(again.ms > 0 && again.others != first.others, "{again:?} after {first:?}");
    }

    #[test]
    fn nobody_gets_a_lease_while_another_one_changes_something() {
        let begun = Instant::now();
        let (leases, now) = (Leases::begin(begun, 0), begun + LEASE);
        let before = leases.grant(&OTHER, now).others;
        let now = now + LEASE;
        let (changing, wait) = leases.change(ONE, now);
        assert_eq!((wait, leases.grant(&OTHER, now), leases.grant(&ONE, now).ms), (Duration::ZERO, Lease::default(), LEASE_MS));
        drop(changing);
        let after = leases.grant(&OTHER, now);
        assert!(after.ms > 0 && after.others != before);
    }

    #[test]
    fn who_was_forgotten_is_told_another_number() {
        let begun = Instant::now();
        let leases = Leases::begin(begun, 0);
        let first = leases.grant(&ONE, begun).others;
        for number in 0..MAX_CLIENTS as u64 {
            let mut who = Id::default();
            who[..8].copy_from_slice(&(number + 1000).to_le_bytes());
            leases.grant(&who, begun + LEASE);
        }
        assert_ne!(leases.grant(&ONE, begun + LEASE * 2).others, first);
    }
}
