//! `mend image`: what image files hold, whether they are whole, how they differ, several made one.

use crate::arguments::{Compact, Diff, ImageCommand, ShowImage, VerifyImages};
use crate::failure::Failure;
use crate::report;
use mend_controller::image_file::ImageFile;
use mend_controller::images::{self, ImagesError};
use mend_image::chain::Chain;
use mend_image::diff::{Difference, How, diff};
use mend_image::record::{Mapping, mapping};
use mend_messages::agent::ImageId;
use serde::Serialize;
use std::path::PathBuf;

const PAGE_SIZE: u64 = 4096;

/// Carries it out.
pub fn image(command: ImageCommand) -> Result<i32, Failure> {
    match command {
        ImageCommand::Show(files) => show(&files),
        ImageCommand::Verify(files) => verify(&files),
        ImageCommand::Diff(two) => differences(&two),
        ImageCommand::Compact(compact) => merge(&compact),
    }
}

/// One file of a checkpoint stands for all that it builds on.
fn chain(files: &[PathBuf]) -> Result<Vec<PathBuf>, ImagesError> {
    match files {
        [one] => images::chain_of(one),
        several => Ok(several.to_vec()),
    }
}

#[derive(Serialize)]
struct Member {
    file: PathBuf,
    id: ImageId,
    base: Option<ImageId>,
    sequence: u32,
    /// Seconds since 1970.
    taken: u64,
    bytes: u64,
    /// Bytes of pages in it, kept from its base, still counting in this chain; bytes of memory objects.
    stored: u64,
    kept: u64,
    live: u64,
    objects: u64,
}

#[derive(Serialize)]
struct Mapped {
    start: u64,
    end: u64,
    protection: String,
    shared: bool,
    /// Bytes that the chain holds, and those of them that the newest image stores.
    live: u64,
    stored: u64,
    what: String,
}

#[derive(Serialize)]
struct Shown {
    rank: u32,
    ranks: u32,
    pid: u32,
    host: String,
    release: String,
    kernel: String,
    executable: String,
    threads: u32,
    /// False if an image that the oldest builds on was not given.
    whole: bool,
    chain: Vec<Member>,
    mappings: Vec<Mapped>,
}

fn name_of(chain: &Chain<ImageFile>, mapped: &Mapping) -> String {
    let newest = chain.newest();
    if mapped.flags & mapping::VDSO != 0 {
        return "[vdso]".into();
    }
    if mapped.flags & mapping::VVAR != 0 {
        return "[vvar]".into();
    }
    match newest.objects.get(mapped.object as usize) {
        None => "[anonymous]".into(),
        Some(object) => match newest.text(object) {
            Some(text) if !text.is_empty() => text.into(),
            _ => "[shared memory]".into(),
        },
    }
}

fn protection(mapped: &Mapping) -> String {
    let bit = |bit: u32, letter: char| if mapped.protection & bit != 0 { letter } else { '-' };
    let shared = if mapped.flags & mapping::SHARED != 0 { 's' } else { 'p' };
    [bit(1, 'r'), bit(2, 'w'), bit(4, 'x'), shared].into_iter().collect()
}

