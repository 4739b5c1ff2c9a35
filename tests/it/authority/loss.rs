//! A peer loses its authority: by a list, by time, by its CA, by the embedder's word.

use std::time::Duration;

use super::*;
use tests::node::Delivery;
use tests::rogue::Persona;
use tests::rogue::wire::{BULK, CONTROL};
use transport::{Amount, CloseCode, PeerIncompatible, ReserveRefused, SendOptions, SendRefused};
use transport::{Stage, io::clock};

/// What node 2 is told when node 1 ends a session of theirs.
fn assert_told(end: &SessionEnd, words: &str) {
    let notice = match end {
        SessionEnd::ClosedByPeer(notice) | SessionEnd::RefusedByPeer(notice) => notice,
        // Its own side of it was first.
        SessionEnd::ControlEnded => return,
        other => panic!("{other}"),
    };
    if notice.code != CloseCode::ControlEnded {
        assert_eq!(notice.code, CloseCode::Authority, "{notice}");
        assert!(notice.got.contains(words), "{notice}");
    }
}

#[tokio::test]
async fn what_a_revoked_peer_was_to_get_ends_revoked_with_its_stage_and_so_do_its_sessions() {
    let mut pair = Pair::start().await;
    let mut receipts = Vec::new();
    let mut held = Vec::new();
    for at in 0..16 {
        receipts.push(pair.one.send(2, Lane::Control, at.to_string()));
        held.push(pair.two.delivery().await);
    }
    let queued = pair.one.send(2, Lane::Control, "queued");
    let other_way = pair.two.send(1, Lane::Bulk, "asked");
    let asked = pair.one.delivery().await;
    let to_two = peer(&pair.one, 2);
    let mut room = to_two
        .try_reserve(Lane::Bulk, Amount::new(2, 100))
        .expect("room");
    let rest = Amount::new(30, 55 << 20);
    let all = to_two.try_reserve(Lane::Bulk, rest).expect("nearly all");
    let deadline = clock::now() + tests::PATIENCE;
    let waiting = {
        let to_two = to_two.clone();
        let more = Amount::new(1, 8 << 20);
        tokio::spawn(async move { to_two.reserve(Lane::Bulk, more, deadline).await.map(drop) })
    };
    until("a waiter", || {
        pair.one.transport.status().lanes[1].account.waiters == 1
    })
    .await;

    pair.fleet.publish(&pair.files[0], &[&pair.files[1]]);
    assert_eq!(lost(&mut pair.one).await, AuthorityEnded::Revoked);
    for receipt in receipts {
        let stage = Stage::Written;
        assert_eq!(
            soon("an outcome", receipt).await,
            Outcome::Revoked { stage }
        );
    }
    let stage = Stage::Queued;
    assert_eq!(soon("an outcome", queued).await, Outcome::Revoked { stage });
    let refused = soon("a refusal", waiting).await.expect("no panic");
    assert_eq!(refused, Err(ReserveRefused::Revoked));
    let again = to_two.try_reserve(Lane::Control, Amount::new(1, 1));
    assert_eq!(again.err(), Some(ReserveRefused::Revoked));
    let sent = room.send("late".into(), SendOptions::until(deadline));
    assert_eq!(sent.err(), Some(SendRefused::Revoked));
    let ends = all_down(&mut pair.one).await;
    for (session, end) in &ends {
        let revoked = SessionEnd::Authority(AuthorityEnded::Revoked);
        assert_eq!(*end, revoked, "{session:?}");
    }
    for end in all_down(&mut pair.two).await.values() {
        assert_told(end, "revoked");
    }
    // What the peer had asked is answered into nothing, and lost for the peer.
    asked.slot.taken();
    let stage = Stage::Written;
    let outcome = soon("an outcome", other_way).await;
    assert_eq!(outcome, Outcome::SessionLost { stage });
    drop((held, room, all));
    assert_eq!(states(&pair.one), [LaneState::Revoked; 2]);
    // It calls again, and is told by TLS, and the log of node 1 says by which list.
    let refused = |event: &Event| match event {
        Event::Refused { end, .. } => end
            .to_string()
            .contains("is revoked by the list")
            .then_some(()),
        _ => None,
    };
    pair.one.event("a call refused by the list", refused).await;

    // With a new certificate it is a peer like before, and nothing was restarted.
    pair.fleet
        .reissue(&pair.files[1], 2, Duration::from_secs(3600));
    regained(&mut pair.one).await;
    pair.exchange().await;
    pair.stop().await;
}

#[tokio::test]
async fn a_certificate_that_runs_out_ends_its_sessions_and_a_new_one_brings_the_peer_back() {
    let fleet = Fleet::new("dev");
    let files = [1, 2].map(|number| fleet.own_files(number));
    fleet.reissue(&files[1], 2, Duration::from_secs(3));
    let mut pair = Pair::start_with(fleet, files).await;
    let held = pair.one.send(2, Lane::Control, "held");
    let delivery = pair.two.delivery().await;
    assert_eq!(lost(&mut pair.one).await, AuthorityEnded::Expired);
    let stage = Stage::Written;
    assert_eq!(soon("an outcome", held).await, Outcome::Revoked { stage });
    drop(delivery);
    for (session, end) in all_down(&mut pair.one).await {
        let expired = SessionEnd::Authority(AuthorityEnded::Expired);
        assert_eq!(end, expired, "{session:?}");
    }
    for end in all_down(&mut pair.two).await.values() {
        assert_told(end, "expired");
    }
    pair.fleet
        .reissue(&pair.files[1], 2, Duration::from_secs(3600));
    regained(&mut pair.one).await;
    pair.exchange().await;
    pair.stop().await;
}

