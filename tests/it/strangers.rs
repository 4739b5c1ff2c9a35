//! Who doesn't belong: wrong certificates, wrong clusters, wrong nodes, and clients that don't speak
//! the protocol. Each is turned away with one clear sentence on each side, and nobody else notices.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use tests::certs::Fleet;
use tests::node::{NodeOptions, TestNode, free_address};
use tests::{connect_from, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use transport::io::{AcceptorStatus, Event, clock};
use transport::limits::{
    HANDSHAKE_FAILURES_AT_ONCE, HANDSHAKE_FAILURES_PER_S, HANDSHAKES_PER_SOURCE_MAX,
};
use transport::{Credentials, Lane, Outcome, SessionEnd};

/// A node 1 with a peer 2 that it is well connected with, to be disturbed.
struct Disturbed {
    one: TestNode,
    two: TestNode,
    address: SocketAddr,
}

impl Disturbed {
    async fn start(fleet: &Fleet) -> Self {
        let (address, two_listens) = (free_address(), free_address());
        let options = |listen, peers| NodeOptions {
            listen,
            peers,
            ..NodeOptions::default()
        };
        // Node 3 is a peer by configuration; nothing listens for it unless the test does.
        let peers = [(2, two_listens), (3, free_address())].into();
        let mut one = TestNode::start(fleet, 1, options(Some(address), peers)).await;
        let peers = [(1, address)].into();
        let mut two = TestNode::start(fleet, 2, options(Some(two_listens), peers)).await;
        exchange(&mut one, &mut two).await;
        Self { one, two, address }
    }

    /// How node 1 put it that it turned a connection away.
    async fn turned_away(&mut self) -> String {
        self.one
            .event("a connection turned away", |event| match event {
                Event::Refused { end, .. } => Some(end.to_string()),
                _ => None,
            })
            .await
    }

    /// Node 2 stops and comes back, and has a session of its own again.
    async fn restart_two(&mut self, fleet: &Fleet) {
        let listen = self.two.transport.local_addr();
        let options = NodeOptions {
            listen: Some(listen),
            peers: [(1, self.address)].into(),
            boot: 1,
            ..NodeOptions::default()
        };
        let idle = NodeOptions::default();
        let placeholder = TestNode::start(fleet, 4, idle).await;
        std::mem::replace(&mut self.two, placeholder).stop().await;
        let two = TestNode::start(fleet, 2, options).await;
        std::mem::replace(&mut self.two, two).stop().await;
        exchange(&mut self.one, &mut self.two).await;
    }

    /// Checks that nobody noticed: the session of the good peer is the same and works.
    async fn unharmed(mut self) {
        exchange(&mut self.one, &mut self.two).await;
        while let Ok(event) = self.two.events.try_recv() {
            assert!(!matches!(event, Event::SessionDown { .. }), "{event:?}");
        }
        assert_eq!(
            self.one.transport.status().acceptor.handshakes,
            0,
            "no place is leaked"
        );
        drop((self.one.stop().await, self.two.stop().await));
    }
}

async fn exchange(one: &mut TestNode, two: &mut TestNode) {
    for lane in Lane::ALL {
        let receipt = two.send(1, lane, "hello");
        assert_eq!(one.echo().await, [Bytes::from("hello")]);
        assert_eq!(
            soon("an outcome", receipt).await,
            Outcome::Replied("hello".into())
        );
    }
}

/// How a node put it that its dial failed.
async fn dial_failed(node: &mut TestNode) -> String {
    let failed = |event: &Event| match event {
        Event::DialFailed {
            lane: Lane::Control,
            end,
            ..
        } => Some(end.to_string()),
        _ => None,
    };
    node.event("a failed dial", failed).await
}

async fn stranger(credentials: Credentials, target: u32, address: SocketAddr) -> TestNode {
    let peers = [(target, address)].into();
    TestNode::start_with(
        credentials,
        NodeOptions {
            peers,
            ..NodeOptions::default()
        },
    )
    .await
}

fn assert_says(sentence: &str, words: &[&str]) {
    for word in words {
        assert!(
            sentence.contains(word),
            "{word:?} is missing in: {sentence}"
        );
    }
    assert!(!sentence.contains('\n'), "one line: {sentence}");
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused_by_name_on_both_sides() {
    let fleet = Fleet::new("dev");
    let mut disturbed = Disturbed::start(&fleet).await;
    let others = Fleet::new("dev");
    let mut three = stranger(others.credentials(3), 1, disturbed.address).await;
    let there = dial_failed(&mut three).await;
    assert_says(
        &there,
        &["dev node 1", "issued by", "not in the CA file", "same CA?"],
    );
    let here = disturbed.turned_away().await;
    assert_says(
        &here,
        &["refused our certificate", "dev node 1", "same CA?"],
    );
    three.stop().await;
    disturbed.unharmed().await;
}

#[tokio::test]
async fn an_acceptor_that_knows_more_cas_still_refuses_an_unknown_issuer_by_name() {
    let fleet = Fleet::new("dev");
    let mut disturbed = Disturbed::start(&fleet).await;
    // This stranger trusts the fleet's CA, so it finds nothing wrong; the fleet doesn't trust its.
    let others = Fleet::new("dev");
    let mut files = others.files(3);
    files.ca = others.path("both.pem");
    let read = |fleet: &Fleet| std::fs::read_to_string(fleet.path("ca.pem")).expect("a CA");
    std::fs::write(&files.ca, read(&others) + &read(&fleet)).expect("a bundle");
    let both = Credentials::load(&files, &others.identity(3), clock::wall()).expect("credentials");
    let mut three = stranger(both, 1, disturbed.address).await;
    let there = dial_failed(&mut three).await;
    assert_says(
        &there,
        &["refused our certificate", "node-3-cert.pem", "same CA?"],
    );
    let here = disturbed.turned_away().await;
    assert_says(&here, &["dev node 3", "issued by", "not in the CA file"]);
    three.stop().await;
    disturbed.unharmed().await;
}

#[tokio::test]
async fn a_node_of_another_cluster_under_the_same_ca_is_refused_with_both_names() {
    let fleet = Fleet::new("dev");
    let mut disturbed = Disturbed::start(&fleet).await;
    let files = fleet.files_naming(&["mraft://prod/node/3"]);
    let identity = "mraft://prod/node/3".parse().expect("an identity");
    let credentials = Credentials::load(&files, &identity, clock::wall()).expect("credentials");
    let mut three = stranger(credentials, 1, disturbed.address).await;
    let there = dial_failed(&mut three).await;
    assert_says(
        &there,
        &[
            "wrong cluster",
            "wanted \"prod\"",
            "certificate says \"dev\"",
        ],
    );
    let here = disturbed.turned_away().await;
    assert_says(&here, &["certificate"]);
    three.stop().await;
    disturbed.unharmed().await;
}

#[tokio::test]
async fn a_node_at_anothers_address_is_refused_with_both_numbers() {
    let fleet = Fleet::new("dev");
    let mut disturbed = Disturbed::start(&fleet).await;
    // Node 3 wants node 2, and finds node 1 there.
    let mut three = stranger(fleet.credentials(3), 2, disturbed.address).await;
    let there = dial_failed(&mut three).await;
    assert_says(&there, &["wrong node: wanted 2, certificate says 1"]);
    let here = disturbed.turned_away().await;
    assert_says(&here, &["certificate"]);
    three.stop().await;
    disturbed.unharmed().await;
}

#[tokio::test]
async fn a_node_that_is_no_peer_is_told_so() {
    let fleet = Fleet::new("dev");
    let mut disturbed = Disturbed::start(&fleet).await;
    let mut nine = stranger(fleet.credentials(9), 1, disturbed.address).await;
    let there = dial_failed(&mut nine).await;
    assert_says(
        &there,
        &["refused by the peer", "not among its peers", "node 9"],
    );
    let here = disturbed.turned_away().await;
    assert_says(
        &here,
        &["node 9 is not among the peers of node 1", "[peers]"],
    );
    nine.stop().await;
    disturbed.unharmed().await;
}

#[tokio::test]
async fn a_node_with_other_cluster_settings_is_refused_with_the_setting_and_both_values() {
    let fleet = Fleet::new("dev");
    let mut disturbed = Disturbed::start(&fleet).await;
    let mut three = TestNode::start(
        &fleet,
        3,
        NodeOptions {
            peers: [(1, disturbed.address)].into(),
            fingerprint: vec![("groups".to_owned(), "1501".to_owned())],
            ..NodeOptions::default()
        },
    )
    .await;
    let there = dial_failed(&mut three).await;
    assert_says(&there, &["cluster settings differ", "groups = 1501"]);
    let here = disturbed.turned_away().await;
    assert_says(&here, &["setting \"groups\" differs", "there \"1501\""]);
    three.stop().await;
    disturbed.unharmed().await;
}

#[tokio::test]
async fn garbage_on_the_port_is_named_and_disturbs_nobody() {
    let fleet = Fleet::new("dev");
    let mut disturbed = Disturbed::start(&fleet).await;
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0; 5000],
        &[0xff; 5000],
    ] {
        let mut client = TcpStream::connect(disturbed.address)
            .await
            .expect("a connection");
        client.write_all(garbage).await.expect("garbage sent");
        let here = disturbed.turned_away().await;
        assert_says(&here, &["not TLS", "peer port"]);
        // The client is told and let go, not left hanging.
        let mut rest = Vec::new();
        drop(soon("an end", client.read_to_end(&mut rest)).await);
    }
    disturbed.unharmed().await;
}

