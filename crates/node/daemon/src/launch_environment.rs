//! The environment of a rank's program: the user's, plus what makes it a rank.

use crate::program::ProgramError;
use mend_messages::daemon::JobIntroduction;
use mend_messages::job::Rank;
use mend_settings::{CHANNELS, OFI_PROVIDER, PID_NAMESPACE, Setting};
use std::path::Path;

/// Number of the PMI socket in a rank.
pub const PMI_FD: i32 = 3;

/// A rank in its world.
#[derive(Clone, Copy, Debug)]
pub struct WorldPlace {
    /// Its rank there.
    pub rank: Rank,
    /// Number of ranks there.
    pub size: u32,
    /// The world was spawned.
    pub spawned: bool,
}

/// What is particular to one rank.
#[derive(Clone, Copy, Debug)]
pub struct RankIdentity<'a> {
    /// The rank that this is about.
    pub rank: Rank,
    /// Of how many, of all worlds.
    pub size: u32,
    /// Its place in its world.
    pub world: WorldPlace,
    /// Name of the job.
    pub job: &'a str,
    /// Name of the abstract socket on which the daemon waits for agents, without the leading NUL.
    pub socket: &'a str,
    /// `libmend-fi.so`.
    pub library: &'a Path,
}

/// The variables of the rank's program. `MEND_RANK_PID` is added by the supervisor, which alone knows it.
///
/// # Errors
/// If the library is at a path that `LD_PRELOAD` cannot express.
pub fn rank_environment(user: &[(String, String)], identity: RankIdentity<'_>) -> Result<Vec<(String, String)>, ProgramError> {
    let unusable = || ProgramError::Unloadable { path: identity.library.to_owned() };
    // ld.so(8): a list separated by colons or spaces, without a way to escape them. FI_PROVIDER_PATH has colons.
    let library = identity.library.to_str().filter(|path| !path.contains([':', ' ', ';'])).ok_or_else(unusable)?;
    let directory = identity.library.parent().and_then(Path::to_str).ok_or_else(unusable)?;
    let preload = match user.iter().find(|(name, _)| name == "LD_PRELOAD") {
        Some((_, others)) if !others.is_empty() => format!("{library}:{others}"),
        _ => library.to_owned(),
    };
    let ours = [
        ("MEND_RANK", identity.rank.to_string()),
        ("MEND_SIZE", identity.size.to_string()),
        ("MEND_JOB", identity.job.to_owned()),
        // The usual notation for an abstract socket (unix(7)).
        ("MEND_SOCKET", format!("@{}", identity.socket)),
        ("LD_PRELOAD", preload),
        ("FI_PROVIDER_PATH", provider_path(directory, user)),
        ("FI_PROVIDER", provider_filter(user)),
        ("MPIR_CVAR_CH4_NETMOD", "ofi".to_owned()),
        // MPICH 5 tells ranks of other worlds that are on one node by its name, which contradicts what PMI says of its own world
        // (PMI_process_mapping): collectives over both would wait for ever. With this it asks for no names.
        ("MPIR_CVAR_NOLOCAL", "1".to_owned()),
        // Intel MPI: no shared memory of its own, this provider whatever the site prefers, and no pinning, since every
        // rank believes to be alone on its node and they would all take the same cores.
        ("I_MPI_FABRICS", "ofi".to_owned()),
        ("I_MPI_OFI_PROVIDER", "mend".to_owned()),
        ("I_MPI_PIN", "off".to_owned()),
        ("PMI_FD", PMI_FD.to_string()),
        ("PMI_RANK", identity.world.rank.to_string()),
        ("PMI_SIZE", identity.world.size.to_string()),
    ];
    // A launcher above us (srun, mpiexec) may have left its own rank in the environment; ours wins. Intel MPI would talk to
    // a batch system through the library that sites name for it.
    let dropped = ["MEND_RANK_PID", "I_MPI_PMI_LIBRARY", "PMI_SPAWNED"];
    let mut env: Vec<(String, String)> =
        user.iter().filter(|(name, _)| !dropped.contains(&name.as_str()) && ours.iter().all(|(our, _)| our != name)).cloned().collect();
    env.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    if identity.world.spawned {
        env.push(("PMI_SPAWNED".to_owned(), "1".to_owned()));
    }
    Ok(env)
}

fn chosen<'a>(user: &'a [(String, String)], setting: &'a Setting) -> &'a str {
    setting.of(user).unwrap_or(setting.default)
}

/// Whether the job's ranks on a node are to be in one PID namespace.
pub fn shares_pid_namespace(job: &JobIntroduction) -> bool {
    job.size > 1 && chosen(&job.program.env, &PID_NAMESPACE) != "rank"
}

