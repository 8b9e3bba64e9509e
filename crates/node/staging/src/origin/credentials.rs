//! Credentials of a source, by a reference that may be shown and kept.
//!
//! ```text
//! env:PREFIX      the variables PREFIX_USER, PREFIX_PASSWORD, … ; env:AWS has the usual names
//! file:PATH       lines NAME = VALUE, the file nobody else's to read (mode 0600)
//! profile:NAME    the file $MEND_HOME/credentials/NAME
//! ```
//! Invariant: what is read here is printed nowhere and kept nowhere.

use mend_data::plan::Fault;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What may be named, in small letters.
const NAMES: [&str; 8] = ["user", "password", "token", "access_key_id", "secret_access_key", "session_token", "key", "region"];

/// Some of them.
#[derive(Default)]
pub struct Credentials(BTreeMap<&'static str, String>);

impl Credentials {
    /// What a reference leads to. None is no credentials.
    pub fn read(reference: Option<&str>) -> Result<Self, Fault> {
        let Some(reference) = reference else { return Ok(Self::default()) };
        let read = match reference.split_once(':') {
            Some(("env", prefix)) => Ok(Self::of_environment(prefix)),
            Some(("file", path)) => Self::of_file(Path::new(path)),
            Some(("profile", name)) if !name.contains('/') => mend_settings::home()
                .map_err(|error| error.to_string())
                .and_then(|home| Self::of_file(&home.join("credentials").join(name))),
            _ => Err("it is none of env:PREFIX, file:PATH, profile:NAME".to_owned()),
        };
        match read {
            Ok(found) if found.0.is_empty() => Err(Fault::Final(format!("its credentials are not in {reference}: nothing is there"))),
            Ok(found) => Ok(found),
            Err(why) => Err(Fault::Final(format!("its credentials are not in {reference}: {why}"))),
        }
    }

    fn of_environment(prefix: &str) -> Self {
        let named = |name: &&'static str| std::env::var(format!("{prefix}_{}", name.to_uppercase())).ok().filter(|value| !value.is_empty());
        Self(NAMES.iter().filter_map(|name| named(name).map(|value| (*name, value))).collect())
    }

    fn of_file(path: &Path) -> Result<Self, String> {
        let mode = fs::metadata(path).map_err(|error| error.to_string())?.mode();
        if mode & 0o077 != 0 {
            return Err("others may read it (chmod 600)".to_owned());
        }
        let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
        let mut found = BTreeMap::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with('#')) {
            let pair = line.split_once('=').map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()));
            let known = pair.and_then(|(name, value)| NAMES.iter().find(|known| **known == name).map(|known| (*known, value)));
            let (name, value) = known.ok_or_else(|| format!("line {} is none of NAME = VALUE with {}", at + 1, NAMES.join(", ")))?;
            found.insert(name, value);
        }
        Ok(Self(found))
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_others_may_read_is_refused_and_its_content_never_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, "# mine\nUser = me\npassword=a = b\n").unwrap();
        let reference = format!("file:{}", path.display());
        let read = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Credentials::read(Some(&reference))
        };
        let refused = |mode| match read(mode) {
            Err(Fault::Final(why)) => why,
            _ => panic!("not refused"),
        };
        assert!(refused(0o640).contains("chmod 600"));
        let found = read(0o600).ok().unwrap();
        assert_eq!((found.get("user"), found.get("password"), found.get("token")), (Some("me"), Some("a = b"), None));
        fs::write(&path, "secret word\n").unwrap();
        let said = refused(0o600);
        assert!(said.contains("line 1 is none of") && !said.contains("secret word"), "{said}");
    }

    #[test]
    fn a_reference_that_leads_nowhere_is_named() {
        for (reference, said) in [
            ("env:MEND_TEST_NOT_SET", "nothing is there"),
            ("secret", "none of env:"),
            ("file:/nonexistent/x", "No such file"),
            ("profile:../x", "none of env:"),
        ] {
            match Credentials::read(Some(reference)) {
                Err(Fault::Final(why)) => assert!(why.contains(said) && why.contains(reference), "{why}"),
                _ => panic!("{reference}"),
            }
        }
        assert!(Credentials::read(None).is_ok_and(|none| none.is_empty()));
    }
}
