//! The hosts of a start or restart: which are wanted, which are waited for, and where the ranks go.
//!
//! ```text
//! wanted ──► Connect to all at once ──► answered, failed, time … ──► Gathered, in the order in which they were wanted
//!                                          none of them is there: Connect to the others ── none: NobodyLeft
//! ```
//! Invariants: without hosts that the user names, those of the job's last run come first, wherever the checkpoint was taken; only a host
//! that the user names and that gets ranks keeps a job from beginning; nobody waits for a host that was lost longer than for all
//! others, and a moment.

use crate::safeguard::{Kept, Safeguard};
use mend_coordination::placement::{PlacementError, place, replace};
use mend_messages::job::NodeIndex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// For hosts that were lost before, when all others have answered, microseconds.
const LOST_HOST_US: u64 = 500_000;

/// How much a host is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostNeed {
    /// The job does not begin without it.
    Must,
    /// It is left out if it does not answer, and that is said.
    May,
    /// The same, and it was lost before.
    Lost,
}

/// Where a job ran last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// All hosts, spares last.
    pub hosts: Vec<String>,
    /// Those of them that were lost.
    pub lost: Vec<String>,
}

/// What is known of the hosts of a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartHosts {
    /// Those that the user names.
    pub named: Vec<String>,
    /// Those that get no rank at first, besides.
    pub spares: Vec<String>,
    /// Those of the job when the checkpoint was taken.
    pub of_checkpoint: Vec<String>,
    /// The job ran on its own machine alone then.
    pub local: bool,
    /// Its last run, if it is on record.
    pub last: Option<LastRun>,
}

/// Hosts that a job wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedHosts {
    /// In the order in which they become the job's nodes; none: this machine alone.
    pub hosts: Vec<(String, HostNeed)>,
    /// Those to turn to if none of these answers.
    pub others: Vec<String>,
    /// The user's spares are of no use: the job runs on this machine alone.
    pub no_spares: bool,
}

impl WantedHosts {
    /// Those of a new job.
    #[must_use]
    pub fn of_start(hosts: &[String], spares: &[String], kept: Kept) -> Self {
        let spare = if kept.keeps(Safeguard::DeadSparesAreLeftOut) { HostNeed::May } else { HostNeed::Must };
        let hosts = hosts.iter().map(|name| (name.clone(), HostNeed::Must));
        let hosts = hosts.chain(spares.iter().map(|name| (name.clone(), spare))).collect();
        Self { hosts, others: Vec::new(), no_spares: false }
    }

