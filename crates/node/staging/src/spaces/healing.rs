//! `mend data check` and `repair` of files in a data space, what heals it by itself, and what is told before a job's ranks start.
//!
//! ```text
//! targets ──lengths, checksums──► examined ──lost ranges──► sources, several at once ──right──► targets that answer ──► new map
//! ```
//! One heals a space at a time, or bytes would be fetched twice. Faults assumed: it is killed at any moment (the file is where it was, or where it is to be); targets and sources die
//! meanwhile; a source holds something else now.

use super::listener::Listener;
use super::turn::Turn;
use super::{conflicts, copying, is_as_seen, named, opened, shown, target, written};
use crate::failure::{DAMAGED, FAILED, Failure, UNREACHABLE, report_all};
use crate::fetch::{Fetcher, Origins, Sink, Taken};
use crate::mirrors::{blame, open, told};
use crate::report;
use mend_data::ranges;
use mend_data::record::Source;
use mend_data::request::{PathBytes, Watched};
use mend_data::space::layout::Layout;
use mend_data::space::target::Request;
use mend_data::space::{BLOCK, Entry, File, Id, Kind, SUMS_OF_PAGE, block_sum, healing, is_path, split};
use mend_messages::space_report::{Healed, HealingFault, SourceFault};
use mend_space::Fault;
use mend_space::client::{Client, Examined, Found};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// True if this is a place in a data space. A local file of such a name is `./NAME:PATH`.
fn is_of_a_space(path: &PathBytes) -> bool {
    let Some((_, inside)) = std::str::from_utf8(path).ok().and_then(split) else { return false };
    (inside.is_empty() || is_path(inside)) && !std::path::Path::new(&*String::from_utf8_lossy(path)).exists()
}

/// For verbs that are of files alone.
///
/// # Errors
/// It is a place in a data space; `instead` says what helps.
pub fn not_of_a_space(path: &PathBytes, instead: &str) -> Result<(), Failure> {
    if !is_of_a_space(path) {
        return Ok(());
    }
    Err(Failure::bad_value(format!("{} is a place in a data space", String::from_utf8_lossy(path)), instead))
}

/// The places in data spaces, and the others.
///
/// # Errors
/// Both are there and JSON is wanted, which would be two documents.
pub fn divided(paths: Vec<PathBytes>, as_json: bool) -> Result<(Vec<PathBytes>, Vec<PathBytes>), Failure> {
    let (places, files): (Vec<_>, Vec<_>) = paths.into_iter().partition(is_of_a_space);
    if as_json && !places.is_empty() && !files.is_empty() {
        return Err(Failure::bad_value("with --json, places in data spaces and files do not go together", "give them to a command each"));
    }
    Ok((places, files))
}

fn places(paths: &[PathBytes]) -> Result<Vec<(Arc<Client>, String)>, Failure> {
    let one = |path: &PathBytes| {
        let text = String::from_utf8_lossy(path).into_owned();
        let (name, path) = named(&text)?;
        let client = opened(name)?;
        if client.names().look(path).is_none() {
            return Err(Failure::new(format!("{text} is not there"), "`mend data ls NAME:` lists what is", FAILED));
        }
        Ok((client, path.to_owned()))
    };
    paths.iter().map(one).collect()
}

