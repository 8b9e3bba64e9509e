//! The job's PMI-1 server (the wire protocol that MPICH and Intel MPI speak over `PMI_FD`), central and pure.
//!
//! Bytes of each rank's socket go in, replies and aborts come out. While a checkpoint is under way the server is
//! [frozen](PmiServer::freeze): what comes is kept, nothing is answered, so that its state and the ranks' images
//! belong to the same moment. The whole state is serialisable and part of the checkpoint's manifest.
//!
//! A request to spawn stays among a rank's unread bytes until it is [answered](PmiServer::answer_spawn), so that a checkpoint holds it.
//!
//! Faults assumed: a rank sends garbage, half lines, endless lines (bounded by [`MAX_LINE`]), endless requests ([`MAX_SPAWN`]).

use crate::spawn_request::{Length, SpawnRequest};
use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Longest line accepted, bytes; MPICH's own buffers hold 2 KiB.
pub const MAX_LINE: usize = 64 << 10;

/// Longest request to spawn accepted, bytes: all lines of all its commands.
pub const MAX_SPAWN: usize = 8 << 20;

/// What the caller has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write this line to the rank's PMI socket.
    Reply {
        /// The rank that receives it.
        rank: Rank,
        /// Line with its newline.
        line: String,
    },
    /// A rank called `MPI_Abort`: end the job with this code.
    Abort {
        /// Who called it.
        rank: Rank,
        /// Exit code.
        code: i32,
    },
    /// A rank wants more processes (`MPI_Comm_spawn`), and waits until it is [answered](PmiServer::answer_spawn). It may be said again.
    Spawn {
        /// The rank that asks for them.
        rank: Rank,
        /// What it asks for, or why that cannot be read.
        request: Result<SpawnRequest, String>,
    },
    /// A rank broke the protocol; it is not answered any more.
    Violation {
        /// The rank that asked for it.
        rank: Rank,
        /// What it sent, shortened.
        text: String,
    },
}

/// State of one rank's PMI client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientState {
    /// Has not spoken.
    #[default]
    Silent,
    /// Between init and finalize: its exit with an error ends the job.
    Active,
    /// The rank has finalized.
    Finalized,
}

/// Where the number of processes that the job may have is kept.
const UNIVERSE: &str = "mend_universe_size";

/// Where the first ranks of programs are kept.
const BOUNDARIES: &str = "mend_first_ranks";

/// The server's whole state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmiServer {
    size: u32,
    name: String,
    values: BTreeMap<String, String>,
    in_barrier: BTreeSet<Rank>,
    clients: BTreeMap<Rank, ClientState>,
    unread: BTreeMap<Rank, Vec<u8>>,
    frozen: bool,
    /// Not used any more. Manifests have it, and their checksums.
    #[serde(default)]
    spawns_to_come: BTreeMap<Rank, u32>,
}

/// Names that ranks publish are the job's: those of spawned worlds are kept with those of its first one.
type Published<'a> = Option<&'a mut BTreeMap<String, String>>;

impl PmiServer {
    /// A server for `size` ranks of the job with this identity. Every rank is told to be alone on its node, so that the
    /// MPI library sends all through its network module and none through shared memory of its own.
    ///
    /// The name of the key-value space must differ between jobs: MPICH derives from it the names of files in `/dev/shm`,
    /// which it makes even for a rank that is alone.
    #[must_use]
    pub fn new(size: u32, identity: &[u8; 16]) -> Self {
        let name = identity.iter().fold("mend-".to_owned(), |name, byte| format!("{name}{byte:02x}"));
        let values = [("PMI_process_mapping".to_owned(), format!("(vector,(0,{size},1))"))].into();
        let (in_barrier, clients, unread) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { size, name, values, in_barrier, clients, unread, frozen: false, spawns_to_come: BTreeMap::new() }
    }

    /// For a world of a job that `identity` names: with a name of its own, and what its ranks find.
    #[must_use]
    pub(crate) fn of_world(mut self, number: usize, preput: &[(String, String)], universe: Option<u32>) -> Self {
        self.name = format!("{}-{number}", self.name);
        self.values.extend(preput.iter().cloned());
        match universe {
            Some(universe) => self.of_universe(universe),
            None => self,
        }
    }

    /// What ranks are told of how many processes the job may have; else it is the number that it has.
    #[must_use]
    pub fn of_universe(mut self, universe: u32) -> Self {
        self.values.insert(UNIVERSE.to_owned(), universe.to_string());
        self
    }

