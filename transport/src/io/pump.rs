//! The loop of one session, the same for both directions: take what was handed over, let out what
//! may go, act on one message, let out what that made room for, and so on; read what the socket has,
//! and sleep when there is nothing left to do. What is let out goes to the socket in pieces, so that
//! the other end works on one while the next is made, and at once when nothing more is to follow.
//!
//! It runs inside the task that owns the session (`lane_task`, `acceptor`), which says how the
//! session ends. Nothing here blocks, and one busy session yields to its runtime at each turn.

use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use crate::error::SessionEnd;
use crate::id::Sequence;
use crate::io::clock::{self, Alarm};
use crate::io::tls::{Received, TlsPipe};
use crate::limits::{FLUSH_BYTES, TURN_BYTES_MAX};
use crate::proto::outbound::Transmitted;

/// What a session's owner wants of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Go on.
    Run,
    /// End once nothing is unfinished, at this time at the latest.
    Drain(Instant),
    /// Begin nothing more, and stop without a word once all is answered: another connection takes
    /// over. Wished of sessions that this node dialled alone.
    HandOver,
    /// End now, for this reason.
    End(SessionEnd),
}

/// Ends a session, unless it is ending already.
pub(crate) fn end_session(wish: &watch::Sender<Wish>, end: SessionEnd) {
    wish.send_if_modified(|wish| {
        let lives = !matches!(wish, Wish::End(_));
        if lives {
            *wish = Wish::End(end);
        }
        lives
    });
}

