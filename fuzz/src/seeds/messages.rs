//! Messages: at least one of each kind, with something in every list and choice.

use super::tiers::{tier_orders, tier_reports};
use super::values::{address, id, order};
use super::{Seed, keep};
use mend_image::cpu::{Cpu, Features};
use mend_messages::agent::{
    Compression, FromAgent, Hello, Inspection, Obstacle, Reply, Request, RollbackOrder, Round, SaveMode, SaveOrder, SaveTarget, Saved,
    ToAgent, Tracking, Unasked, Unwritten, Welcome, Written,
};
use mend_messages::chunks::{ChunkMode, ChunkSetup, OfferedChunks, Transport, TransportWord};
use mend_messages::control::{
    Answer, Ask, CheckpointDone, Explanation, JobStatus, MigrationDone, MoveMode, MoveProgress, Phases, PortableNote, Precopied,
    RankStatus, StopReason,
};
use mend_messages::daemon::{
    ExitStatus, FromDaemon, JobIntroduction, NodeRoom, Question, RestoreBlame, RestoreSource, Resumption, Stream, Succession,
    SuccessorCommand, ToDaemon, Way,
};
use mend_messages::files::{FileState, FileUse, KeepOrder, Keeping, KeptFile, NotPut, PutBack, PutOrder};
use mend_messages::frame;
use mend_messages::health::{Grade, Milli, NodeHealth, NodeReport, Reading, Unread};
use mend_messages::job::{FabricAddress, FurtherProgram, JobMap, MapEntry, Program, Secret};
use mend_messages::needs::{Difference, FileDifference, FileUsage, NeededFile, NodeNeeds};
use mend_messages::progress::{Progress, RankProgress, RankTraffic, Sent, Step, Traffic};
use mend_messages::report::Report;
use mend_messages::space_report::{Healed, HealingFault, SourceFault, SpaceEvent, SpaceReport, SpaceReports, TargetFault};
use mend_messages::transfer::{Answer as TransferAnswer, Offer};
use mend_messages::world::{SpawnedCommand, World};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// The inputs of one kind of the target's, each message named by its variant.
fn of_kind<M: Serialize + DeserializeOwned + Debug>(kind: u8, prefix: &str, messages: &[M]) -> Vec<Seed> {
    let mut variants = Vec::new();
    let mut seeds: Vec<Seed> = Vec::new();
    for message in messages {
        let framed = frame::encode(message).expect("a short message");
        let body = &framed[4..];
        let again: M = frame::decode(body).expect("a message");
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
        variants.push(body[0]);
        let shown = format!("{message:?}");
        let variant = shown.split(|at: char| !at.is_alphanumeric()).next().unwrap_or_default();
        let number = seeds.iter().filter(|seed| seed.name.starts_with(&format!("{prefix}-{variant}-"))).count();
        seeds.push(Seed { name: format!("{prefix}-{variant}-{number}"), bytes: [&[kind], body].concat() });
    }
    variants.dedup();
    assert!(variants.iter().enumerate().all(|(number, variant)| number == usize::from(*variant)), "{prefix}: {variants:?}");
    // A further variant would be chosen by the next number, with some zeros for what it holds.
    let mut next = vec![variants.len() as u8];
    next.resize(200, 0);
    assert!((1..next.len()).all(|length| frame::decode::<M>(&next[..length]).is_err()), "{prefix} has more variants than are written here");
    seeds
}

fn map() -> JobMap {
    let address = FabricAddress { tcp: address(), unix: "mend-fabric-0".into() };
    let entry = |rank, open| MapEntry { rank, node: rank, generation: 2, open, address: open.then(|| address.clone()), ended: false };
    JobMap { version: 3, entries: vec![entry(0, true), entry(1, false)] }
}

fn traffic() -> Traffic {
    Traffic { over_us: 2_000_100, sent: vec![Sent { peer: 3, bytes: 1 << 20, messages: 80 }, Sent { peer: 0, bytes: 8, messages: 1 }] }
}