/// Where something is wrong with a file, and what stands in the way.
fn where_lost(client: &Client, examined: &Examined, found: &Found) -> String {
    let one = |at: &u16| match examined.rooms.get(usize::from(*at)) {
        Some(Err(fault)) => fault.to_string(),
        _ if found.crowded == Some(*at) => {
            format!("target {} keeps its checksums on the node that has their other copy", target(client, *at))
        }
        _ => format!("target {} lacks some of it, or has it damaged", target(client, *at)),
    };
    found.blamed.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// `mend data check NAME:PATH`; its exit code.
pub fn check(paths: &[PathBytes], as_json: bool) -> Result<i32, Failure> {
    let mut all = Vec::new();
    let mut bad = false;
    for (client, path) in places(paths)? {
        let examined = client.examine(&path, true)?;
        let mut details = Vec::new();
        for found in &examined.found {
            let (name, lost) = (shown(&client, &found.entry), ranges::total(&found.missing));
            details.push(json!({
                "name": name,
                "lost": lost,
                "single": found.single,
                "targets": found.blamed.iter().map(|at| target(&client, *at)).collect::<Vec<_>>(),
            }));
            if !as_json {
                let why = where_lost(&client, &examined, found);
                let why = if why.is_empty() { String::new() } else { format!(": {why}") };
                let single = format!("{name}: {} without a second copy", report::size(found.single));
                let lost = format!("{name}: {} lost", report::size(lost));
                report::line(&(if found.missing.is_empty() && found.single > 0 { single } else { lost } + &why));
            }
        }
        let by_ranks = client.examine_copies(&path, true)?;
        details.extend(written::tell(&client, &by_ranks, as_json));
        let twins = conflicts::tell(&client, &path, as_json);
        bad |= !details.is_empty() || !twins.hidden.is_empty();
        let (files, bytes) = (examined.files + by_ranks.files, examined.bytes + by_ranks.bytes);
        if !as_json {
            report::line(&format!("{} ({}): {} whole", report::files(files), report::size(bytes), files - details.len() as u64));
        }
        all.push(json!({
            "space": client.space.name, "files": files, "bytes": bytes, "damaged": details, "hidden": twins.hidden, "conflicts": twins.kept,
        }));
    }
    if as_json {
        report::json(&all)?;
    }
    Ok(if bad { DAMAGED } else { 0 })
}

/// `mend data repair NAME:PATH`; its exit code.
pub async fn repair(paths: &[PathBytes], as_json: bool, fetcher: &Fetcher) -> Result<i32, Failure> {
    let mut all = Vec::new();
    let mut code = 0;
    for (client, path) in tokio::task::block_in_place(|| places(paths))? {
        let turn = Turn::wait(&client).await?;
        let listener = if as_json { Listener::Nobody } else { Listener::User };
        tokio::task::block_in_place(|| client.refresh());
        let (examined, mut healed, mut failures) = heal(&client, &path, true, None, fetcher, listener).await?;
        let by_ranks = tokio::task::block_in_place(|| client.examine_copies(&path, true))?;
        let (copied, not_copied) = tokio::task::block_in_place(|| written::heal(&client, &by_ranks, listener));
        let (kept, not_kept) = tokio::task::block_in_place(|| conflicts::part(&client, &path, !as_json));
        drop(turn);
        healed.extend(kept);
        failures.extend(not_kept);
        healed.extend(copied);
        failures.extend(not_copied);
        failures.extend(copying::copy_again(&client, &path, Listener::Nobody).await?.1);
        let (files, bytes) = (examined.files + by_ranks.files, examined.bytes + by_ranks.bytes);
        code = report_all(&failures).unwrap_or(code);
        if !as_json {
            let bad = failures.len();
            let still = if bad > 0 { format!(", {bad} not repaired") } else { String::new() };
            report::line(&format!("{} ({}): {} repaired{still}", report::files(files), report::size(bytes), healed.len()));
        }
        all.push(json!({ "space": client.space.name, "files": files, "repaired": healed, "failed": failures.len() }));
    }
    if as_json {
        report::json(&all)?;
    }
    Ok(code)
}

/// Heals a space because of what was seen of it, and says on standard output what it has done: to the process that serves the mounts of a node, which has it do so. The exit code.
pub async fn by_itself(name: &str, verify_after: Option<u32>, watched: Option<&Watched>, fetcher: &Fetcher) -> Result<i32, Failure> {
    let healed = heal_space(name, verify_after, watched, fetcher).await;
    healed.inspect_err(|failure| {
        let why = HealingFault::Other { error: failure.what.clone(), hint: failure.hint.clone() };
        Listener::Daemon.not_healed("", why);
    })
}

async fn heal_space(name: &str, verify_after: Option<u32>, watched: Option<&Watched>, fetcher: &Fetcher) -> Result<i32, Failure> {
    if watched.is_some_and(|watched| !is_as_seen(name, watched)) {
        return Ok(0);
    }
    let client = tokio::task::block_in_place(|| opened(name))?;
    let Some(_turn) = Turn::take(&client, verify_after)? else { return Ok(0) };
    // Another one may have done it just now.
    tokio::task::block_in_place(|| client.refresh());
    let (_, healed, mut failures) = heal(&client, "", verify_after.is_some(), watched, fetcher, Listener::Daemon).await?;
    if verify_after.is_some() {
        let (copied, not_copied) = tokio::task::block_in_place(|| written::heal_damaged(&client))?;
        for one in copied {
            mend_report::tell!(
                "mend data: {}: healed, {} bytes came from its other copy",
                one["name"].as_str().unwrap_or_default(),
                one["copied"]
            );
        }
        failures.extend(not_copied);
    }
    for one in healed {
        let (name, fetched) = (one["name"].as_str().unwrap_or_default(), &one["fetched"]);
        mend_report::tell!("mend data: {name}: healed, {fetched} bytes came from its source");
    }
    Ok(report_all(&failures).unwrap_or(0))
}

/// Says before a job's ranks start which files of these spaces cannot be had: something of them is lost, and so is their source. The exit code.
pub async fn ready(names: &[String], fetcher: &Fetcher) -> Result<i32, Failure> {
    let mut code = 0;
    for name in names {
        let client = tokio::task::block_in_place(|| opened(name))?;
        let nowhere = tokio::task::block_in_place(|| written::nowhere(&client))?;
        code = report_all(&nowhere).unwrap_or(code);
        let examined = tokio::task::block_in_place(|| client.examine("", false))?;
        for found in examined.found.iter().filter(|found| !found.missing.is_empty()) {
            let Some(file) = found.entry.file() else { continue };
            let mut sources = file.sources.clone();
            let blames: Vec<Option<String>> =
                open(&mut sources, fetcher, true).await.iter().map(|origin| origin.as_ref().err().map(blame)).collect();
            if blames.iter().all(Option::is_some) {
                let lost = where_lost(&client, &examined, found);
                let what = format!("{} cannot be had: {lost}; {}", shown(&client, &found.entry), no_source(&sources, &blames));
                let hint = format!(
                    "bring the target or the source back; or stage it from elsewhere (`mend data stage --force URI {0}`), or remove it (`mend data rm {0}`)",
                    shown(&client, &found.entry)
                );
                code = Failure::new(what, hint, UNREACHABLE).report();
            }
        }
    }
    Ok(code)
}

fn no_source(sources: &[Source], blames: &[Option<String>]) -> String {
    if sources.is_empty() { "no source of it is known".to_owned() } else { format!("and not from {}", told(sources, blames)) }
}

async fn heal(
    client: &Arc<Client>,
    path: &str,
    deep: bool,
    watched: Option<&Watched>,
    fetcher: &Fetcher,
    listener: Listener,
) -> Result<(Examined, Vec<Value>, Vec<Failure>), Failure> {
    let is_kept = |at: u16| watched.is_some_and(|watched| !watched.lost.contains(&at));
    let examined = tokio::task::block_in_place(|| client.examine_but(path, deep, is_kept))?;
    let (mut healed, mut failures) = (Vec::new(), Vec::new());
    for found in examined.found.iter().filter(|found| !found.blamed.is_empty()) {
        if watched.is_some_and(|watched| !is_as_seen(&client.space.name, watched)) {
            break;
        }
        let (name, begun) = (shown(client, &found.entry), Instant::now());
        match one(client, &examined, found, fetcher).await {
            Ok(whole) => {
                if listener == Listener::User {
                    tell_user(client, &name, found, whole.fetched);
                }
                listener.healed(begun, || Healed { lacked: lacked(client, found), ..whole.clone() });
                healed.push(json!({ "name": name, "lost": ranges::total(&found.missing), "fetched": whole.fetched }));
            }
            // Somebody has begun to remove the space.
            Err(_) if watched.is_some_and(|watched| !is_as_seen(&client.space.name, watched)) => break,
            Err(Unhealed { why, failure }) => {
                listener.not_healed(&found.entry.path, why);
                failures.push(failure);
            }
        }
    }
    Ok((examined, healed, failures))
}

/// Targets that have lost something of a file, or have it damaged.
fn lacked(client: &Client, found: &Found) -> Vec<String> {
    found.blamed.iter().filter(|at| found.crowded != Some(**at)).map(|at| target(client, *at)).collect()
}

fn tell_user(client: &Client, name: &str, found: &Found, fetched: u64) {
    let lacked = lacked(client, found);
    let why = match lacked.is_empty() {
        true => "its checksums are on two nodes now".to_owned(),
        false => format!("{} lacked it", lacked.join(", ")),
    };
    let how = match found.single {
        0 => format!("fetched {}", report::size(fetched)),
        single => format!("fetched {}, {} are left in one copy", report::size(fetched), report::size(single)),
    };
    report::line(&format!("{name}: repaired, {how}: {why}"));
}

/// Why a file is not whole: as a job's journal has it, and as a user is told.
struct Unhealed {
    why: HealingFault,
    failure: Failure,
}

impl Unhealed {
    fn by_target(fault: Fault) -> Self {
        Self { why: HealingFault::Target { error: fault.to_string() }, failure: fault.into() }
    }
}

/// Lost blocks on their way to where they are from now on.
struct Moving {
    client: Arc<Client>,
    entry: Entry,
    file: File,
    layout: Layout,
    sums: Vec<Vec<u8>>,
    /// Those that are not there yet.
    wanted: Mutex<BTreeSet<u64>>,
    fetched: AtomicU64,
    /// Bytes that came from other copies.
    copied: AtomicU64,
}

impl Moving {
    fn is_right(&self, block: u64, bytes: &[u8]) -> bool {
        let (page, from) = ((block / SUMS_OF_PAGE) as usize, (block % SUMS_OF_PAGE) as usize * 16);
        let sum = self.sums.get(page).and_then(|page| page.get(from..from + 16));
        sum == Some(&block_sum(&self.entry.id, block, bytes).to_le_bytes()[..])
    }

    /// What is not there yet.
    fn missing(&self) -> Vec<ranges::Range> {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        ranges::merged(wanted.iter().map(|block| self.layout.block(*block)).collect())
    }

    /// Both copies of an object may be damaged, in different blocks.
    fn take_from_copies(&self, before: &File, examined: &Examined) {
        let wanted: Vec<u64> = self.wanted.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        for block in wanted {
            let (position, offset) = self.layout.place(block * BLOCK);
            let length = self.layout.block(block).length as u32;
            let read = Request::Read { file: self.entry.id, position: position as u16, offset, length };
            let answers = |at: &u16| examined.rooms.get(usize::from(*at)).is_some_and(Result::is_ok);
            let given = before.copies(position).filter(answers).find_map(|at| {
                let (_, bytes) = self.client.peer(at).and_then(|peer| peer.ask(&read, &[])).ok()?;
                self.is_right(block, &bytes).then_some(bytes)
            });
            // What cannot be written now is tried again with what the source sends.
            if given.is_some_and(|bytes| self.write(block, &bytes).is_ok()) {
                self.copied.fetch_add(u64::from(length), Ordering::Relaxed);
                self.wanted.lock().unwrap_or_else(PoisonError::into_inner).remove(&block);
            }
        }
    }

    fn write(&self, block: u64, bytes: &[u8]) -> io::Result<()> {
        let (position, offset) = self.layout.place(block * BLOCK);
        let write = Request::Write { file: self.entry.id, position: position as u16, offset, length: bytes.len() as u32 };
        self.client.peer(self.file.targets[position]).and_then(|peer| peer.ask(&write, bytes)).map(drop).map_err(io::Error::other)
    }
}

impl Sink for Moving {
    fn wants(&self, block: u64) -> bool {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).contains(&block)
    }

    fn take(&self, block: u64, bytes: &[u8]) -> io::Result<Taken> {
        self.fetched.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if !self.is_right(block, bytes) {
            return Ok(Taken::Wrong(format!("it sent other bytes than were staged, at offset {}", block * BLOCK)));
        }
        self.write(block, bytes)?;
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).remove(&block);
        Ok(Taken::Good)
    }
}

