//! `mend lab` alone, as a program: for developing this crate and for its tests.

use clap::Parser;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: mend_lab::LabCommand,
}

fn main() {
    let code = match mend_lab::run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}", mend_report::failure("lab", &mend_report::with_causes(&error), &error.hint().unwrap_or_default()));
            error.exit_code()
        }
    };
    std::process::exit(code);
}
