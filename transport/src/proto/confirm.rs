//! What an acceptor tells a dialler beside its replies: which sessions it holds to the dialler's node,
//! dialled by itself, and how far its log is synced (safety 19, 21). So each side of a link knows
//! whether what it takes for the other direction is there on the other side too: a cut that only one
//! of them sees is seen by both.
//!
//! Left to others: when to say it (`inbound`), and what follows from it (`link`).

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::PeerMisbehaved;
use crate::id::{Lane, SessionId};

/// The sessions that one node holds to another, dialled by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// On control.
    pub control: Option<SessionId>,
    /// On bulk.
    pub bulk: Option<SessionId>,
}

/// What a confirm says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirm {
    /// The sessions that its sender holds to the reader.
    pub held: Held,
    /// The number of the last completed sync of its sender's log.
    pub sync_number: u64,
}

/// Bytes of a confirm's body.
const CONFIRM_BYTES: usize = 8 + 2 * 9;

fn put(out: &mut BytesMut, session: Option<SessionId>) {
    out.put_u8(session.is_some().into());
    out.put_u64(session.map_or(0, SessionId::to_u64));
}

/// Writes the body of a confirm.
#[must_use]
pub fn encode_confirm(confirm: &Confirm) -> BytesMut {
    let mut out = BytesMut::with_capacity(CONFIRM_BYTES);
    out.put_u64(confirm.sync_number);
    put(&mut out, confirm.held.control);
    put(&mut out, confirm.held.bulk);
    out
}

/// Reads the body of a confirm.
///
/// # Errors
/// [`PeerMisbehaved::MalformedHello`] with the place.
pub fn decode_confirm(mut body: Bytes) -> Result<Confirm, PeerMisbehaved> {
    let malformed = |at| PeerMisbehaved::MalformedHello {
        what: "confirm",
        at,
    };
    if body.len() != CONFIRM_BYTES {
        return Err(malformed(body.len().min(CONFIRM_BYTES)));
    }
    let sync_number = body.get_u64();
    let mut sessions = [None; 2];
    for (lane, session) in Lane::ALL.into_iter().zip(&mut sessions) {
        let (is_held, number) = (body.get_u8(), body.get_u64());
        *session = match (is_held, number) {
            (0, 0) => None,
            (1, number) => Some(SessionId::new(number)),
            _ => return Err(malformed(8 + 9 * (lane as usize))),
        };
    }
    let [control, bulk] = sessions;
    Ok(Confirm {
        held: Held { control, bulk },
        sync_number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_everything_else_is_refused() {
        for held in [
            Held::default(),
            Held {
                control: Some(SessionId::new(7)),
                bulk: None,
            },
            Held {
                control: Some(SessionId::new(u64::MAX)),
                bulk: Some(SessionId::new(0)),
            },
        ] {
            let confirm = Confirm {
                held,
                sync_number: 9,
            };
            let body = encode_confirm(&confirm).freeze();
            assert_eq!(decode_confirm(body.clone()), Ok(confirm));
            for length in 0..body.len() {
                assert!(decode_confirm(body.slice(..length)).is_err());
            }
            let longer = [&body[..], &[0]].concat();
            assert!(decode_confirm(longer.into()).is_err());
        }
        let mut body = encode_confirm(&Confirm::default());
        body[8] = 2;
        assert!(decode_confirm(body.freeze()).is_err());
        let mut body = encode_confirm(&Confirm::default());
        body[16] = 1;
        assert!(
            decode_confirm(body.freeze()).is_err(),
            "a number of no session"
        );
    }
}
