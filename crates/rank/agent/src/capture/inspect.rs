//! Inspects the process: what stands in the way of saving it. Changes nothing.

use crate::capture::needed_files;
use crate::descriptors::attached::Attached;
use crate::descriptors::node_files::NodeFiles;
use crate::descriptors::{DescriptorError, Descriptors, Open, What, examine_all, map_identity};
use crate::descriptors::{kept_files, unreachable};
use crate::memory::file_fingerprints::FileFingerprints;
use crate::memory::layout::Layout;
use crate::memory::maps;
use crate::memory::maps::{Advice, Area};
use crate::process::{origin, system_v, tasks, timers};
use mend_messages::agent::{Inspection, Obstacle, RING_MEMORY, Tracking};
use mend_messages::needs::NodeNeeds;
use mend_report::with_causes;
use std::os::unix::fs::MetadataExt;

/// What of the process is not the program's.
pub(crate) struct Surroundings {
    /// Descriptors of agent and fabric.
    pub own: Vec<i32>,
    /// Memory of theirs that is not saved.
    pub excluded: Vec<(u64, u64)>,
    /// A network provider has more descriptors and mappings, which nobody can tell from the program's. A save closes it
    /// first; what cannot be saved then is the program's, and the save says so.
    pub provider_open: bool,
    /// A copy of this process that writes an image, as `/proc` names it.
    pub copy: Option<i32>,
    /// The program is the rank's first process.
    pub main_process: bool,
}

/// Looks at the program's descriptors.
pub(crate) fn descriptors(attached: &Attached, surroundings: &Surroundings, errors: &mut Vec<DescriptorError>) -> Descriptors {
    let found = examine_all(attached, &surroundings.own, errors);
    if surroundings.provider_open {
        errors.clear();
    }
    found
}

/// Examines all else, and tells what was found of the `descriptors`, and how many bytes of files are to be copied. That may change a
/// moment later, so a save examines everything again. If it is `wanted`, it lists what a node must have for the rank.
pub(crate) fn inspect(
    surroundings: &Surroundings,
    descriptors: &Descriptors,
    errors: &[DescriptorError],
    advice: &Advice,
    fingerprints: &mut FileFingerprints,
    (fabric_in_use, wanted): (bool, bool),
) -> (Inspection, u64) {
    let (mut loose, mut needs) = (0, Box::<NodeNeeds>::default());
    let Surroundings { ref excluded, provider_open, copy, main_process, .. } = *surroundings;
    let mut obstacles = Vec::new();
    let mut add = |what: String, hint: &str| obstacles.push(Obstacle { what, hint: hint.to_string() });
    if !main_process {
        add(
            "the MPI program is not the rank's first process but a child of a wrapper".to_string(),
            "let the wrapper `exec` the program, or name the program itself on the command line",
        );
    }
    for error in errors {
        add(with_causes(error), error.hint());
    }
    match maps::read() {
        Ok(areas) => {
            if let Some((what, hint)) = shared_with_others(&areas, excluded, copy) {
                add(what, hint);
            }
            match NodeFiles::look(descriptors, &areas) {
                Ok(bytes) => loose = bytes,
                Err(error) => add(with_causes(&error), error.hint()),
            }
            if !provider_open || wanted {
                let locked = descriptors.locked_files();
                let (layout, errors) = Layout::survey(&areas, advice, &mut fingerprints.files(&locked));
                for error in errors.iter().filter(|_| !provider_open) {
                    add(with_causes(error), error.hint());
                }
                fingerprints.tidy();
                if wanted {
                    *needs = NodeNeeds {
                        files: needed_files::files(&layout, descriptors),
                        vdso: mend_kernel::vdso::identity(),
                        ..NodeNeeds::default()
                    };
                }
            }
        }
        Err(error) => add(format!("the address space cannot be read: {error}"), mend_report::proc_hint(&error)),
    }
    if !provider_open && let Some((what, hint)) = open_in_others(descriptors, copy) {
        add(what, hint);
    }
    for (name, hint) in process_obstacles(copy) {
        add(name, hint);
    }
    let found = Inspection {
        obstacles,
        threads: tasks::list().map_or(0, |tasks| tasks.len() as u32),
        image_bytes: resident_bytes(),
        fabric_in_use,
        executable: std::fs::read_link("/proc/self/exe").unwrap_or_default().to_string_lossy().into_owned(),
        written_files: kept_files::written(descriptors),
        tracking: Tracking::default(),
        needs,
    };
    (found, loose)
}

