//! The rogue is silent, or slow, or doesn't listen: every limit runs out on its own session alone.
//! And no key ever tags two messages with one number, however often a link is made anew.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use tests::rogue::wire::Key;
use transport::{Receipt, Stage, TimedOut};

const LIMIT: Duration = Duration::from_millis(300);

/// The code of a close that says: you were too slow.
const TIMED_OUT: Option<u16> = Some(13);

fn short() -> RawTuning {
    let limit = u64::try_from(LIMIT.as_millis()).expect("a short limit");
    RawTuning {
        reply_timeout_ms: limit,
        dialback_timeout_ms: limit,
        handshake_timeout_ms: limit,
        bulk_stall_ms: limit,
        ..RawTuning::default()
    }
}

fn oldest(number: u64) -> SessionEnd {
    let oldest = Sequence::new(number);
    let limit = LIMIT;
    TimedOut::Reply { oldest, limit }.into()
}

/// Some items, each in a frame of its own, since the rogue has read the one before.
async fn frames(scene: &Scene, session: &mut Session, count: u64) -> Vec<Receipt> {
    let mut receipts = Vec::new();
    for at in 1..=count {
        receipts.push(scene.one.send(3, Lane::Control, at.to_string()));
        let (frame, _) = session.read().await.expect("a frame");
        assert_eq!(frame.sequence, at);
    }
    receipts
}

#[tokio::test]
async fn a_dialler_that_never_says_hello_is_let_go() {
    let mut scene = Scene::start(short()).await;
    let mut session = scene.persona.dial(scene.address, 1, CONTROL).await;
    let end = scene.refused("no hello").await;
    assert_eq!(end, TimedOut::Hello { limit: LIMIT }.into());
    assert_eq!(session.last_code().await, None);
    scene.unharmed("no hello").await;
    scene.end().await;
}

#[tokio::test]
async fn half_a_hello_is_no_hello() {
    let mut scene = Scene::start(short()).await;
    let mut session = scene.persona.dial(scene.address, 1, CONTROL).await;
    let hello = Message::new(
        kind::HELLO,
        CONTROL,
        1,
        scene.persona.hello(1, CONTROL).body(),
    );
    let hello = hello.sealed(&session.keys.hello);
    session.send(&hello[..hello.len() - 1]).await;
    let end = scene.refused("half a hello").await;
    assert_eq!(end, TimedOut::Hello { limit: LIMIT }.into());
    scene.unharmed("half a hello").await;
    scene.end().await;
}

#[tokio::test]
async fn an_acceptor_that_never_answers_the_hello_is_given_up() {
    let mut scene = Scene::start(short()).await;
    let mut session = scene.rogue.dialled(1, CONTROL).await;
    let limit = LIMIT;
    loop {
        let end = scene.dial_failed("no answer", Lane::Control).await;
        // An earlier dial may have found nobody who accepted it in time.
        if end != (TimedOut::Handshake { limit }).into() {
            assert_eq!(end, TimedOut::Hello { limit }.into());
            break;
        }
    }
    assert_eq!(session.last_code().await, None);
    scene.unharmed("no answer").await;
    scene.end().await;
}

#[tokio::test]
async fn a_peer_that_takes_connections_and_never_answers_tls_delays_nobody() {
    let mut scene = Scene::start(short()).await;
    // The kernel accepts for the rogue, who isn't looking.
    for _ in 0..3 {
        let end = scene.dial_failed("no TLS", Lane::Control).await;
        assert_eq!(end, TimedOut::Handshake { limit: LIMIT }.into());
        scene.unharmed("no TLS").await;
    }
    scene.end().await;
}

#[tokio::test]
async fn a_peer_that_reads_and_never_replies_loses_its_session_at_the_oldest_frames_limit() {
    let mut scene = Scene::start(short()).await;
    let mut session = scene.rogue.up(1, CONTROL).await;
    let receipts = frames(&scene, &mut session, 3).await;
    let end = scene
        .down("no replies", Direction::Outbound, Lane::Control)
        .await;
    assert_eq!(end, oldest(1));
    assert_eq!(session.last_code().await, TIMED_OUT);
    for receipt in receipts {
        let stage = Stage::Written;
        assert_eq!(
            soon("an outcome", receipt).await,
            Outcome::SessionLost { stage }
        );
    }
    scene.unharmed("no replies").await;
    scene.end().await;
}

#[tokio::test]
async fn a_reply_now_and_then_does_not_keep_a_session_whose_oldest_frame_is_over_its_limit() {
    let mut scene = Scene::start(short()).await;
    let mut session = scene.rogue.up(1, CONTROL).await;
    let mut receipts = frames(&scene, &mut session, 4).await.into_iter();
    // One reply each 0.9 of the limit: the peer is never silent for long, and every frame but the
    // first is answered too late, the second at 1.8 times its limit.
    let mut pace = tokio::time::interval(LIMIT.mul_f64(0.9));
    pace.tick().await;
    pace.tick().await;
    let reply = session.reply(1);
    session.send(&reply).await;
    let replied = soon("an outcome", receipts.next().expect("a receipt")).await;
    assert_eq!(replied, Outcome::Replied(Bytes::new()));
    let end = tokio::select! {
        end = scene.down("slow replies", Direction::Outbound, Lane::Control) => end,
        _ = pace.tick() => panic!("the second frame is over its limit, and the session lives"),
    };
    assert_eq!(end, oldest(2));
    assert_eq!(session.last_code().await, TIMED_OUT);
    for receipt in receipts {
        let stage = Stage::Written;
        assert_eq!(
            soon("an outcome", receipt).await,
            Outcome::SessionLost { stage }
        );
    }
    scene.unharmed("slow replies").await;
    scene.end().await;
}