/// Heals one file. What was done.
async fn one(client: &Arc<Client>, examined: &Examined, found: &Found, fetcher: &Fetcher) -> Result<Healed, Unhealed> {
    let (old, name) = (&found.entry, shown(client, &found.entry));
    let Some(before) = old.file() else { return Ok(Healed::default()) };
    let free: Vec<Option<u64>> = examined.rooms.iter().map(|room| room.as_ref().ok().map(|room| room.free)).collect();
    let lives: Vec<Option<Id>> = examined.rooms.iter().map(|room| room.as_ref().ok().map(|room| room.life)).collect();
    let lost = || where_lost(client, examined, found);
    let file = healing::moved(&found.left, &free, |at| examined.away.contains(&at), |at| client.node(at)).map_err(|error| {
        let what = format!("{name}: {}; what is lost has no room elsewhere: {error}", lost());
        let why = HealingFault::NoRoom { lost: ranges::total(&found.missing), error: error.to_string() };
        Unhealed { why, failure: Failure::new(what, "remove files (`mend data rm`)", FAILED) }
    })?;
    let layout = Layout::of(&file);
    let version = if file == *before { old.version } else { old.version.saturating_add(1) };
    let new = Entry { version, kind: Kind::File(file.clone()), ..old.clone() };
    client.enough_are_told(&new, &examined.away).map_err(Unhealed::by_target)?;
    let pages = if found.missing.is_empty() { 0 } else { layout.blocks().div_ceil(SUMS_OF_PAGE) };
    let sums = tokio::task::block_in_place(|| (0..pages).map(|page| client.sums(old, before, page as u32)).collect::<Result<Vec<_>, _>>());
    let sums = sums.map_err(Unhealed::by_target)?;
    let blocks: BTreeSet<u64> = found.missing.iter().flat_map(|range| range.offset / BLOCK..range.end().div_ceil(BLOCK)).collect();
    let positions: BTreeSet<usize> = blocks.iter().map(|block| layout.place(block * BLOCK).0).collect();
    let written: BTreeSet<(u16, u16)> = positions.into_iter().map(|position| (position as u16, file.targets[position])).collect();
    let moving = Moving {
        client: client.clone(),
        entry: new.clone(),
        file,
        layout,
        sums,
        wanted: Mutex::new(blocks),
        fetched: AtomicU64::new(0),
        copied: AtomicU64::new(0),
    };
    let moving = Arc::new(moving);
    if !before.replicas.is_empty() {
        tokio::task::block_in_place(|| moving.take_from_copies(before, examined));
    }
    let missing = moving.missing();
    let mut given = Vec::new();
    if !missing.is_empty() {
        let mut sources = before.sources.clone();
        let origins: Origins = Arc::new(open(&mut sources, fetcher, true).await);
        let fetched = fetcher.fetch_blocks(&origins, before.size, missing, BLOCK, &moving).await;
        let fetched = fetched.map_err(|error| Unhealed {
            why: HealingFault::Target { error: error.to_string() },
            failure: Failure::new(format!("{name}: {error}"), "repeat the command", UNREACHABLE),
        })?;
        if !fetched.lost.is_empty() {
            let hint = "bring the target or the source back, or stage the file from elsewhere with --force";
            let total = ranges::total(&fetched.lost);
            let what = format!("{name}: {} lost: {}; {}", report::size(total), lost(), no_source(&sources, &fetched.blames));
            let blamed = sources.iter().zip(&fetched.blames);
            let fault = |(source, error): (&Source, &Option<String>)| SourceFault { uri: source.uri.clone(), error: error.clone() };
            let why = HealingFault::NoSource { lost: total, lacked: lacked(client, found), sources: blamed.map(fault).collect() };
            return Err(Unhealed { why, failure: Failure::new(what, hint, UNREACHABLE) });
        }
        given.extend(sources.into_iter().zip(fetched.used).filter(|(_, used)| *used).map(|(source, _)| source.uri));
    }
    tokio::task::block_in_place(|| client.settle_moved(old, &new, &written, &lives, &examined.away)).map_err(Unhealed::by_target)?;
    let targets: BTreeSet<u16> = written.iter().map(|(_, at)| *at).collect();
    Ok(Healed {
        file: old.path.clone(),
        fetched: moving.fetched.load(Ordering::Relaxed),
        copied: moving.copied.load(Ordering::Relaxed),
        sources: given,
        targets: targets.into_iter().map(|at| target(client, at)).collect(),
        ..Healed::default()
    })
}
