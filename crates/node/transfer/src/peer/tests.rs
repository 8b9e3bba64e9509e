//! Both ends of a transfer over real connections, and somebody between them.

use super::*;
use crate::pipeline::Target;
use mend_messages::agent::Compression;
use mend_messages::auth::Purpose;
use mend_messages::job::Program;
use std::io::Write;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const JOB: [u8; 16] = [7; 16];
const TOKEN: Token = [9; 16];
const PATIENCE: Duration = Duration::from_secs(30);

fn job(identity: [u8; 16], secret: u8, encrypt_data: bool) -> JobIntroduction {
    JobIntroduction {
        epoch: 1,
        ranks: (0..64).collect(),
        session: [4; 16],
        id: "job".into(),
        identity,
        secret: Secret([secret; 32]),
        size: 1,
        node: 0,
        program: Program { argv: vec!["program".into()], env: Vec::new(), cwd: "/".into(), umask: None, further: Vec::new() },
        encryption_key: None,
        encrypt_data,
        compression: Compression::Off,
        transport: mend_messages::chunks::Transport::Tcp,
        node_timeout_ms: 30_000,
        lease_ms: 30_000,
        unused_features: Default::default(),
        successor: None,
        worlds: Vec::new(),
    }
}

async fn admit_one(listener: &TcpListener, secret: u8) -> Result<Admitted, HandshakeError> {
    let (stream, _) = listener.accept().await.unwrap();
    let greeted = Greeted::accepted(stream, &[Purpose::Job, Purpose::Transfer]).await?;
    admit(greeted, |job| (*job == JOB).then_some(Secret([secret; 32]))).await
}

/// The transfer of an image that the source writes as an agent does, through somebody who changes the byte at `flip` of what the source
/// sends and closes after `cut` bytes.
async fn transferred(image: &[u8], encrypted: bool, flip: Option<usize>, cut: usize) -> (Result<BegunImage, TransferError>, Vec<u8>) {
    let (listener, middle) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (target, address) = (listener.local_addr().unwrap(), middle.local_addr().unwrap());
    let passing = tokio::spawn(async move {
        let (mut source, mut back) = middle.accept().await.unwrap().0.into_split();
        let (mut answers, mut forth) = TcpStream::connect(target).await.unwrap().into_split();
        tokio::spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
        let (mut seen, mut piece) = (Vec::new(), vec![0; 4096]);
        while let Ok(length @ 1..) = source.read(&mut piece).await {
            let before = seen.len();
            seen.extend_from_slice(&piece[..length]);
            let mut changed = seen[before..].to_vec();
            if let Some(byte) = flip.and_then(|at| at.checked_sub(before)).and_then(|at| changed.get_mut(at)) {
                *byte ^= 1;
            }
            changed.truncate(cut.saturating_sub(before));
            if changed.is_empty() || forth.write_all(&changed).await.is_err() {
                break;
            }
        }
        seen
    });
    let sent = image.to_vec();
    let source = tokio::spawn(async move {
        let opened = open(address, &job(JOB, 1, encrypted), TOKEN, PATIENCE).await.unwrap();
        let mut agent = std::fs::File::from(opened.into_descriptor(Arc::default()).unwrap());
        // In pieces: the header must be waited for.
        let write = move || sent.chunks(100).take(3).chain([&sent[sent.len().min(300)..]]).try_for_each(|piece| agent.write_all(piece));
        tokio::task::spawn_blocking(write).await
    });
    let admitted = admit_one(&listener, 1).await.unwrap();
    assert_eq!((admitted.job, admitted.token), (JOB, TOKEN));
    let mut place = Rendezvous::default();
    place.arrived(TOKEN, admitted.image, Instant::now());
    let begun = receive_header(
        place.expect(TOKEN, Instant::now()),
        &job(JOB, 1, encrypted),
        (1, std::net::Ipv4Addr::LOCALHOST.into()),
        (PATIENCE, PATIENCE),
        Arc::default(),
    )
    .await;
    let all = async |begun: BegunImage| {
        let mut image = std::fs::File::from(begun.image.try_clone().unwrap());
        let read = move || {
            let mut read = Vec::new();
            // A socket that was reset has given all there is.
            let _ = image.read_to_end(&mut read);
            read
        };
        (Ok(begun), tokio::task::spawn_blocking(read).await.unwrap())
    };
    let outcome = match begun {
        Ok(begun) => all(begun).await,
        Err(error) => (Err(error), Vec::new()),
    };
    // An agent whose target is gone cannot write all.
    let _ = source.await.unwrap();
    let seen = passing.await.unwrap();
    assert_eq!(seen.windows(64).any(|part| part == &image[1000..1064]), !encrypted && seen.len() > image.len());
    outcome
}

