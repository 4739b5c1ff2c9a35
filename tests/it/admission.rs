//! Handshakes that come to nothing, and many at once: good peers get in, what is pending stays
//! bounded, and a node that has nothing more to do does nothing.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tests::certs::Fleet;
use tests::node::{NodeOptions, TestNode, free_address};
use tests::relay::Relay;
use tests::{connect_from, soon};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use transport::io::{Event, LaneState};
use transport::limits::HANDSHAKES_MAX;
use transport::{Lane, Outcome};

/// The first bytes that a TLS client of ours would say.
fn client_hello() -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"mraft/1".to_vec()];
    let name = ServerName::try_from("node").expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).expect("bytes");
    }
    bytes
}

/// Each from an address of its own: what is tried here is the handshake, not its penalty.
fn source(number: usize) -> Ipv4Addr {
    let [.., high, low] = u32::try_from(number).expect("a few").to_be_bytes();
    Ipv4Addr::new(127, 3, high, low.max(1))
}

async fn exchange(from: &mut TestNode, to: &mut TestNode, number: u32) {
    let receipt = from.send(number, Lane::Control, "hello");
    assert_eq!(to.echo().await, ["hello"]);
    let outcome = soon("an outcome", receipt).await;
    assert_eq!(outcome, Outcome::Replied("hello".into()));
}

#[tokio::test]
async fn a_caller_that_leaves_after_any_byte_of_its_first_message_costs_nobody_anything() {
    let fleet = Fleet::new("dev");
    let (mut one, mut two) = TestNode::pair(&fleet, transport::config::RawTuning::default()).await;
    exchange(&mut one, &mut two, 2).await;
    let address = one.transport.local_addr();
    let hello = client_hello();
    assert!(hello.len() > 200, "{}", hello.len());
    let before = one.transport.status().acceptor;
    for length in 0..=hello.len() {
        let mut caller = connect_from(source(length), address).await;
        caller.write_all(&hello[..length]).await.expect("bytes");
        drop(caller.shutdown().await);
        drop(soon("an end", caller.read_to_end(&mut Vec::new())).await);
        if length % 100 == 0 {
            exchange(&mut two, &mut one, 1).await;
        }
    }
    soon("free places", async {
        while one.transport.status().acceptor.handshakes > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let after = one.transport.status().acceptor;
    let came = u64::try_from(hello.len()).expect("a few") + 1;
    assert_eq!(after.refused - before.refused, came, "{after:?}");
    assert_eq!(
        (after.crowded_out, after.penalised),
        (before.crowded_out, before.penalised)
    );
    exchange(&mut two, &mut one, 1).await;
    while let Ok(event) = two.events.try_recv() {
        assert!(!matches!(event, Event::SessionDown { .. }), "{event:?}");
    }
    TestNode::stop_both(one, two).await;
}

/// Nodes that all call one.
const CALLERS: u32 = 12;

#[tokio::test]
async fn after_a_mass_cut_every_peer_is_back_and_then_nothing_happens_any_more() {
    let fleet = Fleet::new("dev");
    let address = free_address();
    let relay = Relay::start(address);
    let places: BTreeMap<u32, _> = (2..2 + CALLERS)
        .map(|number| (number, free_address()))
        .collect();
    let options = NodeOptions {
        listen: Some(address),
        peers: places.clone(),
        ..NodeOptions::default()
    };
    let hub = TestNode::start(&fleet, 1, options).await;
    let mut callers = Vec::new();
    for (number, place) in places {
        let options = NodeOptions {
            listen: Some(place),
            peers: [(1, relay.address())].into(),
            ..NodeOptions::default()
        };
        callers.push(TestNode::start(&fleet, number, options).await);
    }
    let all_up = |callers: &[TestNode]| {
        callers.iter().all(|caller| {
            let lanes = caller.transport.status().lanes;
            lanes.iter().all(|lane| lane.state == LaneState::Up)
        })
    };
    let mut pending_most = 0;
    for _ in 0..3 {
        soon("every caller", async {
            while !all_up(&callers) {
                pending_most = pending_most.max(hub.transport.status().acceptor.handshakes);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        let sessions = hub.transport.status().inbound.len();
        assert_eq!(sessions, 2 * CALLERS as usize);
        let before = sessions_of(&callers);
        relay.cut();
        soon("the cut", async {
            while sessions_of(&callers) == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
    soon("every caller", async {
        while !all_up(&callers) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert!(pending_most <= HANDSHAKES_MAX, "{pending_most}");
    // Idle again: nobody dials, and nothing is pending.
    let quiet = hub.transport.status().acceptor;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let still = hub.transport.status().acceptor;
    assert_eq!((still.accepted, still.handshakes), (quiet.accepted, 0));
    let mut stopping = Vec::new();
    for caller in callers {
        stopping.push(tokio::spawn(caller.stop()));
    }
    for stopping in stopping {
        stopping.await.expect("a stopped node");
    }
    hub.stop().await;
}

fn sessions_of(callers: &[TestNode]) -> Vec<Option<transport::id::SessionId>> {
    let lanes = callers
        .iter()
        .map(|caller| caller.transport.status().lanes[0].session);
    lanes.collect()
}
