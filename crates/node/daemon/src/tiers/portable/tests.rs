use super::*;
use crate::outbox;

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// A node with the only copy of a checkpoint that counts.
fn node(directory: &Path) -> (Portable, PathBuf, PathBuf) {
    make(&directory.join("node")).unwrap();
    let store = NodeStore::Directory(directory.join("node"));
    let (root, lock) = node_store::portable(&store, "node0").unwrap();
    let (requests, home) = (directory.join("requests"), directory.join("checkpoints"));
    let own = root.join("own").join(KEY);
    for made in [&requests, &home.join(checkpoint_name(1)), &own.join(checkpoint_name(1))] {
        make(made).unwrap();
    }
    fs::write(requests.join("a.directory"), format!("directory = {}\nkey = {KEY}\n", home.display())).unwrap();
    fs::write(home.join("targets"), "newest = 1\nshared = 0\n").unwrap();
    fs::write(home.join(checkpoint_name(1)).join("manifest"), "ranks 1\n").unwrap();
    for part in [Part::Variables, Part::Seal] {
        let name = FileName::new(KEY, 1, 0, part).unwrap();
        fs::write(root.join("own").join(name.to_string()), "values").unwrap();
    }
    let tiers = [Tier::Local(directory.join("node")), Tier::Shared].map(|tier| TierSpec { tier, keep: 2 });
    let (urgent, _, _) = outbox::queues();
    let (over, ending, said) = Default::default();
    let place = PortableArea { root, requests, job: "job".into(), store, tiers: tiers.into(), urgent, over, ending, said, lock };
    (Portable { place: Arc::new(place), threads: Arc::default() }, own, home)
}

#[test]
fn a_job_that_ends_leaves_nothing_on_the_node_that_the_directory_has() {
    let directory = tempfile::tempdir().unwrap();
    let (portable, own, home) = node(directory.path());
    portable.close(&Mover::new(0, Arc::default()), Duration::ZERO);
    assert!(!own.exists());
    assert_eq!(fs::read(home.join(checkpoint_name(1)).join("rank-00000.h5")).unwrap(), b"values");
}

#[test]
fn what_could_not_be_copied_stays_on_the_node() {
    let refusals: [fn(&Mover, &Path); 3] = [
        |mover, _| mover.cancel(),
        // The directory's file system is not there.
        |_, home| fs::rename(home, home.with_extension("gone")).unwrap(),
        |_, home| fs::remove_file(home.join(checkpoint_name(1)).join("manifest")).unwrap(),
    ];
    for refuse in refusals {
        let directory = tempfile::tempdir().unwrap();
        let (portable, own, home) = node(directory.path());
        let mover = Mover::new(0, Arc::default());
        refuse(&mover, &home);
        portable.close(&mover, Duration::ZERO);
        assert_eq!(fs::read(own.join(checkpoint_name(1)).join("rank-00000.h5")).unwrap(), b"values");
    }
}

/// A copy of the same checkpoint's files of a rank of another node.
fn copy(own: &Path) -> PathBuf {
    let copies = own.parent().unwrap().with_file_name("copies").join(KEY);
    make(&copies.join(checkpoint_name(1))).unwrap();
    for name in ["rank-00001.h5", "rank-00001.seal"] {
        fs::write(copies.join(checkpoint_name(1)).join(name), "others").unwrap();
    }
    copies
}

#[test]
fn copies_of_a_lost_node_s_files_come_to_the_directory_when_the_job_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (portable, own, home) = node(directory.path());
    let copies = copy(&own);
    portable.close(&Mover::new(0, Arc::default()), Duration::ZERO);
    assert!(!own.exists() && !copies.exists());
    for name in ["rank-00001.h5", "rank-00001.seal"] {
        assert_eq!(fs::read(home.join(checkpoint_name(1)).join(name)).unwrap(), b"others");
    }
}

#[test]
fn copies_of_files_that_their_own_node_brings_are_not_brought_twice() {
    let directory = tempfile::tempdir().unwrap();
    let (portable, own, home) = node(directory.path());
    let copies = copy(&own);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(LOOK_AGAIN);
            for name in ["rank-00001.h5", "rank-00001.seal"] {
                fs::write(home.join(checkpoint_name(1)).join(name), "owner's").unwrap();
            }
        });
        portable.close(&Mover::new(0, Arc::default()), Duration::from_secs(60));
    });
    assert!(!copies.exists());
    assert_eq!(fs::read(home.join(checkpoint_name(1)).join("rank-00001.h5")).unwrap(), b"owner's");
}