fn an_image() -> Vec<u8> {
    (0..400_000u32).map(|at| (at / 5 * 7 % 253) as u8).collect()
}

#[tokio::test]
async fn the_header_is_seen_and_still_there_afterwards() {
    for encrypted in [false, true] {
        let image = an_image();
        let (begun, read) = transferred(&image, encrypted, None, usize::MAX).await;
        let begun = begun.unwrap();
        assert_eq!(begun.header, image[..HEADER_SIZE]);
        assert!(read == image);
        assert_eq!(begun.fault.map(|fault| fault.get().cloned()), encrypted.then_some(None));
    }
}

#[tokio::test]
async fn an_encrypted_image_that_was_changed_is_not_given_on_and_the_node_is_named() {
    let image = an_image();
    let (begun, read) = transferred(&image, true, Some(300_000), usize::MAX).await;
    assert!(read.len() < 300_000 && image.starts_with(&read), "something else was given on");
    let why = begun.unwrap().fault.unwrap().get().unwrap().clone();
    assert!(why.starts_with("from the node at 127.0.0.1: encrypted record ") && why.contains("not what the peer sent"), "{why}");
    // In the header.
    let (begun, read) = transferred(&image, true, Some(1000), usize::MAX).await;
    assert!(read.is_empty() && matches!(begun.unwrap_err(), TransferError::Altered(why) if why.contains("not what the peer sent")));
}

#[tokio::test]
async fn an_encrypted_image_that_is_cut_is_told_from_one_that_ends() {
    let image = an_image();
    for cut in [200_000, 350_000] {
        let (begun, read) = transferred(&image, true, None, cut).await;
        assert!(read.len() < image.len() && image.starts_with(&read));
        assert!(begun.unwrap().fault.unwrap().get().unwrap().contains("the stream was cut"), "after {cut}");
    }
}

#[tokio::test]
async fn copies_between_nodes_arrive_or_are_refused() {
    for (ours, theirs) in [(false, false), (true, true), (true, false), (false, true)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let image = an_image();
        let sent = image.clone();
        let source = tokio::spawn(async move {
            let mut stream = open(address, &job(JOB, 1, ours), TOKEN, PATIENCE).await?;
            let write = move || stream.write(&sent).and_then(|()| stream.commit());
            tokio::task::spawn_blocking(write).await.unwrap()
        });
        let admitted = admit_one(&listener, 1).await.unwrap();
        let mut place = Rendezvous::default();
        place.arrived(TOKEN, admitted.image, Instant::now());
        let taken = take(place.expect(TOKEN, Instant::now()), &job(JOB, 1, theirs), PATIENCE).await;
        if ours != theirs {
            assert!(matches!(taken, Err(TransferError::OtherEncryption { .. })));
            assert!(matches!(source.await.unwrap(), Err(TransferError::OtherEncryption { .. })));
            continue;
        }
        let mut taken = taken.unwrap_or_else(|error| panic!("{error}"));
        let mut read = Vec::new();
        let read = tokio::task::spawn_blocking(move || taken.read_to_end(&mut read).map(|_| read)).await.unwrap().unwrap();
        assert!(read == image);
        assert_eq!(source.await.unwrap().unwrap(), image.len() as u64);
    }
}

