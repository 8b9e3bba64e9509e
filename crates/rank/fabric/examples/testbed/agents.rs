//! The daemon's side of the agents' conversations.

use mend_messages::agent::{FromAgent, Reply, Request, ToAgent, Welcome};
use mend_messages::frame;
use mend_messages::job::{FabricAddress, JobMap, MapEntry, Secret};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(30);

struct Job {
    version: u64,
    entries: Vec<MapEntry>,
    sockets: Vec<Option<UnixStream>>,
}

pub struct Agents {
    size: u32,
    job: Mutex<Job>,
    answers: Mutex<Sender<(u32, Reply)>>,
    replies: Mutex<Receiver<(u32, Reply)>>,
}

fn send(socket: &mut UnixStream, message: &ToAgent) {
    // An agent may be gone because its program has ended.
    let _ = socket.write_all(&frame::encode(message).expect("a frame"));
}

fn receive(socket: &mut UnixStream) -> Option<FromAgent> {
    let mut prefix = [0; 4];
    socket.read_exact(&mut prefix).ok()?;
    let mut body = vec![0; frame::body_length(prefix).ok()?];
    socket.read_exact(&mut body).ok()?;
    frame::decode(&body).ok()
}

impl Agents {
    pub fn new(size: u32, per_node: u32) -> Self {
        let entry = |rank| MapEntry { rank, node: rank / per_node, generation: 1, open: true, address: None, ended: false };
        let job = Job { version: 0, entries: (0..size).map(entry).collect(), sockets: (0..size).map(|_| None).collect() };
        let (tx, rx) = channel();
        Self { size, job: Mutex::new(job), answers: Mutex::new(tx), replies: Mutex::new(rx) }
    }

    pub fn listen(self: &Arc<Self>, name: &str) {
        let address = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).expect("a name");
        let listener = UnixListener::bind_addr(&address).expect("a listener");
        let agents = self.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let agents = agents.clone();
                std::thread::spawn(move || agents.serve(socket));
            }
        });
    }

    fn serve(&self, mut socket: UnixStream) {
        let Some(FromAgent::Hello(hello)) = receive(&mut socket) else { return };
        let rank = hello.rank;
        {
            let mut job = self.job.lock().expect("a lock");
            let welcome = Welcome {
                job: [7; 16],
                secret: Secret([9; 32]),
                rank,
                size: self.size,
                node: job.entries[rank as usize].node,
                ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
                encrypt_data: false,
                unused_features: Default::default(),
            };
            send(&mut socket, &ToAgent::Welcome(welcome));
            job.sockets[rank as usize] = socket.try_clone().ok();
        }
        while let Some(message) = receive(&mut socket) {
            match message {
                FromAgent::FabricUp(address) => self.up(rank, address),
                FromAgent::Reply { reply, .. } => drop(self.answers.lock().expect("a lock").send((rank, reply))),
                _ => {}
            }
        }
        self.job.lock().expect("a lock").sockets[rank as usize] = None;
    }

    fn up(&self, rank: u32, address: FabricAddress) {
        let mut job = self.job.lock().expect("a lock");
        job.entries[rank as usize].address = Some(address);
        if job.entries.iter().all(|entry| entry.address.is_some()) {
            job.publish();
        }
    }

    fn ask(&self, requests: &[(u32, Request)]) -> bool {
        let mut asked = Vec::new();
        {
            let mut job = self.job.lock().expect("a lock");
            for (rank, request) in requests {
                if let Some(socket) = &mut job.sockets[*rank as usize] {
                    send(socket, &ToAgent::Request { seq: 1, request: request.clone() });
                    asked.push(*rank);
                }
            }
        }
        let deadline = Instant::now() + PATIENCE;
        let replies = self.replies.lock().expect("a lock");
        let mut good = asked.len() == requests.len();
        while !asked.is_empty() {
            match replies.recv_timeout(Duration::from_millis(200)) {
                Ok((rank, reply)) => {
                    asked.retain(|other| *other != rank);
                    if let Reply::Failed { error, .. } = reply {
                        eprintln!("testbed: rank {rank}: {error}");
                        good = false;
                    }
                }
                Err(_) => {
                    let job = self.job.lock().expect("a lock");
                    asked.retain(|rank| job.sockets[*rank as usize].is_some());
                    assert!(Instant::now() < deadline, "no answer from ranks {asked:?}");
                }
            }
        }
        good
    }

    fn ready(&self) -> bool {
        let job = self.job.lock().expect("a lock");
        job.version > 0 && job.sockets.iter().all(Option::is_some)
    }

    /// Disturbs the ranks until `over`; returns how many suspends and moves there were.
    pub fn shake(&self, mean: Duration, seed: u64, over: &AtomicBool) -> (u32, u32) {
        let (mut random, mut suspends, mut moves) = (ChaCha8Rng::seed_from_u64(seed), 0, 0);
        let mut draw = |below: u64| random.random_range(0..below);
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(draw(2 * mean.as_micros().max(1) as u64)));
            if !self.ready() {
                continue;
            }
            let all = |request: Request| (0..self.size).map(|rank| (rank, request.clone())).collect::<Vec<_>>();
            if draw(2) == 0 {
                suspends += 1;
                self.ask(&all(Request::Suspend));
                std::thread::sleep(Duration::from_micros(draw(2000)));
                self.ask(&all(Request::Resume));
                continue;
            }
            moves += 1;
            let moving = draw(u64::from(self.size)) as u32;
            let request = |rank| (rank, if rank == moving { Request::Suspend } else { Request::SuspendPeer(moving) });
            let suspended = self.ask(&(0..self.size).map(request).collect::<Vec<_>>());
            {
                let mut job = self.job.lock().expect("a lock");
                let node = draw(u64::from(self.size)) as u32;
                let entry = &mut job.entries[moving as usize];
                // One move in three fails: the rank stays what it was.
                if suspended && draw(3) > 0 {
                    entry.generation += 1;
                    entry.node = node;
                }
                job.publish();
            }
            self.ask(&all(Request::Resume));
        }
        (suspends, moves)
    }
}

impl Job {
    fn publish(&mut self) {
        self.version += 1;
        let map = JobMap { version: self.version, entries: self.entries.clone() };
        for socket in self.sockets.iter_mut().flatten() {
            send(socket, &ToAgent::Map(map.clone()));
        }
    }
}