fn progress() -> Progress {
    Progress { step: Some(Step { done: 3, total: 40, at_us: 8_500_000 }), calls: 1000, waited_us: 250, at_us: 9_000_000 }
}

fn health() -> NodeHealth {
    NodeHealth { grade: Grade::Low, left_ms: Some(5000), why: "bmc:CPU Temp is 91 °C, low mark 85".into() }
}

fn node_report() -> NodeReport {
    let reading = |marks, grade, left_ms: Option<u64>| Reading {
        sensor: "bmc:CPU Temp".into(),
        value: Milli(91_000),
        unit: "°C".into(),
        marks,
        grade,
        per_minute: left_ms.map(|_| Milli(-3)),
        left_ms,
        age_ms: 900,
    };
    let unread = |failed| Unread { source: "plugin:/etc/mend/nhc".into(), error: "it took longer than 10 s and was killed".into(), failed };
    NodeReport {
        name: "node1".into(),
        watched: true,
        health: health(),
        room: NodeRoom { memory: 1 << 30, processors: 64, load: 150 },
        memory: 1 << 40,
        ranks: 3,
        readings: vec![reading(Some((Milli(85_000), Milli(95_000))), Grade::Low, Some(5000)), reading(None, Grade::Well, None)],
        unread: vec![unread(true), unread(false)],
    }
}

fn phases() -> Phases {
    Phases { suspend_us: 90, write_us: 1200, transfer_us: 3, restart_us: 4000, reconnect_us: 800 }
}

fn requests() -> Vec<Request> {
    vec![
        Request::Inspect { ahead: Some(id(1)), files: true },
        Request::Suspend,
        Request::SuspendPeer(3),
        Request::Save(order()),
        Request::Save(SaveOrder::full(SaveTarget::Descriptor)),
        Request::Save(SaveOrder::full(SaveTarget::Begun)),
        Request::Precopy { answered: true, compression: Compression::Always },
        Request::EndPrecopy,
        Request::KeepFiles(KeepOrder { checkpoint: "/srv/7.part".into(), limit: 64 << 20, seal: Some([8; 32]) }),
        Request::SyncFiles,
        Request::Pause,
        Request::RollBack(RollbackOrder { image: id(2), zone: 1, images: 2, roles: vec![0, 1, 3], put_back: Some(put_back()) }),
        Request::Resume,
    ]
}

fn written() -> Written {
    Written { bytes: 1 << 20, pages: 250, checksum: u64::MAX, write_us: 5000 }
}

fn inspection() -> Inspection {
    let obstacles = vec![Obstacle { what: "socket to 10.0.0.7:443 (fd 12)".into(), hint: "close it".into() }];
    let tracking = Tracking { method: "soft-dirty".into(), why: vec!["no write protection".into()], since: Some(id(1)) };
    let written_files = vec![("/srv/out".to_owned(), 4096)];
    Inspection {
        obstacles,
        threads: 3,
        image_bytes: 1 << 30,
        fabric_in_use: true,
        executable: "/usr/bin/lmp".into(),
        tracking,
        written_files,
        needs: Box::new(needs()),
    }
}

fn needs() -> NodeNeeds {
    let file = |path: &str, usage| NeededFile { path: path.into(), usage };
    let files = vec![
        file("/opt/app/libfoo.so", FileUsage::Mapped { size: 1 << 20, modified: None, sample: u64::MAX }),
        file("/opt/app/table", FileUsage::Mapped { size: 77, modified: Some((5, 6)), sample: 9 }),
        file("/srv/in", FileUsage::Read { size: 4096 }),
        file("/srv/out", FileUsage::Written),
        file("/srv", FileUsage::Directory),
        file("/srv/watched", FileUsage::Place),
    ];
    NodeNeeds { processor: cpu().needs(Features([1, 0])), vdso: Some((u64::MAX, 8192)), files }
}

fn differences() -> Vec<Difference> {
    let file = |what| Difference::File { path: "/opt/app/libfoo.so".into(), what };
    vec![
        Difference::Kernel { release: "6.18".into() },
        file(FileDifference::Absent),
        file(FileDifference::Unreadable("permission denied".into())),
        file(FileDifference::Kind),
        file(FileDifference::Size { there: 3, here: 4 }),
        file(FileDifference::Content),
    ]
}

