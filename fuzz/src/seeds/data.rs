//! Records of sources with checksums here, beside and nowhere, the log of a stage, a plug-in's answer, a job script.

use super::{keep, seed};
use mend_data::record::{Known, Record, Source, Version};
use mend_data::resume::{self, Begun};
use mend_data::sums::{BLOCK, Sum, Sums};

#[test]
fn what_stands_with_staged_files_is_read() {
    let version = Version { size: BLOCK + 7, etag: Some("\"5f-1\"".into()), modified_ns: Some(1_795_647_383_000_000_000) };
    let source =
        Source { uri: "https://archive/in.dat".into(), endpoint: None, credentials: Some("env:ARCHIVE".into()), version: Some(version) };
    let mirror = Source { uri: "s3://bucket/in.dat".into(), endpoint: Some("http://store".into()), ..source.clone() };
    let sums = Sums::new(vec![Sum::of(b"a"), Sum::of(b"b")]);
    let record = |known| Record { sources: vec![source.clone(), mirror.clone()], size: BLOCK + 7, sums: known }.encode().expect("a record");
    let (here, beside, nowhere) = (record(Known::Here(sums.clone())), record(Known::Beside(sums.digest())), record(Known::Nowhere));
    let entries = [resume::entry(1, Sum::of(b"b")), resume::entry(0, Sum::of(b"a"))].concat();
    let log = [Begun { sources: vec![source], size: BLOCK + 7 }.head(), entries].concat();
    let seeds = [
        seed("here", [&[0], &here[..]].concat()),
        seed("beside", [&[0], &beside[..]].concat()),
        seed("nowhere", [&[0], &nowhere[..]].concat()),
        seed("unsummed", [&[1], &here[..here.len() - 8]].concat()),
        seed("log", [&[2], &log[..]].concat()),
        seed("answer", *b"\x04size 5 modified 7 etag x"),
        seed("script", *b"\x05#!/bin/sh\n#MEND stage-in http://a/x 'b c'\n#DW stage_in source=/a destination=$DW/b type=directory\n"),
    ];
    keep("data", &seeds);
}
