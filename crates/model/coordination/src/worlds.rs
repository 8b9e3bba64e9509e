//! The process manager of a job with all its worlds: a [`PmiServer`] for each, and who answers which rank.
//!
//! ```text
//! Spawn (a rank waits) ──add──► world: its ranks begin ──all called MPI_Init──► answered: the rank goes on
//!      └── refused ──► answered        └── one ended before ──► given up ──► answered: the rank gets an MPI error
//! ```
//! Ranks are the job's numbers here, and those of their world in its server.
//!
//! Invariants: a rank that asked is answered once, and never while the server is frozen; the whole state is in every checkpoint.

use crate::pmi::{ClientState, Effect, PmiServer};
use crate::spawn_request::SpawnRequest;
use mend_messages::job::Rank;
use mend_messages::world::World;
use serde::{Deserialize, Serialize};

/// A spawned world and its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnedWorld {
    /// Its ranks, and what they run.
    pub world: World,
    server: PmiServer,
    /// The rank that asked for it has its answer.
    answered: bool,
    /// It did not come to be: its ranks have ended.
    given_up: bool,
}

/// All worlds of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worlds {
    /// That of the job's beginning.
    first: PmiServer,
    spawned: Vec<SpawnedWorld>,
}

impl From<PmiServer> for Worlds {
    fn from(first: PmiServer) -> Self {
        Self { first, spawned: Vec::new() }
    }
}

impl Worlds {
    /// Those of a checkpoint.
    #[must_use]
    pub fn of(first: PmiServer, spawned: Vec<SpawnedWorld>) -> Self {
        Self { first, spawned }
    }

    /// As a checkpoint has them: the job's first one, and those that were spawned.
    #[must_use]
    pub fn into_parts(self) -> (PmiServer, Vec<SpawnedWorld>) {
        (self.first, self.spawned)
    }

    /// Worlds that were spawned, by ascending first rank.
    pub fn spawned(&self) -> impl Iterator<Item = &World> {
        self.spawned.iter().map(|spawned| &spawned.world)
    }

    /// Ranks of the world that the job began with.
    #[must_use]
    pub fn first_size(&self) -> u32 {
        self.first.size()
    }

