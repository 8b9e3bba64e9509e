//! Data spaces that are made for a job, on its own nodes, and go with it (`mend run --data NAME:DIR:create`). `mend-data` makes and ends them.
//!
//! ```text
//! nodes are reached ──► mend-data makes the spaces, or finds those of an earlier life; stages into them ──► ranks start
//!                       at `mend restart` it looks whether what is in any of the job's spaces can be had, first
//! the last life is over, and it is not to be restarted ──► mend-data names what was sent nowhere, and ends them
//! ```
//! Faults assumed: this controller is killed in between, and the spaces stay; what is asked for can be asked for again.

use crate::arrival::{Arrival, Early};
use crate::data_program::{self, PROGRAM};
use crate::error::RunError;
use crate::nodes::ConnectedNode;
use crate::wish::Wish;
use mend_data::request::{Request, SpaceRequest, Wanted};
use mend_data::space::mounts::{self, Made};
use mend_messages::job::Program;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Stdio;
use tokio::process::Command;
use tokio::sync::mpsc;

/// Returns when somebody wants the job to end.
async fn unwanted(heard: &mut Option<(&mut mpsc::Receiver<Arrival>, &mut Early)>) -> Wish {
    match heard {
        Some((arrivals, early)) => early.wish(arrivals).await,
        None => std::future::pending().await,
    }
}

/// How a life of a job begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// It is the first one.
    Anew,
    /// Somebody restarts the job.
    ByHand,
    /// The job goes on by itself. What it lacks now its ranks may never read.
    ByItself,
}

/// The spaces that are made for a job.
#[derive(Clone, Debug)]
pub(crate) struct MadeSpaces {
    program: PathBuf,
    all: BTreeMap<String, Made>,
    /// All that its ranks see, by name.
    seen: Vec<String>,
    /// What the job's program sees: settings may be there.
    env: Vec<(String, String)>,
}

impl MadeSpaces {
    /// Of this program; perhaps none.
    pub(crate) fn of(program: &Program) -> Self {
        let mounts = mounts::read(mounts::of_environment(&program.env)).unwrap_or_default();
        let seen = mounts::names(&mounts);
        let all: BTreeMap<String, Made> = mounts.into_iter().filter_map(|mount| Some((mount.space, mount.made?))).collect();
        let found = mend_settings::find_part(PROGRAM).unwrap_or_else(|| PROGRAM.into());
        Self { program: found, all, seen, env: program.env.clone() }
    }

    /// Makes them on these nodes, or finds them again, and stages; before a restart looks whether all that ranks see can be had. The nodes, whose daemons may not have waited for that. Whoever wants
    /// the job to end meanwhile is heard among the arrivals.
    ///
    /// # Errors
    /// [`RunError::Data`], [`RunError::Node`], what [`Wish::end`] says.
    pub(crate) async fn begin(
        &self,
        job: &str,
        begins: Begins,
        stage: Vec<Wanted>,
        nodes: Vec<ConnectedNode>,
        quiet: bool,
        (arrivals, early): (&mut mpsc::Receiver<Arrival>, &mut Early),
    ) -> Result<Vec<ConnectedNode>, RunError> {
        let makes = !(self.all.is_empty() && stage.is_empty());
        let begin = makes.then(|| SpaceRequest::Begin {
            job: job.to_owned(),
            again: begins != Begins::Anew,
            nodes: nodes.iter().map(|node| (node.name.clone(), node.address)).collect(),
            spaces: self.all.iter().map(|(name, made)| (name.clone(), made.clone())).collect(),
            stage,
            quiet,
        });
        let looks = begins == Begins::ByHand && !self.seen.is_empty();
        let look = looks.then(|| SpaceRequest::Ready { names: self.seen.clone() });
        let requests: Vec<SpaceRequest> = begin.into_iter().chain(look).collect();
        if requests.is_empty() {
            return Ok(nodes);
        }
        for request in requests {
            match self.carry_out(request, Some((&mut *arrivals, &mut *early))).await {
                Ok(Ok(Some(0))) => {}
                Ok(Ok(code)) => return Err(RunError::Data { code: code.unwrap_or(1) }),
                Ok(Err(wish)) => return Err(wish.end(job, None)),
                Err(error) => {
                    mend_report::tell!("mend: {}: {error}", self.program.display());
                    return Err(RunError::Data { code: 1 });
                }
            }
        }
        let mut anew = Vec::new();
        for node in nodes {
            anew.push(node.anew().await?);
        }
        Ok(anew)
    }

    /// Their names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.all.keys().cloned().collect()
    }

    /// The job is over: they go, but for those of which something that is `left` was to be sent away.
    pub(crate) async fn end(&self, job: &str, left: &[String]) {
        if self.all.is_empty() {
            return;
        }
        let stays = |name: &String, made: &Made| made.keep || left.contains(name);
        let (kept, gone): (Vec<_>, Vec<_>) = self.all.iter().partition(|(name, made)| stays(name, made));
        let names = |some: Vec<(&String, &Made)>| some.into_iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        for name in self.all.keys().filter(|name| left.contains(name)) {
            mend_report::tell!("mend: the data space {name} stays; `mend data destroy {name}` removes it");
        }
        let request = SpaceRequest::End { job: job.to_owned(), names: names(gone), kept: names(kept) };
        if let Err(error) = self.carry_out(request, None).await {
            mend_report::tell!("mend: {}: {error}; the data spaces of the job stay", self.program.display());
        }
    }

    /// The exit code of the program that does it, or who wanted it to end. If nobody is heard meanwhile, no Ctrl-C ends it either.
    async fn carry_out(
        &self,
        request: SpaceRequest,
        mut heard: Option<(&mut mpsc::Receiver<Arrival>, &mut Early)>,
    ) -> io::Result<Result<Option<i32>, Wish>> {
        let mut command = Command::new(&self.program);
        data_program::sees(&mut command, &self.env);
        // Standard output is the ranks'.
        let output = io::stderr().as_fd().try_clone_to_owned()?;
        command.stdout(Stdio::from(output));
        if heard.is_none() {
            command.process_group(0);
        }
        let mut child = data_program::start(&mut command, &Request::Space(request)).await?;
        let mut wanted = None;
        loop {
            tokio::select! {
                biased;
                ended = child.wait() => return Ok(wanted.map_or(Ok(ended?.code()), Err)),
                wish = unwanted(&mut heard) => {
                    let signal = if wanted.is_none() { Signal::INT } else { Signal::KILL };
                    if let Some(child) = child.id().and_then(|id| Pid::from_raw(id as i32)) {
                        // One that has just ended is waited for all the same.
                        let _ = kill_process(child, signal);
                    }
                    wanted.get_or_insert(wish);
                }
            }
        }
    }
}
