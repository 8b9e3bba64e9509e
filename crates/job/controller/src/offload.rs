//! Has the files that a job's ranks write into data spaces sent away: while the job runs, and once more when it has ended. `mend-data` sends, in a process of its own for each place.
//!
//! ```text
//! a life of the job ──► mend-data, for as long as the life lasts ── lines ──► journal, standard error
//! the last life is over ──► mend-data, once ── a line ──► journal, standard error ──► `mend run` returns
//! ```
//! Nothing here changes what becomes of the job. Faults assumed: the process ends or says nonsense, and is started again after a while; this controller is killed, and the process ends
//! since nobody reads its lines; the next controller starts another one, which goes on. When the job has ended there is no next one: the job's record has what is still to be sent, and verbs say so.

use crate::arrival::Arrival;
use crate::data_program::{self, PROGRAM};
use crate::journal_file::Journal;
use crate::offload_news::Told;
use crate::record::JobDirectory;
use crate::wish::Wish;
use mend_data::offload::{self, News, Offload};
use mend_data::request::{ForJob, OffloadOptions, Request, SpaceRequest};
use mend_data::space::mounts;
use mend_messages::job::Program;
use mend_settings::{Setting, SettingError};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pause before it is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(30);

/// What is sent where, for a job.
#[derive(Clone, Debug)]
pub(crate) struct Offloads {
    program: PathBuf,
    all: Vec<Offload>,
    options: OffloadOptions,
    /// What the job's program sees: credentials may be there.
    env: Vec<(String, String)>,
    /// More was to be sent than is understood.
    unclear: bool,
}

/// What is sent, of what a program's environment says, and why that is not all.
fn wanted(env: &[(String, String)]) -> (Vec<Offload>, Option<String>) {
    let mounts = mounts::read(mounts::of_environment(env)).unwrap_or_default();
    let mut all = match offload::read(offload::of_environment(env)) {
        Ok(all) => all,
        Err(why) => return (Vec::new(), Some(why)),
    };
    let lack = offload::unwritten(&all, &mounts).map(|one| format!("ranks do not write into the data space {}", one.space));
    all.retain(|one| offload::is_written(&one.space, &mounts));
    (all, lack)
}

/// What the program's environment says, where a restart has it from, too.
fn value(program: &Program, setting: &Setting) -> String {
    setting.of(&program.env).unwrap_or(setting.default).to_owned()
}

impl Offloads {
    /// Of this program; `None` if none of its files are to be sent away.
    ///
    /// # Errors
    /// If a setting makes no sense.
    pub(crate) fn of(program: &Program, identity: [u8; 16]) -> Result<Option<Self>, SettingError> {
        let (all, lack) = wanted(&program.env);
        if let Some(why) = &lack {
            mend_report::tell!("mend: not all is sent away that was to be: {}: {why}", offload::VARIABLE);
        }
        if all.is_empty() && lack.is_none() {
            return Ok(None);
        }
        let found = mend_settings::find_part(PROGRAM).unwrap_or_else(|| PROGRAM.into());
        let default = mend_settings::OFFLOAD_SETTLE.number()?;
        let settle_s = value(program, &mend_settings::OFFLOAD_SETTLE).parse().unwrap_or(default);
        let options = OffloadOptions {
            credentials: Some(value(program, &mend_settings::OFFLOAD_CREDENTIALS)).filter(|reference| !reference.is_empty()),
            settle_ms: settle_s.saturating_mul(1000),
            job: Some(ForJob { identity, ended: false }),
            ..OffloadOptions::default()
        };
        Ok(Some(Self { program: found, all, options, env: program.env.clone(), unclear: lack.is_some() }))
    }

    /// Whether more was to be sent than is understood: nobody knows then which spaces may go.
    pub(crate) fn is_unclear(&self) -> bool {
        self.unclear
    }

    /// Spaces, and where their files go.
    pub(crate) fn places(&self) -> Vec<(String, String)> {
        self.all.iter().map(|what| (what.space.clone(), what.uri.clone())).collect()
    }

    /// Has them sent for as long as a life of the job takes in what is told.
    pub(crate) fn begin(&self, arrivals: &mpsc::Sender<Arrival>) {
        for what in &self.all {
            tokio::spawn(self.clone().send_while_it_runs(what.clone(), arrivals.clone()));
        }
    }

    async fn start(&self, what: &Offload, ended: bool) -> io::Result<Sender> {
        let job = self.options.job.map(|job| ForJob { ended, ..job });
        let options = OffloadOptions { job, ..self.options.clone() };
        let request = Request::Space(SpaceRequest::Offload { place: format!("{}:", what.space), uri: what.uri.clone(), options });
        let mut command = Command::new(&self.program);
        data_program::sees(&mut command, &self.env);
        // A Ctrl-C is for the job.
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = data_program::start(&mut command, &request).await?;
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        // Read all the time: who writes into a full pipe stands still.
        Ok(Sender { _child: child, lines: BufReader::new(output).lines(), said: tokio::spawn(last_said(errors)) })
    }

