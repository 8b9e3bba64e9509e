//! Where a point in time is drawn, and which points are named on the axis.
//!
//! What lies between two lives of a job is not drawn to scale if it is long: a job that was restarted a day later would be a dot.

use mend_journal::Timeline;

/// A gap between two lives that is longer than this part of what is drawn is cut.
const LONG_GAP: u64 = 12;
/// Of the axis, that a gap takes which was cut.
const CUT_GAP: f64 = 0.03;

/// A stretch of time that is drawn to scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// Since when, microseconds since 1970.
    pub begin: u64,
    /// When it ends, microseconds since 1970.
    pub end: u64,
    /// Where it begins and ends on the axis, from 0 to 1.
    from: f64,
    to: f64,
}

/// An axis of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    stretches: Vec<Stretch>,
}

/// A point on the axis that is named.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Where it is on the axis, from 0 to 1.
    pub place: f64,
    /// The time since the job's beginning, for people.
    pub name: String,
}

impl Scale {
    /// The axis of a timeline.
    pub fn of(timeline: &Timeline) -> Self {
        let end = timeline.end.max(timeline.begin);
        // What is left of a damaged journal may have no beginning of a life at all.
        let first = if timeline.lives.is_empty() { end } else { timeline.begin };
        let mut parts: Vec<(u64, u64)> = vec![(timeline.begin, first)];
        for life in &timeline.lives {
            match parts.last_mut() {
                Some(last) if life.begin <= last.1 => last.1 = last.1.max(life.end),
                _ => parts.push((life.begin, life.end)),
            }
        }
        parts.push((end, end));
        let drawn: u64 = parts.iter().fold(0, |sum, (begin, end)| sum.saturating_add(end - begin));
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (begin, end) in parts {
            match joined.last_mut() {
                Some(last) if begin.saturating_sub(last.1) <= drawn / LONG_GAP => last.1 = last.1.max(end),
                _ => joined.push((begin, end)),
            }
        }
        let cuts = (joined.len() - 1) as f64;
        // However often the job was restarted, lives take at least half of the axis.
        let gap = if cuts > 0.0 { CUT_GAP.min(0.5 / cuts) } else { 0.0 };
        let length = |(begin, end): (u64, u64)| (end - begin) as f64;
        let whole: f64 = joined.iter().copied().map(length).sum::<f64>().max(1.0);
        let mut at = 0.0;
        let mut stretches = Vec::new();
        for part in joined {
            let to = at + length(part) / whole * (1.0 - gap * cuts);
            stretches.push(Stretch { begin: part.0, end: part.1, from: at, to });
            at = to + gap;
        }
        Self { stretches }
    }

    /// Where a point in time is on the axis, from 0 to 1.
    pub fn place(&self, at: u64) -> f64 {
        let after = self.stretches.partition_point(|stretch| stretch.begin <= at);
        let Some(stretch) = after.checked_sub(1).map(|index| self.stretches[index]) else { return 0.0 };
        let length = (stretch.end - stretch.begin).max(1) as f64;
        let place = stretch.from + (at - stretch.begin) as f64 / length * (stretch.to - stretch.from);
        place.min(stretch.to).clamp(0.0, 1.0)
    }

    /// Gaps that are not drawn to scale: from where to where on the axis.
    pub fn cuts(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.stretches.windows(2).map(|pair| (pair[0].to, pair[1].from))
    }

    /// Points to name, no two of them nearer than `apart` (from 0 to 1).
    pub fn ticks(&self, begin: u64, apart: f64) -> Vec<Tick> {
        let drawn: f64 = self.stretches.iter().map(|stretch| (stretch.end - stretch.begin) as f64).sum();
        let step = nice_step(drawn * apart.max(0.01));
        let mut ticks: Vec<Tick> = Vec::new();
        for stretch in &self.stretches {
            let first = stretch.begin.saturating_sub(begin);
            let last = stretch.end.saturating_sub(begin);
            let mut points = vec![first];
            let steps = (first / step + 1..=last / step).take(200);
            points.extend(steps.map(|number| number.saturating_mul(step)));
            for point in points {
                let place = self.place(begin.saturating_add(point));
                if ticks.last().is_none_or(|last| place - last.place >= apart * 0.99) {
                    ticks.push(Tick { place, name: elapsed(point, step) });
                }
            }
        }
        ticks
    }
}

