//! `mend data replicate`: second copies of files in a data space, and what makes those again that were lost.
//!
//! Each file has the turn of the space for itself, so that what heals need not wait for all of them. Faults assumed: it is killed at any moment; repeated, it goes on with what is not there yet.

use super::listener::Listener;
use super::turn::Turn;
use super::{is_as_seen, named, opened, shown};
use crate::failure::{BAD_VALUE, FAILED, Failure, report_all};
use crate::report;
use mend_data::request::Watched;
use mend_data::space::{Entry, File, Id};
use mend_messages::space_report::{Healed, HealingFault};
use mend_space::Fault;
use mend_space::client::{Client, Copying, TargetCapacity};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::block_in_place;

/// Threads that copy the pieces of a file.
const THREADS: usize = 4;

/// `mend data replicate`; its exit code.
pub async fn replicate(places: &[String], remove: bool, as_json: bool) -> Result<i32, Failure> {
    let mut all = Vec::new();
    let mut code = 0;
    for place in places {
        let (name, path) = named(place)?;
        let client = block_in_place(|| opened(name))?;
        let files = files(&client, place, path)?;
        let (mut changed, mut bytes, mut already, mut failed) = (0_u64, 0, 0_u64, 0_u64);
        for entry in files {
            let done = if remove { self::remove(&client, &entry.id).await } else { copy(&client, &entry.id, plain).await };
            match done {
                Ok(Some(copied)) => (changed, bytes) = (changed + 1, bytes + copied),
                Ok(None) => already += 1,
                Err(failure) => {
                    failed += 1;
                    code = failure.report();
                }
            }
        }
        if !as_json {
            let done = if remove { "removed" } else { "made" };
            let rest = [(already, if remove { "without them already" } else { "with them already" }), (failed, "not done")];
            let rest: String = rest.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} {what}")).collect();
            report::line(&format!(
                "{}: second copies of {} {done} ({}){rest}",
                place.trim_end_matches(':'),
                report::files(changed),
                report::size(bytes)
            ));
        }
        all.push(json!({ "place": place, "files": changed, "bytes": bytes, "already": already, "failed": failed }));
    }
    if as_json {
        report::json(&all)?;
    }
    Ok(code)
}

/// Why a place gets no second copies where ranks write the file that is there.
pub fn written_by_ranks(client: &Client, place: &str, path: &str) -> Option<String> {
    let names = client.names();
    let all = names.files(path);
    let [one] = all[..] else { return None };
    (one.path == path && one.written().is_some()).then(|| match client.space.copies {
        1 => format!("{place} has one copy, as all that ranks write into this space"),
        _ => format!("{place} has two copies anyway: ranks write it"),
    })
}

/// The staged files at a place.
pub fn files(client: &Client, place: &str, path: &str) -> Result<Vec<Entry>, Failure> {
    if client.names().look(path).is_none() {
        return Err(Failure::new(format!("{place} is not there"), "`mend data ls NAME:` lists what is", FAILED));
    }
    if let Some(why) = written_by_ranks(client, place, path) {
        return Err(Failure::new(why, "name files that were staged", BAD_VALUE));
    }
    Ok(client.names().files(path).into_iter().filter(|entry| entry.file().is_some()).cloned().collect())
}

/// All the room that a target has.
pub fn plain(_: u16, room: &TargetCapacity) -> u64 {
    room.free
}

/// A file as it is now; `None` if it was removed meanwhile.
fn now(client: &Client, id: &Id) -> Option<(Entry, File)> {
    let entry = client.names().entry(id).cloned()?;
    let file = entry.file().cloned()?;
    Some((entry, file))
}

