//! Heals a space while ranks of a job use it: targets are looked at now and then, and `mend-data` is started when something is lost, and when second copies were lost a while ago.
//!
//! Each node that has a mount looks; one at a time heals (see [`Client::take_turn`]). Faults assumed: `mend-data` dies or fails; what is still lost is seen at the next look.

use super::examine::lacking;
use super::lost::Lost;
use super::names::Client;
use super::writer::{Refused, Writer};
use crate::link::Fault;
use mend_data::request::{Request, SpaceRequest};
use mend_data::space::healing::{Tries, Watch};
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
    let seconds = |setting: &mend_settings::Setting| setting.number().map_err(|error| mend_report::with_causes(&error));
    let (probe, verify) = (seconds(&mend_settings::SPACE_PROBE)?, seconds(&mend_settings::SPACE_VERIFY)?);
    let delay = seconds(&mend_settings::SPACE_COPY_DELAY)?;
    let pace = if probe == 0 { UNPROBED_S } else { probe };
    let look = move || {
        let (mut watch, mut verified, mut unfilled) = (Watch::default(), Instant::now(), Vec::new());
        let (mut fills, mut hidden, mut names) = (Tries::default(), Vec::new(), Tries::default());
        let (mut pause, begun) = (Pause::default(), Instant::now());
        loop {
            // Whoever waits for a second copy is not made to wait for the next look.
            let lacking = client.lacking_copies();
            let next = if lacking.is_empty() { pace } else { pace.min(delay.max(1)) };
            std::thread::sleep(Duration::from_secs(next));
            // Files that others staged or healed.
            client.refresh_if_older(Duration::from_secs(1));
            let before = std::mem::replace(&mut unfilled, client.unfilled());
            let due = fills.due(unfilled.iter().copied().filter(|file| before.contains(file)).collect());
            writer.fill_again(&due).into_iter().for_each(|file| fills.failed(file));
            // What a rename replaces is hidden for a moment.
            let before = std::mem::replace(&mut hidden, client.conflicts("").into_iter().map(|entry| entry.id).collect::<Vec<Id>>());
            let due = names.due(hidden.iter().copied().filter(|file| before.contains(file)).collect());
            writer.keep_all_beside(&due).into_iter().for_each(|file| names.failed(file));
            let deep = verify > 0 && verified.elapsed() >= Duration::from_secs(verify);
            let lost = if probe == 0 { BTreeSet::new() } else { watch.looked(client.bad_targets()) };
            writer.copy_again(&lost);
            if !lost.is_empty() || deep {
                if deep {
                    verified = Instant::now();
                }
                let verify_after = deep.then(|| u32::try_from(verify).unwrap_or(u32::MAX));
                if let Err(error) = ask(&client, SpaceRequest::Heal { name: client.space.name.clone(), verify_after }) {
                    mend_report::tell!("mend data: {}: what was lost is not fetched: {PROGRAM}: {error}", client.space.name);
                    client.events.tell(not_run(&error));
                }
                client.refresh_if_older(Duration::ZERO);
            }
            let now = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            if pause.is_over(client.lacking_copies(), now, delay.saturating_mul(1000))
                && let Err(error) = ask(&client, SpaceRequest::CopyAgain { name: client.space.name.clone() })
            {
                mend_report::tell!("mend data: {}: second copies are not made again: {PROGRAM}: {error}", client.space.name);
                client.events.tell(not_run(&error));
            }
        }
    };
    std::thread::Builder::new().name("healer".to_owned()).spawn(look).map(drop).map_err(|error| error.to_string())
}

impl Client {
    /// Files that are to have second copies and lack some.
    fn lacking_copies(&self) -> BTreeSet<Id> {
        let lacking = |entry: &&Entry| entry.file().is_some_and(|file| !file.without_replica().is_empty());
        self.names().files("").into_iter().filter(lacking).map(|entry| entry.id).collect()
    }

    /// Targets that do not answer, or lack something.
    fn bad_targets(&self) -> BTreeSet<u16> {
        let all = self.all();
        let looked = self.each(&all, |at, peer| lacking(at, peer).is_ok_and(|lacking| lacking.is_empty()));
        let used = |at: &u16| {
            let names = self.names();
            names.files("").iter().any(|entry| entry.holders(self.targets()).contains(at))
        };
        all.iter().zip(looked).filter(|(_, good)| *good != Some(true)).map(|(at, _)| *at).filter(used).collect()
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
    fn copy_again(&self, bad: &BTreeSet<u16>) {
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
                if written && let Err(refused) = self.move_away(file, lost, &why) {
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
