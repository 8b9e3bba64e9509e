//! Images of a rank in a control group whose memory does not suffice for two of it. Takes a control group of memory, of version 1 or
//! 2, below the test's own: where none can be made, the tests say so and prove nothing.

mod support;

use mend_image::launch::Mode;
use std::path::{Path, PathBuf};
use support::skips::skipped;
use support::{Rank, Source, compile};

/// The program's memory: 96 MiB.
const PAGES: u64 = 24 << 10;
const MEMORY: u64 = PAGES * 4096;

/// A control group of the test's own.
struct Group {
    place: PathBuf,
    limit: PathBuf,
    /// Where the kernel counts what it killed.
    kills: PathBuf,
}

impl Group {
    fn new(name: &str) -> Result<Self, String> {
        let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mut reasons = Vec::new();
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let (mount, limit, kills) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max", "memory.events"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
                _ => continue,
            };
            let place = Path::new(mount).join(path.trim_start_matches('/')).join(format!("mend-test-{name}-{}", std::process::id()));
            if let Err(error) = std::fs::create_dir(&place) {
                reasons.push(format!("{}: {error}", place.display()));
                continue;
            }
            let group = Self { limit: place.join(limit), kills: place.join(kills), place };
            match std::fs::metadata(&group.limit) {
                Ok(_) => return Ok(group),
                Err(error) => reasons.push(format!("{}: {error}", group.limit.display())),
            }
        }
        Err(reasons.join("; "))
    }

    fn limit(&self, bytes: u64) {
        std::fs::write(&self.limit, bytes.to_string()).unwrap_or_else(|error| panic!("{bytes} bytes in {}: {error}", self.limit.display()));
    }

    fn take(&self, process: i32) {
        std::fs::write(self.place.join("cgroup.procs"), process.to_string()).unwrap();
    }

    fn kills(&self) -> u64 {
        let table = std::fs::read_to_string(&self.kills).unwrap();
        let line = table.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap_or_else(|| panic!("{table}"));
        line.trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Who was in it may take a moment to be gone.
        for _ in 0..500 {
            if std::fs::remove_dir(&self.place).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// A rank in a group of its own, with its memory taken there.
fn confined(pid: u32, name: &str) -> Option<(Rank, Group)> {
    let group = match Group::new(name) {
        Ok(group) => group,
        Err(why) => {
            skipped("memory pressure", &format!("no control group of memory can be made here: {why}"));
            return None;
        }
    };
    group.limit(8 * MEMORY);
    let mut rank = Rank::start(pid, &compile("apps/pressure.c"), &[&PAGES.to_string(), "1000000"]);
    rank.await_line("waiting");
    group.take(rank.processes()[0]);
    rank.type_in("go\n");
    rank.await_line("ready");
    Some((rank, group))
}

/// The program finds nothing wrong, nor does the one that its image is made into.
fn both_go_on(mut rank: Rank, image: &Path) {
    let directory = rank.directory.clone();
    rank.two_lines_more();
    let printed = String::from_utf8(rank.kill()).unwrap();
    assert!(!printed.contains("LOST"), "{printed}");
    let mut rank = Rank::restore(Source::File(image), Mode::Restart, &directory).unwrap();
    rank.resume();
    rank.two_lines_more();
    let printed = String::from_utf8(rank.kill()).unwrap();
    assert!(!printed.contains("LOST"), "{printed}");
}

#[test]
fn where_a_copy_would_not_fit_the_program_stands_still() {
    let Some((mut rank, group)) = confined(7000, "fit") else { return };
    let path = rank.directory.join("image");
    group.limit(MEMORY + MEMORY / 2);
    let saved = rank.snapshot(&path, None);
    assert!(!saved.behind && saved.pages >= PAGES, "{saved:?}");
    let note = saved.note.unwrap();
    assert!(note.starts_with("the program stood still while the image was written: a snapshot of 9"), "{note}");
    assert!(note.contains("may need as much again, and "), "{note}");
    rank.resume();
    // There is room again.
    group.limit(8 * MEMORY);
    let saved = rank.snapshot(&path, None);
    assert!(saved.behind && saved.note.is_none(), "{saved:?}");
    rank.resume();
    rank.await_written(saved.id).unwrap();
    assert_eq!(group.kills(), 0);
    both_go_on(rank, &path);
}

#[test]
fn after_a_copy_was_killed_for_memory_the_program_stands_still_once() {
    let Some((mut rank, group)) = confined(7100, "kill") else { return };
    let path = rank.directory.join("image");
    let saved = rank.snapshot(&path, Some(1 << 20));
    assert!(saved.behind, "{saved:?}");
    // What the program changes from here on, the kernel copies; there is not room for half of it.
    group.limit(MEMORY + MEMORY / 3);
    rank.resume();
    let error = rank.await_written(saved.id).unwrap_err();
    assert!(
        error.ends_with("killed by signal 9; the next image is written while the program stands still (hint: free memory on its node)"),
        "{error}"
    );
    assert!(group.kills() >= 1);
    assert!(!path.exists());
    rank.two_lines_more();
    group.limit(8 * MEMORY);
    let saved = rank.snapshot(&path, None);
    assert!(!saved.behind && saved.pages >= PAGES, "{saved:?}");
    let note = saved.note.unwrap();
    assert!(note.contains("the last copy of it was killed by signal 9, as the kernel does where memory is short"), "{note}");
    rank.resume();
    let behind = rank.snapshot(&rank.directory.join("behind"), None);
    assert!(behind.behind && behind.note.is_none(), "{behind:?}");
    rank.resume();
    rank.await_written(behind.id).unwrap();
    both_go_on(rank, &path);
}
