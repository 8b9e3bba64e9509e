//! `mend data check` and `repair` over many files: what is told, and the exit code.

use crate::against;
use crate::check::{self, Checked, State};
use crate::failure::{DAMAGED, FAILED, Failure, report_all};
use crate::fetch::Fetcher;
use crate::progress::Progress;
use crate::repair::{self, Repaired};
use crate::report;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Files by what was found, for `--json`.
#[derive(Serialize)]
struct Report<'a> {
    files: usize,
    bytes: u64,
    whole: usize,
    readable: usize,
    unknown: usize,
    damaged: usize,
    /// Those that are not whole, and those that were given by name.
    details: Vec<&'a Checked>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired: Option<Vec<&'a Repaired>>,
}

fn is_bad(checked: &Checked) -> bool {
    matches!(checked.state, State::Damaged | State::Missing | State::Failed)
}

/// What is found of each file, and why it could not be compared with its sources.
async fn look(
    paths: &[PathBuf],
    against_source: bool,
    fetcher: &Fetcher,
    progress: &Arc<Progress>,
) -> (Vec<Checked>, Vec<Option<Failure>>) {
    let mut checked = tokio::task::block_in_place(|| check::all(paths, fetcher.settings.readers));
    let mut uncompared = Vec::new();
    for one in &mut checked {
        uncompared.push(if against_source { against::compare(one, fetcher, progress).await.err() } else { None });
    }
    (checked, uncompared)
}

fn tell(checked: &[Checked]) {
    for one in checked {
        let path = one.path.display();
        one.remarks.iter().for_each(|remark| mend_report::tell!("mend data: {path}: {remark}"));
        match one.state {
            State::Missing => report::line(&format!("{path}: it is gone")),
            State::Damaged => one.damages.iter().for_each(|damage| report::line(&format!("{path}: {}", check::told(damage)))),
            _ => {}
        }
    }
}

/// The failures of files that were given by name and of which nothing is known.
fn unknown(checked: &[Checked]) -> Vec<Failure> {
    let named = checked.iter().filter(|one| one.named && one.state == State::Unknown);
    named.map(|one| check::unknown(&one.path)).collect()
}

fn summary(checked: &[Checked]) -> String {
    let count = |state: State| checked.iter().filter(|one| one.state == state).count();
    let files = |count: usize| if count == 1 { "1 file".to_owned() } else { format!("{count} files") };
    let bytes: u64 = checked.iter().map(|one| one.size).sum();
    let mut text = format!("{} ({}): {} whole", files(checked.len()), report::size(bytes), count(State::Whole));
    for (state, word) in [
        (State::Readable, "readable, without checksums"),
        (State::Unknown, "readable, without a source"),
        (State::Damaged, "damaged"),
        (State::Missing, "gone"),
        (State::Failed, "not looked at"),
    ] {
        if count(state) > 0 {
            text.push_str(&format!(", {} {word}", count(state)));
        }
    }
    text
}

fn print_json(checked: &[Checked], repaired: Option<&[Repaired]>) -> Result<(), Failure> {
    let count = |state: State| checked.iter().filter(|one| one.state == state).count();
    report::json(&Report {
        files: checked.len(),
        bytes: checked.iter().map(|one| one.size).sum(),
        whole: count(State::Whole),
        readable: count(State::Readable),
        unknown: count(State::Unknown),
        damaged: checked.iter().filter(|one| is_bad(one)).count(),
        details: checked.iter().filter(|one| one.named || is_bad(one)).collect(),
        repaired: repaired.map(|repaired| repaired.iter().collect()),
    })
}

/// The worst of some exit codes: a failure of the command before damage, damage before nothing.
fn code(checked: &[Checked], failures: &[Failure]) -> i32 {
    let failed = report_all(failures);
    let damaged = checked.iter().any(|one| matches!(one.state, State::Damaged | State::Missing)).then_some(DAMAGED);
    let not_looked_at = checked.iter().any(|one| one.state == State::Failed).then_some(FAILED);
    damaged.or(failed).or(not_looked_at).unwrap_or(0)
}

/// `mend data check`; its exit code.
pub async fn check(paths: Vec<PathBuf>, against_source: bool, json: bool, fetcher: &Fetcher) -> Result<i32, Failure> {
    let progress = Arc::new(Progress::new(json));
    let (checked, uncompared) = look(&paths, against_source, fetcher, &progress).await;
    progress.end();
    let mut failures: Vec<Failure> = uncompared.into_iter().flatten().collect();
    if json {
        print_json(&checked, None)?;
    } else {
        tell(&checked);
        report::line(&summary(&checked));
    }
    failures.extend(unknown(&checked));
    Ok(code(&checked, &failures))
}

