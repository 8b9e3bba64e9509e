//! What an agent answers goes to whoever has asked.

use crate::world::World;
use mend_job::event::{Effect, Event, Outcome};
use mend_messages::agent::{Inspection, Reply, Request, Saved};
use mend_messages::control::Ask;
use mend_messages::daemon::{FromDaemon, Question, ToDaemon};
use mend_messages::files::{FileState, FileUse, Keeping, KeptFile};

/// What agents are asked now.
fn questions(world: &mut World) -> Vec<Question> {
    let steps = |(_, message)| if let ToDaemon::Ask(steps) = message { Some(steps) } else { None };
    world.take_sent().into_iter().filter_map(steps).flatten().flatten().collect()
}

fn answer(world: &mut World, question: &Question, reply: Reply) {
    world.hear(question.rank, FromDaemon::Agent { seq: question.seq, rank: question.rank, reply });
}

#[test]
fn an_inspection_and_a_checkpoint_that_is_being_written_know_nothing_of_each_other() {
    let failed = || Reply::Failed { error: "x".into(), hint: String::new() };
    for explain_fails in [true, false] {
        let mut world = World::new();
        world.handle(Event::Ask { verb: 1, ask: Ask::Checkpoint { mode: None } });
        world.take_sent();
        world.handle(Event::Prepared { number: 1, result: Ok(true) });
        let mut syncs = Vec::new();
        while syncs.is_empty() {
            for question in questions(&mut world) {
                let keeping = Keeping::Content { name: "0".into(), stored: 1, checksum: None };
                let (state, usage) = (FileState::default(), FileUse::Write);
                let kept = KeptFile { key: "f".into(), rank: question.rank, path: "/f".into(), usage, state, keeping };
                let reply = match &question.request {
                    Request::Inspect { .. } => Reply::Inspected(Inspection::default()),
                    Request::Suspend => Reply::Suspended { us: 1 },
                    Request::Save(_) => Reply::Saved(Saved::default()),
                    Request::KeepFiles(_) => Reply::Kept(vec![kept]),
                    Request::Resume => Reply::Resumed { stopped_us: 1 },
                    _ => {
                        syncs.push(question);
                        continue;
                    }
                };
                answer(&mut world, &question, reply);
            }
        }
        world.handle(Event::Ask { verb: 2, ask: Ask::Explain });
        let inspections = questions(&mut world);
        assert_eq!(inspections.len(), 2);
        for question in &inspections {
            let reply = if explain_fails { failed() } else { Reply::Inspected(Inspection::default()) };
            if !explain_fails {
                answer(&mut world, &syncs.remove(0), failed());
            }
            answer(&mut world, question, reply);
        }
        for question in syncs {
            answer(&mut world, &question, Reply::Synced);
        }
        assert_eq!(world.saved().is_some(), explain_fails);
        let explained = world.effects.iter().find_map(|effect| match effect {
            Effect::Answer { verb: 2, outcome: Outcome::Explained(found) } => Some(found.clone()),
            _ => None,
        });
        assert!(explained.unwrap().iter().all(|(.., found)| found.is_err() == explain_fails));
    }
}
