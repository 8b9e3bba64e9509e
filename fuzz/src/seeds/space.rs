//! Requests to a target, and what one tells of what it knows.

use super::{keep, seed};
use mend_data::patterns::{Report, Touch, Who};
use mend_data::record::Source;
use mend_data::space::catalogue::Change;
use mend_data::space::target::{Answer, Request};
use mend_data::space::{Entry, File, Kind, Striping};
use mend_messages::frame;

#[test]
fn words_of_data_spaces_are_read() {
    let source = Source { uri: "https://archive/in.dat".into(), ..Source::default() };
    let file = File { size: 9 << 20, stripe: 1 << 20, targets: vec![2, 0, 1], keepers: vec![2, 0], sources: vec![source] };
    let entry = Entry { id: [1; 16], version: 2, path: "run7/in.dat".into(), made_ns: 1_795_647_383_000_000_000, kind: Kind::File(file) };
    let directory = Entry { id: [2; 16], path: "run7".into(), kind: Kind::Directory(Striping::default()), ..entry.clone() };
    // Without the length, which the connection takes.
    let request = |request: Request| [&[0], &frame::encode(&request).expect("a frame")[4..]].concat();
    let who = Who { job: "app-3f2a".into(), rank: Some(1), node: "node1".into() };
    let report = Report { who, file: [1; 16], touches: vec![Touch { block: 3, count: 5, written: false, fetched: true }], waited_us: 9 };
    let changes = vec![Change::There(Box::new(entry.clone())), Change::There(Box::new(directory)), Change::Gone([3; 16])];
    let answer = Answer::Changes { instance: [4; 16], upto: 3, more: false, changes };
    let seeds = [
        seed("put", request(Request::Put { entry: Box::new(entry), positions: vec![0] })),
        seed("write", request(Request::Write { file: [1; 16], position: 1, offset: 1 << 20, length: 1 << 20 })),
        seed("touched", request(Request::Touched { reports: vec![report] })),
        seed("patterns", request(Request::Patterns { from: 1 << 20 })),
        seed("lacking", request(Request::Lacking { at: 2 })),
        seed("verify", request(Request::Verify { file: [1; 16], position: 1, first: 256, count: 256 })),
        seed("heal", request(Request::Heal { who: [5; 16], verify_after: Some(3600), done: false })),
        seed("forget", request(Request::Forget { ids: vec![[1; 16], [2; 16]] })),
        seed("changes", [&[1], &frame::encode(&answer).expect("a frame")[4..]].concat()),
        seed("mounts", *b"\x02input:/mnt/data,more:/mnt/more"),
    ];
    keep("space", &seeds);
}
