//! The dialling core: window, deadlines, stages and sessions in virtual time, joined to a real
//! accepting core; then each way a peer that holds the right keys can answer wrongly.

mod items;
mod replies;
mod sessions;
mod window;

use super::*;
use crate::budget::Amount;
use crate::error::{AuthorityEnded, CloseCode, RefusalReason};
use crate::limits::{HEADER_BYTES, ITEM_PREFIX_BYTES, OUTBOX_DEAD_ITEMS_MAX, TAG_BYTES};
use crate::proto::fifo::Stamper;
use crate::proto::frame::ReplyForm;
use crate::proto::hello::{HelloAnswer, encode_answer, encode_notice};
use crate::proto::inbound::InboundEvent;
use crate::receipt::{OutcomeKind, Receipt};
use crate::testing::LONG;
use crate::testing::pair::{
    PATIENT, Pair, TIMEOUTS, frame_header, keys, message, ms, plain_header, reply_header,
};

const ALL: usize = usize::MAX;

fn taken(answer: &'static str) -> Answer {
    Answer::Taken(Bytes::from_static(answer.as_bytes()))
}

fn lost() -> SessionEnd {
    std::io::ErrorKind::ConnectionReset.into()
}

fn stages(receipts: &[Receipt]) -> Vec<Stage> {
    receipts.iter().map(Receipt::stage).collect()
}

/// Checks T10 and that nothing is left.
fn assert_empty(pair: &Pair) {
    let snapshot = pair.account.snapshot();
    assert!(snapshot.is_exact());
    assert_eq!(snapshot.reserved(), Amount::default());
    assert_eq!(snapshot.live(), 0);
    assert!(pair.out.is_idle());
}

/// Sixteen frames outstanding and seen by the peer, and more items waiting.
fn full_window(waiting: usize) -> (Pair, Vec<Receipt>) {
    let mut pair = Pair::up(Lane::Control, PATIENT);
    let mut receipts: Vec<_> = (0..16).map(|_| pair.send_frame("beat")).collect();
    receipts.extend((0..waiting).map(|_| pair.send("wait", LONG)));
    pair.write(ALL);
    pair.read(ALL).unwrap();
    assert_eq!(pair.frames().len(), 16);
    (pair, receipts)
}
