//! What a lab looks like: names, addresses, rates, the hosts file, the environment. Pure.
//!
//! Invariants: node names are `head`, then `node1` to `nodeN`; addresses are in 10.77.0.0/24, which exists in
//! the lab's own network only and so cannot collide with anything outside.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// Most nodes a lab may have, `head` not counted.
pub(crate) const MAX_NODES: u32 = 64;

/// Length of the network prefix of all addresses.
pub(crate) const PREFIX: u8 = 24;

/// Where users run `mend run`; runs no ranks.
pub(crate) const HEAD: &str = "head";

/// TCP port of the node daemons.
pub(crate) const DAEMON_PORT: u16 = 7117;

/// Name of a lab: 1 to 32 characters of `a-z`, `0-9` and `-`, beginning with a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabName(String);

impl LabName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the abstract socket under which user `uid`'s lab of this name is found.
    pub(crate) fn socket(&self, uid: u32) -> Vec<u8> {
        format!("{}{}", Self::socket_prefix(uid), self.0).into_bytes()
    }

    /// What the socket names of all labs of user `uid` begin with.
    pub(crate) fn socket_prefix(uid: u32) -> String {
        format!("mend-lab-{uid}-")
    }
}

impl FromStr for LabName {
    type Err = LabError;

    fn from_str(text: &str) -> Result<LabName, LabError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let sound = (1..=32).contains(&text.len()) && text.bytes().all(allowed) && text.as_bytes()[0].is_ascii_lowercase();
        match sound {
            true => Ok(LabName(text.to_owned())),
            false => Err(LabError::BadName(text.to_owned())),
        }
    }
}

impl std::fmt::Display for LabName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// A rate in bit/s, from 64 kbit/s to 400 Gbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// Bits per second.
    pub fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Bytes that tbf may send at once: what passes in 4 ms (one tick of the slowest kernel clock in use), and
    /// never less than the largest packet a veth hands over in one piece (64 KiB).
    pub(crate) fn burst_bytes(self) -> u64 {
        (self.0 / 8 / 250).max(128 * 1024)
    }
}

impl FromStr for Bandwidth {
    type Err = LabError;

    /// Reads a rate as tc(8) writes it: a decimal number and `bit`, `kbit`, `mbit`, `gbit`, `tbit` (powers of 1000),
    /// `kibit`… (powers of 1024), or the same with `bps` for bytes; a bare number is bit/s.
    fn from_str(text: &str) -> Result<Bandwidth, LabError> {
        let bad = || LabError::BadBandwidth(text.to_owned());
        let lower = text.to_ascii_lowercase();
        let digits = lower.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = lower.split_at(digits.unwrap_or(lower.len()));
        // `f64` would also read "1e3", "inf" or "."; those are no digits or not finite.
        let number: f64 = number.parse().map_err(|_| bad())?;
        let (unit, bits) = match unit.strip_suffix("bps") {
            Some(prefix) => (prefix, 8.0),
            None => (unit.strip_suffix("bit").unwrap_or(unit), 1.0),
        };
        let scale = match unit {
            "" => 1.0,
            "k" => 1e3,
            "m" => 1e6,
            "g" => 1e9,
            "t" => 1e12,
            "ki" => 1024.0,
            "mi" => 1024.0 * 1024.0,
            "gi" => 1024.0 * 1024.0 * 1024.0,
            _ => return Err(bad()),
        };
        let rate = number * scale * bits;
        match (64e3..=400e9).contains(&rate) {
            true => Ok(Bandwidth(rate as u64)),
            false => Err(bad()),
        }
    }
}

impl std::fmt::Display for Bandwidth {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1000, "kbit")];
        match units.iter().find(|(scale, _)| self.0.is_multiple_of(*scale)) {
            Some((scale, unit)) => write!(out, "{}{unit}", self.0 / scale),
            None => write!(out, "{}bit", self.0),
        }
    }
}

/// One node of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedNode {
    /// `head` or `nodeK`.
    pub(crate) name: String,
    /// Its address on the bridge.
    pub(crate) address: Ipv4Addr,
    /// Name of the bridge's end of its link.
    pub(crate) port: String,
}

/// A lab before it exists.
#[derive(Clone, Debug)]
pub(crate) struct LabPlan {
    pub(crate) name: LabName,
    /// `head` first, then `node1`…
    pub(crate) nodes: Vec<PlannedNode>,
    pub(crate) bandwidth: Option<Bandwidth>,
    /// Existing directory that the lab covers with its own files.
    pub(crate) base: PathBuf,
    /// `MEND_HOME` for what runs in the lab.
    pub(crate) home: PathBuf,
    /// Executable of the node daemon, `None` for a lab without.
    pub(crate) daemon: Option<PathBuf>,
}

