//! Standard input: read in pieces, given to rank 0, counted; a restart goes on behind what its checkpoint has.
//!
//! What is asserted: rank 0 reads every byte of it once, in order, whatever happens, and then its end.

use super::World;
use crate::coming::{Coming, MILLISECOND_US};
use crate::feeder::{Feeder, InputImage, byte};
use crate::node::Phase;
use mend_job::event::{Event, StdinEffect};
use mend_job::input::{Input, InputAt};
use mend_job::phase::RankPhase;
use mend_messages::agent::ImageId;
use mend_messages::daemon::{FromDaemon, RestoreSource};
use mend_messages::job::Rank;
use std::collections::BTreeMap;

/// Longest piece.
const PIECE_BYTES: u64 = 30;

/// The controller's side of it.
#[derive(Debug)]
pub struct Reader {
    input: Input,
    /// How much was read.
    read: u64,
    /// A piece is being read.
    reading: bool,
    /// The end was read.
    ended: bool,
}

/// Standard input of a world's job.
#[derive(Debug, Default)]
pub struct Stdin {
    /// How much there is; none: the job has none.
    pub length: Option<u64>,
    /// The program seldom reads: its pipe is mostly full.
    slow: bool,
    reader: Option<Reader>,
    /// What belongs to a checkpoint that is being taken, and to those that are published.
    noted: BTreeMap<u64, InputAt>,
    /// What of rank 0's images is about it.
    images: BTreeMap<ImageId, InputImage>,
    /// What of images under way to another node is.
    moving: BTreeMap<[u8; 16], InputImage>,
}

impl World {
    pub(crate) fn draw_stdin(&mut self) {
        if self.chance(2) {
            self.stdin.slow = self.chance(2);
            let most = if self.stdin.slow { 500 } else { 2000 };
            self.stdin.length = Some(self.draw(most));
        }
    }

    /// A life begins: true if more input may come.
    pub(crate) fn begin_input(&mut self, from: Option<u64>) -> bool {
        let Some(length) = self.stdin.length else { return false };
        let before = from.and_then(|number| self.stdin.noted.get(&number)).copied().unwrap_or_default();
        let open = from.is_none() || !before.ended;
        let input = Input::new(before.at, open);
        self.stdin.reader = Some(Reader { input, read: before.at.at.min(length), reading: false, ended: !open });
        open
    }

    /// What the machine wants done about it, and what the controller tells it at once.
    pub(crate) fn stdin_effect(&mut self, wanted: StdinEffect) -> Option<Event> {
        let reader = self.stdin.reader.as_mut()?;
        let given = match wanted {
            StdinEffect::Read => {
                self.read_piece();
                None
            }
            StdinEffect::Taken => {
                let end = reader.input.acknowledged();
                let end = end.and_then(|end| reader.input.pass(end));
                self.read_piece();
                end
            }
            StdinEffect::Freeze => {
                reader.input.freeze();
                None
            }
            StdinEffect::Release => reader.input.release().and_then(|bytes| reader.input.pass(bytes)),
            StdinEffect::Held { again, begun } => {
                reader.input.held(again, begun);
                None
            }
            StdinEffect::Lost => reader.input.lost(),
            StdinEffect::Left(bytes) => reader.input.left(bytes),
        };
        given.map(Event::Stdin)
    }

    fn read_piece(&mut self) {
        let wanted = self.stdin.reader.as_ref().is_some_and(|reader| reader.input.is_open() && !reader.ended && !reader.reading);
        if wanted {
            let delay = self.delay() + self.draw(2000 * MILLISECOND_US);
            if let Some(reader) = &mut self.stdin.reader {
                reader.reading = true;
            }
            self.plan(delay, Coming::Piece { life: self.life });
        }
    }

    /// A piece was read.
    pub(crate) fn piece(&mut self, life: u64) -> Result<(), String> {
        let length = 1 + self.draw(PIECE_BYTES);
        let (end, at_once) = (self.stdin.length.unwrap_or(0), self.answers_at_once());
        let Some(reader) = self.stdin.reader.as_mut().filter(|_| life == self.life) else { return Ok(()) };
        let to = (reader.read + length).min(end);
        let bytes: Vec<u8> = (reader.read..to).map(byte).collect();
        (reader.reading, reader.ended, reader.read) = (false, bytes.is_empty(), to);
        if at_once {
            return self.feed_input(bytes);
        }
        match reader.input.pass(bytes) {
            Some(bytes) => self.feed(Event::Stdin(bytes)),
            None => Ok(()),
        }
    }

    /// What goes to the rank of a piece that was read.
    pub(crate) fn pass_input(&mut self, bytes: Vec<u8>) -> Option<Vec<u8>> {
        self.stdin.reader.as_mut()?.input.pass(bytes)
    }

    /// Where the controller's side stands.
    pub(crate) fn input(&self) -> Option<Input> {
        self.stdin.reader.as_ref().map(|reader| reader.input.clone())
    }