/// `mend data repair`; its exit code.
pub async fn repair(paths: Vec<PathBuf>, against_source: bool, json: bool, fetcher: &Fetcher) -> Result<i32, Failure> {
    let progress = Arc::new(Progress::new(json));
    let (mut checked, uncompared) = look(&paths, against_source, fetcher, &progress).await;
    if !json {
        tell(&checked);
    }
    let (mut repaired, mut failures) = (Vec::new(), Vec::new());
    for (one, uncompared) in checked.iter_mut().zip(uncompared) {
        // Nobody knows what is right there.
        if let Some(failure) = uncompared {
            failures.push(failure);
            continue;
        }
        match repair::one(one, fetcher, &progress).await {
            Ok(None) => {}
            Ok(Some(done)) => {
                one.state = State::Whole;
                one.size = one.found.record.as_ref().map_or(one.size, |record| record.size);
                repaired.push(done);
            }
            Err(failure) => failures.push(failure),
        }
    }
    progress.end();
    failures.extend(unknown(&checked));
    if json {
        print_json(&checked, Some(&repaired))?;
    } else {
        repaired.iter().for_each(told);
        report::line(&summary(&checked));
    }
    // A repair that failed says why, and that is its exit code.
    let failed = report_all(&failures);
    Ok(failed.unwrap_or_else(|| code(&checked, &[])))
}

fn told(one: &Repaired) {
    let path = one.path.display();
    let cut = if one.cut > 0 { format!(", cut {} bytes off", one.cut) } else { String::new() };
    let how = if one.unverified { ", by its source's version alone: there were no checksums" } else { "" };
    report::line(&format!("{path}: repaired, fetched {}{cut}{how}", report::size(one.fetched)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::UNREACHABLE;
    use crate::fetch::waited;
    use crate::settings::Settings;
    use crate::{mirrors, record_file};
    use mend_data::record::{Known, Record, Source};
    use mend_data::sums::BLOCK;
    use std::fs::{self, File};

    #[test]
    fn a_source_that_has_changed_is_not_compared_with() {
        let directory = tempfile::tempdir().unwrap();
        let [source, path] = ["source", "file"].map(|name| directory.path().join(name));
        let content = vec![7; 2 * BLOCK as usize];
        fs::write(&source, &content).unwrap();
        fs::write(&path, &content[1..]).unwrap();
        let mut sources = vec![Source { uri: format!("file://{}", source.display()), ..Source::default() }];
        let fetcher = Fetcher::new(Settings::small());
        assert!(waited(mirrors::open(&mut sources, &fetcher, true)).iter().all(Result::is_ok));
        let record = Record { sources, size: content.len() as u64, sums: Known::Nowhere };
        record_file::keep(&path, &File::open(&path).unwrap(), &record).map_err(|error| error.into_io()).unwrap();
        fs::write(&source, "something else").unwrap();
        let progress = Arc::new(Progress::new(true));
        let (_, uncompared) = waited(look(std::slice::from_ref(&path), true, &fetcher, &progress));
        let failure = uncompared[0].as_ref().unwrap();
        assert!(failure.code == DAMAGED && failure.hint.contains("stage --force"), "{failure:?}");
        // One that is gone may come back.
        fs::remove_file(&source).unwrap();
        let code = waited(repair(vec![path.clone()], true, false, &fetcher)).map_err(|failure| failure.what).unwrap();
        assert_eq!((code, fs::read(&path).unwrap().len()), (UNREACHABLE, content.len() - 1));
    }

    #[test]
    fn nothing_is_written_to_a_file_whose_mirrors_differ() {
        let directory = tempfile::tempdir().unwrap();
        let size = 6 * BLOCK as usize;
        let of = |name: &str, length: usize, differs: Option<u8>| {
            let mut content: Vec<u8> = (0..size).map(|at| (at / 3) as u8).collect();
            content[4 * BLOCK as usize] ^= differs.unwrap_or(0);
            let path = directory.path().join(name);
            fs::write(&path, &content[..length]).unwrap();
            path
        };
        let mirrors = [of("one", size, None), of("other", size, Some(1))];
        let sources = mirrors.iter().map(|path| Source { uri: format!("file://{}", path.display()), ..Source::default() }).collect();
        // It differs from both, and lacks its last block.
        let path = of("file", 5 * BLOCK as usize, Some(2));
        let before = fs::read(&path).unwrap();
        let record = Record { sources, size: size as u64, sums: Known::Nowhere };
        record_file::keep(&path, &File::open(&path).unwrap(), &record).map_err(|error| error.into_io()).unwrap();
        let fetcher = Fetcher::new(Settings::small());
        let code = waited(repair(vec![path.clone()], true, false, &fetcher)).map_err(|failure| failure.what).unwrap();
        assert_eq!(code, DAMAGED);
        assert!(fs::read(&path).unwrap() == before);
    }
}
