//! How long a large process takes, for people: `cargo test -p mend-agent --release --test speed -- --ignored --nocapture`.

mod support;

use mend_image::launch::Mode;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;
use support::{Rank, Source, compile};

#[test]
#[ignore = "measures, proves nothing"]
fn one_gibibyte_of_noise() {
    for (pages, huge) in [("4 KiB pages", "0"), ("huge pages", "1")] {
        let mut rank = Rank::start(5000, &compile("apps/big.c"), &["1024", huge]);
        rank.await_line("ready");
        let image = std::path::PathBuf::from("/dev/shm/mend-agent-speed");
        let directory = rank.directory.clone();
        let saved = rank.save(&image);
        rank.resume();
        println!("{pages}: to tmpfs: park {} ms, write {} ms", saved.park_us / 1000, saved.write_us / 1000);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let began = Instant::now();
        rank.save_into(&theirs);
        drop(theirs);
        let mut moved = Rank::restore(Source::Stream(ours.into(), 5000), Mode::Migrate, &directory).unwrap();
        println!(
            "{pages}: through a socket into a new process: {} ms, restorer {} ms",
            began.elapsed().as_millis(),
            moved.restorer_us / 1000
        );
        println!("{:?}", rank.hear());
        rank.kill();
        moved.resume();
        moved.type_in("end\n");
        moved.finish();
        let began = Instant::now();
        let mut again = Rank::restart(&image, &directory);
        println!("{pages}: from tmpfs: {} ms", began.elapsed().as_millis());
        again.resume();
        again.type_in("end\n");
        again.finish();
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
#[ignore = "measures, proves nothing"]
fn a_chain_of_one_and_three() {
    let mut rank = Rank::start(5001, &compile("apps/dirtied.c"), &["512"]);
    let directory = rank.directory.clone();
    let (mut chain, mut id) = (Vec::new(), None);
    for round in 0..4 {
        rank.await_line(&format!("round {round}"));
        let path = std::path::PathBuf::from(format!("/dev/shm/mend-agent-chain-{round}"));
        let saved = rank.save_on(&path, id);
        println!("round {round}: {} MiB in {} ms{}", saved.bytes >> 20, saved.write_us / 1000, saved.note.unwrap_or_default());
        id = Some(saved.id);
        rank.resume();
        chain.insert(0, path);
        rank.type_in("more\n");
    }
    rank.await_line("round 4");
    rank.kill();
    let live: u64 = {
        let files = chain.iter().map(|path| std::fs::File::open(path).unwrap());
        mend_image::chain::Chain::open(files).unwrap().members().iter().map(|member| member.live).sum()
    };
    for _ in 0..3 {
        let mut again = Rank::restore(Source::Chain(&chain), Mode::Restart, &directory).unwrap();
        println!("chain of {} MiB live: restorer {} ms, {} MiB read", live >> 20, again.restorer_us / 1000, again.restorer_bytes >> 20);
        again.resume();
        again.type_in("end\n");
        again.finish();
    }
    chain.iter().for_each(|path| std::fs::remove_file(path).unwrap());
}
