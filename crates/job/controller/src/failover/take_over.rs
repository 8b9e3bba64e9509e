//! `mend take-over`: a daemon has lost a job's controller, and this process takes its place if nobody else has.

use crate::arrival::Arrival;
use crate::batch::BatchSession;
use crate::being_restarted;
use crate::client;
use crate::detached;
use crate::embedded::Embedded;
use crate::error::RunError;
use crate::failover::election::{Won, elect};
use crate::failover::last_controller::{self, answer_time};
use crate::failover::log::{self, LifeRecord, ToldLog};
use crate::failover::watch::{LEASES, LockWatch};
use crate::healing::see_through_in_batch;
use crate::input::{InputError, InputReader, Source, Wanted, note_lack};
use crate::input_file::InputFile;
use crate::job_link::{Lost, Opening, succeed};
use crate::job_lock::JobLock;
use crate::journal_file::{self, Journal};
use crate::life::{Constants, Life};
use crate::made_spaces::MadeSpaces;
use crate::nodes::{JobOnNode, Node, begin};
use crate::offload::Offloads;
use crate::output::{self, Output};
use crate::record::{JobDirectory, JobRecord};
use crate::replayed_output::left_of;
use crate::run::{Earlier, Parts, Shell, by_rank, end_of_lost, go_on};
use crate::serve;
use crate::shown_output::ShownOutput;
use crate::signals::Signals;
use crate::start::{MAX_WAITING_EVENTS, load_key};
use crate::watchers::{self, Watchers};
use mend_coordination::renewal::confirmed_us;
use mend_job::event::{Effect, Record};
use mend_job::input::InputAt;
use mend_job::phase::NodeLoss;
use mend_job::replay::{SentOutput, Standing, UnknownOrders};
use mend_job::safeguard::Kept;
use mend_journal::Entry;
use mend_messages::daemon::Succession;
use mend_messages::health::LeaveReason;
use mend_messages::job::{NodeIndex, Secret};
use mend_report::with_causes;
use mend_wire::{Connection, Link};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The newest entries of the journal among which those of the last event are.
const MAX_RECORDS: usize = 64;

/// Takes the place of a job's lost controller, and sees the job to its end. `None` if another one has it, or the job is over.
///
/// # Errors
/// See [`RunError`].
pub async fn take_over(id: &str, silent: bool) -> Result<Option<i32>, RunError> {
    let mut directory = JobDirectory::open(id)?;
    let Some(Won { lock, voted }) = elect(&directory, id, silent).await else { return Ok(None) };
    // A silent one may write to its spool when it goes on.
    detached::seize();
    directory.hold(lock.identity());
    last_controller::forget(&directory);
    // Of a restart that was killed.
    being_restarted::forget(&directory);
    let mut record = directory.record()?;
    if record.ended.is_some() {
        return Ok(None);
    }
    let Some(found) = log::read(directory.path()) else { return Ok(None) };
    let (signals, strays) = Signals::new();
    let life = found.life.clone();
    let batch = life.batch.clone().map(BatchSession::inherited).transpose()?.flatten();
    if batch.is_some() {
        signals.are_of_batch();
    }
    let constants = Constants {
        options: life.options,
        encryption_key: life.encryption_key.clone(),
        key: load_key(life.encryption_key.as_deref())?,
        any_owner: life.any_owner,
        batch: batch.clone(),
        quiet: life.quiet,
    };
    let mut standing = found.stand(&record);
    mend_report::tell!(
        "mend: the controller of job {id} on {} was lost; another one on {} goes on in its place",
        record.controller_host,
        client::host_name()
    );
    look_again(&mut standing, &output::found(&directory, &BTreeMap::new(), false));
    if standing.job.is_over() {
        // It was lost between two lives of the job, or at its end.
        record.controller_host = client::host_name();
        record.controller_pid = std::process::id();
        let end = end_of_lost(&life, &standing.job, &directory, &mut record);
        let (id, tiers, checkpoints) = (id.to_owned(), life.tiers.clone(), record.checkpoints);
        let (offloads, spaces) = (Offloads::of(&life.program, life.setup.identity)?, MadeSpaces::of(&life.program));
        let embedded = daemon_of_lost(&life);
        let life = Life { end, embedded, lock, id, checkpoints, tiers, signals, offloads, spaces };
        return see_through_in_batch(Ok((life, constants)), batch, strays).await.map(Some);
    }
    if !standing.compared.is_empty()
        && let Err(error) = log::make_durable(directory.path())
    {
        tracing::warn!(%error, "what the lost controller was told cannot be made durable");
    }
    // In a life that began since then nodes may confirm its controller.
    let voted = voted == Some(life.epoch);
    let life = go_on_in_place(directory, (lock, voted), record, life, standing, &constants, signals).await?;
    see_through_in_batch(Ok((life, constants)), batch, strays).await.map(Some)
}

/// The daemon that a lost controller has started on this machine, which its job goes on with.
fn daemon_of_lost(life: &LifeRecord) -> Option<Embedded> {
    life.setup.nodes.first().filter(|_| life.local).map(|node| Embedded::of_lost(node.address))
}

