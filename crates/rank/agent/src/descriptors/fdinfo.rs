//! Fields of `/proc/self/fdinfo` (proc(5)).

/// The rest of the line that begins with `name`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// The flags of the open file and of its number, as open(2) has them; 0 if the text does not tell.
pub(crate) fn flags(info: &str) -> i32 {
    field(info, "flags:").and_then(|text| i32::from_str_radix(text, 8).ok()).unwrap_or(0)
}
