//! `mend bench pipe`: the pipe between two nodes, and what it is made of.
//!
//! ```text
//! the end that writes ── one TCP connection: what is to be done next, and when it is done ──► the end that reads
//!   network:      one more TCP connection, bytes in pieces of a chunk
//!   aggregation:  writers ─► kernel ─► a mount that lets go of all of it
//!   pipeline:     writers ─► kernel ─► a mount ══► a mount ─► kernel ─► readers
//! ```
//! The end that writes has all sizes and numbers, and tells the other one.

use super::piped::{self, Piped};
use super::shown::Output;
use super::{OwnLab, files, interruption, mend, not_called};
use crate::failure::Failure;
use crate::report;
use crate::space::bytes;
use clap::Args;
use mend_settings::{PIPE_CHUNK, PIPE_MEMORY};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program that mounts.
const PROGRAM: &str = "mend-pipe";
/// What a writer writes at once, bytes.
const WRITE: usize = 1 << 20;
/// How long the other end is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// After that it is told that the other end is waited for.
const TELLING_TIME: Duration = Duration::from_secs(2);

/// `mend bench pipe`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mend bench pipe                                           on a lab of two nodes on this machine
  mend bench pipe --listen                                  on node b
  mend bench pipe --to b --csv pipe.csv --svg pipe.svg      on node a
  mend bench pipe --chunks 64K,128K --pools 8M,16M --writers 1,4,8 --bandwidth 2gbit

AGGREGATION is what writers get through the kernel into a mount that sends nothing; NETWORK is one plain TCP connection, written in pieces of a \
chunk; PIPELINE is from the writers' files to files that are read on the other node, encrypted and summed up. All are MiB per second, medians over \
the runs. Memory for a pool has to be that of four chunks for each writer, at least; what has not is left out. It takes what `mend pipe mount` takes.")]
pub struct BenchPipe {
    /// This is the node where streams are read: wait for the other end on this port, and do what it says
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "7119", conflicts_with = "to")]
    pub listen: Option<u16>,
    /// This is the node where streams are written: the other end waits on this host. Default: a lab of two nodes, which is made for it
    #[arg(long, value_name = "HOST[:PORT]")]
    pub to: Option<String>,
    /// Sizes of chunks, 4K to 1M
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "16K,32K,64K,128K,256K,512K,1M", value_parser = chunk)]
    pub chunks: Vec<u64>,
    /// Memory of all streams, whole MiB
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8M", value_parser = pool)]
    pub pools: Vec<u64>,
    /// Numbers of streams that are written at once
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub writers: Vec<u32>,
    /// What all of them write together, each time
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = bytes)]
    pub size: u64,
    /// How often each is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Rate of the lab's links, as tc writes it (1gbit); default: no limit
    #[arg(long, conflicts_with_all = ["listen", "to"])]
    pub bandwidth: Option<String>,
    /// Write each measurement as a line of CSV
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub csv: Option<PathBuf>,
    /// Draw the medians
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub svg: Option<PathBuf>,
    /// Print JSON: each measurement
    #[arg(long, conflicts_with = "listen")]
    pub json: bool,
}

fn chunk(text: &str) -> Result<u64, &'static str> {
    bytes(text).ok().filter(|size| size % 1024 == 0 && (4 << 10..=1 << 20).contains(size)).ok_or("expected whole KiB, from 4K to 1M")
}

fn pool(text: &str) -> Result<u64, &'static str> {
    bytes(text).ok().filter(|size| size % (1 << 20) == 0 && (1 << 20..=4 << 30).contains(size)).ok_or("expected whole MiB, from 1M to 4G")
}

/// What is measured at once.
#[derive(Clone, Copy, Debug)]
struct Case {
    chunk: u64,
    pool: u64,
    writers: u32,
}

impl BenchPipe {
    /// Runs the command.
    ///
    /// # Errors
    /// If something cannot be mounted, written or read.
    pub fn run(self) -> Result<i32, Failure> {
        match (&self.listen, &self.to) {
            (Some(port), _) => self.read(*port),
            (None, Some(to)) => self.write(to),
            (None, None) => self.in_a_lab(),
        }
    }

