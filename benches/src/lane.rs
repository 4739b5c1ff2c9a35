//! Our control lane under load: two real transports, one on each end, and a sender with a fixed
//! number of frames in flight, each seen through to its outcome. The host at the other end takes
//! each frame at once, inside `deliver`, and answers nothing.
//!
//! The sender is either a source, as a Raft host is on control: asked when a slot opens, it puts one
//! item into the frame, so the window alone says how many are in flight and every item is a frame,
//! which the lane's own count must confirm ([`Link::run`]). Or it hands over items and keeps as many
//! of them in flight, and leaves it to the lane how many it puts into one frame
//! ([`Link::run_batched`]).

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;
use transport::config::RawTuning;
use transport::io::{Direction, Event, Peer, clock};
use transport::{
    Amount, Boot, Config, ControlSource, Credentials, Frame, FrameSpace, Inbound, Incarnation,
    Label, Lane, Outcome, PeerId, Receipt, ReplySlot, SendOptions, Transport, Verified, Waiting,
};

use crate::Fault;
use crate::end::OtherEnd;
use crate::fleet::{Fleet, node};
use crate::meter::{Latencies, Run, ThreadMeter};
use crate::raw::usage;

/// How long a link may take to come up, and to stop.
const LINK_PATIENCE: Duration = Duration::from_secs(10);

/// How long an item may take: far more than any does, so an expiry is a failure.
const ITEM_DEADLINE: Duration = Duration::from_secs(60);

/// A host that always has one more item for the next frame, until it is told to stop.
#[derive(Default)]
struct Source {
    load: Mutex<Load>,
    /// It has put in the last item of a run.
    done: Notify,
}

#[derive(Default)]
struct Load {
    payload: Bytes,
    /// Nothing is put in from then on, nor before a run.
    until: Option<Instant>,
    sent: VecDeque<(Instant, Receipt)>,
    latencies: Latencies,
    fault: Option<Fault>,
}

impl Source {
    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Load {
    /// Looks at the oldest item; says whether it has ended. Replies come in the frames' order.
    fn collect(&mut self, now: Instant) -> Result<bool, Fault> {
        let Some((at, receipt)) = self.sent.front() else {
            return Ok(false);
        };
        let Some(outcome) = receipt.outcome() else {
            return Ok(false);
        };
        self.latencies.record(now.saturating_duration_since(*at), 1);
        self.sent.pop_front();
        check(&outcome).map(|()| true)
    }

    /// Sees to what ended, and puts the next item in. All of one turn have the turn's own time, as
    /// all that the raw exchange reads at once has one.
    fn fill(&mut self, frame: &mut FrameSpace<'_>) -> Result<Waiting, Fault> {
        let now = frame.now();
        while self.collect(now)? {}
        if self.until.is_none_or(|until| now >= until) {
            self.until = None;
            return Ok(Waiting::Nothing);
        }
        let deadline = now + ITEM_DEADLINE;
        let receipt = frame.push(self.payload.clone(), Label::new(0), deadline)?;
        self.sent.push_back((now, receipt));
        Ok(Waiting::More)
    }
}

impl ControlSource for Source {
    fn fill(&self, frame: &mut FrameSpace<'_>) -> Waiting {
        let mut load = self.load();
        let filled = load.fill(frame);
        let waiting = filled.unwrap_or_else(|fault| {
            load.fault = Some(fault);
            load.until = None;
            Waiting::Nothing
        });
        if waiting == Waiting::Nothing {
            self.done.notify_one();
        }
        waiting
    }
}

struct Taker;

impl Inbound for Taker {
    fn deliver(&self, _: PeerId, _: Lane, _: Verified<Frame>, slot: ReplySlot) {
        slot.taken();
    }
}

/// A link between the two ends: node 1 here, node 2 there.
pub struct Link {
    here: Transport,
    there: Option<Transport>,
    peer: Peer,
    source: Arc<Source>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("here", &self.here)
            .field("there", &self.there)
            .finish_non_exhaustive()
    }
}

fn check(outcome: &Outcome) -> Result<(), Fault> {
    if let Outcome::Replied(_) = outcome {
        return Ok(());
    }
    Err(format!("an item ended as {outcome:?}").into())
}

/// An address of loopback that was free a moment ago.
///
/// # Errors
/// There is none.
pub fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0))?.local_addr()
}

fn config(
    number: u32,
    listen: SocketAddr,
    peer: u32,
    dialled_at: SocketAddr,
    window: u16,
) -> Result<Config, Fault> {
    let tuning = RawTuning {
        control_window_frames: window,
        ..RawTuning::default()
    };
    let mut config = Config::new(
        Fleet::identity(number)?,
        Incarnation::new([u8::try_from(number)?; 16]),
        Boot::new(1),
        listen,
        BTreeMap::from([(node(peer)?, dialled_at.to_string())]),
    );
    config.tuning = tuning.try_into()?;
    Ok(config)
}

impl Link {
    /// Starts both transports with this window, node 1 dialling node 2 by way of `via`, and waits
    /// until frames may go.
    ///
    /// # Errors
    /// The link didn't come up.
    pub async fn start(
        end: &OtherEnd,
        credentials: [Credentials; 2],
        window: u16,
        via: impl FnOnce(SocketAddr) -> std::io::Result<SocketAddr>,
    ) -> Result<Self, Fault> {
        let [first, second] = credentials;
        let (one, two) = (free_address()?, free_address()?);
        let there = config(2, two, 1, one, window)?;
        let there = end
            .run(Transport::start(there, second, Arc::new(Taker)))
            .await??;
        let here = config(1, one, 2, via(two)?, window)?;
        let here = Transport::start(here, first, Arc::new(Taker)).await?;
        let peer = here.peer(node(2)?)?;
        let source = Arc::new(Source::default());
        peer.set_control_source(source.clone());
        let link = Self {
            source,
            here,
            there: Some(there),
            peer,
        };
        tokio::time::timeout(LINK_PATIENCE, link.until_up())
            .await
            .map_err(|_| "the control lane didn't come up")??;
        Ok(link)
    }