fn cpu() -> Cpu {
    Cpu { features: Features([u64::MAX, 5]), enabled: 0xe7, area: 2440, components: [(256, 576); 18] }
}

fn put_back() -> PutBack {
    PutBack { except: vec!["/data/large".into()] }
}

fn kept_files() -> Vec<KeptFile> {
    let state =
        FileState { size: 4096, mode: 0o640, owner: (1000, 1000), inode: 77, born: Some((3, 4)), modified: (5, 6), changed: (7, 8) };
    let file = |path: &str, usage, keeping| KeptFile { key: path.into(), rank: 1, path: path.into(), usage, state, keeping };
    let content = Keeping::Content { name: "0-77".into(), stored: 4096, checksum: Some(u64::MAX) };
    vec![
        file("/srv/out", FileUse::Write, content),
        file("/srv/log", FileUse::Append, Keeping::State),
        file("/srv/in", FileUse::Read, Keeping::Elsewhere),
        file("/srv/big", FileUse::Write, Keeping::Not("too large".into())),
    ]
}

fn replies() -> Vec<Reply> {
    let saved = Saved {
        id: id(2),
        base: Some(id(1)),
        sequence: 1,
        behind: true,
        bytes: 1 << 20,
        spared: 1 << 19,
        pages: 250,
        checksum: 77,
        park_us: 40,
        write_us: 5000,
        note: Some("the program stood still".into()),
    };
    vec![
        Reply::Inspected(inspection()),
        Reply::Suspended { us: 70 },
        Reply::Saved(saved),
        Reply::Precopying,
        Reply::PrecopyEnded,
        Reply::Kept(kept_files()),
        Reply::Synced,
        Reply::Paused,
        Reply::Compared(differences()),
        Reply::Resumed { stopped_us: 3000 },
        Reply::Failed { error: "no room".into(), hint: String::new() },
        Reply::Unasked(Unasked::Left),
    ]
}

fn reports() -> Vec<Report> {
    vec![
        Report::ChannelBroke { peer: 2, why: "Connection reset by peer (os error 104)".into() },
        Report::DrainSlow { peers: vec![0, 2], waited_us: 2_000_000 },
        Report::ImageRead { us: 5000, bytes: 1 << 28 },
        Report::Rebuilt { us: 900 },
        Report::WentBack { bytes: 1 << 20 },
        Report::NotInPlace { why: "thread 7 has ended since".into() },
        Report::ProcessKilled { what: "what watches it was killed".into() },
    ]
}

fn space_reports() -> SpaceReports {
    let target = || "node2:/tmp/mend-space/input".to_owned();
    let faults = [
        TargetFault::Silent { ms: 5000 },
        TargetFault::Unreachable { error: "Connection refused (os error 111)".into() },
        TargetFault::Absent,
        TargetFault::Damaged,
        TargetFault::Failed { error: "its medium is full".into() },
    ];
    let healed = Healed {
        file: "run7/in.dat".into(),
        lacked: vec![target()],
        fetched: 1 << 20,
        copied: 1 << 16,
        sources: vec!["https://archive/run7/in.dat".into()],
        targets: vec!["node3:/tmp/mend-space/input".into()],
        us: 900_000,
    };
    let source = SourceFault { uri: "https://archive/run7/in.dat".into(), error: Some("404 Not Found".into()) };
    let reasons = [
        HealingFault::NoSource { lost: 1 << 20, lacked: vec![target()], sources: vec![source] },
        HealingFault::NoRoom { lost: 1 << 20, error: "no target answers".into() },
        HealingFault::NoCopy { lacked: vec![target()] },
        HealingFault::Target { error: "it broke".into() },
        HealingFault::Program { program: "mend-data".into(), error: "No such file or directory (os error 2)".into() },
        HealingFault::Other { error: "cannot".into(), hint: "try".into() },
    ];
    let mut events = vec![SpaceEvent::Begun];
    events.extend(faults.into_iter().map(|why| SpaceEvent::TargetLost { target: target(), why }));
    events.push(SpaceEvent::TargetBack { target: target(), lost_ms: 7000 });
    let (file, why) = ("run7/in.dat".to_owned(), TargetFault::Silent { ms: 250 });
    events.push(SpaceEvent::ReadFromSource { file, target: target(), why, bytes: 1 << 20, reads: 3 });
    events.push(SpaceEvent::Healed(healed));
    events.extend(reasons.into_iter().map(|why| SpaceEvent::NotHealed { file: "run7/in.dat".into(), why }));
    let reports = events.into_iter().map(|event| SpaceReport { space: "input".into(), event }).collect();
    SpaceReports { reports, left_out: 2 }
}

