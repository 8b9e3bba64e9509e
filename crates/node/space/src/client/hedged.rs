//! Asks one of several targets that have the same: one at once, the next one when that fails or says nothing for a moment ([`Client::hedged_after`]),
//! or only when it fails ([`Client::unhedged`]). What can be had elsewhere, too, is not waited for when all of them say nothing ([`Client::ask_any_shortly`]).
//!
//! ```text
//! first ──asked──────── says nothing ────────► its answer, if it comes, is not waited for
//! second     after 50 ms ──asked──► answers ──► taken; from now on it is asked first, until the first one has said something
//! no other      after 250 ms, or 4 times what is usual of it ──► nothing is given; from now on at once, until it has said something
//! ```
//! Faults assumed: each of them dies, stands still, or answers late. Whoever asks waits no longer than for the best of them.

use super::names::Client;
use super::peer::{Peer, Shortly, nonsense};
use crate::link::{Fault, Pieces};
use mend_data::space::target::{Answer, Request};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long a target may say nothing, at least, before what it has is looked for where it came from: many nodes do that, and there is one such place.
const LEAST_SILENCE: Duration = Duration::from_millis(250);

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
        self.ask_until(targets, request, None).unwrap_or_else(|| Err(self.no_such_target()))
    }

    /// The same of bytes that can be had elsewhere: `None` if the targets say nothing for longer than is usual of them, or said nothing before. They are listened to all the same.
    pub(super) fn ask_any_shortly(&self, targets: &[u16], request: &Request) -> Option<Result<Given, Fault>> {
        let Some(hedge) = self.hedge() else { return Some(self.ask_any(targets, request)) };
        let least = hedge.max(LEAST_SILENCE);
        if !self.any_answers(targets) {
            self.try_again(targets, request);
            return None;
        }
        if let ([at], Some(peer)) = (targets, targets.first().and_then(|at| self.shared_peer(*at))) {
            match peer.ask_shortly(request, least) {
                Shortly::Answered(Ok((Answer::Bytes { .. }, blocks))) => return Some(Ok(Given { at: *at, blocks, failed: Vec::new() })),
                Shortly::Answered(Ok(_)) => return Some(Err(nonsense(peer))),
                Shortly::Answered(Err(fault)) => return Some(Err(fault)),
                Shortly::Late(Some((link, asked))) => {
                    peer.is_unheard_now();
                    let (peer, request) = (peer.clone(), request.clone());
                    // Where no thread can be made, the connection ends here, and whoever looks for lost targets hears of it.
                    let _ = std::thread::Builder::new().name("read".to_owned()).spawn(move || peer.wait_on(&request, *link, asked));
                    return None;
                }
                Shortly::Late(None) => {}
            }
        }
        self.ask_until(targets, request, Some(least))
    }

    fn no_such_target(&self) -> Fault {
        Fault::Other(format!("{} has no such target", self.space.name))
    }

    /// False if all these targets are lost, or gave nothing for longer than is usual and have answered no read since.
    pub(super) fn any_answers(&self, targets: &[u16]) -> bool {
        targets.iter().any(|at| self.shared_peer(*at).is_none_or(|peer| !peer.is_unheard() && !peer.is_lost()))
    }

    /// Reads again, by the way, from those of these targets that gave nothing, unless that is done.
    pub(super) fn try_again(&self, targets: &[u16], request: &Request) {
        targets.iter().filter_map(|at| self.shared_peer(*at)).for_each(|peer| peer.try_again(request));
    }

    /// `None` if they say nothing for what is unusual of the last one, `least` at least.
    fn ask_until(&self, targets: &[u16], request: &Request, least: Option<Duration>) -> Option<Result<Given, Fault>> {
        let mut peers: Vec<(u16, &Arc<Peer>)> = targets.iter().filter_map(|at| Some((*at, self.shared_peer(*at)?))).collect();
        peers.sort_by_key(|(_, peer)| peer.is_doubtful() || peer.is_unheard());
        let here = (peers.len() == 1 && least.is_none()) || self.hedge().is_none();
        let (say, heard) = channel();
        let mut next = peers.into_iter().peekable();
        let (mut waiting, mut begun, mut start, mut last) = (0, false, true, None);
        let mut failed: Vec<(u16, Fault)> = Vec::new();
        let mut unanswered: Vec<(u16, &Arc<Peer>)> = Vec::new();
        loop {
            match next.next_if(|_| start) {
                Some((at, peer)) => {
                    waiting += 1;
                    last = Some(peer);
                    unanswered.push((at, peer));
                    ask(at, peer, request, &say, here);
                }
                None if waiting == 0 => {
                    return Some(Err(failed.into_iter().next().map_or_else(|| self.no_such_target(), |(_, fault)| fault)));
                }
                None => {}
            }
            let more = next.len() > 0;
            let limit = if more { self.hedge() } else { least.and_then(|least| Some(last?.unusual(least))) };
            let word = match limit.filter(|_| !begun) {
                Some(limit) => heard.recv_timeout(limit),
                None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            start = match word {
                Ok(Word::Begun) => {
                    begun = true;
                    false
                }
                Ok(Word::Answered(at, answered)) => {
                    (waiting, begun) = (waiting - 1, false);
                    unanswered.retain(|(other, _)| *other != at);
                    match answered {
                        Ok((Answer::Bytes { .. }, blocks)) => return Some(Ok(Given { at, blocks, failed })),
                        Ok(_) => failed.push((at, self.peer(at).map_or_else(|fault| fault, nonsense))),
                        Err(fault) => failed.push((at, fault)),
                    }
                    true
                }
                Err(_) => {
                    last.into_iter().for_each(|peer| peer.is_silent_now());
                    if !more && least.is_some() {
                        unanswered.iter().for_each(|(_, peer)| peer.is_unheard_now());
                        return None;
                    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use mend_data::space::{COPIES, FORMAT, Space, Striping, Target};
    use mend_messages::job::Secret;
    use std::time::Instant;

    /// Nobody is asked.
    fn client(hosts: &[u8]) -> Client {
        let target = |host: &u8| Target { host: "node".into(), address: ([127, 0, 0, *host], 9).into(), directory: "/none".into() };
        let (targets, striping) = (hosts.iter().map(target).collect(), Striping::default());
        let space =
            Space { format: FORMAT, name: "tested".into(), id: [1; 16], targets, striping, copies: COPIES, job: None, ending: false };
        Client::new(space, &Secret([7; 32]), Duration::from_secs(1), false)
    }

    #[test]
    fn targets_of_a_node_share_the_number_of_the_first_one() {
        let client = client(&[1, 2, 1, 3, 2]);
        assert_eq!((0..6).map(|at| client.node(at)).collect::<Vec<_>>(), [0, 1, 0, 3, 1, usize::MAX]);
    }

    #[test]
    fn what_is_late_is_asked_later_and_what_gives_nothing_is_unheard_until_a_read_is_answered() {
        let client = client(&[1, 2]);
        let peer = client.shared_peer(0).unwrap();
        peer.is_silent_now();
        assert!(peer.is_doubtful() && client.any_answers(&[0]), "a moment's silence is none of its medium");
        peer.is_unheard_now();
        assert!(!client.any_answers(&[0]) && client.any_answers(&[0, 1]));
        peer.took(&Request::Changes { after: 0, lease: false }, Instant::now());
        peer.took(&Request::Look, Instant::now());
        assert!(!client.any_answers(&[0]), "its process answers, its medium may stand still");
        peer.took(&Request::Read { file: [1; 16], position: 0, offset: 0, length: 1 }, Instant::now());
        assert!(client.any_answers(&[0]));
    }
}