fn over_core_provider(user: &[(String, String)]) -> bool {
    chosen(user, &CHANNELS).split(',').any(|word| word.trim() == "ofi")
}

/// The user's directories stay behind ours if a provider in them may be needed under `mend`.
fn provider_path(ours: &str, user: &[(String, String)]) -> String {
    match user.iter().find(|(name, _)| name == "FI_PROVIDER_PATH") {
        Some((_, theirs)) if over_core_provider(user) && !theirs.is_empty() && theirs != ours => format!("{ours}:{theirs}"),
        _ => ours.to_owned(),
    }
}

/// What libfabric shows to the MPI library: `mend` alone. A provider under the `ofi` channel must not be hidden from
/// the layers that libfabric puts over it, and not be seen by the MPI library. A layered name does that (fi_getinfo in
/// libfabric 2.5): its first part is not hidden, and only what bears the whole name, which is nobody, is listed.
fn provider_filter(user: &[(String, String)]) -> String {
    match chosen(user, &OFI_PROVIDER).split(';').next() {
        Some(core) if over_core_provider(user) && !core.is_empty() && !core.contains([',', '^']) => format!("mend,{core};mend"),
        _ => "mend".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(user: &[(&str, &str)], library: &str) -> Result<Vec<(String, String)>, ProgramError> {
        let user: Vec<_> = user.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let world = WorldPlace { rank: 2, size: 4, spawned: false };
        let identity = RankIdentity { rank: 2, size: 4, world, job: "lmp-1", socket: "mend-x", library: Path::new(library) };
        rank_environment(&user, identity)
    }

    fn value<'a>(env: &'a [(String, String)], name: &str) -> Vec<&'a str> {
        env.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }

    #[test]
    fn ours_come_first_or_replace() {
        let env = environment(&[("LD_PRELOAD", "libasan.so"), ("PMI_RANK", "77"), ("HOME", "/h")], "/opt/mend/libmend-fi.so").unwrap();
        assert_eq!(value(&env, "LD_PRELOAD"), ["/opt/mend/libmend-fi.so:libasan.so"]);
        assert_eq!(value(&env, "PMI_RANK"), ["2"]);
        assert_eq!(value(&env, "FI_PROVIDER_PATH"), ["/opt/mend"]);
        assert_eq!(value(&env, "HOME"), ["/h"]);
    }

    #[test]
    fn what_a_site_sets_for_intel_mpi_gives_way() {
        let site = [
            ("I_MPI_PMI_LIBRARY", "/usr/lib/libpmi2.so"),
            ("I_MPI_FABRICS", "shm:ofi"),
            ("I_MPI_OFI_PROVIDER", "psm3"),
            ("I_MPI_DEBUG", "3"),
        ];
        let env = environment(&site, "/opt/mend/libmend-fi.so").unwrap();
        assert_eq!(value(&env, "I_MPI_PMI_LIBRARY"), [""; 0]);
        assert_eq!(value(&env, "I_MPI_FABRICS"), ["ofi"]);
        assert_eq!(value(&env, "I_MPI_OFI_PROVIDER"), ["mend"]);
        assert_eq!(value(&env, "I_MPI_DEBUG"), ["3"]);
    }

    #[test]
    fn a_core_provider_is_found_but_not_offered() {
        let library = "/opt/mend/libmend-fi.so";
        let shown = |user: &[(&str, &str)], name| value(&environment(user, library).unwrap(), name).concat();
        assert_eq!(shown(&[("MEND_OFI_PROVIDER", "cxi")], "FI_PROVIDER"), "mend");
        assert_eq!(shown(&[("MEND_CHANNELS", "shm,ofi")], "FI_PROVIDER"), "mend,tcp;mend");
        let verbs = [("MEND_CHANNELS", "ofi"), ("MEND_OFI_PROVIDER", "verbs;ofi_rxm"), ("FI_PROVIDER_PATH", "/usr/lib/libfabric")];
        assert_eq!(shown(&verbs, "FI_PROVIDER"), "mend,verbs;mend");
        assert_eq!(shown(&verbs, "FI_PROVIDER_PATH"), "/opt/mend:/usr/lib/libfabric");
        assert_eq!(shown(&[("FI_PROVIDER_PATH", "/usr/lib/libfabric")], "FI_PROVIDER_PATH"), "/opt/mend");
    }

    #[test]
    fn paths_that_the_loader_would_split_are_refused() {
        assert!(environment(&[], "/opt/my mend/libmend-fi.so").is_err());
    }
}
