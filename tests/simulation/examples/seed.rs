//! Runs the world of one seed and tells what happens: `cargo run -p mend-simulation --example seed SEED`.

use mend_simulation::{Options, run};

fn main() {
    let seed = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    match run(seed, Options { trace: true, ..Options::default() }) {
        Ok(summary) => println!("{summary:?}"),
        Err(found) => println!("seed {seed}: {found}"),
    }
}
