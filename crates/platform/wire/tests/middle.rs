//! Somebody on the way between two holders of one secret: listens, changes a byte, plays back what it heard.

use mend_messages::agent::Compression;
use mend_messages::auth::{AuthError, Purpose};
use mend_messages::daemon::{FromDaemon, JobIntroduction, ToDaemon};
use mend_messages::frame;
use mend_messages::job::{Program, Secret};
use mend_wire::{HandshakeError, ReceiveError, accept, connect};
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Duration, timeout};

/// Only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);
const USERS: Secret = Secret(*b"the secret of the user, 32 bytes");
const JOBS: Secret = Secret(*b"the secret of the job is 32 long");

/// A byte that is changed on its way: of which direction, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flip {
    answers: bool,
    at: usize,
}

fn introduction() -> ToDaemon {
    ToDaemon::Introduce(Box::new(JobIntroduction {
        id: "job-to-be-hidden".into(),
        identity: [5; 16],
        secret: JOBS,
        size: 2,
        encryption_key: Some(PathBuf::from("/path/to/be/hidden")),
        node: 0,
        program: Program {
            argv: vec!["program-to-be-hidden".into()],
            env: vec![("TOKEN".into(), "value-to-be-hidden".into())],
            cwd: "/tmp".into(),
            umask: None,
            further: Vec::new(),
        },
        epoch: 1,
        ranks: Vec::new(),
        session: [3; 16],
        encrypt_data: false,
        compression: Compression::Off,
        transport: mend_messages::chunks::Transport::Tcp,
        node_timeout_ms: 5000,
        lease_ms: 10_000,
        unused_features: Default::default(),
        successor: None,
        worlds: Default::default(),
    }))
}

fn ready() -> FromDaemon {
    FromDaemon::Ready { name: "node-to-be-hidden".into(), processor: Box::default(), succeeds: false }
}

