//! Slurm. What it puts into the environment of a job is in sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; states of nodes are in sinfo(1), "NODE
//! STATE CODES".
//!
//! Signals: at a preemption, at the time limit, and when `--signal` says so, Slurm sends one to the tasks of job steps, not to the batch
//! script (scancel(1), sbatch(1)). So it is the step with the daemons that hears of it.

use crate::command::output;
use crate::{BatchError, BatchNode, BatchRun, BatchSystem};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// As the setting names it.
pub const NAME: &str = "slurm";
/// As people know it.
pub(crate) const TITLE: &str = "Slurm";

/// What of Slurm's own variables its commands keep: which job it is, and where the configuration and the controllers are. srun(1) has some eighty "INPUT
/// ENVIRONMENT VARIABLES", meant for the user's own steps: they would bind the daemons to a part of the node, label or divert what they report, end them at
/// a step's limit. What comes with a later release is left out, too.
const KEPT_VARIABLES: [&str; 11] = [
    "SLURM_CLUSTERS",
    "SLURM_CLUSTER_NAME",
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_HET_SIZE",
    "SLURM_JOBID",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JWT",
    "SLURM_WORKING_CLUSTER",
];

/// Beginnings of names that Slurm's commands take options from.
const INPUT_PREFIXES: [&str; 4] = ["SLURM_", "SRUN_", "SINFO_", "SQUEUE_"];

/// Whether one of Slurm's commands would take an option from a variable of this name.
fn is_input(name: &str) -> bool {
    INPUT_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !KEPT_VARIABLES.contains(&name)
}

/// Has a command of Slurm's do what its arguments say, whatever options its user has in the environment.
pub(crate) fn without_options(command: &mut Command, names: impl Iterator<Item = OsString>) {
    for name in names.filter(|name| name.to_str().is_some_and(is_input)) {
        command.env_remove(name);
    }
}

/// Names of this process's variables.
pub(crate) fn own_names() -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name)
}

/// A job of Slurm's, seen from within.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slurm {
    job: String,
    /// The array that it is a task of, and which.
    array: Option<(String, String)>,
    restarts: u32,
    list: String,
    tasks: Option<u32>,
    /// Seconds since 1970.
    ends_at: Option<u64>,
    /// Per node, in the list's order.
    slots: Vec<u32>,
}

impl Slurm {
    /// The job that this environment is of; `None`: it is of none.
    ///
    /// # Errors
    /// [`BatchError::InTask`], [`BatchError::Unexpected`].
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, BatchError> {
        let (Some(job), Some(list)) = (variable("SLURM_JOB_ID"), variable("SLURM_JOB_NODELIST")) else { return Ok(None) };
        let number = |name: &str| variable(name).and_then(|text| text.parse::<u32>().ok());
        if let Some(tasks) = number("SLURM_STEP_NUM_TASKS").filter(|&tasks| tasks > 1 && variable("SLURM_STEP_ID").is_some()) {
            return Err(BatchError::InTask { tasks });
        }
        let slots = match variable("SLURM_TASKS_PER_NODE").or_else(|| variable("SLURM_JOB_CPUS_PER_NODE")) {
            Some(text) => counts(&text)?,
            None => Vec::new(),
        };
        let ends_at = variable("SLURM_JOB_END_TIME").and_then(|text| text.parse().ok());
        let array = variable("SLURM_ARRAY_JOB_ID").zip(variable("SLURM_ARRAY_TASK_ID"));
        Ok(Some(Self {
            job,
            array,
            restarts: number("SLURM_RESTART_COUNT").unwrap_or(0),
            list,
            tasks: number("SLURM_NTASKS"),
            ends_at,
            slots,
        }))
    }

    /// What squeue and scontrol know it by. One task of an array has the array's number, which alone would mean all of them (scontrol(1), `requeue`).
    fn listed(&self) -> String {
        self.array.as_ref().map_or_else(|| self.job.clone(), |(array, task)| format!("{array}_{task}"))
    }

    /// What sinfo says of the job's nodes.
    fn told(&self) -> Result<BTreeMap<String, (String, String, String)>, BatchError> {
        // Of hidden partitions, too, which an allocation may be of.
        Ok(states(&run("sinfo", &["-h", "-a", "-N", "-n", &self.list, "-o", "%N|%o|%T|%E"])?))
    }
}

/// Runs one of Slurm's commands; what it printed.
pub(crate) fn run(name: &str, arguments: &[&str]) -> Result<String, BatchError> {
    let mut command = Command::new(name);
    command.args(arguments);
    without_options(&mut command, own_names());
    output(TITLE, command)
}