fn round() -> Round {
    Round { number: 2, done: true, bytes: 1 << 20, us: 700, total: 1 << 30, spared: 1 << 29, left: Some(9 << 20) }
}

fn from_agent() -> Vec<FromAgent> {
    let hello = Hello { protocol: 3, rank: 1, pid: 4711, main_process: true, executable: "/usr/bin/lmp".into() };
    let mut all = vec![
        FromAgent::Hello(hello),
        FromAgent::Restored { rank: 1, rebuild_us: 900 },
        FromAgent::RestoreFailed { error: "/tmp/x is gone".into(), files: true },
        FromAgent::FabricUp(FabricAddress { tcp: address(), unix: "mend-fabric-1".into() }),
    ];
    all.extend(replies().into_iter().zip(1..).map(|(reply, seq)| FromAgent::Reply { seq, reply }));
    all.extend([
        FromAgent::FabricInUse,
        FromAgent::MessagesLost { peer: 2, why: "closed by the peer".into() },
        FromAgent::Written { id: id(2), result: Ok(written()) },
        FromAgent::Written { id: id(2), result: Err("killed by signal 9".into()) },
    ]);
    all.extend(reports().into_iter().map(FromAgent::Report));
    all.push(FromAgent::Round(round()));
    all.push(FromAgent::PrecopyFailed { error: "the receiver is gone".into(), hint: "try again".into() });
    all.push(FromAgent::Progress(progress()));
    all.push(FromAgent::Traffic(traffic()));
    all
}

fn to_agent() -> Vec<ToAgent> {
    let unused_features = Features([1 << 20, 1]);
    let welcome = Welcome {
        job: [5; 16],
        secret: Secret([6; 32]),
        rank: 1,
        size: 2,
        node: 0,
        ip: address().ip(),
        encrypt_data: true,
        unused_features,
    };
    let mut all = vec![ToAgent::Welcome(welcome), ToAgent::Map(map())];
    all.extend(requests().into_iter().zip(1..).map(|(request, seq)| ToAgent::Request { seq, request }));
    all.push(ToAgent::WatchTraffic);
    all
}

fn ask() -> Vec<Ask> {
    vec![
        Ask::Status,
        Ask::Checkpoint { mode: Some(SaveMode::Stop) },
        Ask::Migrate { rank: 1, to: Some("node2".into()), avoid: vec!["node3".into()], mode: MoveMode::Live, deadline_ms: Some(20_000) },
        Ask::Hurry { rank: 1 },
        Ask::CancelMove { rank: 1 },
        Ask::Explain,
        Ask::Remove { numbers: vec![1, 2, 300] },
        Ask::Kill,
        Ask::NotePortable(PortableNote { directory: "/ckpt".into(), ranks: 4, us: 900_000, taken: Ok((48, 123)) }),
    ]
}

fn world() -> World {
    let command = |ranks, name: &str| SpawnedCommand {
        ranks,
        argv: vec![name.into(), "-x".into()],
        directory: Some("/data".into()),
        path: Some("/opt/bin".into()),
    };
    World { first: 4, parent: 1, commands: vec![command(2, "filter"), command(1, "model")] }
}

