//! Which files get a second copy in time: those of jobs that run, or will start soon.
//!
//! ```text
//! queue:    │ running │ running ║ 1st │ 2nd │ 3rd │ 4th │ 5th │ …        in the order in which the batch system starts them
//!                               ╰── window ──╯        ╰ asks for few nodes: may be let in between at any time
//! ```
//! The window is the smallest number of waiting jobs that together ask for more nodes than are in use now, and for more than a share of all nodes: when what runs is
//! over, they start. Jobs that ask for few nodes are in it wherever they stand, since batch systems let these fill gaps. (Temporal replication, as in
//! chapter 8 of C. Wang's dissertation.) Files of other jobs have no second copy, so all of them take little room.

use super::Id;
use std::collections::HashMap;

/// A job, as the batch system tells of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// What the batch system calls it.
    pub name: String,
    /// Nodes that it asks for, or has.
    pub nodes: u64,
    /// It runs.
    pub runs: bool,
    /// What it reads: `NAME:[PATH]` in data spaces.
    pub reads: Vec<String>,
    /// It may read more: its script is not understood.
    pub is_unsure: bool,
}

/// How far ahead of its start a job's data is copied.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Rules {
    /// The window has more than this share of all nodes, from 0 to 1.
    pub ahead: f64,
    /// A job that asks for at most this share of all nodes is in the window wherever it stands, from 0 to 1.
    pub small: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { ahead: 0.5, small: 0.05 }
    }
}

/// The jobs whose data is to be in two copies, by their places in the list, the most urgent first: those that run, those of the window, small ones. `jobs` are in the
/// order in which they are to start; `nodes` is how many there are at all.
#[must_use]
pub fn urgent(jobs: &[Job], nodes: u64, rules: &Rules) -> Vec<usize> {
    let used = jobs.iter().filter(|job| job.runs).fold(0_u64, |sum, job| sum.saturating_add(job.nodes));
    // In nodes, of which there are fewer than 2^53.
    let enough = (used as f64).max(rules.ahead * nodes as f64);
    let mut found: Vec<usize> = (0..jobs.len()).filter(|at| jobs[*at].runs).collect();
    let (mut asked, mut small) = (0_u64, Vec::new());
    for (at, job) in jobs.iter().enumerate().filter(|(_, job)| !job.runs) {
        // The one with which it is enough is the last one of the window.
        if asked as f64 <= enough {
            found.push(at);
        } else if job.nodes as f64 <= rules.small * nodes as f64 {
            small.push(at);
        }
        asked = asked.saturating_add(job.nodes);
    }
    found.extend(small);
    found
}

/// A file of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which one.
    pub file: Id,
    /// Bytes of a second copy.
    pub bytes: u64,
    /// Bytes of it that are there.
    pub copied: u64,
    /// Place of the most urgent job that reads it, in the order of [`urgent`]; `None`: no such job does.
    pub urgency: Option<usize>,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaPlan {
    /// These lose their second copies, before others get some.
    pub remove: Vec<Id>,
    /// These have them or get them, the most urgent first.
    pub keep: Vec<Id>,
    /// These should have some, and there is no room.
    pub left_out: Vec<Id>,
}

/// What a removal rests on: without it second copies stay that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sure {
    /// All that urgent jobs read is known.
    pub of_reads: bool,
    /// All targets have said how much room they have.
    pub of_room: bool,
}

