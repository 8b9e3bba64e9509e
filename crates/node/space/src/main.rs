//! `mend-space`: serves a target, or mounts of a space, or looks at one that nobody may be using. Started by `mendd` and `mend data`, never by people.

use mend_data::space::{is_name, is_path};
use mend_space::mount::{Part, Was, restore};
use mend_wire::secret::from_hex;
use std::io::{self, Write as _};
use std::path::Path;

const USAGE: &str = "mend-space is a part of mend: it is started by mendd and `mend data`";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let code = match words[..] {
        ["target", space, directory, how @ ("open" | "create")] => match (from_hex(space), secret()) {
            (Some(space), Ok(secret)) => mend_space::server::run(&space, Path::new(directory), how == "create", secret),
            (Some(_), Err(why)) => {
                let _ = writeln!(io::stdout(), "refused {why}");
                1
            }
            (None, _) => misused(),
        },
        ["ranks", name] if is_name(name) => mend_space::mount::ranks(name),
        ["watch", name, own] if is_name(name) => match own.split(',').map(str::parse).collect::<Result<Vec<u16>, _>>() {
            Ok(own) => mend_space::client::watch(name, &own),
            Err(_) => misused(),
        },
        // Daemons of before give no number.
        ["restore", name, path, part, size, mode, changed, ref number @ ..] if number.len() <= 1 && is_name(name) && is_path(path) => {
            let part = match part {
                "content" => Some(Part::Content),
                "size" => Some(Part::Size),
                "nothing" => Some(Part::Nothing),
                "read" => Some(Part::Read),
                _ => None,
            };
            let number = number.first().map(|number| number.parse()).transpose();
            match (part, size.parse(), mode.parse(), changed.parse(), number) {
                (Some(part), Ok(size), Ok(mode), Ok(changed_ns), Ok(number)) => {
                    restore(name, path, part, Was { size, mode, changed_ns, number })
                }
                _ => misused(),
            }
        }
        ["mount", name, directory] if is_name(name) => mend_space::mount::mounted(name, Path::new(directory)),
        _ => misused(),
    };
    // Not by returning: threads may wait for a medium that does not answer.
    std::process::exit(code);
}

fn misused() -> i32 {
    mend_report::tell!("{}", mend_report::failure("mend-space", USAGE, "mend data --help"));
    64
}

fn secret() -> Result<mend_messages::job::Secret, String> {
    let path = mend_settings::secret_file().map_err(|error| mend_report::with_causes(&error))?;
    mend_wire::secret::load(&path).map_err(|error| mend_report::with_causes(&error))
}