#[tokio::test]
async fn a_client_that_leaves_inside_the_handshake_is_named() {
    let fleet = Fleet::new("dev");
    let mut disturbed = Disturbed::start(&fleet).await;
    drop(
        TcpStream::connect(disturbed.address)
            .await
            .expect("a connection"),
    );
    assert_says(
        &disturbed.turned_away().await,
        &["closed inside the TLS handshake"],
    );
    disturbed.unharmed().await;
}

/// Another address than the nodes' own.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

/// Scenario 107.
#[tokio::test]
async fn silent_clients_keep_no_peer_out_and_are_let_go() {
    let fleet = Fleet::new("dev");
    let mut disturbed = Disturbed::start(&fleet).await;
    let mut silent = Vec::new();
    for _ in 0..500 {
        silent.push(connect_from(ELSEWHERE, disturbed.address).await);
    }
    // Some may have been given up before the last one came.
    let all_taken = |status: AcceptorStatus| {
        status.handshakes as u64 + status.crowded_out + status.penalised + status.refused >= 500
    };
    let acceptor = |of: &Disturbed| of.one.transport.status().acceptor;
    soon("all of them to be taken", async {
        while !all_taken(acceptor(&disturbed)) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let places = acceptor(&disturbed).handshakes;
    assert!(places <= HANDSHAKES_PER_SOURCE_MAX, "{places} hold a place");
    exchange(&mut disturbed.one, &mut disturbed.two).await;
    // Node 2 comes back while they are still there, and finds a place.
    disturbed.restart_two(&fleet).await;
    let here = disturbed.turned_away().await;
    assert_says(&here, &["TLS handshake not finished within"]);
    drop(silent);
    soon("free places", async {
        while acceptor(&disturbed).handshakes > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    disturbed.unharmed().await;
}

/// Scenario 109.
#[tokio::test]
async fn a_source_of_many_failures_is_looked_at_no_more_than_its_share() {
    let fleet = Fleet::new("dev");
    let mut disturbed = Disturbed::start(&fleet).await;
    let began = clock::now();
    let mut beats = 0;
    for at in 0..400 {
        let mut client = connect_from(ELSEWHERE, disturbed.address).await;
        drop(client.write_all(b"no TLS at all").await);
        drop(soon("an end", client.read_to_end(&mut Vec::new())).await);
        if at % 20 == 0 {
            exchange(&mut disturbed.one, &mut disturbed.two).await;
            beats += 1;
        }
    }
    let status = disturbed.one.transport.status().acceptor;
    let seconds = u32::try_from((clock::now() - began).as_secs()).expect("a short test") + 1;
    let share = HANDSHAKE_FAILURES_AT_ONCE + HANDSHAKE_FAILURES_PER_S * seconds;
    assert!(
        status.refused <= u64::from(share),
        "{share} in {seconds} s: {status:?}"
    );
    assert_eq!(status.refused + status.penalised, 400, "{status:?}");
    assert_eq!(
        (status.crowded_out, beats),
        (0, 20),
        "it isn't told as overload"
    );
    // The good peer, from its own address, has lost nothing by it.
    disturbed.restart_two(&fleet).await;
    disturbed.unharmed().await;
}

#[tokio::test]
async fn something_else_at_a_peers_address_is_named() {
    let fleet = Fleet::new("dev");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            drop(client.write_all(b"220 mail.example ESMTP\r\n").await);
            drop(client.read(&mut [0; 1024]).await);
        }
    });
    let mut one = stranger(fleet.credentials(1), 2, address).await;
    assert_says(&dial_failed(&mut one).await, &["not TLS", "peer port"]);
    one.stop().await;
    server.abort();
}

#[tokio::test]
async fn nothing_at_a_peers_address_is_named() {
    let fleet = Fleet::new("dev");
    let mut one = stranger(fleet.credentials(1), 2, free_address()).await;
    let end = one
        .event("a failed dial", |event| match event {
            Event::DialFailed { end, .. } => Some(end.clone()),
            _ => None,
        })
        .await;
    assert_eq!(end, SessionEnd::from(std::io::ErrorKind::ConnectionRefused));
    assert_says(&end.to_string(), &["nothing listens there"]);
    one.stop().await;
}
