//! What a cluster's folder must hold before its nodes start: certificates and configurations. What
//! is there is kept, what is missing is made, and an option that says something else than what is
//! there is refused with both.
//!
//! First a plan, for which the folder is only read, then its making: so that whoever asks can still
//! find that a new cluster couldn't start, and nothing is written of it then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use clap::Args;
use raft_host::limits::GROUP_MEMBERS_MAX;
use transport::id::{ClusterName, PeerId};

use super::ports::{Ports, ports_of};
use crate::causes::with_causes;
use crate::cli::certs;
use crate::cli::durable::{self, Readers};
use crate::cli::failure::Failure;
use crate::cli::load::configs_of;
use crate::cluster::ClusterFolder;
use crate::cluster_id::ClusterId;
use crate::config::{
    Config, ConfigSet, HostPort, RawArchive, RawConfig, RawHost, RawListen, RawTls,
    parse_config_set,
};
use crate::limits::NODES_MAX;

/// What is made where nothing is said.
const NODES_DEFAULT: u64 = 3;
const GROUPS_DEFAULT: u32 = 1500;
const CLUSTER_DEFAULT: &str = "dev";

/// What a configuration without an archive says of one.
const ARCHIVE_COMMENT: &str = "
# The archive is off. To turn it on before the cluster's first start, on every node alike:
# [archive]
# url = \"file:///srv/multigroup/archive\"  # a folder that all nodes reach, or s3://BUCKET/PREFIX
# interval = \"1s\"
# max_lag_bytes = \"256MiB\"
# on_lag = \"delay\"                        # or \"refuse\"
";

/// Keys that each node has a value of its own of, or that an option is for.
const NOT_FOR_ALL: [(&str, &str); 5] = [
    ("groups", "--groups"),
    ("peers", "--nodes and --base-port"),
    ("listen", "--base-port"),
    ("node", "--nodes"),
    ("data_dir", "nothing: it is node-N/data"),
];

/// What the command line says of the cluster; what it leaves open is as it was, or by default.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct Wanted {
    pub(in crate::cli) nodes: Option<u64>,
    pub(in crate::cli) groups: Option<u32>,
    pub(in crate::cli) ports: Ports,
    pub(in crate::cli) archive: Archive,
    pub(in crate::cli) sets: Vec<ConfigSet>,
}

impl Wanted {
    /// As the options say that `demo` and `cluster up` share.
    pub(in crate::cli) fn of(options: &Options, otherwise: Ports) -> Self {
        Self {
            nodes: options.nodes,
            groups: options.groups,
            ports: options.base_port.map_or(otherwise, Ports::Above),
            archive: if options.no_archive {
                Archive::Off
            } else {
                Archive::Beside
            },
            sets: options.config_set.clone(),
        }
    }
}

/// What `demo` and `cluster up` can be told of a cluster.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct Options {
    /// How many nodes; 3 in a new cluster
    #[arg(long, value_name = "N")]
    nodes: Option<u64>,
    /// How many groups; 1500 in a new cluster
    #[arg(long, value_name = "G")]
    groups: Option<u32>,
    /// Node N listens on this port and N (peers), 100 more (clients) and 200 more (admin); 7100 in a
    /// new cluster, of a demo the next block that is free
    #[arg(long, value_name = "P")]
    base_port: Option<u16>,
    /// Don't archive what is committed; a new cluster does, into DIR/archive
    #[arg(long)]
    no_archive: bool,
    /// A key of every node's configuration, in a new cluster
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_set)]
    config_set: Vec<ConfigSet>,
}

fn parse_set(text: &str) -> Result<ConfigSet, String> {
    parse_config_set(text).map_err(|error| error.to_string())
}

/// Whether a new cluster gets an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) enum Archive {
    /// A folder in its own, unless its address is set.
    #[default]
    Beside,
    /// None.
    Off,
}

/// What a folder shall hold.
#[derive(Debug)]
pub(in crate::cli) struct Prepared<'a> {
    folder: &'a ClusterFolder,
    configs: Vec<Config>,
    /// The nodes that have a configuration.
    existing: BTreeSet<u64>,
}

impl Prepared<'_> {
    /// Whether there is nothing of it yet.
    pub(in crate::cli) fn is_new(&self) -> bool {
        self.existing.is_empty()
    }

    /// The configurations as they are or will be written, by node.
    pub(in crate::cli) fn configs(&self) -> &[Config] {
        &self.configs
    }

    /// Makes what is missing and gives the configurations, their paths absolute, by node.
    pub(in crate::cli) fn make(self) -> Result<Vec<Config>, Failure> {
        let root = self.folder.root();
        fs::create_dir_all(root).map_err(|error| Failure::of_input("create", root, &error))?;
        make_certificates(self.folder, &self.configs)?;
        for config in &self.configs {
            if !self.existing.contains(&config.node()) {
                write_config(self.folder, config)?;
            }
        }
        let based = self.configs.into_iter();
        Ok(based.map(|config| config.with_base(root)).collect())
    }
}

