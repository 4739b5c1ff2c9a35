//! The ports of a cluster on one machine: node N has three, counted from one base, and a cluster that
//! may have any gets the first block that is free.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

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

    /// Holds them against other commands, as long as this one runs; others that are about to start
    /// a cluster would find them free until its nodes listen. A free block is held when it is chosen.
    pub(super) fn hold(self) -> Result<(), Failure> {
        let base = match self {
            Self::Default => BASE_PORT_DEFAULT,
            Self::Above(base) => base,
            Self::AnyFree => return Ok(()),
        };
        if hold(base) {
            return Ok(());
        }
        Err(Failure::unreachable(format!(
            "the ports above {base} are held by another multigroup command; wait for it or stop it, \
             or choose another --base-port"
        )))
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
        // Held first: what is free before may be another's by then.
        if hold(base) {
            if are_free(base, nodes)? {
                return Ok(base);
            }
            let_go(base);
        }
        base += BLOCK_PORTS;
    }
    Err(Failure::unreachable(format!(
        "no block of ports from {BASE_PORT_DEFAULT} to {LAST_BASE_PORT} is free for {nodes} nodes; \
         name one with --base-port, or stop what listens there"
    )))
}

/// The blocks that this process holds, each by a name that the kernel gives to one process at a time
/// and takes back at its end; it leaves nothing in any folder.
static HELD: Mutex<BTreeMap<u16, UnixListener>> = Mutex::new(BTreeMap::new());

fn hold(base: u16) -> bool {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if held.contains_key(&base) {
        return true;
    }
    let name = SocketAddr::from_abstract_name(format!("multigroup-ports-{base}"));
    let bound = name.and_then(|name| UnixListener::bind_addr(&name));
    let taken = matches!(&bound, Err(error) if error.kind() == std::io::ErrorKind::AddrInUse);
    if let Ok(listener) = bound {
        held.insert(base, listener);
    }
    // Where such names can't be had, the ports themselves are what is left to go by.
    !taken
}

fn let_go(base: u16) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.remove(&base);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_another_process_holds_is_refused_by_name() {
        // A base that no cluster has, held under the name that another process would have it by.
        let base = 64_321;
        let name = SocketAddr::from_abstract_name(format!("multigroup-ports-{base}")).unwrap();
        let other = UnixListener::bind_addr(&name).unwrap();
        let failure = Ports::Above(base).hold().unwrap_err();
        assert!(failure.to_string().contains("64321"), "{failure}");
        drop(other);
        Ports::Above(base).hold().unwrap();
        Ports::Above(base).hold().unwrap();
        assert!(UnixListener::bind_addr(&name).is_err(), "it is held");
        let_go(base);
        UnixListener::bind_addr(&name).unwrap();
    }
}
