//! How events read.

mod data;

use crate::event::{Asker, Cause, Entry, Event, Phase, StaggeredTier, Storage};
use crate::state::State;
use std::collections::BTreeMap;

/// A duration for people.
#[must_use]
pub fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

/// What a move does to messages between nodes, behind the share that it saves; empty if next to nothing.
#[must_use]
pub fn of_messages(share: f64) -> String {
    let percent = (share.abs() * 100.0).round();
    if percent < 1.0 {
        String::new()
    } else if share > 0.0 {
        format!(", less {percent:.0} % for messages that begin to cross nodes")
    } else {
        format!(", and {percent:.0} % by messages that cease to cross nodes")
    }
}

/// A size for people, binary units.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

fn by(asker: Asker) -> &'static str {
    match asker {
        Asker::User => "a user asked",
        Asker::Schedule => "it was due",
        Asker::Health => "the node is sick",
        Asker::BatchSystem => "the batch system drains the node",
        Asker::TimeUp => "the job's time is up",
        Asker::BackMigration => "it gains more by going back than that costs",
        Asker::Data => "its data is there",
        Asker::Other => "asked",
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Inspect => "looking for obstacles",
        Phase::Compare => "asking the target for what the rank uses",
        Phase::Suspend => "draining channels",
        Phase::Save => "taking snapshots",
        Phase::Keep => "keeping files",
        Phase::Resume => "letting ranks go on",
        Phase::Write => "writing images behind the ranks",
        Phase::Precopy => "copying it while it ran",
        Phase::Wait => "waiting for its turn",
        Phase::Move => "moving the image",
        Phase::Connect => "waiting for its listeners",
        Phase::Undo => "going back",
        Phase::Read => "reading the image",
        Phase::Rebuild => "reopening files",
        Phase::Other => "another phase",
    }
}

fn settings(settings: &BTreeMap<String, String>) -> String {
    if settings.is_empty() {
        return String::new();
    }
    let each = settings.iter().map(|(name, value)| format!("{name}={value}"));
    format!("; {}", each.collect::<Vec<_>>().join(" "))
}

