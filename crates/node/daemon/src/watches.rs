//! Data spaces that have targets on this node are looked at, whether or not a job uses them: a process of `mend-space` for each, which heals what is lost.
//!
//! ```text
//! $MEND_HOME/spaces/NAME.json ──now and then──► a target at this address ──► mend-space watch NAME, as long as the space is described so
//! ```
//! Where no space has a target here nothing runs, and nothing is looked for until somebody asks for a target. Each process ends with this daemon, whichever way that ends: its standard input ends then. One that has ended is started again at the next look. Faults assumed: the directory
//! hangs (then the processes that run go on), a description cannot be read (then its process goes on), it is another one's (then that is watched in its place).

use crate::node::Node;
use crate::targets::PROGRAM;
use mend_data::space::{Space, is_name};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::spawn_blocking;

/// What is described: which space, and the places of its targets that are here.
type Here = (Space, Vec<u16>);

/// The process that looks at a space.
struct Watch {
    here: Here,
    process: Child,
    _input: ChildStdin,
}

/// Watches the spaces of this node, which is reached at this port, until the daemon ends.
pub async fn watch(node: &Node, port: u16) {
    let pace = match mend_settings::SPACE_WATCH.number() {
        Ok(0) => return std::future::pending().await,
        Ok(pace) => Duration::from_secs(pace),
        Err(error) => {
            tracing::warn!(%error, "data spaces are not watched");
            return std::future::pending().await;
        }
    };
    let mut watches: BTreeMap<String, Watch> = BTreeMap::new();
    let advertised = node.advertised;
    loop {
        let known: BTreeMap<String, Here> = watches.iter().map(|(name, watch)| (name.clone(), watch.here.clone())).collect();
        let is_here = move |address: IpAddr| advertised == Some(address) || is_local(address);
        let read = move || described(&mend_settings::home().map_err(io::Error::other)?.join("spaces"), &known, port, is_here);
        match spawn_blocking(read).await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(here) => begin_and_end(&mut watches, here),
            Err(error) => tracing::warn!(%error, "descriptions of data spaces cannot be read"),
        }
        if watches.is_empty() && !node.targets.are_running().await {
            node.targets.asked().await;
        }
        tokio::time::sleep(pace).await;
    }
}

/// One process for each of these spaces, and for no other.
fn begin_and_end(watches: &mut BTreeMap<String, Watch>, mut here: BTreeMap<String, Here>) {
    watches.retain(|name, watch| {
        let stays = here.get(name) == Some(&watch.here) && matches!(watch.process.try_wait(), Ok(None));
        if stays {
            here.remove(name);
        }
        // Else it ends as its standard input does, and at once.
        stays
    });
    for (name, here) in here {
        match begin(&name, here) {
            Ok(watch) => drop(watches.insert(name, watch)),
            Err(error) => tracing::warn!(space = name, %error, "a data space is not watched: {PROGRAM} cannot be started"),
        }
    }
}

fn begin(name: &str, here: Here) -> io::Result<Watch> {
    let program = mend_settings::find_part(PROGRAM).ok_or(io::ErrorKind::NotFound)?;
    let own: Vec<String> = here.1.iter().map(u16::to_string).collect();
    let mut process = Command::new(program)
        .args(["watch", name, &own.join(",")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // A batch system's signals are for the daemon.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let input = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    tracing::debug!(space = name, "watching a data space");
    Ok(Watch { here, process, _input: input })
}

/// Spaces described in a directory that have a target here. What cannot be read is as it was `known`.
fn described(
    directory: &Path,
    known: &BTreeMap<String, Here>,
    port: u16,
    is_here: impl Fn(IpAddr) -> bool,
) -> io::Result<BTreeMap<String, Here>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    let mut all = BTreeMap::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_str().and_then(|name| name.strip_suffix(".json")).filter(|name| is_name(name)).map(str::to_owned);
        let Some(name) = name else { continue };
        let here = match std::fs::read(entry.path()) {
            // It was removed just now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(_) => known.get(&name).cloned(),
            Ok(text) => serde_json::from_slice(&text).ok().and_then(|space: Space| match known.get(&name) {
                // An address may be gone for a moment, with its network.
                Some(here) if here.0 == space => Some(here.clone()),
                _ => own(space, &name, port, &is_here),
            }),
        };
        all.extend(here.map(|here| (name, here)));
    }
    Ok(all)
}

/// A space of this name, if it has targets here and nobody removes it.
fn own(space: Space, name: &str, port: u16, is_here: impl Fn(IpAddr) -> bool) -> Option<Here> {
    let is_own = |target: &mend_data::space::Target| target.address.port() == port && is_here(target.address.ip());
    let own: Vec<u16> = (0..).zip(&space.targets).filter(|(_, target)| is_own(target)).map(|(at, _)| at).collect();
    (space.name == name && !space.ending && !own.is_empty()).then_some((space, own))
}

/// True if an address is of this node.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_data::space::{COPIES, FORMAT, Striping, Target};

    const PORT: u16 = 7117;

    fn space(name: &str, hosts: &[&str]) -> Space {
        let target = |host: &&str| Target { host: (*host).to_owned(), address: host.parse().unwrap(), directory: "/x".to_owned() };
        let targets = hosts.iter().map(target).collect();
        Space {
            format: FORMAT,
            name: name.to_owned(),
            id: [1; 16],
            targets,
            striping: Striping::default(),
            copies: COPIES,
            job: None,
            ending: false,
        }
    }

    #[test]
    fn spaces_with_a_target_here_are_watched_as_long_as_they_are_described_so() {
        let directory = tempfile::tempdir().unwrap();
        let save = |file: &str, space: &Space| std::fs::write(directory.path().join(file), serde_json::to_vec(space).unwrap()).unwrap();
        let ours = |address: IpAddr| address == IpAddr::from([10, 0, 0, 1]);
        let known = BTreeMap::new();
        let found = |known| described(directory.path(), known, PORT, ours).unwrap();
        assert!(found(&known).is_empty());
        let one = space("one", &["10.0.0.2:7117", "10.0.0.1:7117", "10.0.0.1:7118", "10.0.0.1:7117"]);
        save("one.json", &one);
        save("elsewhere.json", &space("elsewhere", &["10.0.0.2:7117", "10.0.0.1:7118"]));
        save("ending.json", &Space { ending: true, ..space("ending", &["10.0.0.1:7117"]) });
        save("copied.json", &one);
        save("one.0123.new", &one);
        std::fs::write(directory.path().join("nonsense.json"), "{").unwrap();
        let here = found(&known);
        assert_eq!(here, BTreeMap::from([("one".to_owned(), (one.clone(), vec![1, 3]))]));
        // What cannot be read goes on: it is a directory here.
        std::fs::remove_file(directory.path().join("one.json")).unwrap();
        std::fs::create_dir(directory.path().join("one.json")).unwrap();
        assert_eq!((found(&here), found(&known)), (here.clone(), BTreeMap::new()));
        std::fs::remove_dir(directory.path().join("one.json")).unwrap();
        assert!(found(&here).is_empty());
        assert!(described(&directory.path().join("none"), &here, PORT, ours).unwrap().is_empty());
    }

    #[test]
    fn addresses_of_this_node_are_told_from_others() {
        assert!(is_local(IpAddr::from([127, 0, 0, 1])) && !is_local(IpAddr::from([192, 0, 2, 1])));
    }
}