    /// The number of processes that the job may have, if that was told.
    pub(crate) fn universe(&self) -> Option<u32> {
        self.values.get(UNIVERSE)?.parse().ok()
    }

    /// Number of ranks of its world.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// True while requests are kept unanswered.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// True if every rank of the world has said that it begins (`MPI_Init`).
    #[must_use]
    pub fn all_began(&self) -> bool {
        self.clients.len() == self.size as usize
    }

    pub(crate) fn values(&mut self) -> &mut BTreeMap<String, String> {
        &mut self.values
    }

    /// For a job of several programs: the first rank of each but the first. They are kept among the values, so that the state of a job of one program
    /// reads as it always did.
    #[must_use]
    pub fn of_programs(mut self, boundaries: &[Rank]) -> Self {
        if !boundaries.is_empty() {
            let text: Vec<String> = boundaries.iter().map(ToString::to_string).collect();
            self.values.insert(BOUNDARIES.to_owned(), text.join(","));
        }
        self
    }

    /// The number of a rank's program among those of the job (MPI 4.1, 11.10.3).
    fn program_of(&self, rank: Rank) -> usize {
        let firsts = self.values.get(BOUNDARIES).map_or("", String::as_str).split(',').filter_map(|first| first.parse::<Rank>().ok());
        firsts.filter(|first| *first <= rank).count()
    }

    /// Keeps requests unanswered from now on.
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Answers again, beginning with what came meanwhile. Also the first step after a restart.
    pub fn thaw(&mut self) -> Vec<Effect> {
        self.thaw_in(None)
    }

    pub(crate) fn thaw_in(&mut self, mut published: Published<'_>) -> Vec<Effect> {
        self.frozen = false;
        let ranks: Vec<Rank> = self.unread.keys().copied().collect();
        let mut effects = Vec::new();
        for rank in ranks {
            self.answer(rank, &mut published, &mut effects);
        }
        effects
    }

    /// Answers a rank's request to spawn: the processes are there, or there are none. Then what the rank sent after it.
    pub fn answer_spawn(&mut self, rank: Rank, done: bool) -> Vec<Effect> {
        let Some(unread) = self.unread.get_mut(&rank) else { return Vec::new() };
        let Length::Whole(length) = SpawnRequest::length(unread) else { return Vec::new() };
        unread.drain(..length);
        let line = if done { "cmd=spawn_result rc=0\n" } else { "cmd=spawn_result rc=-1 msg=no_process_was_started\n" };
        let mut effects = vec![Effect::Reply { rank, line: line.into() }];
        if !self.frozen {
            self.answer(rank, &mut None, &mut effects);
        }
        effects
    }

    /// State of a rank's client.
    #[must_use]
    pub fn client(&self, rank: Rank) -> ClientState {
        self.clients.get(&rank).copied().unwrap_or_default()
    }

    /// Takes bytes from a rank's socket.
    pub fn receive(&mut self, rank: Rank, bytes: &[u8]) -> Vec<Effect> {
        self.receive_in(rank, bytes, None)
    }

    pub(crate) fn receive_in(&mut self, rank: Rank, bytes: &[u8], mut published: Published<'_>) -> Vec<Effect> {
        let unread = self.unread.entry(rank).or_default();
        unread.extend_from_slice(bytes);
        let mut effects = Vec::new();
        if unread.len() > MAX_LINE && !unread.contains(&b'\n') {
            unread.clear();
            effects.push(Effect::Violation { rank, text: format!("a line of more than {MAX_LINE} bytes") });
        } else if unread.len() > MAX_SPAWN {
            unread.clear();
            effects.push(Effect::Violation { rank, text: format!("requests of more than {MAX_SPAWN} bytes") });
        } else if !self.frozen {
            self.answer(rank, &mut published, &mut effects);
        }
        effects
    }

    fn answer(&mut self, rank: Rank, published: &mut Published<'_>, effects: &mut Vec<Effect>) {
        let Some(mut unread) = self.unread.remove(&rank) else { return };
        let mut start = 0;
        while let Some(length) = unread[start..].iter().position(|&byte| byte == b'\n') {
            match SpawnRequest::length(&unread[start..]) {
                Length::Other => {}
                Length::Unfinished => break,
                Length::Whole(length) => {
                    effects.push(Effect::Spawn { rank, request: SpawnRequest::read(&unread[start..start + length]) });
                    break;
                }
            }
            let line = String::from_utf8_lossy(&unread[start..start + length]).into_owned();
            start += length + 1;
            self.command(rank, &line, published, effects);
        }
        unread.drain(..start);
        if !unread.is_empty() {
            self.unread.insert(rank, unread);
        }
    }

