//! Connecting to the hosts of a job: all at once, each with the patience that it is worth.
//!
//! Invariant: nobody waits for a host that is known to be dead longer than for all others, and a moment.

use crate::client;
use crate::embedded::{self, Embedded};
use crate::error::RunError;
use crate::nodes::{ConnectedNode, connect_node, resolve};
use mend_journal::Event;
use mend_report::with_causes;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// For hosts that were lost before, when all others have answered.
const LOST_HOST_TIME: Duration = Duration::from_millis(500);

/// How much a host is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNeed {
    /// The job does not start without it.
    Must,
    /// It is left out if it does not answer, and that is said.
    May,
    /// The same, and it was lost before.
    Lost,
}

/// The daemons of these hosts, in their order, or an embedded one if none is named. If none answers, the others are tried. Who was left
/// out is added to `notes`, for the journal.
///
/// # Errors
/// [`RunError::Node`], [`RunError::NoSuchHost`] of one that must be there; [`RunError::NoHostLeft`].
pub async fn connect_hosts(
    hosts: &[(String, HostNeed)],
    others: &[String],
    notes: &mut Vec<Event>,
) -> Result<(Vec<ConnectedNode>, Option<Embedded>), RunError> {
    let secret = mend_wire::secret::load_or_create(&mend_settings::secret_file()?)?;
    if hosts.is_empty() {
        let name = client::host_name();
        let embedded = embedded::start(&name).await?;
        let node = connect_node(name, embedded.address, &secret).await?;
        return Ok((vec![node], Some(embedded)));
    }
    let mut reached = contact(hosts, &secret, notes).await?;
    if reached.is_empty() {
        let more: Vec<(String, HostNeed)> =
            others.iter().filter(|name| hosts.iter().all(|(known, _)| known != *name)).map(|name| (name.clone(), HostNeed::May)).collect();
        reached = contact(&more, &secret, notes).await?;
    }
    if reached.is_empty() {
        let names: Vec<&str> = hosts.iter().map(|(name, _)| name).chain(others).map(String::as_str).collect();
        let mut once = names.clone();
        once.dedup();
        return Err(RunError::NoHostLeft { hosts: once.join(", ") });
    }
    Ok((reached, None))
}

async fn contact(
    hosts: &[(String, HostNeed)],
    secret: &mend_messages::job::Secret,
    notes: &mut Vec<Event>,
) -> Result<Vec<ConnectedNode>, RunError> {
    let port = mend_settings::PORT.number()? as u16;
    let names: Vec<String> = hosts.iter().map(|(name, _)| name.clone()).collect();
    let mut tasks = JoinSet::new();
    for (place, address) in resolve(&names, port).await.into_iter().enumerate() {
        let (name, secret) = (names[place].clone(), secret.clone());
        tasks.spawn(async move {
            let reached = match address {
                Ok(address) => connect_node(name, address, &secret).await,
                Err(error) => Err(error),
            };
            (place, reached)
        });
    }
    let mut found: Vec<Option<ConnectedNode>> = hosts.iter().map(|_| None).collect();
    let mut silent: Vec<usize> = (0..hosts.len()).collect();
    while !silent.is_empty() {
        let only_lost = silent.iter().all(|&place| hosts[place].1 == HostNeed::Lost) && found.iter().any(Option::is_some);
        let next = match only_lost {
            true => match timeout(LOST_HOST_TIME, tasks.join_next()).await {
                Ok(next) => next,
                Err(_) => {
                    for &place in &silent {
                        leave_out(format!("node {}, which was lost before, does not answer", names[place]), notes);
                    }
                    break;
                }
            },
            false => tasks.join_next().await,
        };
        let Some(next) = next else { break };
        let (place, reached) = next.map_err(|error| RunError::Embedded { why: error.to_string() })?;
        silent.retain(|&other| other != place);
        match reached {
            Ok(node) => found[place] = Some(node),
            Err(error) if hosts[place].1 == HostNeed::Must => return Err(error),
            Err(error) => leave_out(with_causes(&error), notes),
        }
    }
    Ok(found.into_iter().flatten().collect())
}

fn leave_out(error: String, notes: &mut Vec<Event>) {
    eprintln!("mend: left out: {error}");
    notes.push(Event::NodeLeftOut { error });
}