    async fn until_up(&self) -> Result<(), Fault> {
        let mut events = self.here.subscribe();
        // It may have come up before the subscription.
        while self.control()?.session.is_none() {
            let event = events.recv().await?;
            if let Event::DialFailed { end, .. } = event {
                return Err(format!("no session: {end}").into());
            }
            if let Event::SessionUp {
                lane: Lane::Control,
                direction: Direction::Outbound,
                ..
            } = event
            {
                break;
            }
        }
        Ok(())
    }

    fn control(&self) -> Result<transport::io::LaneStatus, Fault> {
        let lanes = self.here.status().lanes.into_iter();
        let mut control = lanes.filter(|lane| lane.lane == Lane::Control);
        control.next().ok_or_else(|| "no control lane".into())
    }

    /// Puts one item of `item_bytes` into each frame for as long as `lasting`, whenever a slot is
    /// free, then waits for the last reply.
    ///
    /// # Errors
    /// An item wasn't replied to, the session changed, or items weren't frames.
    pub async fn run(
        &self,
        item_bytes: usize,
        lasting: Duration,
        ends: &[ThreadMeter],
    ) -> Result<Run, Fault> {
        let status_before = self.control()?;
        let before = usage(ends)?;
        let began = clock::now();
        *self.source.load() = Load {
            payload: Bytes::from(vec![0x5a; item_bytes]),
            until: Some(began + lasting),
            ..Load::default()
        };
        self.peer.control_ready();
        let done = async {
            while self.source.load().until.is_some() {
                self.source.done.notified().await;
            }
        };
        tokio::time::timeout(lasting + LINK_PATIENCE, done)
            .await
            .map_err(|_| "the lane asked for no more items: its session is gone")?;
        let mut load = std::mem::take(&mut *self.source.load());
        if let Some(fault) = load.fault {
            return Err(fault);
        }
        let mut latencies = load.latencies;
        for (at, receipt) in load.sent.drain(..) {
            check(&receipt.await)?;
            latencies.record(clock::now() - at, 1);
        }
        let took = clock::now() - began;
        let used = usage(ends)?.since(before);
        let items = latencies.frames();
        let frames = self.frames_since(&status_before).await?;
        if frames != items {
            return Err(format!("{items} items left in {frames} frames").into());
        }
        Ok(Run {
            took,
            frames,
            items,
            latencies,
            usage: used,
        })
    }

    /// Keeps `items` items of `item_bytes` in flight for `lasting`, then waits for the last.
    ///
    /// # Errors
    /// An item wasn't replied to, or the session changed.
    pub async fn run_batched(
        &self,
        items: usize,
        item_bytes: usize,
        lasting: Duration,
        ends: &[ThreadMeter],
    ) -> Result<Run, Fault> {
        let payload = Bytes::from(vec![0x5a; item_bytes]);
        let mut latencies = Latencies::default();
        let mut sent: VecDeque<(Instant, Receipt)> = VecDeque::with_capacity(items);
        let status_before = self.control()?;
        let before = usage(ends)?;
        let began = clock::now();
        let until = began + lasting;
        let mut now = began;
        loop {
            while now < until && sent.len() < items {
                sent.push_back((now, self.send(&payload, now)?));
            }
            let Some((at, receipt)) = sent.pop_front() else {
                break;
            };
            check(&receipt.await)?;
            now = clock::now();
            latencies.record(now - at, 1);
        }
        let used = usage(ends)?.since(before);
        Ok(Run {
            took: now - began,
            frames: self.frames_since(&status_before).await?,
            items: latencies.frames(),
            latencies,
            usage: used,
        })
    }

    fn send(&self, payload: &Bytes, now: Instant) -> Result<Receipt, Fault> {
        let amount = Amount::new(1, payload.len() as u64);
        let mut room = self.peer.try_reserve(Lane::Control, amount)?;
        let options = SendOptions::until(now + ITEM_DEADLINE);
        Ok(room.send(payload.clone(), options)?)
    }

    /// Frames that the lane has begun since `before`, all of them answered by now.
    async fn frames_since(&self, before: &transport::io::LaneStatus) -> Result<u64, Fault> {
        // The lane publishes its counts at the end of its turn, after it has ended the items.
        loop {
            let after = self.control()?;
            if after.session != before.session {
                return Err(format!("the session changed: {:?}", after.last_end).into());
            }
            if after.stats.frames_answered == after.stats.frames_begun {
                return Ok(after.stats.frames_begun - before.stats.frames_begun);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Stops both transports.
    ///
    /// # Errors
    /// The other end is gone, or something was left unfinished.
    pub async fn stop(mut self, end: &OtherEnd) -> Result<(), Fault> {
        let mut last = vec![self.here.shut_down(LINK_PATIENCE).await];
        if let Some(there) = self.there.take() {
            last.push(end.run(there.shut_down(LINK_PATIENCE)).await?);
        }
        let lanes = last.iter().flat_map(|status| &status.lanes);
        match lanes
            .filter(|lane| !lane.account.is_exact() || lane.outstanding_frames > 0)
            .count()
        {
            0 => Ok(()),
            _ => Err(format!("not everything was accounted for: {last:?}").into()),
        }
    }
}