/// Which files have second copies, if these together may have so many bytes: the most urgent ones. The first one that does not fit is left out, and so are all that are less
/// urgent. Of those that are equally urgent the ones that have copies come first, then short ones. Nothing is removed for a reason that is not sure.
#[must_use]
pub fn plan(files: &[Candidate], room: u64, sure: Sure) -> ReplicaPlan {
    let mut plan = ReplicaPlan::default();
    let mut wanted: Vec<(usize, &Candidate)> = files.iter().filter_map(|file| Some((file.urgency?, file))).collect();
    wanted.sort_by_key(|(urgency, file)| (*urgency, std::cmp::Reverse(file.copied), file.bytes, file.file));
    plan.remove.extend(files.iter().filter(|file| sure.of_reads && file.urgency.is_none() && file.copied > 0).map(|file| file.file));
    let (mut bytes, mut is_full) = (0_u64, false);
    for (_, file) in wanted {
        bytes = bytes.saturating_add(file.bytes);
        is_full |= bytes > room;
        if !is_full {
            plan.keep.push(file.file);
            continue;
        }
        match (file.copied > 0, sure.of_reads && sure.of_room) {
            (true, false) => continue,
            (true, true) => plan.remove.push(file.file),
            (false, _) => {}
        }
        plan.left_out.push(file.file);
    }
    plan
}

/// For each of these places in a space, `PATH`s without its name, the most urgent job that reads it: by its place in `order`, which [`urgent`] gave.
#[must_use]
pub fn places(jobs: &[Job], order: &[usize], space: &str) -> HashMap<String, usize> {
    let mut places = HashMap::new();
    for (urgency, at) in order.iter().enumerate() {
        let reads = jobs.get(*at).into_iter().flat_map(|job| &job.reads);
        for (_, path) in reads.filter_map(|place| super::split(place)).filter(|(name, _)| *name == space) {
            places.entry(path.to_owned()).or_insert(urgency);
        }
    }
    places
}

