//! Asks one of several targets that have the same: one at once, the next one when that fails or says nothing for a moment ([`Client::hedged_after`]),
//! or only when it fails ([`Client::unhedged`]).
//!
//! ```text
//! first ──asked──────── says nothing ────────► its answer, if it comes, is not waited for
//! second     after 50 ms ──asked──► answers ──► taken; from now on it is asked first, until the first one has said something
//! ```
//! Faults assumed: each of them dies, stands still, or answers late. Whoever asks waits no longer than for the best of them.

use super::names::Client;
use super::peer::{Peer, nonsense};
use crate::link::{Fault, Pieces};
use mend_data::space::target::{Answer, Request};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

/// Bytes that one of the targets gave.
#[derive(Debug)]
pub(super) struct Given {
    /// Which one.
    pub at: u16,
    /// What it gave, in pieces of a block each.
    pub blocks: Vec<Vec<u8>>,
    /// Those that were asked before and failed.
    pub failed: Vec<(u16, Fault)>,
}

enum Word {
    /// An answer begins to come.
    Begun,
    Answered(u16, Result<(Answer, Pieces), Fault>),
}

impl Client {
    /// Asks for bytes, targets that answer before others.
    ///
    /// # Errors
    /// The fault of the first one that failed, if none gives them.
    pub(super) fn ask_any(&self, targets: &[u16], request: &Request) -> Result<Given, Fault> {
        let mut peers: Vec<(u16, &Arc<Peer>)> = targets.iter().filter_map(|at| Some((*at, self.shared_peer(*at)?))).collect();
        peers.sort_by_key(|(_, peer)| peer.is_doubtful());
        let here = peers.len() == 1 || self.hedge().is_none();
        let (say, heard) = channel();
        let mut next = peers.into_iter().peekable();
        let (mut waiting, mut begun, mut start, mut last) = (0, false, true, None);
        let mut failed: Vec<(u16, Fault)> = Vec::new();
        loop {
            match next.next_if(|_| start) {
                Some((at, peer)) => {
                    waiting += 1;
                    last = Some(peer);
                    ask(at, peer, request, &say, here);
                }
                None if waiting == 0 => {
                    let none = || Fault::Other(format!("{} has no such target", self.space.name));
                    return Err(failed.into_iter().next().map_or_else(none, |(_, fault)| fault));
                }
                None => {}
            }
            let more = next.len() > 0 && !begun;
            let word = match self.hedge().filter(|_| more) {
                Some(hedge) => heard.recv_timeout(hedge),
                None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            start = match word {
                Ok(Word::Begun) => {
                    begun = true;
                    false
                }
                Ok(Word::Answered(at, answered)) => {
                    (waiting, begun) = (waiting - 1, false);
                    match answered {
                        Ok((Answer::Bytes { .. }, blocks)) => return Ok(Given { at, blocks, failed }),
                        Ok(_) => failed.push((at, nonsense(self.peer(at)?))),
                        Err(fault) => failed.push((at, fault)),
                    }
                    true
                }
                Err(_) => {
                    last.into_iter().for_each(|peer| peer.is_silent_now());
                    true
                }
            };
        }
    }
}

/// Asks by a thread of its own, which ends when the target answers or is lost; `here` if nobody else is asked meanwhile.
fn ask(at: u16, peer: &Arc<Peer>, request: &Request, say: &Sender<Word>, here: bool) {
    // That nobody listens any more is no harm.
    let work = {
        let (say, peer, request) = (say.clone(), peer.clone(), request.clone());
        move || {
            let answered = peer.ask_and_tell(&request, &[], &|| drop(say.send(Word::Begun)));
            let _ = say.send(Word::Answered(at, answered));
        }
    };
    let begun = if here { Err(None) } else { std::thread::Builder::new().name("read".to_owned()).spawn(work.clone()).map_err(Some) };
    if begun.is_err() {
        work();
    }
}
