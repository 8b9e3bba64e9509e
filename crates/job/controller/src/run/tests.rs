//! What is known of a life that is over, whoever controlled it.

use super::*;
use crate::healing_options::HealingOptions;
use crate::life::Constants;
use crate::made_spaces::Begins;
use crate::restart::RestartSpec;
use mend_coordination::pmi::PmiServer;
use mend_job::setup::{CheckpointPlan, Moving, Saving};
use mend_messages::agent::SaveMode;
use mend_messages::chunks::TransportWord;
use mend_policy::follow::Mode;
use mend_policy::schedule::{Incremental, Interval};

/// A job whose `mend run` began at that time, and of which nothing else is known.
fn life(run_began: u64) -> LifeRecord {
    let plan = CheckpointPlan {
        interval: Interval::Off,
        incremental: Incremental::Off,
        keep: None,
        mtbf_hours: 1,
        averted_percent: 0,
        space_percent: None,
    };
    let setup = Setup {
        id: "job".into(),
        identity: [7; 16],
        token_key: [1; 32],
        nodes: Vec::new(),
        places: Vec::new(),
        checkpoints: "/nonexistent".into(),
        listed: Vec::new(),
        abandoned: Vec::new(),
        elsewhere: None,
        adopted: Vec::new(),
        plan,
        tiers: None,
        saving: Saving { mode: SaveMode::Stop, rate: None, keep_files: 0 },
        moving: Moving { threshold: 1, rounds: 1, transport: TransportWord::Tcp },
        drain_timeout_us: 1_000_000,
        node_timeout_us: 10_000_000,
        reserve: 0,
        restarts: Default::default(),
        rates: BTreeMap::new(),
        program_rates: None,
        goes_back: false,
        follows_data: Mode::Off,
        time_left_s: None,
        worlds: PmiServer::new(0, &[7; 16]).into(),
        gone: Vec::new(),
        stdin: false,
        restoring: None,
        healing: None,
    };
    LifeRecord {
        setup,
        program: Program { argv: vec!["a".into()], env: Vec::new(), cwd: "/".into(), umask: None, further: Vec::new() },
        sessions: Vec::new(),
        epoch: 1,
        lease_ms: 3000,
        node_timeout_ms: 3000,
        directory_timeout_s: 300,
        encryption_key: None,
        any_owner: false,
        quiet: true,
        moved: false,
        options: HealingOptions::default(),
        healing: HealingOptions::default().begin().unwrap(),
        tiers: Vec::new(),
        printed: Vec::new(),
        input: Default::default(),
        input_file: None,
        local: true,
        batch: None,
        run_began,
        holder: 0,
    }
}

/// The next life of a job whose controller was lost has what is left of the time, not all of it again.
#[test]
fn a_run_began_when_its_first_controller_began_it() {
    let place = tempfile::tempdir().unwrap();
    let directory = JobDirectory::at(place.path());
    let text = r#"{"id": "job", "command": ["a"], "size": 0, "hosts": [], "controller_host": "a", "controller_port": 1, "controller_pid": 1,
        "started": 1000, "ended": null, "checkpoints": "/nonexistent"}"#;
    let mut record: JobRecord = serde_json::from_str(text).unwrap();
    let (job, _) = Job::begin(life(1000).setup, 0);
    let end = end_of_lost(&life(1000), &job, &directory, &mut record);
    let constants =
        Constants { options: HealingOptions::default(), encryption_key: None, key: None, any_owner: false, batch: None, quiet: true };
    let next = RestartSpec::of_next_life(&record.checkpoints, "job", &[], &constants, &end);
    assert_eq!((next.run_began, next.begins), (Some(1000), Begins::ByItself));
}
