//! Sources that a program serves: `NAME://…` through `mend-source-NAME`, by the dialogue of `mend_data::dialogue`.
//!
//! One session serves many requests, one after the other; parallel requests have a session each. Faults assumed: the program hangs, ends, or sends what
//! makes no sense. Then it is killed, and the fault names it. What it writes to standard error is the user's to read.

use bytes::Bytes;
use mend_data::dialogue::{Answer, GREETING, MAX_LINE, answer};
use mend_data::plan::Fault;
use mend_data::ranges::Range;
use mend_data::record::Version;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// For a session that is told to end, to do so.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// A source's program.
pub struct Plugin {
    shared: Arc<Shared>,
}

struct Shared {
    program: PathBuf,
    name: String,
    uri: String,
    credentials: Option<String>,
    silence: Duration,
    idle: Mutex<Vec<Session>>,
}

struct Session {
    /// Killed when this is dropped.
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// A range on its way.
pub struct Reading {
    shared: Arc<Shared>,
    session: Option<Session>,
    left: u64,
    /// Of the current `data`.
    announced: u64,
}

impl Plugin {
    /// Looks for the program: in the directories of the setting, where Mend's parts are, in PATH.
    pub fn find(scheme: &str, uri: &str, credentials: Option<&str>, silence: Duration) -> Result<Self, Fault> {
        let name = format!("mend-source-{scheme}");
        let set = mend_settings::DATA_PLUGINS.text();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = std::env::split_paths(&set).filter(|directory| !directory.as_os_str().is_empty());
        let found = directories.map(|directory| directory.join(&name)).find(|program| program.is_file());
        let found = found.or_else(|| mend_settings::find_part(&name));
        let found = found.or_else(|| std::env::split_paths(&path).map(|directory| directory.join(&name)).find(|program| program.is_file()));
        let program = found.ok_or_else(|| {
            Fault::Final(format!(
                "there is no {name}, which would serve {scheme}:// addresses, in {} or PATH",
                mend_settings::DATA_PLUGINS.name
            ))
        })?;
        let credentials = credentials.map(str::to_owned);
        Ok(Self { shared: Arc::new(Shared { program, name, uri: uri.to_owned(), credentials, silence, idle: Mutex::default() }) })
    }

    pub async fn version(&self) -> Result<Version, Fault> {
        let mut session = self.shared.session().await?;
        self.shared.say(&mut session, &format!("stat {}", self.shared.uri)).await?;
        match self.shared.hear(&mut session).await? {
            Answer::Stat(version) => {
                self.shared.keep(session);
                Ok(version)
            }
            other => Err(self.shared.refused(session, other)),
        }
    }

    pub async fn list(&self) -> Result<Vec<String>, Fault> {
        let mut session = self.shared.session().await?;
        self.shared.say(&mut session, &format!("list {}", self.shared.uri)).await?;
        let mut names = Vec::new();
        loop {
            match self.shared.hear(&mut session).await? {
                Answer::Name(name) => names.push(name),
                Answer::End => {
                    self.shared.keep(session);
                    return Ok(names);
                }
                other => return Err(self.shared.refused(session, other)),
            }
        }
    }