fn answer() -> Vec<Answer> {
    let status = JobStatus {
        id: "lmp-3f2a".into(),
        command: vec!["lmp".into(), "-in".into(), "in.melt".into()],
        state: "running".into(),
        uptime_s: 60,
        hosts: vec!["node1".into(), "node2".into()],
        daemons: vec![address()],
        ranks: vec![RankStatus {
            rank: 0,
            host: "node1".into(),
            to: Some("node2".into()),
            state: "moving".into(),
            ended: false,
            world: 1,
            world_rank: 3,
        }],
        last_checkpoint: Some(7),
        restart: Some(phases()),
        interval_s: Some(61.5),
        incrementals: 5,
        extra_recovery_s: Some(0.25),
        restarts_measured: 2,
    };
    let done = CheckpointDone {
        number: 7,
        directory: "/srv/7".into(),
        bytes: 1 << 30,
        phases: phases(),
        stopped_us: 30_000,
        durable_us: 900_000,
        notes: vec!["rank 0 stood still".into()],
    };
    let precopied = Precopied { rounds: 3, bytes: 1 << 28, stopped_bytes: 1 << 20, us: 400_000, why: StopReason::LittleLeft };
    let moved = MigrationDone {
        rank: 1,
        from: "node1".into(),
        to: "node2".into(),
        bytes: 1 << 28,
        sent_bytes: 1 << 27,
        transport: TransportWord::Ofi,
        phases: phases(),
        stopped_us: 90_000,
        precopied: Some(precopied),
    };
    let moving = MoveProgress {
        rank: 1,
        round: 1,
        done: false,
        round_bytes: 1 << 20,
        bytes: 1 << 28,
        rate: 1 << 30,
        dirty_rate: Some(1 << 22),
        left: Some(8 << 20),
        left_us: Some(8000),
    };
    let explained = vec![
        Explanation { rank: 0, host: "node1".into(), inspection: Ok(inspection()) },
        Explanation { rank: 1, host: "node2".into(), inspection: Err("no agent".into()) },
    ];
    vec![
        Answer::Progress("rank 1: writing".into()),
        Answer::Status(status),
        Answer::Checkpoint(done),
        Answer::Moving(moving),
        Answer::Migrated(moved),
        Answer::Hurried,
        Answer::CancelledMove,
        Answer::Explained(explained),
        Answer::Removed,
        Answer::Killed,
        Answer::Noted,
        Answer::Failed { error: "no such rank".into(), hint: "`mend ps` lists them".into() },
    ]
}

