//! The job's PMI-1 server (the wire protocol that MPICH and Intel MPI speak over `PMI_FD`), central and pure.
//!
//! Bytes of each rank's socket go in, replies and aborts come out. While a checkpoint is under way the server is
//! [frozen](PmiServer::freeze): what comes is kept, nothing is answered, so that its state and the ranks' images
//! belong to the same moment. The whole state is serialisable and part of the checkpoint's manifest.
//!
//! Faults assumed: a rank sends garbage, half lines, endless lines (bounded by [`MAX_LINE`]).

use mend_messages::job::Rank;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Longest line accepted, bytes; MPICH's own buffers hold 2 KiB.
pub const MAX_LINE: usize = 64 << 10;

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
    /// A rank wanted more processes (`MPI_Comm_spawn`) and was answered that there are none.
    SpawnRefused {
        /// The rank that asked for it.
        rank: Rank,
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
    /// Programs that a rank has still to name before its request to spawn is complete (`totspawns` less
    /// `spawnssofar`).
    #[serde(default)]
    spawns_to_come: BTreeMap<Rank, u32>,
}

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
        self.frozen = false;
        let ranks: Vec<Rank> = self.unread.keys().copied().collect();
        let mut effects = Vec::new();
        for rank in ranks {
            self.answer(rank, &mut effects);
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
        let unread = self.unread.entry(rank).or_default();
        unread.extend_from_slice(bytes);
        let mut effects = Vec::new();
        if unread.len() > MAX_LINE && !unread.contains(&b'\n') {
            unread.clear();
            effects.push(Effect::Violation { rank, text: format!("a line of more than {MAX_LINE} bytes") });
        } else if !self.frozen {
            self.answer(rank, &mut effects);
        }
        effects
    }

    fn answer(&mut self, rank: Rank, effects: &mut Vec<Effect>) {
        let Some(mut unread) = self.unread.remove(&rank) else { return };
        let mut start = 0;
        while let Some(length) = unread[start..].iter().position(|&byte| byte == b'\n') {
            let line = String::from_utf8_lossy(&unread[start..start + length]).into_owned();
            start += length + 1;
            self.command(rank, &line, effects);
        }
        unread.drain(..start);
        if !unread.is_empty() {
            self.unread.insert(rank, unread);
        }
    }

    fn command(&mut self, rank: Rank, line: &str, effects: &mut Vec<Effect>) {
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
            Some("get_universe_size") => reply(format!("cmd=universe_size size={} rc=0", self.size)),
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
                    self.values.insert(format!("service {service}"), port.to_owned());
                    reply("cmd=publish_result rc=0 msg=success".into());
                }
                _ => reply("cmd=publish_result rc=-1 msg=service_or_port_missing".into()),
            },
            Some("lookup_name") => match field("service").and_then(|service| self.values.get(&format!("service {service}"))) {
                Some(port) => reply(format!("cmd=lookup_result rc=0 msg=success port={port}")),
                None => reply("cmd=lookup_result rc=-1 msg=service_not_found".into()),
            },
            Some("unpublish_name") => match field("service").and_then(|s| self.values.remove(&format!("service {s}"))) {
                Some(_) => reply("cmd=unpublish_result rc=0 msg=success".into()),
                None => reply("cmd=unpublish_result rc=-1 msg=service_not_found".into()),
            },
            // mcmd=spawn spans lines up to "endcmd", once for each program; the client reads one reply to all of them, and
            // would take a second for the answer to its next request.
            None if line == "endcmd" => {
                if self.spawns_to_come.remove(&rank).unwrap_or(0) == 0 {
                    reply("cmd=spawn_result rc=-1 msg=spawn_is_not_supported".into());
                    effects.push(Effect::SpawnRefused { rank });
                }
            }
            None if line.contains('=') && !line.starts_with("cmd=") => {
                let number = |name: &str| line.strip_prefix(name)?.strip_prefix('=')?.parse::<u32>().ok();
                if let Some(total) = number("totspawns") {
                    self.spawns_to_come.insert(rank, total);
                }
                if let Some(so_far) = number("spawnssofar") {
                    let left = self.spawns_to_come.get(&rank).copied().unwrap_or(0).saturating_sub(so_far);
                    self.spawns_to_come.insert(rank, left);
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
    fn abort_and_spawn() {
        let mut server = PmiServer::new(1, &[7; 16]);
        assert_eq!(server.receive(0, b"cmd=abort exitcode=7\n"), [Effect::Abort { rank: 0, code: 7 }]);
        assert_eq!(
            server.receive(0, b"mcmd=spawn\nnprocs=1\nexecname=x\nendcmd\n"),
            [reply(0, "cmd=spawn_result rc=-1 msg=spawn_is_not_supported"), Effect::SpawnRefused { rank: 0 }]
        );
        let first = b"mcmd=spawn\nnprocs=1\nexecname=x\ntotspawns=2\nspawnssofar=1\nargcnt=0\nendcmd\n";
        assert_eq!(server.receive(0, first), [], "one reply to all programs of a request");
        let second = b"mcmd=spawn\nnprocs=1\nexecname=y\ntotspawns=2\nspawnssofar=2\nargcnt=0\nendcmd\n";
        let refused = [reply(0, "cmd=spawn_result rc=-1 msg=spawn_is_not_supported"), Effect::SpawnRefused { rank: 0 }];
        assert_eq!(server.receive(0, second), refused);
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