/// A core as the loop drives it.
pub(crate) trait SessionCore {
    /// Takes what other threads handed over, which may be that the session must end.
    fn take_mail(&mut self, now: Instant) -> Result<(), SessionEnd>;
    /// Ready when there is mail to take.
    fn poll_mail(&self, context: &mut Context<'_>) -> Poll<()>;
    /// Takes in decrypted bytes.
    fn handle_bytes(&mut self, now: Instant, bytes: &[u8]);
    /// Acts on one message; says whether there was one.
    fn step(&mut self, now: Instant) -> Result<bool, SessionEnd>;
    /// Appends the next message to send to `out`, if one may go now.
    fn poll_transmit(
        &mut self,
        now: Instant,
        out: &mut BytesMut,
    ) -> Result<Option<Transmitted>, SessionEnd>;
    /// Ciphertext that may wait for the socket before no more messages are asked for.
    fn unsent_bytes_max(&self) -> usize;
    /// The socket accepted all of this frame.
    fn on_written(&mut self, frame: Sequence);
    /// Acts on the time.
    fn handle_timeout(&mut self, now: Instant) -> Result<(), SessionEnd>;
    /// When to act on the time next.
    fn poll_timeout(&self) -> Option<Instant>;
    /// What an end of the connection means now.
    fn on_eof(&self) -> SessionEnd;
    /// Whether nothing is unfinished.
    fn is_idle(&self) -> bool;
    /// Begins nothing more; says whether all that was begun is answered.
    fn hold(&mut self) -> bool;
    /// The last message of a session that ends like this, where there is one.
    fn close_message(&mut self, end: &SessionEnd) -> Option<Bytes>;
    /// Lets others see how the session stands.
    fn publish(&self);
}

/// Runs a session until it is to be handed over, or to its end; then says goodbye where that makes
/// sense.
pub(crate) async fn run(
    pipe: &mut TlsPipe,
    core: &mut impl SessionCore,
    wish: &mut watch::Receiver<Wish>,
    close_timeout: Duration,
) -> Result<HandedOver, SessionEnd> {
    let ended = drive(pipe, core, wish).await;
    if let Err(end) = &ended {
        say_goodbye(pipe, core, end, close_timeout).await;
    }
    ended
}

/// What never comes about.
pub(crate) enum Never {}

/// All that was begun is answered, and nothing more is.
pub(crate) struct HandedOver;

async fn drive(
    pipe: &mut TlsPipe,
    core: &mut impl SessionCore,
    wish: &mut watch::Receiver<Wish>,
) -> Result<HandedOver, SessionEnd> {
    let mut alarm = Alarm::new();
    loop {
        let now = clock::now();
        core.take_mail(now)?;
        core.handle_timeout(now)?;
        // A copy: while the wish is borrowed nobody can write it, and whoever wants to may hold what
        // `is_idle` waits for.
        let wanted = wish.borrow_and_update().clone();
        let hands_over = wanted == Wish::HandOver;
        let drain_until = match wanted {
            Wish::Run => None,
            Wish::HandOver if core.hold() && pipe.unsent_bytes() == 0 => return Ok(HandedOver),
            Wish::HandOver => None,
            Wish::Drain(until) if until <= now || core.is_idle() => {
                return Err(SessionEnd::ShutDown);
            }
            Wish::Drain(until) => Some(until),
            Wish::End(end) => return Err(end),
        };
        let mut room_left = transmit_and_step(pipe, core, now)?;
        flush(pipe, core)?;
        let received = pipe.receive()?;
        while pipe.decrypt(|bytes| core.handle_bytes(now, bytes))? {
            room_left = transmit_and_step(pipe, core, now)?;
        }
        // To an end that is gone nothing more can be said, and it is not that which ended it.
        if !pipe.is_at_end() {
            flush(pipe, core)?;
        }
        core.publish();
        // Writing may have made room for what was held back.
        let more_to_send = !room_left && pipe.unsent_bytes() < core.unsent_bytes_max();
        match received {
            // What came before the end has been looked at.
            _ if pipe.is_at_end() => return Err(core.on_eof()),
            Received::Some => tokio::task::consume_budget().await,
            // The last reply of a drain came in this very turn: nothing more will wake it.
            Received::Nothing if drain_until.is_some() && core.is_idle() => {}
            // Likewise the last that was to be written before a hand-over has gone in this turn.
            Received::Nothing if hands_over && pipe.unsent_bytes() == 0 && core.hold() => {}
            Received::Nothing if !more_to_send => {
                let due = [core.poll_timeout(), drain_until]
                    .into_iter()
                    .flatten()
                    .min();
                sleep(pipe, core, wish, alarm.at_or_before(due)).await?;
            }
            Received::Nothing => tokio::task::consume_budget().await,
        }
    }
}

/// Gives the socket what it takes, and tells the core which frames it has.
fn flush(pipe: &mut TlsPipe, core: &mut impl SessionCore) -> Result<(), SessionEnd> {
    pipe.flush()?;
    tell_written(pipe, core);
    Ok(())
}

fn tell_written(pipe: &mut TlsPipe, core: &mut impl SessionCore) {
    while let Some(frame) = pipe.pop_written() {
        core.on_written(frame);
    }
}

/// Lets out what may go, then acts on one message, in turns: what one reply frees is begun before
/// the next reply is looked at. Says whether nothing more was to be let out at the end.
fn transmit_and_step(
    pipe: &mut TlsPipe,
    core: &mut impl SessionCore,
    now: Instant,
) -> Result<bool, SessionEnd> {
    let mut turn_bytes = 0;
    loop {
        let mut room_left = false;
        while pipe.unsent_bytes() < core.unsent_bytes_max() && turn_bytes < TURN_BYTES_MAX {
            let message = |out: &mut BytesMut| core.poll_transmit(now, out);
            let Some(bytes) = pipe.push(message)? else {
                room_left = true;
                break;
            };
            turn_bytes += bytes;
            // The other end can begin with this while the rest is made.
            if pipe.unsent_bytes() >= FLUSH_BYTES && pipe.flush_records()? {
                tell_written(pipe, core);
            }
        }
        if !core.step(now)? {
            return Ok(room_left);
        }
    }
}

async fn sleep(
    pipe: &TlsPipe,
    core: &impl SessionCore,
    wish: &mut watch::Receiver<Wish>,
    due: impl Future<Output = ()>,
) -> Result<(), SessionEnd> {
    tokio::select! {
        biased;
        changed = wish.changed() => {
            // The owner is gone: nobody is left to run for.
            changed.map_err(|_| SessionEnd::ShutDown)
        }
        () = std::future::poll_fn(|context| core.poll_mail(context)) => Ok(()),
        ready = pipe.ready() => ready.map_err(|error| pipe.end_of(&error)),
        () = due => Ok(()),
    }
}

/// Sends the reason, if there is one to send, and closes TLS; waits for the socket only so long.
async fn say_goodbye(
    pipe: &mut TlsPipe,
    core: &mut impl SessionCore,
    end: &SessionEnd,
    limit: Duration,
) {
    if let Some(bytes) = core.close_message(end) {
        // A pipe that can't take it is as good as closed.
        drop(pipe.push(|out| {
            out.extend_from_slice(&bytes);
            Ok(Some(Transmitted { frame: None }))
        }));
    }
    pipe.close();
    let flushed = async {
        while pipe.flush().is_ok() && pipe.unsent_bytes() > 0 && pipe.writable().await.is_ok() {}
        Ok::<(), io::Error>(())
    };
    drop(tokio::time::timeout(limit, flushed).await);
    tell_written(pipe, core);
}