fn describe(files: &[PathBuf], chain: &Chain<ImageFile>) -> Shown {
    let header = &chain.newest().header;
    let member = |(file, member): (&PathBuf, &mend_image::chain::Member<ImageFile>)| Member {
        file: file.clone(),
        id: ImageId(member.header.id),
        base: member.header.incremental().then_some(ImageId(member.header.base)),
        sequence: member.header.sequence,
        taken: member.header.realtime / 1_000_000_000,
        bytes: member.end.bytes,
        stored: member.stored,
        kept: member.kept,
        live: member.live,
        objects: member.bytes,
    };
    let mut pieces = chain.pieces().iter().peekable();
    let mapped = |mapped: &Mapping| {
        let (mut live, mut stored) = (0, 0);
        // A piece may reach over a border between mappings.
        while let Some(piece) = pieces.next_if(|piece| piece.start < mapped.end) {
            live += piece.end - piece.start;
            stored += if piece.member == 0 { piece.end - piece.start } else { 0 };
        }
        Mapped {
            start: mapped.start,
            end: mapped.end,
            protection: protection(mapped),
            shared: mapped.flags & mapping::SHARED != 0,
            live,
            stored,
            what: name_of(chain, mapped),
        }
    };
    Shown {
        rank: header.rank,
        ranks: header.size,
        pid: header.pid,
        host: header.host().into(),
        release: header.release().into(),
        kernel: header.kernel().into(),
        executable: header.executable().into(),
        threads: header.threads,
        whole: chain.is_whole(),
        chain: files.iter().zip(chain.members()).map(member).collect(),
        mappings: chain.newest().mappings.iter().map(mapped).collect(),
    }
}

fn show(arguments: &ShowImage) -> Result<i32, Failure> {
    let files = chain(&arguments.files)?;
    let chain = images::open(&files, false)?;
    let shown = describe(&files, &chain);
    if arguments.json {
        report::json(&shown)?;
        return Ok(0);
    }
    let Shown { rank, ranks, pid, host, release, kernel, executable, threads, .. } = &shown;
    crate::report::say!("rank {rank} of {ranks}: {executable}, process {pid} with {threads} thread(s)");
    crate::report::say!("  saved on {host} (Linux {kernel}) by Mend {release}");
    let row = |(at, one): (usize, &Member)| {
        let sizes = [one.bytes, one.stored, one.kept, one.objects, one.live].map(report::size);
        let base = one.base.map_or_else(|| "-".into(), |id| short(&id));
        let mut row = vec![at.to_string(), report::time(one.taken), short(&one.id), base];
        row.extend(sizes);
        row.push(one.file.display().to_string());
        row
    };
    crate::report::say!();
    let heading = ["N", "TAKEN (UTC)", "ID", "BASE", "SIZE", "PAGES", "KEPT", "SHARED", "LIVE", "FILE"];
    report::table(&heading, &shown.chain.iter().enumerate().map(row).collect::<Vec<_>>());
    if !shown.whole {
        crate::report::say!("the oldest of these builds on an image that was not given");
    }
    crate::report::say!();
    let row = |one: &Mapped| {
        let sizes = [one.end - one.start, one.live, one.stored].map(report::size);
        let mut row = vec![format!("{:x}-{:x}", one.start, one.end), one.protection.clone()];
        row.extend(sizes);
        row.push(one.what.clone());
        row
    };
    let heading = ["ADDRESS", "MODE", "SIZE", "LIVE", "IN NEWEST", "WHAT"];
    report::table(&heading, &shown.mappings.iter().map(row).collect::<Vec<_>>());
    Ok(0)
}

/// Enough of a name to tell images apart.
fn short(id: &ImageId) -> String {
    id.to_string()[..8].to_owned()
}

fn verify(arguments: &VerifyImages) -> Result<i32, Failure> {
    match &arguments.files[..] {
        [checkpoint] if checkpoint.is_dir() => {
            let chains = images::chains_of(checkpoint)?;
            let all: Vec<_> = chains.iter().map(|files| verify_chain(files).map_err(|failure| (files, failure))).collect();
            if arguments.json {
                let told = all.iter().map(|one| match one {
                    Ok(good) => serde_json::json!(good),
                    Err((files, failure)) => serde_json::json!({ "good": false, "files": files, "error": failure.text() }),
                });
                report::json(&told.collect::<Vec<_>>())?;
            } else {
                all.iter().flatten().for_each(|one| crate::report::say!("rank {}: {}", one.rank, one.sentence()));
            }
            // Each rank that is bad is named, the last as the command's own failure.
            let mut bad: Vec<Failure> = all.into_iter().filter_map(|one| Some(one.err()?.1)).collect();
            if let Some(last) = bad.pop() {
                bad.iter().for_each(|failure| mend_report::tell!("mend: {}", failure.text()));
                return Err(last);
            }
        }
        files => {
            let one = verify_chain(&chain(files)?)?;
            if arguments.json {
                report::json(&one)?;
            } else {
                crate::report::say!("{}", one.sentence());
            }
        }
    }
    Ok(0)
}

