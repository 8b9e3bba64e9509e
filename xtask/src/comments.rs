//! Doc comments are sentences: a single word ("Which.") tells a reader nothing that the name beside it does not.

use crate::Breach;

/// Doc comments of a Rust file that are one word and a full stop, and stand alone.
pub fn one_word(file: &str, text: &str) -> Vec<Breach> {
    if !file.ends_with(".rs") {
        return Vec::new();
    }
    let docs: Vec<Option<&str>> = text.lines().map(|line| line.trim_start().strip_prefix("///")).collect();
    let lone = |at: usize| (at == 0 || docs[at - 1].is_none()) && docs.get(at + 1).copied().flatten().is_none();
    let wordy = |doc: &str| doc.trim().contains(' ') || !doc.trim_end().ends_with('.') || doc.contains(['`', '[']);
    docs.iter()
        .enumerate()
        .filter_map(|(at, doc)| doc.filter(|doc| !wordy(doc) && lone(at)).map(|doc| (at + 1, doc.trim())))
        .map(|(line, word)| {
            Breach::new(format!("{file}:{line}"), format!("has a doc comment of one word, \"{word}\": say it in a sentence"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_alone_is_found() {
        let text =
            "/// Which.\nrank: u32,\n/// A sentence\n/// goes\n/// on.\nx: u8,\n    /// Why.\n    y: u8,\n// Plain.\n/// `Code`.\nz: u8,\n";
        let found: Vec<String> = one_word("a.rs", text).into_iter().map(|breach| breach.place).collect();
        assert_eq!(found, ["a.rs:1", "a.rs:7"]);
        assert!(one_word("a.md", text).is_empty());
    }
}