/// Finds what the folder shall hold. Nothing is written.
pub(in crate::cli) fn plan<'a>(
    folder: &'a ClusterFolder,
    wanted: &Wanted,
) -> Result<Prepared<'a>, Failure> {
    check_sets(&wanted.sets)?;
    check_archive(wanted)?;
    let existing = existing(folder)?;
    let raws = match existing.values().next() {
        None => fresh(folder, wanted)?,
        Some(first) => {
            check_alike(folder, &existing)?;
            check_wanted(folder, first, &existing, wanted)?;
            completed(first, &existing)?
        }
    };
    let mut configs = Vec::with_capacity(raws.len());
    for raw in raws {
        let node = raw.node;
        let config = Config::try_from(raw).map_err(|error| {
            Failure::usage(format!(
                "node {node} can't have this configuration: {}; correct the options",
                with_causes(&error)
            ))
        })?;
        configs.push(config);
    }
    Ok(Prepared {
        folder,
        configs,
        existing: existing.into_keys().collect(),
    })
}

/// An archive can't be turned off and told where to be.
fn check_archive(wanted: &Wanted) -> Result<(), Failure> {
    let mut sets = wanted.sets.iter();
    let set = sets.find(|set| set.key().starts_with("archive."));
    match set.filter(|_| wanted.archive == Archive::Off) {
        None => Ok(()),
        Some(set) => Err(Failure::usage(format!(
            "--no-archive contradicts --config-set {}={}; leave one of them out",
            set.key(),
            set.value()
        ))),
    }
}

fn check_sets(sets: &[ConfigSet]) -> Result<(), Failure> {
    for (at, set) in sets.iter().enumerate() {
        if sets[..at].iter().any(|other| other.key() == set.key()) {
            return Err(Failure::usage(format!(
                "--config-set {} is given twice; leave one of them out",
                set.key()
            )));
        }
        let section = set.key().split('.').next().unwrap_or_default();
        let own = NOT_FOR_ALL.iter().find(|(key, _)| *key == section);
        if let Some((_, option)) = own {
            return Err(Failure::usage(format!(
                "--config-set {} is no value for all nodes; use {option}",
                set.key()
            )));
        }
        if section == "tls" {
            return Err(Failure::usage(format!(
                "--config-set {} can't be: the certificates are those in the cluster's folder",
                set.key()
            )));
        }
    }
    Ok(())
}

fn existing(folder: &ClusterFolder) -> Result<BTreeMap<u64, Config>, Failure> {
    let mut existing = BTreeMap::new();
    if !folder.root().exists() {
        return Ok(existing);
    }
    for (path, config) in configs_of(folder.root())? {
        let node = config.node();
        if path != folder.config(node) {
            return Err(Failure::usage(format!(
                "node is {node} in {}, which the folder's name contradicts; correct one of them",
                path.display()
            )));
        }
        existing.insert(node, config);
    }
    Ok(existing)
}

/// The configurations of one cluster agree on what it is.
fn check_alike(folder: &ClusterFolder, configs: &BTreeMap<u64, Config>) -> Result<(), Failure> {
    let Some(first) = configs.values().next() else {
        return Ok(());
    };
    let differ = |key: &str, one: &dyn ToString, other: &dyn ToString, node: u64| {
        Failure::usage(format!(
            "{key} is {} in {} and {} in {}; give both the same",
            one.to_string(),
            folder.config(first.node()).display(),
            other.to_string(),
            folder.config(node).display()
        ))
    };
    for (node, config) in configs {
        let (one, other) = (first.raw(), config.raw());
        if one.cluster != other.cluster {
            return Err(differ("cluster", &one.cluster, &other.cluster, *node));
        }
        if one.cluster_id != other.cluster_id {
            let id = |raw: &RawConfig| {
                raw.cluster_id
                    .map_or("missing".to_owned(), |id| id.to_string())
            };
            return Err(differ("cluster_id", &id(one), &id(other), *node));
        }
        if one.groups != other.groups {
            return Err(differ("groups", &one.groups, &other.groups, *node));
        }
        for id in first.peers().keys().chain(config.peers().keys()) {
            let address = |config: &Config| {
                let address = config.peers().get(id);
                address.map_or_else(|| "missing".to_owned(), HostPort::to_string)
            };
            let (one, other) = (address(first), address(config));
            if one != other {
                return Err(differ(&format!("peers.{id}"), &one, &other, *node));
            }
        }
    }
    Ok(())
}

