//! The router between controller and agents. The agents here are played by this very test binary, run as a rank.

use crate::controller::{Controller, Daemon, for_each_isolated_user, for_each_user};
use mend_image::{Header, put_text};
use mend_messages::PROTOCOL;
use mend_messages::agent::{
    FromAgent, Hello, ImageId, Inspection, Reply, Request, SaveMode, SaveOrder, SaveTarget, Saved, ToAgent, Unasked, Welcome, Written,
};
use mend_messages::daemon::{ExitStatus, FromDaemon, Question, RestoreBlame, RestoreSource, ToDaemon, Way};
use mend_messages::frame;
use mend_messages::job::{FabricAddress, JobMap};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Command;

const ACT: &str = "MEND_TEST_ACT";
const LAST_WORDS: &str = "written before the save\n";
const IMAGE: ImageId = ImageId([5; 16]);

/// Not a test of its own: the rank's side of the others.
#[test]
fn act() {
    let Ok(act) = std::env::var(ACT) else { return };
    let name = std::env::var("MEND_SOCKET").unwrap();
    let address = SocketAddr::from_abstract_name(name.strip_prefix('@').unwrap()).unwrap();
    let mut stage = Stage { socket: UnixStream::connect_addr(&address).unwrap(), files: Vec::new() };
    if act == "garbage" {
        stage.socket.write_all(&[0xee; 64]).unwrap();
        let mut rest = Vec::new();
        // The end, or a reset: either way it is over.
        let _ = stage.socket.read_to_end(&mut rest);
        assert!(rest.is_empty());
        return;
    }
    stage.say(&FromAgent::Hello(Hello {
        protocol: PROTOCOL,
        rank: std::env::var("MEND_RANK").unwrap().parse().unwrap(),
        pid: std::process::id(),
        main_process: act != "child",
        executable: "/opt/actor".into(),
    }));
    let Some(ToAgent::Welcome(welcome)) = stage.hear() else { panic!("no welcome") };
    stage.say(&FromAgent::FabricUp(fabric(&welcome)));
    while let Some(message) = stage.hear() {
        match message {
            ToAgent::Map(map) => println!("map {}", map.version),
            ToAgent::Request { .. } if act == "deserter" => return,
            ToAgent::Request { seq, request } => {
                let behind = matches!(&request, Request::Save(order) if order.mode == SaveMode::CopyOnWrite);
                let reply = stage.perform(request, &welcome);
                stage.say(&FromAgent::Reply { seq, reply });
                if behind && act == "leaver" {
                    return;
                }
                if behind {
                    stage.say(&FromAgent::Written { id: IMAGE, result: Ok(Written { bytes: 9, ..Written::default() }) });
                }
            }
            ToAgent::WatchTraffic => {}
            ToAgent::Welcome(_) => panic!("a second welcome"),
        }
    }
    println!("the daemon hung up");
}

fn fabric(welcome: &Welcome) -> FabricAddress {
    FabricAddress { tcp: (welcome.ip, 4711).into(), unix: format!("fabric-{}-{}", welcome.rank, welcome.node) }
}

struct Stage {
    socket: UnixStream,
    files: Vec<OwnedFd>,
}

impl Stage {
    fn say(&mut self, message: &FromAgent) {
        self.socket.write_all(&frame::encode(message).unwrap()).unwrap();
    }

    fn hear(&mut self) -> Option<ToAgent> {
        let mut prefix = [0; 4];
        self.fill(&mut prefix)?;
        let mut body = vec![0; frame::body_length(prefix).unwrap()];
        self.fill(&mut body)?;
        Some(frame::decode(&body).unwrap())
    }

