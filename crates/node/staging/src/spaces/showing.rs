//! `mend data ls`, `df`, `getstripe`.

use super::{named, opened};
use crate::failure::{FAILED, Failure, UNREACHABLE};
use crate::report;
use mend_data::space::Entry;
use mend_data::space::catalogue::Node;
use mend_data::space::layout::Layout;
use mend_data::space::target::UNBOUNDED;
use mend_space::descriptor;
use serde_json::json;

/// Lists the spaces that are known here.
pub fn spaces(as_json: bool) -> Result<i32, Failure> {
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for name in descriptor::names()? {
        match descriptor::load(&name) {
            Ok(space) => {
                let targets: Vec<String> = space.targets.iter().map(mend_data::space::Target::name).collect();
                all.push(json!({
                    "name": name, "targets": targets, "stripe": space.striping.size, "count": space.striping.count, "ending": space.ending,
                }));
                let shown = if space.ending { format!("{name} (being removed)") } else { name };
                rows.push(vec![shown, targets.len().to_string(), report::size(space.striping.size)]);
            }
            Err(error) => drop(Failure::from(error).report()),
        }
    }
    if as_json {
        report::json(&all)?;
    } else if !rows.is_empty() {
        report::line(mend_report::table(&["space", "targets", "stripe"], &rows).trim_end());
    }
    Ok(0)
}

/// Lists what is at a place.
pub fn list(place: &str, as_json: bool) -> Result<i32, Failure> {
    let (name, path) = named(place)?;
    let client = opened(name)?;
    let names = client.names();
    let found = match names.look(path) {
        None => return Err(Failure::new(format!("{place} is not there"), "`mend data ls NAME:` lists what is", FAILED)),
        Some(Node::Directory) => names.list(path),
        Some(file) => vec![(path.rsplit('/').next().unwrap_or(path).to_owned(), file)],
    };
    let mut rows = Vec::new();
    let mut all = Vec::new();
    let ledgers = super::ledger_file::all(client.space.name.as_str(), &client.space.id);
    let row = |size: String, targets: String, away: bool, name: String| match ledgers[..] {
        [] => vec![size, targets, name],
        _ => vec![size, targets, if away { "yes".to_owned() } else { String::new() }, name],
    };
    let written = |node: &Node<'_>| if let Node::File(entry) = node { entry.written().map(|_| (*entry).clone()) } else { None };
    let written: Vec<Entry> = found.iter().filter_map(|(_, node)| written(node)).collect();
    let mut shapes = client.shapes(&written).into_iter();
    let mut lost = Vec::new();
    for (name, node) in found {
        let Node::File(entry) = node else {
            all.push(json!({ "name": name, "directory": true }));
            rows.push(row(String::new(), String::new(), false, format!("{name}/")));
            continue;
        };
        if let Some(file) = entry.written() {
            let shape = shapes.next().and_then(|shape| shape.map_err(|fault| lost.push((entry.path.clone(), fault))).ok());
            let away =
                shape.is_some_and(|(size, changed_ns)| ledgers.iter().any(|ledger| ledger.has(&entry.path, &entry.id, size, changed_ns)));
            let one = if file.has_one_copy() { " (1 copy)" } else { "" };
            let size = shape.map(|(size, _)| size);
            let shown = size.map_or_else(|| "lost".to_owned(), report::size);
            rows.push(row(shown, file.objects.len().to_string(), away, format!("{name}{one}")));
            all.push(
                json!({ "name": name, "directory": false, "size": size, "lost": size.is_none(), "targets": file.objects.len(), "written": true, "away": away, "sources": [],
                "copies": if file.has_one_copy() { 1 } else { 2 } }),
            );
            continue;
        }
        let Some(file) = entry.file() else { continue };
        let sources: Vec<&str> = file.sources.iter().map(|source| source.uri.as_str()).collect();
        let copied = file.replicated_bytes();
        let copies = match file.without_replica().len() {
            _ if file.replicas.is_empty() => String::new(),
            0 => " (2 copies)".to_owned(),
            _ => format!(" ({} of it in 2 copies)", report::size(copied)),
        };
        rows.push(row(report::size(file.size), file.targets.len().to_string(), false, format!("{name}{copies}")));
        all.push(json!({
            "name": name, "directory": false, "size": file.size, "targets": file.targets.len(), "sources": sources,
            "copies": if file.replicas.is_empty() { 1 } else { 2 }, "copied": copied,
        }));
    }
    if as_json {
        report::json(&all)?;
    } else if !rows.is_empty() {
        let heading: &[&str] = if ledgers.is_empty() { &["size", "targets", "name"] } else { &["size", "targets", "away", "name"] };
        report::line(mend_report::table(heading, &rows).trim_end());
    }
    let others = lost.len().saturating_sub(1);
    let Some((path, fault)) = lost.into_iter().next() else { return Ok(0) };
    let more = if others > 0 { format!(" (and {} more)", report::files(others as u64)) } else { String::new() };
    Err(Failure { what: format!("{name}:{path} cannot be read{more}: {fault}"), ..fault.into() })
}

