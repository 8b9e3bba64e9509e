//! Who is let in to a target: holders of the user's secret who mean its space. A thread for each of them.
//!
//! Faults assumed: anybody connects and sends anything (as at the daemon's own port); a client dies in the middle of a request.

use super::leases::Leases;
use super::links::{Linked, Links};
use super::store::Store;
use super::under_way::{SAID, UnderWay};
use super::{Answered, Failure, Served};
use crate::link::{Link, context};
use mend_data::space::Id;
use mend_data::space::target::{Answer, Failed, Hello, MAX_IDS, Request, Welcome};
use mend_messages::auth::Purpose;
use mend_messages::job::Secret;
use mend_wire::{Connection, Greeted, HANDSHAKE_TIMEOUT, HandshakeError, HandshakeSlot, admit_all};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// How long an earlier process of the directory may take to let go of its database.
const LEAVING_TIME: Duration = Duration::from_secs(5);

/// Serves a directory until standard input ends. Says `ready PORT` on standard output when it can be reached, or `refused WHY`. The exit code.
pub fn run(space: &Id, directory: &Path, create: bool, secret: Secret) -> i32 {
    serve(space, secret, || Ok(Arc::new(open(directory, space, create)?)))
}

/// Serves what is opened, as [`run`] does.
pub fn serve(space: &Id, secret: Secret, open: impl FnOnce() -> Result<Arc<dyn Served>, Failure>) -> i32 {
    match open().and_then(|served| serve_all(space, secret, served)) {
        Ok(()) => 0,
        Err(Failure { why, .. }) => {
            let _ = writeln!(io::stdout(), "refused {}", why.replace('\n', " "));
            1
        }
    }
}

fn serve_all(space: &Id, secret: Secret, store: Arc<dyn Served>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // On any address, as the daemon does, by whose port it is found.
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    let port = listener.local_addr()?.port();
    let mut out = io::stdout();
    writeln!(out, "ready {port}").and_then(|()| out.flush())?;
    std::thread::spawn(|| {
        // The daemon holds the other end, and says nothing. Its end is ours, however it comes: nothing here needs closing.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let begun = store.clone();
    std::thread::spawn(move || begun.begun());
    let leases = Leases::begin(Instant::now(), u64::from_le_bytes(mend_wire::random_bytes()));
    let door = Arc::new(Door { store, leases, links: Arc::default(), under_way: UnderWay::default(), space: *space, secret });
    door.clone().say_now_and_then();
    runtime.block_on(admit_all(listener, |stream, peer, slot| admit(door.clone(), stream, peer, slot)));
    Ok(())
}

fn open(directory: &Path, space: &Id, create: bool) -> Result<Store, Failure> {
    let until = Instant::now() + LEAVING_TIME;
    loop {
        match Store::open(directory, space, create) {
            Err(failure) if failure.why.contains("already open") && Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            opened => return opened,
        }
    }
}

struct Door {
    store: Arc<dyn Served>,
    leases: Leases,
    links: Arc<Links>,
    under_way: UnderWay,
    space: Id,
    secret: Secret,
}

impl Door {
    /// Has clients told what takes long.
    fn say_now_and_then(self: Arc<Self>) {
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(SAID);
                self.under_way.say();
            }
        });
    }
}

async fn admit(door: Arc<Door>, stream: TcpStream, peer: SocketAddr, slot: HandshakeSlot) -> Result<(), HandshakeError> {
    let meeting = async { timeout(HANDSHAKE_TIMEOUT, meet(&door, stream)).await.map_err(|_| HandshakeError::TimedOut)? };
    let Some((mut link, client, linked)) = slot.hold(meeting).await? else { return Ok(()) };
    let door = door.clone();
    let spawned = std::thread::Builder::new().name(format!("client {}", peer.ip())).spawn(move || {
        // It ends with the connection.
        let _ = answer_all(&door, &mut link, client, &linked);
    });
    spawned.map(drop).map_err(HandshakeError::Broken)
}

async fn meet(door: &Door, stream: TcpStream) -> Result<Option<(Link, Id, Linked)>, HandshakeError> {
    let broken = |error: io::Error| HandshakeError::Broken(error);
    let mut connection: Connection = Greeted::accepted(stream, &[Purpose::Target]).await?.prove_as_acceptor(&door.secret, &[]).await?;
    let hello: Hello = connection.receiver.receive().await.map_err(|error| broken(io::Error::other(error)))?;
    let nonce: [u8; 32] = mend_wire::random_bytes();
    let fits = hello.space == door.space && hello.given_up.len() <= MAX_IDS;
    // A value that makes no sense is no reason to send in the clear.
    let encrypts = hello.encrypts || !matches!(mend_settings::ENCRYPT_DATA.choice(), Ok("off"));
    // Before the client hears that it is welcome: then it takes for granted that what it has given up is over.
    let linked = fits.then(|| door.links.begin(hello.client, hello.number, &hello.given_up));
    let welcome = if fits { Welcome::Yes { nonce, encrypts } } else { Welcome::Refused };
    connection.sender.send(&welcome).await.map_err(|error| broken(io::Error::other(error)))?;
    let Some(linked) = linked else { return Ok(None) };
    let stream = connection.into_tcp().ok_or_else(|| broken(io::Error::other("the client did not wait for the answer")))?;
    let keys = mend_cipher::acceptor(&door.secret, [&hello.nonce, &nonce], &context(&door.space));
    let link = Link::new(stream.into_std().map_err(broken)?, keys, encrypts, None).map_err(broken)?;
    Ok(Some((link, hello.client, linked)))
}

