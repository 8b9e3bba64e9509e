//! The holder: pid 1 of the lab. It builds the lab, then answers requests until it is told to end.
//!
//! Invariants: one thread, so it may fork at any time; a lab that is not complete ends when `mend lab up` does
//! (Ctrl-C), a complete one only by `down`, a signal, or the end of a foreground `up`. Only processes of the
//! user who started the lab are answered.
//! Faults assumed: nodes that die at any moment; clients that send garbage, stall (they have `REQUEST_TIMEOUT`) or vanish.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use mend_kernel::namespaces::{exit_now, fork_and_run, kill_rest_of_pid_namespace, peer_of, unshare};
use mend_kernel::signal_queue::SignalQueue;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};
use rustix::process::{Pid, Signal, WaitOptions, geteuid, kill_process, wait};
use rustix::thread::UnshareFlags;

use crate::plan::{self, LabPlan, PlannedNode};
use crate::protocol::{
    Asked, Detach, Failure, JOIN_ORDER, Joined, LabConnection, LabStatus, NodeSays, NodeState, NodeStatus, Order, Progress, Reply, Request,
    VERSION, ready,
};
use crate::{daemons, network, node};

/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long killed processes may take to vanish before the holder stops waiting for them.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

struct NodeProcess {
    planned: PlannedNode,
    pid: Pid,
    connection: LabConnection,
    state: NodeState,
}

struct Holder {
    plan: LabPlan,
    user_namespace: bool,
    nodes: Vec<NodeProcess>,
    signals: SignalQueue,
    outside: OwnedFd,
    inside: OwnedFd,
}

/// Builds the lab of `plan` and serves it; `starter` is the other end of `mend lab up`, `outside` the bound abstract
/// socket. To be called as pid 1 of the lab's namespaces. Returns the exit code.
pub(crate) fn live(plan: LabPlan, outside: OwnedFd, starter: LabConnection, user_namespace: bool) -> i32 {
    let _ = rustix::thread::set_name(&node::name_of(&format!("lab-{}", plan.name)));
    let mut holder = match build(plan, outside, &starter, user_namespace) {
        Ok(holder) => holder,
        Err(failure) => {
            let _ = starter.send(&Progress::Failed(failure), &[]);
            return 1;
        }
    };
    if starter.send(&Progress::Up, &[]).is_err() {
        return 1;
    }
    match holder.serve(starter) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn build(plan: LabPlan, outside: OwnedFd, starter: &LabConnection, user_namespace: bool) -> Result<Holder, Failure> {
    let failed = |what: &'static str| move |error: io::Error| Failure::new(format!("{what}: {error}"));
    let numbers = [Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP].map(Signal::as_raw);
    let signals = SignalQueue::new(&numbers).map_err(failed("signalfd"))?;
    crate::mounts::mount_lab(&plan)?;
    let mut nodes = Vec::new();
    for planned in &plan.nodes {
        still_wanted(starter)?;
        nodes.push(start_node(&plan, planned).map_err(failed("start a node"))?);
    }
    await_nodes(&nodes, starter)?;
    let pids: Vec<i32> = nodes.iter().map(|held| held.pid.as_raw_nonzero().get()).collect();
    network::connect(&plan.nodes, &pids, plan.bandwidth)?;
    order(&nodes, &Order::Network, starter)?;
    if plan.daemon.is_some() {
        order(&nodes[1..], &Order::Daemon, starter)?;
    }
    let inside = inner_listener(&plan).map_err(failed("make the lab's inner socket"))?;
    // Only now: whoever can connect finds a complete lab. It also makes this process, not the one that bound the
    // socket, the peer that clients see and wait for.
    listen(&outside, 64).map_err(|error| failed("listen")(error.into()))?;
    Ok(Holder { plan, user_namespace, nodes, signals, outside, inside })
}

fn inner_listener(plan: &LabPlan) -> io::Result<OwnedFd> {
    let path = plan::inner_socket(&plan.base);
    let flags = SocketFlags::CLOEXEC;
    let inside = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&inside, &SocketAddrUnix::new(&path)?)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    listen(&inside, 64)?;
    Ok(inside)
}

fn still_wanted(starter: &LabConnection) -> Result<(), Failure> {
    match starter.hung_up() {
        true => Err(Failure::new("interrupted")),
        false => Ok(()),
    }
}