/// Shows how much room the targets have.
pub fn room(name: &str, as_json: bool) -> Result<i32, Failure> {
    let name = name.trim_end_matches(':');
    let client = opened(name)?;
    let mut rows = Vec::new();
    let mut all = Vec::new();
    let mut lost = false;
    for (target, room) in client.space.targets.iter().zip(client.rooms()) {
        let target = target.name();
        match room {
            Ok(room) => {
                // A bucket has no size.
                let bounded = room.total < UNBOUNDED;
                let shown = |bytes: u64| if bounded { report::size(bytes) } else { "-".to_owned() };
                rows.push(vec![target.clone(), shown(room.total), shown(room.free), report::size(room.used)]);
                let told = |bytes: u64| bounded.then_some(bytes);
                all.push(json!({ "target": target, "size": told(room.total), "free": told(room.free), "used": room.used }));
            }
            Err(fault) => {
                lost = true;
                rows.push(vec![target.clone(), "lost".to_owned(), String::new(), String::new()]);
                all.push(json!({ "target": target, "lost": fault.to_string() }));
            }
        }
    }
    let (files, bytes) = client.names().total();
    let copied: u64 = client.replicated().iter().sum();
    if as_json {
        report::json(&json!({ "files": files, "bytes": bytes, "copied": copied, "copies": client.space.copies, "targets": all }))?;
    } else {
        report::line(mend_report::table(&["target", "size", "free", "used"], &rows).trim_end());
        let copies = if copied > 0 { format!(", and {} in second copies", report::size(copied)) } else { String::new() };
        report::line(&format!("{files} file{}, {} staged{copies}", if files == 1 { "" } else { "s" }, report::size(bytes)));
        if client.space.copies == 1 {
            report::line("what ranks write is in one copy: it is lost with its target");
        }
    }
    Ok(if lost { UNREACHABLE } else { 0 })
}

/// Shows where a file is, or where files of a directory will be.
pub fn stripes(place: &str, as_json: bool) -> Result<i32, Failure> {
    let (name, path) = named(place)?;
    let client = opened(name)?;
    let names = client.names();
    let target = |at: &u16| client.space.targets.get(usize::from(*at)).map(mend_data::space::Target::name).unwrap_or_default();
    match names.look(path) {
        None => Err(Failure::new(format!("{place} is not there"), "`mend data ls NAME:` lists what is", FAILED)),
        Some(Node::Directory) => {
            let striping = names.striping(&format!("{path}/."), client.space.striping);
            let count = if striping.count == 0 { client.targets() } else { usize::from(striping.count) };
            if as_json {
                report::json(&json!({ "directory": true, "stripe": striping.size, "count": count }))?;
            } else {
                report::line(&format!(
                    "new files: stripes of {} on {count} target{}",
                    report::size(striping.size),
                    if count == 1 { "" } else { "s" }
                ));
            }
            Ok(0)
        }
        Some(Node::File(entry)) => {
            if let Some(file) = entry.written() {
                let copies: Vec<Vec<String>> = (0..file.objects.len() as u16)
                    .zip(&file.objects)
                    .map(|(at, copies)| if file.whole(at).len() == 1 && file.filling.is_empty() { &copies[..1] } else { &copies[..] })
                    .map(|copies| copies.iter().map(target).collect())
                    .collect();
                let lacking: Vec<u16> = file.filling.clone();
                if as_json {
                    report::json(
                        &json!({ "directory": false, "written": true, "stripe": file.stripe, "objects": copies, "filling": lacking }),
                    )?;
                } else {
                    let one = file.has_one_copy();
                    let titles = if one { &["target"][..] } else { &["target", "second copy"] };
                    let rows: Vec<Vec<String>> = copies.into_iter().map(|copies| copies.into_iter().take(titles.len()).collect()).collect();
                    report::line(mend_report::table(titles, &rows).trim_end());
                    let copy = if one { ", in one copy, which goes with its target" } else { "" };
                    report::line(&format!("stripes of {}; ranks write it{copy}", report::size(file.stripe)));
                }
                return Ok(0);
            }
            let Some(file) = entry.file() else { return Ok(0) };
            let layout = Layout::of(file);
            let second = |position: usize| file.replica(position).map(|at| target(&at));
            let objects: Vec<(String, u64, Option<String>)> = file
                .targets
                .iter()
                .enumerate()
                .map(|(position, at)| (target(at), layout.object_length(position), second(position)))
                .collect();
            let keepers: Vec<String> = file.keepers.iter().map(target).collect();
            if as_json {
                let object = |(target, bytes, second): &(String, u64, Option<String>)| match second {
                    Some(second) => json!({ "target": target, "bytes": bytes, "second": second }),
                    None => json!({ "target": target, "bytes": bytes }),
                };
                let objects: Vec<_> = objects.iter().map(object).collect();
                report::json(
                    &json!({ "directory": false, "size": file.size, "stripe": file.stripe, "objects": objects, "keepers": keepers }),
                )?;
            } else {
                let titles = if file.replicas.is_empty() { &["target", "bytes"][..] } else { &["target", "bytes", "second copy"] };
                let row = |(target, bytes, second): (String, u64, Option<String>)| {
                    let second = second.unwrap_or_else(|| "to be made".to_owned());
                    [target, report::size(bytes), second].into_iter().take(titles.len()).collect()
                };
                let rows: Vec<Vec<String>> = objects.into_iter().map(row).collect();
                report::line(mend_report::table(titles, &rows).trim_end());
                report::line(&format!("stripes of {}; entry and checksums on {}", report::size(file.stripe), keepers.join(", ")));
            }
            Ok(0)
        }
    }
}
