//! Heals a space that nobody may be using, for the daemon of a node that has targets of it: one process for each space, so that none waits for another.
//!
//! A node that is away for a while is not lost ([`Silences`]). What is lost is healed as [`super::healer`] does it while a job uses the space; the two do no harm to each other. Invariant: it ends with the daemon, whose
//! end of standard input closes then, and what it has started ends with it. Faults assumed: it is killed, and begins anew, when no target has answered yet; the space is removed, or another one gets its name: then it ends.

use super::finding::secret_and_patience;
use super::healer::{Healer, seconds};
use super::names::Client;
use super::writer::Writer;
use crate::descriptor;
use mend_data::request::Watched;
use mend_data::space::healing::{Seen, Silences};
use mend_data::space::{Space, Target};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Looks at all targets of a space now and then, until standard input ends, or the space is no more what it was. These targets are of this node. The exit code.
pub fn watch(name: &str, own: &[u16]) -> i32 {
    std::thread::spawn(|| {
        // The daemon holds the other end, and says nothing. A process that heals ends with this one.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match descriptor::usable(name).map_err(|error| mend_report::with_causes(&error)).and_then(|space| look_on(space, own)) {
        Ok(()) => 0,
        Err(why) => {
            mend_report::tell!("mend data: {name}: what is lost is not looked for: {why}");
            1
        }
    }
}

fn look_on(space: Space, own: &[u16]) -> Result<(), String> {
    let (pace_s, lost_s) = (seconds(&mend_settings::SPACE_WATCH)?, seconds(&mend_settings::SPACE_LOST)?);
    if pace_s == 0 {
        return Ok(());
    }
    let (secret, patience) = secret_and_patience().map_err(|(why, _)| why)?;
    let client = Arc::new(Client::new(space, &secret, patience, false).unhedged());
    let mut healer = Healer::new(client.clone(), Arc::new(Writer::new(client.clone(), None).patient()))?;
    let (mut silences, begun) = (Silences::default(), Instant::now());
    // Nodes that are started at the same time do not all look at the same time.
    let mut pause = first_pause(Duration::from_secs(pace_s), mend_wire::random_bytes());
    loop {
        std::thread::sleep(pause);
        if !descriptor::is_still(&client.space) {
            return Ok(());
        }
        let looked = Instant::now();
        let now_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        client.refresh();
        // Targets let go then of what was begun and stands still.
        let _ = client.rooms();
        let seen = client.look();
        // A target in a bucket may be served by this node.
        let is_own = |at: u16| own.contains(&at) || client.space.targets.get(usize::from(at)).is_some_and(Target::is_in_bucket);
        let bad = silences.looked(now_ms, &seen, is_own, pace_s.saturating_mul(2000), lost_s.saturating_mul(1000));
        let silent: BTreeSet<u16> = (0_u16..).zip(&seen).filter(|(_, seen)| **seen == Seen::Silent).map(|(at, _)| at).collect();
        let (lost, away): (BTreeSet<u16>, BTreeSet<u16>) = silent.into_iter().partition(|at| bad.contains(at));
        let watched = Watched { space: client.space.id, lost, parent: std::process::id() };
        if !silences.is_cut_off() {
            healer.put_names_right(&away);
            healer.heal(client.used(bad), &away, None, Some(watched.clone()));
            // What is away may have what is to be copied, and waits with it.
            if away.is_empty() {
                healer.copy_when_due(Some(watched));
            }
        }
        client.rest();
        pause = Duration::from_secs(pace_s).saturating_sub(looked.elapsed()).max(LEAST_PAUSE);
    }
}

/// Between two looks at least: those of a space whose targets answer late leave them time.
const LEAST_PAUSE: Duration = Duration::from_millis(500);

/// Until the first look: some part of the time between two.
fn first_pause(pace: Duration, random: [u8; 4]) -> Duration {
    pace.mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX))
}