/// All ranks of a node that was lost: from the 33rd on the oldest ones were closed.
#[tokio::test]
async fn many_images_for_one_node_all_get_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(mend_wire::admit_all(listener, |stream, _, slot| async {
        let admitting = async {
            // As a daemon that has other things to do.
            tokio::time::sleep(Duration::from_millis(5)).await;
            admit(Greeted::accepted(stream, &[Purpose::Job, Purpose::Transfer]).await?, |_| Some(Secret([1; 32]))).await
        };
        let mut place = Rendezvous::default();
        place.arrived(TOKEN, slot.hold(admitting).await?.image, Instant::now());
        let taken = take(place.expect(TOKEN, Instant::now()), &job(JOB, 1, false), PATIENCE).await;
        taken.map(drop).map_err(|error| HandshakeError::Broken(io::Error::other(error)))
    }));
    let opening: Vec<_> =
        (0..64).map(|_| tokio::spawn(async move { open(address, &job(JOB, 1, false), TOKEN, PATIENCE).await.map(drop) })).collect();
    for opened in opening {
        opened.await.unwrap().unwrap_or_else(|error| panic!("{error}"));
    }
    serving.abort();
}

/// What waits for its turn is neither called unwanted nor waited for.
#[tokio::test]
async fn copies_come_as_many_at_a_time_as_there_are_turns() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let turns = Arc::new(Semaphore::new(1));
    let (mut first, mut second) = (None, None);
    for taken in [&mut first, &mut second] {
        let opening = tokio::spawn(async move { open_copy(address, &job(JOB, 1, false), TOKEN, PATIENCE).await.map(drop) });
        let mut place = Rendezvous::default();
        place.arrived(TOKEN, admit_one(&listener, 1).await.unwrap().image, Instant::now());
        let (arrival, turns) = (place.expect(TOKEN, Instant::now()), turns.clone());
        let taking = tokio::spawn(async move { take_in_turn(arrival, &turns, &job(JOB, 1, false), PATIENCE).await });
        *taken = Some((opening, taking));
    }
    let ((first, taking_first), (second, taking_second)) = first.zip(second).unwrap();
    first.await.unwrap().unwrap();
    let (_image, turn) = taking_first.await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!second.is_finished() && !taking_second.is_finished());
    drop(turn);
    second.await.unwrap().unwrap();
    assert!(taking_second.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_source_whose_restore_gave_up_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let opening = tokio::spawn(async move { open(address, &job(JOB, 1, false), TOKEN, PATIENCE).await.map(drop) });
    let admitted = admit_one(&listener, 1).await.unwrap();
    let (mut place, now) = (Rendezvous::default(), Instant::now());
    drop(place.expect(TOKEN, now));
    place.tidy(now);
    place.arrived(TOKEN, admitted.image, now);
    assert!(matches!(opening.await.unwrap(), Err(TransferError::Unwanted { .. })));
}

#[tokio::test]
async fn unknown_jobs_and_wrong_secrets_look_the_same() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for (identity, secret) in [([8; 16], 1), (JOB, 2)] {
        let asked = job(identity, 1, false);
        let opening = async { open(address, &asked, TOKEN, PATIENCE).await };
        let (opened, admitted) = tokio::join!(opening, admit_one(&listener, secret));
        assert!(matches!(opened, Err(TransferError::Handshake { source: HandshakeError::Rejected, .. })));
        assert!(admitted.is_err());
    }
}

#[tokio::test]
async fn a_stream_that_ends_within_the_header_is_reported_with_what_came() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut source = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (target, _) = listener.accept().await.unwrap();
    source.write_all(&[1, 2, 3]).await.unwrap();
    drop(source);
    assert_eq!(peek_header(&target).await.unwrap(), [1, 2, 3]);
}
