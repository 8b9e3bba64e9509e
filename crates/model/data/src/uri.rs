//! What sources are called: `SCHEME://…`, and the names of files below a directory.

/// A source's address, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// In small letters.
    pub scheme: String,
    /// User, if one is named; never with a password.
    pub user: Option<&'a str>,
    /// Host with its port, or a bucket. Empty for `file`.
    pub place: &'a str,
    /// What follows, with its first slash; may be empty.
    pub path: &'a str,
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No scheme.
    #[error("{0} is no address of a source: it has no SCHEME://")]
    NoScheme(String),
    /// A secret would be remembered with the file, for all who may read it.
    #[error("the address of {0} has a password in it, which would be kept with the file for all who may read it")]
    Password(String),
    /// It cannot be sent or shown.
    #[error("an address has a control character in it")]
    Control,
    /// Too long to be remembered.
    #[error("an address has more than {} bytes", crate::record::MAX_TEXT)]
    TooLong,
    /// A scheme without what it needs.
    #[error("{0} names no {1}")]
    Lacks(String, &'static str),
}

impl<'a> Address<'a> {
    /// Takes an address apart.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn parse(uri: &'a str) -> Result<Self, AddressError> {
        if uri.chars().any(char::is_control) {
            return Err(AddressError::Control);
        }
        if uri.len() > crate::record::MAX_TEXT {
            return Err(AddressError::TooLong);
        }
        let named = |scheme: &str| !scheme.is_empty() && scheme.starts_with(|c: char| c.is_ascii_alphabetic());
        let lawful = |scheme: &str| scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        let (scheme, rest) = uri
            .split_once("://")
            .filter(|(scheme, _)| named(scheme) && lawful(scheme))
            .ok_or_else(|| AddressError::NoScheme(uri.to_owned()))?;
        let scheme = scheme.to_ascii_lowercase();
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return Err(AddressError::Password(place.to_owned()));
        }
        if scheme == "file" && !(place.is_empty() && path.len() > 1) {
            return Err(AddressError::Lacks(uri.to_owned(), "absolute path after file://"));
        }
        if place.is_empty() && known(&scheme) && scheme != "file" {
            return Err(AddressError::Lacks(uri.to_owned(), if scheme == "s3" { "bucket" } else { "host" }));
        }
        Ok(Self { scheme, user, place, path })
    }

    /// The name of its file, as it is written: before a query or a fragment where these have a meaning, after the `#` of a plug-in's member.
    #[must_use]
    pub fn file_name(&self) -> &'a str {
        let path = match self.scheme.as_str() {
            "http" | "https" | "webdav" | "webdavs" => self.path.split(['?', '#']).next().unwrap_or_default(),
            scheme if known(scheme) => self.path,
            _ => self.path.rsplit('#').next().unwrap_or_default(),
        };
        path.rsplit('/').next().unwrap_or_default()
    }

    /// True if it names a directory: its path ends with a slash.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.path.ends_with('/')
    }
}

/// Schemes that need no plug-in.
pub const SCHEMES: [&str; 9] = ["file", "http", "https", "s3", "sftp", "webdav", "webdavs", "ftp", "ftps"];

fn known(scheme: &str) -> bool {
    SCHEMES.contains(&scheme)
}

/// True of two ways to write one address: in all that are not sent as they are written, `%20` and a blank are the same.
#[must_use]
pub fn same_address(one: &str, other: &str) -> bool {
    let parsed = |uri: &str| Address::parse(uri).ok().map(|address| address.scheme);
    let escaped = |scheme: String| known(&scheme) && !matches!(scheme.as_str(), "http" | "https");
    let rest = |uri: &str| uri.split_once("://").map(|(_, rest)| decoded(rest));
    one == other || parsed(one) == parsed(other) && parsed(one).is_some_and(escaped) && rest(one) == rest(other)
}

/// A name below a directory, as a source lists it: `None` if it could lead elsewhere, or names nothing.
#[must_use]
pub fn safe_name(name: &str) -> Option<&str> {
    let good = |part: &str| !part.is_empty() && part != "." && part != "..";
    (name.split('/').all(good) && !name.chars().any(char::is_control)).then_some(name)
}

/// `%XX` as the bytes they stand for. What is no such pair stays.
#[must_use]
pub fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let pair = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        let value = pair.filter(|pair| pair.bytes().all(|c| c.is_ascii_hexdigit())).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match value.filter(|_| bytes[at] == b'%') {
            Some(value) => (decoded.push(value), at += 3).0,
            None => (decoded.push(bytes[at]), at += 1).0,
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| text.to_owned())
}

/// A name as it stands in an address: what a path of a URI may not hold as it is (RFC 3986, section 3.3) as `%XX`.
#[must_use]
pub fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_can_be_written_in_two_ways_where_it_is_decoded() {
        assert!(same_address("file:///a%20b", "file:///a b") && same_address("S3://b/x%2by", "s3://b/x+y"));
        for (one, other) in [
            ("http://a/b%20c", "http://a/b c"),
            ("file:///a", "file:///b"),
            ("tar:///a#b", "tar:///a%23b"),
            ("ftp://h/a", "sftp://h/a"),
            ("a", "b"),
        ] {
            assert!(!same_address(one, other), "{one} {other}");
        }
    }
    use proptest::prelude::*;

    #[test]
    fn addresses() {
        let address = Address::parse("SFTP://me@host:22/a b/c?d#e").unwrap();
        assert_eq!(address, Address { scheme: "sftp".into(), user: Some("me"), place: "host:22", path: "/a b/c?d#e" });
        assert_eq!(Address::parse("file:///a").unwrap().path, "/a");
        assert!(Address::parse("s3://bucket/a/").unwrap().is_directory());
        // A plug-in's address is its own affair.
        assert_eq!(Address::parse("tar:///a/b.tar#c").unwrap().path, "/a/b.tar#c");
        assert_eq!(Address::parse("hpss://home").unwrap().place, "home");
    }

    #[test]
    fn names_of_files() {
        for (uri, name) in [
            ("https://host/a/b?version=2#x", "b"),
            ("file:///d/a%231.dat", "a%231.dat"),
            ("s3://bucket/a#1?", "a#1?"),
            ("tar:///runs/run.tar#in/mesh", "mesh"),
            ("tar:///run.tar#in.dat", "in.dat"),
            ("hpss://tape/a", "a"),
            ("https://host", ""),
        ] {
            assert_eq!(Address::parse(uri).unwrap().file_name(), name, "{uri}");
        }
    }

    #[test]
    fn what_is_no_address_is_told() {
        for (uri, said) in [
            ("data/x", "no SCHEME://"),
            ("1a://x", "no SCHEME://"),
            ("ftp://me:secret@host/x", "of host has a password"),
            ("http:///x", "no host"),
            ("s3:///x", "no bucket"),
            ("file://host/x", "absolute path"),
            ("http://a/b\nc", "control"),
        ] {
            let error = Address::parse(uri).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("secret"), "{error}");
        }
        assert_eq!(Address::parse(&format!("http://{}", "a".repeat(3000))), Err(AddressError::TooLong));
    }

    #[test]
    fn names_that_lead_elsewhere_are_none() {
        for name in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a\nb", "a\0"] {
            assert_eq!(safe_name(name), None, "{name:?}");
        }
        assert_eq!(safe_name("a b/..c/é"), Some("a b/..c/é"));
    }

    proptest! {
        #[test]
        fn a_name_in_an_address_is_read_as_it_was(name in "[a-z %?#é/]{0,12}") {
            prop_assert_eq!(decoded(&encoded(&name)), name);
        }
    }
}