    fn cases(&self) -> Vec<Case> {
        let (mut cases, mut narrow) = (Vec::new(), Vec::new());
        for &pool in &self.pools {
            for &writers in &self.writers {
                for &chunk in &self.chunks {
                    let case = Case { chunk, pool, writers };
                    if u64::from(writers) * 4 * chunk <= pool { cases.push(case) } else { narrow.push(case) }
                }
            }
        }
        for Case { chunk, pool, writers } in narrow.iter().filter(|_| self.listen.is_none()) {
            mend_report::tell!(
                "mend: left out: {writers} writer(s) with chunks of {} need more memory than {}",
                report::size(*chunk),
                report::size(*pool)
            );
        }
        cases
    }

    /// What each of so many writers writes.
    fn share(&self, writers: u32) -> u64 {
        (self.size / u64::from(writers)).max(1)
    }

    fn in_a_lab(&self) -> Result<i32, Failure> {
        // Whoever measures there opens them again.
        drop((Output::open(self.csv.as_ref())?, Output::open(self.svg.as_ref())?));
        let lab = OwnLab::up(self.bandwidth.as_deref())?;
        let this = std::env::current_exe().map_err(|error| not_called(&error))?;
        let list = |sizes: &[u64]| sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let writers = self.writers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let (chunks, pools, size, runs) = (list(&self.chunks), list(&self.pools), self.size.to_string(), self.runs.to_string());
        let on = |node: &str| -> Result<Command, Failure> {
            let mut command = mend(&["lab", "exec", "--name", &lab.0, node])?;
            command.arg(&this).args(["bench", "pipe"]);
            Ok(command)
        };
        let mut reader = on("node2")?.arg("--listen").stdin(Stdio::null()).spawn().map_err(|error| not_called(&error))?;
        let mut writer = on("node1")?;
        writer.args(["--to", "node2", "--chunks", &chunks, "--pools", &pools, "--writers", &writers, "--size", &size, "--runs", &runs]);
        writer.args(self.json.then_some("--json")).args(files(self.csv.as_ref(), self.svg.as_ref()));
        let status = interruption::output(&mut writer).map(|done| done.status).map_err(|error| not_called(&error));
        // It ends by itself when the other end does; if it never began, with the lab.
        if status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            let _ = reader.wait();
        } else {
            let _ = reader.kill();
        }
        interruption::check()?;
        status.map(|status| status.code().unwrap_or(1))
    }

    fn write(&self, to: &str) -> Result<i32, Failure> {
        let (host, port) = match to.rsplit_once(':') {
            Some((host, port)) => {
                (host, port.parse().map_err(|_| Failure::usage(format!("--to {to}: that is no port"), "write HOST or HOST:PORT"))?)
            }
            None => (to, 7119),
        };
        let (csv, svg) = (Output::open(self.csv.as_ref())?, Output::open(self.svg.as_ref())?);
        let mut other = OtherEnd::find(host, port)?;
        let mut all = Vec::new();
        for case in self.cases() {
            if !self.json {
                mend_report::tell!(
                    "mend: {} writer(s), chunks of {}, {} of memory",
                    case.writers,
                    report::size(case.chunk),
                    report::size(case.pool)
                );
            }
            self.measure(case, &mut other, &mut all)?;
        }
        let medians = piped::medians(&all);
        if self.json {
            report::json(&all)?
        } else {
            piped::print(&medians)
        }
        csv.map_or(Ok(()), |csv| csv.write(&piped::csv(&all)))?;
        svg.map_or(Ok(()), |svg| svg.write(&piped::svg(&medians)))?;
        Ok(0)
    }

    fn measure(&self, case: Case, other: &mut OtherEnd, all: &mut Vec<Piped>) -> Result<(), Failure> {
        let Case { chunk, pool, writers } = case;
        let total = self.share(writers) * u64::from(writers);
        let rate = |taken: Duration| (total as f64 / taken.as_secs_f64().max(1e-9)) as u64;
        let nowhere = Mounted::new(case, "discard", None)?;
        let port: u16 = other.ask(&format!("mount {chunk} {pool} {writers} {}", self.share(writers)))?;
        let out = Mounted::new(case, "to", Some(&format!("{}:{port}", other.host)))?;
        // The first of each is not counted.
        for run in 0..=self.runs {
            let network = rate(other.send(total, chunk as usize)?);
            let aggregation = rate(self.written(nowhere.directory(), run, writers)?);
            other.say(&format!("read {run}"))?;
            let begun = Instant::now();
            self.written(out.directory(), run, writers)?;
            let _: u16 = other.hear()?;
            let pipeline = rate(begun.elapsed());
            if run > 0 {
                all.push(Piped { chunk, pool, writers, run, aggregation, network, pipeline });
            }
        }
        drop(out);
        other.ask::<u16>("unmount").map(drop)
    }

    /// Writes streams into a mount, all at once. How long that took until all were closed.
    fn written(&self, directory: &Path, run: u32, writers: u32) -> Result<Duration, Failure> {
        let begun = Instant::now();
        each(writers, |writer| {
            let bytes = vec![0x5a; WRITE];
            let mut file = File::create(stream(directory, run, writer))?;
            let mut left = self.share(writers);
            while left > 0 {
                let some = left.min(WRITE as u64);
                file.write_all(&bytes[..some as usize])?;
                left -= some;
            }
            // All of it is on the other node then, or an error says why not.
            file.sync_all()
        })
        .map_err(|error| failed("a stream cannot be written", &error))?;
        Ok(begun.elapsed())
    }

    /// The end where streams are read: does what the other end says, until that ends.
    fn read(&self, port: u16) -> Result<i32, Failure> {
        let listener =
            TcpListener::bind(("0.0.0.0", port)).map_err(|error| failed(&format!("port {port} cannot be listened on"), &error))?;
        let (mut told, _) = listener.accept().map_err(|error| failed("the other end cannot be heard", &error))?;
        let words = BufReader::new(told.try_clone().map_err(|error| failed("the other end cannot be heard", &error))?);
        let mut mounted: Option<(Mounted, Case, u64)> = None;
        for line in words.lines() {
            let Ok(line) = line else { break };
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            let answer = match (words[0], &mounted) {
                ("mount", _) => {
                    let case = Case { chunk: number(1), pool: number(2), writers: number(3).min(64) as u32 };
                    let new = Mounted::new(case, "listen", Some("0.0.0.0:0"))?;
                    let port = new.port;
                    mounted = Some((new, case, number(4)));
                    port
                }
                ("receive", _) => {
                    received(&listener, number(1)).map_err(|error| failed("bytes do not come", &error))?;
                    0
                }
                ("read", Some((mount, case, size))) => {
                    let run = number(1) as u32;
                    each(case.writers, |writer| take(&stream(mount.directory(), run, writer), *size, case.chunk as usize))
                        .map_err(|error| failed("a stream cannot be read", &error))?;
                    0
                }
                _ => {
                    mounted = None;
                    0
                }
            };
            if writeln!(told, "{answer}").is_err() {
                break;
            }
        }
        Ok(0)
    }
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::new(format!("{what}: {error}"), "", 1)
}

