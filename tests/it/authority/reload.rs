//! Credentials are replaced while the links work: nothing is lost, nothing is restarted.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use tests::certs::write;
use transport::io::clock;
use transport::{Amount, Answer, Peer, SendOptions};

const LONG: Duration = Duration::from_secs(3600);

/// Sends one item after another on every lane of `peer`, each when the one before is answered, until
/// told; every one must be replied to.
fn traffic(
    peer: &Peer,
    stop: &Arc<AtomicBool>,
    count: &Arc<AtomicU64>,
) -> Vec<tokio::task::JoinHandle<()>> {
    let send = |lane| {
        let (peer, stop, count) = (peer.clone(), Arc::clone(stop), Arc::clone(count));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let mut room = peer.try_reserve(lane, Amount::new(1, 4)).expect("room");
                let until = SendOptions::until(clock::now() + tests::PATIENCE);
                let receipt = room.send("item".into(), until).expect("a receipt");
                let outcome = soon("an outcome", receipt).await;
                assert_eq!(outcome, Outcome::Replied("item".into()), "{lane}");
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    Lane::ALL
        .into_iter()
        .flat_map(|lane| [send(lane), send(lane), send(lane)])
        .collect()
}

/// A pair whose hosts answer by themselves, under traffic both ways.
struct Busy {
    fleet: Fleet,
    files: [TlsFiles; 2],
    transports: Vec<Arc<transport::Transport>>,
    events: Vec<tokio::sync::broadcast::Receiver<Event>>,
    hosts: Vec<tokio::task::JoinHandle<()>>,
    senders: Vec<tokio::task::JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
}

impl Busy {
    async fn start() -> Self {
        let Pair {
            fleet,
            one,
            two,
            files,
        } = Pair::start().await;
        let (stop, count) = (Arc::default(), Arc::default());
        let mut busy = Self {
            fleet,
            files,
            transports: Vec::new(),
            events: Vec::new(),
            hosts: Vec::new(),
            senders: Vec::new(),
            stop,
            count,
        };
        for node in [one, two] {
            let TestNode {
                transport,
                mut deliveries,
                events,
            } = node;
            busy.transports.push(Arc::new(transport));
            busy.events.push(events.resubscribe());
            busy.hosts.push(tokio::spawn(async move {
                while let Some(delivery) = deliveries.recv().await {
                    let items = delivery.frame.into_items();
                    delivery
                        .slot
                        .answer(Answer::PerItem(items.iter().cloned().map(Ok).collect()));
                }
            }));
        }
        for (at, number) in [(0, 2), (1, 1)] {
            let peer = busy.transports[at].peer(node(number)).expect("a peer");
            busy.senders.extend(traffic(&peer, &busy.stop, &busy.count));
        }
        busy
    }

    /// Waits until so many more items went there and back.
    async fn flows(&self, items: u64) {
        let target = self.count.load(Ordering::Relaxed) + items;
        until("traffic", || {
            self.count.load(Ordering::Relaxed) >= target
                || self.senders.iter().any(|sender| sender.is_finished())
        })
        .await;
    }

    fn serials_seen_by(&self, at: usize) -> Vec<String> {
        let status = self.transports[at].status();
        let lanes = status.lanes.into_iter().filter_map(|lane| lane.certificate);
        let inbound = status
            .inbound
            .into_iter()
            .map(|session| session.certificate);
        lanes
            .chain(inbound)
            .map(|certificate| certificate.serial)
            .collect()
    }

    fn own_serial(&self, at: usize) -> String {
        self.transports[at].status().credentials.leaf.serial
    }

    /// Waits until every session shows the peer's present leaf, while traffic flows.
    async fn settled(&self) {
        until("sessions under the new leaves", || {
            (0..2).all(|at| self.serials_seen_by(1 - at) == vec![self.own_serial(at); 4])
        })
        .await;
        self.flows(50).await;
    }

    /// Waits until a node has taken over so many changes.
    async fn reloads(&self, at: usize, count: u64) {
        until("a reload", || {
            self.transports[at].status().credentials.reloads >= count
        })
        .await;
    }

    /// Ends the traffic, of which nothing may have been lost, and gives all events of a node's.
    async fn end(self) -> [Vec<Event>; 2] {
        self.stop.store(true, Ordering::Relaxed);
        for sender in self.senders {
            sender.await.expect("every item was replied to");
        }
        let events = self
            .events
            .into_iter()
            .map(|mut events| std::iter::from_fn(|| events.try_recv().ok()).collect::<Vec<_>>());
        let events = events.collect::<Vec<_>>();
        let mut stopping = Vec::new();
        for transport in self.transports {
            let transport = Arc::try_unwrap(transport).expect("nobody else holds it");
            stopping.push(tokio::spawn(transport.shut_down(Duration::from_secs(5))));
        }
        for stopping in stopping {
            let status = stopping.await.expect("a stopped transport");
            assert!(status.lanes.iter().all(|lane| lane.account.is_exact()));
        }
        for host in self.hosts {
            host.abort();
        }
        events.try_into().expect("two")
    }
}

/// Sessions were only ever replaced, each by one that was up before the old one was gone.
fn only_replaced(events: &[Event]) {
    let mut replaced = 0;
    for event in events {
        if let Event::SessionDown { end, .. } = event {
            let by_peer = matches!(end, SessionEnd::ClosedByPeer(_));
            assert!(*end == SessionEnd::Replaced && !by_peer, "{event:?}");
            replaced += 1;
        }
        assert!(
            !matches!(
                event,
                Event::AuthorityLost { .. } | Event::DialFailed { .. }
            ),
            "{event:?}"
        );
    }
    assert!(replaced > 0, "{events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leaf_is_seen_on_every_session_and_no_item_is_lost_for_it() {
    let busy = Busy::start().await;
    for round in 1..=3 {
        for (at, number) in [(0, 1), (1, 2)] {
            busy.fleet.reissue(&busy.files[at], number, LONG);
            busy.reloads(at, round).await;
            busy.settled().await;
        }
    }
    for events in busy.end().await {
        only_replaced(&events);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_the_old_ca_over_both_to_the_new_one_no_item_is_lost() {
    let busy = Busy::start().await;
    // It has the same name, as every CA of the cluster has.
    let next = Fleet::new("dev");
    let old_leaf = busy.fleet.leaf(2, LONG);
    let bundle = [&busy.fleet, &next].map(Fleet::ca).concat();
    let lists = [&busy.fleet, &next].map(|fleet| fleet.list(&[])).concat();
    for (at, files) in busy.files.iter().enumerate() {
        write(&files.ca, &bundle);
        write(files.crl.as_ref().expect("a list"), &lists);
        busy.reloads(at, 1).await;
        busy.flows(50).await;
    }
    for (at, number) in [(0, 1), (1, 2)] {
        next.reissue(&busy.files[at], number, LONG);
        busy.reloads(at, 2).await;
        busy.settled().await;
    }
    for (at, files) in busy.files.iter().enumerate() {
        write(&files.ca, &next.ca());
        write(files.crl.as_ref().expect("a list"), &next.list(&[]));
        busy.reloads(at, 3).await;
        busy.settled().await;
    }
    // A leaf of the old CA is nobody's any more: node 2 can't even load it.
    let files = busy.files[1].clone();
    write(&files.key, &old_leaf.key);
    write(&files.cert, &old_leaf.certificate);
    until("a refusal", || {
        busy.transports[1].status().credentials.fault.is_some()
    })
    .await;
    let fault = busy.transports[1]
        .status()
        .credentials
        .fault
        .unwrap_or_default();
    assert!(
        fault.contains("another CA that also calls itself"),
        "{fault}"
    );
    busy.flows(50).await;
    for events in busy.end().await {
        only_replaced(&events);
    }
}

/// Every order in which the four files of a set can be written.
fn orders() -> Vec<[usize; 4]> {
    let mut orders = Vec::new();
    for a in 0..4 {
        for b in 0..4 {
            for c in 0..4 {
                let d = 6 - (a + b + c).min(6);
                let order = [a, b, c, d];
                let mut sorted = order;
                sorted.sort_unstable();
                if sorted == [0, 1, 2, 3] {
                    orders.push(order);
                }
            }
        }
    }
    orders
}

#[tokio::test]
async fn a_set_is_taken_over_whole_whatever_the_order_in_which_its_files_are_written() {
    let fleet = Fleet::new("dev");
    let files = fleet.own_files(1);
    let node = TestNode::start_with(fleet.load(&files, 1), NodeOptions::default()).await;
    let all = orders();
    assert_eq!(all.len(), 24);
    for (number, order) in all.into_iter().enumerate() {
        let next = Fleet::new("dev");
        let pair = next.leaf(1, LONG);
        let crl = files.crl.clone().expect("a list");
        let set: [(&PathBuf, String); 4] = [
            (&files.ca, next.ca()),
            (&crl, next.list(&[])),
            (&files.cert, pair.certificate),
            (&files.key, pair.key),
        ];
        let before = node.transport.status().credentials;
        for (place, at) in order.into_iter().enumerate() {
            let (path, content) = &set[at];
            write(path, content);
            if place == 1 && number % 6 == 0 {
                // Half of it is there for a while: it is seen, and not used.
                until("a refusal", || {
                    node.transport.status().credentials.fault.is_some()
                })
                .await;
                let now = node.transport.status().credentials;
                assert_eq!(now.leaf.serial, before.leaf.serial, "{order:?}");
                assert_eq!(now.reloads, before.reloads, "{order:?}");
            }
        }
        until("a reload", || {
            node.transport.status().credentials.reloads > before.reloads
        })
        .await;
        let now = node.transport.status().credentials;
        assert_eq!(
            (now.reloads, now.fault),
            (before.reloads + 1, None),
            "{order:?}"
        );
        assert_ne!(now.leaf.serial, before.leaf.serial);
    }
    node.stop().await;
}

#[tokio::test]
async fn a_mesh_whose_certificates_all_ran_out_comes_back_when_they_are_renewed() {
    let fleet = Fleet::lasting("dev", Duration::from_secs(4));
    let files = [1, 2].map(|number| fleet.own_files_lasting(number, Duration::from_secs(3)));
    let mut pair = Pair::start_with(fleet, files).await;
    all_down(&mut pair.one).await;
    all_down(&mut pair.two).await;
    let next = Fleet::new("dev");
    for (files, number) in pair.files.iter().zip([1, 2]) {
        write(&files.ca, &next.ca());
        write(files.crl.as_ref().expect("a list"), &next.list(&[]));
        next.reissue(files, number, LONG);
    }
    regained(&mut pair.one).await;
    regained(&mut pair.two).await;
    pair.exchange().await;
    pair.stop().await;
}

#[tokio::test]
async fn a_change_of_credentials_is_not_kept_waiting_by_a_back_off() {
    let fleet = Fleet::new("dev");
    let files = [1, 2].map(|number| fleet.own_files(number));
    let others = Fleet::new("dev");
    let right = std::fs::read_to_string(&files[1].ca).expect("a CA");
    // Node 2 is of another CA altogether, until it isn't.
    let list = files[1].crl.clone().expect("a list");
    write(&files[1].ca, &others.ca());
    write(&list, &others.list(&[]));
    others.reissue(&files[1], 2, LONG);
    let credentials = [fleet.load(&files[0], 1), others.load(&files[1], 2)];
    let (mut one, mut two) = start(credentials).await;
    // The waits between dials have grown to their longest.
    until("many failures", || {
        two.transport.status().lanes[0].failures >= 8
    })
    .await;
    write(&files[1].ca, &right);
    write(&list, &fleet.list(&[]));
    fleet.reissue(&files[1], 2, LONG);
    reloaded(&mut two).await;
    let next = |event: &Event| match event {
        Event::SessionUp {
            direction: Direction::Outbound,
            ..
        } => Some(true),
        Event::DialFailed { .. } => Some(false),
        _ => None,
    };
    assert!(
        two.event("what comes next", next).await,
        "it dialled at once and was let in"
    );
    for lane in Lane::ALL {
        exchange(&mut one, &mut two, 2, lane).await;
        exchange(&mut two, &mut one, 1, lane).await;
    }
    TestNode::stop_both(one, two).await;
}

#[tokio::test]
async fn a_list_past_its_time_lets_nobody_in_and_puts_nobody_out() {
    let fleet = Fleet::new("dev");
    let files = [1, 2].map(|number| fleet.own_files(number));
    let list = files[0].crl.clone().expect("a list");
    write(&list, &fleet.list_lasting(&[], Duration::from_secs(3)));
    let mut pair = Pair::start_with(fleet, files).await;
    let due = pair
        .one
        .transport
        .status()
        .credentials
        .list_due
        .expect("a list");
    until("the list's end", || {
        let now = clock::wall()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        now.as_secs() > due.unsigned_abs()
    })
    .await;
    pair.exchange().await;
    assert_eq!(peer(&pair.one, 2).authority_ended(), None);
    // Nobody new comes in: node 2 renews its leaf, and stays on its old sessions.
    pair.fleet.reissue(&pair.files[1], 2, LONG);
    reloaded(&mut pair.two).await;
    let refused = |event: &Event| match event {
        Event::Refused { end, .. } => Some(end.to_string()),
        _ => None,
    };
    let sentence = pair.one.event("a refused call", refused).await;
    assert!(
        sentence.contains("revocation list") && sentence.contains("expired at"),
        "{sentence}"
    );
    pair.exchange().await;
    // A new list lets it in.
    pair.fleet.publish(&pair.files[0], &[]);
    let serial = pair.two.transport.status().credentials.leaf.serial;
    until("renewed sessions", || {
        serials(&pair.one) == [serial.as_str(); 4]
    })
    .await;
    pair.exchange().await;
    pair.stop().await;
}