/// A daemon that has taken this controller, how many orders of the lost one it has had, and proof of later connections; or how it is lost.
type Answer = (NodeIndex, [u8; 16], Result<(Connection, u64), NodeLoss>);

async fn ask_nodes(life: &LifeRecord, standing: &Standing, confirmed: &[u64], secret: &Secret) -> Vec<Answer> {
    let limit = answer_time(life);
    let mut asked = JoinSet::new();
    for (index, node) in life.setup.nodes.iter().enumerate() {
        let session = mend_wire::random_bytes();
        let lost = standing.lost.iter().find(|(lost, _)| *lost as usize == index).map(|(_, how)| how.clone());
        let of = life.resumption(index, confirmed[index]);
        let (secret, address) = (secret.clone(), node.address);
        asked.spawn(async move {
            let answer = match lost {
                Some(how) => Err(how),
                None => succeed(address, &secret, Succession { of, session }, limit).await,
            };
            (index as NodeIndex, session, answer)
        });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(index, ..)| *index);
    answers
}

/// Number of each daemon's last message that, like all before it, is not needed any more.
fn confirmed(standing: &Standing, shown: &output::ShownStreams) -> Vec<u64> {
    let heard = standing.heard.iter().zip(&standing.outputs);
    heard
        .map(|(heard, outputs)| {
            outputs.iter().find(|(_, output)| !is_shown(standing, output, shown)).map_or(*heard, |(number, _)| number - 1)
        })
        .collect()
}

/// Whether this was printed, or the log has it: a lost controller may have confirmed what is compared.
fn is_shown(standing: &Standing, output: &SentOutput, shown: &output::ShownStreams) -> bool {
    let key = (output.rank, output.stream);
    standing.compared.iter().any(|(of, _)| *of == key) || shown.get(&key).is_some_and(|at| *at >= output.end.at)
}

/// Leaves of what the lost controller compared what is to be compared again.
fn look_again(standing: &mut Standing, shown: &ShownOutput) {
    for (key, compared) in &mut standing.compared {
        *compared = left_of(compared, shown.digests.get(key)).0;
    }
}

async fn go_on_in_place(
    directory: JobDirectory,
    (lock, voted): (JobLock, bool),
    mut record: JobRecord,
    mut life: LifeRecord,
    mut standing: Standing,
    constants: &Constants,
    signals: Signals,
) -> Result<Life, RunError> {
    let id = life.setup.id.clone();
    let found = output::found(&directory, &BTreeMap::new(), false);
    let mut shown = output::shown(&found);
    let confirmed = confirmed(&standing, &shown);
    let secret = mend_wire::secret::load_or_create(&mend_settings::secret_file()?)?;
    let answers = ask_nodes(&life, &standing, &confirmed, &secret).await;
    // A lost controller that lives may have spoken to other nodes until it saw that the lock is another file.
    let unknown =
        answers.iter().filter(|(node, _, answer)| may_confirm(answer) && standing.lost.iter().all(|(lost, _)| lost != node)).count();
    let waited = Duration::from_micros(confirmed_us(unknown, answers.len(), voted, life.directory_timeout_s * 1_000_000));
    if !waited.is_zero() {
        mend_report::tell!(
            "mend: {unknown} of {} nodes cannot be reached, and may still have the lost controller; they are waited for, {} s at most",
            answers.len(),
            waited.as_secs()
        );
    }
    let last_word = Instant::now() + Duration::from_millis(life.lease_ms) / LEASES + waited;
    let mut left = standing.left(&log::manifest_text(&record));
    let newest = journal_file::read(directory.path()).map(|found| found.entries).unwrap_or_default();
    left.retain(|effect| !is_recorded(effect, &newest[newest.len().saturating_sub(MAX_RECORDS)..]));
    let (arrivals, incoming) = mpsc::channel(MAX_WAITING_EVENTS);
    let doors = serve::listen(serve::address(life.local), directory.path(), directory.secret()?, arrivals.clone(), Arrival::Ask)
        .await
        .map_err(RunError::Listen)?;
    record.controller_host = client::host_name();
    (record.controller_port, record.controller_pid) = (doors.port, std::process::id());
    let lost = standing.lost.iter().map(|(node, _)| life.setup.nodes[*node as usize].name.clone());
    record.lost = record.lost.iter().cloned().chain(lost).collect::<BTreeSet<_>>().into_iter().collect();
    directory.write("job.json", &record)?;
    let journal = Journal::succeed(directory.path(), &record.controller_host);
    let openings: Vec<_> = answers.into_iter().map(|answer| opening(answer, &mut life, &mut standing, last_word)).collect();
    standing.put_back(&left);
    // The daemons know the new sessions.
    let told = match ToldLog::begin(directory.path(), lock.identity(), life.clone(), Some(&standing)) {
        Ok(log) => Some(log),
        Err(error) => {
            mend_report::tell!("mend: the job ends if this process is lost, too: what it would need to go on cannot be written: {error}");
            None
        }
    };
    let watch = LockWatch::begin(directory.path(), lock.identity(), &life, &secret);
    let mut nodes: Vec<Node> = Vec::new();
    for (index, opening) in (0..).zip(openings) {
        let (at, before) = (index as usize, standing.orders[index as usize].before);
        let job = JobOnNode {
            address: life.setup.nodes[at].address,
            identity: life.setup.identity,
            epoch: life.epoch,
            session: life.sessions[at],
            silence: Duration::from_millis(life.node_timeout_ms),
            lease: Duration::from_millis(life.lease_ms),
            pulse: Some(watch.pulse.clone()),
        };
        let link = Link::confirming(confirmed[at]);
        nodes.push(begin(job, secret.clone(), link, opening, (index, before), arrivals.clone(), Arrival::Node));
    }
    signals.tell(arrivals.clone());
    let (more, asked) = mpsc::channel(1);
    let source = rest_of_input(&directory, &life, &standing).await;
    let input = InputReader::of(standing.input.clone(), Some(more));
    let reading = tokio::spawn(source.read(arrivals.clone(), Arrival::Stdin, asked));
    let mut printed: BTreeMap<_, _> = standing.printed.iter().copied().collect();
    for (key, compared) in &standing.compared {
        if let Some(end) = printed.insert(*key, compared.start) {
            // None of that is printed beside the comparison.
            shown.insert(*key, end.at);
        }
    }
    let output = Output::new(directory.path(), lock.identity(), &by_rank(&printed.into_iter().collect::<Vec<_>>()), found)?;
    let earlier = Earlier { heard: standing.heard.clone(), outputs: std::mem::take(&mut standing.outputs), shown };
    let (tiers, checkpoints, heard) = (life.tiers.clone(), record.checkpoints.clone(), Some(confirmed));
    let branch = record.branch.clone();
    let key = constants.key.clone();
    let session = constants.batch.clone().map(|(session, _)| session);
    let drained = standing.job.nodes_to_leave(LeaveReason::BatchSystem);
    let Watchers { traffic, offloads } = watchers::begin(&life.program, &life.setup, (session, &drained), &arrivals)?;
    let spaces = MadeSpaces::of(&life.program);
    let (local, embedded) = (life.local, daemon_of_lost(&life));
    let watch = Some(watch);
    let mut shell =
        Shell::of(life, Parts { directory, record, journal, local, key, nodes, input, output, arrivals, told, heard, watch, traffic });
    shell.output.compare_again(&standing.compared);
    let end = go_on(shell, standing, left, earlier, incoming).await;
    reading.abort();
    let _ = reading.await;
    drop(doors);
    let end = end.going_on(|| branch.newest(&checkpoints)).pass_on(&signals);
    Ok(Life { end, embedded, lock, id, checkpoints, tiers, signals, offloads, spaces })
}