#[tokio::test]
async fn a_ca_that_is_taken_away_takes_its_nodes_with_it_and_brings_them_back() {
    let mut pair = Pair::start().await;
    let other = Fleet::new("dev");
    let ours = pair.files[0].clone();
    let (ca, list) = (pair.fleet.ca(), pair.fleet.list(&[]));
    // Node 1 moves to another CA by itself: its peer is of none that it knows.
    tests::certs::write(&ours.ca, &other.ca());
    tests::certs::write(ours.crl.as_ref().expect("a list"), &other.list(&[]));
    other.reissue(&ours, 1, Duration::from_secs(3600));
    assert_eq!(lost(&mut pair.one).await, AuthorityEnded::CaRemoved);
    for (session, end) in all_down(&mut pair.one).await {
        let removed = SessionEnd::Authority(AuthorityEnded::CaRemoved);
        assert_eq!(end, removed, "{session:?}");
    }
    // And back.
    tests::certs::write(&ours.ca, &ca);
    tests::certs::write(ours.crl.as_ref().expect("a list"), &list);
    pair.fleet.reissue(&ours, 1, Duration::from_secs(3600));
    regained(&mut pair.one).await;
    pair.exchange().await;
    pair.stop().await;
}

#[tokio::test]
async fn a_node_that_was_removed_is_refused_with_the_reason_whatever_its_certificate() {
    let mut pair = Pair::start().await;
    let sent = pair.one.send(2, Lane::Control, "sent");
    let held: Delivery = pair.two.delivery().await;
    peer(&pair.one, 2).revoke(AuthorityEnded::MemberRemoved);
    let stage = Stage::Written;
    assert_eq!(soon("an outcome", sent).await, Outcome::Revoked { stage });
    for end in all_down(&mut pair.one).await.values() {
        assert_eq!(*end, AuthorityEnded::MemberRemoved.into());
    }
    drop(held);
    let (got, why) = (node(2), AuthorityEnded::MemberRemoved);
    let removed = SessionEnd::from(PeerIncompatible::AuthorityEnded { got, why });
    // Handshakes that were under way may have been closed before.
    let refused = |event: &Event| match event {
        Event::Refused { end, .. } => (*end == removed).then_some(()),
        _ => None,
    };
    pair.one.event("a refused call", refused).await;
    let told = |event: &Event| match event {
        Event::DialFailed {
            end: end @ SessionEnd::RefusedByPeer(_),
            ..
        } => Some(end.clone()),
        _ => None,
    };
    let end = pair.two.event("a refused dial", told).await;
    assert_told(&end, "removed from the cluster");
    // A new certificate changes nothing.
    pair.fleet
        .reissue(&pair.files[1], 2, Duration::from_secs(3600));
    reloaded(&mut pair.two).await;
    pair.one.event("another refused call", refused).await;
    assert_eq!(peer(&pair.one, 2).authority_ended(), Some(why));
    // The embedder's word does.
    peer(&pair.one, 2).restore();
    pair.exchange().await;
    pair.stop().await;
}

#[tokio::test]
async fn a_revoked_leaf_that_nobody_uses_any_more_ends_nothing() {
    let mut pair = Pair::start().await;
    let old = pair.files[1].clone();
    let keep = pair.fleet.path("old-cert.pem");
    std::fs::copy(&old.cert, &keep).expect("a copy");
    let revoked = TlsFiles { cert: keep, ..old };
    pair.fleet
        .reissue(&pair.files[1], 2, Duration::from_secs(3600));
    let serial = reloaded(&mut pair.two).await;
    until("new sessions", || {
        serials(&pair.one) == [serial.as_str(); 4]
    })
    .await;
    pair.fleet.publish(&pair.files[0], &[&revoked]);
    reloaded(&mut pair.one).await;
    pair.exchange().await;
    assert_eq!(serials(&pair.one), [serial.as_str(); 4]);
    assert_eq!(peer(&pair.one, 2).authority_ended(), None);
    pair.stop().await;
}

#[tokio::test]
async fn a_session_under_an_older_leaf_ends_alone_where_the_peer_has_shown_a_newer_one() {
    let fleet = Fleet::new("dev");
    let files = fleet.own_files(1);
    let options = NodeOptions {
        peers: [(3, free_address())].into(),
        ..NodeOptions::default()
    };
    let mut one = TestNode::start_with(fleet.load(&files, 1), options).await;
    let address = one.transport.local_addr();
    let persona = Persona::of(&fleet, "dev", 3);
    let older = TlsFiles {
        cert: fleet.path("older.pem"),
        ..files.clone()
    };
    std::fs::copy(fleet.path("node-3-cert.pem"), &older.cert).expect("a copy");
    let mut bulk = persona.dial_up(address, 1, BULK).await;
    let newer = Persona::of(&fleet, "dev", 3);
    let mut control = newer.dial_up(address, 1, CONTROL).await;
    fleet.publish(&files, &[&older]);
    let down = |event: &Event| match event {
        Event::SessionDown { lane, end, .. } => Some((*lane, end.clone())),
        _ => None,
    };
    let ended = one.event("the end of a session", down).await;
    let why = AuthorityEnded::Revoked;
    assert_eq!(ended, (Lane::Bulk, SessionEnd::Certificate(why)));
    assert_eq!(bulk.last_code().await, Some(12));
    assert_eq!(peer(&one, 3).authority_ended(), None);
    let frame = control.frame(&[b"still here"]);
    control.send(&frame).await;
    assert_eq!(one.echo().await, ["still here"]);
    assert!(control.read().await.is_some());
    one.stop().await;
}
