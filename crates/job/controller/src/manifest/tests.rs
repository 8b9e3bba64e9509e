//! Manifests are whole or not there; what is wrong with one is told apart.

use super::*;
use mend_coordination::spawn_request::SpawnRequest;
use mend_messages::files::{FileState, FileUse};

fn entry(base: Option<u64>, sequence: u32) -> ImageEntry {
    ImageEntry {
        rank: 0,
        host: "a".into(),
        bytes: 3,
        checksum: 0,
        id: ImageId([sequence as u8 + 1; 16]),
        base,
        sequence,
        merged: false,
        needs: None,
    }
}

fn publish_one(directory: &Path, number: u64, base: Option<u64>, sequence: u32) -> PathBuf {
    let part = prepare(directory, number).unwrap();
    fs::write(part.join(image_name(0)), "abc").unwrap();
    publish(&part, &Manifest { number, images: vec![entry(base, sequence)], ..manifest() }, None).unwrap()
}

#[test]
fn what_an_image_builds_on_is_found_or_named() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    publish_one(directory, 1, None, 0);
    publish_one(directory, 2, Some(1), 1);
    let newest = publish_one(directory, 4, Some(2), 2);
    let files = chains(&newest, &load(&newest, None).unwrap(), None).unwrap();
    let numbered = |number: u64| directory.join(number.to_string()).join(image_name(0));
    assert_eq!(files, [[4, 2, 1].map(numbered)]);
    fs::write(numbered(1), "ab").unwrap();
    let error = load(&newest, None).unwrap_err();
    assert!(matches!(error, ManifestError::Base { rank: 0, base: 1, .. }), "{error}");
    fs::remove_dir_all(directory.join("2")).unwrap();
    assert!(matches!(load(&newest, None).unwrap_err(), ManifestError::Base { base: 2, .. }));
    // Neither itself, nor a later one, nor one that is not the one before it.
    assert!(load(&publish_one(directory, 5, Some(5), 1), None).is_err());
    assert!(load(&publish_one(directory, 6, Some(7), 1), None).is_err());
    publish_one(directory, 7, Some(6), 1);
    assert!(load(&directory.join("6"), None).is_err());
    publish_one(directory, 8, None, 0);
    assert!(load(&publish_one(directory, 9, Some(8), 2), None).is_ok(), "merged in between");
    assert!(load(&publish_one(directory, 10, Some(9), 2), None).is_err());
    let part = prepare(directory, 11).unwrap();
    fs::write(part.join(image_name(0)), "abc").unwrap();
    let error = publish(&part, &Manifest { number: 11, images: vec![entry(None, 2)], ..manifest() }, None).unwrap_err();
    assert!(error.to_string().contains("builds on an image that no checkpoint holds"), "{error}");
}

pub(crate) fn manifest() -> Manifest {
    Manifest {
        format: FORMAT,
        release: "0".into(),
        job: "j".into(),
        identity: [1; 16],
        number: 1,
        taken: 0,
        program: Program { argv: vec!["a".into()], env: vec![], cwd: "/".into(), umask: None, further: Vec::new() },
        hosts: vec!["a".into()],
        local: false,
        images: vec![entry(None, 0)],
        files: Vec::new(),
        pmi: PmiServer::new(1, &[1; 16]),
        spawned: Vec::new(),
        printed: [(0, Printed { stdout: 5, ..Printed::default() })].into(),
        input: None,
        phases: Phases::default(),
        stopped_us: 0,
        periodic: false,
        durable_us: 0,
        tiers: Vec::new(),
        encrypted: false,
        settled_times: false,
    }
}

#[test]
fn times_in_manifests_of_older_releases_may_not_have_settled() {
    let state = FileState { changed: (7, 8), ..FileState::default() };
    let keeping = Keeping::Content { name: "a".into(), stored: 0, checksum: None };
    let file = KeptFile { key: "a".into(), rank: 0, path: "/a".into(), usage: FileUse::Write, state, keeping };
    let told = |settled_times| Manifest { files: vec![file.clone()], settled_times, ..manifest() }.files_to_put();
    assert!(!told(false)[0].state.is_settled());
    assert_eq!(told(true)[0], file);
}

