//! Without credentials the answer comes soon, and says what is missing.

use std::net::TcpListener;
use std::process::Command;

fn get(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mend-object"));
    command.args(["get", "s3://bucket/key"]).env_clear().envs(variables.iter().copied());
    let done = command.output().unwrap();
    assert!(!done.status.success() && done.stdout.is_empty());
    String::from_utf8(done.stderr).unwrap()
}

#[test]
fn a_machine_without_a_role_is_asked_once_and_what_to_set_is_named() {
    // Nobody answers at an address that was given up.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = get(&[("AWS_METADATA_ENDPOINT", &format!("http://{address}"))]);
    assert!(said.starts_with("no credentials for the store: ") && said.contains("set AWS_ACCESS_KEY_ID"), "{said}");
}

#[test]
fn who_names_credentials_is_not_asked_for_others() {
    // The machine's own place for them would answer nothing, for ever.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let metadata = format!("http://{}", silent.local_addr().unwrap());
    // No port of the store's address can be reached either: not being TLS, it is refused before.
    let variables = [
        ("AWS_METADATA_ENDPOINT", metadata.as_str()),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
    ];
    let said = get(&variables);
    assert!(said.starts_with("the store cannot be used: "), "{said}");
    silent.set_nonblocking(true).unwrap();
    assert!(silent.accept().is_err());
}