/// Reads counts per node: `2(x3),1` is 2, 2, 2, 1 (sbatch(1), `SLURM_TASKS_PER_NODE`).
fn counts(text: &str) -> Result<Vec<u32>, BatchError> {
    let unexpected = || BatchError::Unexpected { what: "the number of tasks per node", text: text.to_owned() };
    let mut all = Vec::new();
    for item in text.split(',') {
        let (count, times) = match item.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').ok_or_else(unexpected)?),
            None => (item, "1"),
        };
        let (count, times): (u32, usize) = (count.parse().map_err(|_| unexpected())?, times.parse().map_err(|_| unexpected())?);
        if all.len() + times > 1_000_000 {
            return Err(unexpected());
        }
        all.extend(std::iter::repeat_n(count, times));
    }
    Ok(all)
}

/// Reads what `sinfo -N -o '%N|%o|%T|%E'` prints: per node its address, state and reason. A node stands there once for each partition.
fn states(text: &str) -> BTreeMap<String, (String, String, String)> {
    let line = |line: &str| {
        let mut fields = line.splitn(4, '|').map(|field| field.trim().to_owned());
        Some((fields.next()?, (fields.next()?, fields.next()?, fields.next()?)))
    };
    text.lines().filter_map(line).collect()
}

/// Reads the time that a job has left, as `squeue -o %L` prints it: `1-02:03:04`, `02:03:04` or `03:04`; a word where there is no limit.
fn time_left_s(text: &str) -> Option<u64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (days.parse::<u64>().ok()?, rest),
        None => (0, text),
    };
    let parts: Vec<u64> = rest.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let seconds = parts.iter().try_fold(0u64, |sum, part| sum.checked_mul(60)?.checked_add(*part))?;
    days.checked_mul(86400)?.checked_add(seconds)
}

/// Reads ends of jobs, as `squeue -o %e` prints them in seconds since 1970, or a word: the number of an array is also that of one of its jobs, and all of them are told.
fn earliest(text: &str) -> Option<u64> {
    text.split_whitespace().filter_map(|end| end.parse().ok()).min()
}

/// Whether a node of this state is to be emptied. A suffix says more: `*` does not respond, `~` is powered off, …
fn drains(state: &str) -> bool {
    let state = state.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
    matches!(state, "draining" | "drained" | "drain" | "drng" | "failing" | "fail" | "failg")
}

