//! `mend data` about data spaces.
//!
//! `making` makes and ends one, `showing` lists names, room and stripes, `filling` stages files into one, `begun_log` is where it stands what was fetched, `for_job` makes those of a job, `healing` finds and fetches what it lost, `written` puts right what ranks wrote, `conflicts` two files of one name, `copying` makes and removes second copies, `queue` those of jobs that start soon, `seeing` reads and
//! mounts it, `patterns` shows which ranks touch which blocks of it, `heat` draws that, `scan` asks targets for it, `follow` tells a job's controller,
//! `offload` sends files away, `sending` one of them, `ledger_file` is where that is noted, `turn` what one process does at a time, `listener` who is told what is healed.

mod begun_log;
mod conflicts;
mod copying;
pub mod filling;
pub mod follow;
mod for_job;
pub mod healing;
mod heat;
mod ledger_file;
mod listener;
mod making;
mod offload;
mod patterns;
mod queue;
mod scan;
mod seeing;
mod sending;
mod showing;
mod turn;
mod written;

use crate::failure::{FAILED, Failure, UNREACHABLE};
use crate::fetch::Fetcher;
use mend_data::request::{SpaceRequest, Watched};
use mend_data::space::{self, Entry, Space, is_path};
use mend_messages::job::Secret;
use mend_space::Fault;
use mend_space::client::Client;
use mend_space::descriptor::{self, DescriptorError};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

/// A file's name, with the space's.
fn shown(client: &Client, entry: &Entry) -> String {
    format!("{}:{}", client.space.name, entry.path)
}

/// A target's name.
fn target(client: &Client, at: u16) -> String {
    client.peer(at).map(|peer| peer.target.name()).unwrap_or_default()
}

impl From<DescriptorError> for Failure {
    fn from(error: DescriptorError) -> Self {
        Self::new(mend_report::with_causes(&error), error.hint(), FAILED)
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        let code = if let Fault::Lost { .. } = &fault { UNREACHABLE } else { FAILED };
        Self::new(fault.to_string(), fault.hint(), code)
    }
}

/// Carries out a verb; its exit code.
pub async fn run(request: SpaceRequest, fetcher: &Fetcher) -> Result<i32, Failure> {
    let request = match request {
        SpaceRequest::Heal { name, verify_after, watched } => {
            return healing::by_itself(&name, verify_after, watched.as_ref(), fetcher).await;
        }
        SpaceRequest::Ready { names } => return healing::ready(&names, fetcher).await,
        SpaceRequest::Replicate { places, remove, json } => return copying::replicate(&places, remove, json).await,
        SpaceRequest::ReplicateFor { places, jobs, nodes, rules, json } => return queue::follow(&places, &jobs, nodes, &rules, json).await,
        SpaceRequest::CopyAgain { name, watched } => return copying::by_itself(&name, watched.as_ref()).await,
        SpaceRequest::Offload { place, uri, options } => return offload::run(&place, &uri, options, fetcher.settings).await,
        SpaceRequest::Begin { job, again, nodes, spaces, stage, quiet } => {
            return for_job::begin(for_job::Beginning { job, again, nodes, spaces, stage, quiet }, fetcher).await;
        }
        other => other,
    };
    tokio::task::block_in_place(|| match request {
        SpaceRequest::Heal { .. } | SpaceRequest::Ready { .. } | SpaceRequest::Replicate { .. } | SpaceRequest::CopyAgain { .. } => Ok(0),
        SpaceRequest::ReplicateFor { .. } | SpaceRequest::Offload { .. } | SpaceRequest::Begin { .. } => Ok(0),
        SpaceRequest::End { job, names, kept } => for_job::end(&job, &names, &kept),
        SpaceRequest::Create { name, targets, striping, copies } => making::create(&name, targets, striping, copies),
        SpaceRequest::Destroy { name, force } => making::destroy(&name, force),
        SpaceRequest::List { place: None, json } => showing::spaces(json),
        SpaceRequest::List { place: Some(place), json } => showing::list(&place, json),
        SpaceRequest::Df { name, json } => showing::room(&name, json),
        SpaceRequest::Remove { places, recursive } => making::remove(&places, recursive),
        SpaceRequest::GetStripe { place, json } => showing::stripes(&place, json),
        SpaceRequest::SetStripe { place, striping } => making::set_striping(&place, striping),
        SpaceRequest::Get { place, to } => seeing::get(&place, to),
        SpaceRequest::Mount { name, directory } => seeing::mount(&name, directory),
        SpaceRequest::Patterns { name, job, window, paper, svg, json } => {
            let wanted = patterns::Wanted {
                job,
                window: window as usize,
                paper,
                svg: svg.map(|path| PathBuf::from(OsString::from_vec(path))),
                json,
            };
            patterns::show(&name, &wanted)
        }
        SpaceRequest::Unmount { directory } => seeing::unmount(directory),
    })
}

fn secret() -> Result<Secret, Failure> {
    let failed = |why: String, hint: String| Failure::new(why, hint, FAILED);
    let path = mend_settings::secret_file().map_err(|error| failed(error.to_string(), "see `mend settings`".to_owned()))?;
    mend_wire::secret::load_or_create(&path).map_err(|error| failed(mend_report::with_causes(&error), error.hint()))
}

fn client(space: Space, create: bool) -> Result<Arc<Client>, Failure> {
    let time = |setting: &mend_settings::Setting| {
        setting.milliseconds().map_err(|error| Failure::bad_value(error.to_string(), "see `mend settings`"))
    };
    let client = Client::new(space, &secret()?, time(&mend_settings::SPACE_TIMEOUT)?, create);
    Ok(Arc::new(client.hedged_after(time(&mend_settings::SPACE_HEDGE)?)))
}

/// A space whose targets were heard. Those that do not answer are told of; it is a failure if none does.
pub fn opened(name: &str) -> Result<Arc<Client>, Failure> {
    let client = client(descriptor::usable(name)?, false)?;
    let lost = client.refresh();
    let all = lost.len() == client.targets();
    for (_, fault) in &lost {
        if all {
            return Err(fault.clone().into());
        }
        mend_report::tell!("mend data: {name}: {fault}");
    }
    Ok(client)
}

/// True if the space of a name is the one that was looked at, and nobody removes it.
fn is_as_seen(name: &str, watched: &Watched) -> bool {
    descriptor::is_still_so(name, |space| space.id == watched.space)
}

/// The space and the path that a place names.
fn named(place: &str) -> Result<(&str, &str), Failure> {
    let named = space::split(place).filter(|(_, path)| path.is_empty() || is_path(path));
    named.ok_or_else(|| {
        Failure::bad_value(
            format!("{place} is no place in a data space"),
            "write NAME:PATH, for example input:run7/in.dat, or NAME: for all of it",
        )
    })
}