/// Whether an effect is an entry of the journal that is there already.
fn is_recorded(effect: &Effect, newest: &[Entry]) -> bool {
    let Effect::Record(record) = effect else { return false };
    matches!(&**record, Record::Happened { event, .. } if newest.iter().any(|entry| entry.event == *event))
}

/// Whether a node that has answered so may confirm the lost controller: it is not known to obey this one, or to have left the job.
fn may_confirm(answer: &Result<(Connection, u64), NodeLoss>) -> bool {
    !matches!(answer, Ok(_) | Err(NodeLoss::Gone(_)))
}

/// How a node is gone on with. What its daemon has not had of the lost controller's orders stays in `standing`.
fn opening((index, session, answer): Answer, life: &mut LifeRecord, standing: &mut Standing, last_word: Instant) -> Opening {
    let lost = |how| Opening::Lost(Lost { how, last_word });
    let orders = std::mem::take(&mut standing.orders[index as usize]);
    let (connection, had) = match answer {
        Ok(taken) => taken,
        Err(how) => return lost(how),
    };
    life.sessions[index as usize] = session;
    match orders.after(had, Kept::default()) {
        Ok(orders) => {
            standing.orders[index as usize] = orders.clone();
            Opening::Succeeded(connection, orders.kept)
        }
        Err(UnknownOrders { had, known }) => {
            lost(NodeLoss::Broken(format!("it has had {had} orders, and {known} are known of the lost controller")))
        }
    }
}

/// Where the rest of standard input comes from: a file is opened again; of anything else what was read and kept is all that there is.
async fn rest_of_input(directory: &JobDirectory, life: &LifeRecord, standing: &Standing) -> Source {
    if !standing.input.is_open() {
        return Source::ended();
    }
    if let Some(Err(error)) = life.input_file.as_ref().map(InputFile::take) {
        mend_report::tell!("mend: the file on standard input cannot be read any more: {error}; rank 0 reads its end");
        return Source::ended();
    }
    let at = InputAt { at: standing.input.read_through(), ended: false };
    match Source::after(directory, Some(at), Wanted::Continued, true).await {
        Ok(source) => source.unwrap_or_else(Source::ended),
        Err(error) => {
            if matches!(error, InputError::Short { .. }) {
                // A restart would give rank 0 less than it was given, and the end.
                note_lack(directory);
            }
            mend_report::tell!("mend: {}; rank 0 reads its end", with_causes(&error));
            Source::ended()
        }
    }
}
