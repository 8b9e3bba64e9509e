//! What tests run: programs in C, the restorer, the agent alone; each is built once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Directory of this test's executable: target/PROFILE/deps.
fn build_directory() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_path_buf()
}

/// A temporary directory that an ordinary user may use too.
pub fn shared_directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("mend-agent-test-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        // SAFETY: the handler only removes files.
        unsafe { libc::atexit(remove_shared_directory) };
        directory
    })
}

extern "C" fn remove_shared_directory() {
    let _ = std::fs::remove_dir_all(shared_directory());
}

/// Compiles a C program, once.
pub fn compile(source: &str) -> PathBuf {
    static DONE: OnceLock<Mutex<HashMap<String, PathBuf>>> = OnceLock::new();
    let mut done = DONE.get_or_init(Mutex::default).lock().unwrap();
    done.entry(source.to_string())
        .or_insert_with(|| {
            let output = shared_directory().join(Path::new(source).file_stem().unwrap());
            let status = Command::new("cc")
                .args(["-g", "-O1", "-Wall", "-pthread", "-o"])
                .arg(&output)
                .arg(here().join("tests").join(source))
                .arg("-lm")
                .status()
                .unwrap();
            assert!(status.success(), "{source} does not compile");
            output
        })
        .clone()
}

/// The restorer of a zone of addresses, built on its own.
pub fn restorer(zone: u32) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let first = BUILT.get_or_init(|| {
        let target = build_directory().parent().unwrap().join("restorer");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--release", "--manifest-path"])
            .arg(here().join("../restorer/Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .status()
            .unwrap();
        assert!(status.success());
        for name in ["mend-restorer", "mend-restorer-1", "mend-restorer-2"] {
            std::fs::copy(target.join("release").join(name), shared_directory().join(name)).unwrap();
        }
        shared_directory().join("mend-restorer")
    });
    if zone == 0 { first.clone() } else { first.with_file_name(format!("mend-restorer-{zone}")) }
}

pub fn preload() -> &'static Path {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        let target = build_directory().parent().unwrap().to_path_buf();
        // With the features that the whole workspace asks for: the tests are built on the same libraries.
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--release", "--workspace", "--example", "agent_alone", "--manifest-path"])
            .arg(here().join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .status()
            .unwrap();
        assert!(status.success());
        let copy = shared_directory().join("libagent_alone.so");
        std::fs::copy(target.join("release/examples/libagent_alone.so"), &copy).unwrap();
        copy
    })
}