/// Starts a node's first process. It is a grandchild: the child between makes the namespaces and ends, whereupon
/// the grandchild, pid 1 of the node, becomes a child of the holder, pid 1 of the lab.
fn start_node(plan: &LabPlan, planned: &PlannedNode) -> io::Result<NodeProcess> {
    let (ours, theirs) = LabConnection::pair()?;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    fork_and_run(|| {
        let namespaces = UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC | UnshareFlags::NEWPID;
        let made = unshare(namespaces).and_then(|()| {
            fork_and_run(|| {
                // SAFETY: a process just forked, in which nothing but `theirs` is used from here on.
                let closed = unsafe { mend_kernel::namespaces::close_other_files(&[theirs.as_fd()]) };
                match closed {
                    Ok(()) => exit_now(node::live(plan, planned, &theirs)),
                    Err(_) => exit_now(1),
                }
            })
        });
        let said = match made {
            Ok(pid) => pid.as_raw_nonzero().get(),
            Err(error) => -error.raw_os_error().unwrap_or(1),
        };
        i32::from(rustix::io::write(&writer, &said.to_ne_bytes()).is_err())
    })?;
    drop(writer);
    let mut said = [0; 4];
    io::Read::read_exact(&mut File::from(reader), &mut said)?;
    let said = i32::from_ne_bytes(said);
    match Pid::from_raw(said.max(0)) {
        Some(pid) => Ok(NodeProcess { planned: planned.clone(), pid, connection: ours, state: NodeState::Up }),
        None => Err(io::Error::from_raw_os_error(-said)),
    }
}

/// Gives all `nodes` the order, then waits for all of them: they work at the same time.
fn order(nodes: &[NodeProcess], order: &Order, starter: &LabConnection) -> Result<(), Failure> {
    for held in nodes {
        let sent = held.connection.send(order, &[]);
        sent.map_err(|error| Failure::new(format!("{}: {error}", held.planned.name)))?;
    }
    await_nodes(nodes, starter)
}

fn await_nodes(nodes: &[NodeProcess], starter: &LabConnection) -> Result<(), Failure> {
    for held in nodes {
        let name = &held.planned.name;
        // A node answers, or its end of the connection closes; the starter never sends before it is told.
        while !ready(&[held.connection.as_fd(), starter.as_fd()], None).map_err(|error| Failure::new(format!("poll: {error}")))?[0] {
            still_wanted(starter)?;
        }
        match held.connection.receive::<NodeSays>() {
            Ok(Some((NodeSays::Ready, _))) => {}
            Ok(Some((NodeSays::Failed(failure), _))) => return Err(failure),
            Ok(None) => return Err(Failure::new(format!("{name} died while starting"))),
            Err(error) => return Err(Failure::new(format!("{name}: {error}"))),
        }
    }
    Ok(())
}

impl Holder {
    fn serve(&mut self, starter: LabConnection) -> io::Result<()> {
        let mut starter = Some(starter);
        loop {
            let mut files = vec![self.signals.as_fd(), self.outside.as_fd(), self.inside.as_fd()];
            files.extend(starter.as_ref().map(|starter| starter.as_fd()));
            let woken = ready(&files, None)?;
            if woken[0] {
                while let Some(arrived) = self.signals.next()? {
                    match arrived.signal {
                        signal if signal == Signal::CHILD.as_raw() => self.reap(),
                        signal if signal == Signal::HUP.as_raw() => {}
                        _ => return self.end(),
                    }
                }
            }
            if woken.get(3) == Some(&true) {
                match starter.as_ref().map(LabConnection::receive::<Detach>) {
                    Some(Ok(Some(_))) => starter = None,
                    _ => return self.end(),
                }
            }
            let outside = woken[1].then(|| admit(&self.outside)).flatten();
            let inside = woken[2].then(|| admit(&self.inside)).flatten();
            for client in outside.into_iter().chain(inside) {
                if self.serve_client(client)? {
                    return Ok(());
                }
            }
        }
    }

    /// Answers one request; true when the lab is to end. A client's mistakes are its own trouble.
    fn serve_client(&mut self, client: LabConnection) -> io::Result<bool> {
        let Ok(Some((asked, files))) = client.receive_within::<Asked>(REQUEST_TIMEOUT) else {
            let _ = client.send(&Reply::OtherVersion, &[]);
            return Ok(false);
        };
        if asked.version != VERSION {
            let _ = client.send(&Reply::OtherVersion, &[]);
            return Ok(false);
        }
        let reply = match asked.request {
            Request::Status => Reply::Status(self.status()),
            Request::Join { node } => match self.alive(&node) {
                Ok(index) => match self.namespaces(index) {
                    Ok(namespaces) => {
                        let files: Vec<_> = namespaces.iter().map(AsFd::as_fd).collect();
                        let _ = client.send(&Reply::Joined(self.joined()), &files);
                        return Ok(false);
                    }
                    Err(error) => Reply::Failed { message: error.to_string() },
                },
                Err(reply) => *reply,
            },
            Request::Run { node } => match self.alive(&node) {
                Ok(index) => {
                    // Answered before the node gets the connection, so that the two cannot be mixed up.
                    let _ = client.send(&Reply::Joined(self.joined()), &[]);
                    let connection = client.into_file();
                    let mut passed = vec![connection.as_fd()];
                    passed.extend(files.iter().map(AsFd::as_fd));
                    let _ = self.nodes[index].connection.send(&Order::Run, &passed);
                    return Ok(false);
                }
                Err(reply) => *reply,
            },
            Request::Kill { node } => match self.alive(&node) {
                Ok(index) => self.kill(index),
                Err(reply) => *reply,
            },
            Request::Down => {
                self.end()?;
                let _ = client.send(&Reply::Done, &[]);
                return Ok(true);
            }
        };
        let _ = client.send(&reply, &[]);
        Ok(false)
    }