#[test]
fn a_manifest_names_no_directory_as_its_job() {
    let directory = tempfile::tempdir().unwrap();
    let names = ["/tmp/victim", "../..", "..", ".", "", "a/b", ".hidden", "a b"];
    for (number, job) in (1..).zip(names) {
        let part = prepare(directory.path(), number).unwrap();
        std::fs::write(part.join("rank-0.image"), [0; 10]).unwrap();
        let image = ImageEntry { bytes: 10, ..entry(None, 0) };
        let place = publish(&part, &Manifest { number, job: job.into(), images: vec![image], ..manifest() }, None).unwrap();
        let error = read_alone(&place, None).unwrap_err();
        assert!(error.to_string().contains("is no job's name"), "{job}: {error}");
    }
}

#[test]
fn only_ranks_that_may_leave_may_have_no_image() {
    let request = b"mcmd=spawn\nnprocs=3\nexecname=a\nargcnt=0\nendcmd\n";
    let mut worlds = Worlds::from(PmiServer::new(2, &[1; 16]));
    worlds.add(&[1; 16], 0, &SpawnRequest::read(request).unwrap());
    let left = {
        let mut worlds = worlds.clone();
        worlds.receive(1, b"cmd=finalize\n");
        worlds.into_parts().0
    };
    let (pmi, spawned) = worlds.into_parts();
    let with = |ranks: &[Rank]| {
        let images = ranks.iter().map(|&rank| ImageEntry { rank, ..entry(None, 0) }).collect();
        Manifest { format: FORMAT_OF_WORLDS, images, pmi: pmi.clone(), spawned: spawned.clone(), ..manifest() }
    };
    for (number, ranks, pmi, good) in [
        (1, &[0, 1, 2, 3, 4][..], &pmi, true),
        (2, &[0, 1, 3], &pmi, true),
        (3, &[0, 1], &pmi, true),
        (4, &[0, 2, 3], &pmi, false),
        (5, &[0, 1, 5], &pmi, false),
        (6, &[0, 1, 3, 3], &pmi, false),
        (7, &[0, 2, 3], &left, true),
        (8, &[0], &left, true),
        (9, &[2, 3], &left, false),
        (10, &[], &left, false),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let part = prepare(directory.path(), number).unwrap();
        ranks.iter().for_each(|rank| fs::write(part.join(image_name(*rank)), "abc").unwrap());
        let manifest = Manifest { number, pmi: pmi.clone(), ..with(ranks) };
        let read = read_alone(&publish(&part, &manifest, None).unwrap(), None);
        assert_eq!(read.is_ok(), good, "{ranks:?}");
        if good {
            assert_eq!(manifest.image(3).map(|image| image.rank), ranks.contains(&3).then_some(3));
            assert_eq!(read.unwrap(), manifest);
        }
    }
}

#[test]
fn what_is_no_regular_file_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let manifest = directory.path().join("manifest.json");
    std::os::unix::fs::symlink("/dev/zero", &manifest).unwrap();
    assert!(matches!(read_alone(directory.path(), None), Err(ManifestError::Io { .. })));
    std::fs::remove_file(&manifest).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &manifest, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    assert!(matches!(read_alone(directory.path(), None), Err(ManifestError::Io { .. })));
}

#[test]
fn published_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let part = prepare(directory.path(), 1).unwrap();
    let missing = publish(&part, &manifest(), None).unwrap_err();
    assert!(missing.to_string().contains("rank 0: image") && missing.to_string().contains("missing"));
    assert!(numbers(directory.path()).is_empty());
    fs::write(part.join(image_name(0)), "abc").unwrap();
    let place = publish(&part, &manifest(), None).unwrap();
    assert_eq!(numbers(directory.path()), [1]);
    assert_eq!(load(&place, None).unwrap(), manifest());
    fs::write(place.join(image_name(0)), "ab").unwrap();
    assert!(load(&place, None).unwrap_err().to_string().contains("torn: 2 bytes instead of 3"));
}

