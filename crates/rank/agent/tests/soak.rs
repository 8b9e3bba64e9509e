//! Many generations at arbitrary moments: `cargo test -p mend-agent --test soak -- --ignored`.

mod support;

use support::{Rank, compile};

#[test]
#[ignore = "takes minutes"]
fn fifty_generations_of_each_program() {
    for (number, program) in ["apps/threads.c", "apps/signals.c", "apps/memory.c", "apps/descriptors.c"].into_iter().enumerate() {
        let mut rank = Rank::start(6000 + number as u32 * 100, &compile(program), &["1000000"]);
        rank.await_line("tick 1");
        let directory = rank.directory.clone();
        for generation in 0..50u64 {
            // Moments that do not line up with anything the program does.
            std::thread::sleep(std::time::Duration::from_micros((generation * 7919) % 30_000));
            let image = directory.join("image");
            rank.save(&image);
            if generation % 3 == 0 {
                rank.resume();
                std::thread::sleep(std::time::Duration::from_micros((generation * 104_729) % 20_000));
                rank.save(&image);
            }
            let printed = String::from_utf8(rank.kill()).unwrap();
            assert!(!printed.contains("LOST"), "{program}, generation {generation}: {printed}");
            rank = Rank::restart(&image, &directory);
            rank.resume();
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
        let printed = String::from_utf8(rank.kill()).unwrap();
        assert!(printed.contains("tick") && !printed.contains("LOST") && !printed.contains("OK"), "{program}: {printed}");
    }
}
