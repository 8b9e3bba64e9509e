//! A node: the machine of the job there, which is the daemon's; its processes and their agents as contracts. What a contract allows is drawn; what it
//! forbids does not occur.
//!
//! What ranks said comes in order; a process that is gone says no more than its end. An agent
//! saves only when it is suspended, stays parked until it is resumed or killed, and goes on after a failed save as it was before. One that is paused leaves
//! that only for an image.

use crate::feeder::Feeder;
use crate::stores::{ExpectedImage, Stores};
use mend_messages::agent::{ImageId, Request};
use mend_messages::job::Rank;
use mend_node_job::{JobTable, NodeJob};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// What a rank's process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Being started.
    Starting,
    /// Computes and talks.
    Runs,
    /// Computes; its channels are drained.
    Suspended,
    /// Its threads stand still; its image is taken.
    Parked,
    /// Being rebuilt.
    Building,
    /// Rebuilt; its threads stand still.
    Built,
    /// It stands still until it goes back to an image.
    Paused,
}

impl Phase {
    /// Whether the program's threads run.
    pub fn runs(self) -> bool {
        matches!(self, Self::Runs | Self::Suspended)
    }
}

/// The node whose daemon has this address: its number is the last of the four.
pub fn node_at(address: SocketAddr) -> usize {
    match address.ip() {
        IpAddr::V4(ip) => ip.octets()[3] as usize,
        IpAddr::V6(_) => 0,
    }
}

/// Where a rank is copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// The node that it goes to.
    pub at: usize,
    /// The process that is being built there.
    pub attempt: u64,
    /// Names the transfer.
    pub token: [u8; 16],
}

/// A rank's process.
#[derive(Clone, Debug)]
pub struct Process {
    /// Unlike any other's.
    pub attempt: u64,
    /// What the job calls it.
    pub number: u64,
    /// What it is doing.
    pub phase: Phase,
    /// It was rebuilt by a restart, with all others.
    pub restarted: bool,
    /// It goes back in place: the agent through which it was paused.
    pub goes_back: Option<u64>,
    /// Its own agent has said that it cannot be rebuilt.
    pub refuses: bool,
    /// Nobody answers for it: stopped, or deep in the kernel.
    pub stuck: bool,
    /// The image since which changes are tracked, and its place in its chain.
    pub tracked: Option<(ImageId, u32)>,
    /// An image that is written behind it.
    pub behind: Option<ImageId>,
    /// What it was asked while nobody answered for it.
    pub held: Vec<(u64, Request)>,
    /// When its agent has done what it was asked: it does one thing after the other.
    pub busy_until: u64,
    /// Questions of its daemon's that its agent has not answered.
    pub questions: Vec<u64>,
    /// What it is given of standard input.
    pub feeder: Feeder,
    /// More of it may come.
    pub fed: bool,
    /// Something is about to be written to it.
    pub fed_soon: bool,
    /// The target that its daemon has met for it.
    pub opened: Option<Receiver>,
    /// Where it is copied to while it runs.
    pub precopies: Option<Receiver>,
    /// A checkpoint's marker was left behind in its channels (the defect of old that one may put back).
    pub stale_marker: bool,
    /// As it is built, its source sends pages.
    pub receives: bool,
    /// It was to hold messages back for another rank that moves while it stood still itself: neither of the two would ever drain.
    pub overlapped: bool,
}

impl Process {
    /// One in this phase, of no attempt yet.
    pub fn new(phase: Phase) -> Self {
        Self {
            attempt: 0,
            number: 0,
            phase,
            restarted: false,
            goes_back: None,
            refuses: false,
            stuck: false,
            tracked: None,
            behind: None,
            held: Vec::new(),
            busy_until: 0,
            questions: Vec::new(),
            feeder: Feeder::default(),
            fed: false,
            fed_soon: false,
            opened: None,
            precopies: None,
            stale_marker: false,
            receives: false,
            overlapped: false,
        }
    }
}

/// Ranks that an earlier life of the job left standing on a node.
#[derive(Debug, Default)]
pub struct StandingRanks {
    /// Which life.
    pub life: u64,
    /// Their processes.
    pub ranks: BTreeMap<Rank, Process>,
}

/// A node.
#[derive(Debug, Default)]
pub struct Node {
    /// It is up.
    pub up: bool,
    /// The life of the job whose connection it has; 0: none.
    pub connection: u64,
    /// Processes of the job.
    pub ranks: BTreeMap<Rank, Process>,
    /// What is decided about the job here.
    pub job: Option<NodeJob>,
    /// When the job came.
    pub begun: u64,
    /// Events that its machine was told.
    pub told: u64,
    /// Ranks that wait for a transfer with this token.
    pub expected: BTreeMap<[u8; 16], Rank>,
    /// Images that it expects from other nodes, by token.
    pub images: BTreeMap<[u8; 16], ExpectedImage>,
    /// What it keeps of checkpoints.
    pub stores: Stores,
    /// It is killing the job's ranks.
    pub leaving: bool,
    /// Ranks that stand still between two lives of the job.
    pub standing: StandingRanks,
    /// Which controller may have the job here.
    pub table: JobTable,
    /// When the job's lease here is over, if nothing comes from the controller.
    pub lease_until: Option<u64>,
    /// When the controller closed its connection, if nobody came back and a successor was started here.
    pub closed: Option<u64>,
    /// Nothing comes through between it and the job any more.
    pub cut: bool,
    /// Memory that it has told to have, bytes.
    pub memory: Option<u64>,
}
