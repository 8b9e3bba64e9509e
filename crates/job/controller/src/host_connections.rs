//! Connecting to the hosts of a job, all at once. Which are wanted, and how long each is waited for, is decided by
//! [`mend_job::gathering`].

use crate::client;
use crate::drained;
use crate::embedded::{self, Embedded};
use crate::error::RunError;
use crate::nodes::{ConnectedNode, DaemonAddresses, connect_node, resolve};
use mend_job::gathering::{GatherAction, Gathering, WantedHosts};
use mend_job::safeguard::Kept;
use mend_journal::Event;
use mend_messages::health::{Grade, NodeHealth};
use mend_messages::job::Secret;
use mend_report::with_causes;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep_until;

/// A host's name, and its daemon or why there is none.
type Answer = (String, Result<(ConnectedNode, NodeHealth), RunError>);

/// The daemons of these hosts, in their order, or an embedded one if none is wanted: that of an earlier life, if it lives. `addresses`: of daemons that are not at
/// their host's name and the setting's port. Who was left out is
/// added to `notes`, for the journal.
///
/// # Errors
/// [`RunError::Node`], [`RunError::NoSuchHost`], [`RunError::Drained`] of one that must be there; [`RunError::NoHostLeft`].
pub async fn connect_hosts(
    wanted: WantedHosts,
    addresses: &DaemonAddresses,
    embedded: Option<Embedded>,
    notes: &mut Vec<Event>,
) -> Result<(Vec<ConnectedNode>, Option<Embedded>), RunError> {
    let secret = mend_wire::secret::load_or_create(&mend_settings::secret_file()?)?;
    if wanted.hosts.is_empty() {
        let name = client::host_name();
        if let Some(embedded) = embedded
            && let Ok(node) = connect_node(name.clone(), embedded.address, &secret).await
        {
            return Ok((vec![node], Some(embedded)));
        }
        let embedded = embedded::start(&name).await?;
        let node = connect_node(name, embedded.address, &secret).await?;
        return Ok((vec![node], Some(embedded)));
    }
    let (begun, mut answers) = (Instant::now(), JoinSet::new());
    let (mut there, mut errors, mut sick) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::<String, String>::new());
    let (mut machine, actions) = Gathering::begin(wanted, 0, Kept::default());
    let mut actions = VecDeque::from(actions);
    loop {
        while let Some(action) = actions.pop_front() {
            match action {
                GatherAction::Connect(names) => contact(names, addresses, &secret, &mut answers).await?,
                GatherAction::LeaveOut { host, unfit: true, .. } => {
                    let why = sick.get(&host).cloned().unwrap_or_default();
                    leave_out(format!("node {host}, which is sick: {why}"), notes);
                }
                GatherAction::Use(host) => {
                    let why = sick.get(&host).cloned().unwrap_or_default();
                    mend_report::tell!("mend: node {host} is sick: {why}; it is used: it was named, or no other answers");
                }
                GatherAction::LeaveOut { host, lost: true, .. } => {
                    leave_out(format!("node {host}, which was lost before, does not answer"), notes);
                }
                GatherAction::LeaveOut { host, .. } => {
                    leave_out(errors.get(&host).map_or(host, |error: &RunError| with_causes(error)), notes);
                }
                GatherAction::Gathered(names) => return Ok((names.iter().filter_map(|name| there.remove(name)).collect(), None)),
                GatherAction::Missing(host) => {
                    return Err(errors.remove(&host).unwrap_or(RunError::NoHostLeft { hosts: host }));
                }
                GatherAction::NobodyLeft(hosts) => return Err(RunError::NoHostLeft { hosts: hosts.join(", ") }),
            }
        }
        let due = machine.next_deadline().map(|due| begun + Duration::from_micros(due));
        let answer = tokio::select! {
            answer = answers.join_next() => answer,
            () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => None,
        };
        let now_us = begun.elapsed().as_micros() as u64;
        let next = match answer {
            None => machine.time(now_us),
            Some(answer) => match answer.map_err(|error| RunError::Embedded { why: error.to_string() })? {
                (host, Ok((node, health))) => {
                    there.insert(host.clone(), node);
                    match health.grade {
                        Grade::Well => machine.answered(now_us, &host),
                        Grade::Low | Grade::High => {
                            sick.insert(host.clone(), health.why);
                            machine.answered_unfit(now_us, &host)
                        }
                    }
                }
                (host, Err(error)) => {
                    errors.insert(host.clone(), error);
                    machine.failed(now_us, &host)
                }
            },
        };
        actions.extend(next);
    }
}

/// Whether the daemon of one of these hosts answers, and takes ranks.
///
/// # Errors
/// A setting has a value that it may not have, or there is no secret.
pub async fn one_answers(hosts: Vec<String>, addresses: &DaemonAddresses) -> Result<bool, RunError> {
    let secret = mend_wire::secret::load_or_create(&mend_settings::secret_file()?)?;
    let mut answers = JoinSet::new();
    contact(hosts, addresses, &secret, &mut answers).await?;
    while let Some(answer) = answers.join_next().await {
        if answer.is_ok_and(|(_, node)| node.is_ok()) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn contact(names: Vec<String>, addresses: &DaemonAddresses, secret: &Secret, answers: &mut JoinSet<Answer>) -> Result<(), RunError> {
    let (port, drained) = (mend_settings::PORT.number()? as u16, drained::list()?);
    for (name, address) in names.iter().zip(resolve(&names, addresses, port).await) {
        let (name, secret, takes_none) = (name.clone(), secret.clone(), drained.contains(name));
        answers.spawn(async move {
            let node = match address {
                _ if takes_none => Err(RunError::Drained { host: name.clone() }),
                Ok(address) => match connect_node(name.clone(), address, &secret).await {
                    Ok(node) => node.look().await,
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            (name, node)
        });
    }
    Ok(())
}

/// Says so, once: a job that waits for nodes tries them again and again.
fn leave_out(error: String, notes: &mut Vec<Event>) {
    let event = Event::NodeLeftOut { error: error.clone() };
    if !notes.contains(&event) {
        mend_report::tell!("mend: left out: {error}");
        notes.push(event);
    }
}
