//! `mend data patterns`: which ranks of a job touch the same blocks of a space, and what it would bring to have them on one node.

use super::heat::Heat;
use super::opened;
use super::scan::{Scanner, WINDOWS, fetched, last_windows, placed};
use crate::failure::{FAILED, Failure};
use crate::report;
use mend_data::patterns::Told;
use mend_data::patterns::diagram;
use mend_data::patterns::sharing::{self, Counts, OfOtherJob, RankTouches, Shared, Touched};
use mend_data::space::BLOCK;
use mend_policy::placement::{PlacementRules, Step, plan};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Pairs that are shown.
const MOST_PAIRS: usize = 20;
/// What a move has to be worth for it to be shown. What it costs, nobody knows before it is made.
const RULES: PlacementRules = PlacementRules { least_bytes: BLOCK, least_share: 0.1, most: 32 };

/// What is wanted.
pub struct Wanted {
    /// Of which job.
    pub job: Option<String>,
    /// Blocks of a window.
    pub window: usize,
    /// By the paper's rule.
    pub paper: bool,
    /// Where a picture goes.
    pub svg: Option<PathBuf>,
    /// Print JSON.
    pub json: bool,
}

/// Two ranks, how much they share, and whether they belong together by the rule that was asked for.
type Pair = ((u32, u32), Shared, f64, bool);

/// What is seen of a job.
struct Seen {
    job: String,
    ranks: BTreeMap<u32, RankTouches>,
    pairs: Vec<Pair>,
    heat: Heat,
    /// Names of the nodes, by their numbers in `steps`.
    nodes: Vec<String>,
    /// Ranks, by their numbers in `steps`.
    numbers: Vec<u32>,
    /// Bytes that all nodes fetch.
    fetched: u64,
    steps: Vec<Step>,
    /// Ranks of other jobs that share blocks with ranks of this one.
    others: Vec<OfOtherJob>,
    /// What mounts touched that are no rank's, by node.
    mounts: BTreeMap<String, Counts>,
}

/// Shows which ranks of a job share what in a space, as it is wanted.
pub fn show(name: &str, wanted: &Wanted) -> Result<i32, Failure> {
    let name = name.trim_end_matches(':');
    let client = opened(name)?;
    let told = Scanner::new(vec![(name.to_owned(), client)]).ask(|why| mend_report::tell!("mend data: {why}"));
    let job = job(&told, name, wanted.job.as_deref())?;
    let ranks = sharing::of_job(&told, &job, wanted.window);
    let last = last_windows(&ranks);
    let (nodes, placed) = placed(&ranks, &last);
    let mut slots = vec![0; nodes.len()];
    placed.iter().for_each(|rank| slots[rank.node] += 1);
    let seen = Seen {
        pairs: pairs(&ranks, &last, wanted),
        heat: Heat::of(&ranks),
        numbers: ranks.keys().copied().collect(),
        fetched: fetched(last.values()),
        steps: plan(&placed, &slots, &RULES),
        mounts: sharing::of_mounts(&told),
        others: sharing::of_other_jobs(&told, &job, &last, wanted.window, WINDOWS),
        job,
        ranks,
        nodes,
    };
    if let Some(path) = &wanted.svg {
        let picture = seen.heat.svg(&format!("{name}: job {}", seen.job), |rank| format!("rank {rank} on {}", seen.node_of(rank)));
        std::fs::write(path, picture).map_err(|error| Failure::new(format!("{}: {error}", path.display()), "", FAILED))?;
    }
    if wanted.json {
        seen.print_json()?;
    } else {
        seen.print(wanted.paper);
    }
    Ok(0)
}

/// The job that is meant.
fn job(told: &[Vec<Told>], name: &str, wanted: Option<&str>) -> Result<String, Failure> {
    let jobs = sharing::jobs(told);
    let list = || jobs.keys().cloned().collect::<Vec<_>>().join(", ");
    match (wanted, jobs.len()) {
        (Some(job), _) if jobs.contains_key(job) => Ok(job.to_owned()),
        (Some(job), 0) => Err(Failure::new(
            format!("job {job} has read and written nothing in {name}"),
            "what targets remember goes with their processes",
            FAILED,
        )),
        (Some(job), _) => {
            Err(Failure::new(format!("job {job} has read and written nothing in {name}"), format!("these have: {}", list()), FAILED))
        }
        (None, 1) => Ok(list()),
        (None, 0) => Err(Failure::new(
            format!("no rank has read or written anything in {name}"),
            "ranks of `mend run --data` are seen a second after they read or write; what targets remember goes with their processes",
            FAILED,
        )),
        (None, _) => Err(Failure::bad_value(format!("several jobs have read or written in {name}: {}", list()), "name one with --job")),
    }
}

/// Pairs that share most, first.
fn pairs(ranks: &BTreeMap<u32, RankTouches>, last: &BTreeMap<u32, Touched>, wanted: &Wanted) -> Vec<Pair> {
    let touched: BTreeMap<u32, &Touched> = last.iter().map(|(rank, touched)| (*rank, touched)).collect();
    let mut found: Vec<Pair> = if wanted.paper {
        by_paper(ranks, last, wanted.window)
    } else {
        sharing::pairs(&touched).into_iter().map(|(pair, shared)| (pair, shared, shared.likeness, true)).collect()
    };
    found.sort_by(|one, other| {
        (other.1.bytes, other.2).partial_cmp(&(one.1.bytes, one.2)).unwrap_or(std::cmp::Ordering::Equal).then(one.0.cmp(&other.0))
    });
    found
}

