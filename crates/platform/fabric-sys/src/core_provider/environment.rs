//! What a libfabric of the port's own finds in its environment: the program's, but for what is meant for the other one.
//!
//! - `FI_PROVIDER` names the core provider alone. The program's libfabric is told to show it `mend` and nothing else.
//! - `FI_PROVIDER_PATH` is without directories that hold `libmend-fi.so`: loaded a second time, it would be a second agent.
//! - `FI_MR_CACHE_MONITOR` is `disabled` where it would be `memhooks`: a cache of registered memory that learns from the C
//!   library what is unmapped would watch the wrong one, and send what has been in a page long ago.
//! - `FI_OFI_RXM_USE_SRX` is 1, as `ofi_rxm` has it over `tcp` by itself. Without a queue of receives that all connections share, it closes
//!   a connection before it looks at what has come over it, and gives the buffer back to the endpoint that is gone: libfabric 2.5
//!   crashes there when a peer that suspends has closed its end (mended upstream in August 2026).
//! - `FI_SOCKETS_DEF_CONN_MAP_SZ` is 32768, where `sockets` begins with room for 128 connections. When that is full it moves its table, and
//!   writes on through addresses of the old one (libfabric 2.5).

use crate::Variable;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

const FILTER: &str = "FI_PROVIDER";
const PATH: &str = "FI_PROVIDER_PATH";
const MONITOR: &str = "FI_MR_CACHE_MONITOR";
const SHARED_RECEIVES: &str = "FI_OFI_RXM_USE_SRX";
const CONNECTIONS: &str = "FI_SOCKETS_DEF_CONN_MAP_SZ";
/// More than a process may have descriptors, as a rule; the memory is not touched before it is used.
const MOST_CONNECTIONS: &str = "32768";
const OURS: &str = "libmend-fi.so";

/// The variables of an instance for this core provider, made of the program's. `is_file` looks at a path.
pub fn of_instance(program: &[(OsString, OsString)], provider: &str, is_file: &dyn Fn(&Path) -> bool) -> Vec<Variable> {
    let given = |wanted: &str| program.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.to_string_lossy().into_owned());
    let decided = [
        (FILTER, filter(provider)),
        (PATH, given(PATH).and_then(|path| without_ours(&path, is_file))),
        (MONITOR, given(MONITOR).filter(|monitor| monitor != "memhooks" && !monitor.is_empty()).or_else(|| Some("disabled".to_owned()))),
        (SHARED_RECEIVES, given(SHARED_RECEIVES).filter(|word| !word.is_empty()).or_else(|| Some("1".to_owned()))),
        (CONNECTIONS, given(CONNECTIONS).filter(|word| !word.is_empty()).or_else(|| Some(MOST_CONNECTIONS.to_owned()))),
    ];
    let others = program.iter().filter(|(name, _)| decided.iter().all(|(known, _)| name != known));
    let mut variables: Vec<Variable> = others
        .filter_map(|(name, value)| Some((CString::new(name.clone().into_vec()).ok()?, Some(CString::new(value.clone().into_vec()).ok()?))))
        .collect();
    for (name, value) in decided {
        if let Ok(name) = CString::new(name) {
            variables.push((name, value.and_then(|value| CString::new(value).ok())));
        }
    }
    variables
}

/// The provider under the layers; those are never hidden by a list of names.
fn filter(provider: &str) -> Option<String> {
    let core = provider.split(';').next().unwrap_or_default();
    (!core.is_empty() && !core.contains([',', '^'])).then(|| core.to_owned())
}

/// What is left of a path; `None` if nothing is, so that libfabric looks where it was built to.
fn without_ours(path: &str, is_file: &dyn Fn(&Path) -> bool) -> Option<String> {
    let ours = |entry: &str| {
        let entry = Path::new(entry.trim_start_matches(['@', '+']));
        entry.file_name().is_some_and(|name| name == OURS) || is_file(&entry.join(OURS))
    };
    let left: Vec<&str> = path.split(':').filter(|entry| !entry.is_empty() && !ours(entry)).collect();
    (!left.is_empty()).then(|| left.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(program: &[(&str, &str)], provider: &str) -> Vec<(String, Option<String>)> {
        let program: Vec<_> = program.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
        let text = |words: CString| words.into_string().unwrap();
        let variables = of_instance(&program, provider, &|path| path == Path::new("/opt/mend/libmend-fi.so"));
        variables.into_iter().map(|(name, value)| (text(name), value.map(text))).collect()
    }

    fn value(program: &[(&str, &str)], provider: &str, wanted: &str) -> Option<String> {
        let all = told(program, provider);
        let mut found = all.iter().filter(|(name, _)| name == wanted);
        let value = found.next().unwrap().1.clone();
        assert!(found.next().is_none(), "{wanted} is there twice");
        value
    }

    #[test]
    fn the_core_provider_is_not_hidden_and_mend_is_not_loaded_again() {
        let program = [("FI_PROVIDER", "mend,verbs;mend"), ("FI_PROVIDER_PATH", "/opt/mend:/usr/lib/libfabric"), ("FI_LOG_LEVEL", "warn")];
        assert_eq!(value(&program, "verbs;ofi_rxm", FILTER).as_deref(), Some("verbs"));
        assert_eq!(value(&program, "verbs;ofi_rxm", PATH).as_deref(), Some("/usr/lib/libfabric"));
        assert_eq!(value(&program, "verbs;ofi_rxm", "FI_LOG_LEVEL").as_deref(), Some("warn"));
        assert_eq!(value(&[("FI_PROVIDER_PATH", "/opt/mend")], "tcp", PATH), None);
        assert_eq!(value(&[("FI_PROVIDER_PATH", "+/srv/libmend-fi.so:@/a:/opt/mend/")], "tcp", PATH).as_deref(), Some("@/a"));
        assert_eq!(value(&[], "tcp", PATH), None);
        assert_eq!(value(&[], "^tcp", FILTER), None);
    }

    #[test]
    fn no_cache_of_registered_memory_watches_the_wrong_library() {
        assert_eq!(value(&[], "verbs", MONITOR).as_deref(), Some("disabled"));
        assert_eq!(value(&[(MONITOR, "memhooks")], "verbs", MONITOR).as_deref(), Some("disabled"));
        assert_eq!(value(&[(MONITOR, "userfaultfd")], "verbs", MONITOR).as_deref(), Some("userfaultfd"));
    }

    #[test]
    fn sockets_has_room_for_all_connections_from_its_start() {
        assert_eq!(value(&[], "sockets", CONNECTIONS).as_deref(), Some("32768"));
        assert_eq!(value(&[(CONNECTIONS, "64")], "sockets", CONNECTIONS).as_deref(), Some("64"));
    }

    #[test]
    fn connections_share_their_receives_unless_the_user_says_otherwise() {
        assert_eq!(value(&[], "verbs;ofi_rxm", SHARED_RECEIVES).as_deref(), Some("1"));
        assert_eq!(value(&[(SHARED_RECEIVES, "0")], "verbs;ofi_rxm", SHARED_RECEIVES).as_deref(), Some("0"));
    }
}
