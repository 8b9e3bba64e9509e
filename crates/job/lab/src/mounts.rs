//! The lab's files: a tmpfs over an existing directory, seen by the lab only.
//!
//! Invariants: every mount is made in a mount namespace of the lab, after it has been cut off from the machine's
//! (`MS_SLAVE`: what the administrator mounts or unmounts outside still arrives, nothing goes the other way).
//! Faults assumed: a kernel or a container that forbids a fresh `/proc` or `/sys`.

use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind, mount_change, move_mount, open_tree,
    unmount,
};

use crate::error::LabError;
use crate::plan::{self, LabPlan};
use crate::protocol::Failure;

/// Directories of the Filesystem Hierarchy Standard that a lab may cover, in order of preference.
const MOUNT_POINTS: [&str; 4] = ["/mnt", "/media", "/srv", "/opt"];

const CLOSED_FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Chooses the directory to cover: one that exists and holds none of `needed`, which must stay visible in the lab.
pub(crate) fn choose_base(needed: &[PathBuf]) -> Result<PathBuf, LabError> {
    let resolve = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let needed: Vec<PathBuf> = needed.iter().map(|path| resolve(path)).collect();
    MOUNT_POINTS
        .iter()
        .map(Path::new)
        // A link would make the same files appear under two names, one of them covered.
        .filter(|place| fs::symlink_metadata(place).is_ok_and(|data| data.is_dir()))
        .find(|place| !needed.iter().any(|path| path.starts_with(place)))
        .map(Path::to_owned)
        .ok_or_else(|| LabError::NoPlace(MOUNT_POINTS.join(", ")))
}

/// Mounts of the whole lab; to be called by its first process, in its new mount and PID namespaces.
pub(crate) fn mount_lab(plan: &LabPlan) -> Result<(), Failure> {
    let base = &plan.base;
    let recursive = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    step("cut the lab's mounts off", mount_change("/", recursive))?;
    mount_proc()?;
    tmpfs(base, c"mode=755")?;
    let make = || -> io::Result<()> {
        let shared = plan::shared(base);
        fs::create_dir(&shared)?;
        // As /tmp, because programs started by root may give up being root.
        fs::set_permissions(&shared, Permissions::from_mode(0o1777))?;
        fs::create_dir(plan::scratch(base))?;
        fs::create_dir(shared.join("log"))?;
        let hosts = plan::hosts_file(base);
        fs::write(&hosts, plan::hosts_text(&plan.nodes))?;
        fs::set_permissions(&hosts, Permissions::from_mode(0o644))
    };
    step("make the lab's directories", make())?;
    if Path::new("/etc/hosts").exists() {
        step("cover /etc/hosts", mount_bind(plan::hosts_file(base), "/etc/hosts"))?;
    }
    step("make the job secret", make_secret(&plan.home))
}

/// Mounts of one node; to be called by its first process, in its new mount, network and PID namespaces.
pub(crate) fn mount_node(base: &Path) -> Result<(), Failure> {
    mount_proc()?;
    tmpfs(&plan::scratch(base), c"mode=1777")?;
    tmpfs(Path::new("/dev/shm"), c"mode=1777")?;
    refresh_sys();
    Ok(())
}

fn mount_proc() -> Result<(), Failure> {
    mount("proc", "/proc", "proc", CLOSED_FLAGS | MountFlags::NOEXEC, None::<&CStr>).map_err(|error| {
        let error = io::Error::from(error);
        Failure::hinting(
            format!("mount a fresh /proc: {error}"),
            "a container that masks parts of /proc forbids it: run it with unmasked paths, or on the host",
        )
    })
}

/// Shows the node's own network devices in `/sys`, and the control groups as before. A machine that forbids it keeps
/// its own `/sys` there: only programs that look devices up there see strangers' devices.
fn refresh_sys() {
    let groups = "/sys/fs/cgroup";
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let Ok(kept) = open_tree(rustix::fs::CWD, groups, flags) else {
        return;
    };
    if mount("sysfs", "/sys", "sysfs", CLOSED_FLAGS | MountFlags::NOEXEC, None::<&CStr>).is_err() {
        return;
    }
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    if move_mount(&kept, "", rustix::fs::CWD, groups, empty).is_err() {
        let _ = unmount("/sys", UnmountFlags::DETACH);
    }
}

fn tmpfs(target: &Path, options: &CStr) -> Result<(), Failure> {
    let mounted = mount("mend-lab", target, "tmpfs", CLOSED_FLAGS, options);
    mounted.map_err(|error| {
        let error = io::Error::from(error);
        Failure::new(format!("mount a tmpfs on {}: {error}", target.display()))
    })
}

/// Makes `secret` in `home` unless it exists: 32 random bytes in hexadecimal digits, for its owner alone. The daemons
/// would do it as well, but all at the same time.
fn make_secret(home: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(home)?;
    let mut secret = [0u8; 32];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    let text: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    // Written under another name first, so that nobody ever reads half a secret.
    let (path, fresh) = (home.join("secret"), home.join(".secret.new"));
    if path.exists() {
        return Ok(());
    }
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    io::Write::write_all(&mut &file, text.as_bytes())?;
    let linked = fs::hard_link(&fresh, &path);
    fs::remove_file(&fresh)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn step<T, E: Into<io::Error>>(what: &str, result: Result<T, E>) -> Result<T, Failure> {
    result.map_err(|error| Failure::new(format!("{what}: {}", error.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_leaves_needed_directories_visible() {
        let free = choose_base(&["/somewhere/else".into()]).unwrap();
        let other = choose_base(&[free.join("home/me")]).unwrap();
        assert_ne!(free, other);
        let all: Vec<PathBuf> = MOUNT_POINTS.iter().map(PathBuf::from).collect();
        assert!(matches!(choose_base(&all), Err(LabError::NoPlace(_))));
        // A directory whose name only begins like a place is not below it.
        assert_eq!(choose_base(&["/mntx".into(), "/medias".into()]).unwrap(), free);
    }

    #[test]
    fn secret_is_made_once_and_private() {
        let home = std::env::temp_dir().join(format!("mend-lab-secret-{}", std::process::id()));
        make_secret(&home).unwrap();
        let secret = fs::read_to_string(home.join("secret")).unwrap();
        assert_eq!(secret.len(), 64);
        assert!(secret.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let mode = fs::metadata(home.join("secret")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        make_secret(&home).unwrap();
        assert_eq!(fs::read_to_string(home.join("secret")).unwrap(), secret);
        assert_eq!(fs::read_dir(&home).unwrap().count(), 1);
        fs::remove_dir_all(&home).unwrap();
    }
}
