//! Records of conversations between daemons and agents (`MEND_LOG=mend_conversation=trace`) are checked against the simulator's agents.

use mend_simulation::agent::replay;

/// The records that `tests/lab/test_conversations.py` makes and compares with what is said today.
#[test]
fn what_real_agents_said_is_what_the_simulators_agents_say() {
    let records = concat!(env!("CARGO_MANIFEST_DIR"), "/conversations");
    let mut answers = 0;
    for entry in std::fs::read_dir(records).unwrap() {
        let path = entry.unwrap().path();
        let record = std::fs::read_to_string(&path).unwrap();
        answers += replay(&record).unwrap_or_else(|found| panic!("{}: {found}", path.display()));
    }
    assert!(answers > 40, "the records have {answers} answers");
}

#[test]
fn what_no_agent_would_say_is_found() {
    for (record, good) in [
        ("0.0 > hello\n0.0 < suspend\n0.0 > suspended\n0.0 < save\n0.0 > saved", true),
        ("0.0 > hello\n0.0 < save\n0.0 > saved", false),
        ("0.0 > hello\n0.0 < save\n0.0 > failed", true),
        ("0.0 > hello\n0.0 > written", false),
        (
            "0.0 > hello\n0.0 < suspend\n0.0 > suspended\n0.0 < save-behind\n0.0 > saved-behind\n0.0 < resume\n0.0 > resumed\n0.0 > written",
            true,
        ),
        ("0.0 > hello\n0.0 < resume\n0.0 > suspended", false),
        ("0.0 > suspended", false),
        ("0.0 > hello\n0.0 < pause\n0.0 > paused\n0.0 < resume\n0.0 > failed", true),
        ("0.0 > hello\n0.0 < pause\n0.0 > paused\n0.0 < resume\n0.0 > resumed", false),
        ("1.3 > restored\n1.3 < pause\n1.3 > paused", false),
        ("1.3 > restored\n1.3 < resume\n1.3 > resumed", true),
    ] {
        assert_eq!(replay(record).is_ok(), good, "{record}");
    }
}
