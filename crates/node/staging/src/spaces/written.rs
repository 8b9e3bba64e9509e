//! `mend data check` and `repair` of files that ranks write: they have no source, and two copies, or one.

use super::listener::Listener;
use super::{shown, target};
use crate::failure::{DAMAGED, FAILED, Failure, UNREACHABLE};
use crate::report;
use mend_data::space::BLOCK;
use mend_data::space::written::Written;
use mend_messages::space_report::{Healed, HealingFault};
use mend_space::client::{BadCopies, Client, ExaminedCopies, Writer};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// What is wrong with a file, for people.
pub(super) fn wrong(client: &Client, bad: &BadCopies) -> String {
    let targets = |of: &BTreeSet<u16>| of.iter().map(|at| target(client, *at)).collect::<Vec<_>>().join(", ");
    let one = bad.entry.written().is_some_and(Written::has_one_copy);
    let copies = if one { "the only copy" } else { "both copies" };
    let mut said = Vec::new();
    if bad.gone_objects > 0 {
        let verb = if one { "is" } else { "are" };
        said.push(format!("{copies} of {} of its objects {verb} lost, from {}", bad.gone_objects, targets(&bad.lost)));
    } else if !bad.lost.is_empty() {
        said.push(format!("one copy is lost, from {}; the other one is there", targets(&bad.lost)));
    }
    if bad.gone_blocks > 0 {
        said.push(format!("{} are damaged in {copies}", report::size(bad.gone_blocks * BLOCK)));
    }
    if !bad.damaged.is_empty() {
        let on: BTreeSet<u16> = bad.damaged.iter().map(|block| block.target).collect();
        let size = report::size(bad.damaged.len() as u64 * BLOCK);
        said.push(format!("{size} are damaged on {}; the other copy has them", targets(&on)));
    }
    if !bad.different.is_empty() {
        said.push(format!("its copies differ: ranks read the one that is not on {}", targets(&bad.different)));
    }
    if bad.unfinished {
        said.push("its second copy is not whole yet".to_owned());
    }
    said.join("; ")
}

fn details(client: &Client, bad: &BadCopies) -> Value {
    json!({
        "name": shown(client, &bad.entry),
        "lost": bad.gone_blocks * BLOCK,
        "lost_objects": bad.gone_objects,
        "targets": bad.blamed().iter().map(|at| target(client, *at)).collect::<Vec<_>>(),
    })
}

/// Says what is wrong with files; details of them.
pub(super) fn tell(client: &Client, examined: &ExaminedCopies, as_json: bool) -> Vec<Value> {
    for bad in examined.found.iter().filter(|_| !as_json) {
        report::line(&format!("{}: {}", shown(client, &bad.entry), wrong(client, bad)));
    }
    examined.found.iter().map(|bad| details(client, bad)).collect()
}

/// Makes copies whole again, as far as one of the two is. What was repaired, and what could not be.
pub(super) fn heal(client: &Arc<Client>, examined: &ExaminedCopies, listener: Listener) -> (Vec<Value>, Vec<Failure>) {
    let writer = Writer::new(client.clone(), None);
    let (mut healed, mut failures) = (Vec::new(), Vec::new());
    for bad in &examined.found {
        let (name, wrong, begun) = (shown(client, &bad.entry), wrong(client, bad), Instant::now());
        // If that cannot be found out now, it is what it seems. Only where somebody asks for it: a target that lost what it had looks the same.
        if listener != Listener::Daemon && matches!(writer.end_making(bad), Ok(true)) {
            if listener == Listener::User {
                report::line(&format!("{name}: repaired: nobody ended making it, and it is empty"));
            }
            healed.push(json!({ "name": name, "lost": 0, "copied": 0 }));
            continue;
        }
        let lacked: Vec<String> = bad.blamed().iter().map(|at| target(client, *at)).collect();
        let not_healed = |why| listener.not_healed(&bad.entry.path, why);
        let mended = writer.mend(bad);
        if bad.is_gone() {
            let hint = format!(
                "if a target does not answer, start mendd on its node; else have the job write the file again, or remove it (`mend data rm {name}`)"
            );
            not_healed(HealingFault::NoCopy { lacked });
            failures.push(Failure::new(format!("{name}: {wrong}"), hint, DAMAGED));
            continue;
        }
        match mended {
            Ok(copied) => {
                if listener == Listener::User {
                    report::line(&format!("{name}: repaired, copied {}: {wrong}", report::size(copied)));
                }
                listener.healed(begun, || Healed { file: bad.entry.path.clone(), lacked, copied, ..Healed::default() });
                healed.push(json!({ "name": name, "lost": 0, "copied": copied }));
            }
            Err(refused) => {
                not_healed(HealingFault::Target { error: refused.to_string() });
                failures.push(Failure::new(
                    format!("{name}: {wrong}; {refused}"),
                    "repeat the command when the targets answer, or have room",
                    FAILED,
                ));
            }
        }
    }
    (healed, failures)
}

/// Repairs what was found damaged while a job uses the space. Copies that are lost its mounts make again themselves.
pub(super) fn heal_damaged(client: &Arc<Client>) -> Result<(Vec<Value>, Vec<Failure>), Failure> {
    let mut examined = client.examine_copies("", true)?;
    examined.found.retain(|bad| !bad.damaged.is_empty() || !bad.different.is_empty() || bad.gone_blocks > 0);
    Ok(heal(client, &examined, Listener::Daemon))
}

/// What cannot be had of files that ranks wrote.
pub(super) fn nowhere(client: &Client) -> Result<Vec<Failure>, Failure> {
    let examined = client.examine_copies("", false)?;
    let gone = examined.found.iter().filter(|bad| bad.is_gone()).map(|bad| {
        let name = shown(client, &bad.entry);
        let what = format!("{name} cannot be had: {}", wrong(client, bad));
        Failure::new(what, format!("bring one of the targets back, or remove the file (`mend data rm {name}`)"), UNREACHABLE)
    });
    Ok(gone.collect())
}