async fn relay(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, flip: Option<usize>) -> Vec<u8> {
    let mut heard = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if let Some(place) = flip.and_then(|at| at.checked_sub(heard.len())).filter(|place| *place < length) {
            bytes[place] ^= 0x80;
        }
        heard.extend_from_slice(&bytes[..length]);
        if to.write_all(&bytes[..length]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
    heard
}

/// Takes one connection, passes it on to `target`, and returns what it heard: requests and answers.
async fn middle(target: SocketAddr, flip: Option<Flip>) -> (SocketAddr, JoinHandle<[Vec<u8>; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let relaying = tokio::spawn(async move {
        let (from, to) = tokio::join!(listener.accept(), TcpStream::connect(target));
        let ((from_client, to_client), (from_server, to_server)) = (from.unwrap().0.into_split(), to.unwrap().into_split());
        let place = |answers| flip.filter(|flip| flip.answers == answers).map(|flip| flip.at);
        let (asked, answered) = tokio::join!(relay(from_client, to_server, place(false)), relay(from_server, to_client, place(true)));
        [asked, answered]
    });
    (address, relaying)
}

/// What each side of a connection saw: a controller introduces a job, a daemon answers.
struct Seen {
    controller: Result<FromDaemon, String>,
    daemon: Result<ToDaemon, String>,
    heard: [Vec<u8>; 2],
}

async fn converse(flip: Option<Flip>) -> Seen {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, relaying) = middle(listener.local_addr().unwrap(), flip).await;
    let text = |error: &dyn std::error::Error| error.to_string();
    let daemon = async {
        let stream = listener.accept().await.unwrap().0;
        let mut connection = accept(stream, Purpose::Job, &USERS).await.map_err(|error| text(&error))?;
        let message = connection.receiver.receive().await.map_err(|error| text(&error))?;
        connection.sender.send(&ready()).await.map_err(|error| text(&error))?;
        Ok(message)
    };
    let controller = async {
        let mut connection = connect(address, Purpose::Job, &USERS).await.map_err(|error| text(&error))?;
        connection.sender.send(&introduction()).await.map_err(|error| text(&error))?;
        connection.receiver.receive().await.map_err(|error| text(&error))
    };
    let (controller, daemon) = timeout(PATIENCE, async { tokio::join!(controller, daemon) }).await.expect("somebody waits for ever");
    Seen { controller, daemon, heard: relaying.await.unwrap() }
}

#[tokio::test]
async fn who_listens_hears_no_secret_and_no_message() {
    let seen = converse(None).await;
    assert_eq!((seen.daemon, seen.controller), (Ok(introduction()), Ok(ready())));
    let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    let clear = [frame::encode(&introduction()).unwrap(), frame::encode(&ready()).unwrap()];
    // What is looked for is what would be there in the clear.
    for part in [&JOBS.0[..], b"job-to-be-hidden", b"program-to-be-hidden", b"value-to-be-hidden", b"/path/to/be/hidden"] {
        assert!(has(&clear[0], part) && !has(&seen.heard[0], part), "{}", String::from_utf8_lossy(part));
    }
    assert!(has(&clear[1], b"node-to-be-hidden") && !has(&seen.heard[1], b"node-to-be-hidden"));
    for (heard, clear) in seen.heard.iter().zip(&clear) {
        assert!(heard.len() > clear.len() && !has(heard, &USERS.0) && !has(heard, b"hidden"));
        // No run of eight bytes of either frame.
        assert!(clear.windows(8).all(|window| !has(heard, window)));
    }
}

#[tokio::test]
async fn each_byte_that_is_changed_ends_the_connection_and_says_so() {
    let lengths = converse(None).await.heard.map(|heard| heard.len());
    for (answers, length) in [(false, lengths[0]), (true, lengths[1])] {
        for at in 0..length {
            let flip = Flip { answers, at };
            let seen = converse(Some(flip)).await;
            let told = [seen.daemon.as_ref().err(), seen.controller.as_ref().err()];
            // Whoever got the changed byte takes nothing from it; the other one sees the connection end.
            let direct = if answers { seen.controller.is_err() } else { seen.daemon.is_err() && seen.controller.is_err() };
            assert!(direct, "{flip:?}: {told:?}");
            let reasons = ["changed on its way", "does not speak Mend", "speaks protocol", "another kind of connection", "the same secret"];
            let named = told.iter().flatten().any(|text| reasons.iter().any(|reason| text.contains(reason)));
            assert!(named, "{flip:?}: {told:?}");
        }
    }
}

#[tokio::test]
async fn what_was_recorded_is_of_no_use_to_either_side() {
    let [asked, answered] = converse(None).await.heard;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let player = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&asked).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer.len()
    });
    let refused = accept(listener.accept().await.unwrap().0, Purpose::Job, &USERS).await.unwrap_err();
    assert!(matches!(refused, HandshakeError::Auth(AuthError::WrongSecret)), "{refused}");
    // It got a greeting and nothing that shows the secret.
    assert!(player.await.unwrap() <= mend_messages::auth::GREETING_LENGTH);
    let player = async {
        let mut stream = listener.accept().await.unwrap().0;
        stream.write_all(&answered).await.unwrap();
        stream
    };
    let (refused, _stream) = tokio::join!(connect(address, Purpose::Job, &USERS), player);
    assert!(matches!(refused.unwrap_err(), HandshakeError::Auth(AuthError::WrongSecret)));
}

#[tokio::test]
async fn a_mirror_is_not_taken_for_a_daemon() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mirror = tokio::spawn(async move {
        let (read, write) = listener.accept().await.unwrap().0.into_split();
        relay(read, write, None).await
    });
    let refused = connect(address, Purpose::Job, &USERS).await.unwrap_err();
    assert!(matches!(refused, HandshakeError::Auth(AuthError::WrongSecret)), "{refused}");
    mirror.await.unwrap();
}

#[tokio::test]
async fn a_frame_played_twice_is_refused() {
    let (inner, outer) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (address, target) = (outer.local_addr().unwrap(), inner.local_addr().unwrap());
    let accepting = async { accept(inner.accept().await.unwrap().0, Purpose::Job, &USERS).await };
    // Passes on the handshake, of which each side says two parts of 48 bytes.
    let passing = async {
        let (mut client, mut server) = (outer.accept().await.unwrap().0, TcpStream::connect(target).await.unwrap());
        let mut bytes = [0; 48];
        for _ in 0..2 {
            client.read_exact(&mut bytes).await.unwrap();
            server.write_all(&bytes).await.unwrap();
            server.read_exact(&mut bytes).await.unwrap();
            client.write_all(&bytes).await.unwrap();
        }
        (client, server)
    };
    let (client, server, (mut from, mut to)) = tokio::join!(connect(address, Purpose::Job, &USERS), accepting, passing);
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    client.sender.send(&7u32).await.unwrap();
    let mut frame = [0; 20 + 1 + 16];
    from.read_exact(&mut frame).await.unwrap();
    to.write_all(&[frame, frame].concat()).await.unwrap();
    assert_eq!(server.receiver.receive::<u32>().await.unwrap(), 7);
    assert!(matches!(server.receiver.receive::<u32>().await, Err(ReceiveError::Session(_))));
}