    pub async fn read(&self, range: Range) -> Result<Reading, Fault> {
        let mut session = self.shared.session().await?;
        self.shared.say(&mut session, &format!("read {} {} {}", range.offset, range.length, self.shared.uri)).await?;
        Ok(Reading { shared: self.shared.clone(), session: Some(session), left: range.length, announced: 0 })
    }
}

impl Drop for Shared {
    /// Sessions that serve nothing are told to end, and may let go of what they hold.
    fn drop(&mut self) {
        let idle = std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner));
        let told = idle.into_iter().map(|Session { child, to, .. }| {
            if let Ok(to) = to.into_owned_fd() {
                // It may be gone already.
                let _ = rustix::io::write(&to, b"quit\n");
            }
            child
        });
        let until = Instant::now() + LEAVE_LIMIT;
        for mut child in told.collect::<Vec<_>>() {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Shared {
    fn lies(&self, what: &str) -> Fault {
        Fault::Final(format!("{} {what}; it was killed", self.name))
    }

    async fn session(&self) -> Result<Session, Fault> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(session) = idle {
            return Ok(session);
        }
        let mut command = Command::new(&self.program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let started = command.spawn().map_err(|error| Fault::Final(format!("{} cannot be started: {error}", self.program.display())))?;
        let mut child = started;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Fault::Final(format!("{} has no pipes", self.name)));
        };
        let mut session = Session { child, to, from: BufReader::with_capacity(1 << 17, from) };
        self.say(&mut session, GREETING).await?;
        match self.hear(&mut session).await? {
            Answer::Greeting => {}
            other => return Err(self.refused(session, other)),
        }
        if let Some(reference) = &self.credentials {
            self.say(&mut session, &format!("credentials {reference}")).await?;
        }
        Ok(session)
    }

    fn keep(&self, session: Session) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }

    /// An answer that ends a request.
    fn refused(&self, session: Session, answer: Answer) -> Fault {
        match answer {
            Answer::Error(why) => {
                self.keep(session);
                Fault::Final(why)
            }
            Answer::Later(why) => {
                self.keep(session);
                Fault::Passing(why)
            }
            _ => self.lies("gave an answer to another question"),
        }
    }

    async fn say(&self, session: &mut Session, line: &str) -> Result<(), Fault> {
        let said = tokio::time::timeout(self.silence, session.to.write_all(format!("{line}\n").as_bytes())).await;
        match said {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Fault::Passing(format!("{} has ended", self.name))),
            Err(_) => Err(Fault::Passing(format!("{} does not listen; it was killed", self.name))),
        }
    }

    async fn hear(&self, session: &mut Session) -> Result<Answer, Fault> {
        let mut line = Vec::new();
        let mut limited = (&mut session.from).take(MAX_LINE as u64 + 1);
        let heard = tokio::time::timeout(self.silence, limited.read_until(b'\n', &mut line)).await;
        match heard {
            Err(_) => Err(Fault::Passing(format!("{} said nothing for {} ms; it was killed", self.name, self.silence.as_millis()))),
            Ok(Err(error)) => Err(Fault::Passing(format!("{}: {error}", self.name))),
            Ok(Ok(0)) => Err(Fault::Passing(format!("{} has ended", self.name))),
            Ok(Ok(_)) => match line.strip_suffix(b"\n") {
                Some(line) => answer(line).map_err(|error| self.lies(&error.to_string().replacen("it ", "", 1))),
                None => Err(self.lies("sent a line without an end")),
            },
        }
    }
}

impl Reading {
    pub async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        let Some(mut session) = self.session.take() else { return Ok(None) };
        if self.left == 0 {
            self.shared.keep(session);
            return Ok(None);
        }
        if self.announced == 0 {
            self.announced = match self.shared.hear(&mut session).await? {
                Answer::Data(bytes) if bytes <= self.left => bytes,
                Answer::Data(_) => return Err(self.shared.lies("sends more bytes than it was asked for")),
                other => return Err(self.shared.refused(session, other)),
            };
        }
        let mut bytes = vec![0; self.announced.min(1 << 18) as usize];
        let read = tokio::time::timeout(self.shared.silence, session.from.read_exact(&mut bytes)).await;
        match read {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return Err(Fault::Passing(format!("{} has ended", self.shared.name))),
            Err(_) => {
                let silence = self.shared.silence.as_millis();
                return Err(Fault::Passing(format!("{} stood still for {silence} ms; it was killed", self.shared.name)));
            }
        }
        self.announced -= bytes.len() as u64;
        self.left -= bytes.len() as u64;
        self.session = Some(session);
        Ok(Some(bytes.into()))
    }
}
