//! The lab's network, made with ip(8) and tc(8): a bridge in the holder's network namespace, and for each node a
//! veth pair whose far end, `eth0`, is in the node's.
//!
//! Invariants: a rate limit is a tbf on both ends of a link, so it holds in both directions. A node's link goes
//! down before its processes die: to the others it has to look like a machine that lost power, not like one that
//! closed its connections.
//! Faults assumed: tools missing; a kernel without bridges, veth or tbf.

use std::env;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::LabError;
use crate::plan::{Bandwidth, PREFIX, PlannedNode};
use crate::protocol::Failure;

const BRIDGE_NAME: &str = "lab0";
const LINK_NAME: &str = "eth0";

/// Fails unless the tools that a lab with or without shaping needs are installed.
pub(crate) fn check_tools(shaping: bool) -> Result<(), LabError> {
    for tool in ["ip", "tc"].into_iter().take(1 + usize::from(shaping)) {
        if find(tool).is_none() {
            return Err(LabError::MissingTool(tool));
        }
    }
    Ok(())
}

/// Finds a program on the PATH, or where administration programs are though they are not on users' PATH.
fn find(tool: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|directory| directory.join(tool))
        .find(|candidate| rustix::fs::access(candidate, rustix::fs::Access::EXEC_OK).is_ok())
}

/// Makes the bridge and all links; `pids` are the nodes' first processes as the caller's PID namespace sees them.
pub(crate) fn connect(nodes: &[PlannedNode], pids: &[i32], bandwidth: Option<Bandwidth>) -> Result<(), Failure> {
    let mut links = String::new();
    let _ = writeln!(links, "link set dev lo up");
    let _ = writeln!(links, "link add name {BRIDGE_NAME} type bridge");
    let _ = writeln!(links, "link set dev {BRIDGE_NAME} up");
    let mut limits = String::new();
    for (PlannedNode { port, .. }, pid) in nodes.iter().zip(pids) {
        let _ = writeln!(links, "link add name {port} type veth peer name {LINK_NAME} netns {pid}");
        let _ = writeln!(links, "link set dev {port} master {BRIDGE_NAME}");
        let _ = writeln!(links, "link set dev {port} up");
        if let Some(bandwidth) = bandwidth {
            limits.push_str(&limit(port, bandwidth));
        }
    }
    batch("ip", &links)?;
    batch("tc", &limits)
}

/// Sets up the far end of a link; to be called in the node.
pub(crate) fn configure(node: &PlannedNode, bandwidth: Option<Bandwidth>) -> Result<(), Failure> {
    let address = node.address;
    let settings = format!(
        "link set dev lo up\n\
         address add {address}/{PREFIX} broadcast + dev {LINK_NAME}\n\
         link set dev {LINK_NAME} up\n"
    );
    batch("ip", &settings)?;
    batch("tc", &bandwidth.map_or(String::new(), |rate| limit(LINK_NAME, rate)))?;
    // Lets ping(8) work for everybody in the node; a kernel that refuses takes nothing else away.
    let gid = rustix::process::getegid().as_raw();
    let _ = std::fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{gid} {gid}"));
    Ok(())
}

/// Takes a node's link down: from now on nothing it sends arrives anywhere.
pub(crate) fn cut(node: &PlannedNode) -> Result<(), Failure> {
    batch("ip", &format!("link set dev {} down\n", node.port))
}

/// Removes what `connect` made for a node that is dead.
pub(crate) fn remove(node: &PlannedNode) {
    // The pair vanishes with the node's network namespace anyway, only later.
    let _ = batch("ip", &format!("link delete dev {}\n", node.port));
}

fn limit(device: &str, bandwidth: Bandwidth) -> String {
    let (rate, burst) = (bandwidth.bits_per_second(), bandwidth.burst_bytes());
    format!("qdisc add dev {device} root tbf rate {rate}bit burst {burst}b latency 50ms\n")
}

/// Runs the lines of `script` with `tool -batch -`, one process for all of them.
fn batch(tool: &'static str, script: &str) -> Result<(), Failure> {
    if script.is_empty() {
        return Ok(());
    }
    let program = find(tool).unwrap_or_else(|| Path::new(tool).to_owned());
    let run = || -> io::Result<std::process::Output> {
        let mut child =
            Command::new(&program).args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // A tool that stops reading says why on its standard error.
            let _ = input.write_all(script.as_bytes());
        }
        child.wait_with_output()
    };
    let output = run().map_err(|error| Failure::hinting(format!("{tool} cannot be run: {error}"), "apt-get install iproute2"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().replace('\n', "; ");
    let message = format!("{tool} failed ({}): {said}", output.status);
    Err(match said.contains("not supported") || said.contains("Unknown device type") || said.contains("kind is unknown") {
        true => Failure::hinting(message, "the kernel lacks bridge, veth or sch_tbf: `modprobe -a bridge veth sch_tbf` as root"),
        false => Failure::new(message),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_holds_a_whole_packet() {
        let line = limit("port1", "64kbit".parse().unwrap());
        assert_eq!(line, "qdisc add dev port1 root tbf rate 64000bit burst 131072b latency 50ms\n");
    }

    #[test]
    fn tools_are_found_or_named() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-of-any-name").is_none());
    }
}
