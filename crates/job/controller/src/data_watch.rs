//! Looks from time to time at what a job's ranks read of data spaces, and tells the life of the job that runs. `mend-data` looks, in a process of its own.
//!
//! Faults assumed: the process ends or says nonsense; then it is started again after a while. It ends when nobody reads its lines.

use crate::data_program::{self, PROGRAM};
use crate::run::Arrival;
use mend_data::request::Request;
use mend_data::space::mounts;
use mend_messages::job::{NodeIndex, Program};
use mend_policy::follow::{Mode, Scan};
use mend_settings::SettingError;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;

/// Pause before it is started again.
const AGAIN: Duration = Duration::from_secs(30);

/// Whether a program's ranks follow their data: as its environment has it, else as the setting.
///
/// # Errors
/// If the word is none of the setting's.
pub(crate) fn mode(program: &Program) -> Result<Mode, SettingError> {
    let set = program.env.iter().find(|(name, _)| name == mend_settings::FOLLOW_DATA.name).and_then(|(_, word)| Mode::of(word));
    match set {
        Some(mode) => Ok(mode),
        None => Ok(Mode::of(mend_settings::FOLLOW_DATA.choice()?).unwrap_or_default()),
    }
}

/// What is looked at.
pub(crate) struct DataWatch {
    program: PathBuf,
    request: Request,
}

impl DataWatch {
    /// For a job whose nodes have these names and whose ranks are placed so; `None` if there is nothing to look at, or nobody is to.
    ///
    /// # Errors
    /// A setting is wrong.
    pub(crate) fn of(program: &Program, id: &str, nodes: &[String], places: &[NodeIndex]) -> Result<Option<Self>, SettingError> {
        let spaces = mounts::names(&mounts::read(mounts::of_environment(&program.env)).unwrap_or_default());
        let pause = mend_settings::FOLLOW_DATA_PAUSE.milliseconds()?;
        let wanted = !spaces.is_empty() && mode(program)? != Mode::Off && places.len() > 1 && nodes.len() > 1;
        let Some(found) = mend_settings::find_part(PROGRAM).filter(|_| wanted) else { return Ok(None) };
        let mut slots: BTreeMap<String, u32> = BTreeMap::new();
        for name in places.iter().filter_map(|place| nodes.get(*place as usize)) {
            *slots.entry(name.clone()).or_default() += 1;
        }
        let request = Request::Follow { job: id.to_owned(), spaces, slots, pause_ms: pause.as_millis() as u64 };
        Ok(Some(Self { program: found, request }))
    }

    /// Runs until the life of the job is over.
    pub(crate) async fn run(self, arrivals: mpsc::Sender<Arrival>) {
        loop {
            tokio::select! {
                looked = self.look(&arrivals) => match looked {
                    Ok(()) => tracing::warn!("{PROGRAM}, which looks at what ranks read, ended"),
                    Err(error) => tracing::warn!(%error, "nobody looks at what ranks read"),
                },
                () = arrivals.closed() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(AGAIN) => {}
                () = arrivals.closed() => return,
            }
        }
    }

    async fn look(&self, arrivals: &mpsc::Sender<Arrival>) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        // A Ctrl-C is for the job.
        command.stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = data_program::start(&mut command, &self.request).await?;
        let Some(output) = child.stdout.take() else { return Ok(()) };
        let mut lines = BufReader::new(output).lines();
        while let Some(line) = lines.next_line().await? {
            let scan: Scan = serde_json::from_str(&line).map_err(io::Error::other)?;
            if arrivals.send(Arrival::DataSeen(scan)).await.is_err() {
                break;
            }
        }
        Ok(())
    }
}