/// By the likeness of their access counting diagrams, all pairs.
fn by_paper(ranks: &BTreeMap<u32, RankTouches>, last: &BTreeMap<u32, Touched>, window: usize) -> Vec<Pair> {
    let shared = |(one, other): (u32, u32)| sharing::shared(&last[&one], &last[&other]);
    let found = diagram::compare(ranks, window);
    found.into_iter().map(|one| (one.ranks, shared(one.ranks), one.likeness, one.alike)).collect()
}

impl Seen {
    /// Where a rank is.
    fn node_of(&self, rank: u32) -> &str {
        self.ranks.get(&rank).map_or("", |rank| rank.node.as_str())
    }

    fn print(&self, paper: bool) {
        let Self { job, ranks, pairs, heat, nodes, .. } = self;
        let touched: u64 = ranks.values().map(|rank| rank.blocks).sum();
        report::line(&format!(
            "job {job}: {} ranks on {} nodes, {touched} blocks read or written; a column is {}",
            ranks.len(),
            nodes.len(),
            report::size(heat.blocks * BLOCK)
        ));
        for (rank, row) in heat.text() {
            report::line(&format!("{rank:>6} {:<12} |{row}|", self.node_of(rank)));
        }
        let on = |rank: u32| format!("{rank} ({})", self.node_of(rank));
        let rows: Vec<Vec<String>> = pairs
            .iter()
            .filter(|(_, shared, likeness, alike)| if paper { *alike } else { shared.bytes > 0 && *likeness > 0.0 })
            .take(MOST_PAIRS)
            .map(|((one, other), shared, likeness, _)| {
                vec![on(*one), on(*other), format!("{likeness:.2}"), report::size(shared.bytes), report::size(shared.passed_on)]
            })
            .collect();
        if rows.is_empty() {
            report::line("no two ranks share anything that not all read");
        } else {
            report::line("");
            report::line(mend_report::table(&["rank", "with", "alike", "both touch", "passed on"], &rows).trim_end());
        }
        self.print_others();
        for (node, counts) in &self.mounts {
            report::line("");
            report::line(&format!(
                "mounts on {node} that are no rank's read {} blocks and wrote {}: for whom is not known",
                counts.read, counts.written
            ));
        }
        self.print_moves();
    }

    fn print_others(&self) {
        if self.others.is_empty() {
            return;
        }
        let row = |one: &OfOtherJob| {
            let (rank, other) = (format!("{} ({})", one.rank, self.node_of(one.rank)), format!("{} ({})", one.other, one.node));
            vec![rank, one.job.clone(), other, format!("{:.2}", one.shared.likeness), report::size(one.shared.bytes)]
        };
        let rows: Vec<Vec<String>> = self.others.iter().take(MOST_PAIRS).map(row).collect();
        report::line("");
        report::line("ranks of other jobs that touch the same; nobody moves for them:");
        report::line(mend_report::table(&["rank", "job", "its rank", "alike", "both touch"], &rows).trim_end());
    }

    fn print_moves(&self) {
        let Self { job, nodes, numbers, fetched, steps, .. } = self;
        report::line("");
        let fetched = report::size(*fetched);
        if steps.is_empty() {
            report::line(&format!("no move would save anything: nodes fetch {fetched} in the last windows"));
            return;
        }
        let saved: u64 = steps.iter().map(|step| step.saves).sum();
        report::line(&format!("these moves would save {} of {fetched} that nodes fetch in the last windows:", report::size(saved)));
        for step in steps {
            let rank = numbers[step.rank];
            let back = step.back.map_or(String::new(), |back| format!(", and rank {} to {}", numbers[back], nodes[step.from]));
            report::line(&format!("  rank {rank} to {}{back}: {}", nodes[step.to], report::size(step.saves)));
        }
        report::line(&format!("`mend migrate {job} RANK --to NODE` makes them"));
        report::line(&format!("MPI messages do not count here; `mend explain {job} --why` tells what they do"));
    }

    fn print_json(&self) -> Result<(), Failure> {
        let Self { job, ranks, pairs, heat, nodes, numbers, fetched, steps, others, mounts } = self;
        let rank = |(rank, touches): (&u32, &RankTouches)| json!({ "rank": rank, "node": touches.node, "blocks": touches.blocks, "heat": heat.rows.get(rank) });
        let pair = |((one, other), shared, likeness, alike): &Pair| json!({ "ranks": [one, other], "likeness": likeness, "alike": alike, "bytes": shared.bytes, "passed_on": shared.passed_on });
        let step = |step: &Step| {
            let (from, to, back) = (&nodes[step.from], &nodes[step.to], step.back.map(|back| numbers[back]));
            json!({ "rank": numbers[step.rank], "from": from, "to": to, "back": back, "saves": step.saves })
        };
        let other = |one: &OfOtherJob| json!({ "rank": one.rank, "job": one.job, "other": one.other, "node": one.node, "likeness": one.shared.likeness, "bytes": one.shared.bytes });
        let others: Vec<_> = others.iter().map(other).collect();
        let mount = |(node, counts): (&String, &Counts)| json!({ "node": node, "read": counts.read, "written": counts.written, "fetched": counts.fetched });
        let mounts: Vec<_> = mounts.iter().map(mount).collect();
        let ranks: Vec<_> = ranks.iter().map(rank).collect();
        let (pairs, moves): (Vec<_>, Vec<_>) = (pairs.iter().map(pair).collect(), steps.iter().map(step).collect());
        report::json(
            &json!({ "job": job, "block": BLOCK, "ranks": ranks, "pairs": pairs, "fetched": fetched, "moves": moves, "other_jobs": others, "mounts": mounts }),
        )
    }
}