#[tokio::test]
async fn a_peer_that_never_reads_loses_its_session_and_its_frames_say_what_it_may_have_seen() {
    let mut scene = Scene::start(short()).await;
    for lane in [Lane::Control, Lane::Bulk] {
        let control = scene.rogue.up(1, CONTROL).await;
        let session = match lane {
            Lane::Control => None,
            Lane::Bulk => Some(scene.rogue.up(1, BULK).await),
        };
        let item = match lane {
            Lane::Control => Bytes::from(vec![1; 60_000]),
            Lane::Bulk => Bytes::from(vec![1; 250_000]),
        };
        let receipts: Vec<_> = (0..15)
            .map(|_| scene.one.send(3, lane, item.clone()))
            .collect();
        let end = scene.down("no reading", Direction::Outbound, lane).await;
        let expected = match lane {
            Lane::Control => oldest(1),
            Lane::Bulk => {
                let oldest = Sequence::new(1);
                TimedOut::BulkStall {
                    oldest,
                    limit: LIMIT,
                }
                .into()
            }
        };
        assert_eq!(end, expected);
        let begun = receipts.iter().filter_map(Receipt::outcome);
        for outcome in begun {
            assert!(
                matches!(outcome, Outcome::SessionLost { .. }),
                "{outcome:?}"
            );
        }
        assert!(receipts[0].outcome().is_some(), "the oldest frame");
        if lane == Lane::Bulk {
            // Far more than the sockets take: what wasn't begun waits for the next session.
            assert_eq!(receipts[14].stage(), Stage::Queued);
        }
        for receipt in &receipts {
            receipt.revoke();
        }
        drop((control, session));
        scene.unharmed("no reading").await;
    }
    scene.end().await;
}

#[tokio::test]
async fn a_dialler_that_takes_no_replies_fills_its_own_window_and_no_memory() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let mut session = scene.persona.dial_up(scene.address, 1, CONTROL).await;
    let answer = Bytes::from(vec![1; 60_000]);
    let mut delivered = 0;
    let sending = async {
        loop {
            let frame = session.frame(&[b"more"]);
            session.send(&frame).await;
            let next = tokio::select! {
                biased;
                delivery = scene.one.deliveries.recv() => delivery.expect("a running node"),
                event = scene.one.events.recv() => match event.expect("events") {
                    Event::SessionDown { peer, end, .. } if peer == node(3) => return end,
                    _ => continue,
                },
            };
            next.slot.answer(transport::Answer::Taken(answer.clone()));
            delivered += 1;
        }
    };
    let end = soon("the end", sending).await;
    assert_eq!(end, PeerMisbehaved::WindowExceeded { window: 16 }.into());
    // What the two sockets and TLS took, and a window of frames beyond it.
    assert!(delivered > 16, "{delivered} frames before the end");
    drop(session);
    scene.unharmed("no replies taken").await;
    scene.end().await;
}

/// Adds what one session saw; nothing of it was seen before.
fn add_new(seen: &mut BTreeSet<(Key, u64)>, session: &Session) {
    for pair in &session.seen {
        assert!(seen.insert(*pair), "{pair:?} tagged two messages");
    }
}

#[tokio::test]
async fn no_key_tags_two_messages_with_one_number_over_twenty_reconnects() {
    let mut scene = Scene::start(RawTuning::default()).await;
    let (mut seen, mut keys) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..20_u64 {
        // What the node says as dialler: hello, frames, close.
        let mut session = scene.rogue.up(1, CONTROL).await;
        let frames = round % 4 + 1;
        for at in 1..=frames {
            let receipt = scene.one.send(3, Lane::Control, "item");
            session.read().await.expect("a frame");
            if round % 2 == 0 {
                let reply = session.reply(at);
                session.send(&reply).await;
                soon("an outcome", receipt).await;
            }
        }
        // And as acceptor: answer, replies, close.
        let (mut caller, _) = scene.dialled(Lane::Control).await;
        for session in [&mut session, &mut caller] {
            session.send(&[0; HEADER_BYTES]).await;
            assert_eq!(session.last_code().await, MISBEHAVED);
            add_new(&mut seen, session);
            keys.extend([session.keys.hello, session.keys.frame, session.keys.reply]);
        }
        let sent: Vec<u64> = session.seen.iter().map(|(_, number)| *number).collect();
        let expected: Vec<u64> = std::iter::once(1).chain(1..=frames + 1).collect();
        assert_eq!(
            sent, expected,
            "hello, then frames and the close, none left out"
        );
    }
    assert_eq!(keys.len(), 20 * 2 * 3, "no key comes twice");
    scene.unharmed("reconnects").await;
    scene.end().await;
}