impl BatchSystem for Slurm {
    fn name(&self) -> &'static str {
        TITLE
    }

    fn run(&self) -> BatchRun {
        BatchRun { job: self.job.clone(), restarts: self.restarts }
    }

    fn variables(&self) -> BTreeMap<String, String> {
        let slots: Vec<String> = self.slots.iter().map(u32::to_string).collect();
        let slots = (!slots.is_empty()).then(|| slots.join(","));
        let all = [
            ("SLURM_JOB_ID", Some(self.job.clone())),
            ("SLURM_ARRAY_JOB_ID", self.array.as_ref().map(|(array, _)| array.clone())),
            ("SLURM_ARRAY_TASK_ID", self.array.as_ref().map(|(_, task)| task.clone())),
            ("SLURM_JOB_NODELIST", Some(self.list.clone())),
            ("SLURM_RESTART_COUNT", Some(self.restarts.to_string())),
            ("SLURM_NTASKS", self.tasks.map(|tasks| tasks.to_string())),
            ("SLURM_JOB_END_TIME", self.ends_at.map(|end| end.to_string())),
            ("SLURM_TASKS_PER_NODE", slots),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    fn ends_at(&self) -> Result<Option<u64>, BatchError> {
        if self.ends_at.is_some() {
            return Ok(self.ends_at);
        }
        // Releases before 23.02 do not say it in the environment.
        let left = run("squeue", &["-h", "-a", "-j", &self.listed(), "-o", "%L"])?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Ok(time_left_s(left.trim()).map(|left| now + left))
    }

    fn ends_at_by_now(&self) -> Result<Option<u64>, BatchError> {
        // Neither the environment nor %L, which is reckoned from the time limit, knows of a preemption's grace time.
        let mut command = Command::new("squeue");
        command.args(["-h", "-a", "-j", &self.listed(), "-o", "%e"]);
        without_options(&mut command, own_names());
        command.env("SLURM_TIME_FORMAT", "%s");
        Ok(earliest(&output(TITLE, command)?))
    }

    fn tasks(&self) -> Option<u32> {
        self.tasks
    }

    fn nodes(&self) -> Result<Vec<BatchNode>, BatchError> {
        let names = run("scontrol", &["show", "hostnames", &self.list])?;
        let told = self.told()?;
        let names: Vec<&str> = names.split_whitespace().collect();
        if names.is_empty() {
            return Err(BatchError::Unexpected { what: "the list of the job's nodes", text: self.list.clone() });
        }
        for name in names.iter().filter(|name| !told.contains_key(**name)) {
            tracing::warn!(
                name,
                "sinfo does not tell of this node of the job: it is reached by its name, and nobody hears if it is drained"
            );
        }
        let slots = |at: usize| self.slots.get(at).copied().unwrap_or(1).max(1);
        let node = |(at, name): (usize, &&str)| BatchNode {
            name: (*name).to_owned(),
            address: told.get(*name).map(|(address, ..)| address.clone()).filter(|text| !text.is_empty()).unwrap_or((*name).to_owned()),
            slots: slots(at),
        };
        Ok(names.iter().enumerate().map(node).collect())
    }

    fn lost(&self, nodes: &[BatchNode]) -> Result<BTreeSet<String>, BatchError> {
        // The environment of a batch script has the nodes that the job began with.
        let now = run("squeue", &["-h", "-a", "-j", &self.listed(), "-o", "%N"])?;
        let names = match now.trim() {
            "" => return Ok(BTreeSet::new()),
            now => run("scontrol", &["show", "hostnames", now])?,
        };
        let names: BTreeSet<&str> = names.split_whitespace().collect();
        Ok(nodes.iter().map(|node| &node.name).filter(|name| !names.contains(name.as_str())).cloned().collect())
    }

    fn launcher(&self, nodes: &[BatchNode], program: &Path, arguments: &[&str]) -> Command {
        let count = nodes.len();
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let mut command = Command::new("srun");
        command
            .arg(format!("--jobid={}", self.job))
            .args([format!("--nodes={count}"), format!("--ntasks={count}"), format!("--nodelist={}", names.join(","))])
            // Beside the user's own steps, on whole nodes; the loss of a node or a daemon ends none of the others.
            .args(["--ntasks-per-node=1", "--overlap", "--mem=0", "--cpu-bind=none", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"])
            .args(["--mpi=none", "--job-name=mendd", "--chdir=/", "--quiet", "--unbuffered"])
            // Daemons have this environment whatever the script exports to steps. All are given what this process says, and their reports come here.
            .args(["--export=ALL", "--input=all", "--output=all", "--error=all"])
            // Slurm's own name of the node, which may be another than the host's.
            .args(["sh", "-c", "node=$SLURMD_NODENAME; exec \"$@\" --name \"${node:-$(hostname)}\"", "sh"])
            .arg(program)
            .args(arguments);
        without_options(&mut command, own_names());
        command
    }

    fn draining(&self, nodes: &[BatchNode]) -> Result<BTreeMap<String, String>, BatchError> {
        let told = self.told()?;
        let ours = |name: &String| nodes.iter().any(|node| node.name == *name);
        Ok(told
            .into_iter()
            .filter(|(name, (_, state, _))| ours(name) && drains(state))
            .map(|(name, (.., reason))| (name, reason))
            .collect())
    }

    fn is_preempted(&self) -> Result<bool, BatchError> {
        let told = run("scontrol", &["--all", "show", "job", &self.listed()])?;
        let field = |name: &str| told.split_whitespace().find_map(|word| word.strip_prefix(name)).unwrap_or_default().to_owned();
        let time = field("PreemptTime=");
        Ok(!matches!(time.as_str(), "" | "None" | "N/A" | "Unknown") && field("Requeue=") == "1")
    }

    fn requeue(&self) -> Result<(), BatchError> {
        run("scontrol", &["requeue", &self.listed()]).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Slurm>, BatchError> {
        let all: BTreeMap<String, String> = variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Slurm::of(|name| all.get(name).cloned())
    }

    #[test]
    fn a_job_is_known_by_its_environment() {
        assert_eq!(of(&[("SLURM_CONF", "/etc/slurm.conf")]).unwrap(), None);
        let batch = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NODELIST", "n[1-3]"), ("SLURM_TASKS_PER_NODE", "2(x2),1"), ("SLURM_NTASKS", "5")];
        let found = of(&batch).unwrap().unwrap();
        assert_eq!((found.run().restarts, found.tasks(), found.slots.as_slice()), (0, Some(5), &[2, 2, 1][..]));
        let again = of(&[&batch[..], &[("SLURM_RESTART_COUNT", "2")]].concat()).unwrap().unwrap();
        assert_eq!(again.run(), BatchRun { job: "17".into(), restarts: 2 });
    }

    #[test]
    fn a_task_of_an_array_is_not_taken_for_the_array() {
        let job = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NODELIST", "a")];
        let task = [("SLURM_ARRAY_JOB_ID", "17"), ("SLURM_ARRAY_TASK_ID", "3")];
        assert_eq!(of(&job).unwrap().unwrap().listed(), "17");
        let found = of(&[job, task].concat()).unwrap().unwrap();
        assert_eq!((found.listed().as_str(), found.run().job.as_str()), ("17_3", "17"));
    }

    #[test]
    fn another_process_finds_the_same_job() {
        let all = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_NODELIST", "n[1-3]"), ("SLURM_TASKS_PER_NODE", "2(x2),1"), ("SLURM_NTASKS", "5")];
        let task = [&all[..], &[("SLURM_ARRAY_JOB_ID", "14"), ("SLURM_ARRAY_TASK_ID", "3")]].concat();
        for variables in [&all[..], &all[..2], &task, &[&all[..], &[("SLURM_RESTART_COUNT", "2"), ("SLURM_JOB_END_TIME", "77")]].concat()] {
            let first = of(variables).unwrap().unwrap();
            let told = first.variables();
            assert_eq!(Slurm::of(|name| told.get(name).cloned()).unwrap(), Some(first));
        }
    }

    #[test]
    fn one_of_many_tasks_is_refused_and_an_interactive_step_is_not() {
        let step =
            |tasks| of(&[("SLURM_JOB_ID", "1"), ("SLURM_JOB_NODELIST", "a"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", tasks)]);
        assert!(matches!(step("4"), Err(BatchError::InTask { tasks: 4 })));
        assert!(step("1").unwrap().is_some());
    }

    #[test]
    fn the_time_that_is_left() {
        let all = [("59:12", 3552), ("1:00:05", 3605), ("2-00:00:01", 172_801), ("0:07", 7)];
        for (text, seconds) in all {
            assert_eq!(time_left_s(text), Some(seconds), "{text}");
        }
        for text in ["UNLIMITED", "NOT_SET", "INVALID", "", "7", "1:2:3:4", "-1:00", "1-x"] {
            assert_eq!(time_left_s(text), None, "{text}");
        }
    }

    #[test]
    fn the_end_by_now() {
        for (text, end) in
            [("1700000000\n", Some(1_700_000_000)), ("N/A\n1700000009\n1700000001\n", Some(1_700_000_001)), ("N/A\n", None), ("", None)]
        {
            assert_eq!(earliest(text), end, "{text:?}");
        }
    }

    #[test]
    fn counts_per_node() {
        assert_eq!(counts("2(x3),1").unwrap(), [2, 2, 2, 1]);
        assert_eq!(counts("7").unwrap(), [7]);
        for bad in ["", "2(x", "2(x3", "a", "2(xa)", "1(x99999999999)", "1(x2000000)"] {
            assert!(counts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn states_of_nodes() {
        let told = states("n1|10.0.0.1|draining|fan | loud\nn1|10.0.0.1|draining|fan | loud\nn2|n2|mixed*|none\nnonsense\n");
        assert_eq!(told["n1"], ("10.0.0.1".into(), "draining".into(), "fan | loud".into()));
        assert_eq!(told.len(), 2);
        for (state, wanted) in
            [("draining", true), ("drained*", true), ("draining@", true), ("mixed*", false), ("idle~", false), ("down*", false)]
        {
            assert_eq!(drains(state), wanted, "{state}");
        }
    }

    #[test]
    fn the_step_of_the_daemons_takes_whole_nodes() {
        let slurm = of(&[("SLURM_JOB_ID", "17"), ("SLURM_JOB_NODELIST", "n[1-2]")]).unwrap().unwrap();
        let node = |name: &str| BatchNode { name: name.into(), address: name.into(), slots: 1 };
        let command = slurm.launcher(&[node("n1"), node("n2")], Path::new("/lib/mendd"), &["--under-batch"]);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        for wanted in ["--jobid=17", "--nodes=2", "--ntasks=2", "--nodelist=n1,n2", "--overlap", "--no-kill", "/lib/mendd", "--under-batch"]
        {
            assert!(words.iter().any(|word| word == wanted), "{wanted}: {words:?}");
        }
        for wanted in ["--export=ALL", "--input=all", "--output=all"] {
            assert!(words.iter().any(|word| word == wanted), "{wanted}: {words:?}");
        }
    }

    #[test]
    fn what_the_user_set_for_steps_of_their_own_is_no_option_of_ours() {
        let names = [
            "SLURM_CPUS_PER_TASK",
            "SLURM_EXPORT_ENV",
            "SLURM_LABELIO",
            "SLURM_STDINMODE",
            "SLURM_STDOUTMODE",
            "SLURM_TIMELIMIT",
            "SRUN_EXPORT_ENV",
            "SINFO_PARTITION",
            "SQUEUE_USERS",
        ];
        let kept = ["SLURM_CONF", "SLURM_JOB_ID", "SLURM_JWT", "PATH", "SLURMD_NODENAME"];
        let mut command = Command::new("srun");
        without_options(&mut command, names.into_iter().chain(kept).map(OsString::from));
        let removed: Vec<_> = command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name.to_owned()).collect();
        assert!(names.iter().all(|name| removed.iter().any(|removed| removed == name)), "{removed:?}");
        assert_eq!(removed.len(), names.len());
    }
}