    /// Those of a restart.
    #[must_use]
    pub fn of_restart(known: &RestartHosts, kept: Kept) -> Self {
        let last = known.last.as_ref().filter(|_| kept.keeps(Safeguard::LastRunComesFirst));
        let local = known.local && last.is_none_or(|last| last.hosts == known.of_checkpoint);
        let named = !known.named.is_empty();
        if local && !named {
            return Self { no_spares: !known.spares.is_empty(), ..Self::default() };
        }
        let lost = |name: &String| last.is_some_and(|last| last.lost.contains(name));
        let need = |name: &String| if lost(name) { HostNeed::Lost } else { HostNeed::May };
        let wanted: Vec<(String, HostNeed)> = match named {
            true => known.named.iter().map(|name| (name.clone(), HostNeed::Must)).collect(),
            false => last.map_or(&known.of_checkpoint, |last| &last.hosts).iter().map(|name| (name.clone(), need(name))).collect(),
        };
        let spare = if kept.keeps(Safeguard::DeadSparesAreLeftOut) { HostNeed::May } else { HostNeed::Must };
        // They come last.
        let hosts = wanted.into_iter().filter(|(name, _)| !known.spares.contains(name));
        let hosts = hosts.chain(known.spares.iter().map(|name| (name.clone(), spare))).collect();
        Self { hosts, others: if named { Vec::new() } else { known.of_checkpoint.clone() }, no_spares: false }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GatherAction {
    /// Connect to these hosts. → [`Gathering::answered`] or [`Gathering::failed`] for each, sooner or later
    Connect(Vec<String>),
    /// Say that the job does without this host.
    LeaveOut {
        /// Its name.
        host: String,
        /// It did not fail: it was lost before, and is not waited for.
        lost: bool,
        /// It did not fail: ranks are to leave it, and there are others.
        unfit: bool,
    },
    /// Say that the job uses this host though ranks are to leave it: somebody named it, or there is no other.
    Use(String),
    /// These are there.
    Gathered(Vec<String>),
    /// The job does not begin without this one, which failed.
    Missing(String),
    /// None of these is there.
    NobodyLeft(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Awaited,
    There,
    /// It is there, and ranks are to leave it.
    Unfit,
    Gone,
}

/// Hosts that are being connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathering {
    hosts: Vec<(String, HostNeed, Answer)>,
    others: Vec<String>,
    /// Names that were tried before.
    tried: Vec<String>,
    /// When those that were lost before are waited for no more.
    due_us: Option<u64>,
    over: bool,
    kept: Kept,
}

impl Gathering {
    /// Begins. At least one host is wanted.
    #[must_use]
    pub fn begin(wanted: WantedHosts, now_us: u64, kept: Kept) -> (Self, Vec<GatherAction>) {
        let hosts: Vec<_> = wanted.hosts.into_iter().map(|(name, need)| (name, need, Answer::Awaited)).collect();
        let names = hosts.iter().map(|(name, ..)| name.clone()).collect();
        let mut machine = Self { hosts, others: wanted.others, tried: Vec::new(), due_us: None, over: false, kept };
        let mut actions = vec![GatherAction::Connect(names)];
        machine.advance(now_us, &mut actions);
        (machine, actions)
    }

    /// When [`Gathering::time`] is wanted at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.due_us.filter(|_| !self.over)
    }

    /// A host is there.
    pub fn answered(&mut self, now_us: u64, host: &str) -> Vec<GatherAction> {
        self.hear(now_us, host, Answer::There)
    }

    /// A host is there, and is one that ranks are to leave. It is used if the user has named it for ranks, or if no other is there.
    pub fn answered_unfit(&mut self, now_us: u64, host: &str) -> Vec<GatherAction> {
        let answer = if self.kept.keeps(Safeguard::UnfitHostsAreLeftOut) { Answer::Unfit } else { Answer::There };
        self.hear(now_us, host, answer)
    }

    /// A host is not there.
    pub fn failed(&mut self, now_us: u64, host: &str) -> Vec<GatherAction> {
        self.hear(now_us, host, Answer::Gone)
    }

    fn hear(&mut self, now_us: u64, host: &str, answer: Answer) -> Vec<GatherAction> {
        let mut actions = Vec::new();
        if self.over {
            return actions;
        }
        let Some(known) = self.hosts.iter_mut().find(|(name, _, before)| name == host && *before == Answer::Awaited) else {
            return actions;
        };
        known.2 = answer;
        match (answer, known.1) {
            (Answer::Gone, HostNeed::Must) => {
                self.over = true;
                return vec![GatherAction::Missing(host.to_owned())];
            }
            (Answer::Gone, _) => actions.push(GatherAction::LeaveOut { host: host.to_owned(), lost: false, unfit: false }),
            (Answer::Unfit, HostNeed::Must) => {
                known.2 = Answer::There;
                actions.push(GatherAction::Use(host.to_owned()));
            }
            _ => {}
        }
        self.advance(now_us, &mut actions);
        actions
    }

    /// Time passed.
    pub fn time(&mut self, now_us: u64) -> Vec<GatherAction> {
        let mut actions = Vec::new();
        if self.over || self.due_us.is_none_or(|due| now_us < due) {
            return actions;
        }
        for (host, _, answer) in self.hosts.iter_mut().filter(|(.., answer)| *answer == Answer::Awaited) {
            *answer = Answer::Gone;
            actions.push(GatherAction::LeaveOut { host: host.clone(), lost: true, unfit: false });
        }
        self.advance(now_us, &mut actions);
        actions
    }

    fn advance(&mut self, now_us: u64, actions: &mut Vec<GatherAction>) {
        let awaited = |(_, need, answer): &&(String, HostNeed, Answer)| (*answer == Answer::Awaited).then_some(*need);
        let silent: Vec<HostNeed> = self.hosts.iter().filter_map(|host| awaited(&host)).collect();
        let with = |wanted: Answer| self.hosts.iter().filter(|host| host.2 == wanted).map(|host| host.0.clone()).collect::<Vec<String>>();
        let (there, unfit) = (with(Answer::There), with(Answer::Unfit));
        if !silent.is_empty() {
            let hurry = !(there.is_empty() && unfit.is_empty()) && silent.iter().all(|need| *need == HostNeed::Lost);
            if hurry && self.kept.keeps(Safeguard::LostHostsAreNotAwaited) {
                self.due_us.get_or_insert(now_us.saturating_add(LOST_HOST_US));
            }
            return;
        }
        if !there.is_empty() {
            self.over = true;
            actions.extend(unfit.into_iter().map(|host| GatherAction::LeaveOut { host, lost: false, unfit: true }));
            return actions.push(GatherAction::Gathered(there));
        }
        if !unfit.is_empty() {
            self.over = true;
            actions.extend(unfit.iter().cloned().map(GatherAction::Use));
            return actions.push(GatherAction::Gathered(unfit));
        }
        self.tried.extend(self.hosts.drain(..).map(|(name, ..)| name));
        let others: Vec<String> = std::mem::take(&mut self.others).into_iter().filter(|name| !self.tried.contains(name)).collect();
        if others.is_empty() {
            self.over = true;
            return actions.push(GatherAction::NobodyLeft(self.tried.clone()));
        }
        self.hosts = others.iter().map(|name| (name.clone(), HostNeed::May, Answer::Awaited)).collect();
        actions.push(GatherAction::Connect(others));
    }
}

/// Where the ranks of a restart go: to the host where they lived to the end (`stood`), else to that of the checkpoint (`before`, one per rank), else to
/// the emptiest of the `gathered`. `slots`: ranks that the user wants on each host, if that was said; then these decide. Spares get none, unless nobody
/// else is there.
///
/// # Errors
/// There is nowhere to go.
pub fn restart_places(
    before: &[String],
    stood: &[Option<String>],
    gathered: &[String],
    spares: &[String],
    slots: Option<&[u32]>,
) -> Result<Vec<NodeIndex>, PlacementError> {
    if let Some(slots) = slots {
        return place(before.len() as u32, slots);
    }
    let spares: BTreeSet<&String> = spares.iter().collect();
    let hosts = Some(gathered.iter().filter(|host| !spares.contains(host)).count()).filter(|hosts| *hosts > 0).unwrap_or(gathered.len());
    let same = |host: &String| gathered[..hosts].iter().position(|name| name == host).map(|node| node as NodeIndex);
    let stays = |rank: usize| stood.get(rank).and_then(Option::as_ref).and_then(same);
    let old: Vec<Option<NodeIndex>> = before.iter().enumerate().map(|(rank, host)| stays(rank).or_else(|| same(host))).collect();
    replace(&old, hosts as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn restart(named: &str, of_checkpoint: &str, last: &str, lost: &str) -> WantedHosts {
        let last = Some(LastRun { hosts: names(last), lost: names(lost) });
        let known = RestartHosts { named: names(named), spares: Vec::new(), of_checkpoint: names(of_checkpoint), local: false, last };
        WantedHosts::of_restart(&known, Kept::default())
    }

    #[test]
    fn the_last_run_s_hosts_come_first_and_the_checkpoint_s_when_none_of_them_is_there() {
        let wanted = restart("", "a b", "c d", "c");
        assert_eq!(wanted.hosts, [("c".to_owned(), HostNeed::Lost), ("d".to_owned(), HostNeed::May)]);
        let (mut machine, first) = Gathering::begin(wanted, 0, Kept::default());
        assert_eq!(first, [GatherAction::Connect(names("c d"))]);
        assert_eq!(machine.failed(1, "c"), [GatherAction::LeaveOut { host: "c".into(), lost: false, unfit: false }]);
        let then = machine.failed(2, "d");
        assert_eq!(then, [GatherAction::LeaveOut { host: "d".into(), lost: false, unfit: false }, GatherAction::Connect(names("a b"))]);
        machine.failed(3, "a");
        let last = machine.failed(4, "b");
        assert_eq!(last[1], GatherAction::NobodyLeft(names("c d a b")));
    }

    #[test]
    fn a_lost_host_is_waited_for_a_moment_and_a_named_one_must_be_there() {
        let (mut machine, _) = Gathering::begin(restart("", "a", "a b", "b"), 0, Kept::default());
        assert_eq!((machine.answered(7, "a"), machine.next_deadline()), (vec![], Some(7 + LOST_HOST_US)));
        assert_eq!(machine.time(7), []);
        let over = machine.time(7 + LOST_HOST_US);
        assert_eq!(over, [GatherAction::LeaveOut { host: "b".into(), lost: true, unfit: false }, GatherAction::Gathered(names("a"))]);
        let (mut machine, _) = Gathering::begin(restart("a b", "x", "x", ""), 0, Kept::default());
        machine.answered(1, "b");
        assert_eq!(machine.failed(2, "a"), [GatherAction::Missing("a".into())]);
        assert_eq!(machine.answered(3, "a"), []);
    }

    #[test]
    fn a_host_that_ranks_are_to_leave_is_used_if_it_is_named_or_there_is_no_other() {
        let left_out = GatherAction::LeaveOut { host: "a".into(), lost: false, unfit: true };
        let (mut machine, _) = Gathering::begin(restart("", "a b", "a b", ""), 0, Kept::default());
        assert_eq!(machine.answered_unfit(1, "a"), []);
        assert_eq!(machine.answered(2, "b"), [left_out, GatherAction::Gathered(names("b"))]);
        let (mut machine, _) = Gathering::begin(restart("", "a b", "a b", ""), 0, Kept::default());
        machine.answered_unfit(1, "a");
        let over = machine.failed(2, "b");
        assert_eq!(over[1..], [GatherAction::Use("a".into()), GatherAction::Gathered(names("a"))]);
        let (mut machine, _) = Gathering::begin(restart("a b", "", "", ""), 0, Kept::default());
        assert_eq!(machine.answered_unfit(1, "a"), [GatherAction::Use("a".into())]);
        assert_eq!(machine.answered(2, "b"), [GatherAction::Gathered(names("a b"))]);
    }

    #[test]
    fn ranks_stay_where_they_were_and_spares_get_none() {
        let places = |before, gathered, spares, slots| restart_places(&names(before), &[], &names(gathered), &names(spares), slots);
        assert_eq!(places("a b a", "b a s", "s", None), Ok(vec![1, 0, 1]));
        assert_eq!(places("a b", "b s", "s", None), Ok(vec![0, 0]));
        assert_eq!(places("a b", "s", "s", None), Ok(vec![0, 0]));
        assert_eq!(places("a b", "b a", "", Some(&[1, 1])), Ok(vec![0, 1]));
    }

    #[test]
    fn a_rank_that_moved_since_the_checkpoint_stays_where_it_lives() {
        let stood = [Some("c".to_owned()), None, Some("gone".to_owned())];
        assert_eq!(restart_places(&names("a b b"), &stood, &names("a b c"), &[], None), Ok(vec![2, 1, 1]));
    }
}
