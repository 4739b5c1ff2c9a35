#![expect(clippy::print_stdout, reason = "an example shows what it does")]
//! A replicated map on three nodes in one process, over mutual TLS, with logs on disk. Usage:
//! `replicated_map DIR BASE_PORT`, where DIR holds what `multigroup certs` made for nodes 1 to 3.
use bytes::Bytes;
use raft_host::config::{GroupConfig, HostConfig, RAFT_DEFAULTS, RawHostConfig};
use raft_host::id::{GroupId, NodeId};
use raft_host::io::{Applied, Committed, Consistency, MachineError, ProposeOptions};
use raft_host::{Host, StateMachine, Storage, log::RawLogConfig};
use std::sync::{Arc, Mutex, PoisonError};
use std::{collections::BTreeMap, env, error::Error, path::Path, time::Duration};
use transport::{Credentials, PeerId, TlsFiles, io::clock};

/// What one node holds of the group: the host's apply workers write it, `main` reads it.
type Map = Arc<Mutex<BTreeMap<String, String>>>;
const GROUP: GroupId = GroupId::new(1);

struct MapMachine(Map, Applied);

impl StateMachine for MapMachine {
    fn applied(&self) -> Applied {
        self.1
    }

    fn apply(&mut self, batch: &[Committed]) -> Result<Vec<Bytes>, MachineError> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut replies = Vec::new();
        for entry in batch {
            let command = String::from_utf8_lossy(&entry.command);
            let pair = command.split_once('=');
            let old = pair.and_then(|(key, value)| map.insert(key.into(), value.into()));
            replies.push(old.map(Bytes::from).unwrap_or_default());
            (self.1.index, self.1.term) = (entry.index, entry.term);
        }
        Ok(replies)
    }
}

async fn start(dir: &Path, node: u32, base: u16, map: &Map) -> Result<Host, Box<dyn Error>> {
    let (path, map) = (dir.join(format!("node-{node}")), Arc::clone(map));
    let identity = format!("mraft://demo/node/{node}").parse()?;
    let files = TlsFiles {
        ca: dir.join("ca/ca.pem"),
        cert: path.join("cert.pem"),
        key: path.join("key.pem"),
        crl: None,
    };
    let credentials = Credentials::load(&files, &identity, clock::wall())?;
    let storage = Storage::open(path.join("data"))?;
    let address = |node| format!("127.0.0.1:{}", u32::from(base) + node);
    let others = [1, 2, 3].into_iter().filter(|other| *other != node);
    let peers = others.filter_map(|other| Some((PeerId::new(other)?, address(other))));
    let links = storage.links(identity, address(node).parse()?, peers.collect());
    let (mut log, host) = (RawLogConfig::default(), RawHostConfig::default());
    (log.segment_bytes, log.bytes_max) = (1 << 20, 1 << 30);
    let groups = vec![GroupConfig::spread(GROUP, &[1, 2, 3].map(NodeId::new))];
    let config = HostConfig::new(RAFT_DEFAULTS.try_into()?, log.try_into()?, host, groups)?;
    let machine = move |_| -> Result<Box<dyn StateMachine>, MachineError> {
        Ok(Box::new(MapMachine(Arc::clone(&map), Applied::default())))
    };
    Ok(Host::start(config, storage, links, credentials, machine).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    let [_, dir, base] = &arguments[..] else {
        return Err("usage: replicated_map DIR BASE_PORT".into());
    };
    let (maps, mut hosts): ([Map; 3], Vec<Host>) = Default::default();
    for (map, node) in maps.iter().zip(1..) {
        let host = start(Path::new(dir), node, base.parse()?, map).await?;
        hosts.push(host);
    }
    // A refused command had no effect: another node, perhaps the leader, may take it.
    for host in hosts.iter().cycle() {
        let (group, options) = (host.group(GROUP), ProposeOptions::default());
        let outcome = group.propose("colour=green", options).await;
        if !outcome.is_refused() {
            println!("written: {outcome:?}");
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (host, map) in hosts.iter().zip(&maps) {
        let (group, limit) = (host.group(GROUP), Duration::from_secs(5));
        group.read(Consistency::Linearizable, limit).await?;
        let map = map.lock().unwrap_or_else(PoisonError::into_inner);
        println!("node {} reads {:?}", host.node(), map.get("colour"));
    }
    for host in hosts {
        host.shut_down().await;
    }
    Ok(())
}