    fn command(&mut self, rank: Rank, line: &str, published: &mut Published<'_>, effects: &mut Vec<Effect>) {
        // A value may hold spaces only as the last field (PMI-1 "value="); all other fields are words.
        let field =
            |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).filter(|value| !value.is_empty());
        let value = line.split_once(" value=").map(|(_, value)| value);
        let mut reply = |line: String| effects.push(Effect::Reply { rank, line: line + "\n" });
        match field("cmd") {
            Some("init") => {
                self.clients.insert(rank, ClientState::Active);
                reply("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".into());
            }
            Some("get_maxes") => reply("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0".into()),
            Some("get_appnum") => {
                let number = self.program_of(rank);
                reply(format!("cmd=appnum appnum={number} rc=0"));
            }
            Some("get_my_kvsname") => reply(format!("cmd=my_kvsname kvsname={} rc=0", self.name)),
            Some("get_universe_size") => {
                // Where no slots are named it is not known: programs would take the number of ranks for a limit.
                let size = self.universe().map_or(-1, i64::from);
                reply(format!("cmd=universe_size size={size} rc=0"));
            }
            Some("put") => match (field("key"), value) {
                (Some(key), Some(value)) => {
                    self.values.insert(key.to_owned(), value.to_owned());
                    reply("cmd=put_result rc=0 msg=success".into());
                }
                _ => reply("cmd=put_result rc=-1 msg=key_or_value_missing".into()),
            },
            Some("get") => match field("key").and_then(|key| self.values.get(key)) {
                Some(value) => reply(format!("cmd=get_result rc=0 msg=success value={value}")),
                None => reply("cmd=get_result rc=-1 msg=key_not_found value=unknown".into()),
            },
            Some("barrier_in") => {
                self.in_barrier.insert(rank);
                if self.in_barrier.len() == self.size as usize {
                    for rank in std::mem::take(&mut self.in_barrier) {
                        effects.push(Effect::Reply { rank, line: "cmd=barrier_out rc=0\n".into() });
                    }
                }
            }
            Some("finalize") => {
                self.clients.insert(rank, ClientState::Finalized);
                reply("cmd=finalize_ack rc=0".into());
            }
            Some("abort") => {
                let code = field("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1);
                effects.push(Effect::Abort { rank, code });
            }
            Some("publish_name") => match (field("service"), field("port")) {
                (Some(service), Some(port)) => {
                    let names = published.as_deref_mut().unwrap_or(&mut self.values);
                    names.insert(format!("service {service}"), port.to_owned());
                    reply("cmd=publish_result rc=0 msg=success".into());
                }
                _ => reply("cmd=publish_result rc=-1 msg=service_or_port_missing".into()),
            },
            Some("lookup_name") => {
                let names = published.as_deref_mut().unwrap_or(&mut self.values);
                match field("service").and_then(|service| names.get(&format!("service {service}"))) {
                    Some(port) => reply(format!("cmd=lookup_result rc=0 msg=success port={port}")),
                    None => reply("cmd=lookup_result rc=-1 msg=service_not_found".into()),
                }
            }
            Some("unpublish_name") => {
                let names = published.as_deref_mut().unwrap_or(&mut self.values);
                match field("service").and_then(|s| names.remove(&format!("service {s}"))) {
                    Some(_) => reply("cmd=unpublish_result rc=0 msg=success".into()),
                    None => reply("cmd=unpublish_result rc=-1 msg=service_not_found".into()),
                }
            }
            _ => effects.push(Effect::Violation { rank, text: line.chars().take(80).collect() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reply(rank: Rank, line: &str) -> Effect {
        Effect::Reply { rank, line: format!("{line}\n") }
    }

    #[test]
    fn ranks_know_the_number_of_their_program() {
        let mut server = PmiServer::new(6, &[7; 16]).of_programs(&[2, 5]);
        let answer = |server: &mut PmiServer, rank| server.receive(rank, b"cmd=get_appnum\n");
        for (rank, number) in [(0, 0), (1, 0), (2, 1), (4, 1), (5, 2)] {
            assert_eq!(answer(&mut server, rank), [Effect::Reply { rank, line: format!("cmd=appnum appnum={number} rc=0\n") }]);
        }
        assert_eq!(PmiServer::new(6, &[7; 16]).of_programs(&[]), PmiServer::new(6, &[7; 16]));
        assert_eq!(answer(&mut PmiServer::new(6, &[7; 16]), 5), [Effect::Reply { rank: 5, line: "cmd=appnum appnum=0 rc=0\n".into() }]);
    }

    #[test]
    fn values_put_by_one_rank_are_got_by_another() {
        let mut server = PmiServer::new(2, &[7; 16]);
        assert_eq!(server.receive(0, b"cmd=put kvsname=mend key=a value=b c[8]\n"), [reply(0, "cmd=put_result rc=0 msg=success")]);
        assert_eq!(server.receive(1, b"cmd=get kvsname=mend key=a\n"), [reply(1, "cmd=get_result rc=0 msg=success value=b c[8]")]);
        assert_eq!(
            server.receive(1, b"cmd=get kvsname=mend key=PMI_process_mapping\n"),
            [reply(1, "cmd=get_result rc=0 msg=success value=(vector,(0,2,1))")]
        );
    }

    #[test]
    fn a_barrier_releases_all_when_the_last_comes_in() {
        let mut server = PmiServer::new(2, &[7; 16]);
        assert_eq!(server.receive(1, b"cmd=barrier_in\n"), []);
        assert_eq!(server.receive(0, b"cmd=barrier_in\n"), [reply(0, "cmd=barrier_out rc=0"), reply(1, "cmd=barrier_out rc=0")]);
    }

    #[test]
    fn frozen_requests_survive_serialisation_and_are_answered_after_the_thaw() {
        let mut server = PmiServer::new(2, &[7; 16]);
        server.receive(0, b"cmd=barrier_in\n");
        server.freeze();
        assert_eq!(server.receive(1, b"cmd=barrier_in\ncmd=fin"), []);
        let mut restored: PmiServer = postcard::from_bytes(&postcard::to_stdvec(&server).unwrap()).unwrap();
        assert_eq!(restored.thaw(), [reply(0, "cmd=barrier_out rc=0"), reply(1, "cmd=barrier_out rc=0")]);
        assert_eq!(restored.receive(1, b"alize\n"), [reply(1, "cmd=finalize_ack rc=0")]);
    }

    #[test]
    fn an_abort_has_a_code() {
        let mut server = PmiServer::new(1, &[7; 16]);
        assert_eq!(server.receive(0, b"cmd=abort exitcode=7\n"), [Effect::Abort { rank: 0, code: 7 }]);
    }

    #[test]
    fn a_request_to_spawn_waits_for_its_answer() {
        let mut server = PmiServer::new(2, &[7; 16]);
        let first = b"mcmd=spawn\nnprocs=1\nexecname=x\ntotspawns=2\nspawnssofar=1\nargcnt=0\nendcmd\n";
        assert_eq!(server.receive(0, first), [], "a request is complete with its last command");
        let second = b"mcmd=spawn\nnprocs=2\nexecname=y\ntotspawns=2\nspawnssofar=2\nargcnt=0\nendcmd\ncmd=get_maxes\n";
        let spawn = server.receive(0, second);
        let [Effect::Spawn { rank: 0, request: Ok(request) }] = &spawn[..] else { panic!("{spawn:?}") };
        assert_eq!(request.commands.iter().map(|command| command.ranks).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(server.receive(1, b"cmd=get_universe_size\n"), [reply(1, "cmd=universe_size size=-1 rc=0")], "others are answered");
        let mut restored: PmiServer = postcard::from_bytes(&postcard::to_stdvec(&server).unwrap()).unwrap();
        assert_eq!(restored.thaw(), spawn, "it is in a checkpoint, and is said again");
        let maxes = reply(0, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0");
        assert_eq!(restored.answer_spawn(0, true), [reply(0, "cmd=spawn_result rc=0"), maxes.clone()]);
        assert_eq!(restored.answer_spawn(0, true), [], "it is answered once");
        assert_eq!(server.answer_spawn(0, false), [reply(0, "cmd=spawn_result rc=-1 msg=no_process_was_started"), maxes]);
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_split_does_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
            let mut whole = PmiServer::new(3, &[7; 16]);
            let mut halves = PmiServer::new(3, &[7; 16]);
            let cut = cut.min(bytes.len());
            let expected = whole.receive(1, &bytes);
            let mut effects = halves.receive(1, &bytes[..cut]);
            effects.extend(halves.receive(1, &bytes[cut..]));
            prop_assert_eq!(expected, effects);
        }
    }
}