/// `head` and `count` nodes.
pub(crate) fn plan_nodes(count: u32) -> Result<Vec<PlannedNode>, LabError> {
    if !(1..=MAX_NODES).contains(&count) {
        return Err(LabError::BadNodeCount { max: MAX_NODES, asked: count });
    }
    let head = PlannedNode { name: HEAD.to_owned(), address: Ipv4Addr::new(10, 77, 0, 254), port: "port0".to_owned() };
    let nodes = (1..=count).map(|number| PlannedNode {
        name: format!("node{number}"),
        address: Ipv4Addr::new(10, 77, 0, number as u8),
        port: format!("port{number}"),
    });
    Ok(std::iter::once(head).chain(nodes).collect())
}

/// Directory that all nodes share.
pub(crate) fn shared(base: &Path) -> PathBuf {
    base.join("shared")
}

/// Directory that every node has for itself.
pub(crate) fn scratch(base: &Path) -> PathBuf {
    base.join("scratch")
}

/// File that covers `/etc/hosts` in the lab.
pub(crate) fn hosts_file(base: &Path) -> PathBuf {
    base.join("hosts")
}

/// Socket by which processes inside the lab command it: abstract names do not cross network namespaces.
pub(crate) fn inner_socket(base: &Path) -> PathBuf {
    base.join(".control")
}

/// What the daemon of `node` printed.
pub(crate) fn daemon_log(base: &Path, node: &str) -> PathBuf {
    shared(base).join("log").join(format!("{node}.log"))
}

/// `/etc/hosts` of every node, hosts(5).
pub(crate) fn hosts_text(nodes: &[PlannedNode]) -> String {
    let mut text = String::from("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n");
    for node in nodes {
        let _ = writeln!(text, "{}\t{}", node.address, node.name);
    }
    text
}

/// Variables set for everything that runs in `node`. The user's own `MEND_HOME` wins over the lab's.
pub(crate) fn environment(lab: &str, base: &Path, home: &Path, node: &str, user_has_home: bool) -> Vec<(&'static str, PathBuf)> {
    let mut variables = vec![
        ("MEND_LAB", PathBuf::from(lab)),
        ("MEND_SHARED", shared(base)),
        ("MEND_SCRATCH", scratch(base)),
        ("HOSTNAME", PathBuf::from(node)),
        // Its daemons listen there, whatever holds outside.
        ("MEND_PORT", PathBuf::from(DAEMON_PORT.to_string())),
    ];
    if !user_has_home {
        variables.push(("MEND_HOME", home.to_owned()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names() {
        for good in ["lab", "a", "my-lab-2"] {
            assert_eq!(good.parse::<LabName>().unwrap().as_str(), good);
        }
        let long = "x".repeat(33);
        for bad in ["", "Lab", "2lab", "a b", "a/b", "-a", "ä", "a\n", "a.b", &long] {
            assert!(bad.parse::<LabName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn rates() {
        for (text, bits) in [
            ("1gbit", 1_000_000_000),
            ("1Gbit", 1_000_000_000),
            ("1.5gbit", 1_500_000_000),
            ("100mbps", 800_000_000),
            ("64000", 64_000),
            ("64kbit", 64_000),
            ("1gibit", 1_073_741_824),
            ("1g", 1_000_000_000),
        ] {
            assert_eq!(text.parse::<Bandwidth>().unwrap().bits_per_second(), bits, "{text}");
        }
        for bad in [
            "",
            "gbit",
            "0",
            "1",
            "63kbit",
            "401gbit",
            "-1gbit",
            "1e9",
            "inf",
            "nan",
            ".",
            "1..5gbit",
            "1 gbit",
            "1gbits",
            "fast",
            "1gbit;reboot",
            "999999999999999999999999gbit",
        ] {
            assert!(bad.parse::<Bandwidth>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn nodes() {
        assert!(plan_nodes(0).is_err());
        assert!(plan_nodes(65).is_err());
        let nodes = plan_nodes(64).unwrap();
        assert_eq!(nodes.len(), 65);
        assert_eq!(nodes[0].name, "head");
        assert_eq!(nodes[64].name, "node64");
        let mut addresses: Vec<_> = nodes.iter().map(|node| node.address).collect();
        addresses.dedup();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 65);
        assert!(nodes.iter().all(|node| node.port.len() < 16), "IFNAMSIZ");
        assert!(hosts_text(&nodes).contains("\n10.77.0.64\tnode64\n"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_rate_or_an_error(text in "\\PC{0,12}") {
            if let Ok(rate) = text.parse::<Bandwidth>() {
                prop_assert!((64_000..=400_000_000_000).contains(&rate.bits_per_second()));
            }
        }

        #[test]
        fn shown_rates_read_back(bits in 64_000u64..=400_000_000_000) {
            prop_assert_eq!(Bandwidth(bits).to_string().parse::<Bandwidth>().unwrap(), Bandwidth(bits));
        }
    }
}
