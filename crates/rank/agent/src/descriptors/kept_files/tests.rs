use super::*;
use crate::descriptors::attached::Attached;
use crate::descriptors::examine_all;
use std::os::unix::fs::MetadataExt;

fn order(checkpoint: &Path) -> KeepOrder {
    KeepOrder { checkpoint: checkpoint.to_owned(), limit: 1 << 20, seal: None }
}

/// The one file below `place`; the test's process has more.
fn kept(files: &mut KeptFiles, order: &KeepOrder, path: &Path) -> KeptFile {
    let descriptors = examine_all(&Attached::default(), &[], &mut Vec::new());
    let found = files.keep(&descriptors, order);
    found.into_iter().find(|file| Path::new(&file.path) == path).unwrap()
}

#[test]
fn one_rank_keeps_what_several_have_open_and_what_did_not_change_is_linked() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let path = place.join("data");
    std::fs::write(&path, b"as it was").unwrap();
    let _open = File::options().read(true).write(true).open(&path).unwrap();
    let (mut first, mut second) = (KeptFiles::default(), KeptFiles::default());
    std::fs::create_dir(place.join("1.part")).unwrap();
    let mine = kept(&mut first, &order(&place.join("1.part")), &path);
    let theirs = kept(&mut second, &order(&place.join("1.part")), &path);
    let Keeping::Content { name, stored: 9, .. } = &mine.keeping else { panic!("{mine:?}") };
    assert_eq!((theirs.keeping, &theirs.key), (Keeping::Elsewhere, &mine.key));
    first.sync().unwrap();
    std::fs::rename(place.join("1.part"), place.join("1")).unwrap();
    assert_eq!(std::fs::read(place.join("1/files").join(name)).unwrap(), b"as it was");
    // When it was kept first it had changed a moment ago, and may have changed once more within that tick of the clock: copied again. What had
    // not changed for long is linked, where the file system has such times.
    assert!(!mine.state.is_settled());
    std::thread::sleep(std::time::Duration::from_millis(3100));
    let in_memory = magic_of(File::open(&path).unwrap()) == Some(0x0102_1994);
    for (number, linked) in [(2, 1), (3, 2)] {
        let part = place.join(format!("{number}.part"));
        std::fs::create_dir(&part).unwrap();
        let again = kept(&mut first, &order(&part), &path);
        assert_eq!((&again.keeping, again.state.is_settled()), (&mine.keeping, !in_memory));
        let links = std::fs::metadata(part.join("files").join(name)).unwrap().nlink();
        assert_eq!(links, if in_memory { 1 } else { linked });
        std::fs::rename(&part, part.with_extension("")).unwrap();
    }
    std::fs::write(&path, b"changed").unwrap();
    std::fs::create_dir(place.join("4.part")).unwrap();
    let changed = kept(&mut first, &order(&place.join("4.part")), &path);
    assert!(matches!(changed.keeping, Keeping::Content { stored: 7, .. }), "{changed:?}");
}

#[test]
fn what_is_large_or_has_no_place_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let path = place.join("large");
    let large = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    large.set_len(2 << 20).unwrap();
    let mut files = KeptFiles::default();
    let lost = kept(&mut files, &order(&place.join("none.part")), &path);
    assert!(lost.not_kept().unwrap().contains("checkpoint's directory"), "{lost:?}");
    std::fs::create_dir(place.join("1.part")).unwrap();
    let named = kept(&mut files, &order(&place.join("1.part")), &path);
    let cloned = matches!(named.keeping, Keeping::Content { checksum: None, .. });
    assert!(cloned || named.not_kept().unwrap().contains("more than 1 MiB"), "{named:?}");
    // With room, its holes stay holes.
    let roomy = KeepOrder { limit: 4 << 20, ..order(&place.join("2.part")) };
    std::fs::create_dir(place.join("2.part")).unwrap();
    let named = kept(&mut files, &roomy, &path);
    let Keeping::Content { name, stored, .. } = named.keeping else { panic!("{named:?}") };
    assert_eq!(stored, 2 << 20);
    assert!(std::fs::metadata(place.join("2.part/files").join(name)).unwrap().blocks() < 4096);
}

#[test]
fn copies_are_encrypted_where_images_are() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let path = place.join("secret");
    std::fs::write(&path, b"nobody may read this").unwrap();
    let _open = File::options().write(true).open(&path).unwrap();
    std::fs::create_dir(place.join("1.part")).unwrap();
    let order = KeepOrder { seal: Some([7; 32]), ..order(&place.join("1.part")) };
    let sealed = kept(&mut KeptFiles::default(), &order, &path);
    let Keeping::Content { name, stored, .. } = &sealed.keeping else { panic!("{sealed:?}") };
    let bytes = std::fs::read(place.join("1.part/files").join(name)).unwrap();
    assert_eq!(bytes.len() as u64, *stored);
    assert!(mend_sealed::is_sealed(&bytes) && !bytes.windows(6).any(|window| window == b"nobody"));
}