fn to_daemon() -> Vec<ToDaemon> {
    let program = Program {
        argv: vec!["lmp".into(), "-in".into(), "in.melt".into()],
        env: vec![("PATH".into(), "/usr/bin".into())],
        cwd: "/srv/users".into(),
        umask: Some(0o027),
        further: vec![FurtherProgram { first: 2, argv: vec!["filter".into()], env: Vec::new(), cwd: "/srv".into() }],
    };
    let introduction = JobIntroduction {
        id: "lmp-3f2a".into(),
        identity: [5; 16],
        secret: Secret([6; 32]),
        size: 2,
        node: 0,
        program,
        encryption_key: Some("/srv/users/key".into()),
        encrypt_data: true,
        compression: Compression::Auto,
        transport: Transport::Ofi(ChunkSetup {
            provider: "verbs;ofi_rxm".into(),
            mode: ChunkMode::Write,
            chunk_bytes: 128 << 10,
            chunks: 64,
        }),
        node_timeout_ms: 10_000,
        epoch: 1_764_021_600_000_000,
        ranks: vec![0, 2],
        session: [5; 16],
        lease_ms: 20_000,
        unused_features: Features([0, 1 << 3]),
        successor: Some(SuccessorCommand {
            executable: "/usr/bin/mend".into(),
            directory: "/mnt/shared/.mend/jobs/x".into(),
            environment: vec![("A".into(), "b".into())],
        }),
        worlds: vec![world()],
    };
    let files = RestoreSource::Files(vec!["/srv/7/rank-1.image".into(), "/srv/6/rank-1.image".into()]);
    let mut all = vec![
        ToDaemon::Introduce(Box::new(introduction)),
        ToDaemon::Start { rank: 1, attempt: 3, stdin: true },
        ToDaemon::Pmi { rank: 1, bytes: b"cmd=barrier_out\n".to_vec() },
        ToDaemon::Stdin { rank: 0, bytes: b"a line\n".to_vec() },
        ToDaemon::Map(map()),
    ];
    all.extend(requests().into_iter().zip(1..).map(|(request, seq)| ToDaemon::Ask(vec![vec![Question { seq, rank: 1, request }]])));
    all.extend([
        ToDaemon::Ask(requests().into_iter().zip(10..).map(|(request, seq)| vec![Question { seq, rank: 1, request }]).collect()),
        ToDaemon::SaveTo { seq: 9, rank: 1, address: address(), token: [3; 16], way: Way::Local },
        ToDaemon::PrecopyTo { seq: 9, rank: 1, address: address(), token: [3; 16] },
        ToDaemon::Restore { rank: 1, attempt: 3, source: files, image: Some(id(2)), stdin: false, put_back: Some(put_back()) },
        ToDaemon::Restore {
            rank: 1,
            attempt: 3,
            source: RestoreSource::Transfer { token: [3; 16], way: Way::Shared("/ckpt/rank-1.image.moving".into()) },
            image: None,
            stdin: true,
            put_back: None,
        },
        ToDaemon::Compare { seq: 9, rank: 1, needs: Box::new(needs()) },
        ToDaemon::PutFiles(Box::new(PutOrder {
            checkpoint: "/srv/7".into(),
            files: kept_files(),
            elsewhere: vec!["/srv/.data.shfp.7".into()],
        })),
        ToDaemon::Discard { rank: 1 },
    ]);
    all.extend(tier_orders().into_iter().map(|order| ToDaemon::Tier(Box::new(order))));
    let resumption = Resumption { identity: [8; 16], epoch: 1_764_021_600_000_000, session: [5; 16], delivered: 300 };
    all.extend([
        ToDaemon::Signal(-15),
        ToDaemon::Pause,
        ToDaemon::End { goes_on: true },
        ToDaemon::Ping { at_us: 7 },
        ToDaemon::Resume(resumption.clone()),
        ToDaemon::Succeed(Box::new(Succession { of: resumption.clone(), session: [9; 16] })),
        ToDaemon::AskVote { of: resumption.clone(), silence_ms: 1000 },
        ToDaemon::Look,
        ToDaemon::Grow(world()),
        ToDaemon::AskConfirmed { of: resumption, ping_us: Some(9) },
    ]);
    all
}

/// Not an enumeration, so that there are no variants.
fn offers() -> Vec<Seed> {
    let offer = |(name, nonce, chunks): (&str, Option<[u8; 32]>, Option<OfferedChunks>)| {
        let offer = Offer { token: [3; 16], nonce, chunks };
        let framed = frame::encode(&offer).expect("a short message");
        assert_eq!(frame::decode::<Offer>(&framed[4..]).as_ref(), Ok(&offer));
        Seed { name: format!("offer-{name}"), bytes: [&[6], &framed[4..]].concat() }
    };
    let chunks = OfferedChunks { library: Some("/opt/mpi/lib/libfabric.so.1".into()), address: vec![2, 0, 7, 8, 10, 0, 0, 1] };
    [("plain", None, None), ("encrypted", Some([4; 32]), None), ("chunks", None, Some(chunks))].map(offer).into()
}

