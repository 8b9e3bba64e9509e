//! Heals a space while ranks of a job use it: targets are looked at now and then, and `mend-data` is started when something is lost, and when second copies were lost a while ago. `watching` does so whether or not a job uses it.
//!
//! Each node that looks has a [`Healer`]; one at a time heals (see [`Client::take_turn`]). Faults assumed: `mend-data` dies or fails; what is still lost is seen at the next look.

use super::examine::lacking;
use super::lost::Lost;
use super::names::Client;
use super::writer::{Refused, Writer};
use crate::link::Fault;
use mend_data::request::{Request, SpaceRequest, Watched};
use mend_data::space::healing::{Seen, Tries, Watch};
use mend_data::space::replicas::Pause;
use mend_data::space::{Entry, Id};
use mend_messages::frame;
use mend_messages::space_report::{HealingFault, SpaceEvent};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The program that heals.
const PROGRAM: &str = "mend-data";

/// Where targets are not to be looked at, what else there is to do is looked for so often, seconds.
const UNPROBED_S: u64 = 10;

/// Begins to look at the targets, until the process ends.
///
/// # Errors
/// If a setting makes no sense, or no thread can be started.
pub fn heal_while_used(client: Arc<Client>, writer: Arc<Writer>) -> Result<(), String> {
    let (probe, verify) = (seconds(&mend_settings::SPACE_PROBE)?, seconds(&mend_settings::SPACE_VERIFY)?);
    let pace = if probe == 0 { UNPROBED_S } else { probe };
    let mut healer = Healer::new(client, writer)?;
    let look = move || {
        let mut verified = Instant::now();
        loop {
            // Whoever waits for a second copy is not made to wait for the next look.
            let lacking = healer.client.lacking_copies();
            let next = if lacking.is_empty() { pace } else { pace.min(healer.delay_s.max(1)) };
            std::thread::sleep(Duration::from_secs(next));
            // Files that others staged or healed.
            healer.client.refresh_if_older(Duration::from_secs(1));
            healer.put_names_right(&BTreeSet::new());
            let deep = verify > 0 && verified.elapsed() >= Duration::from_secs(verify);
            let bad = if probe == 0 { BTreeSet::new() } else { healer.client.bad_targets() };
            if deep {
                verified = Instant::now();
            }
            healer.heal(bad, &BTreeSet::new(), deep.then(|| u32::try_from(verify).unwrap_or(u32::MAX)), None);
            healer.copy_when_due(None);
        }
    };
    std::thread::Builder::new().name("healer".to_owned()).spawn(look).map(drop).map_err(|error| error.to_string())
}

/// The number of a setting in seconds.
pub(super) fn seconds(setting: &mend_settings::Setting) -> Result<u64, String> {
    setting.number().map_err(|error| mend_report::with_causes(&error))
}

/// What is known from one look to the next.
pub(super) struct Healer {
    pub client: Arc<Client>,
    writer: Arc<Writer>,
    /// How long second copies may be lost before they are made again, seconds.
    delay_s: u64,
    watch: Watch,
    /// Files whose copies were not whole at the last look, and those that another one hides.
    unfilled: Vec<Id>,
    hidden: Vec<Id>,
    fills: Tries,
    names: Tries,
    pause: Pause,
    begun: Instant,
}

impl Healer {
    /// It has looked at nothing yet.
    ///
    /// # Errors
    /// If a setting makes no sense.
    pub fn new(client: Arc<Client>, writer: Arc<Writer>) -> Result<Self, String> {
        Ok(Self {
            client,
            writer,
            delay_s: seconds(&mend_settings::SPACE_COPY_DELAY)?,
            watch: Watch::default(),
            unfilled: Vec::new(),
            hidden: Vec::new(),
            fills: Tries::default(),
            names: Tries::default(),
            pause: Pause::default(),
            begun: Instant::now(),
        })
    }