/// Children but for a copy that writes an image, kernel timers, System V objects, a first thread that has ended: what the kernel keeps and nobody can
/// give back.
pub(crate) fn process_obstacles(copy: Option<i32>) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if status.lines().any(|line| line.starts_with("State:") && line.contains('Z')) {
        found.push(("the program's first thread has ended while others go on".to_string(), "let the first thread wait for the others"));
    }
    for task in tasks::list().unwrap_or_default() {
        let children = std::fs::read_to_string(format!("/proc/self/task/{0}/children", task.outer)).unwrap_or_default();
        for child in children.split_whitespace().filter(|child| child.parse().ok() != copy) {
            let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            found.push((format!("child process {child} ({})", name.trim_end()), "wait until the program's children have ended"));
        }
    }
    // First: who changes its user can no longer be looked at, and hears why.
    found.extend(origin::obstacles());
    if let Err(error) = std::fs::File::open("/proc/self/pagemap")
        && error.kind() == std::io::ErrorKind::PermissionDenied
    {
        let hint = "let the program remain dumpable: with PR_SET_DUMPABLE 0 its files in /proc are root's";
        found.push(("this user may not read the process's own memory (/proc/self/pagemap)".to_string(), hint));
    }
    found.extend(unreachable::process());
    found.extend(system_v::obstacles());
    if let Some(what) = timers::obstacle() {
        found.push((what, "use the processor time of the process, or another clock"));
    }
    found
}

/// Shared memory that another process maps too, as far as this user may look: saved alone it would no longer be shared.
pub(crate) fn shared_with_others(areas: &[Area], excluded: &[(u64, u64)], copy: Option<i32>) -> Option<(String, &'static str)> {
    // A ring may have come since the fabric was asked for those that there are.
    let ring = |area: &Area| area.name.strip_prefix("/memfd:").is_some_and(|name| name == RING_MEMORY);
    let ours = |area: &&Area| {
        area.is_shared_memory() && !ring(area) && !excluded.iter().any(|(start, end)| *start <= area.start && *end >= area.end)
    };
    let ours: Vec<&Area> = areas.iter().filter(ours).collect();
    if ours.is_empty() {
        return None;
    }
    let own = std::fs::read_link("/proc/self").ok()?;
    for process in tasks::numbers_in("/proc").ok()? {
        if own.as_os_str() == process.to_string().as_str() || Some(process) == copy {
            continue;
        }
        let theirs = std::fs::read(format!("/proc/{process}/maps")).ok().and_then(|text| maps::parse_all(&text).ok()).unwrap_or_default();
        let common = theirs.iter().filter(|area| area.shared).find_map(|area| ours.iter().find(|our| our.identity == area.identity));
        if let Some(area) = common {
            let name = if area.name.is_empty() { "anonymous memory" } else { &area.name };
            let peer = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            let what = format!("shared memory {name} of this and another process ({process}, {})", peer.trim_end());
            return Some((what, "choose a setting of the MPI library that does not share memory between processes"));
        }
    }
    None
}

/// Files that are memory to an image (in `/dev/shm`, without a name) and that another process has open, too, as far as this user may look: each would have a copy of its
/// own after a restart. Where both only read, that makes no difference.
pub(crate) fn open_in_others(descriptors: &Descriptors, copy: Option<i32>) -> Option<(String, &'static str)> {
    let memory = |open: &Open| {
        if let What::Memory { identity, name, .. } = &open.what { Some((*identity, name.clone(), writes(open.flags))) } else { None }
    };
    // What another virtual machine looks at are counters of this one, which nobody minds.
    let ours: Vec<_> = descriptors.opens.iter().filter_map(memory).filter(|(_, name, _)| !name.starts_with(maps::JVM_COUNTERS)).collect();
    if ours.is_empty() {
        return None;
    }
    let own = std::fs::read_link("/proc/self").ok()?;
    let others = tasks::numbers_in("/proc")
        .ok()?
        .into_iter()
        .filter(|number| own.as_os_str() != number.to_string().as_str() && Some(*number) != copy);
    for process in others {
        for fd in tasks::numbers_in(&format!("/proc/{process}/fd")).unwrap_or_default() {
            let link = format!("/proc/{process}/fd/{fd}");
            // Others' files may be on file systems that hang: only what can be one of ours is looked at.
            let Ok(place) = std::fs::read_link(&link) else { continue };
            let place = place.to_string_lossy();
            if !(place.starts_with("/memfd:") || place.starts_with(maps::NODE_MEMORY) || place.ends_with(" (deleted)")) {
                continue;
            }
            let Ok(found) = std::fs::metadata(&link) else { continue };
            let identity = map_identity((found.dev(), found.ino()));
            let Some((_, name, written)) = ours.iter().find(|(our, ..)| *our == identity) else { continue };
            if *written || writes(flags_of(process, fd)) {
                let peer = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
                let what = format!(
                    "file {name} without a lasting name, which this and another process ({process}, {}) have open",
                    peer.trim_end()
                );
                return Some((what, "let processes share a file that has a name on a disk, or save when one of them has closed it"));
            }
        }
    }
    None
}

fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// How another process has a file open, as fcntl(F_GETFL) tells; to be written to if that is not told.
fn flags_of(process: i32, fd: i32) -> i32 {
    let text = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{fd}")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(libc::O_RDWR)
}

/// Private memory in use; what a full image holds, but for zero pages.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Vec<u64> = statm.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match pages[..] {
        [_, resident, shared, ..] => resident.saturating_sub(shared) * 4096,
        _ => 0,
    }
}
