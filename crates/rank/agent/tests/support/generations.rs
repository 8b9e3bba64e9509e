//! Programs that are saved and restored one time after the other.

use super::Rank;

/// What `counter.c` has printed: every number once, however many.
pub fn assert_counted(printed: &str) {
    let lines: Vec<&str> = printed.lines().collect();
    let expected: Vec<String> = (1..lines.len()).map(|tick| format!("tick {tick}")).chain(["OK".to_string()]).collect();
    assert_eq!(lines, expected);
}

/// Saves (at first what an inspection found), kills and restores, waiting for the given line before each, then lets the program come to its end. Of the lines
/// the first is waited for, and for each further one a little: a slow machine may have passed it.
pub fn generations(mut rank: Rank, lines: &[&str]) -> String {
    let (directory, endless) = (rank.directory.clone(), rank.endless);
    let mut printed = Vec::new();
    for (generation, line) in lines.iter().enumerate() {
        rank.comes_to(generation, line);
        let path = directory.join(format!("image-{generation}"));
        let _ = (generation == 0).then(|| rank.inspect());
        let saved = rank.save(&path);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), saved.bytes);
        printed.extend(rank.kill());
        rank = Rank::restart(&path, &directory);
        rank.resume();
    }
    let end = if endless { rank.end() } else { rank.finish() };
    String::from_utf8_lossy(&printed).into_owned() + &end
}

/// The same with snapshots of a program without end: it runs on, for two lines more, while the image is written, and is killed after
/// that.
pub fn generations_behind(mut rank: Rank, count: usize, rate: u64) {
    let directory = rank.directory.clone();
    rank.two_lines_more();
    for generation in 0..count {
        let path = directory.join(format!("image-{generation}"));
        let _ = (generation == 0).then(|| rank.inspect());
        let saved = rank.snapshot(&path, Some(rate));
        assert!(saved.behind, "{saved:?}");
        rank.resume();
        rank.two_lines_more();
        let written = rank.await_written(saved.id).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), written.bytes);
        let printed = String::from_utf8(rank.kill()).unwrap();
        assert!(!printed.contains("LOST"), "{printed}");
        rank = Rank::restart(&path, &directory);
        rank.resume();
        rank.two_lines_more();
    }
    let printed = String::from_utf8(rank.kill()).unwrap();
    assert!(!printed.contains("LOST"), "{printed}");
}
