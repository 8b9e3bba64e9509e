use super::*;
use std::process::Command;
use xxhash_rust::xxh3::xxh3_64;

struct Case {
    directory: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        Self::on(&std::env::temp_dir())
    }

    fn on(place: &Path) -> Self {
        let directory = tempfile::tempdir_in(place).unwrap();
        fs::create_dir_all(directory.path().join("1").join(KEPT_DIRECTORY)).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The file as it is now, its content kept if `keep`.
    fn file(&self, name: &str, usage: FileUse, keep: bool) -> KeptFile {
        let path = self.path(name);
        let about = fs::metadata(&path).unwrap();
        let state = FileState {
            size: about.len(),
            mode: about.mode() & 0o7777,
            owner: (about.uid(), about.gid()),
            inode: about.ino(),
            born: born(&about),
            modified: modified(&about),
            changed: changed(&about),
        };
        let keeping = if keep {
            fs::copy(&path, self.path("1").join(KEPT_DIRECTORY).join(name)).unwrap();
            Keeping::Content { name: name.into(), stored: about.len(), checksum: Some(xxh3_64(&fs::read(&path).unwrap())) }
        } else if usage == FileUse::Write {
            Keeping::Not("it is too large".into())
        } else {
            Keeping::State
        };
        KeptFile { key: name.into(), rank: 0, path: path.to_str().unwrap().into(), usage, state, keeping }
    }

    fn put(&self, file: &KeptFile) -> Result<Vec<String>, PutError> {
        self.put_all(vec![file.clone()], Vec::new())
    }

    fn put_all(&self, files: Vec<KeptFile>, elsewhere: Vec<String>) -> Result<Vec<String>, PutError> {
        put_files(&PutOrder { checkpoint: self.path("1"), files, elsewhere }, &[], None, &Progress::default(), &Arc::default())
    }
}

#[test]
fn what_was_kept_comes_back_whatever_became_of_it() {
    let case = Case::new();
    fs::create_dir(case.path("below")).unwrap();
    let path = case.path("data");
    let became: [&dyn Fn(); 6] = [
        &|| fs::write(&path, b"").unwrap(),
        &|| fs::write(&path, b"longer than it was before").unwrap(),
        &|| fs::remove_file(&path).unwrap(),
        &|| fs::rename(&path, case.path("renamed")).unwrap(),
        // Of the same length.
        &|| {
            fs::write(case.path("new"), b"AS IT WAS").unwrap();
            fs::rename(case.path("new"), &path).unwrap();
        },
        &|| {
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(case.path("elsewhere"), &path).unwrap();
        },
    ];
    for change in became {
        fs::write(&path, b"as it was").unwrap();
        fs::write(case.path("elsewhere"), b"untouched").unwrap();
        let file = case.file("data", FileUse::Write, true);
        change();
        for _ in 0..2 {
            assert_eq!(case.put(&file).unwrap(), [""; 0]);
            let about = fs::symlink_metadata(&path).unwrap();
            assert_eq!((fs::read(&path).unwrap(), modified(&about)), (b"as it was".to_vec(), file.state.modified));
        }
    }
    assert_eq!(fs::read(case.path("elsewhere")).unwrap(), b"untouched");
    assert!(!fs::read_dir(case.directory.path()).unwrap().flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(".mend")));
}

/// Content that was kept within the tick of the clock in which the file was changed once more bears the times of the other content.
#[test]
fn only_a_time_that_had_settled_spares_a_file() {
    let case = Case::new();
    let path = case.path("data");
    fs::write(&path, b"as it was").unwrap();
    let kept = case.file("data", FileUse::Write, true);
    fs::write(&path, b"AS IT WAS").unwrap();
    let later = case.file("data", FileUse::Append, false).state;
    let put = |state: FileState| {
        case.put(&KeptFile { state, ..kept.clone() }).unwrap();
        fs::read(&path).unwrap()
    };
    if tells_changes(&path) {
        assert_eq!(put(later), b"AS IT WAS");
    }
    assert_eq!(put(later.unsettled()), b"as it was");
}