fn stream(directory: &Path, run: u32, writer: u32) -> PathBuf {
    directory.join(format!("{run}-{writer}"))
}

/// Has so many do something at once.
fn each(many: u32, work: impl Fn(u32) -> io::Result<()> + Sync) -> io::Result<()> {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..many)
            .map(|one| {
                scope.spawn({
                    let work = &work;
                    move || work(one)
                })
            })
            .collect();
        all.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked"))))
    })
}

/// Reads a stream that is about to be there.
fn take(path: &Path, size: u64, chunk: usize) -> io::Result<()> {
    let begun = Instant::now();
    let mut file = loop {
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && begun.elapsed() < PATIENCE => std::thread::sleep(LOOK_AGAIN),
            opened => break opened?,
        }
    };
    let (mut buffer, mut there) = (vec![0; chunk], 0);
    loop {
        match file.read(&mut buffer)? {
            0 if there == size => return Ok(()),
            0 => return Err(io::Error::other(format!("{there} bytes of {size} came"))),
            some => there += some as u64,
        }
    }
}

fn received(listener: &TcpListener, size: u64) -> io::Result<()> {
    let (mut from, _) = listener.accept()?;
    let mut buffer = vec![0; WRITE];
    let mut left = size;
    while left > 0 {
        match from.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            some => left = left.saturating_sub(some as u64),
        }
    }
    from.write_all(b".")
}

