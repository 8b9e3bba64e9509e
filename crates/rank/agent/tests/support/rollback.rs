//! Taking a process back to an image in place.

use super::{Rank, Refusal, header_of, limit, read_message, restorer, welcome};
use mend_messages::agent::{FromAgent, ImageId, Reply, Request, RollbackOrder};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

impl Rank {
    /// Pauses it, whatever it is about, and takes it back to an image in place; it stands parked.
    pub fn roll_back(&mut self, chain: &[PathBuf]) -> Result<(), Refusal> {
        match self.ask(Request::Pause) {
            Reply::Paused => {}
            Reply::Failed { error, .. } => return Err(Refusal(error)),
            other => panic!("unexpected {other:?}"),
        }
        let header = header_of(&chain[0])?;
        let (control, control_theirs) = UnixStream::pair().unwrap();
        let (agent, agent_theirs) = UnixStream::pair().unwrap();
        let (output, theirs) = UnixStream::pair().unwrap();
        let (stdin, stdin_theirs) = UnixStream::pair().unwrap();
        let mut files: Vec<OwnedFd> = vec![std::fs::File::open(restorer(header.zone)).unwrap().into(), control_theirs.into()];
        files.push(agent_theirs.into());
        files.extend(chain.iter().map(|path| OwnedFd::from(std::fs::File::open(path).unwrap())));
        files.extend([stdin_theirs.into(), theirs.try_clone().unwrap().into(), theirs.into()]);
        let (ours, given) = UnixStream::pair().unwrap();
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&borrowed)));
        rustix::net::sendmsg(&ours, &[IoSlice::new(&[0])], &mut ancillary, rustix::net::SendFlags::empty()).unwrap();
        let order = RollbackOrder {
            image: ImageId(header.id),
            zone: header.zone,
            images: chain.len() as u32,
            roles: vec![0, 1, 2],
            put_back: None,
        };
        self.send_with(Request::RollBack(order), &given);
        drop((files, given));
        self.drain_output();
        // A parent that has it open keeps it.
        self.agent.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        match read_message(&mut self.agent) {
            Ok(FromAgent::Reply { reply: Reply::Failed { error, .. }, .. }) => return Err(Refusal(error)),
            Ok(other) => panic!("unexpected {other:?}"),
            // The agent's thread has ended.
            Err(_) => {}
        }
        (self.agent, self.output, self.stdin) = (agent, output, Some(stdin));
        self.agent.set_read_timeout(Some(limit())).unwrap();
        self.await_ready(control)?;
        match read_message(&mut self.agent) {
            Ok(FromAgent::Restored { rank: 0, .. }) => {}
            Ok(FromAgent::RestoreFailed { error, .. }) => return Err(Refusal(error)),
            other => panic!("unexpected {other:?}: {:?} {}", self.child.try_wait(), self.drain_output()),
        }
        self.say(&welcome());
        assert!(matches!(self.hear(), FromAgent::FabricUp(_)));
        Ok(())
    }
}

/// Saves, lets the program run on for two lines, and takes it back in place, the given line before each save; then lets it finish.
pub fn rollbacks(mut rank: Rank, lines: &[&str]) -> String {
    let process = rank.processes()[0];
    let started = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat[stat.rfind(')').unwrap()..].split_whitespace().nth(20).unwrap().to_owned()
    };
    let (began, directory) = (started(process), rank.directory.clone());
    let mut printed = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        rank.comes_to(number, line);
        let path = directory.join(format!("image-{number}"));
        // What is written from here on is noticed, or not.
        let saved = if number % 2 == 1 { rank.save_on(&path, None) } else { rank.save(&path) };
        rank.drain_output();
        printed.append(&mut rank.printed);
        rank.resume();
        rank.two_lines_more();
        rank.roll_back(&[path]).unwrap_or_else(|refusal| panic!("rollback {number} refused: {refusal:?}"));
        assert_eq!((rank.processes()[0], started(process)), (process, began.clone()), "the process is another one");
        assert!(rank.restorer_placed < saved.bytes, "{} bytes were written of {}", rank.restorer_placed, saved.bytes);
        rank.printed.clear();
        rank.resume();
    }
    let end = if rank.endless { rank.end() } else { rank.finish() };
    String::from_utf8_lossy(&printed).into_owned() + &end
}
