//! Asks a batch system from time to time which nodes its administrators want empty, and tells the life of the job that runs.
//!
//! Invariant: a node is told of when it begins to drain, again with another reason, and when it does not any more. Faults assumed: the batch system
//! does not answer for a while; then nothing has changed.

use crate::arrival::Arrival;
use crate::batch::BatchSession;
use crate::batch_question::ask;
use crate::error::RunError;
use mend_messages::control::MoveMode;
use mend_messages::health::Leaving;
use mend_messages::job::NodeIndex;
use mend_report::with_causes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// What changed for a node.
type Change = (NodeIndex, Option<Leaving>);

/// Begins to ask for a life of the job on these nodes. `drained`: those that it was told of already, by a controller that was lost.
///
/// # Errors
/// The setting of how often is no number.
pub(crate) fn begin(
    session: Arc<BatchSession>,
    names: Vec<String>,
    drained: &[NodeIndex],
    arrivals: mpsc::Sender<Arrival>,
) -> Result<(), RunError> {
    let interval = Duration::from_secs(mend_settings::BATCH_POLL.number()?);
    tokio::spawn(watch(session, known_as(&names, drained), names, interval, arrivals));
    Ok(())
}

/// Why these nodes drain, as far as that is known: who told of them is lost.
fn known_as(names: &[String], drained: &[NodeIndex]) -> BTreeMap<String, String> {
    drained.iter().filter_map(|node| names.get(*node as usize)).map(|name| (name.clone(), String::new())).collect()
}

/// Runs until the life of the job is over. `names`: its nodes; `known`: which of them drain.
async fn watch(
    session: Arc<BatchSession>,
    mut known: BTreeMap<String, String>,
    names: Vec<String>,
    interval: Duration,
    arrivals: mpsc::Sender<Arrival>,
) {
    loop {
        let asked = session.clone();
        match ask(move || asked.draining()).await {
            Ok(found) => {
                for (node, leaving) in changes(&names, &known, &found) {
                    if arrivals.send(Arrival::Leave(node, leaving)).await.is_err() {
                        return;
                    }
                }
                known = found;
            }
            Err(error) => tracing::warn!(error = with_causes(&error), "the batch system does not say which nodes drain"),
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = arrivals.closed() => return,
        }
    }
}

fn changes(names: &[String], known: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> Vec<Change> {
    let change = |(node, name): (NodeIndex, &String)| match (known.get(name), found.get(name)) {
        (before, now) if before == now => None,
        (_, Some(why)) => Some((node, Some(Leaving { mode: MoveMode::Auto, left_ms: None, why: why.clone() }))),
        (_, None) => Some((node, None)),
    };
    (0..).zip(names).filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_is_told() {
        let names = ["a".to_owned(), "b".to_owned()];
        let drains =
            |all: &[(&str, &str)]| all.iter().map(|(name, why)| ((*name).to_owned(), (*why).to_owned())).collect::<BTreeMap<_, _>>();
        let (none, one, other) = (drains(&[]), drains(&[("b", "fan"), ("x", "y")]), drains(&[("b", "disk")]));
        assert_eq!(changes(&names, &none, &none), []);
        let told = changes(&names, &none, &one);
        assert!(matches!(&told[..], [(1, Some(Leaving { why, .. }))] if why == "fan"));
        assert_eq!(changes(&names, &one, &one), []);
        assert!(matches!(&changes(&names, &one, &other)[..], [(1, Some(Leaving { why, .. }))] if why == "disk"));
        assert_eq!(changes(&names, &other, &none), [(1, None)]);
        // Another controller was told of it, and it does not drain any more when this one asks first.
        assert_eq!(changes(&names, &known_as(&names, &[1]), &none), [(1, None)]);
        assert!(matches!(&changes(&names, &known_as(&names, &[1]), &one)[..], [(1, Some(Leaving { why, .. }))] if why == "fan"));
    }
}