    /// Makes whole what dead nodes began: copies of what ranks wrote, and names. What these targets have of it waits for them.
    pub fn put_names_right(&mut self, away: &BTreeSet<u16>) {
        let mut unfilled = self.client.unfilled();
        unfilled.retain(|file| !self.client.is_on(file, away));
        let before = std::mem::replace(&mut self.unfilled, unfilled);
        let due = self.fills.due(self.unfilled.iter().copied().filter(|file| before.contains(file)).collect());
        self.writer.fill_again(&due).into_iter().for_each(|file| self.fills.failed(file));
        // What a rename replaces is hidden for a moment.
        let hidden = self.client.conflicts("").into_iter().map(|entry| entry.id).collect::<Vec<Id>>();
        let before = std::mem::replace(&mut self.hidden, hidden);
        let due = self.names.due(self.hidden.iter().copied().filter(|file| before.contains(file)).collect());
        self.writer.keep_all_beside(&due).into_iter().for_each(|file| self.names.failed(file));
    }

    /// Has fetched again what targets have lost that were bad at two looks in a row; with `verify_after` all files are read, too. What ranks wrote waits for targets that are `away`.
    pub fn heal(&mut self, bad: BTreeSet<u16>, away: &BTreeSet<u16>, verify_after: Option<u32>, watched: Option<Watched>) {
        let lost = self.watch.looked(bad);
        self.writer.copy_again(&lost, away);
        if !lost.is_empty() || verify_after.is_some() {
            self.ask(SpaceRequest::Heal { name: self.client.space.name.clone(), verify_after, watched }, "what was lost is not fetched");
            self.client.refresh_if_older(Duration::ZERO);
        }
    }

    /// Has second copies made again that were lost a while ago.
    pub fn copy_when_due(&mut self, watched: Option<Watched>) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if self.pause.is_over(self.client.lacking_copies(), now, self.delay_s.saturating_mul(1000)) {
            self.ask(SpaceRequest::CopyAgain { name: self.client.space.name.clone(), watched }, "second copies are not made again");
        }
    }

    fn ask(&self, request: SpaceRequest, undone: &str) {
        if let Err(error) = ask(&self.client, request) {
            mend_report::tell!("mend data: {}: {undone}: {PROGRAM}: {error}", self.client.space.name);
            self.client.events.tell(not_run(&error));
        }
    }
}

impl Client {
    /// Files that are to have second copies and lack some.
    fn lacking_copies(&self) -> BTreeSet<Id> {
        let lacking = |entry: &&Entry| entry.file().is_some_and(|file| !file.without_replica().is_empty());
        self.names().files("").into_iter().filter(lacking).map(|entry| entry.id).collect()
    }

    /// Targets that do not answer, or lack something.
    fn bad_targets(&self) -> BTreeSet<u16> {
        let bad = (0_u16..).zip(self.look()).filter(|(_, seen)| *seen != Seen::Whole).map(|(at, _)| at);
        self.used(bad.collect())
    }

    /// What each target shows.
    pub(super) fn look(&self) -> Vec<Seen> {
        let seen = |lacking: Result<BTreeSet<(Id, u16)>, Fault>| match lacking {
            Ok(lacking) if lacking.is_empty() => Seen::Whole,
            Ok(_) => Seen::Lacking,
            Err(_) => Seen::Silent,
        };
        let looked = self.each(&self.all(), |at, peer| seen(lacking(at, peer)));
        looked.into_iter().map(|seen| seen.unwrap_or(Seen::Silent)).collect()
    }

    /// True if one of these targets has something of a file.
    fn is_on(&self, file: &Id, targets: &BTreeSet<u16>) -> bool {
        self.names().entry(file).is_some_and(|entry| entry.holders(self.targets()).iter().any(|at| targets.contains(at)))
    }

    /// Those of these targets that have something of a file.
    pub(super) fn used(&self, targets: BTreeSet<u16>) -> BTreeSet<u16> {
        let names = self.names();
        let files = names.files("");
        targets.into_iter().filter(|at| files.iter().any(|entry| entry.holders(self.targets()).contains(at))).collect()
    }
}

