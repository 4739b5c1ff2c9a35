//! The ports of a cluster on one machine: node N has three, counted from one base, and a cluster that
//! may have any gets the first block that is free.

use std::net::TcpListener;

use crate::cli::failure::Failure;

/// The base where nothing is said.
const BASE_PORT_DEFAULT: u16 = 7100;

/// Blocks of ports that are tried for a cluster that may have any: this many apart, all below those
/// that the system gives out to clients.
const BLOCK_PORTS: u16 = 300;
const LAST_BASE_PORT: u16 = 32_000;

/// From a node's port for peers to the one for clients, and to the one for operators.
const CLIENT_OFFSET: u16 = 100;
const ADMIN_OFFSET: u16 = 200;

/// Which ports a new cluster gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) enum Ports {
    /// Those above the default.
    #[default]
    Default,
    /// Those above this one.
    Above(u16),
    /// Those above the default if they are free, else others.
    AnyFree,
}

impl Ports {
    /// The one that was named.
    pub(super) fn named(self) -> Option<u16> {
        match self {
            Self::Above(base) => Some(base),
            Self::Default | Self::AnyFree => None,
        }
    }

    /// The one to count from for so many nodes.
    pub(super) fn base(self, nodes: u64) -> Result<u16, Failure> {
        match self {
            Self::Default => Ok(BASE_PORT_DEFAULT),
            Self::Above(base) => Ok(base),
            Self::AnyFree => free_base(nodes),
        }
    }
}

/// The ports of a node, for peers, clients and operators.
pub(super) fn ports_of(base: u16, node: u64) -> Result<[u16; 3], Failure> {
    let peer = u16::try_from(node).ok().and_then(|n| base.checked_add(n));
    let last = peer.and_then(|peer| peer.checked_add(ADMIN_OFFSET));
    match (peer, last) {
        (Some(peer), Some(admin)) if base > 0 => Ok([peer, peer + CLIENT_OFFSET, admin]),
        _ => Err(Failure::usage(format!(
            "--base-port {base} leaves no ports for node {node}, which needs {ADMIN_OFFSET} and \
             its number above it; choose a lower one"
        ))),
    }
}

/// The first block of ports that a cluster can have.
fn free_base(nodes: u64) -> Result<u16, Failure> {
    let mut base = BASE_PORT_DEFAULT;
    while base <= LAST_BASE_PORT {
        if are_free(base, nodes)? {
            return Ok(base);
        }
        base += BLOCK_PORTS;
    }
    Err(Failure::unreachable(format!(
        "no block of ports from {BASE_PORT_DEFAULT} to {LAST_BASE_PORT} is free for {nodes} nodes; \
         name one with --base-port, or stop what listens there"
    )))
}

fn are_free(base: u16, nodes: u64) -> Result<bool, Failure> {
    for node in 1..=nodes {
        let ports = ports_of(base, node)?;
        let is_taken = |port| TcpListener::bind(("127.0.0.1", port)).is_err();
        if ports.into_iter().any(is_taken) {
            return Ok(false);
        }
    }
    Ok(true)
}