    fn alive(&mut self, name: &str) -> Result<usize, Box<Reply>> {
        self.reap();
        match self.nodes.iter().position(|held| held.planned.name == name) {
            Some(index) if self.nodes[index].state == NodeState::Up => Ok(index),
            Some(_) => Err(Box::new(Reply::NodeDead)),
            None => {
                let known = self.plan.nodes.iter().map(|node| node.name.clone()).collect();
                Err(Box::new(Reply::NoSuchNode { known }))
            }
        }
    }

    fn joined(&self) -> Joined {
        Joined { base: self.plan.base.clone(), home: self.plan.home.clone(), user_namespace: self.user_namespace }
    }

    /// The node's namespaces, in the order in which they are to be joined.
    fn namespaces(&self, index: usize) -> io::Result<Vec<OwnedFd>> {
        let pid = self.nodes[index].pid.as_raw_nonzero();
        let skipped = usize::from(!self.user_namespace);
        let kinds = JOIN_ORDER.iter().skip(skipped);
        kinds.map(|kind| Ok(File::open(format!("/proc/{pid}/ns/{kind}"))?.into())).collect()
    }

    fn status(&mut self) -> LabStatus {
        self.reap();
        let nodes = self.nodes.iter().map(|held| NodeStatus {
            name: held.planned.name.clone(),
            address: held.planned.address,
            state: held.state,
            daemon: self.plan.daemon.is_some() && held.planned.name != plan::HEAD,
            listens: held.state == NodeState::Up && daemons::listens_beside(held.pid, plan::DAEMON_PORT),
        });
        LabStatus {
            name: self.plan.name.to_string(),
            mend: env!("CARGO_PKG_VERSION").to_owned(),
            holder: 0,
            shared: plan::shared(&self.plan.base),
            scratch: plan::scratch(&self.plan.base),
            home: self.plan.home.clone(),
            bandwidth: self.plan.bandwidth,
            nodes: nodes.collect(),
        }
    }

    /// Cuts the node's link, then kills it.
    fn kill(&mut self, index: usize) -> Reply {
        let held = &self.nodes[index];
        if let Err(failure) = network::cut(&held.planned) {
            return Reply::Failed { message: failure.message };
        }
        if let Err(error) = kill_process(held.pid, Signal::KILL) {
            return Reply::Failed { message: error.to_string() };
        }
        // The node's pid 1 can be reaped when everything else in the node is gone. Beyond `KILL_TIMEOUT`, what is left are
        // corpses whose parents, stopped `mend lab exec`s outside, have not looked at them.
        let begun = Instant::now();
        while self.nodes[index].state == NodeState::Up && begun.elapsed() < KILL_TIMEOUT {
            self.reap();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.nodes[index].state = NodeState::Dead;
        Reply::Done
    }

    /// Takes leave of dead children; a node whose pid 1 is among them is dead.
    fn reap(&mut self) {
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            if let Some(held) = self.nodes.iter_mut().find(|held| held.pid == pid) {
                held.state = NodeState::Dead;
                network::remove(&held.planned);
            }
        }
    }

    /// Kills everything in the lab but the caller, and waits until it is gone.
    fn end(&mut self) -> io::Result<()> {
        kill_rest_of_pid_namespace()?;
        let begun = Instant::now();
        while begun.elapsed() < KILL_TIMEOUT {
            match wait(WaitOptions::NOHANG) {
                Err(rustix::io::Errno::CHILD) => break,
                Ok(Some(_)) => {}
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(())
    }
}

/// Accepts a client, if it is one of the user's own.
fn admit(listener: &OwnedFd) -> Option<LabConnection> {
    let client = accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    let (uid, _) = peer_of(client.as_fd()).ok()?;
    (uid == geteuid().as_raw()).then(|| LabConnection::new(client))
}

/// Clients see the socket's name, and nothing more, of a holder that has not begun to listen.
pub(crate) fn bind_outside(name: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let outside = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&outside, &SocketAddrUnix::new_abstract_name(name)?)?;
    debug_assert!(outside.as_raw_fd() > 2);
    Ok(outside)
}
