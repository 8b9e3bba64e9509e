//! The table of settings: values in range, and how values are read.

use super::*;

#[test]
fn defaults_are_within_their_range() {
    for setting in ALL.iter().filter(|s| matches!(s.kind, Kind::Number { .. })) {
        let Kind::Number { min, max } = setting.kind else { continue };
        assert!((min..=max).contains(&setting.default.parse().unwrap()), "{}", setting.name);
    }
}

#[test]
fn choices_are_a_word_or_a_number_in_range() {
    for setting in ALL.iter().filter(|setting| matches!(setting.kind, Kind::WordOrNumber { .. })) {
        assert!(setting.word_or_number(Some(setting.default)).is_ok(), "{}", setting.name);
    }
    assert_eq!(INTERVAL.word_or_number(Some("auto")), Ok(WordOrNumber::Word("auto")));
    assert_eq!(INTERVAL.word_or_number(Some("60")), Ok(WordOrNumber::Number(60)));
    assert_eq!(INCREMENTAL.word_or_number(Some("0")), Ok(WordOrNumber::Number(0)));
    for wrong in ["", "0", "-1", "1.5", "sometimes"] {
        let error = INTERVAL.word_or_number(Some(wrong)).unwrap_err();
        assert_eq!(error.to_string(), "expected off, auto or a whole number from 1 to 10000000");
    }
    let setting = Setting { name: "MEND_TEST_NOT_SET", default: "0", ..INTERVAL };
    for value in [None, Some("0")] {
        let error = setting.word_or_number(value).unwrap_err();
        assert_eq!(error.to_string(), "MEND_TEST_NOT_SET=0: expected off, auto or a whole number from 1 to 10000000");
    }
}

#[test]
fn lists_hold_known_words_once() {
    const LETTERS: Setting = Setting { name: "MEND_TEST_NOT_SET", kind: Kind::List(&["a", "b"]), default: "b, a", meaning: "" };
    assert_eq!(LETTERS.words().unwrap(), ["b", "a"]);
    assert_eq!(CHANNELS.words().unwrap(), ["shm", "tcp"]);
    for wrong in ["", "c", "a,a", "a,,b"] {
        let setting = Setting { default: wrong, ..LETTERS };
        assert!(setting.words().is_err(), "{wrong:?}");
    }
}

#[test]
fn a_choice_is_one_of_its_words() {
    assert_eq!(TRACKING.choice().unwrap(), "auto");
    let setting = Setting { name: "MEND_TEST_NOT_SET", default: "hash,auto", ..TRACKING };
    assert!(setting.choice().is_err());
}

#[test]
fn the_reference_names_every_setting_once() {
    let page = reference();
    for setting in ALL {
        assert_eq!(page.matches(&format!("| `{}` |", setting.name)).count(), 1);
    }
}

#[test]
fn the_reference_tells_the_whole_meaning_and_begins_with_a_short_sentence() {
    let page = reference();
    for setting in ALL {
        let (first, more) = setting.sentences();
        assert!(first.chars().count() <= 200, "{}: its first sentence is too long for a table", setting.name);
        assert!(page.contains(first) && page.contains(more), "{}", setting.name);
        assert_eq!(first.len() + more.len() + usize::from(!more.is_empty()), setting.meaning.len(), "{}", setting.name);
    }
}
