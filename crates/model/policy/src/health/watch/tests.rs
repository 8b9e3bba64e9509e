use super::*;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;
const RULES: Rules = Rules { calm_us: 10 * SECOND, horizon_us: 0, window_us: 60 * SECOND, stale_us: 300 * SECOND };

fn marks() -> Option<Marks> {
    Marks::new(80.0, 90.0)
}

fn sample(value: f64) -> Sample {
    Sample { sensor: "hwmon:cpu".into(), value: Some(value), unit: "°C".into(), marks: marks(), ..Sample::default() }
}

/// A sensor that says one value after the other, a second apart; its grade after each.
fn grades(values: &[f64], rules: &Rules) -> Vec<Grade> {
    let mut watch = Watch::new(&sample(0.0));
    let take = |(at, value): (u64, &f64)| {
        watch.take(at * SECOND, sample(*value), (marks(), true), rules);
        watch.grade()
    };
    (1..).zip(values).map(take).collect()
}

#[test]
fn it_rises_at_once_and_falls_when_it_has_been_calm() {
    let values = [&[70.0, 81.0, 79.0, 91.0, 88.0][..], &[70.0; 12][..]].concat();
    let found = grades(&values, &RULES);
    assert_eq!(found[..5], [Grade::Well, Grade::Low, Grade::Low, Grade::High, Grade::High]);
    assert!(found[5..15].iter().all(|grade| *grade == Grade::High), "{found:?}");
    assert_eq!(found[15..], [Grade::Well, Grade::Well]);
}

#[test]
fn it_falls_no_further_than_it_was_calm_for() {
    let values = [&[91.0][..], &[85.0; 11][..], &[70.0; 12][..]].concat();
    let found = grades(&values, &RULES);
    assert_eq!(found[11], Grade::Low);
    assert!(found[11..22].iter().all(|grade| *grade == Grade::Low), "{found:?}");
    assert_eq!(found[22..], [Grade::Well, Grade::Well]);
    // A moment below the low mark is no calm.
    let values = [&[91.0][..], &[85.0; 10][..], &[70.0][..]].concat();
    assert_eq!(grades(&values, &RULES).last(), Some(&Grade::Low));
}

#[test]
fn to_and_fro_about_a_mark_is_one_crossing() {
    let values: Vec<f64> = (0..200).map(|at| if at % 2 == 0 { 79.0 } else { 81.0 }).collect();
    let found = grades(&values, &RULES);
    assert_eq!(found.windows(2).filter(|pair| pair[0] != pair[1]).count(), 1);
}

#[test]
fn what_is_about_to_pass_the_high_mark_counts_as_past_the_low_one() {
    let rising: Vec<f64> = (0..30).map(f64::from).map(|at| 10.0 + 2.0 * at).collect();
    let rules = Rules { horizon_us: 20 * SECOND, ..RULES };
    let found = grades(&rising, &rules);
    // 90 is 20 s away at 50.
    assert_eq!(found.iter().position(|grade| *grade == Grade::Low), Some(20));
    assert!(grades(&rising, &RULES).iter().all(|grade| *grade == Grade::Well));
}

#[test]
fn errors_are_counted_over_an_hour_and_a_reboot_is_no_error() {
    let count = |value: f64| Sample { kind: Kind::Counter, marks: Marks::new(5.0, 50.0), ..sample(value) };
    let mut watch = Watch::new(&count(0.0));
    let mut take = |minute: u64, value: f64| {
        watch.take(minute * 60 * SECOND, count(value), (Marks::new(5.0, 50.0), true), &RULES);
        (watch.grade(), watch.last().value)
    };
    // What was there before is nobody's fault.
    assert_eq!(take(1, 1000.0), (Grade::Well, Some(0.0)));
    assert_eq!(take(2, 1004.0), (Grade::Well, Some(4.0)));
    assert_eq!(take(3, 1006.0), (Grade::Low, Some(6.0)));
    assert_eq!(take(4, 1.0).1, Some(1.0));
    assert_eq!(take(5, 1.0).0, Grade::Well);
    assert_eq!(take(80, 1.0).1, Some(0.0));
}

#[test]
fn what_a_sensor_says_of_itself_counts_and_an_operator_has_the_last_word() {
    let told = |told| Sample { sensor: "plugin:nhc".into(), told, text: "check_fs failed".into(), ..Sample::default() };
    let mut watch = Watch::new(&told(Grade::Well));
    watch.take(SECOND, told(Grade::High), (None, true), &RULES);
    assert_eq!((watch.grade(), watch.reason(SECOND)), (Grade::High, "plugin:nhc: check_fs failed".into()));
    let mut ignored = Watch::new(&told(Grade::Well));
    ignored.take(SECOND, told(Grade::High), (None, false), &RULES);
    assert_eq!(ignored.grade(), Grade::Well);
}

#[test]
fn a_plug_in_s_prediction_takes_the_place_of_the_line_for_a_while() {
    let mut watch = Watch::new(&sample(0.0));
    for at in 1..=5 {
        watch.take(at * SECOND, sample(70.0 + 2.0 * at as f64), (marks(), true), &RULES);
    }
    assert_eq!(watch.left_us(5 * SECOND), Some(5 * SECOND));
    assert_eq!(watch.left_us(7 * SECOND), Some(3 * SECOND));
    assert_eq!(watch.reason(5 * SECOND), "hwmon:cpu is 80 °C, low mark 80; past 90 in about 5 s");
    watch.predict(5 * SECOND, Some(30 * SECOND));
    assert_eq!(watch.left_us(10 * SECOND), Some(25 * SECOND));
    watch.predict(10 * SECOND, None);
    assert_eq!(watch.left_us(10 * SECOND), None);
    // Nobody has said anything for long: the line counts again.
    assert!(watch.left_us(80 * SECOND).is_some());
}

proptest! {
    /// Whatever comes: the grade is never better than what the last value has reached, and it gets better no sooner than after the calm.
    #[test]
    fn grades_are_sound(values in proptest::collection::vec(prop_oneof![0.0..120.0f64, Just(f64::NAN), 60.0..100.0f64], 1..200)) {
        let mut watch = Watch::new(&sample(0.0));
        let (mut before, mut worst_for) = (Grade::Well, 0u64);
        for (at, value) in (1..).zip(values) {
            watch.take(at * SECOND, sample(value), (marks(), true), &RULES);
            let reached = if value.is_finite() { Marks::new(80.0, 90.0).map_or(Grade::Well, |marks| marks.reached(value)) } else { Grade::Well };
            prop_assert!(watch.grade() >= reached);
            if watch.grade() < before {
                prop_assert!(worst_for >= 10, "it got better after {worst_for} s");
            }
            worst_for = if watch.grade() == before { worst_for + 1 } else { 0 };
            before = watch.grade();
        }
    }
}