    /// Ranks of all worlds.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.spawned.last().map_or(self.first.size(), |last| last.world.ranks().end)
    }

    /// The number of a rank's world, 0 for that of the job's beginning, and its rank there.
    #[must_use]
    pub fn place(&self, rank: Rank) -> (usize, Rank) {
        let number = self.spawned.partition_point(|spawned| spawned.world.first <= rank);
        match number.checked_sub(1).and_then(|at| self.spawned.get(at)) {
            Some(spawned) => (number, rank - spawned.world.first),
            None => (0, rank),
        }
    }

    /// True if a checkpoint may do without this rank when it has ended: it is of a spawned world, or of the first one in a job that has others,
    /// and has called `MPI_Finalize`.
    #[must_use]
    pub fn may_leave(&self, rank: Rank) -> bool {
        !self.spawned.is_empty() && (self.place(rank).0 > 0 || self.client(rank) == ClientState::Finalized)
    }

    fn server(&mut self, world: usize) -> &mut PmiServer {
        match world.checked_sub(1) {
            Some(at) => &mut self.spawned[at].server,
            None => &mut self.first,
        }
    }

    /// Keeps requests unanswered from now on.
    pub fn freeze(&mut self) {
        self.first.freeze();
        self.spawned.iter_mut().for_each(|spawned| spawned.server.freeze());
    }

    /// Answers again, beginning with what came meanwhile. Also the first step after a restart.
    pub fn thaw(&mut self) -> Vec<Effect> {
        let mut effects = self.first.thaw();
        for spawned in &mut self.spawned {
            let of_world = spawned.server.thaw_in(Some(self.first.values()));
            effects.extend(of_world.into_iter().map(|effect| in_job(effect, spawned.world.first)));
        }
        self.settle(effects)
    }

    /// State of a rank's client.
    #[must_use]
    pub fn client(&self, rank: Rank) -> ClientState {
        let (world, own) = self.place(rank);
        world.checked_sub(1).map_or(&self.first, |at| &self.spawned[at].server).client(own)
    }

    /// Takes bytes from a rank's socket.
    pub fn receive(&mut self, rank: Rank, bytes: &[u8]) -> Vec<Effect> {
        let (world, own) = self.place(rank);
        let effects = match world.checked_sub(1) {
            None => self.first.receive(own, bytes),
            Some(at) => {
                let spawned = &mut self.spawned[at];
                let effects = spawned.server.receive_in(own, bytes, Some(self.first.values()));
                effects.into_iter().map(|effect| in_job(effect, spawned.world.first)).collect()
            }
        };
        self.settle(effects)
    }

    /// A world more: its ranks have the next numbers. `preput`: what they find. The rank that asked is answered when all of them have begun.
    pub fn add(&mut self, identity: &[u8; 16], parent: Rank, request: &SpawnRequest) -> World {
        let world = World { first: self.size(), parent, commands: request.commands.clone() };
        let number = self.spawned.len() + 1;
        let server = PmiServer::new(world.size(), identity).of_programs(&world.boundaries());
        let server = server.of_world(number, &request.preput, self.first.universe());
        self.spawned.push(SpawnedWorld { world: world.clone(), server, answered: false, given_up: false });
        world
    }

    /// There are no processes for a rank that asked.
    pub fn refuse(&mut self, rank: Rank) -> Vec<Effect> {
        self.answer(rank, false)
    }

    /// The world of a rank, if who asked for it has no answer yet.
    #[must_use]
    pub fn unanswered(&self, rank: Rank) -> Option<&World> {
        let at = self.place(rank).0.checked_sub(1)?;
        self.spawned.get(at).filter(|spawned| !spawned.answered && !spawned.given_up).map(|spawned| &spawned.world)
    }

    /// True if not all ranks of a spawned world have begun.
    #[must_use]
    pub fn is_beginning(&self) -> bool {
        self.spawned.iter().any(|spawned| !spawned.answered && !spawned.given_up)
    }

    /// The world of this rank does not come to be: who asked for it is answered so.
    pub fn give_up(&mut self, rank: Rank) -> Vec<Effect> {
        if let Some(spawned) = self.place(rank).0.checked_sub(1).and_then(|at| self.spawned.get_mut(at)) {
            spawned.given_up = true;
        }
        self.settle(Vec::new())
    }

    fn answer(&mut self, rank: Rank, done: bool) -> Vec<Effect> {
        let (world, own) = self.place(rank);
        let first = rank - own;
        self.server(world).answer_spawn(own, done).into_iter().map(|effect| in_job(effect, first)).collect()
    }

    /// Answers those whose worlds have begun or were given up, and leaves out requests that are being carried out.
    fn settle(&mut self, mut effects: Vec<Effect>) -> Vec<Effect> {
        if !self.first.is_frozen() {
            for at in 0..self.spawned.len() {
                let spawned = &mut self.spawned[at];
                if !spawned.answered && (spawned.given_up || spawned.server.all_began()) {
                    spawned.answered = true;
                    let (parent, done) = (spawned.world.parent, !spawned.given_up);
                    let answer = self.answer(parent, done);
                    // Nothing that was said before is about what the rank asks next.
                    effects.retain(|effect| !matches!(effect, Effect::Spawn { rank, .. } if *rank == parent));
                    effects.extend(answer);
                }
            }
        }
        let open = |rank: Rank| self.spawned.iter().any(|spawned| !spawned.answered && spawned.world.parent == rank);
        effects.retain(|effect| !matches!(effect, Effect::Spawn { rank, .. } if open(*rank)));
        effects
    }
}