    /// A successor goes on where its log says: it reads what follows, if the next piece is `wanted`.
    pub(crate) fn succeed_input(&mut self, input: &Input, wanted: bool) {
        let Some(reader) = &mut self.stdin.reader else { return };
        *reader = Reader { input: input.clone(), read: input.read_through().at, reading: false, ended: !input.is_open() };
        if wanted {
            self.read_piece();
        }
    }

    /// What was read so far belongs to this checkpoint.
    pub(crate) fn note_input(&mut self, number: u64) {
        if let Some(reader) = &self.stdin.reader {
            self.stdin.noted.insert(number, reader.input.at_hold());
        }
    }

    /// A process of rank 0 begins, from the beginning or out of an image.
    pub(crate) fn new_feeder(&self, source: Option<&RestoreSource>, image: Option<ImageId>, fed: bool) -> Feeder {
        let image = match source {
            None => None,
            Some(RestoreSource::Files(_)) => image.and_then(|image| self.stdin.images.get(&image)),
            Some(RestoreSource::Transfer { token, .. }) => self.stdin.moving.get(token),
        };
        match source {
            Some(_) => Feeder::of_image(image.cloned().unwrap_or_default(), fed),
            None => Feeder::of_image(InputImage::default(), fed),
        }
    }

    /// A rank is about to be saved: it is given nothing any more.
    pub(crate) fn hold_input(&mut self, at: usize, rank: Rank) {
        if rank != 0 || self.stdin.length.is_none() {
            return;
        }
        let here = self.nodes[at].ranks.get_mut(&rank);
        let Some(process) = here.filter(|process| !matches!(process.phase, Phase::Starting | Phase::Building)) else { return };
        let (again, begun) = process.feeder.hold();
        self.say(at, FromDaemon::StdinHeld { rank, again, begun });
    }

    /// An image of a rank was taken.
    pub(crate) fn keep_input(&mut self, at: usize, rank: Rank, id: ImageId) {
        if let Some(process) = self.nodes[at].ranks.get(&rank).filter(|_| rank == 0) {
            self.stdin.images.insert(id, process.feeder.image());
        }
    }

    /// The image of a rank goes to another node.
    pub(crate) fn move_input(&mut self, at: usize, rank: Rank, to: usize, token: [u8; 16]) {
        let Some(image) = self.nodes[at].ranks.get(&rank).filter(|_| rank == 0).map(|process| process.feeder.image()) else { return };
        self.stdin.moving.insert(token, image.clone());
        if let Some(process) = self.nodes[to].ranks.get_mut(&rank) {
            process.feeder = Feeder::of_image(image, process.fed);
        }
    }

    /// The process writes to its pipe and the program reads from it, later.
    pub(crate) fn work_on_input(&mut self, at: usize, rank: Rank) {
        let Some(process) = self.nodes[at].ranks.get(&rank).filter(|_| rank == 0) else { return };
        if self.stdin.length.is_some() && !process.fed_soon && process.feeder.has_work() {
            let attempt = process.attempt;
            let delay = self.delay() + if self.stdin.slow { self.draw(6000 * MILLISECOND_US) } else { 0 };
            self.plan(delay, Coming::Feeds { at, rank, attempt });
            if let Some(process) = self.nodes[at].ranks.get_mut(&rank) {
                process.fed_soon = true;
            }
        }
    }

    /// It does.
    pub(crate) fn feeds(&mut self, at: usize, rank: Rank, attempt: u64) -> Result<(), String> {
        let most = 1 + self.draw(60) as usize;
        let Some(process) = self.nodes[at].ranks.get_mut(&rank).filter(|process| process.attempt == attempt) else { return Ok(()) };
        process.fed_soon = false;
        if process.phase == Phase::Starting || process.phase == Phase::Building {
            return Ok(());
        }
        let taken = process.feeder.write();
        if process.phase.runs() && !process.stuck {
            process.feeder.read_some(most)?;
            self.work_on_input(at, rank);
        }
        for _ in 0..taken {
            self.say(at, FromDaemon::StdinTaken { rank });
        }
        Ok(())
    }

    /// When nothing is under way: rank 0 has read all.
    pub(crate) fn look_at_input(&self) -> Result<(), String> {
        let Some(length) = self.stdin.length else { return Ok(()) };
        let Some(state) = self.job.as_ref().and_then(|job| job.rank(0)).filter(|state| state.phase == RankPhase::Running) else {
            return Ok(());
        };
        match self.nodes[self.hosts[state.node as usize]].ranks.get(&0) {
            Some(process) if process.phase == Phase::Runs && !process.stuck => match (process.feeder.read, process.feeder.at_end) {
                (read, true) if read == length => Ok(()),
                (read, end) => Err(format!("rank 0 waits for its input: it has read {read} of {length} bytes, its end: {end}")),
            },
            _ => Ok(()),
        }
    }
}