impl Writer {
    /// Makes copies of these files whole whose makers have died. Those of which that failed.
    pub fn fill_again(&self, files: &[Id]) -> Vec<Id> {
        let mut failed = Vec::new();
        for file in files {
            match self.fill(file, false) {
                // Nobody needs it any more.
                Ok(()) | Err(Refused::Removed | Refused::Absent) => {}
                Err(refused) => {
                    mend_report::tell!("mend data: {}: a second copy is not made: {refused}", self.client.space.name);
                    self.tell_of_failure(file, &refused);
                    failed.push(*file);
                }
            }
        }
        failed
    }

    /// A file's copy is not made again.
    fn tell_of_failure(&self, file: &Id, refused: &Refused) {
        if let Some(path) = self.client.names().entry(file).map(|entry| entry.path.clone()) {
            let why = HealingFault::Target { error: refused.to_string() };
            self.client.events.tell(SpaceEvent::NotHealed { file: path, why });
        }
    }

    /// Makes again the copies of what ranks wrote that these targets had and lost.
    fn copy_again(&self, bad: &BTreeSet<u16>, away: &BTreeSet<u16>) {
        for at in bad {
            let lacking = self.client.peer(*at).and_then(|peer| lacking(*at, peer)).map(|lacking| {
                let mut files = BTreeMap::<Id, BTreeSet<(u16, u16)>>::new();
                for (file, position) in lacking {
                    files.entry(file).or_default().insert((position, *at));
                }
                files
            });
            let target = self.client.peer(*at).map(|peer| peer.target.name()).unwrap_or_default();
            let why = Fault::Other(format!("target {target} has lost it"));
            let again = |file: &Id, lost: &Lost<'_>| {
                let written = self.client.names().entry(file).is_some_and(|entry| entry.written().is_some());
                if written
                    && !self.client.is_on(file, away)
                    && let Err(refused) = self.move_away(file, lost, &why)
                {
                    mend_report::tell!("mend data: {}: {refused}", self.client.space.name);
                    self.tell_of_failure(file, &refused);
                }
            };
            match lacking {
                Ok(files) => files.iter().for_each(|(file, copies)| again(file, &Lost::Copies(copies))),
                Err(_) => self.client.written_on(&[*at]).iter().for_each(|file| again(file, &Lost::Targets(&[*at]))),
            }
        }
    }
}

/// Nothing is healed: the program does not run.
fn not_run(error: &io::Error) -> SpaceEvent {
    let why = HealingFault::Program { program: PROGRAM.to_owned(), error: error.to_string() };
    SpaceEvent::NotHealed { file: String::new(), why }
}

/// Has it done by a program that knows all kinds of sources. What that says to people goes to standard error; what it has done is passed on.
fn ask(client: &Client, request: SpaceRequest) -> io::Result<()> {
    let program = mend_settings::find_part(PROGRAM).ok_or(io::ErrorKind::NotFound)?;
    let request = postcard::to_stdvec(&Request::Space(request)).map_err(io::Error::other)?;
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let told = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(&request));
    let heard = child.stdout.take().map_or(Ok(()), |output| hear(output, |event| client.events.tell(event)));
    child.wait()?;
    told.and(heard)
}

/// What a program that heals says that it has done, until it ends.
///
/// # Errors
/// It said something else.
fn hear(mut output: impl Read, mut tell: impl FnMut(SpaceEvent)) -> io::Result<()> {
    let mut prefix = [0; 4];
    loop {
        match output.read_exact(&mut prefix) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let mut body = vec![0; frame::body_length(prefix).map_err(io::Error::other)?];
        output.read_exact(&mut body)?;
        tell(frame::decode(&body).map_err(io::Error::other)?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_heals_is_heard_to_its_end_and_what_is_no_event_is_an_error() {
        let events = [SpaceEvent::TargetBack { target: "a".into(), lost_ms: 7 }, not_run(&io::ErrorKind::NotFound.into())];
        let said: Vec<u8> = events.iter().flat_map(|event| frame::encode(event).unwrap()).collect();
        let mut heard = Vec::new();
        hear(&said[..], |event| heard.push(event)).unwrap();
        assert_eq!(heard, events);
        assert!(hear(&b"input:in.dat: repaired"[..], |_| {}).is_err());
        assert!(hear(&said[..said.len() - 1], |_| {}).is_err());
    }
}
