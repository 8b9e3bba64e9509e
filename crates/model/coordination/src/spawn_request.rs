//! What a rank asks for by `MPI_Comm_spawn`, as PMI-1 carries it.
//!
//! ```text
//! mcmd=spawn ── nprocs, execname, totspawns, spawnssofar, argcnt, argN, preput_key_N, preput_val_N, info_key_N, info_val_N ── endcmd
//! ```
//! One such block for each command, each line `name=value` to its end, all of them answered by one line.
//!
//! Faults assumed: any field is missing, twice, or has any value.

use mend_messages::job::MAX_RANKS;
use mend_messages::world::SpawnedCommand;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const BEGIN: &[u8] = b"mcmd=spawn\n";
const END: &[u8] = b"endcmd\n";

/// A request to start processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnRequest {
    /// What is to run, at least one.
    pub commands: Vec<SpawnedCommand>,
    /// For each command the hosts that it is to run on, in turn; none: any.
    pub hosts: Vec<Vec<String>>,
    /// What the new processes find under these names.
    pub preput: Vec<(String, String)>,
}

/// How long a request is that bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// They begin with something else.
    Other,
    /// Its end has not come.
    Unfinished,
    /// So many bytes.
    Whole(usize),
}

impl SpawnRequest {
    /// How long the request is that these bytes begin with.
    #[must_use]
    pub fn length(bytes: &[u8]) -> Length {
        let mut at = 0;
        loop {
            let block = &bytes[at..];
            if !block.starts_with(BEGIN) {
                // A command may follow that is not of this request: then the request ends before it.
                return match (at, BEGIN.starts_with(block)) {
                    (0, _) => Length::Other,
                    (_, true) => Length::Unfinished,
                    (_, false) => Length::Whole(at),
                };
            }
            let Some(end) = block.windows(END.len() + 1).position(|window| window[0] == b'\n' && window[1..] == *END) else {
                return Length::Unfinished;
            };
            let fields = fields(&block[..=end]);
            let number = |name: &str| fields.get(name).and_then(|value| value.parse::<u32>().ok());
            at += end + 1 + END.len();
            if number("totspawns").unwrap_or(1) <= number("spawnssofar").unwrap_or(1) {
                return Length::Whole(at);
            }
        }
    }

    /// Reads a whole request.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut request = Self::default();
        let mut rest = bytes;
        while let Some(block) = rest.strip_prefix(BEGIN) {
            let end = block.windows(END.len()).position(|window| window == END).unwrap_or(block.len());
            request.add(&fields(&block[..end]))?;
            rest = block.get(end + END.len()..).unwrap_or_default();
        }
        let ranks = request.commands.iter().map(|command| command.ranks).fold(0, u32::saturating_add);
        match ranks {
            0 => Err("the request names no command".to_owned()),
            _ if ranks > MAX_RANKS => Err(format!("{ranks} processes are more than the {MAX_RANKS} that a job may have")),
            _ => Ok(request),
        }
    }

    fn add(&mut self, fields: &BTreeMap<String, String>) -> Result<(), String> {
        let number = |name: &str| fields.get(name).and_then(|value| value.parse::<u32>().ok());
        let name = fields.get("execname").filter(|name| !name.is_empty()).ok_or("the request names no program")?;
        let ranks = number("nprocs").filter(|ranks| *ranks > 0).ok_or("the request names no number of processes")?;
        let arguments = (1..=number("argcnt").unwrap_or(0)).map_while(|at| fields.get(&format!("arg{at}")));
        let pairs = |prefix: &'static str| {
            let pair = move |at| Some((fields.get(&format!("{prefix}_key_{at}"))?, fields.get(&format!("{prefix}_val_{at}"))?));
            (0..number(&format!("{prefix}_num")).unwrap_or(0)).map_while(pair)
        };
        let info: BTreeMap<&str, &str> = pairs("info").map(|(key, value)| (key.as_str(), value.trim())).collect();
        let value = |key: &str| info.get(key).copied().filter(|value| !value.is_empty());
        let hosts = value("hosts").or_else(|| value("host")).into_iter().flat_map(|hosts| hosts.split(','));
        self.hosts.push(hosts.map(|host| host.trim().to_owned()).filter(|host| !host.is_empty()).collect());
        self.preput.extend(pairs("preput").map(|(key, value)| (key.clone(), value.clone())));
        self.commands.push(SpawnedCommand {
            ranks,
            argv: std::iter::once(name).chain(arguments).cloned().collect(),
            directory: value("wdir").or_else(|| value("wd")).map(Into::into),
            path: value("path").map(str::to_owned),
        });
        Ok(())
    }
}

