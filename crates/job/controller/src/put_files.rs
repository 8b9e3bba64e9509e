//! A restart's first step: the files that the program had open are put back as they were, before any rank is built.
//!
//! ```text
//! manifest ─► per file the node of a rank that had it open ── PutFiles ─► … ── FilesPut ─► all there
//! ```
//! Invariant: each file is put back once, by one node. Faults assumed: nodes are lost, files cannot be written; then nothing runs.

use crate::error::RunError;
use crate::job::Event;
use crate::manifest::Manifest;
use crate::nodes::{Node, NodeEvent};
use mend_messages::daemon::{FromDaemon, ToDaemon};
use mend_messages::files::{KeptFile, PutOrder};
use mend_messages::job::NodeIndex;
use std::collections::BTreeMap;
use std::path::Path;
use tokio::sync::mpsc;

/// Has all files of a checkpoint put back. `places` is where each rank will be.
///
/// # Errors
/// [`RunError::File`] names what could not be put back; [`RunError::NodeLost`], [`RunError::Refused`], [`RunError::Interrupted`].
pub async fn put_files(
    manifest: &Manifest,
    directory: &Path,
    places: &[NodeIndex],
    nodes: &mut [Node],
    events: &mut mpsc::Receiver<Event>,
) -> Result<(), RunError> {
    let mut orders: BTreeMap<NodeIndex, Vec<KeptFile>> = BTreeMap::new();
    for file in &manifest.files {
        let Some(&node) = places.get(file.rank as usize) else { continue };
        orders.entry(node).or_default().push(file.clone());
    }
    for (&node, files) in &orders {
        let order = PutOrder { checkpoint: directory.to_owned(), files: files.clone() };
        nodes[node as usize].send(ToDaemon::PutFiles(Box::new(order)));
    }
    while !orders.is_empty() {
        match events.recv().await {
            Some(Event::Node(node, NodeEvent::Message(FromDaemon::FilesPut(result)))) => {
                let host = nodes[node as usize].name.clone();
                orders.remove(&node);
                let told = result.map_err(|error| RunError::File { host, error })?;
                told.iter().for_each(|warning| eprintln!("mend: {warning}"));
            }
            Some(Event::Node(node, NodeEvent::Message(FromDaemon::Refused { error }))) => {
                return Err(RunError::Refused { host: nodes[node as usize].name.clone(), error });
            }
            Some(Event::Node(node, NodeEvent::Lost(why))) => {
                let lost = &mut nodes[node as usize];
                lost.alive = false;
                if places.contains(&node) {
                    let ranks = (0..places.len()).filter(|&rank| places[rank] == node).map(|rank| rank.to_string());
                    let ranks = ranks.collect::<Vec<_>>().join(",");
                    return Err(RunError::NodeLost { host: lost.name.clone(), why, ranks, hint: "`mend restart` again".into() });
                }
                eprintln!("mend: node {} is lost ({why}); no rank was on it", lost.name);
            }
            Some(Event::Signal(signal)) => return Err(RunError::Interrupted { signal }),
            Some(_) => {}
            None => return Err(RunError::Interrupted { signal: 15 }),
        }
    }
    Ok(())
}