/// Makes what a file lacks of second copies. How many bytes that was; `None` if it lacks nothing.
pub async fn copy(client: &Arc<Client>, id: &Id, free: impl Fn(u16, &TargetCapacity) -> u64) -> Result<Option<u64>, Failure> {
    let lacks = |file: &File| file.replicas.is_empty() || !file.without_replica().is_empty();
    if now(client, id).is_none_or(|(_, file)| !lacks(&file)) {
        return Ok(None);
    }
    let _turn = Turn::wait(client).await?;
    block_in_place(|| {
        client.refresh();
        let Some((entry, _)) = now(client, id).filter(|(_, file)| lacks(file)) else { return Ok(None) };
        let what = "its second copy is not made";
        let copying = Copying::begin(client, &entry, free).map_err(|fault| {
            let hint = match client.targets() {
                1 => "a second copy is on another target: make a space with two at least (`mend data create NAME --nodes a,b`)",
                _ => "remove files (`mend data rm`) or second copies of others (`mend data replicate --remove`)",
            };
            Failure { hint: hint.to_owned(), ..told(client, &entry, what, fault) }
        })?;
        copying.run(THREADS).map(Some).map_err(|fault| told(client, &entry, what, fault))
    })
}

/// Removes the second copies of a file. The bytes that they had; `None` if it has none.
pub async fn remove(client: &Arc<Client>, id: &Id) -> Result<Option<u64>, Failure> {
    if now(client, id).is_none_or(|(_, file)| file.replicas.is_empty()) {
        return Ok(None);
    }
    let _turn = Turn::wait(client).await?;
    block_in_place(|| {
        client.refresh();
        let Some((entry, _)) = now(client, id).filter(|(_, file)| !file.replicas.is_empty()) else { return Ok(None) };
        client.remove_copies(&entry).map(Some).map_err(|fault| told(client, &entry, "its second copy stays", fault))
    })
}

/// What was not done with a file, and why.
fn told(client: &Client, entry: &Entry, what: &str, fault: Fault) -> Failure {
    let name = shown(client, entry);
    let failure = Failure::from(fault);
    let hint = match failure.hint.as_str() {
        "" => format!("`mend data check {name}` shows what is lost, `mend data repair {name}` makes it whole"),
        hint => hint.to_owned(),
    };
    Failure { what: format!("{name}: {what}: {}", failure.what), hint, ..failure }
}

/// Makes second copies again that were lost, at a path or below it. How many bytes of each file that were, and what failed.
pub async fn copy_again(client: &Arc<Client>, path: &str, listener: Listener) -> Result<(Vec<(String, u64)>, Vec<Failure>), Failure> {
    let lacking = |entry: &&Entry| entry.file().is_some_and(|file| !file.without_replica().is_empty());
    let ids: Vec<(Id, String)> =
        client.names().files(path).into_iter().filter(lacking).map(|entry| (entry.id, entry.path.clone())).collect();
    let (mut made, mut failures) = (Vec::new(), Vec::new());
    for (id, path) in ids {
        let begun = Instant::now();
        match copy(client, &id, plain).await {
            Ok(Some(copied)) => {
                made.push((format!("{}:{path}", client.space.name), copied));
                listener.healed(begun, || Healed { file: path, copied, ..Healed::default() });
            }
            Ok(None) => {}
            Err(failure) => {
                listener.not_healed(&path, HealingFault::Other { error: failure.what.clone(), hint: failure.hint.clone() });
                failures.push(failure);
            }
        }
    }
    Ok((made, failures))
}

/// The same because of what was seen of a space while a job uses it. The exit code.
pub async fn by_itself(name: &str, watched: Option<&Watched>) -> Result<i32, Failure> {
    if watched.is_some_and(|watched| !is_as_seen(name, watched)) {
        return Ok(0);
    }
    let client = block_in_place(|| opened(name))?;
    let (made, failures) = copy_again(&client, "", Listener::Daemon).await?;
    for (name, bytes) in made {
        mend_report::tell!("mend data: {name}: its second copy was made again, {bytes} bytes");
    }
    Ok(report_all(&failures).unwrap_or(0))
}