/// True of a path that is at a place or below it.
#[must_use]
pub fn is_below(path: &str, place: &str) -> bool {
    place.is_empty() || path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SURE: Sure = Sure { of_reads: true, of_room: true };

    fn job(nodes: u64, runs: bool) -> Job {
        Job { name: String::new(), nodes, runs, reads: Vec::new(), is_unsure: false }
    }

    #[test]
    fn the_window_reaches_beyond_what_runs_and_small_jobs_are_in_it_anyway() {
        let jobs = [job(60, true), job(30, false), job(30, false), job(1, false), job(50, false), job(4, false), job(5, false)];
        let rules = Rules { ahead: 0.5, small: 0.04 };
        // 30 + 30 is not more than 60; with the next one it is.
        assert_eq!(urgent(&jobs, 100, &rules), [0, 1, 2, 3, 5]);
        assert_eq!(urgent(&jobs, 100, &Rules { ahead: 0.9, small: 0.0 }), [0, 1, 2, 3, 4]);
        assert_eq!(urgent(&jobs[1..], 100, &Rules { ahead: 0.0, small: 0.0 }), [0]);
        assert_eq!(urgent(&[], 100, &rules), [0_usize; 0]);
    }

    #[test]
    fn the_least_urgent_is_left_out_and_what_nobody_needs_goes() {
        let file = |id: u8, bytes, copied, urgency| Candidate { file: [id; 16], bytes, copied, urgency };
        let files = [file(1, 10, 10, None), file(2, 10, 0, Some(1)), file(3, 10, 10, Some(2)), file(4, 5, 0, Some(0)), file(5, 1, 0, None)];
        let ids = |ids: &[u8]| ids.iter().map(|id| [*id; 16]).collect::<Vec<Id>>();
        let plan = |room| super::plan(&files, room, SURE);
        assert_eq!(plan(100), ReplicaPlan { remove: ids(&[1]), keep: ids(&[4, 2, 3]), left_out: ids(&[]) });
        assert_eq!(plan(24), ReplicaPlan { remove: ids(&[1, 3]), keep: ids(&[4, 2]), left_out: ids(&[3]) });
        assert_eq!(plan(0), ReplicaPlan { remove: ids(&[1, 3]), keep: ids(&[]), left_out: ids(&[4, 2, 3]) });
        // A target says nothing, or a script is not understood.
        let unsure = |of_reads, of_room| super::plan(&files, 24, Sure { of_reads, of_room });
        assert_eq!(unsure(true, false), ReplicaPlan { remove: ids(&[1]), keep: ids(&[4, 2]), left_out: ids(&[]) });
        assert_eq!(unsure(false, true), ReplicaPlan { remove: ids(&[]), keep: ids(&[4, 2]), left_out: ids(&[]) });
    }

    #[test]
    fn places_are_those_of_the_space_and_of_the_most_urgent_job() {
        let reads = |places: &[&str]| Job { reads: places.iter().map(|place| (*place).to_owned()).collect(), ..job(1, false) };
        let jobs = [reads(&["in:a", "other:b"]), reads(&["in:a/", "in:", "nothing"])];
        let found = places(&jobs, &[1, 0], "in");
        assert_eq!(found, HashMap::from([("a".to_owned(), 0), (String::new(), 0)]));
        assert_eq!(places(&jobs, &[0], "in"), HashMap::from([("a".to_owned(), 0)]));
        assert!(is_below("a/b", "a") && is_below("a", "a") && is_below("a", "") && !is_below("ab", "a") && !is_below("a", "a/b"));
    }

    proptest! {
        /// By the words of the rule: the smallest window whose jobs ask for more than both bounds, or all jobs if there is none.
        #[test]
        fn the_window_is_the_one_that_trying_all_finds(
            asked in prop::collection::vec((0_u64..40, any::<bool>()), 0..14), nodes in 1_u64..120, ahead in 0.0_f64..1.2, small in 0.0_f64..0.3,
        ) {
            let jobs: Vec<Job> = asked.iter().map(|(nodes, runs)| job(*nodes, *runs)).collect();
            let used: u64 = jobs.iter().filter(|job| job.runs).map(|job| job.nodes).sum();
            let waiting: Vec<usize> = (0..jobs.len()).filter(|at| !jobs[*at].runs).collect();
            let enough = |length: usize| {
                let sum: u64 = waiting[..length].iter().map(|at| jobs[*at].nodes).sum();
                sum > used && sum as f64 > ahead * nodes as f64
            };
            let window = (0..=waiting.len()).find(|length| enough(*length)).unwrap_or(waiting.len());
            let oracle: BTreeSet<usize> = (0..jobs.len())
                .filter(|at| jobs[*at].runs || waiting[..window].contains(at) || jobs[*at].nodes as f64 <= small * nodes as f64)
                .collect();
            let found = urgent(&jobs, nodes, &Rules { ahead, small });
            prop_assert_eq!(found.len(), oracle.len());
            prop_assert_eq!(found.iter().copied().collect::<BTreeSet<usize>>(), oracle);
            let running = jobs.iter().filter(|job| job.runs).count();
            prop_assert!(found[..running].iter().all(|at| jobs[*at].runs));
            prop_assert_eq!(&found[running..running + window], &waiting[..window]);
        }

        #[test]
        fn a_plan_keeps_the_longest_most_urgent_part_that_has_room(
            files in prop::collection::vec((0_u64..50, any::<bool>(), prop::option::of(0_usize..6)), 0..12), room in 0_u64..200,
        ) {
            let files: Vec<Candidate> = (0_u8..)
                .zip(&files)
                .map(|(id, (bytes, copied, urgency))| Candidate { file: [id; 16], bytes: *bytes, copied: if *copied { *bytes } else { 0 }, urgency: *urgency })
                .collect();
            let plan = plan(&files, room, SURE);
            let of = |id: &Id| files.iter().find(|file| file.file == *id).unwrap();
            let bytes: u64 = plan.keep.iter().map(|id| of(id).bytes).sum();
            prop_assert!(bytes <= room);
            if let Some(next) = plan.left_out.first() {
                prop_assert!(bytes + of(next).bytes > room);
            }
            let order: Vec<usize> = plan.keep.iter().chain(&plan.left_out).map(|id| of(id).urgency.unwrap()).collect();
            prop_assert!(order.is_sorted());
            prop_assert_eq!(order.len(), files.iter().filter(|file| file.urgency.is_some()).count());
            for file in &files {
                let goes = file.copied > 0 && !plan.keep.contains(&file.file);
                prop_assert_eq!(plan.remove.contains(&file.file), goes);
            }
        }
    }
}
