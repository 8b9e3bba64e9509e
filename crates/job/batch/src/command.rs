//! Running a batch system's commands.

use crate::BatchError;
use std::process::{Command, Stdio};

/// Runs it to its end; what it printed.
///
/// # Errors
/// [`BatchError::Run`], [`BatchError::Command`].
pub(crate) fn output(system: &'static str, mut command: Command) -> Result<String, BatchError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.stdin(Stdio::null()).output();
    let done = done.map_err(|source| BatchError::Run { system, command: name.clone(), source })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if done.status.success() {
        return Ok(text(&done.stdout));
    }
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    Err(BatchError::Command { command: format!("{name} {}", words.join(" ")), how: done.status.to_string(), output: text(&done.stderr) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_says_is_told_and_a_missing_one_is_named() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo out; echo cause >&2; exit 3"]);
        let failed = output("batch", shell).unwrap_err();
        assert_eq!(failed.to_string(), "sh -c echo out; echo cause >&2; exit 3 failed (exit status: 3): cause");
        assert!(matches!(output("batch", Command::new("/no/such/command")), Err(BatchError::Run { .. })));
        let mut good = Command::new("echo");
        good.arg("one");
        assert_eq!(output("batch", good).unwrap(), "one\n");
    }
}