/// A step that reads well, at least that long, microseconds.
fn nice_step(least: f64) -> u64 {
    const SECOND: u64 = 1_000_000;
    const LONG_STEPS_S: [u64; 15] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600];
    let shorter = (0..6).flat_map(|power| [1, 2, 5].map(|digit| digit * 10u64.pow(power)));
    let days = (0..12).flat_map(|power| [1, 2, 5].map(|digit| digit * 10u64.pow(power))).map(|days| days.saturating_mul(86_400 * SECOND));
    let mut steps = shorter.chain(LONG_STEPS_S.map(|seconds| seconds * SECOND)).chain(days);
    steps.find(|step| *step as f64 >= least).unwrap_or(u64::MAX)
}

/// A time since the beginning, as exact as a step of that length needs it.
fn elapsed(us: u64, step: u64) -> String {
    let seconds = us / 1_000_000;
    match (us, step) {
        (0, _) => "0".into(),
        (_, 0..1_000) => format!("{} ms", us as f64 / 1e3),
        (_, 1_000..1_000_000) if us < 1_000_000 => format!("{} ms", us / 1_000),
        (_, 1_000..1_000_000) => format!("{:.3}", us as f64 / 1e6).trim_end_matches('0').trim_end_matches('.').to_owned() + " s",
        _ if seconds < 120 => format!("{seconds} s"),
        _ if seconds < 7_200 && seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ if seconds < 86_400 * 2 => format!("{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60),
        (_, 0..60_000_000) => format!("{} d {}:{:02}:{:02}", seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60),
        _ => format!("{} d {}:{:02}", seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_journal::timeline::Life;

    const SECOND: u64 = 1_000_000;

    fn of(lives: &[(u64, u64)], end: u64) -> Scale {
        let life = |(begin, end): &(u64, u64)| Life { begin: begin * SECOND, end: end * SECOND, from_checkpoint: None, ended: None };
        let lives: Vec<Life> = lives.iter().map(life).collect();
        let begin = lives.first().map_or(0, |life| life.begin);
        Scale::of(&Timeline { begin, end: end * SECOND, lives, ..Timeline::default() })
    }

    fn ticks(scale: &Scale, begin: u64, apart: f64) -> String {
        scale.ticks(begin * SECOND, apart).into_iter().map(|tick| tick.name).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn one_life_is_drawn_to_scale() {
        let scale = of(&[(100, 200)], 200);
        assert_eq!([90, 100, 150, 200, 300].map(|at| scale.place(at * SECOND)), [0.0, 0.0, 0.5, 1.0, 1.0]);
        assert_eq!(ticks(&scale, 100, 0.2), "0, 30 s, 60 s, 90 s");
        assert_eq!(scale.cuts().count(), 0);
    }

    #[test]
    fn a_day_between_two_lives_is_cut() {
        let scale = of(&[(0, 100), (86_400, 86_500)], 86_500);
        assert_eq!(scale.cuts().count(), 1);
        assert!(scale.place(100 * SECOND) > 0.48 && scale.place(86_400 * SECOND) < 0.52);
        assert_eq!(scale.place(50_000 * SECOND), scale.place(100 * SECOND));
        assert_eq!(ticks(&scale, 0, 0.2), "0, 60 s, 24:00:00, 24:01:00");
    }

    #[test]
    fn a_moment_between_two_lives_is_not() {
        assert_eq!(of(&[(0, 100), (105, 200)], 200).cuts().count(), 0);
    }

    #[test]
    fn whatever_the_numbers_are_places_are_on_the_axis() {
        let odd = Timeline { begin: 0, end: u64::MAX, ..Timeline::default() };
        let scale = Scale::of(&odd);
        assert!([0, 1, u64::MAX / 2, u64::MAX].iter().all(|at| (0.0..=1.0).contains(&scale.place(*at))));
        assert!(scale.ticks(0, 0.1).len() < 20);
        let none = Scale::of(&Timeline::default());
        assert_eq!((none.place(5), ticks(&none, 0, 0.1).as_str()), (0.0, "0"));
        let many: Vec<(u64, u64)> = (0..100).map(|life| (life * 10_000, life * 10_000 + 1)).collect();
        let many = of(&many, 1_000_000);
        assert!(many.place(u64::MAX) <= 1.0 && many.place(500_000 * SECOND) > 0.3);
    }

    #[test]
    fn times_are_as_exact_as_they_need_be() {
        let names = [(0, 1), (1_500, 500), (250_000, 50_000), (1_250_000, 50_000), (60_000_000, 30_000_000), (600_000_000, 300_000_000)];
        assert_eq!(names.map(|(us, step)| elapsed(us, step)), ["0", "1.5 ms", "250 ms", "1.25 s", "60 s", "10 min"]);
        assert_eq!(elapsed(7_322_000_000, 3_600_000_000), "2:02:02");
        assert_eq!(elapsed(200_000_000_000, 86_400_000_000), "2 d 7:33");
    }
}