fn answer_all(door: &Door, link: &mut Link, client: Id, linked: &Linked) -> io::Result<()> {
    let mut payload = Vec::new();
    loop {
        let request = link.request(&mut payload)?;
        let (leaves, is_bulk) = (request == Request::Leave, request.wants_bulk());
        let sound = if request.is_sound() { Ok(()) } else { Err(Failure::new(Failed::Nonsense, "the request makes no sense")) };
        // What only tells something disturbs nobody. If that takes long, another target may have the same.
        let changes = !tells(&request);
        let under_way = changes.then(|| door.under_way.begin(link.at_it()));
        let Some(carrying_out) = linked.begin(changes) else { return Ok(()) };
        let answered = sound.and_then(|()| carry_out(door, client, request, &payload));
        drop((carrying_out, under_way));
        match answered {
            Ok((answer, bytes)) => {
                link.send(&answer, &bytes, is_bulk)?;
                if leaves {
                    std::process::exit(0);
                }
            }
            Err(Failure { kind, why }) => link.send(&Answer::Failed { kind, why }, &[], false)?,
        }
    }
}

/// True of a request that changes nothing.
fn tells(request: &Request) -> bool {
    matches!(
        request,
        Request::Look
            | Request::Changes { .. }
            | Request::Read { .. }
            | Request::ReadSums { .. }
            | Request::ReadRange { .. }
            | Request::ReadBlocks { .. }
            | Request::Lacking { .. }
            | Request::Verify { .. }
            | Request::Shapes { .. }
            | Request::Writing { .. }
            | Request::Patterns { .. }
    )
}

/// Carries out a request of a client, when nothing that others were promised stands against it.
fn carry_out(door: &Door, client: Id, request: Request, payload: &[u8]) -> Answered {
    let Door { store, leases, .. } = door;
    if !store.is_alone() {
        return store.carry_out(request, payload);
    }
    if let Request::Changes { lease: true, .. } = request {
        let given = leases.grant(&client, Instant::now());
        let mut answered = store.carry_out(request, payload)?;
        if let Answer::Changes { lease, .. } = &mut answered.0 {
            *lease = given;
        }
        return Ok(answered);
    }
    let _changing = (!request.changed().is_empty()).then(|| {
        let (changing, wait) = leases.change(client, Instant::now());
        std::thread::sleep(wait);
        changing
    });
    store.carry_out(request, payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};

    /// Answers when it is let go.
    struct Slow(Mutex<Receiver<()>>);

    impl Served for Slow {
        fn carry_out(&self, _request: Request, _payload: &[u8]) -> Answered {
            self.0.lock().unwrap().recv().unwrap();
            Ok((Answer::Done, Vec::new()))
        }
    }

    #[test]
    fn who_waits_for_what_takes_long_hears_that_the_target_is_at_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let (secret, space, nonces) = (Secret([1; 32]), [2; 16], [&[3; 32], &[4; 32]]);
        let mut near = Link::new(near, mend_cipher::initiator(&secret, nonces, &context(&space)), false, None).unwrap();
        let mut far = Link::new(far, mend_cipher::acceptor(&secret, nonces, &context(&space)), false, None).unwrap();
        let (go, wait) = channel();
        let leases = Leases::begin(Instant::now(), 0);
        let store = Arc::new(Slow(Mutex::new(wait)));
        let door = Arc::new(Door { store, leases, links: Arc::default(), under_way: UnderWay::default(), space, secret });
        door.clone().say_now_and_then();
        let linked = door.links.begin([5; 16], 0, &[]);
        std::thread::spawn(move || answer_all(&door, &mut far, [5; 16], &linked));
        near.ask(&Request::Sync { file: [6; 16], epoch: 0, position: 0, boot: [7; 16] }, &[]).unwrap();
        assert_eq!([(); 2].map(|()| near.receive::<Answer>().unwrap()), [Answer::AtIt, Answer::AtIt]);
        go.send(()).unwrap();
        assert_eq!(near.answer(&|| {}).unwrap(), (Answer::Done, Vec::new()));
    }
}
