//! Why a mount ends otherwise than it should: cause, way out, exit code.

use mend_messages::auth::AuthError;
use mend_wire::HandshakeError;

/// A mount that could not be.
#[derive(Debug)]
pub struct Failure {
    what: String,
    hint: String,
    code: i32,
}

impl Failure {
    /// It could not be done: exit code 1.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into(), code: 1 }
    }

    /// What was asked for makes no sense: exit code 64.
    pub fn usage(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: 64, ..Self::new(what, hint) }
    }

    /// The other node does not let us in: exit code 69.
    pub fn unreachable(host: &str, error: &HandshakeError) -> Self {
        let hint = match error {
            HandshakeError::Connect { .. } | HandshakeError::TimedOut => {
                "mount the reading side first, with `mend pipe mount --listen` on that node; or check the firewall"
            }
            HandshakeError::Rejected | HandshakeError::Auth(AuthError::WrongSecret) => error.hint(),
            HandshakeError::Auth(AuthError::OtherVersion { .. }) => "install the same release of Mend on both nodes",
            HandshakeError::Auth(_) => "another program listens on that port; say the port of the reading mount: --to HOST:PORT",
            HandshakeError::Broken(why) if why.kind() == std::io::ErrorKind::TimedOut => {
                "is the reading mount's process stopped? `ps -o stat,pid,args -C mend-pipe` on that node shows T then, and `kill -CONT PID` has it go on"
            }
            HandshakeError::Broken(_) | HandshakeError::Displaced => "look at what the reading mount says",
        };
        Self { code: 69, ..Self::new(format!("{host}: {}", mend_report::with_causes(error)), hint) }
    }

    /// Says it on standard error; the exit code.
    pub fn report(&self) -> i32 {
        mend_report::tell!("{}", mend_report::failure("mend", &self.what, &self.hint));
        self.code
    }
}