fn fields(block: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(block);
    text.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: &str = "mcmd=spawn\nnprocs=2\nexecname=./a b\ntotspawns=2\nspawnssofar=1\nargcnt=2\narg1=x=1 y\narg2=\n\
        preput_num=1\npreput_key_0=PARENT_ROOT_PORT_NAME\npreput_val_0=tag#0$description#a b$\n\
        info_num=3\ninfo_key_0=host\ninfo_val_0=n1, n2\ninfo_key_1=wdir\ninfo_val_1=/tmp\ninfo_key_2=unknown\ninfo_val_2=x\nendcmd\n";
    const TWO: &str = "mcmd=spawn\nnprocs=1\nexecname=c\ntotspawns=2\nspawnssofar=2\nargcnt=0\npreput_num=0\ninfo_num=1\n\
        info_key_0=path\ninfo_val_0=/opt/bin\nendcmd\n";

    #[test]
    fn a_request_of_two_commands_is_read() {
        let text = format!("{ONE}{TWO}");
        for length in 0..text.len() {
            let expected = if length < BEGIN.len() { Length::Other } else { Length::Unfinished };
            assert_eq!(SpawnRequest::length(&text.as_bytes()[..length]), expected, "{length}");
        }
        assert_eq!(SpawnRequest::length(format!("{text}cmd=get\n").as_bytes()), Length::Whole(text.len()));
        let request = SpawnRequest::read(text.as_bytes()).unwrap();
        let first = SpawnedCommand {
            ranks: 2,
            argv: ["./a b", "x=1 y", ""].map(str::to_owned).to_vec(),
            directory: Some("/tmp".into()),
            path: None,
        };
        let second = SpawnedCommand { ranks: 1, argv: vec!["c".into()], directory: None, path: Some("/opt/bin".into()) };
        assert_eq!(request.commands, [first, second]);
        assert_eq!(request.hosts, [vec!["n1".to_owned(), "n2".to_owned()], Vec::new()]);
        assert_eq!(request.preput, [("PARENT_ROOT_PORT_NAME".to_owned(), "tag#0$description#a b$".to_owned())]);
    }

    #[test]
    fn what_cannot_be_started_is_refused_with_its_reason() {
        let refused = |text: &str| SpawnRequest::read(text.as_bytes()).unwrap_err();
        assert!(refused("mcmd=spawn\nnprocs=1\nendcmd\n").contains("no program"));
        assert!(refused("mcmd=spawn\nexecname=a\nnprocs=0\nendcmd\n").contains("number of processes"));
        assert!(refused("mcmd=spawn\nexecname=a\nnprocs=2000000\nendcmd\n").contains("2000000"));
        // A request that promises more commands than come ends with what comes next.
        let short = "mcmd=spawn\nexecname=a\nnprocs=1\ntotspawns=2\nspawnssofar=1\nendcmd\n";
        assert_eq!(SpawnRequest::length(format!("{short}cmd=get\n").as_bytes()), Length::Whole(short.len()));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let text = [BEGIN, &bytes, b"\nendcmd\n"].concat();
            if let Length::Whole(length) = SpawnRequest::length(&text) {
                let _ = SpawnRequest::read(&text[..length]);
            }
            let _ = SpawnRequest::length(&bytes);
        }
    }
}
