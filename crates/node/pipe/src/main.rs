//! `mend-pipe`: mounts the pipe and serves it. `mend pipe mount` becomes this program; people do not start it.
//!
//! ```text
//! a tool ─► kernel (FUSE) ─► writing: Outgoing ══ encrypted TCP ══► reading: Incoming ─► kernel (FUSE) ─► a tool
//! ```
//! `writing` and `reading` are the two mounts: each holds one of the machines of `mend_streams`, answers the kernel, and drives connections. `link` is a connection between the two, `mounting` what
//! both do to be mounted and to end, `process` what is known of whoever writes or waits.
//!
//! Faults assumed: the other mount, its node or the network is gone at any moment, or silent (streams break, and whoever uses them gets an error); tools are killed; anybody connects and
//! sends anything. When this process ends, the kernel tells all who use its mount.

mod failure;
mod link;
mod mounting;
mod process;
mod reading;
mod writing;

use failure::Failure;
use mend_settings::{LOG, PIPE_PORT};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

const USAGE: &str = "mend-pipe is a part of mend: `mend pipe mount` starts it";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["listen", place, directory] => {
            listening_at(place).and_then(|address| run(directory, |directory| reading::run(address, directory)))
        }
        ["to", place, directory] => run(directory, |directory| writing::run(place, directory)),
        ["discard", directory] => run(directory, writing::discard),
        _ => Err(Failure::usage(USAGE, "mend pipe mount --help")),
    };
    let code = match ended {
        Ok(()) => 0,
        Err(failure) => failure.report(),
    };
    // Not by returning: threads may wait for the kernel or a peer.
    std::process::exit(code);
}

fn run(directory: &str, serve: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<(), Failure> {
    // fuser warns of each request that is left to the kernel.
    let filter = tracing_subscriber::EnvFilter::try_new(format!("{},fuser=error", LOG.text()))
        .map_err(|error| Failure::usage(format!("{}: {error}", LOG.name), "write for example MEND_LOG=debug"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // It would say so with a macro that panics.
        .log_internal_errors(false)
        .init();
    let directory = Path::new(directory);
    mounting::empty(directory)?;
    serve(directory)
}

/// A host or address, and a port: what is said, or the setting's.
fn split(place: &str) -> Result<(&str, u16), Failure> {
    let hint = "write HOST, HOST:PORT or [ADDRESS]:PORT";
    let standard = || mounting::number(&PIPE_PORT).map(|port| port as u16);
    let bare = |text: &'_ str| text.starts_with('[') && text.ends_with(']');
    if place.parse::<IpAddr>().is_ok() {
        return Ok((place, standard()?));
    }
    if bare(place) {
        return Ok((&place[1..place.len() - 1], standard()?));
    }
    let Some((host, port)) = place.rsplit_once(':') else { return Ok((place, standard()?)) };
    let port = port.parse().map_err(|_| Failure::usage(format!("`{place}` has no port that can be"), hint))?;
    let host = if bare(host) { &host[1..host.len() - 1] } else { host };
    if host.is_empty() || (host.contains(':') && host.parse::<IpAddr>().is_err()) {
        return Err(Failure::usage(format!("`{place}` names no host"), hint));
    }
    Ok((host, port))
}

fn listening_at(place: &str) -> Result<SocketAddr, Failure> {
    let everywhere = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    if place.is_empty() {
        return Ok(everywhere(mounting::number(&PIPE_PORT)? as u16));
    }
    let port = place.strip_prefix(':').unwrap_or(place);
    match port.parse() {
        Ok(port) => Ok(everywhere(port)),
        // To a resolver a number is an address, too.
        Err(_) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(Failure::usage(format!("{port} is no port"), "a port is at most 65535"))
        }
        Err(_) => resolved(split(place)?),
    }
}

fn resolved((host, port): (&str, u16)) -> Result<SocketAddr, Failure> {
    let hint = "name a node as others reach it";
    match (host, port).to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(address)) => Ok(address),
        Ok(None) => Err(Failure::usage(format!("{host} has no address"), hint)),
        Err(error) => Err(Failure::usage(format!("{host}: {error}"), hint)),
    }
}

#[cfg(test)]
mod tests {
    use super::{listening_at, split};

    #[test]
    fn a_number_is_a_port_or_nothing() {
        assert_eq!(listening_at("9000").ok(), "[::]:9000".parse().ok());
        for bad in ["99999", ":99999", ":"] {
            assert!(listening_at(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn places_are_told_apart() {
        let found = |place: &'static str| split(place).map_err(|_| ());
        assert_eq!(found("node2"), Ok(("node2", 7118)));
        assert_eq!(found("node2:9000"), Ok(("node2", 9000)));
        assert_eq!(found("fe80::1"), Ok(("fe80::1", 7118)));
        assert_eq!(found("[fe80::1]"), Ok(("fe80::1", 7118)));
        assert_eq!(found("[fe80::1]:9000"), Ok(("fe80::1", 9000)));
        for bad in [":9000", "node2:port", "node2:70000", "a:b:9"] {
            assert_eq!(found(bad), Err(()), "{bad}");
        }
    }
}