    fn fill(&mut self, mut wanted: &mut [u8]) -> Option<()> {
        while !wanted.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(&self.socket, &mut [IoSliceMut::new(wanted)], &mut ancillary, RecvFlags::empty()).ok()?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    self.files.extend(files);
                }
            }
            if received.bytes == 0 {
                return None;
            }
            wanted = &mut wanted[received.bytes..];
        }
        Some(())
    }

    fn perform(&mut self, request: Request, welcome: &Welcome) -> Reply {
        match request {
            Request::Inspect { .. } => Reply::Inspected(Inspection { threads: 7, ..Inspection::default() }),
            Request::Suspend | Request::SuspendPeer(_) => Reply::Suspended { us: 5 },
            Request::Precopy { .. } => Reply::Precopying,
            Request::EndPrecopy => Reply::PrecopyEnded,
            Request::Save(order) => {
                if let SaveTarget::Descriptor = order.target {
                    let mut header = Header { rank: welcome.rank, size: welcome.size, pid: 1000, job: welcome.job, ..Header::default() };
                    header.set_cpu(&mend_kernel::processor::detect().needs(welcome.unused_features));
                    let stalling = std::env::var(ACT).unwrap() == "stalling";
                    put_text(&mut header.executable, if stalling { b"/bin/sh" } else { b"/no/such/program" });
                    let mut stream = std::fs::File::from(self.files.pop().unwrap());
                    stream.write_all(&header.to_bytes()).unwrap();
                    if stalling {
                        // Long enough to be killed with the rank.
                        std::thread::sleep(std::time::Duration::from_secs(1000));
                    }
                    // The target closes it when it has seen enough.
                    let _ = stream.write_all(&[0; 4096]);
                }
                std::io::stdout().write_all(LAST_WORDS.repeat(5000).as_bytes()).unwrap();
                std::io::stdout().flush().unwrap();
                let behind = order.mode == SaveMode::CopyOnWrite;
                Reply::Saved(Saved { id: IMAGE, behind, pages: 3, ..Saved::default() })
            }
            Request::KeepFiles(_) => Reply::Kept(Vec::new()),
            Request::SyncFiles => Reply::Synced,
            Request::Pause | Request::RollBack(_) => Reply::Failed { error: "not in this play".into(), hint: String::new() },
            Request::Resume => {
                println!("goes on");
                Reply::Resumed { stopped_us: 0 }
            }
        }
    }
}

/// A job of two ranks whose rank 0 plays `act`, past its first words.
async fn performance(daemon: &Daemon, act: &str) -> Controller {
    let program = std::env::current_exe().unwrap();
    let mut introduction = daemon.introduction(&[program.to_str().unwrap(), "--exact", "agents::act", "--nocapture"], 2);
    introduction.program.env.push((ACT.into(), act.into()));
    let mut job = daemon.introduced(introduction).await;
    job.start(0, false).await;
    job
}

/// The next message that is not output.
async fn news(job: &mut Controller) -> FromDaemon {
    loop {
        match job.next().await {
            FromDaemon::Output { .. } => {}
            other => return other,
        }
    }
}

async fn until_fabric(job: &mut Controller, main_process: bool) -> FabricAddress {
    assert_eq!(news(job).await, FromDaemon::Started { rank: 0 });
    assert_eq!(news(job).await, FromDaemon::AgentUp { rank: 0, main_process, executable: "/opt/actor".into() });
    match news(job).await {
        FromDaemon::FabricUp { rank: 0, address, .. } => address,
        other => panic!("{other:?}"),
    }
}

fn one(seq: u64, request: Request) -> ToDaemon {
    ToDaemon::Ask(vec![vec![Question { seq, rank: 0, request }]])
}

async fn ask(job: &mut Controller, seq: u64, request: Request) -> Reply {
    job.send(one(seq, request)).await;
    match news(job).await {
        FromDaemon::Agent { seq: answered, rank: 0, reply } if answered == seq => reply,
        other => panic!("{other:?}"),
    }
}

