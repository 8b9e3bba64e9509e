//! Ranks that look seldom, cannot accept, have no device, or go before a new channel is there: nobody waits for them longer than he must.

use super::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// In a process of its own: the limit is that of all its threads.
#[test]
fn a_connection_that_could_not_be_accepted_is_tried_again() {
    const ALONE: &str = "MEND_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "links::tests::seldom::a_connection_that_could_not_be_accepted_is_tried_again";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let end = again.args(["--exact", name]).env(ALONE, "1").output().unwrap();
        let said = [end.stdout, end.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(end.status.success() && said.contains("1 passed"), "{}: {said}", end.status);
        return;
    }
    for nodes in [[0, 0], [0, 1]] {
        let mut world = World::new(&nodes, 1);
        let mut memory = [0; 8];
        world.post(1, 0, &mut memory);
        world.progress();
        world.send(0, 1, b"whatever").unwrap();
        let Node { engine, links, .. } = &mut world.nodes[0];
        links.urgent = true;
        links.progress(engine);
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
        let Node { engine, links, .. } = &mut world.nodes[1];
        while !links.crowd {
            links.urgent = true;
            links.progress(engine);
        }
        assert!(links.pending_handshakes.is_empty());
        setrlimit(Resource::Nofile, limit).unwrap();
        world.settle("a message over the connection that waited", |world| world.received(1) == 1);
        assert_eq!(world.nodes[0].links.openings, 1);
    }
}
