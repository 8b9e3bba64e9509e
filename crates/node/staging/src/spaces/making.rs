//! `mend data create`, `destroy`, `rm`, `setstripe`.

use super::{client, named, opened};
use crate::failure::{BAD_VALUE, FAILED, Failure, UNREACHABLE};
use crate::report;
use mend_data::space::catalogue::Node;
use mend_data::space::{FORMAT, MAX_TARGETS, Space, Striping, Target, is_name};
use mend_space::{Fault, descriptor};
use std::collections::HashSet;
use std::net::{SocketAddr, ToSocketAddrs};

fn resolved(host: &str, port: u16) -> Result<SocketAddr, Failure> {
    let hint = "name a node as others reach it, on which mendd runs";
    let found = (host, port).to_socket_addrs().map(|mut found| found.next());
    match found {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(Failure::bad_value(format!("{host} has no address"), hint)),
        Err(error) => Err(Failure::bad_value(format!("{host}: {error}"), hint)),
    }
}

/// That files can be spread so over so many targets.
fn can_be_spread(striping: Striping, targets: usize) -> Result<(), Failure> {
    if !striping.is_sound() {
        let hint = "stripes are multiples of 64 KiB, at most 1 GiB: --stripe 1M";
        return Err(Failure::bad_value(format!("files cannot be in stripes of {} bytes", striping.size), hint));
    }
    if usize::from(striping.count) > targets {
        let hint = "name at most as many with --count; 0 is all of them";
        return Err(Failure::bad_value(format!("files cannot be spread over {} targets: there are {targets}", striping.count), hint));
    }
    Ok(())
}

/// Makes a space. If a target cannot be had, what was made of it goes again.
pub fn create(name: &str, targets: Vec<(String, String)>, striping: Striping, copies: usize) -> Result<i32, Failure> {
    if !is_name(name) {
        let hint = "letters, digits, `.`, `_` and `-`, at most 64, no `.` or `-` at the beginning";
        return Err(Failure::bad_value(format!("{name:?} is no name for a data space"), hint));
    }
    if descriptor::load(name).is_ok() {
        return Err(Failure::new(format!("there is a data space {name}"), "`mend data destroy` removes it", FAILED));
    }
    if targets.len() > MAX_TARGETS {
        return Err(Failure::bad_value(format!("{} targets are more than the {MAX_TARGETS} a data space can have", targets.len()), ""));
    }
    can_be_spread(striping, targets.len())?;
    let port = mend_settings::PORT.number().map_err(|error| Failure::bad_value(error.to_string(), "see `mend settings`"))? as u16;
    let mut all = Vec::new();
    for (host, directory) in targets {
        all.push(Target { address: resolved(&host, port)?, host, directory });
    }
    let loopback = all.iter().filter(|target| target.address.ip().is_loopback()).count();
    if loopback > 0 && loopback < all.len() {
        let hint = "name this node as others reach it, not localhost";
        return Err(Failure::bad_value("some targets are on a loopback address, which other nodes cannot reach", hint));
    }
    // Any node can serve what is in a bucket.
    let own = |target: &'_ Target| (!target.is_in_bucket()).then_some(target.address);
    let distinct: HashSet<(Option<SocketAddr>, &str)> = all.iter().map(|target| (own(target), target.directory.as_str())).collect();
    if distinct.len() < all.len() {
        return Err(Failure::bad_value(
            "two targets are the same directory, or the same place in a bucket",
            "a target has a place of its own",
        ));
    }
    let id = mend_wire::random_bytes();
    let space = Space { format: FORMAT, name: name.to_owned(), id, targets: all, striping, copies, job: None, ending: false };
    make(&space)?;
    let count = space.targets.len();
    report::line(&format!("{name}: {count} target{}", if count == 1 { "" } else { "s" }));
    Ok(0)
}

/// The directory of targets for which none is named.
pub fn default_directory(name: &str, memory: bool) -> Result<String, Failure> {
    let base = if memory { "/dev/shm".to_owned() } else { mend_settings::SPACE_DIRECTORY.text() };
    if !base.starts_with('/') {
        return Err(Failure::bad_value(
            format!("{}={base} is no absolute path", mend_settings::SPACE_DIRECTORY.name),
            "see `mend settings`",
        ));
    }
    Ok(mend_data::space::default_directory(&base, name, rustix::process::geteuid().as_raw()))
}

