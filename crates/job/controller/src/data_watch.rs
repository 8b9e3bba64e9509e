//! Looks from time to time at what a job's ranks read of data spaces, and tells the life of the job that runs. `mend-data` looks, in a process of its own.
//!
//! It is told what ranks send each other, a line of JSON for what a daemon tells, so that it suggests no move that costs more messages between nodes than it saves.
//!
//! Faults assumed: the process ends or says nonsense; then it is started again after a while. It ends when nobody reads its lines. Where it is slow to read, readings
//! are left out: others come two seconds later.

use crate::arrival::Arrival;
use crate::data_program::PROGRAM;
use mend_data::request::FollowRequest;
use mend_data::space::mounts;
use mend_messages::job::{NodeIndex, Program};
use mend_messages::progress::RankTraffic;
use mend_policy::exchanges::NodeTraffic;
use mend_policy::follow::{Mode, Scan};
use mend_settings::SettingError;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::mpsc;

/// Pause before it is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(30);

/// Readings that wait for it, at most.
const MOST_WAITING: usize = 256;

/// Where what ranks send each other is told.
#[derive(Default)]
pub struct TrafficFeed(Option<mpsc::Sender<NodeTraffic>>);

impl TrafficFeed {
    /// What ranks of the node of this name have sent.
    pub(crate) fn tell(&self, node: &str, ranks: Vec<RankTraffic>) {
        if let Some(watch) = &self.0 {
            // Full: it is left out.
            let _ = watch.try_send(NodeTraffic { node: node.to_owned(), ranks });
        }
    }
}

/// Whether a program's ranks follow their data, as its environment has it, where a restart has it from, too.
pub(crate) fn mode(program: &Program) -> Mode {
    let setting = mend_settings::FOLLOW_DATA;
    setting.of(&program.env).and_then(Mode::of).or_else(|| Mode::of(setting.default)).unwrap_or_default()
}

/// What is looked at.
pub(crate) struct DataWatch {
    program: PathBuf,
    request: FollowRequest,
}

impl DataWatch {
    /// For a job whose nodes have these names and whose ranks are placed so; `None` if there is nothing to look at, or nobody is to.
    ///
    /// # Errors
    /// A setting is wrong.
    pub(crate) fn of(program: &Program, id: &str, nodes: &[String], places: &[NodeIndex]) -> Result<Option<Self>, SettingError> {
        let spaces = mounts::names(&mounts::read(mounts::of_environment(&program.env)).unwrap_or_default());
        let pause = mend_settings::FOLLOW_DATA_PAUSE.milliseconds()?;
        let wanted = !spaces.is_empty() && mode(program) != Mode::Off && places.len() > 1 && nodes.len() > 1;
        let Some(found) = mend_settings::find_part(PROGRAM).filter(|_| wanted) else { return Ok(None) };
        let mut slots: BTreeMap<String, u32> = BTreeMap::new();
        for name in places.iter().filter_map(|place| nodes.get(*place as usize)) {
            *slots.entry(name.clone()).or_default() += 1;
        }
        let diagrams = mend_settings::FOLLOW_DATA_RULE.choice()? == "diagrams";
        let request = FollowRequest { job: id.to_owned(), spaces, slots, pause_ms: pause.as_millis() as u64, diagrams };
        Ok(Some(Self { program: found, request }))
    }

    /// Begins to look, until the life of the job is over.
    pub(crate) fn begin(self, arrivals: mpsc::Sender<Arrival>) -> TrafficFeed {
        let (feed, traffic) = mpsc::channel(MOST_WAITING);
        tokio::spawn(self.run(arrivals, traffic));
        TrafficFeed(Some(feed))
    }

    async fn run(self, arrivals: mpsc::Sender<Arrival>, mut traffic: mpsc::Receiver<NodeTraffic>) {
        loop {
            tokio::select! {
                looked = self.look(&arrivals, &mut traffic) => match looked {
                    Ok(()) => tracing::warn!("{PROGRAM}, which looks at what ranks read, ended"),
                    Err(error) => tracing::warn!(%error, "nobody looks at what ranks read"),
                },
                () = arrivals.closed() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(RESTART_PAUSE) => {}
                () = arrivals.closed() => return,
            }
        }
    }

    async fn look(&self, arrivals: &mpsc::Sender<Arrival>, traffic: &mut mpsc::Receiver<NodeTraffic>) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        // A Ctrl-C is for the job.
        command.arg("follow").stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
        let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        write_line(&mut input, &self.request).await?;
        let Some(output) = child.stdout.take() else { return Ok(()) };
        let mut lines = BufReader::new(output).lines();
        let seen = async {
            while let Some(line) = lines.next_line().await? {
                let scan: Scan = serde_json::from_str(&line).map_err(io::Error::other)?;
                if arrivals.send(Arrival::DataSeen(scan)).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        let told = async {
            while let Some(one) = traffic.recv().await {
                write_line(&mut input, &one).await?;
            }
            // The life of the job is over.
            std::future::pending::<io::Result<()>>().await
        };
        tokio::select! {
            seen = seen => seen,
            told = told => told,
        }
    }
}

async fn write_line(input: &mut ChildStdin, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what).map_err(io::Error::other)?;
    line.push(b'\n');
    input.write_all(&line).await
}