/// What was asked for is what is there.
fn check_wanted(
    folder: &ClusterFolder,
    first: &Config,
    existing: &BTreeMap<u64, Config>,
    wanted: &Wanted,
) -> Result<(), Failure> {
    let contradicts = |option: &str, node: u64, key: &str, value: &dyn ToString| {
        Failure::usage(format!(
            "{option} contradicts {}, where {key} is {}; leave the option out, or choose another \
             --dir",
            folder.config(node).display(),
            value.to_string()
        ))
    };
    let nodes = first.peers().len() as u64;
    if let Some(wanted) = wanted.nodes.filter(|wanted| *wanted != nodes) {
        let option = format!("--nodes {wanted}");
        let count = format!("a table of {nodes} nodes");
        return Err(contradicts(&option, first.node(), "peers", &count));
    }
    let groups = first.raw().groups;
    if let Some(wanted) = wanted.groups.filter(|wanted| *wanted != groups) {
        let option = format!("--groups {wanted}");
        return Err(contradicts(&option, first.node(), "groups", &groups));
    }
    for (node, config) in existing {
        let archive = config.raw().archive.as_ref();
        if let Some(archive) = archive.filter(|_| wanted.archive == Archive::Off) {
            return Err(contradicts(
                "--no-archive",
                *node,
                "archive.url",
                &archive.url,
            ));
        }
        if let Some(base) = wanted.ports.named() {
            let ports = ports_of(base, *node)?;
            let listen = [
                ("listen.peer", config.listen_peer()),
                ("listen.client", config.listen_client()),
                ("listen.admin", config.listen_admin()),
            ];
            for ((key, address), port) in listen.into_iter().zip(ports) {
                if address.port() != port {
                    let option = format!("--base-port {base}");
                    return Err(contradicts(&option, *node, key, address));
                }
            }
        }
        for set in in_order(&wanted.sets) {
            let mut changed = config.raw().clone();
            apply(set, &mut changed)?;
            if changed != *config.raw() {
                return Err(Failure::usage(format!(
                    "--config-set {}={} contradicts {}; change it there, or choose another --dir",
                    set.key(),
                    set.value(),
                    folder.config(*node).display()
                )));
            }
        }
    }
    Ok(())
}

/// Sets in the order in which they can be applied: without an address there is no archive to set
/// anything of.
fn in_order(sets: &[ConfigSet]) -> impl Iterator<Item = &ConfigSet> {
    let is_address = |set: &&ConfigSet| set.key() == "archive.url";
    let rest = sets.iter().filter(move |set| !is_address(set));
    sets.iter().filter(is_address).chain(rest)
}

fn apply(set: &ConfigSet, raw: &mut RawConfig) -> Result<(), Failure> {
    set.apply_to(raw).map_err(|error| {
        Failure::usage(format!(
            "--config-set {} can't be applied: {}",
            set.key(),
            with_causes(&error)
        ))
    })
}

/// The configurations of a new cluster.
fn fresh(folder: &ClusterFolder, wanted: &Wanted) -> Result<Vec<RawConfig>, Failure> {
    let nodes = wanted.nodes.unwrap_or(NODES_DEFAULT);
    // Every node has a voter of every group (ADR 0022).
    let most = NODES_MAX.min(GROUP_MEMBERS_MAX);
    if nodes == 0 || nodes > most as u64 {
        return Err(Failure::usage(format!(
            "--nodes is {nodes}, and must be from 1 to {most}"
        )));
    }
    let base = wanted.ports.base(nodes)?;
    let mut peers = BTreeMap::new();
    for node in 1..=nodes {
        let [peer, ..] = ports_of(base, node)?;
        peers.insert(node.to_string(), format!("127.0.0.1:{peer}"));
    }
    let cluster = certs::cluster_of_ca(folder.root())?;
    let cluster = cluster.map_or_else(|| CLUSTER_DEFAULT.to_owned(), |name| name.to_string());
    let cluster_id =
        ClusterId::draw().map_err(|error| Failure::work(format!("{error}; try again")))?;
    (1..=nodes)
        .map(|node| {
            let mut raw = RawConfig {
                cluster: cluster.clone(),
                cluster_id: Some(cluster_id),
                node,
                data_dir: data_dir(node),
                groups: wanted.groups.unwrap_or(GROUPS_DEFAULT),
                #[cfg(feature = "debug-keys")]
                debug_ack_delay: crate::config::Span(std::time::Duration::ZERO),
                #[cfg(feature = "debug-keys")]
                debug_message_sleep: crate::config::Span(std::time::Duration::ZERO),
                listen: listen(base, node)?,
                peers: peers.clone(),
                tls: tls(node),
                transport: Default::default(),
                raft: Default::default(),
                host: RawHost {
                    shards: shards_of(nodes),
                },
                commit_wait: Default::default(),
                log: Default::default(),
                archive: archive(folder, wanted.archive)?,
                client: Default::default(),
            };
            in_order(&wanted.sets).try_for_each(|set| apply(set, &mut raw))?;
            Ok(raw)
        })
        .collect()
}

