//! What is drawn at the beginning of a world, and of each life of its job: verbs, faults, places.

use super::World;
use super::succession::IDENTITY;
use crate::coming::{Coming, Fault, HORIZON_US, NODE_TIMEOUT_US, SECOND_US};
use mend_coordination::pmi::PmiServer;
use mend_job::healing::{Healing, HealingRules};
use mend_job::setup::{Moving, NodeSetup, Restoring, Saving, Setup, TierSetup};
use mend_messages::agent::SaveMode;
use mend_messages::control::{Ask, MoveMode, Storage};
use mend_messages::daemon::ExitStatus;
use mend_messages::job::{NodeIndex, Rank};
use mend_policy::follow::Mode;
use mend_policy::restarts::Restart;
use rand_chacha::rand_core::RngCore;
use std::collections::BTreeMap;
use std::path::PathBuf;

impl World {
    fn rank(&mut self) -> Rank {
        self.draw(u64::from(self.size)) as Rank
    }

    /// Rank 0, which is given standard input, more often than others.
    fn mover(&mut self) -> Rank {
        if self.chance(3) { 0 } else { self.rank() }
    }

    pub(crate) fn draw_scenario(&mut self) {
        for _ in 0..2 + self.draw(10) {
            let at = SECOND_US + self.draw(HORIZON_US);
            let ask = match self.draw(11) {
                0..3 => Ask::Checkpoint { mode: [None, Some(SaveMode::Stop), Some(SaveMode::CopyOnWrite)][self.draw(3) as usize] },
                3..6 => {
                    let node = self.draw(self.nodes.len() as u64);
                    let to = (!self.chance(3)).then(|| format!("n{node}"));
                    let storage = [Storage::Shared, Storage::Local, Storage::Staged][self.draw(3) as usize];
                    let modes = [MoveMode::Auto, MoveMode::Frozen, MoveMode::Live, MoveMode::Live, MoveMode::Stored(storage)];
                    let mode = modes[self.draw(5) as usize];
                    let deadline_ms = self.chance(4).then(|| self.rng.next_u64() % 5000);
                    let avoid = if self.chance(4) { vec![format!("n{}", self.draw(self.nodes.len() as u64))] } else { Vec::new() };
                    // Often several ranks at about the same time.
                    for _ in 0..self.draw(4) {
                        let (rank, later) = (self.mover(), self.draw(SECOND_US / 10));
                        self.plan(at + later, Coming::Verb(Ask::Migrate { rank, to: to.clone(), avoid: avoid.clone(), mode, deadline_ms }));
                    }
                    Ask::Migrate { rank: self.mover(), to, avoid, mode, deadline_ms }
                }
                6 => Ask::Explain,
                7 => Ask::Remove { numbers: Vec::new() },
                8 => Ask::Hurry { rank: self.rank() },
                9 => Ask::CancelMove { rank: self.rank() },
                _ => Ask::Status,
            };
            self.plan(at, Coming::Verb(ask));
        }
        self.disturbed = !self.chance(4);
        let faults = if self.disturbed { 1 + self.draw(5) } else { 0 };
        for _ in 0..faults {
            let at = SECOND_US + self.draw(HORIZON_US);
            let node = self.draw(self.nodes.len() as u64) as usize;
            let (one, other) = (self.rank(), self.rank());
            let fault = match self.draw(27) {
                0..2 => Fault::NodeDies(node),
                2 => Fault::ConnectionBreaks(node),
                3 => Fault::RankDies(one, ExitStatus::Signal(9)),
                4..6 => Fault::RankDies(one, ExitStatus::Code(0)),
                6..9 => Fault::CopyDies(one),
                9..12 => Fault::Stuck(one, (!self.chance(3)).then(|| SECOND_US + self.rng.next_u64() % (40 * SECOND_US))),
                12..15 => Fault::DiskFull(SECOND_US + self.draw(30 * SECOND_US)),
                15..17 => Fault::ControllerDies,
                17 => Fault::Signal,
                18..20 => Fault::MessagesLost(one, other),
                20..22 => Fault::OldLoss(one, other),
                22..24 => Fault::ImageRots(one),
                24 => Fault::TimeUp,
                _ => Fault::NewestVanishes,
            };
            self.plan(at, Coming::Fault(fault));
        }
    }

    pub(crate) fn setup(&mut self, newest: Option<u64>, places: Vec<NodeIndex>, (check, stdin): (bool, bool)) -> Setup {
        let restoring = newest.and_then(|number| {
            let publication = self.disk.publication(number)?;
            let file = |(rank, chain): (usize, Vec<u64>)| {
                chain.iter().map(|number| PathBuf::from(format!("/c/{number}/rank-{rank}.image"))).collect()
            };
            let search = (!self.tiers.is_empty()).then(|| self.search(number, check));
            let chains = match &search {
                Some(_) => vec![Vec::new(); self.size as usize],
                None => self.disk.chains(number)?.into_iter().enumerate().map(file).collect(),
            };
            Some(Restoring {
                number,
                chains,
                images: publication.images.iter().map(|image| image.id).collect(),
                needs: publication.images.iter().map(|image| image.needs).collect(),
                reads: Restart { read_us: 0, full: publication.bytes(), incremental: 0 },
                checkpoint: format!("/c/{number}").into(),
                files: Vec::new(),
                search,
            })
        });
        let writers = 1 + self.draw(2) as usize;
        let tiers = (!self.tiers.is_empty()).then(|| TierSetup { specs: self.tiers.clone(), rate: 0, writers, wide_percent: 15 });
        let worlds = newest.and_then(|number| self.disk.publication(number)).map(|publication| publication.worlds.clone());
        let mut key = [0; 32];
        self.rng.fill_bytes(&mut key);
        let name = |&at: &usize| NodeSetup { name: format!("n{at}"), address: ([10, 0, 0, at as u8], 7000).into() };
        Setup {
            id: "job".into(),
            identity: IDENTITY,
            token_key: key,
            nodes: self.hosts.iter().map(name).collect(),
            places,
            checkpoints: "/c".into(),
            listed: self.disk.numbers(),
            abandoned: Vec::new(),
            elsewhere: None,
            adopted: if self.tiers.is_empty() { Vec::new() } else { self.adopted() },
            plan: self.rules,
            tiers,
            moving: Moving { threshold: 1 << 20, rounds: 8, transport: mend_messages::chunks::TransportWord::Tcp },
            saving: Saving { mode: self.mode, rate: None, keep_files: 0 },
            drain_timeout_us: 20 * SECOND_US,
            reserve: [0, 1 << 20][self.draw(2) as usize],
            node_timeout_us: NODE_TIMEOUT_US,
            rates: BTreeMap::new(),
            program_rates: None,
            restarts: Default::default(),
            goes_back: true,
            follows_data: Mode::Auto,
            time_left_s: None,
            worlds: worlds.unwrap_or_else(|| PmiServer::new(self.size, &IDENTITY).into()),
            gone: Vec::new(),
            stdin,
            restoring,
            healing: self
                .chance(2)
                .then(|| Healing::new(HealingRules { goes_on: true, in_place: true, retries: 3, waits: self.chance(2) })),
        }
    }
}