    async fn send_while_it_runs(self, what: Offload, arrivals: mpsc::Sender<Arrival>) {
        let mut failed_for = None;
        loop {
            let ended = tokio::select! {
                ended = self.pass_on(&what, &arrivals, &mut failed_for) => ended,
                () = arrivals.closed() => return,
            };
            let failure = (ended, String::new());
            let new_failure = failed_for.replace(failure.clone()).as_ref() != Some(&failure);
            if new_failure {
                let news = News { failure: Some(failure), ..News::default() };
                let _ = arrivals.send(Arrival::Offload(Told { what: what.clone(), news, new_failure })).await;
            }
            tokio::select! {
                () = tokio::time::sleep(RESTART_PAUSE) => {}
                () = arrivals.closed() => return,
            }
        }
    }

    /// Passes on what a sender tells until it ends. Why it did.
    async fn pass_on(&self, what: &Offload, arrivals: &mpsc::Sender<Arrival>, failed_for: &mut Option<(String, String)>) -> String {
        let told = async {
            let mut sender = self.start(what, false).await?;
            while let Some(line) = sender.lines.next_line().await? {
                let news: News = serde_json::from_str(&line).map_err(io::Error::other)?;
                let new_failure = news.failure.is_some() && news.failure != *failed_for;
                failed_for.clone_from(&news.failure);
                if arrivals.send(Arrival::Offload(Told { what: what.clone(), news, new_failure })).await.is_err() {
                    break;
                }
            }
            Ok::<String, io::Error>(sender.said.await.unwrap_or_default())
        };
        told.await.unwrap_or_else(|error| format!("{PROGRAM}: {error}"))
    }

    /// Sends what is left once the job has ended, and tells what could not be sent. A signal ends it. The spaces of which something may be left, and where that was to go.
    pub(crate) async fn finish(&self, id: &str, quiet: bool, strays: &mut mpsc::UnboundedReceiver<Wish>) -> Vec<(String, String)> {
        let mut spaces = Vec::new();
        let mut journal = JobDirectory::open(id).ok().map(|directory| Journal::open(directory.path()));
        for what in &self.all {
            let left = tokio::select! {
                news = self.last(what) => news,
                Some(_) = strays.recv() => Err("it was interrupted".to_owned()),
            };
            let news = left.unwrap_or_else(|why| News { failure: Some((why, String::new())), ..News::default() });
            let told = Told { what: what.clone(), news, new_failure: true };
            if let Some(journal) = &mut journal {
                told.record(journal);
            }
            if let Some((why, _)) = &told.news.failure {
                let left = if told.news.left == 1 { "1 file".to_owned() } else { format!("{} files", told.news.left) };
                let left = if told.news.left > 0 {
                    format!("{left} of {} not sent to {}", what.space, what.uri)
                } else {
                    format!("{} may not be sent to {}", what.space, what.uri)
                };
                spaces.push((what.space.clone(), what.uri.clone()));
                let by = self.options.credentials.as_ref().map(|reference| format!(" --credentials {reference}")).unwrap_or_default();
                mend_report::tell!("mend: {left}: {why}; `mend data offload {}: {}{by}` goes on", what.space, what.uri);
            } else if !quiet && told.news.files > 0 {
                mend_report::tell!("mend: what ranks wrote into {} has arrived at {}", what.space, what.uri);
            }
        }
        spaces
    }

    async fn last(&self, what: &Offload) -> Result<News, String> {
        let mut sender = self.start(what, true).await.map_err(|error| format!("{PROGRAM} cannot be started: {error}"))?;
        match sender.lines.next_line().await {
            Ok(Some(line)) => serde_json::from_str(&line).map_err(|error| format!("{PROGRAM}: {error}")),
            _ => Err(sender.said.await.unwrap_or_default()),
        }
    }
}

/// A process that sends. It ends when this is dropped.
struct Sender {
    _child: Child,
    /// What it tells.
    lines: Lines<BufReader<ChildStdout>>,
    /// What it said last of why it ended.
    said: JoinHandle<String>,
}

async fn last_said(errors: ChildStderr) -> String {
    let mut last = String::new();
    let mut lines = BufReader::new(errors).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::info!(line, "what sends files away says");
        if let Some(why) = line.strip_prefix("mend data: ").filter(|why| !why.is_empty()) {
            last = why.to_owned();
        }
    }
    if last.is_empty() { format!("{PROGRAM} ended without saying why") } else { last }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(offload: &str) -> Vec<(String, String)> {
        vec![(mounts::VARIABLE.to_owned(), "out:/mnt/out:create,in:/mnt/in".to_owned()), (offload::VARIABLE.to_owned(), offload.to_owned())]
    }

    #[test]
    fn what_is_not_understood_is_no_reason_to_forget_it() {
        let of = |text: &str| {
            let program = Program { argv: vec!["a".into()], env: environment(text), cwd: "/".into(), umask: None, further: Vec::new() };
            Offloads::of(&program, [0; 16]).unwrap().map(|found| (found.places().len(), found.is_unclear()))
        };
        assert_eq!(of(""), None);
        assert_eq!(of("out=file:///archive"), Some((1, false)));
        // A name that was mistyped, a space that is only read, and a text that says nothing.
        assert_eq!(of("otu=file:///archive"), Some((0, true)));
        assert_eq!(of("out=file:///archive in=file:///archive"), Some((1, true)));
        assert_eq!(of("output file:///archive"), Some((0, true)));
    }
}