/// Shards of each of these nodes, which share the machine: its cores by their number, and one at
/// least (ADR 0024).
fn shards_of(nodes: u64) -> u32 {
    let cores = RawHost::default().shards;
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    (cores / nodes).max(1)
}

/// The archive of a new cluster: beside its nodes' folders, by an absolute path, since each node
/// publishes there.
fn archive(folder: &ClusterFolder, wanted: Archive) -> Result<Option<RawArchive>, Failure> {
    if wanted == Archive::Off {
        return Ok(None);
    }
    let path = folder.archive();
    let Some(text) = path.to_str() else {
        return Err(Failure::usage(format!(
            "{} is no UTF-8, which archive.url must be; choose another --dir, or --no-archive",
            path.display()
        )));
    };
    Ok(Some(RawArchive::at(format!("file://{text}"))))
}

fn data_dir(node: u64) -> std::path::PathBuf {
    Path::new(&format!("node-{node}")).join("data")
}

fn listen(base: u16, node: u64) -> Result<RawListen, Failure> {
    let [peer, client, admin] = ports_of(base, node)?.map(|port| format!("127.0.0.1:{port}"));
    Ok(RawListen {
        peer,
        client,
        admin,
    })
}

fn tls(node: u64) -> RawTls {
    let own = format!("node-{node}");
    RawTls {
        ca: "ca/ca.pem".into(),
        cert: Path::new(&own).join("cert.pem"),
        key: Path::new(&own).join("key.pem"),
        crl: Some("ca/crl.pem".into()),
    }
}

/// What is there, and for each node that has none a configuration like the first.
fn completed(first: &Config, existing: &BTreeMap<u64, Config>) -> Result<Vec<RawConfig>, Failure> {
    let make = |(node, address): (&u64, &HostPort)| {
        if let Some(config) = existing.get(node) {
            return Ok(config.raw().clone());
        }
        let number = u16::try_from(*node).unwrap_or(u16::MAX);
        let base = address.port().saturating_sub(number);
        let mut raw = first.raw().clone();
        raw.node = *node;
        raw.data_dir = data_dir(*node);
        raw.listen = listen(base, *node)?;
        raw.listen.peer = address.to_string();
        raw.tls = tls(*node);
        Ok(raw)
    };
    first.peers().iter().map(make).collect()
}

fn make_certificates(folder: &ClusterFolder, configs: &[Config]) -> Result<(), Failure> {
    let root = folder.root();
    let missing = |config: &&Config| {
        let tls = &config.raw().tls;
        [&tls.cert, &tls.key]
            .iter()
            .any(|path| !root.join(path).exists())
    };
    let Some(first) = configs.first() else {
        return Ok(());
    };
    let name = &first.raw().cluster;
    match certs::cluster_of_ca(root)? {
        Some(found) if found.as_str() != name => {
            return Err(Failure::usage(format!(
                "cluster is {name} in {}, and the CA in {} is that of {found}; correct one of them",
                folder.config(first.node()).display(),
                root.join("ca").display()
            )));
        }
        Some(_) => {}
        None if configs
            .iter()
            .all(|config| root.join(&config.raw().tls.ca).exists()) => {}
        None => {
            let name: ClusterName = name.parse().map_err(|error| {
                Failure::usage(format!(
                    "cluster {name:?} is no name for a cluster: {error}"
                ))
            })?;
            certs::make_ca(root, name)?;
        }
    }
    for config in configs.iter().filter(missing) {
        let node = u32::try_from(config.node()).ok().and_then(PeerId::new);
        let node = node.ok_or_else(|| {
            Failure::usage(format!("node {} is no number of a node", config.node()))
        })?;
        certs::make_leaf(root, node)?;
    }
    Ok(())
}

fn write_config(folder: &ClusterFolder, config: &Config) -> Result<(), Failure> {
    let path = folder.config(config.node());
    let parent = durable::folder_of(&path);
    fs::create_dir_all(parent).map_err(|error| Failure::of_file("create", parent, &error))?;
    let mut text = config.raw().to_toml();
    if config.raw().archive.is_none() {
        text.push_str(ARCHIVE_COMMENT);
    }
    durable::write(&path, text.as_bytes(), Readers::All)
        .map_err(|error| Failure::of_file("write", &path, &error))
}