fn failure(reply: Reply) -> String {
    match reply {
        Reply::Failed { error, hint } => format!("{error} | {hint}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn questions_and_maps_reach_the_agent_and_answers_come_back() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = performance(&daemon, "dutiful").await;
        let address = until_fabric(&mut job, true).await;
        assert_eq!(address, FabricAddress { tcp: "127.0.0.1:4711".parse().unwrap(), unix: "fabric-0-3".into() });
        assert_eq!(ask(&mut job, 90, Request::Suspend).await, Reply::Suspended { us: 5 });
        assert!(matches!(
            ask(&mut job, 7, Request::Inspect { ahead: None, files: false }).await,
            Reply::Inspected(Inspection { threads: 7, .. })
        ));
        assert_eq!(ask(&mut job, 8, Request::Resume).await, Reply::Resumed { stopped_us: 0 });
        job.send(ToDaemon::Map(JobMap { version: 42, entries: Vec::new() })).await;
        let mut output = String::new();
        while !output.contains("map 42") {
            match job.next().await {
                FromDaemon::Output { bytes, .. } => output.push_str(std::str::from_utf8(&bytes).unwrap()),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn what_was_written_before_a_save_comes_before_its_answer() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = performance(&daemon, "dutiful").await;
        until_fabric(&mut job, true).await;
        job.send(one(1, Request::Save(SaveOrder::full(SaveTarget::File("/unused".into()))))).await;
        let mut output = String::new();
        loop {
            match job.next().await {
                FromDaemon::Output { bytes, .. } => output.push_str(std::str::from_utf8(&bytes).unwrap()),
                FromDaemon::Agent { reply: Reply::Saved(Saved { pages: 3, .. }), .. } => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(output.matches(LAST_WORDS).count(), 5000);
    });
}

#[test]
fn what_is_asked_as_a_batch_is_done_without_the_controller_and_its_output_comes_in_order() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = performance(&daemon, "dutiful").await;
        until_fabric(&mut job, true).await;
        let save = Request::Save(SaveOrder::full(SaveTarget::File("/unused".into())));
        let steps = [(1, Request::Suspend), (2, save), (3, Request::Resume)];
        job.send(ToDaemon::Ask(steps.map(|(seq, request)| vec![Question { seq, rank: 0, request }]).into())).await;
        let (mut output, mut answers) = (String::new(), Vec::new());
        while answers.len() < 3 || !output.contains("goes on") {
            match job.next().await {
                FromDaemon::Output { bytes, .. } => output.push_str(std::str::from_utf8(&bytes).unwrap()),
                FromDaemon::Agent { seq, reply, .. } => {
                    assert!(!reply.is_failure(), "{reply:?}");
                    if seq == 2 {
                        // All that came before the save, nothing that came after it.
                        assert_eq!((output.matches(LAST_WORDS).count(), output.contains("goes on")), (5000, false));
                    }
                    answers.push(seq);
                }
                other => panic!("{other:?}"),
            }
        }
        // The last may overtake output, and the one that waits behind it.
        answers.sort_unstable();
        assert_eq!(answers, [1, 2, 3]);
    });
}

#[test]
fn nothing_of_a_batch_follows_when_something_failed() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = performance(&daemon, "dutiful").await;
        until_fabric(&mut job, true).await;
        let turn = |seq, rank, request| Question { seq, rank, request };
        // Rank 1 is not here.
        let step = vec![turn(4, 1, Request::Suspend), turn(5, 0, Request::Suspend)];
        job.send(ToDaemon::Ask(vec![step, vec![turn(6, 0, Request::Resume)]])).await;
        assert!(matches!(news(&mut job).await, FromDaemon::Agent { seq: 4, reply: Reply::Unasked(Unasked::NotHere), .. }));
        assert!(matches!(news(&mut job).await, FromDaemon::Agent { seq: 5, reply: Reply::Suspended { .. }, .. }));
        assert!(matches!(ask(&mut job, 7, Request::Inspect { ahead: None, files: false }).await, Reply::Inspected(_)));
    });
}

