//! Heals a space while ranks of a job use it: targets are looked at now and then, and `mend-data` is started when something is lost.
//!
//! Each node that has a mount looks; one at a time heals (see [`Client::take_turn`]). Faults assumed: `mend-data` dies or fails; what is still lost is seen at the next look.

use super::examine::lacking;
use super::names::Client;
use super::writer::{Refused, Writer};
use crate::link::Fault;
use mend_data::request::{Request, SpaceRequest};
use mend_data::space::Id;
use mend_data::space::healing::Watch;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The program that heals.
const PROGRAM: &str = "mend-data";

/// Begins to look at the targets, until the process ends.
///
/// # Errors
/// If a setting makes no sense, or no thread can be started.
pub fn heal_while_used(client: Arc<Client>, writer: Arc<Writer>) -> Result<(), String> {
    let seconds = |setting: &mend_settings::Setting| setting.number().map_err(|error| mend_report::with_causes(&error));
    let (probe, verify) = (seconds(&mend_settings::SPACE_PROBE)?, seconds(&mend_settings::SPACE_VERIFY)?);
    if probe == 0 {
        return Ok(());
    }
    let look = move || {
        let (mut watch, mut verified, mut unfilled) = (Watch::default(), Instant::now(), Vec::new());
        loop {
            std::thread::sleep(Duration::from_secs(probe));
            // Files that others staged or healed.
            client.refresh_if_older(Duration::from_secs(1));
            let before = std::mem::replace(&mut unfilled, client.unfilled());
            writer.fill_again(&unfilled.iter().copied().filter(|file| before.contains(file)).collect::<Vec<Id>>());
            let deep = verify > 0 && verified.elapsed() >= Duration::from_secs(verify);
            let bad = client.bad_targets();
            let lost = watch.looked(bad.clone());
            if lost {
                writer.copy_again(&bad);
            }
            if lost || deep {
                if deep {
                    verified = Instant::now();
                }
                if let Err(error) = heal(&client.space.name, deep.then_some(verify)) {
                    eprintln!("mend data: {}: what was lost is not fetched: {PROGRAM}: {error}", client.space.name);
                }
            }
        }
    };
    std::thread::Builder::new().name("healer".to_owned()).spawn(look).map(drop).map_err(|error| error.to_string())
}

impl Client {
    /// Targets that do not answer, or lack something.
    fn bad_targets(&self) -> BTreeSet<u16> {
        let all: Vec<u16> = (0..self.targets()).filter_map(|at| u16::try_from(at).ok()).collect();
        let looked = self.each(&all, |at, peer| lacking(at, peer).is_ok_and(|lacking| lacking.is_empty()));
        let used = |at: &u16| {
            let names = self.names();
            names.files("").iter().any(|entry| entry.holders(self.targets()).contains(at))
        };
        all.iter().zip(looked).filter(|(_, good)| *good != Some(true)).map(|(at, _)| *at).filter(used).collect()
    }
}

impl Writer {
    /// Makes copies of these files whole whose makers have died.
    pub fn fill_again(&self, files: &[Id]) {
        for file in files {
            match self.fill(file, false) {
                // Nobody needs it any more.
                Ok(()) | Err(Refused::Removed | Refused::Absent) => {}
                Err(refused) => eprintln!("mend data: {}: a second copy is not made: {refused}", self.client.space.name),
            }
        }
    }

    /// Makes again the copies of what ranks wrote that these targets had and lost.
    fn copy_again(&self, bad: &BTreeSet<u16>) {
        for at in bad {
            let files: Vec<Id> = match self.client.peer(*at).and_then(|peer| lacking(*at, peer)) {
                Ok(lacking) => lacking.into_iter().map(|(file, _)| file).collect::<BTreeSet<Id>>().into_iter().collect(),
                Err(_) => self.client.written_on(&[*at]),
            };
            let target = self.client.peer(*at).map(|peer| peer.target.name()).unwrap_or_default();
            let why = Fault::Other(format!("target {target} has lost it"));
            for file in files {
                let written = self.client.names().entry(&file).is_some_and(|entry| entry.written().is_some());
                if written && let Err(refused) = self.move_away(&file, &[*at], &why) {
                    eprintln!("mend data: {}: {refused}", self.client.space.name);
                }
            }
        }
    }
}

/// Has it done by a program that knows all kinds of sources. What that says goes to standard error.
fn heal(space: &str, verify_after: Option<u64>) -> io::Result<()> {
    let program = mend_settings::find_part(PROGRAM).ok_or(io::ErrorKind::NotFound)?;
    let verify_after = verify_after.map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX));
    let request = Request::Space(SpaceRequest::Heal { name: space.to_owned(), verify_after });
    let request = postcard::to_stdvec(&request).map_err(io::Error::other)?;
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let told = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(&request));
    child.wait()?;
    told
}