/// The end where streams are read.
struct OtherEnd {
    host: String,
    port: u16,
    told: TcpStream,
    answers: BufReader<TcpStream>,
}

impl OtherEnd {
    fn find(host: &str, port: u16) -> Result<Self, Failure> {
        let (begun, mut waits) = (Instant::now(), false);
        let told = loop {
            match TcpStream::connect((host, port)) {
                Ok(told) => break told,
                Err(error) if begun.elapsed() < PATIENCE => {
                    if begun.elapsed() > TELLING_TIME && !std::mem::replace(&mut waits, true) {
                        mend_report::tell!("mend: waiting for {host}:{port}, {} s at most: {error}", PATIENCE.as_secs());
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(error) => {
                    let hint = format!("`mend bench pipe --listen={port}` there");
                    return Err(Failure::new(format!("nobody waits on {host}:{port}: {error}"), hint, 69));
                }
            }
        };
        let answers =
            told.set_nodelay(true).and_then(|()| told.try_clone()).map_err(|error| failed("the other end cannot be heard", &error))?;
        Ok(Self { host: host.to_owned(), port, told, answers: BufReader::new(answers) })
    }

    fn say(&mut self, what: &str) -> Result<(), Failure> {
        writeln!(self.told, "{what}").map_err(|error| failed("the other end is lost", &error))
    }

    fn hear<T: std::str::FromStr>(&mut self) -> Result<T, Failure> {
        let mut line = String::new();
        let heard = self.answers.read_line(&mut line);
        let what = || Failure::new("the other end has ended", "it has said why", 1);
        heard.ok().and_then(|_| line.trim().parse().ok()).ok_or_else(what)
    }

    fn ask<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, Failure> {
        self.say(what)?;
        self.hear()
    }

    /// Sends bytes over a connection of their own. How long that took until the other end had them.
    fn send(&mut self, size: u64, piece: usize) -> Result<Duration, Failure> {
        self.say(&format!("receive {size}"))?;
        let send = || -> io::Result<Duration> {
            let mut to = TcpStream::connect((&*self.host, self.port))?;
            let (bytes, begun) = (vec![0x5a; piece], Instant::now());
            let mut left = size;
            while left > 0 {
                let some = left.min(piece as u64);
                to.write_all(&bytes[..some as usize])?;
                left -= some;
            }
            to.read_exact(&mut [0])?;
            Ok(begun.elapsed())
        };
        let taken = send().map_err(|error| failed("bytes cannot be sent", &error))?;
        self.hear::<u16>().map(|_| taken)
    }
}

/// A mount in a directory of its own, which ends when this is dropped.
struct Mounted {
    child: Child,
    directory: PathBuf,
    /// Where it listens, if it does.
    port: u16,
}

impl Mounted {
    fn new(case: Case, side: &str, place: Option<&str>) -> Result<Self, Failure> {
        let program = mend_settings::find_part(PROGRAM)
            .ok_or_else(|| Failure::new(format!("there is no {PROGRAM} beside mend"), "`make install` installs it", 1))?;
        let directory = std::env::temp_dir().join(format!("mend-bench-pipe-{}-{side}", std::process::id()));
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| failed("there is no place for a mount", &error))?;
        let mut command = Command::new(program);
        command.arg(side).args(place).arg(&directory);
        command.env(PIPE_CHUNK.name, (case.chunk >> 10).to_string()).env(PIPE_MEMORY.name, (case.pool >> 20).to_string());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|error| not_called(&error))?;
        let mut mounted = Self { child, directory, port: 0 };
        let mut line = String::new();
        let out = mounted.child.stdout.take();
        let said = out.map(|out| BufReader::new(out).read_line(&mut line));
        let Some(ready) = line.trim().strip_prefix("ready").filter(|_| matches!(said, Some(Ok(_)))) else {
            return Err(Failure::new("the pipe cannot be mounted", "it has said why", 1));
        };
        mounted.port = ready.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0);
        Ok(mounted)
    }

    fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_dir(&self.directory);
    }
}