/// ROMIO goes on with a shared pointer that it finds.
#[test]
fn shared_file_pointers_that_were_made_since_go() {
    let case = Case::new();
    for name in ["data", ".data.shfp.12"] {
        fs::write(case.path(name), b"as it was").unwrap();
    }
    let files = vec![case.file("data", FileUse::Read, false), case.file(".data.shfp.12", FileUse::Write, true)];
    let others = [".data.shfp.34", ".data.shfp.x", ".data.shfp.", ".data.shfp.1.", ".data.shfp.1.x", ".other.shfp.56", "data.shfp.78"];
    for name in others.into_iter().chain([".data.shfp.56", ".data.shfp.-7", ".data.shfp.3076650213.26328"]) {
        fs::write(case.path(name), b"since").unwrap();
    }
    case.put_all(files, vec![case.path(".data.shfp.34").to_str().unwrap().to_owned()]).unwrap();
    let mut left: Vec<_> = fs::read_dir(case.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    let mut stays: Vec<_> = others.into_iter().chain(["1", "data", ".data.shfp.12"]).collect();
    stays.sort_unstable();
    assert_eq!(left, stays);
}

#[test]
fn a_directory_that_is_gone_is_made_again_and_other_names_stay() {
    let case = Case::new();
    fs::create_dir(case.path("below")).unwrap();
    fs::write(case.path("below/data"), b"as it was").unwrap();
    fs::create_dir(case.path("1").join(KEPT_DIRECTORY).join("below")).unwrap();
    let file = case.file("below/data", FileUse::Write, true);
    fs::remove_dir_all(case.path("below")).unwrap();
    case.put(&file).unwrap();
    assert_eq!(fs::read(case.path("below/data")).unwrap(), b"as it was");
    // The same file under another name, too.
    let inode = fs::metadata(case.path("below/data")).unwrap().ino();
    let file = case.file("below/data", FileUse::Write, true);
    fs::hard_link(case.path("below/data"), case.path("twin")).unwrap();
    fs::write(case.path("twin"), b"changed").unwrap();
    case.put(&file).unwrap();
    assert_eq!((fs::read(case.path("twin")).unwrap(), fs::metadata(case.path("twin")).unwrap().ino()), (b"as it was".to_vec(), inode));
}

#[test]
fn nothing_is_touched_if_what_was_kept_is_not_good() {
    let case = Case::new();
    fs::write(case.path("data"), b"as it was").unwrap();
    let file = case.file("data", FileUse::Write, true);
    let kept = case.path("1").join(KEPT_DIRECTORY).join("data");
    fs::write(case.path("data"), b"newer").unwrap();
    for damage in [&b"AS IT WAS"[..], b"short"] {
        fs::write(&kept, damage).unwrap();
        assert!(matches!(case.put(&file), Err(PutError::Kept { .. })));
    }
    fs::remove_file(&kept).unwrap();
    // Neither a link out of the checkpoint nor a pipe that nobody writes to.
    std::os::unix::fs::symlink(case.path("data"), &kept).unwrap();
    assert!(matches!(case.put(&file), Err(PutError::Kept { .. })));
    fs::remove_file(&kept).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &kept, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(matches!(case.put(&file), Err(PutError::Kept { .. })));
    assert_eq!(fs::read(case.path("data")).unwrap(), b"newer");
}

#[test]
fn what_was_not_kept_is_cut_or_told() {
    let case = Case::new();
    for usage in [FileUse::Append, FileUse::Write] {
        fs::write(case.path("log"), b"lines").unwrap();
        let file = case.file("log", usage, false);
        fs::OpenOptions::new().append(true).open(case.path("log")).unwrap().write_all(b" and more").unwrap();
        case.put(&file).unwrap();
        assert_eq!(fs::read(case.path("log")).unwrap(), b"lines");
        let changes: [(&str, &dyn Fn()); 3] = [
            ("fewer", &|| fs::write(case.path("log"), b"").unwrap()),
            ("replaced", &|| {
                fs::write(case.path("new"), b"other lines").unwrap();
                fs::rename(case.path("new"), case.path("log")).unwrap();
            }),
            ("gone", &|| fs::remove_file(case.path("log")).unwrap()),
        ];
        for (told, change) in changes {
            change();
            let error = case.put(&file).unwrap_err().to_string();
            assert!(error.contains(told) && error.contains("not kept"), "{error}");
        }
    }
    fs::write(case.path("input"), b"data").unwrap();
    let file = case.file("input", FileUse::Read, false);
    assert_eq!(case.put(&file).unwrap(), [""; 0]);
    fs::write(case.path("input"), b"other").unwrap();
    assert!(case.put(&file).unwrap()[0].contains("changed since"));
}

/// A file system that can clone files, mounted as long as this lives.
struct Clones(tempfile::TempDir);

impl Clones {
    /// `None`, said aloud, where that cannot be.
    fn mount() -> Option<Self> {
        let done = |program: &str, words: &[&OsStr]| Command::new(program).args(words).output().is_ok_and(|output| output.status.success());
        let skipped = |why: &str| {
            // Past the capture of the test's output.
            let _ = writeln!(io::stdout(), "skipped: files that are put back as clones: {why}");
            None
        };
        if !rustix::process::geteuid().is_root() {
            return skipped("only root mounts a file system");
        }
        let place = tempfile::tempdir().unwrap();
        let (image, mount) = (place.path().join("image"), place.path().join("mount"));
        fs::create_dir(&mount).unwrap();
        for (program, options) in [("mkfs.btrfs", ["-q", "-f"]), ("mkfs.xfs", ["-q", "-mreflink=1"])] {
            File::create(&image).unwrap().set_len(512 << 20).unwrap();
            let [first, second] = options.map(OsStr::new);
            if done(program, &[first, second, image.as_os_str()])
                && done("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), mount.as_os_str()])
            {
                return Some(Self(place));
            }
        }
        skipped("no XFS or btrfs: btrfs-progs or xfsprogs, loop devices and a kernel that has it are needed")
    }
}

impl Drop for Clones {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path().join("mount")).status();
    }
}

#[test]
fn a_file_that_grew_and_is_put_back_as_a_clone_has_no_tail() {
    let Some(clones) = Clones::mount() else { return };
    let case = Case::on(&clones.0.path().join("mount"));
    for length in [0, 4096, 5000] {
        let path = case.path("data");
        fs::write(&path, vec![1; length]).unwrap();
        let file = case.file("data", FileUse::Write, true);
        fs::write(&path, vec![2; 10_000]).unwrap();
        assert_eq!(case.put(&file).unwrap(), [""; 0]);
        assert_eq!(fs::read(&path).unwrap(), vec![1; length]);
    }
}
