//! Fields of `/proc/self/fdinfo` (proc(5)).

/// The rest of the line that begins with `name`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}
