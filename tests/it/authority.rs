//! For how long a peer may speak: its sessions end when its authority ends, in both directions, and
//! nothing of it counts after that; credentials are replaced while the links work on, and nobody
//! notices. Over real TLS sockets, with certificates that the product's own code makes.

mod loss;
mod reload;
mod stop;

use std::collections::BTreeMap;

use bytes::Bytes;
use tests::certs::{Fleet, node};
use tests::node::{NodeOptions, TestNode, free_address};
use tests::soon;
use transport::config::RawTuning;
use transport::io::{Direction, Event, LaneState};
use transport::{AuthorityEnded, Credentials, Lane, Outcome, SessionEnd, TlsFiles};

/// Two nodes with files of their own, linked on both lanes in both directions.
struct Pair {
    fleet: Fleet,
    one: TestNode,
    two: TestNode,
    files: [TlsFiles; 2],
}

impl Pair {
    async fn start() -> Self {
        let fleet = Fleet::new("dev");
        let files = [1, 2].map(|number| fleet.own_files(number));
        Self::start_with(fleet, files).await
    }

    async fn start_with(fleet: Fleet, files: [TlsFiles; 2]) -> Self {
        let [first, second] = &files;
        let loaded = [fleet.load(first, 1), fleet.load(second, 2)];
        let (one, two) = start(loaded).await;
        let mut pair = Self {
            fleet,
            one,
            two,
            files,
        };
        pair.exchange().await;
        pair
    }

    /// Both lanes work in both directions.
    async fn exchange(&mut self) {
        for lane in Lane::ALL {
            exchange(&mut self.one, &mut self.two, 2, lane).await;
            exchange(&mut self.two, &mut self.one, 1, lane).await;
        }
    }

    async fn stop(self) {
        TestNode::stop_both(self.one, self.two).await;
    }
}

/// Two nodes that know each other, with these credentials.
async fn start(credentials: [Credentials; 2]) -> (TestNode, TestNode) {
    let (one_listens, two_listens) = (free_address(), free_address());
    let options = |listen, peer, address| NodeOptions {
        listen: Some(listen),
        peers: BTreeMap::from([(peer, address)]),
        // What is held unanswered is to end with the authority.
        tuning: RawTuning {
            reply_timeout_ms: 60_000,
            ..RawTuning::default()
        },
        ..NodeOptions::default()
    };
    let [first, second] = credentials;
    let one = TestNode::start_with(first, options(one_listens, 2, two_listens)).await;
    let two = TestNode::start_with(second, options(two_listens, 1, one_listens)).await;
    (one, two)
}

async fn exchange(from: &mut TestNode, to: &mut TestNode, number: u32, lane: Lane) {
    let receipt = from.send(number, lane, "hello");
    assert_eq!(to.echo().await, [Bytes::from("hello")]);
    let outcome = soon("an outcome", receipt).await;
    assert_eq!(outcome, Outcome::Replied("hello".into()));
}

/// How every session of a node's with its peer ended, once all four have: by lane and direction.
async fn all_down(node: &mut TestNode) -> BTreeMap<(Lane, Direction), SessionEnd> {
    let mut ends = BTreeMap::new();
    while ends.len() < 4 {
        let down = |event: &Event| match event {
            Event::SessionDown {
                lane,
                direction,
                end,
                ..
            } => Some(((*lane, *direction), end.clone())),
            _ => None,
        };
        let (session, end) = node.event("the end of a session", down).await;
        ends.insert(session, end);
    }
    ends
}

async fn lost(node: &mut TestNode) -> AuthorityEnded {
    let lost = |event: &Event| match event {
        Event::AuthorityLost { why, .. } => Some(*why),
        _ => None,
    };
    node.event("a lost authority", lost).await
}

async fn regained(node: &mut TestNode) {
    let regained = |event: &Event| matches!(event, Event::AuthorityRegained { .. }).then_some(());
    node.event("a regained authority", regained).await;
}

async fn reloaded(node: &mut TestNode) -> String {
    let reloaded = |event: &Event| match event {
        Event::CredentialsReloaded { leaf } => Some(leaf.serial.clone()),
        _ => None,
    };
    node.event("reloaded credentials", reloaded).await
}

/// The serial numbers of the peer's leaves on all sessions that are up.
fn serials(node: &TestNode) -> Vec<String> {
    let status = node.transport.status();
    let of_lanes = status.lanes.into_iter().filter_map(|lane| lane.certificate);
    let of_inbound = status
        .inbound
        .into_iter()
        .map(|session| session.certificate);
    of_lanes
        .chain(of_inbound)
        .map(|certificate| certificate.serial)
        .collect()
}

/// Waits until `condition` holds.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    soon(what, async {
        while !condition() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn states(of: &TestNode) -> Vec<LaneState> {
    let lanes = of.transport.status().lanes.into_iter();
    lanes.map(|lane| lane.state).collect()
}

fn peer(of: &TestNode, number: u32) -> transport::Peer {
    of.transport.peer(node(number)).expect("a peer")
}
