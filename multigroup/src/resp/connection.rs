//! One session on its socket. Started by `server.rs` for each accepted client; ends when the client
//! closes, breaks the protocol or says `QUIT`, when its socket fails, or when the node stops. If it
//! panics the server logs it and only this client loses its session.
//!
//! Replies leave in the order of the requests. Requests go to the handler in that order too, and
//! may be in progress together unless that could be seen: a read waits for this session's earlier
//! writes to its group, a write for its earlier reads; writes to one group are started in order.
//!
//! - C1: at most `SESSION_IN_FLIGHT_MAX` requests are in progress.
//! - C2: nothing is read or started while that, or `SESSION_UNSENT_BYTES_MAX`, is reached: a
//!   client that doesn't read costs a bounded amount of memory and no one else's time.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use raft_host::id::GroupId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::dialog::{Dialog, Request, Step};
use super::parser::Parser;
use super::reply::Reply;
use crate::error::ClientError;
use crate::limits::{SESSION_IN_FLIGHT_MAX, SESSION_READ_BYTES, SESSION_UNSENT_BYTES_MAX};

/// How long a closed session's client may take to read its last reply. Data of the client's that
/// is still on its way would otherwise reset the connection and take that reply with it.
const LINGER: Duration = Duration::from_secs(1);

/// Answers requests: what a session can't answer by itself.
pub trait CommandHandler: Send + Sync + 'static {
    /// The reply to a request. It must do its own waiting and have a deadline of its own.
    ///
    /// Writes of one session to one group are polled first in the order in which the client sent
    /// them, and the first poll must hand a write over (or refuse it), so that this order holds.
    ///
    /// # Cancel safety
    /// The future is dropped when the client's connection breaks; the write may happen all the same.
    fn handle(self: Arc<Self>, request: Request) -> impl Future<Output = Reply> + Send;

    /// What `INFO` tells of the node: `# Section` lines and `name:value` lines.
    fn describe(&self) -> String;
}

type Running = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A request between being read and being answered.
enum Slot {
    Running {
        group: Option<GroupId>,
        is_write: bool,
        reply: Running,
    },
    Done(Reply),
}

/// Whether requests are still taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intake {
    Open,
    /// No more will come; what was received is still answered.
    Ended,
    /// What was received and not started is dropped.
    Closed,
}

/// Everything of a session but its socket.
struct Session<H> {
    handler: Arc<H>,
    dialog: Dialog,
    parser: Parser,
    inbox: BytesMut,
    outbox: BytesMut,
    slots: VecDeque<Slot>,
    /// A request that waits for others of this session.
    held: Option<Request>,
    intake: Intake,
}

enum Event {
    Stop,
    Replies,
    Wrote(io::Result<usize>),
    Read(io::Result<usize>),
}

/// Serves one client until its session ends.
pub(super) async fn run<H: CommandHandler>(
    mut socket: TcpStream,
    handler: Arc<H>,
    dialog: Dialog,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut session = Session {
        handler,
        dialog,
        parser: Parser::new(),
        inbox: BytesMut::new(),
        outbox: BytesMut::new(),
        slots: VecDeque::new(),
        held: None,
        intake: Intake::Open,
    };
    let (mut reader, mut writer) = socket.split();
    let mut stopping = false;
    loop {
        session.advance();
        if session.is_finished() {
            break;
        }
        let may_read = session.may_read();
        if may_read {
            session.inbox.reserve(SESSION_READ_BYTES);
        }
        let Session {
            slots,
            outbox,
            inbox,
            ..
        } = &mut session;
        let may_reply = !slots.is_empty() && outbox.len() < SESSION_UNSENT_BYTES_MAX;
        let event = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop), if !stopping => Event::Stop,
            () = poll_fn(|cx| poll_slots(slots, cx)), if may_reply => Event::Replies,
            written = writer.write_buf(outbox), if !outbox.is_empty() => Event::Wrote(written),
            read = reader.read_buf(inbox), if may_read => Event::Read(read),
        };
        match event {
            Event::Stop => {
                stopping = true;
                session.intake = Intake::Closed;
            }
            Event::Replies => {}
            Event::Wrote(written) => {
                if written? == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
            }
            Event::Read(read) => {
                if read? == 0 {
                    session.intake = session.intake.max_ended();
                }
            }
        }
    }
    writer.shutdown().await?;
    // The client's unread data is read away, for a bounded time, so that it gets our last reply.
    let drain = async {
        let mut sink = [0; 1024];
        while matches!(reader.read(&mut sink).await, Ok(1..)) {}
    };
    let _ = timeout(LINGER, drain).await;
    Ok(())
}

