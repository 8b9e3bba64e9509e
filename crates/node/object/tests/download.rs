//! An object whose store cuts connections, and is replaced.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

const LENGTH: usize = 15_000;

fn content() -> Vec<u8> {
    (0..LENGTH).map(|at| (at / 7) as u8).collect()
}

/// One answer, on a connection that ends after `most` bytes of the body.
fn answer(mut stream: TcpStream, etag: &str, most: usize) -> Option<()> {
    let mut request = BufReader::new(stream.try_clone().ok()?);
    let mut range = None;
    loop {
        let mut line = String::new();
        request.read_line(&mut line).ok()?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(asked) = line.strip_prefix("range: bytes=") {
            let (first, last) = asked.split_once('-')?;
            range = Some(first.parse::<usize>().ok()?..last.parse::<usize>().ok()? + 1);
        }
        if line.is_empty() {
            break;
        }
    }
    let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
    let range = range.unwrap_or(0..LENGTH);
    let of = format!("bytes {}-{}/{LENGTH}", range.start, range.end - 1);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: {of}\r\nETag: \"{etag}\"\r\nLast-Modified: Wed, 25 Nov 2026 22:00:00 GMT\r\n\r\n",
        range.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    let sent = range.start..range.end.min(range.start + most);
    stream.write_all(&content()[sent]).ok()
}

/// What mend-object makes of a store that answers the request of this number with this version, and ends after so many bytes.
fn get(most: usize, etag: fn(u32) -> &'static str) -> (Output, u32) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let asked = &*Box::leak(Box::new(AtomicU32::new(0)));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            let _ = answer(stream.unwrap(), etag(number), most);
        }
    });
    let variables =
        [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"), ("AWS_ALLOW_HTTP", "true"), ("AWS_ENDPOINT_URL", endpoint.as_str())];
    let mut command = Command::new(env!("CARGO_BIN_EXE_mend-object"));
    let done = command.args(["get", "s3://bucket/key"]).env_clear().envs(variables).output().unwrap();
    (done, asked.load(Ordering::Relaxed))
}

#[test]
fn an_object_comes_whole_however_often_its_connections_are_cut() {
    let (done, asked) = get(1000, |_| "1");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(done.stdout == content());
    assert_eq!(asked, 15);
}

#[test]
fn an_object_that_is_replaced_meanwhile_is_never_mixed() {
    let (done, asked) = get(1000, |number| if number < 2 { "1" } else { "2" });
    assert!(!done.status.success());
    assert!(done.stdout == content()[..2000]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("it was replaced or removed after 2000 bytes had come"), "{said}");
    assert_eq!(asked, 3);
}
