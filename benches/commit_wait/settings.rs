//! The experiments and their cells: what differs between them, and the published figure that a cell
//! is to be seen beside.

use serde_json::{Value, json};

/// Groups of a cluster: a third of them is led by each node.
const GROUPS: u32 = 150;

/// Where a node is killed it leads 500.
const GROUPS_WHERE_KILLED: u32 = 1_500;

/// The product's defaults.
const WORKERS: u32 = 8;
const CAP: u32 = 1_024;

/// What a cell is run with, off and on alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) experiment: &'static str,
    pub(crate) groups: u32,
    pub(crate) clients: usize,
    pub(crate) workers: u32,
    pub(crate) cap: u32,
    pub(crate) ack_delay_ms: u32,
    pub(crate) message_sleep_ms: u32,
    /// On by off, as published; or in words.
    pub(crate) published: &'static str,
}

const USUAL: Setting = Setting {
    experiment: "A1",
    groups: GROUPS,
    clients: 64,
    workers: WORKERS,
    cap: CAP,
    ack_delay_ms: 0,
    message_sleep_ms: 0,
    published: "",
};

/// All cells; those that can share a cluster stand together.
pub(crate) fn all() -> Vec<Setting> {
    let mut all = by_pool();
    all.extend(by_follower());
    all.extend(by_cap());
    all.extend([500, 1_000].map(|clients| Setting {
        experiment: "A6",
        groups: GROUPS_WHERE_KILLED,
        clients,
        published: "led after 2–9 s, full speed 3–8 s later",
        ..USUAL
    }));
    all.push(Setting {
        experiment: "A8",
        published: "75–82 s with a window, 427 s to never without",
        ..USUAL
    });
    all.extend([64, 1_000].map(|clients| Setting {
        experiment: "A11",
        clients,
        published: "15–17 % of the leader's user CPU without early stop",
        ..USUAL
    }));
    all
}

/// By clients, and by workers.
fn by_pool() -> Vec<Setting> {
    let mut all = Vec::new();
    let clients = [
        (16, "1.34"),
        (32, "1.49"),
        (64, "1.52"),
        (128, "1.43"),
        (256, "1.52"),
        (1_000, "1.38"),
    ];
    all.extend(clients.map(|(clients, published)| Setting {
        clients,
        published,
        ..USUAL
    }));
    let workers = [
        (8, ""),
        (16, "on: as with 8"),
        (32, "on: as with 8; off: 0.36 of 8"),
    ];
    all.extend(workers.map(|(workers, published)| Setting {
        experiment: "A2",
        workers,
        published,
        ..USUAL
    }));
    all
}

/// Where followers' acks are late, and where followers are.
fn by_follower() -> Vec<Setting> {
    let mut all = Vec::new();
    for (ack_delay_ms, published) in [(1, "3.8"), (2, "6.0"), (5, "7.3")] {
        all.extend(
            [(64, published), (32, "")].map(|(clients, published)| Setting {
                experiment: "A3",
                clients,
                ack_delay_ms,
                published,
                ..USUAL
            }),
        );
    }
    all.push(Setting {
        experiment: "A4",
        clients: 16,
        message_sleep_ms: 1,
        published: "1.00",
        ..USUAL
    });
    all
}

fn by_cap() -> Vec<Setting> {
    let mut all = Vec::new();
    for clients in [500, 1_000] {
        all.extend([128, 256, 512, 1_024, 2_048].map(|cap| Setting {
            experiment: "A5",
            clients,
            cap,
            published: if u64::from(cap) < clients as u64 {
                "0.9 of the largest cap"
            } else {
                "as the largest cap"
            },
            ..USUAL
        }));
    }
    all
}

impl Setting {
    /// Whether the two can share a cluster, and their runs alternate on it.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let shape = |setting: &Self| {
            let slowness = (setting.ack_delay_ms, setting.message_sleep_ms);
            (setting.experiment, setting.workers, slowness)
        };
        shape(self) == shape(other)
    }

    /// What `--only` picks it by.
    pub(crate) fn id(&self) -> String {
        let Self {
            experiment,
            clients,
            workers,
            cap,
            ack_delay_ms,
            message_sleep_ms,
            ..
        } = self;
        match *experiment {
            "A2" => format!("A2/{workers}-workers"),
            "A3" => format!("A3/{clients}-clients/{ack_delay_ms}-ms"),
            "A4" => format!("A4/{clients}-clients/{message_sleep_ms}-ms"),
            "A5" => format!("A5/{clients}-clients/{cap}-cap"),
            _ => format!("{experiment}/{clients}-clients"),
        }
    }

    /// For the tables.
    pub(crate) fn params(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("clients", json!(self.clients)),
            ("workers", json!(self.workers)),
            ("cap", json!(self.cap)),
            ("ack_delay_ms", json!(self.ack_delay_ms)),
            ("message_sleep_ms", json!(self.message_sleep_ms)),
        ]
    }
}