/// An effect of a world's server, with the job's numbers.
fn in_job(effect: Effect, first: Rank) -> Effect {
    match effect {
        Effect::Reply { rank, line } => Effect::Reply { rank: first + rank, line },
        Effect::Abort { rank, code } => Effect::Abort { rank: first + rank, code },
        Effect::Spawn { rank, request } => Effect::Spawn { rank: first + rank, request },
        Effect::Violation { rank, text } => Effect::Violation { rank: first + rank, text },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"mcmd=spawn\nnprocs=2\nexecname=x\nargcnt=0\npreput_num=1\npreput_key_0=PORT\npreput_val_0=a b\nendcmd\n";

    fn reply(rank: Rank, line: &str) -> Effect {
        Effect::Reply { rank, line: format!("{line}\n") }
    }

    fn asked(worlds: &mut Worlds, rank: Rank) -> SpawnRequest {
        match &worlds.receive(rank, REQUEST)[..] {
            [Effect::Spawn { rank: by, request: Ok(request) }] if *by == rank => request.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn begun(rank: Rank) -> Effect {
        reply(rank, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")
    }

    #[test]
    fn a_world_has_numbers_names_and_values_of_its_own() {
        let mut worlds = Worlds::from(PmiServer::new(2, &[7; 16]).of_universe(9));
        let request = asked(&mut worlds, 1);
        let world = worlds.add(&[7; 16], 1, &request);
        assert_eq!((world.ranks(), worlds.size(), worlds.place(3), worlds.place(1)), (2..4, 4, (1, 1), (0, 1)));
        assert_eq!(worlds.receive(2, b"cmd=get kvsname=k key=PORT\n"), [reply(2, "cmd=get_result rc=0 msg=success value=a b")]);
        assert_eq!(worlds.receive(0, b"cmd=get kvsname=k key=PORT\n"), [reply(0, "cmd=get_result rc=-1 msg=key_not_found value=unknown")]);
        assert_eq!(worlds.receive(3, b"cmd=get_universe_size\n"), [reply(3, "cmd=universe_size size=9 rc=0")]);
        let name = |rank, effects: Vec<Effect>| match &effects[..] {
            [Effect::Reply { rank: to, line }] if *to == rank => line.clone(),
            other => panic!("{other:?}"),
        };
        assert_ne!(name(0, worlds.receive(0, b"cmd=get_my_kvsname\n")), name(2, worlds.receive(2, b"cmd=get_my_kvsname\n")));
        assert_eq!(worlds.receive(2, b"cmd=barrier_in\n"), []);
        assert_eq!(worlds.receive(3, b"cmd=barrier_in\n"), [reply(2, "cmd=barrier_out rc=0"), reply(3, "cmd=barrier_out rc=0")]);
        assert_eq!(worlds.receive(3, b"cmd=publish_name service=s port=p\n"), [reply(3, "cmd=publish_result rc=0 msg=success")]);
        assert_eq!(worlds.receive(0, b"cmd=lookup_name service=s\n"), [reply(0, "cmd=lookup_result rc=0 msg=success port=p")]);
    }

    #[test]
    fn who_asked_is_answered_when_all_have_begun_also_after_a_restart() {
        let mut worlds = Worlds::from(PmiServer::new(2, &[7; 16]));
        let request = asked(&mut worlds, 0);
        worlds.add(&[7; 16], 0, &request);
        assert_eq!(worlds.receive(3, b"cmd=init\n"), [begun(3)]);
        worlds.freeze();
        assert_eq!(worlds.receive(2, b"cmd=init\n"), []);
        let mut restored: Worlds = postcard::from_bytes(&postcard::to_stdvec(&worlds).unwrap()).unwrap();
        assert_eq!(restored.thaw(), [begun(2), reply(0, "cmd=spawn_result rc=0")]);
        // A second world, asked for by a rank of the first.
        let request = asked(&mut restored, 3);
        let world = restored.add(&[7; 16], 3, &request);
        assert_eq!((world.first, world.parent, restored.place(4)), (4, 3, (2, 0)));
        assert_eq!(restored.receive(4, b"cmd=init\n"), [begun(4)]);
        assert_eq!(restored.receive(5, b"cmd=init\n"), [begun(5), reply(3, "cmd=spawn_result rc=0")]);
    }

    #[test]
    fn a_rank_of_the_first_world_may_leave_when_there_are_others_and_it_has_finalized() {
        let mut worlds = Worlds::from(PmiServer::new(2, &[7; 16]));
        let finalized = reply(0, "cmd=finalize_ack rc=0");
        assert_eq!(worlds.receive(0, b"cmd=finalize\n"), [finalized]);
        assert_eq!([0, 1].map(|rank| worlds.may_leave(rank)), [false, false]);
        let request = asked(&mut worlds, 1);
        worlds.add(&[7; 16], 1, &request);
        assert_eq!([0, 1, 2, 3].map(|rank| worlds.may_leave(rank)), [true, false, true, true]);
    }

    #[test]
    fn who_asked_in_vain_is_answered_when_requests_are_answered() {
        let mut worlds = Worlds::from(PmiServer::new(1, &[7; 16]));
        let request = asked(&mut worlds, 0);
        worlds.add(&[7; 16], 0, &request);
        worlds.freeze();
        assert_eq!(worlds.give_up(1), []);
        assert_eq!(worlds.thaw(), [reply(0, "cmd=spawn_result rc=-1 msg=no_process_was_started")]);
        assert_eq!(worlds.unanswered(1), None);
        asked(&mut worlds, 0);
        assert_eq!(worlds.refuse(0), [reply(0, "cmd=spawn_result rc=-1 msg=no_process_was_started")]);
    }
}