#[test]
fn every_image_that_is_written_behind_has_an_end() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        for (act, good) in [("dutiful", true), ("leaver", false)] {
            let mut job = performance(&daemon, act).await;
            until_fabric(&mut job, true).await;
            let order = SaveOrder { mode: SaveMode::CopyOnWrite, ..SaveOrder::full(SaveTarget::File("/unused".into())) };
            job.send(one(1, Request::Save(order))).await;
            let (mut saved, mut written) = (0, 0);
            // In either order: what the rank had printed comes before the answer, and the image may be complete by then.
            while saved + written < 2 {
                match news(&mut job).await {
                    FromDaemon::Agent { seq: 1, reply: Reply::Saved(_), .. } => saved += 1,
                    FromDaemon::Written { rank: 0, id: IMAGE, result } => {
                        assert_eq!(result.is_ok(), good, "{result:?}");
                        written += 1;
                    }
                    FromDaemon::Exited { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((saved, written), (1, 1));
        }
    });
}

#[test]
fn without_an_agent_every_question_has_an_answer() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = daemon.job(&["sleep", "1000"], 2).await;
        assert_eq!(ask(&mut job, 1, Request::Inspect { ahead: None, files: false }).await, Reply::Unasked(Unasked::NotHere));
        job.start(0, false).await;
        assert_eq!(job.next().await, FromDaemon::Started { rank: 0 });
        assert!(failure(ask(&mut job, 2, Request::Suspend).await).contains("a setuid program"));
        job.send(ToDaemon::SaveTo { seq: 3, rank: 0, address: daemon.address, token: [1; 16], way: Way::Direct }).await;
        assert!(matches!(job.next().await, FromDaemon::Agent { seq: 3, reply: Reply::Failed { .. }, .. }));
    });
}

#[test]
fn a_static_program_is_known_to_have_no_agent() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let (source, program) = (
            daemon.file("main.c", b"#include <unistd.h>\nint main(void) { for (;;) pause(); }", 0o644),
            daemon.directory.path().join("endless"),
        );
        let built = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(source).status().unwrap();
        assert!(built.success());
        let mut job = daemon.job(&["./endless"], 1).await;
        job.start(0, false).await;
        assert_eq!(job.next().await, FromDaemon::Started { rank: 0 });
        assert_eq!(job.next().await, FromDaemon::Agentless { rank: 0 });
        let told = failure(ask(&mut job, 1, Request::Inspect { ahead: None, files: false }).await);
        assert!(told.contains("it has no agent: ") && told.contains("/endless is a static program"), "{told}");
    });
}

#[test]
fn an_agent_that_leaves_is_reported_to_whoever_asked() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = performance(&daemon, "deserter").await;
        until_fabric(&mut job, true).await;
        let reply = ask(&mut job, 5, Request::Suspend).await;
        assert!(matches!(reply, Reply::Unasked(Unasked::Left | Unasked::Ended)), "{reply:?}");
        assert!(matches!(news(&mut job).await, FromDaemon::Exited { status: ExitStatus::Code(0), .. }));
    });
}

#[test]
fn a_child_that_runs_the_mpi_program_speaks_for_the_fabric_and_is_not_saved() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = performance(&daemon, "child").await;
        until_fabric(&mut job, false).await;
        assert_eq!(ask(&mut job, 1, Request::Suspend).await, Reply::Suspended { us: 5 });
        let text = failure(ask(&mut job, 2, Request::Save(SaveOrder::full(SaveTarget::File("/unused".into())))).await);
        assert!(text.contains("it runs its MPI program /opt/actor as a child") && text.contains("run the program itself"), "{text}");
    });
}

#[test]
fn a_discarded_rank_does_not_see_its_daemon_hang_up() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = performance(&daemon, "dutiful").await;
        until_fabric(&mut job, true).await;
        // A saved rank that took the end of the connection for leave to run on would speak in its successor's place.
        job.send(ToDaemon::Discard { rank: 0 }).await;
        job.send(ToDaemon::End { goes_on: false }).await;
        while let Some(message) = job.try_next().await {
            if let FromDaemon::Output { bytes, .. } = message {
                assert!(!String::from_utf8_lossy(&bytes).contains("hung up"));
            }
        }
    });
}

