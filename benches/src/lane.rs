//! Our control lane under load: two real transports, one on each end, and a sender that keeps a
//! fixed number of items in flight. The host at the other end takes each frame at once, inside
//! `deliver`, and answers nothing.
//!
//! A lane puts all that waits into one frame when a slot opens. To see what one frame costs, the
//! sender here hands over the next item only once the one before has left in a frame of its own
//! ([`Pace::OneAFrame`]); the lane's own count of frames must then agree. [`Pace::Free`] leaves the
//! batching to the lane.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use transport::config::RawTuning;
use transport::io::{Direction, Event, Peer, clock};
use transport::{
    Amount, Boot, Config, Credentials, Fingerprint, Frame, Inbound, Incarnation, Lane, Outcome,
    PeerId, Receipt, ReplySlot, SendOptions, Stage, Transport, Verified,
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

/// How items are handed to the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each only when the one before has left: every item is a frame.
    OneAFrame,
    /// Whenever fewer than the window are in flight: the lane may put several into one frame.
    Free,
}

struct Taker;

impl Inbound for Taker {
    fn deliver(&self, _: PeerId, _: Lane, _: Verified<Frame>, slot: ReplySlot) {
        slot.taken();
    }
}

/// A link between the two ends: node 1 here, node 2 there.
#[derive(Debug)]
pub struct Link {
    here: Transport,
    there: Option<Transport>,
    peer: Peer,
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
    Ok(Config {
        identity: Fleet::identity(number)?,
        incarnation: Incarnation::new([u8::try_from(number)?; 16]),
        boot: Boot::new(1),
        listen,
        peers: BTreeMap::from([(node(peer)?, dialled_at.to_string())]),
        fingerprint: Fingerprint::default(),
        tuning: tuning.try_into()?,
    })
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
        let link = Self {
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

    /// Keeps `window` items of `item_bytes` in flight for `lasting`, then waits for the last.
    ///
    /// # Errors
    /// An item wasn't replied to, the session changed, or items weren't frames where they should
    /// be.
    pub async fn run(
        &self,
        window: usize,
        item_bytes: usize,
        pace: Pace,
        lasting: Duration,
        ends: &[ThreadMeter],
    ) -> Result<Run, Fault> {
        let payload = Bytes::from(vec![0x5a; item_bytes]);
        let mut latencies = Latencies::default();
        let mut sent: VecDeque<(std::time::Instant, Receipt)> = VecDeque::with_capacity(window);
        let status_before = self.control()?;
        let before = usage(ends)?;
        let began = clock::now();
        let until = began + lasting;
        let mut now = began;
        loop {
            while now < until && sent.len() < window {
                now = clock::now();
                let receipt = self.send(&payload, now)?;
                while pace == Pace::OneAFrame && receipt.stage() == Stage::Queued {
                    tokio::task::yield_now().await;
                }
                sent.push_back((now, receipt));
            }
            // Replies come in the order of the frames: the oldest is the first to end.
            let Some((at, receipt)) = sent.pop_front() else {
                break;
            };
            let outcome = receipt.await;
            let Outcome::Replied(_) = outcome else {
                return Err(format!("an item ended as {outcome:?}").into());
            };
            now = clock::now();
            latencies.record(now - at, 1);
        }
        let used = usage(ends)?.since(before);
        let items = latencies.frames();
        let frames = self.frames_since(&status_before).await?;
        if pace == Pace::OneAFrame && frames != items {
            return Err(format!("{items} items left in {frames} frames").into());
        }
        Ok(Run {
            took: now - began,
            frames,
            items,
            latencies,
            usage: used,
        })
    }

    fn send(&self, payload: &Bytes, now: std::time::Instant) -> Result<Receipt, Fault> {
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