/// Nodes let go of what isn't listed: a directory that can't be read has not lost its checkpoints.
#[test]
fn what_cannot_be_listed_is_not_taken_for_empty() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(listed(&file).is_err() && listed_at_first(&file).is_err() && crate::tiers::has_images(&file).is_err());
    let absent = directory.path().join("absent");
    assert!(listed(&absent).is_err(), "its file system may be away");
    assert!(listed_at_first(&absent).unwrap().is_empty());
    assert!(!crate::tiers::has_images(&absent).unwrap());
    fs::create_dir(directory.path().join("12")).unwrap();
    assert_eq!(listed(directory.path()).unwrap(), [12]);
}

#[test]
fn damage_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(load(directory.path(), None), Err(ManifestError::None { .. })));
    let part = prepare(directory.path(), 1).unwrap();
    fs::write(part.join(image_name(0)), "abc").unwrap();
    let place = publish(&part, &manifest(), None).unwrap();
    let file = place.join("manifest.json");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.replace("\"number\":1", "\"number\":2")).unwrap();
    assert!(matches!(load(&place, None), Err(ManifestError::Damaged { .. })));
    fs::write(&file, good.replace(&format!("\"format\":{FORMAT}"), "\"format\":9")).unwrap();
    assert!(matches!(load(&place, None), Err(ManifestError::Format { format: 9, .. })));
    fs::write(&file, &good[..good.len() / 2]).unwrap();
    assert!(matches!(load(&place, None), Err(ManifestError::Damaged { .. })));
}

#[test]
fn with_a_key_only_what_its_holders_wrote_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let [key, other] = [5, 6].map(|byte| Key::from_bytes([byte; 32]));
    let take = |number: u64, base: Option<u64>, key: Option<&Key>| {
        let part = prepare(directory.path(), number).unwrap();
        fs::write(part.join(image_name(0)), "abc").unwrap();
        let images = vec![entry(base, base.map_or(0, |_| number as u32 - 1))];
        publish(&part, &Manifest { number, images, encrypted: key.is_some(), ..manifest() }, key).unwrap()
    };
    let (first, second) = (take(1, None, Some(&key)), take(2, Some(1), Some(&key)));
    assert!(load(&second, Some(&key)).unwrap().encrypted && load(&second, None).is_ok());
    assert!(matches!(load(&second, Some(&other)), Err(ManifestError::Forged { .. })));
    // Somebody without the key can make a checksum, but no code.
    let file = first.join("manifest.json");
    let good = fs::read(&file).unwrap();
    let mut sealed: Sealed = serde_json::from_slice(&good).unwrap();
    sealed.manifest.program.argv = vec!["evil".into()];
    sealed.checksum = checksum(&serde_json::to_vec(&sealed.manifest).unwrap());
    fs::write(&file, serde_json::to_vec(&sealed).unwrap()).unwrap();
    assert!(load(&first, None).is_ok());
    let error = load(&first, Some(&key)).unwrap_err();
    assert!(error.to_string().contains("changed by somebody who does not have it"), "{error}");
    assert!(matches!(load(&second, Some(&key)), Err(ManifestError::Base { base: 1, .. })));
    sealed.code = None;
    fs::write(&file, serde_json::to_vec(&sealed).unwrap()).unwrap();
    assert!(matches!(load(&first, Some(&key)), Err(ManifestError::Sealed { source: SealError::Plain, .. })));
    // Nor does a good one do in another's place.
    fs::write(&file, fs::read(take(3, None, Some(&key)).join("manifest.json")).unwrap()).unwrap();
    let error = load(&second, Some(&key)).unwrap_err();
    assert!(matches!(error, ManifestError::Base { base: 1, .. }), "{error}");
    fs::write(&file, good).unwrap();
    assert!(load(&second, Some(&key)).is_ok());
}