#[test]
fn garbage_on_the_agents_socket_does_no_harm() {
    for_each_user(async |user| {
        let daemon = Daemon::start(user);
        let mut job = performance(&daemon, "garbage").await;
        assert_eq!(news(&mut job).await, FromDaemon::Started { rank: 0 });
        assert_eq!(news(&mut job).await, FromDaemon::Exited { rank: 0, attempt: 1, status: ExitStatus::Code(0) });
    });
}

#[test]
fn a_source_that_stalls_ends_the_restore() {
    for_each_isolated_user(async |user| {
        let source = Daemon::start(user);
        // A restorer that reads to the end, or until the kernel says that nothing comes.
        let target = Daemon::start_with_restorer(user, "#!/bin/sh\ncat <&5 >/dev/null\n");
        let mut sender = performance(&source, "stalling").await;
        until_fabric(&mut sender, true).await;
        let mut introduction = sender.introduction.clone();
        introduction.node_timeout_ms = 1000;
        let mut receiver = target.introduced(introduction).await;
        let token = [9; 16];
        receiver
            .send(ToDaemon::Restore {
                rank: 0,
                attempt: 1,
                source: RestoreSource::Transfer { token, way: Way::Direct },
                image: None,
                stdin: false,
                put_back: None,
            })
            .await;
        sender.send(ToDaemon::SaveTo { seq: 4, rank: 0, address: target.address, token, way: Way::Direct }).await;
        assert!(matches!(receiver.next().await, FromDaemon::RestoreFailed { rank: 0, attempt: 1, .. }));
    });
}

#[test]
fn a_save_into_a_transfer_reaches_the_restore_that_waits_for_it() {
    for_each_isolated_user(async |user| {
        let (source, target) = (Daemon::start(user), Daemon::start_with_restorer(user, "#!/bin/sh\nexit 1\n"));
        let mut sender = performance(&source, "dutiful").await;
        until_fabric(&mut sender, true).await;
        let mut receiver = target.introduced(sender.introduction.clone()).await;
        let token = [9; 16];
        receiver
            .send(ToDaemon::Restore {
                rank: 0,
                attempt: 2,
                source: RestoreSource::Transfer { token, way: Way::Direct },
                image: None,
                stdin: false,
                put_back: None,
            })
            .await;
        sender.send(ToDaemon::SaveTo { seq: 4, rank: 0, address: target.address, token, way: Way::Direct }).await;
        match news(&mut sender).await {
            FromDaemon::Agent { seq: 4, reply: Reply::Saved(_), .. } => {}
            other => panic!("{other:?}"),
        }
        // The header came through, and says that the program is not on this node.
        match receiver.next().await {
            FromDaemon::RestoreFailed { rank: 0, attempt: 2, error, hint, blame: RestoreBlame::Other } => {
                assert!(error.contains("/no/such/program is not on this node") && !hint.is_empty(), "{error}");
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_save_into_a_transfer_that_nobody_waits_for_leaves_the_rank_alone() {
    for_each_user(async |user| {
        let (source, target) = (Daemon::start(user), Daemon::start(user));
        let mut sender = performance(&source, "dutiful").await;
        until_fabric(&mut sender, true).await;
        // The target does not have this job: it hangs up before anything of the rank is touched.
        sender.send(ToDaemon::SaveTo { seq: 4, rank: 0, address: target.address, token: [1; 16], way: Way::Direct }).await;
        match news(&mut sender).await {
            FromDaemon::Agent { seq: 4, reply: Reply::Failed { error, .. }, .. } => assert!(error.contains("no transfer"), "{error}"),
            other => panic!("{other:?}"),
        }
        sender.send(ToDaemon::SaveTo { seq: 5, rank: 0, address: "127.0.0.1:1".parse().unwrap(), token: [1; 16], way: Way::Direct }).await;
        match news(&mut sender).await {
            FromDaemon::Agent { seq: 5, reply: Reply::Failed { error, .. }, .. } => assert!(error.contains("cannot connect"), "{error}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(ask(&mut sender, 6, Request::Resume).await, Reply::Resumed { stopped_us: 0 });
    });
}