/// A chain all of whose checksums fit.
#[derive(Serialize)]
struct Verified {
    good: bool,
    rank: u32,
    files: Vec<PathBuf>,
    bytes: u64,
    live: u64,
}

impl Verified {
    fn sentence(&self) -> String {
        let (count, bytes, live) = (self.files.len(), report::size(self.bytes), report::size(self.live));
        format!("{count} image(s), {bytes}, every checksum fits; {live} of live pages")
    }
}

fn verify_chain(files: &[PathBuf]) -> Result<Verified, Failure> {
    let mut chain = images::open(files, true)?;
    let verified = chain.verify().map_err(|error| ImagesError::of(files, error))?;
    let (bytes, live) = (verified.iter().map(|one| one.end.bytes).sum(), chain.members().iter().map(|one| one.live).sum());
    Ok(Verified { good: true, rank: chain.newest().header.rank, files: files.to_vec(), bytes, live })
}

#[derive(Serialize)]
struct Different {
    start: u64,
    end: u64,
    how: &'static str,
    what: String,
}

/// A word for a difference, from the first image to the second.
fn word(how: How) -> &'static str {
    match how {
        How::Changed => "changed",
        How::Gone => "gone",
        How::New => "new",
    }
}

fn differences(arguments: &Diff) -> Result<i32, Failure> {
    let files = [chain(&arguments.first)?, chain(&arguments.second)?];
    let [mut first, mut second] = [images::open(&files[0], true)?, images::open(&files[1], true)?];
    let mut runs: Vec<Difference> = Vec::new();
    diff(&mut first, &mut second, |run| runs.push(run))
        .map_err(|error| ImagesError::of(&files[usize::from(error.second)], error.source))?;
    let named = |run: &Difference| {
        let chains = if run.how == How::Gone { [&first, &second] } else { [&second, &first] };
        let found = chains.iter().find_map(|chain| Some(name_of(chain, chain.newest().mapping_of(run.start)?)));
        Different { start: run.start, end: run.end, how: word(run.how), what: found.unwrap_or_default() }
    };
    let found: Vec<Different> = runs.iter().map(named).collect();
    let pages: u64 = runs.iter().map(|run| (run.end - run.start) / PAGE_SIZE).sum();
    let code = i32::from(!found.is_empty());
    if arguments.json {
        report::json(&serde_json::json!({ "pages": pages, "differences": found }))?;
        return Ok(code);
    }
    if !found.is_empty() {
        let row = |one: &Different| {
            let range = format!("{:x}-{:x}", one.start, one.end);
            vec![range, report::size(one.end - one.start), one.how.into(), one.what.clone()]
        };
        report::table(&["ADDRESS", "SIZE", "HOW", "WHAT"], &found.iter().map(row).collect::<Vec<_>>());
    }
    crate::report::say!("{pages} page(s) differ");
    Ok(code)
}

fn merge(arguments: &Compact) -> Result<i32, Failure> {
    let files = chain(&arguments.files)?;
    let end = images::compact(&files, &arguments.to)?;
    if arguments.json {
        let (bytes, pages) = (end.bytes, end.pages);
        report::json(&serde_json::json!({ "file": arguments.to, "bytes": bytes, "pages": pages, "merged": files }))?;
    } else {
        crate::report::say!("{} image(s) merged into {}: {}", files.len(), arguments.to.display(), report::size(end.bytes));
    }
    Ok(0)
}