impl Intake {
    fn max_ended(self) -> Self {
        match self {
            Self::Open | Self::Ended => Self::Ended,
            Self::Closed => Self::Closed,
        }
    }
}

/// Starts what was not started, in order, and takes note of replies; ready once there is a new one.
/// (Also one that is not next: a request may be held for it.)
fn poll_slots(slots: &mut VecDeque<Slot>, cx: &mut Context<'_>) -> Poll<()> {
    let mut progress = matches!(slots.front(), Some(Slot::Done(_)));
    for slot in slots.iter_mut() {
        if let Slot::Running { reply, .. } = slot
            && let Poll::Ready(reply) = reply.as_mut().poll(cx)
        {
            *slot = Slot::Done(reply);
            progress = true;
        }
    }
    if progress {
        Poll::Ready(())
    } else {
        Poll::Pending
    }
}

impl<H: CommandHandler> Session<H> {
    fn has_room(&self) -> bool {
        self.slots.len() < SESSION_IN_FLIGHT_MAX && self.outbox.len() < SESSION_UNSENT_BYTES_MAX
    }

    fn may_read(&self) -> bool {
        self.intake == Intake::Open && self.held.is_none() && self.has_room()
    }

    /// Nothing is owed and nothing more is taken.
    fn is_finished(&self) -> bool {
        self.intake != Intake::Open
            && self.held.is_none()
            && self.slots.is_empty()
            && self.outbox.is_empty()
    }

    /// Moves replies that are next to the outbox, and takes requests as far as there is room.
    fn advance(&mut self) {
        loop {
            while self.outbox.len() < SESSION_UNSENT_BYTES_MAX
                && let Some(Slot::Done(_)) = self.slots.front()
                && let Some(Slot::Done(reply)) = self.slots.pop_front()
            {
                reply.encode(&mut self.outbox);
            }
            if self.outbox.is_empty() && self.outbox.capacity() > SESSION_UNSENT_BYTES_MAX {
                self.outbox = BytesMut::new();
            }
            if self.intake == Intake::Closed {
                self.held = None;
            }
            if !self.has_room() || !self.take_one() {
                return;
            }
        }
    }

    /// Takes one request, held or new; `false` if there is none that could be taken now.
    fn take_one(&mut self) -> bool {
        if let Some(request) = self.held.take() {
            return self.start_or_hold(request);
        }
        if self.intake == Intake::Closed {
            return false;
        }
        match self.parser.next(&mut self.inbox) {
            Ok(None) => false,
            Ok(Some(args)) => match self.dialog.on_request(&args) {
                Step::Hand(request) => self.start_or_hold(request),
                Step::Answer(reply) => self.done(reply),
                Step::Describe => {
                    let text = self.handler.describe();
                    self.done(Reply::text(&text))
                }
                Step::Close(reply) => {
                    self.intake = Intake::Closed;
                    self.done(reply)
                }
            },
            Err(error) => {
                self.intake = Intake::Closed;
                self.done(ClientError::Protocol(error).into())
            }
        }
    }

    fn done(&mut self, reply: Reply) -> bool {
        self.slots.push_back(Slot::Done(reply));
        true
    }

    fn start_or_hold(&mut self, request: Request) -> bool {
        let (group, is_write) = (request.group(), request.is_write());
        let meets = |slot: &Slot| match slot {
            Slot::Running {
                group: other,
                is_write: other_writes,
                ..
            } => {
                let apart = matches!((group, other), (Some(one), Some(other)) if one != *other);
                !apart && is_write != *other_writes
            }
            Slot::Done(_) => false,
        };
        if self.slots.iter().any(meets) {
            self.held = Some(request);
            return false;
        }
        let reply = Box::pin(Arc::clone(&self.handler).handle(request));
        self.slots.push_back(Slot::Running {
            group,
            is_write,
            reply,
        });
        true
    }
}
