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