fn from_daemon() -> Vec<FromDaemon> {
    let failed = || ("cannot".to_owned(), "try".to_owned());
    let (error, hint) = failed();
    let mut all = vec![
        FromDaemon::Ready { name: "node1".into(), processor: Box::new(cpu()), succeeds: true },
        FromDaemon::Started { rank: 1 },
        FromDaemon::StartFailed { rank: 1, attempt: 3, error, hint, code: 127 },
        FromDaemon::AgentUp { rank: 1, main_process: true, executable: "/usr/bin/lmp".into() },
        FromDaemon::Agentless { rank: 1 },
        FromDaemon::FabricUp { rank: 1, attempt: 3, address: FabricAddress { tcp: address(), unix: "mend-fabric-1".into() } },
        FromDaemon::FabricInUse { rank: 1 },
        FromDaemon::MessagesLost { rank: 1, peer: 2, why: "Connection reset by peer (os error 104)".into() },
        FromDaemon::Pmi { rank: 1, bytes: b"cmd=init pmi_version=1\n".to_vec() },
        FromDaemon::Output { rank: 1, stream: Stream::Stderr, bytes: b"Step 100\n".to_vec() },
    ];
    all.extend(replies().into_iter().zip(1..).map(|(reply, seq)| FromDaemon::Agent { seq, rank: 1, reply }));
    let (error, hint) = failed();
    all.extend([
        FromDaemon::Written { rank: 1, id: id(2), result: Ok(written()) },
        FromDaemon::Written { rank: 1, id: id(2), result: Err(Unwritten::Ended) },
        FromDaemon::Restored { rank: 1, attempt: 3, restart_us: 4000, bytes: 1 << 28 },
        FromDaemon::RestoreFailed { rank: 1, attempt: 3, error, hint, blame: RestoreBlame::Image },
        FromDaemon::FilesPut(Ok(vec!["/srv/in has changed since".into()])),
        FromDaemon::FilesPut(Err(NotPut { error: "/srv/out: Permission denied".into(), kept: false })),
        FromDaemon::Exited { rank: 1, attempt: 3, status: ExitStatus::Signal(11) },
    ]);
    all.extend(tier_reports().into_iter().map(FromDaemon::Tier));
    all.extend([
        FromDaemon::Pong(NodeRoom { memory: 1 << 34, processors: 64, load: 1250 }),
        FromDaemon::Refused { error: "another release".into() },
        FromDaemon::StdinTaken { rank: 0 },
        FromDaemon::StdinHeld { rank: 0, again: 7, begun: 4096 },
        FromDaemon::StdinLeft { rank: 0, attempt: 3, bytes: b"a line\n".to_vec() },
    ]);
    all.push(FromDaemon::Round { rank: 1, round: round() });
    all.push(FromDaemon::PrecopyFailed { rank: 1, error: "the receiver is gone".into(), hint: "try again".into() });
    all.extend(reports().into_iter().map(|report| FromDaemon::Report { rank: 1, report }));
    all.extend([
        FromDaemon::Resumed { delivered: 299 },
        FromDaemon::Succeeded { orders: 17 },
        FromDaemon::Voted { successor: true },
        FromDaemon::Paused { ranks: vec![0, 2] },
        FromDaemon::Left,
    ]);
    all.extend([FromDaemon::Health(health()), FromDaemon::Seen(Box::new(node_report()))]);
    all.push(FromDaemon::Progress(vec![RankProgress { rank: 2, attempt: 5, progress: progress() }]));
    all.push(FromDaemon::Traffic(vec![RankTraffic { rank: 2, attempt: 5, traffic: traffic() }]));
    all.extend([FromDaemon::TimeUp { signal: 15 }, FromDaemon::LeaseOver { ms: 3000, stood_still_ms: 40 }]);
    all.push(FromDaemon::Confirmed { yes: true });
    all.push(FromDaemon::Spaces(space_reports()));
    all
}

#[test]
fn a_message_of_each_kind_is_accepted() {
    let seeds = [
        of_kind(0, "from-agent", &from_agent()),
        of_kind(1, "to-agent", &to_agent()),
        of_kind(2, "ask", &ask()),
        of_kind(3, "answer", &answer()),
        of_kind(4, "from-daemon", &from_daemon()),
        of_kind(5, "to-daemon", &to_daemon()),
        offers(),
        of_kind(
            7,
            "transfer-answer",
            &[
                TransferAnswer::Wanted { nonce: Some([5; 32]) },
                TransferAnswer::OtherEncryption,
                TransferAnswer::WantedInChunks { address: vec![2, 0, 7, 8] },
                TransferAnswer::NoChunks { why: "no provider".into() },
            ],
        ),
    ];
    keep("frame", &seeds.into_iter().flatten().collect::<Vec<_>>());
}
