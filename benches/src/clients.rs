//! Clients of one node: each writes keys of its own, one write in flight, and each key lies in a
//! group that this node leads, so that all commits are one node's and nothing is forwarded. That the
//! node leads these groups is looked up before a run and held true after it.
//!
//! Leaves to others: what is done when a node fails, since a timed run has no failures.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use multigroup::admin::GroupRole;
use multigroup::load::{Answer, Client, Endpoint};
use tokio::task::LocalSet;
use transport::io::clock;

use crate::Fault;
use crate::cluster::BenchCluster;
use crate::meter::Latencies;

/// How long one write may take before the run has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The groups that a node leads, each with the tag of keys that map to it.
#[derive(Clone, Debug)]
pub struct LedGroups {
    node: u16,
    groups: Vec<(u64, String)>,
}

impl LedGroups {
    /// Asks the node.
    ///
    /// # Errors
    /// It leads none, or doesn't answer.
    pub async fn of(cluster: &BenchCluster, node: u16) -> Result<Self, Fault> {
        let tags = cluster.space()?.tags();
        let mut groups = Vec::new();
        for group in cluster.groups_of(node).await? {
            if group.role == GroupRole::Leader {
                let tag = tags.get(usize::try_from(group.group)?);
                groups.push((group.group, tag.ok_or("a group without a tag")?.clone()));
            }
        }
        if groups.is_empty() {
            return Err(format!("node {node} leads no group").into());
        }
        Ok(Self { node, groups })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.groups.len()
    }

    /// The node still leads each of them.
    ///
    /// # Errors
    /// It doesn't.
    pub async fn check(&self, cluster: &BenchCluster) -> Result<(), Fault> {
        let now = Self::of(cluster, self.node).await?;
        let lost = |(group, _): &&(u64, String)| !now.groups.iter().any(|(led, _)| led == group);
        match self.groups.iter().find(lost) {
            Some((group, _)) => {
                Err(format!("node {} lost group {group} during a run", self.node).into())
            }
            None => Ok(()),
        }
    }

    /// A client's own keys, in groups one after another.
    #[must_use]
    pub fn keys(&self, client: usize, keys: usize) -> Vec<Bytes> {
        let key = |at: usize| {
            let (_, tag) = &self.groups[(client * keys + at) % self.groups.len()];
            Bytes::from(format!("{{{tag}}}c{client}k{at}"))
        };
        (0..keys).map(key).collect()
    }
}

/// What is asked of the clients.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    /// How many there are, each with one write in flight.
    pub clients: usize,
    /// Keys of each.
    pub keys: usize,
    /// Before the timed part.
    pub warm: Duration,
    /// The timed part.
    pub lasting: Duration,
}

/// What the timed part came to: the writes that ended within it.
#[derive(Clone, Debug)]
pub struct Written {
    /// Acknowledged.
    pub acked: u64,
    /// A second.
    pub per_s: f64,
    /// Of each.
    pub latencies: Latencies,
}

/// Runs the clients against the node; `at` is called when the timed part begins and when it ends.
///
/// # Errors
/// A write failed.
pub async fn write(
    endpoint: &Endpoint,
    led: &LedGroups,
    writing: Writing,
    mut at: impl FnMut() -> Result<(), Fault>,
) -> Result<Written, Fault> {
    let mut connected = Vec::new();
    for client in 0..writing.clients {
        let connection = Client::connect(endpoint, clock::now() + PATIENCE).await?;
        connected.push((connection, led.keys(client, writing.keys)));
    }
    let latencies = Rc::new(RefCell::new(Latencies::default()));
    let from = clock::now() + writing.warm;
    let until = from + writing.lasting;
    let set = LocalSet::new();
    let mut running = Vec::new();
    for (connection, keys) in connected {
        let latencies = Rc::clone(&latencies);
        let writer = async move { write_own(connection, &keys, from, until, &latencies).await };
        running.push(set.spawn_local(writer));
    }
    set.run_until(async {
        tokio::time::sleep_until(from.into()).await;
        at()?;
        tokio::time::sleep_until(until.into()).await;
        at()?;
        for client in running {
            client.await??;
        }
        Ok::<_, Fault>(())
    })
    .await?;
    drop(set);
    let latencies = latencies.borrow().clone();
    let acked = latencies.frames();
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    let per_s = acked as f64 / writing.lasting.as_secs_f64();
    Ok(Written {
        acked,
        per_s,
        latencies,
    })
}

async fn write_own(
    mut connection: Client,
    keys: &[Bytes],
    from: Instant,
    until: Instant,
    latencies: &RefCell<Latencies>,
) -> Result<(), Fault> {
    for (number, key) in (0_u64..).zip(keys.iter().cycle()) {
        let sent = clock::now();
        if sent >= until {
            break;
        }
        let value = format!("{number:016}");
        let words: [&[u8]; 3] = [b"SET", key, value.as_bytes()];
        let answer = connection.call(&words, sent + PATIENCE).await?;
        if answer != Answer::Word(Bytes::from_static(b"OK")) {
            return Err(format!("a write was answered with {answer}").into());
        }
        let now = clock::now();
        if now >= from && now < until {
            latencies.borrow_mut().record(now - sent, 1);
        }
    }
    Ok(())
}
