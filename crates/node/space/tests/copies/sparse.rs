//! Staged files with holes, on targets that are real processes: what is stored, and what is read. Where the file system keeps no holes, all of it is stored.

use crate::cluster::Cluster;
use mend_data::ranges::Range;
use mend_data::space::target::Request;
use mend_data::space::{BLOCK, Entry, Striping};
use mend_space::client::{Client, Copying, Pattern, Reader, Upload};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

const SIZE: u64 = 300 * BLOCK + 77;

/// Of one block in the middle and of the end; the rest are zeros.
fn content() -> Vec<u8> {
    let mut content = vec![0; SIZE as usize];
    content[(100 * BLOCK) as usize..(101 * BLOCK) as usize].fill(7);
    content[(SIZE - 3) as usize..].copy_from_slice(b"end");
    content
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::new(2);
    cluster.space.striping = Striping { size: 16 * BLOCK, count: 0 };
    cluster
}

fn entry(client: &Client) -> Entry {
    client.names().files("")[0].clone()
}

fn is_whole(client: &Arc<Client>) {
    let reader = Reader::new(client.clone(), 1 << 20, None).unwrap();
    let read = reader.read(&Arc::new(entry(client)), 0, SIZE as u32, &Pattern::default()).unwrap();
    assert!(read.bytes == content(), "other bytes came back");
    let examined = client.examine("", true).unwrap();
    assert!(examined.found.is_empty(), "{:?}", examined.found);
}

fn objects(cluster: &Cluster) -> Vec<PathBuf> {
    (0..2).flat_map(|at| [".0", ".1"].into_iter().flat_map(move |ending| cluster.objects(at, ending))).collect()
}

fn stored(cluster: &Cluster) -> u64 {
    objects(cluster).iter().map(|object| fs::metadata(object).unwrap().blocks() * 512).sum()
}

fn keeps_holes(cluster: &Cluster) -> bool {
    let path = cluster.directory.path().join("hole");
    fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    fs::metadata(path).unwrap().blocks() == 0
}

#[test]
fn what_is_zeros_is_not_stored_and_read_as_zeros() {
    let cluster = cluster();
    let client = cluster.client();
    let upload = Upload::begin(&client, "in.dat", SIZE, Vec::new()).unwrap();
    upload.put_zeros(Range { offset: 0, length: 90 * BLOCK }).unwrap();
    upload.put(90 * BLOCK, &content()[(90 * BLOCK) as usize..]).unwrap();
    upload.finish(false).unwrap();
    is_whole(&client);
    let length = || objects(&cluster).iter().map(|object| fs::metadata(object).unwrap().len()).sum::<u64>();
    assert_eq!(length(), SIZE);
    if keeps_holes(&cluster) {
        // Two MiB have something else.
        assert!(stored(&cluster) < 40 * BLOCK, "{}", stored(&cluster));
    }
    Copying::begin(&client, &entry(&client), |_, room| room.free).unwrap().run(2).unwrap();
    is_whole(&client);
    assert_eq!(length(), 2 * SIZE);
}

#[test]
fn zeros_take_the_place_of_what_an_earlier_command_has_written() {
    let cluster = cluster();
    let client = cluster.client();
    let upload = Upload::begin(&client, "in.dat", SIZE, Vec::new()).unwrap();
    let earlier = vec![9; SIZE as usize];
    upload.put(0, &earlier).unwrap();
    let begun = upload.entry().clone();
    drop(upload);
    // Nothing of that is claimed, so all of it comes anew.
    let (upload, there) = Upload::go_on(&client, begun, Vec::new(), &[]).unwrap();
    assert_eq!(there, 0);
    upload.put(0, &content()).unwrap();
    upload.finish(false).unwrap();
    is_whole(&client);
}

#[test]
fn a_hole_that_a_target_lost_is_written_as_zeros() {
    let cluster = cluster();
    let client = cluster.client();
    let upload = Upload::begin(&client, "in.dat", SIZE, Vec::new()).unwrap();
    upload.put(0, &content()).unwrap();
    upload.finish(false).unwrap();
    // The medium has something else where zeros were.
    let entry = entry(&client);
    let target = entry.file().unwrap().targets[0];
    let [object] = &cluster.objects(target.into(), ".0")[..] else { panic!("it has one object") };
    let before = fs::read(object).unwrap();
    let mut damaged = before.clone();
    damaged[5] = 1;
    fs::write(object, &damaged).unwrap();
    assert_eq!(client.examine("", true).unwrap().found.len(), 1);
    let write = Request::Write { file: entry.id, position: 0, offset: 0, length: BLOCK as u32 };
    client.peer(target).unwrap().ask(&write, &vec![0; BLOCK as usize]).unwrap();
    assert!(fs::read(object).unwrap() == before);
    is_whole(&client);
}