fn numbers(all: &[u64]) -> String {
    let plural = if all.len() == 1 { "" } else { "s" };
    format!("checkpoint{plural} {}", all.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
}

fn with_hint(text: String, hint: &str) -> String {
    if hint.is_empty() { text } else { format!("{text} (hint: {hint})") }
}

fn count_of_files(count: u64) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

fn schedule(interval: &str) -> String {
    if interval.is_empty() { String::new() } else { format!("; {interval}") }
}

/// Why a job ended, as half a sentence: "rank 2 on node1 was ended by signal 9".
#[must_use]
pub fn cause(cause: &Cause) -> String {
    match cause {
        Cause::Done => "all ranks ended well".into(),
        Cause::RankExited { rank, status, node } => format!("rank {rank} on {node} exited with code {status}"),
        Cause::RankSignal { rank, signal, node } => format!("rank {rank} on {node} was ended by signal {signal}{}", name_of(*signal)),
        Cause::Abort { rank, status } => format!("rank {rank} called MPI_Abort with code {status}"),
        Cause::Killed => "it was ended by `mend kill`".into(),
        Cause::Interrupted { signal } => format!("signal {signal}{} ended it", name_of(*signal)),
        Cause::TimeUp { signal } => format!("the batch system wanted it to end (signal {signal}{})", name_of(*signal)),
        Cause::NodeLost { node, ranks, why } => format!("node {node} was lost with rank(s) {ranks}: {why}"),
        Cause::MessagesLost { ranks, nodes, why } => {
            format!("messages between rank {} on {} and rank {} on {} were lost: {why}", ranks.0, nodes.0, ranks.1, nodes.1)
        }
        Cause::StartFailed { rank, node, error } => format!("rank {rank} could not be started on {node}: {error}"),
        Cause::RestoreFailed { rank, node, error, .. } => format!("rank {rank} could not be restored on {node}: {error}"),
        Cause::NoCheckpoint { error } => format!("no checkpoint could be used: {error}"),
        Cause::Unreachable { error } | Cause::Failed { error } => error.clone(),
        Cause::ControllerDied => "its controller (`mend run` or `mend restart`) was killed, or its machine went down".into(),
        Cause::Other => "for a reason of a later release".into(),
    }
}

/// " (SIGKILL)" and the like, for the signals that end programs.
fn name_of(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        10 => " (SIGUSR1)",
        11 => " (SIGSEGV)",
        12 => " (SIGUSR2)",
        13 => " (SIGPIPE)",
        14 => " (SIGALRM)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

fn staggered(interval_s: f64, tiers: &[StaggeredTier]) -> String {
    let seconds = |seconds: f64| duration((seconds.max(0.0) * 1e6) as u64);
    let tier = |one: &StaggeredTier| {
        let of = match one.every {
            0 | 1 => format!("{} gets each", one.tier),
            every => format!("{} gets one of {every}", one.tier),
        };
        match (one.copy_s, one.needed_s) {
            (Some(copy_s), Some(needed_s)) => {
                format!("{of} (a copy takes {}, and a failure that needs it comes every {:.0} h)", seconds(copy_s), needed_s / 3600.0)
            }
            (Some(copy_s), None) => format!("{of} (a copy takes {}, and no failure is reckoned with that needs it)", seconds(copy_s)),
            (None, _) => of,
        }
    };
    let tiers: Vec<String> = tiers.iter().map(tier).collect();
    format!("of checkpoints, {} apart, from now on {}", seconds(interval_s), tiers.join("; "))
}

fn left_out(state: &State) -> String {
    let State { tallies, .. } = state;
    let mut text = format!(
        "up to here {} events are left out: {} checkpoints taken, {} failed, {} removed; {} migrations, {} undone",
        state.left_out, tallies.checkpoints, tallies.failed, tallies.removed, tallies.migrations, tallies.undone
    );
    if tallies.targets_lost + tallies.files_healed + tallies.files_not_healed > 0 {
        text += &format!(
            "; targets of data spaces lost {} times, {} files healed ({} fetched), {} not",
            tallies.targets_lost,
            tallies.files_healed,
            size(tallies.healed_bytes),
            tallies.files_not_healed
        );
    }
    text
}

/// One sentence on what happened.
#[must_use]
pub fn sentence(entry: &Entry) -> String {
    let node = entry.node.as_deref().unwrap_or("?");
    let rank = match (entry.rank, &entry.node) {
        (Some(rank), Some(node)) => format!("rank {rank} on {node}"),
        (Some(rank), None) => format!("rank {rank}"),
        (None, _) => "a rank".to_owned(),
    };
    match &entry.event {
        Event::JobStarted { command, ranks, hosts, settings: set, interval, .. } => {
            format!(
                "the job starts: {ranks} rank(s) of `{}` on {}{}{}",
                command.join(" "),
                hosts.join(", "),
                schedule(interval),
                settings(set)
            )
        }
        Event::JobRestarted { checkpoint, ranks, hosts, settings: set, interval, .. } => {
            let on = hosts.join(", ");
            format!("the job goes on from checkpoint {checkpoint}: {ranks} rank(s) on {on}{}{}", schedule(interval), settings(set))
        }
        Event::IntervalChosen { interval_s, incrementals, cost_s, incremental_cost_s, mtbf_s, averted_percent } => {
            let seconds = |seconds: f64| duration((seconds.max(0.0) * 1e6) as u64);
            let cost = cost_s.map_or_else(|| "is not measured yet".into(), |cost| format!("costs the job {}", seconds(cost)));
            let incremental = incremental_cost_s.map_or_else(String::new, |cost| format!(", an incremental one {}", seconds(cost)));
            let averted = match averted_percent {
                0 => String::new(),
                percent => format!(", {percent} % of failures being foreseen"),
            };
            format!(
                "a checkpoint every {} from now on, {incrementals} incremental one(s) between full ones: a full one {cost}{incremental}, and a failure that is not left in \
                 time comes every {:.0} h{averted}",
                seconds(*interval_s),
                mtbf_s / 3600.0
            )
        }
        Event::TiersStaggered { interval_s, tiers } => staggered(*interval_s, tiers),
        Event::GoesOn { cause: why, checkpoint } => {
            format!("the job was stopped: {}; it is to go on by itself, from checkpoint {checkpoint} if that is good", cause(why))
        }
        Event::PassedOver { checkpoint, error } => format!("checkpoint {checkpoint} is passed over: {error}"),
        Event::RestartFailed { cause: why } => format!("the restart failed: {}", cause(why)),
        Event::ControllerDied => "the controller before this one died without a word".into(),
        Event::TookOver { host } => {
            format!("the job's controller was lost; another one on {host} goes on in its place, and the ranks ran on")
        }
        Event::DirectorySilent { ms } => format!("the job's directory did not answer for {}", duration(ms.saturating_mul(1000))),
        Event::NodeReconnected { why } => format!("the connection to node {node} broke ({why}) and was opened again; nothing was lost"),
        Event::NodeReached { address } => format!("node {node} ({address}) takes part"),
        Event::NodeLeftOut { error } => format!("left out: {error}"),
        Event::NodeLost { why, ranks } if ranks.is_empty() => format!("node {node} is lost ({why}); no rank was on it"),
        Event::NodeLost { why, ranks } => format!("node {node} is lost ({why}), with rank(s) {ranks}"),
        Event::NodeUnfit { by: asker, why, mode, left_ms, ranks } => {
            let what = if *asker == Asker::Health { "is sick" } else { "is drained by the batch system" };
            let until = left_ms.map_or_else(String::new, |ms| format!(", within {}", duration(ms.saturating_mul(1000))));
            let how = if mode == "frozen" { "at once, standing still (frozen)" } else { "while they run (live)" };
            match ranks.is_empty() {
                true => format!("node {node} {what}: {why}; it takes no ranks"),
                false => format!("node {node} {what}: {why}; rank(s) {ranks} leave it {how}{until}"),
            }
        }
        Event::NodeFit { by: Asker::Health } => format!("node {node} is well again"),
        Event::NodeFit { .. } => format!("node {node} is not drained any more"),
        Event::NowhereToGo { ranks, error, hint, .. } => {
            with_hint(format!("rank(s) {ranks} are to leave node {node} and have nowhere to go, they run on: {error}"), hint)
        }
        Event::GoesBack { from, to, by, here_us, there_us, left_s, gain_s, cost_s, .. } => {
            let unit = if by == "messages" { "message" } else { "step" };
            let load = if by == "load" { ", by the nodes' load" } else { "" };
            format!(
                "{rank} goes back from {from} to {to}: a {unit} takes {here:.3} ms here and {there:.3} ms there{load}; of {left_s:.1} s that are left it saves \
                 {gain_s:.1} s, and its last move cost {cost_s:.2} s",
                here = here_us / 1e3,
                there = there_us / 1e3
            )
        }
        Event::StaysAway { home, why } => format!("{rank} does not go back to {home}: {why}"),
        Event::FollowsData { from, to, with, goes, waits, share, messages, left_s, gain_s, price_s } => {
            let with = with.map_or_else(String::new, |with| format!(", in exchange for rank {with}"));
            let what = if *goes { "moves to its data" } else { "would gain by moving to its data" };
            format!(
                "{rank} {what}, from {from} to {to}{with}: ranks wait for data {:.1} % of their time, of which that saves {:.0} %{}; of {left_s:.1} s that are \
                 left it saves {gain_s:.1} s, and has to save {price_s:.1} s",
                waits * 100.0,
                share * 100.0,
                of_messages(*messages)
            )
        }
        Event::StaysFromData { to, why } => format!("{rank} does not move to its data on {to}: {why}"),
        Event::SharesWithJob { job, other, node, bytes } => format!(
            "{rank} reads or writes {} of what rank {other} of job {job} does, too, on {node}: on one node it would be fetched once (nobody moves for another job)",
            size(*bytes)
        ),
        Event::FilesSent { space, to, files, bytes } => format!("{} of {space} arrived at {to} ({})", count_of_files(*files), size(*bytes)),
        Event::FilesNotSent { space, to, left, error, hint } => {
            with_hint(format!("{} of {space} not sent to {to}: {error}", count_of_files(*left)), hint)
        }
        Event::TargetLost { .. }
        | Event::TargetBack { .. }
        | Event::ReadFromSource { .. }
        | Event::FileHealed { .. }
        | Event::FileNotHealed { .. }
        | Event::DataEventsLeftOut { .. } => data::sentence(&entry.event, node).unwrap_or_default(),
        Event::Placed { places } => {
            let each = places.iter().map(|(node, ranks)| format!("{node}: {ranks}"));
            format!("ranks are placed: {}", each.collect::<Vec<_>>().join("; "))
        }
        Event::RankStarted => format!("{rank} runs"),
        Event::StartFailed { error, hint, .. } => with_hint(format!("{rank} cannot be started: {error}"), hint),
        Event::RankRestored { us, bytes } => format!("{rank} is restored ({} in {})", size(*bytes), duration(*us)),
        Event::RestoreFailed { error, hint, .. } => with_hint(format!("{rank} cannot be restored: {error}"), hint),
        Event::Resumed { us } => format!("all ranks are restored and run, after {}", duration(*us)),
        Event::AgentUp { executable, main_process: true } => format!("{rank}: its agent answers ({executable})"),
        Event::AgentUp { executable, main_process: false } => format!("{rank}: the agent of its child process answers ({executable})"),
        Event::Agentless => format!("{rank}: no agent will answer"),
        Event::RankExited { status } => format!("{rank} exited with code {status}"),
        Event::RankSignal { signal } => format!("{rank} was ended by signal {signal}{}", name_of(*signal)),
        Event::Abort { status } => format!("{rank} called MPI_Abort with code {status}"),
        Event::SpawnRefused => format!("{rank} asked for more processes (MPI_Comm_spawn) and got none"),
        Event::WorldSpawned { world, command, places } => {
            let each: Vec<String> = places.iter().map(|(node, ranks)| format!("{ranks} on {node}")).collect();
            format!("{rank} starts world {world} (MPI_Comm_spawn): {command}; {}", each.join("; "))
        }
        Event::SpawnFailed { why } => format!("{rank} asked for more processes (MPI_Comm_spawn) and got none: {why}"),
        Event::CheckpointAsked { checkpoint, by: asker, mode, base } => {
            let kind = base.map_or_else(String::new, |base| format!(", building on {base}"));
            format!("checkpoint {checkpoint} begins: {} ({mode}{kind})", by(*asker))
        }
        Event::PhaseDone { phase: which, us, .. } => {
            let of = if entry.rank.is_some() { format!("{rank}: ") } else { String::new() };
            format!("{of}{} took {}", phase(*which), duration(*us))
        }
        Event::ObstacleFound { what, hint } => with_hint(format!("{rank} cannot be saved: {what}"), hint),
        Event::ImageWritten { image, note, .. } => {
            let kind = if image.full { "full" } else { "incremental" };
            let note = note.as_ref().map_or_else(String::new, |note| format!("; {note}"));
            format!("{rank}: its {kind} image is durable ({} in {}){note}", size(image.bytes), duration(image.us))
        }
        Event::CheckpointDecided { checkpoint } => format!("all images of checkpoint {checkpoint} are durable, it is being published"),
        Event::CheckpointCommitted { checkpoint, kind, bytes, stopped_us, durable_us, .. } => {
            let (stopped, durable) = (duration(*stopped_us), duration(*durable_us));
            format!("checkpoint {checkpoint} is complete: {kind}, {}, ranks stopped for {stopped}, durable after {durable}", size(*bytes))
        }
        Event::CheckpointFailed { checkpoint, error, hint, .. } => with_hint(format!("checkpoint {checkpoint} failed: {error}"), hint),
        Event::CheckpointRemoved { checkpoints, by: asker } => {
            let why = if *asker == Asker::User { "a user asked" } else { "superseded" };
            format!("{} removed ({why})", numbers(checkpoints))
        }
        Event::CheckpointMerged { checkpoint } => format!("checkpoint {checkpoint} was merged with those that it built on"),
        Event::PortableCheckpoint { directory, checkpoint, ranks, bytes, us } => {
            format!("portable checkpoint {checkpoint} of {ranks} rank(s) in {directory}: {}, durable after {}", size(*bytes), duration(*us))
        }
        Event::PortableFailed { directory, ranks, error } => format!("no portable checkpoint of {ranks} rank(s) in {directory}: {error}"),
        Event::UpkeepFailed { error } => error.clone(),
        Event::TierComplete { checkpoint, tiers } if tiers.is_empty() => format!("checkpoint {checkpoint} is whole in no tier any more"),
        Event::TierComplete { checkpoint, tiers } => format!("checkpoint {checkpoint} is whole in {}", tiers.join(", ")),
        Event::TierFailed { checkpoint, tier, error } => format!("{tier} does not hold the whole checkpoint {checkpoint}: {error}"),
        Event::TierPassedOver { tier, why } => format!("on {node}, what {tier} would hold goes to the next tier: {why}"),
        Event::MigrationAsked { by: asker, from, to, storage } => {
            let where_to = match (from.as_str(), to.as_str()) {
                ("", _) => "to another node".to_owned(),
                (from, "") => format!("away from {from}"),
                (from, to) => format!("from {from} to {to}"),
            };
            let why = if *asker == Asker::User { String::new() } else { format!(": {}", by(*asker)) };
            let through = storage.map_or("", |storage| match storage {
                Storage::Shared => ", through a file in the shared directory (shared)",
                Storage::Local => ", through a file of the node that it leaves (local)",
                Storage::Staged => ", through a file of the node that it comes to (staged)",
            });
            format!("{rank} is to move {where_to}{through}{why}")
        }
        Event::MigrationDecided { from, to } => format!("{rank}: its copy on {to} is complete, the one on {from} is ended"),
        Event::MigrationCommitted { from, to, bytes, sent_bytes, transport, stopped_us, precopied, .. } => {
            let over = transport.as_ref().map_or_else(String::new, |transport| format!(" over {transport}"));
            let sent = sent_bytes.map_or_else(String::new, |sent| format!(", sent as {}", size(sent)));
            let while_stopped = precopied.as_ref().map_or_else(String::new, |precopied| {
                format!(" ({} round(s) while it ran, {} of it while it stood still)", precopied.rounds, size(precopied.stopped_bytes))
            });
            format!("{rank} moved from {from} to {to}{over}: {}{while_stopped}{sent}, stopped for {}", size(*bytes), duration(*stopped_us))
        }
        Event::RoundDone { round, bytes, us, left } => {
            let left = left.map_or_else(String::new, |left| format!(", {} changed meanwhile", size(left)));
            format!("{rank}: round {round} of copying it took {} ({}{left})", duration(*us), size(*bytes))
        }
        Event::MigrationUndone { error, hint, .. } => with_hint(format!("{rank} stays where it was: {error}"), hint),
        Event::ChannelBroke { peer, why } => format!("{rank}: the channel with rank {peer} broke: {why}"),
        Event::DrainSlow { peers, us } => format!("{rank}: channels with rank(s) {peers} have not drained after {}", duration(*us)),
        Event::MessagesLost { peer, why } => format!("{rank}: messages to or from rank {peer} are lost: {why}"),
        Event::RanksPaused { ranks } => format!("rank(s) {ranks} on {node} stand still for the job's next life"),
        Event::WentBack { bytes } => format!("{rank} went back in place: {} of its memory were rewritten", size(*bytes)),
        Event::NotInPlace { why } => format!("{rank} could not go back in place and is restored in a new process: {why}"),
        Event::Noticed { what } => format!("{rank}: {what}"),
        Event::Interrupted { signal } => format!("signal {signal}{} came and is passed on to the ranks", name_of(*signal)),
        Event::TimeUp { signal } => {
            format!("signal {signal}{}: the batch system wants the job to end; a last checkpoint comes first", name_of(*signal))
        }
        Event::KillAsked => "`mend kill` ends the job".into(),
        Event::Ended { status, cause: why } => format!("the job ended with exit code {status}: {}", cause(why)),
        Event::Compacted { state } => left_out(state),
        Event::Unknown { event, .. } => format!("an event of a later release: {event}"),
    }
}

/// One sentence on how a job stands, or ended.
#[must_use]
pub fn standing(state: &State) -> String {
    match &state.ended {
        Some(end) => cause(&end.cause),
        None if state.lives == 0 => "nothing is on record".into(),
        None => format!("{} rank(s) run", state.running.count()),
    }
}
