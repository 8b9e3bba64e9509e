//! House rules as a program: `cargo xtask check` reads the tree and the dependency graph and lists what breaks a rule.
//!
//! Each module holds one kind of rule as pure functions from text to [`Breach`]es, tested on small fixtures; this file
//! does the reading. `cargo xtask settings` writes the reference of all settings, which `check` compares.

mod circles;
mod comments;
mod documents;
mod layers;
mod names;
mod source;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// One place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
pub struct Breach {
    /// File or crate.
    pub place: String,
    /// What is wrong there, and what is asked instead.
    pub what: String,
}

impl Breach {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }
}

fn main() -> ExitCode {
    let verb = std::env::args().nth(1);
    let done = match verb.as_deref() {
        Some("check") => check(),
        Some("settings") => write_settings(),
        _ => Err("usage: cargo xtask check | settings".to_owned()),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}", mend_report::failure("xtask", &error, ""));
            ExitCode::from(2)
        }
    }
}

/// The workspace's directory, from this crate's place in it.
fn top() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

fn check() -> Result<ExitCode, String> {
    let top = top();
    let mut breaches = Vec::new();
    let mut sources = Vec::new();
    let files = files(&top)?;
    for file in &files {
        breaches.extend(names::check(file));
        // Not text: nothing more to check. Deleted, but not yet in git: nothing at all.
        let Ok(text) = std::fs::read_to_string(top.join(file)) else { continue };
        breaches.extend(names::machine_paths(file, &text));
        if file.ends_with(".rs") {
            breaches.extend(names::nounless_constants(file, &text));
        }
        breaches.extend(source::check(file, &text));
        breaches.extend(comments::one_word(file, &text));
        breaches.extend(documents::links(file, &text, |target| top.join(target).exists()));
        breaches.extend(documents::cells(file, &text));
        breaches.extend(documents::named_paths(file, &text, |target| top.join(target).exists()));
        match file.as_str() {
            "README.md" => breaches.extend(documents::readme(&text)),
            documents::DECISIONS => breaches.extend(documents::decisions(&text, &files)),
            documents::SETTINGS => breaches.extend(documents::settings(&text)),
            _ => {}
        }
        if file.ends_with(".rs") {
            sources.push((file.as_str(), text));
        }
    }
    breaches.extend(circles::check(sources.iter().map(|(file, text)| (*file, text.as_str()))));
    for needed in documents::NEEDED.iter().filter(|needed| !files.iter().any(|file| file == *needed)) {
        breaches.push(Breach::new(*needed, "is missing"));
    }
    for manifest in ["Cargo.toml", "crates/rank/restorer/Cargo.toml", "fuzz/Cargo.toml"] {
        if manifest != "Cargo.toml" && !top.join(manifest).exists() {
            breaches.push(Breach::new(manifest, "is missing"));
            continue;
        }
        let graph = metadata(&top.join(manifest))?;
        breaches.extend(layers::check(&graph));
    }
    breaches.sort_by(|a, b| (&a.place, &a.what).cmp(&(&b.place, &b.what)));
    breaches.dedup();
    for Breach { place, what } in &breaches {
        println!("{place}: {what}");
    }
    println!("xtask check: {} files, {} breaches of the house rules", files.len(), breaches.len());
    Ok(if breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write_settings() -> Result<ExitCode, String> {
    let path = top().join(documents::SETTINGS);
    std::fs::write(&path, documents::settings_page()).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Files that are tracked or would be (not ignored), relative to `top`. The tree may belong to another user: a
/// container's checkout often does.
fn files(top: &Path) -> Result<Vec<String>, String> {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "-C"]).arg(top).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let list = output(&mut git)?;
    let mut files: Vec<String> = list.split('\0').filter(|file| !file.is_empty() && top.join(file).is_file()).map(str::to_owned).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// The dependency graph for the only platform there is (Linux on x86-64), so that nothing foreign is downloaded.
fn metadata(manifest: &Path) -> Result<Value, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu", "--manifest-path"])
        .arg(manifest);
    serde_json::from_str(&output(&mut cargo)?).map_err(|error| format!("cargo metadata: {error}"))
}

fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{name}: {error}"))
}
