//! Requests to a target, and what one tells of what it knows.

use super::{keep, seed};
use mend_data::patterns::{Report, Touch, Who};
use mend_data::record::Source;
use mend_data::space::catalogue::Change;
use mend_data::space::target::{Answer, Claim, Lease, Request};
use mend_data::space::written::Written;
use mend_data::space::{Entry, File, Kind, Striping};
use mend_messages::frame;

#[test]
fn words_of_data_spaces_are_read() {
    let source = Source { uri: "https://archive/in.dat".into(), ..Source::default() };
    let file =
        File { size: 9 << 20, stripe: 1 << 20, targets: vec![2, 0, 1], keepers: vec![2, 0], sources: vec![source], replicas: Vec::new() };
    let replicated = File { replicas: vec![Some(0), None, Some(2)], ..file.clone() };
    let entry = Entry { id: [1; 16], version: 2, path: "run7/in.dat".into(), made_ns: 1_795_647_383_000_000_000, kind: Kind::File(file) };
    let replicated = Entry { version: 3, kind: Kind::File(replicated), ..entry.clone() };
    let directory = Entry { id: [2; 16], path: "run7".into(), kind: Kind::Directory(Striping::default()), ..entry.clone() };
    let written = Written { stripe: 1 << 20, objects: vec![[0, 1], [1, 2], [2, 0]], epoch: 3, filling: vec![1], mode: 0o644 };
    let written = Entry { id: [6; 16], path: "out/result.h5".into(), kind: Kind::Written(written), ..entry.clone() };
    let (file, epoch, position) = ([6; 16], 3, 1);
    // Without the length, which the connection takes.
    let request = |request: Request| [&[0], &frame::encode(&request).expect("a frame")[4..]].concat();
    let who = Who { job: "app-3f2a".into(), rank: Some(1), node: "node1".into() };
    let report = Report { who, file: [1; 16], touches: vec![Touch { block: 3, count: 5, written: false, fetched: true }], waited_us: 9 };
    let changes = vec![
        Change::There(Box::new(entry.clone())),
        Change::There(Box::new(directory)),
        Change::There(Box::new(written.clone())),
        Change::Gone([3; 16]),
    ];
    let answer = Answer::Changes { instance: [4; 16], upto: 3, more: false, changes, lease: Lease { ms: 50, others: 7 } };
    let seeds = [
        seed("put", request(Request::Put { entry: Box::new(entry), positions: vec![0] })),
        seed("put-replicated", request(Request::Put { entry: Box::new(replicated), positions: vec![0, 2] })),
        seed("write", request(Request::Write { file: [1; 16], position: 1, offset: 1 << 20, length: 1 << 20 })),
        seed("touched", request(Request::Touched { reports: vec![report] })),
        seed("patterns", request(Request::Patterns { from: 1 << 20 })),
        seed("lacking", request(Request::Lacking { at: 2 })),
        seed("verify", request(Request::Verify { file: [1; 16], position: 1, first: 256, count: 256 })),
        seed("heal", request(Request::Heal { who: [5; 16], verify_after: Some(3600), done: false })),
        seed("forget", request(Request::Forget { ids: vec![[1; 16], [2; 16]] })),
        seed("changes", [&[1], &frame::encode(&answer).expect("a frame")[4..]].concat()),
        seed("at-it", [&[1], &frame::encode(&Answer::AtIt).expect("a frame")[4..]].concat()),
        seed("adopt", request(Request::Adopt { entry: Box::new(written), positions: vec![0, 1], fresh: vec![1] })),
        seed(
            "write-range",
            request(Request::WriteRange {
                file,
                epoch,
                position,
                offset: 70_000,
                length: 300,
                sum: 1 << 90,
                changed_ns: 1 << 60,
                appends: false,
            }),
        ),
        seed("read-blocks", request(Request::ReadBlocks { file, position, first: 2, count: 2 })),
        seed("mend-block", request(Request::MendBlock { file, epoch, position, block: 7, length: 65_536 })),
        seed("read-range", request(Request::ReadRange { file, position, offset: 70_000, length: 300 })),
        seed("fill", request(Request::Fill { file, epoch, position, offset: 0, length: 1 << 20, sum: 5, changed_ns: 1 << 60 })),
        seed("cut", request(Request::Cut { file, epoch, position, length: 9 << 20, changed_ns: 1 << 60 })),
        seed("sync", request(Request::Sync { file, epoch, position, boot: [8; 16] })),
        seed("shapes", request(Request::Shapes { files: vec![file, [7; 16]] })),
        seed("stamp", request(Request::Stamp { file, changed_ns: 1_795_647_383_000_000_000 })),
        seed("claim", request(Request::Claim { claim: Claim::Path("out/result.h5".into()), who: [9; 16], over: false })),
        seed("append", request(Request::Claim { claim: Claim::Append(file), who: [9; 16], over: true })),
        seed("holds", request(Request::Holds { who: [9; 16], files: vec![file] })),
        seed("writing", request(Request::Writing { files: vec![file, [7; 16]] })),
        seed("offload", request(Request::Claim { claim: Claim::Offload, who: [9; 16], over: false })),
        seed("held", [&[1], &frame::encode(&Answer::Held { boot: [8; 16] }).expect("a frame")[4..]].concat()),
        seed("mounts-written", *b"\x02output:/mnt/out:rw,input:/mnt/in:ro,odd:/mnt/odd:rw:ro"),
        seed("mounts", *b"\x02input:/mnt/data,more:/mnt/more"),
    ];
    keep("space", &seeds);
}