/// Makes the targets of a space, and then describes it.
pub fn make(space: &Space) -> Result<(), Failure> {
    let made = client(space.clone(), true)?;
    let faults: Vec<_> = made.rooms().into_iter().filter_map(Result::err).collect();
    let saved = if faults.is_empty() { descriptor::save(space).map_err(Failure::from) } else { Ok(()) };
    let failed = faults.into_iter().map(Failure::from).chain(saved.err()).next();
    if let Some(failure) = failed {
        // Those that were made are empty. One that does not answer stays as it is.
        let _ = made.end(&|_| {});
        return Err(failure);
    }
    Ok(())
}

/// Ends a space. If a target does not answer, all of it stays, unless this is forced: nothing else knows where the rest is.
pub fn destroy(name: &str, force: bool) -> Result<i32, Failure> {
    let name = name.trim_end_matches(':');
    let space = descriptor::load(name)?;
    // Its removal was interrupted: a target that has left, or whose directory is away, is named at the end, and the others go.
    let goes_on = space.ending;
    let client = client(space, false)?;
    let hint = format!("again when all its targets answer; `mend data destroy --force {name}` forgets it as it is");
    if !force && !goes_on {
        let faults: Vec<Fault> = client.rooms().into_iter().filter_map(Result::err).collect();
        faults.iter().for_each(|fault| mend_report::tell!("mend data: {name}: {fault}"));
        if !faults.is_empty() {
            return Err(Failure::new(format!("the data space {name} is not removed: not all of its targets answer"), hint, UNREACHABLE));
        }
    }
    // Nobody heals what is being removed, also if this is killed in the middle of it. Where it cannot be written down, as on a full disk, it is removed all the same.
    let ending = Space { ending: true, ..client.space.clone() };
    let _ = descriptor::replace(&ending);
    let faults = client.end(&|fault| mend_report::tell!("mend data: {name}: {fault}; it goes on"));
    for fault in &faults {
        mend_report::tell!("mend data: {name}: {fault}; what it has of the space stays");
    }
    if !faults.is_empty() && !force {
        let is_left = |target: &&Target| {
            let named = |fault: &Fault| matches!(fault, Fault::Lost { target: name, .. } | Fault::Failed { target: name, .. } if *name == target.name());
            faults.iter().any(named)
        };
        // The others know nothing of it any more, and are not asked again.
        let targets: Vec<Target> = client.space.targets.iter().filter(is_left).cloned().collect();
        if !targets.is_empty() {
            descriptor::replace(&Space { targets, ..ending })?;
        }
        return Err(Failure::new(format!("the data space {name} could not be removed from all its targets"), hint, UNREACHABLE));
    }
    descriptor::remove(name)?;
    super::ledger_file::forget(name)?;
    Ok(0)
}

/// Removes files, and directories with all below them.
pub fn remove(places: &[String], recursive: bool) -> Result<i32, Failure> {
    let mut code = 0;
    for place in places {
        let (name, path) = named(place)?;
        let client = opened(name)?;
        let directory = client.names().look(path).map(|node| node == Node::Directory);
        let failure = match directory {
            Some(true) if !recursive => Failure::new(format!("{place} is a directory"), "-r removes all that is below it", BAD_VALUE),
            Some(_) => {
                client.remove(path)?;
                continue;
            }
            None => Failure::new(format!("{place} is not there"), format!("`mend data ls {name}:` lists what is"), FAILED),
        };
        code = failure.report();
    }
    Ok(code)
}

/// Says how new files below a directory are spread.
pub fn set_striping(place: &str, striping: Striping) -> Result<i32, Failure> {
    let (name, path) = named(place)?;
    let client = opened(name)?;
    can_be_spread(striping, client.targets())?;
    let obstacle = match client.names().look(path) {
        Some(Node::File(_)) => Some(format!("{place} is a file; files keep their stripes")),
        Some(Node::Directory) => None,
        None => client.names().obstacle(path),
    };
    if let Some(obstacle) = obstacle {
        return Err(Failure::bad_value(obstacle, "name a directory; it is made if it is not there"));
    }
    client.set_striping(path, striping)?;
    Ok(0)
}
