//! Nothing that is verified after the end of a peer's authority counts, to the message: what came
//! in the same bytes as the last one that counted is not looked at.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use tests::rogue::wire::CONTROL;
use tests::rogue::{Listener, Persona};
use transport::{
    Amount, Boot, Config, Frame, Inbound, Incarnation, Peer, PeerId, ReplySlot, SendOptions, Stage,
    Transport, Verified, io::clock,
};

/// A host that ends the peer's authority when it gets its first frame.
#[derive(Default)]
struct EndsAtOnce {
    peer: OnceLock<Peer>,
    frames: std::sync::Mutex<Vec<Bytes>>,
}

impl Inbound for EndsAtOnce {
    fn deliver(&self, _: PeerId, _: Lane, frame: Verified<Frame>, slot: ReplySlot) {
        let items = frame.into_items();
        self.frames.lock().expect("no panic").extend(items);
        if let Some(peer) = self.peer.get() {
            peer.revoke(AuthorityEnded::ByCaller);
        }
        slot.taken();
    }
}

/// Node 1 with a peer 3 that the rogue plays.
async fn node_one(fleet: &Fleet, rogue: &Listener, host: Arc<dyn Inbound>) -> Transport {
    let credentials = fleet.credentials(1);
    let mut config = Config::new(
        credentials.facts().identity.clone(),
        Incarnation::new([1; 16]),
        Boot::new(1),
        ([127, 0, 0, 1], 0).into(),
        [(node(3), rogue.address().to_string())].into(),
    );
    config.tuning = RawTuning::default().try_into().expect("a tuning");
    Transport::start(config, credentials, host)
        .await
        .expect("a transport")
}

#[tokio::test]
async fn no_frame_is_delivered_that_came_with_the_one_at_which_the_authority_ended() {
    let fleet = Fleet::new("dev");
    let persona = Persona::of(&fleet, "dev", 3);
    let rogue = Listener::start(persona.clone());
    let host = Arc::new(EndsAtOnce::default());
    let one = node_one(&fleet, &rogue, Arc::clone(&host) as Arc<dyn Inbound>).await;
    host.peer
        .set(one.peer(node(3)).expect("a peer"))
        .expect("the only one");
    let mut events = one.subscribe();
    let mut session = persona.dial_up(one.local_addr(), 1, CONTROL).await;
    // One write, one record: all of them are there when the first is delivered.
    let frames = [
        session.frame(&[b"1"]),
        session.frame(&[b"2"]),
        session.frame(&[b"3"]),
    ];
    session.send(&frames.concat()).await;
    let end = soon("the end of the session", async {
        loop {
            if let Ok(Event::SessionDown { end, .. }) = events.recv().await {
                return end;
            }
        }
    })
    .await;
    assert_eq!(end, AuthorityEnded::ByCaller.into());
    assert_eq!(*host.frames.lock().expect("no panic"), ["1"]);
    // Nor was anything answered after it: the close is all that follows.
    assert_eq!(session.last_code().await, Some(12));
    one.shut_down(std::time::Duration::from_secs(5)).await;
}

/// Ends the peer's authority when an item of it is answered.
struct EndsWhenWoken(Peer);

impl Wake for EndsWhenWoken {
    fn wake(self: Arc<Self>) {
        self.0.revoke(AuthorityEnded::ByCaller);
    }
}

/// A host that nobody speaks to.
struct Silent;

impl Inbound for Silent {
    fn deliver(&self, _: PeerId, _: Lane, _: Verified<Frame>, slot: ReplySlot) {
        slot.taken();
    }
}

#[tokio::test]
async fn no_reply_counts_that_came_with_the_one_at_which_the_authority_ended() {
    let fleet = Fleet::new("dev");
    let mut rogue = Listener::start(Persona::of(&fleet, "dev", 3));
    let one = node_one(&fleet, &rogue, Arc::new(Silent)).await;
    let mut session = rogue.up(1, CONTROL).await;
    let to_three = one.peer(node(3)).expect("a peer");
    let mut receipts = Vec::new();
    for at in 1..=3_u64 {
        let mut room = to_three
            .try_reserve(Lane::Control, Amount::new(1, 1))
            .expect("room");
        let until = SendOptions::until(clock::now() + tests::PATIENCE);
        receipts.push(room.send("x".into(), until).expect("a receipt"));
        let (frame, _) = session.read().await.expect("a frame");
        assert_eq!(frame.sequence, at);
    }
    let waker = Waker::from(Arc::new(EndsWhenWoken(to_three.clone())));
    let first = std::pin::Pin::new(&mut receipts[0]);
    assert_eq!(first.poll(&mut Context::from_waker(&waker)), Poll::Pending);
    let replies = [session.reply(1), session.reply(2), session.reply(3)];
    session.send(&replies.concat()).await;
    // The first receipt keeps its waker until then.
    until("the end of its authority", || {
        to_three.authority_ended().is_some()
    })
    .await;
    let (mut replied, mut revoked) = (0, 0);
    for receipt in receipts {
        match soon("an outcome", receipt).await {
            Outcome::Replied(_) => replied += 1,
            Outcome::Revoked {
                stage: Stage::Written,
            } => revoked += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((replied, revoked), (1, 2));
    let status = one.shut_down(std::time::Duration::from_secs(5)).await;
    assert!(status.lanes.iter().all(|lane| lane.account.is_exact()));
}
