use super::*;
use mend_messages::health::NodeRoom;
use tokio::net::TcpListener;

const SECRET: Secret = Secret([7; 32]);
/// So many pings the daemon answers.
const ANSWERED: usize = 3;

struct Answers(mpsc::UnboundedReceiver<NodeRoom>);

impl Source for Answers {
    type Message = FromDaemon;

    async fn next(&mut self, _room: bool) -> Option<FromDaemon> {
        self.0.recv().await.map(FromDaemon::Pong)
    }
}

/// A daemon that answers some pings, then says nothing more. Returns when it got which pings.
async fn daemon(listener: TcpListener) -> Vec<Instant> {
    let (stream, _) = listener.accept().await.unwrap();
    let connection = mend_wire::accept(stream, Purpose::Job, &SECRET).await.unwrap();
    let (answers, received) = mpsc::unbounded_channel();
    let mut pings = Vec::new();
    let deliver = |message: ToDaemon| {
        assert!(matches!(message, ToDaemon::Ping { .. }));
        pings.push(Instant::now());
        if pings.len() <= ANSWERED {
            answers.send(NodeRoom::default()).unwrap();
        }
        async { true }
    };
    Link::<FromDaemon>::default().run(connection, None, &mut Answers(received), deliver).await;
    pings
}

/// Whatever was sent to a node that is lost may have renewed its lease, but not later than when it was sent.
#[tokio::test]
async fn the_last_word_to_a_silent_node_is_its_last_ping() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let daemon = tokio::spawn(daemon(listener));
    let connection = connect(address, Purpose::Job, &SECRET).await.unwrap();
    let (silence, lease) = (Duration::from_secs(2), Duration::from_secs(2));
    let (link, orders) = (Arc::new(Link::confirming(0)), Arc::default());
    let carrier = JobLink {
        node: 0,
        address,
        secret: SECRET,
        silence,
        lease,
        identity: [1; 16],
        epoch: 1,
        session: [2; 16],
        link,
        orders,
        pulse: None,
    };
    let (_commands, queue) = mpsc::unbounded_channel();
    let lost = carrier.carry(Opening::Succeeded(connection, VecDeque::new()), queue, &|_| async { true }).await;
    assert!(matches!(lost.how, NodeLoss::Gone(_)), "{lost:?}");
    let pings = daemon.await.unwrap();
    assert!(pings.len() > ANSWERED && lost.last_word <= pings[pings.len() - 1]);
}

#[tokio::test]
async fn nodes_are_pinged_together_and_no_later_than_after_a_pause() {
    let pause = Duration::from_millis(200);
    let times = |node| PingTimes::begin(node, pause);
    let of = |node: NodeIndex, now| times(node).following(now);
    let begun = Instant::now();
    for us in (0..2_000_000).step_by(7919) {
        let now = begun + Duration::from_micros(us);
        for node in 0..1024 {
            let at = of(node, now);
            assert!(at > now && at <= now + pause, "node {node} after {us} us");
        }
        assert!((0..TOGETHER.0).all(|node| of(node, now) == of(0, now)));
        let mut moments: Vec<_> = (0..1024).map(|node| of(node, now)).collect();
        moments.sort_unstable();
        moments.dedup();
        assert_eq!(moments.len() as u32, TOGETHER.1);
    }
}

#[test]
fn an_answer_is_late_by_what_others_took() {
    let (begun, pause) = (Instant::now(), Duration::from_millis(200));
    for (way, late_after) in [(Duration::from_millis(1), 1), (Duration::from_millis(400), 9)] {
        let (mut pings, mut now) = (Pings::default(), begun);
        pings.sent(1, 0, now);
        assert!(!pings.is_late(now + 100 * pause) && pings.last_word().is_none(), "nothing is known of the network");
        pings.answered(now + way);
        now += way + pause;
        // The daemon has had the first one: it can tell how old this one is.
        pings.sent(7, 6, now);
        assert_eq!((1..).find(|pauses| pings.is_late(now + *pauses * pause)), Some(late_after));
        assert_eq!(pings.last_word(), Some(now));
        pings.taking = true;
        assert!(!pings.is_late(now + 100 * pause));
    }
}

#[test]
fn how_old_a_ping_is_the_daemon_tells_by_one_before() {
    let now = Instant::now();
    let mut pings = Pings::default();
    pings.sent(1, 0, now);
    pings.answered(now);
    pings.sent(2, 0, now);
    assert_eq!(pings.last_word(), None, "neither has arrived, as far as is known");
}
