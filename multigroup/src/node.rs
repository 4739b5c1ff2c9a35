//! A node: the host, the store, the front for clients and the admin port as one process. It starts
//! them in order, so that each finds what it needs, and stops them in order, so that every client
//! gets the answers it is owed and every lane's account is closed when the last status is taken.
//!
//! Starting: what the configuration asks for is checked, the three addresses are taken, the data
//! folder is claimed, the log is read, and only then are clients served. Stopping: clients are told
//! to go, what they asked for is answered, the archive gets the rest, the admin port closes, the host
//! drains and ends, the last status is written. A host that fails by itself ends the node with its
//! reason.
//!
//! Leaves to others: signals, exit codes and words for them (`cli/node.rs`), everything that the
//! parts do.

mod answers;
mod archiving;
mod error;
mod folder;
mod handler;
mod handles;
mod live;
mod machine;
mod setup;
mod source;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use raft_host::Host;
use raft_host::Storage;
use raft_host::io::{HostFailure, StartError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{error, info, warn};
use transport::Credentials;
use transport::io::clock;
use transport::io::credentials::CredentialError;

pub use self::error::{NodeError, SettingError};
pub use self::folder::{cluster_folder, final_status_path, pid_path};

use self::archiving::{ArchiveTasks, Archiving};
use self::folder::PidFile;
use self::handler::{Handler, Introduction};
use self::machine::{Checkpointer, Machines};
use self::setup::{Setup, resolve};
use self::source::Source;
use crate::admin::{self, AdminServed};
use crate::config::{Config, HostPort};
use crate::load::ClusterFacts;
use crate::resp::{self, Served};
use crate::store::{Store, StoreOptions};

/// How long a stop moves write-ahead logs into their databases; what is left is no fault.
const CLOSING_PATIENCE: Duration = Duration::from_secs(5);

/// Where a node is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// The node.
    pub node: u64,
    /// Its cluster.
    pub cluster: String,
    /// For its peers.
    pub peer: SocketAddr,
    /// For clients.
    pub client: SocketAddr,
    /// For operators.
    pub admin: SocketAddr,
}

impl std::fmt::Display for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            node,
            cluster,
            peer,
            client,
            admin,
        } = self;
        write!(
            f,
            "node {node} of cluster {cluster} serves peers on {peer}, clients on {client}, admin on \
             http://{admin}"
        )
    }
}

/// Runs a node until `stop` holds `true`, or it can't go on. `config` has its relative paths taken
/// from `cluster`, the cluster's folder, already. `listening` is called once clients are served.
///
/// # Errors
/// Why it didn't start, or ended by itself. A node that was stopped is no error.
pub async fn run(
    config: Config,
    cluster: &Path,
    stop: watch::Receiver<bool>,
    listening: impl FnOnce(&Listening),
) -> Result<(), NodeError> {
    let setup = Setup::of(&config)?;
    let archiving = Archiving::of(&config)?;
    handles::ensure(config.space().groups())?;
    let credentials = load_credentials(&setup)?;
    let ports = Ports::take(&config).await?;
    let _pid = PidFile::take(cluster, config.node())?;
    folder::claim_data(&config)?;
    let store = StoreOptions {
        noted: Some(config.data_dir().join("applied")),
        ..StoreOptions::new(config.groups_dir(), config.space())
    };
    let store = Arc::new(Store::open(store)?);
    let groups = config.space().groups();
    let archive = archiving.as_ref().map(|it| Arc::clone(&it.shared));
    let started = Machines::start(Arc::clone(&store), groups, archive.clone());
    let (machines, checkpointer) = started.map_err(NodeError::Thread)?;
    let source = Source::new(
        config.clone(),
        Arc::clone(&store),
        machines.clone(),
        credentials.clone(),
        archive,
    );
    let node = Starting {
        config,
        cluster: cluster.to_owned(),
        store,
        machines,
        checkpointer,
        archiving,
        source: Arc::new(source),
    };
    node.run(setup, credentials, ports, stop, listening).await
}

/// A node whose certificate or list is over its time starts all the same: its peers refuse it until
/// the files are renewed, and then nothing need be restarted.
fn load_credentials(setup: &Setup) -> Result<Credentials, CredentialError> {
    let now = clock::wall();
    let loaded = Credentials::load(&setup.tls, &setup.identity, now);
    if let Err(
        fault @ (CredentialError::Expired { .. }
        | CredentialError::NotYetValid { .. }
        | CredentialError::ListExpired { .. }),
    ) = &loaded
    {
        error!("the node starts, but no peer will have it: {fault}");
        return Credentials::load_at_any_age(&setup.tls, &setup.identity, now);
    }
    loaded
}

/// The three addresses of a node.
struct Ports {
    peer: SocketAddr,
    client: TcpListener,
    admin: TcpListener,
}

impl Ports {
    /// Takes the client's and the admin's, and makes sure that the peers' is free: that one is taken
    /// by the transport, once the log is read.
    async fn take(config: &Config) -> Result<Self, NodeError> {
        let peer = listen("listen.peer", config.listen_peer()).await?;
        let addresses = Self {
            peer: local(&peer, "listen.peer", config.listen_peer())?,
            client: listen("listen.client", config.listen_client()).await?,
            admin: listen("listen.admin", config.listen_admin()).await?,
        };
        drop(peer);
        Ok(addresses)
    }
}

async fn listen(key: &'static str, address: &HostPort) -> Result<TcpListener, NodeError> {
    let found = resolve(key, address).await?;
    let taken = TcpListener::bind(found).await;
    taken.map_err(|source| of_listen(key, address, source))
}

fn of_listen(key: &'static str, address: &HostPort, source: io::Error) -> NodeError {
    let address = address.clone();
    NodeError::Listen {
        key,
        address,
        source,
    }
}

fn local(
    listener: &TcpListener,
    key: &'static str,
    address: &HostPort,
) -> Result<SocketAddr, NodeError> {
    let local = listener.local_addr();
    local.map_err(|source| of_listen(key, address, source))
}

/// A node whose folder and addresses are taken, and whose log isn't read yet.
struct Starting {
    config: Config,
    cluster: PathBuf,
    store: Arc<Store>,
    machines: Machines,
    checkpointer: Checkpointer,
    archiving: Option<Archiving>,
    source: Arc<Source>,
}

/// What serves while a node runs, each until it is told.
struct Serving {
    tell_clients: watch::Sender<bool>,
    clients: JoinHandle<Served>,
    tell_admin: watch::Sender<bool>,
    admin: JoinHandle<AdminServed>,
    archive: Option<ArchiveTasks>,
}

impl Starting {
    async fn run(
        self,
        setup: Setup,
        credentials: Credentials,
        ports: Ports,
        mut stop: watch::Receiver<bool>,
        listening: impl FnOnce(&Listening),
    ) -> Result<(), NodeError> {
        let Ports {
            peer,
            client,
            admin,
        } = ports;
        let (client_at, admin_at) = (
            local(&client, "listen.client", self.config.listen_client())?,
            local(&admin, "listen.admin", self.config.listen_admin())?,
        );
        let (tell_admin, admin_told) = watch::channel(false);
        let admin = tokio::spawn(admin::serve(admin, Arc::clone(&self.source), admin_told));
        let host = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => None,
            host = self.start_host(setup, credentials, peer) => Some(host?),
        };
        let Some(host) = host else {
            info!("stopped while the log was being read");
            return Ok(());
        };
        let failure = host.failure();
        let peer = host.local_addr().unwrap_or(peer);
        let io_runtime = host.io_runtime();
        let (handler, archive) = self.begin(host, client_at);
        let (tell_clients, clients_told) = watch::channel(false);
        let space = self.config.space();
        let clients = io_runtime.spawn(resp::serve(client, handler, space, clients_told));
        listening(&Listening {
            node: self.config.node(),
            cluster: self.config.raw().cluster.clone(),
            peer,
            client: client_at,
            admin: admin_at,
        });
        let serving = Serving {
            tell_clients,
            clients,
            tell_admin,
            admin,
            archive,
        };
        self.serve(serving, stop, failure).await
    }

    async fn start_host(
        &self,
        setup: Setup,
        credentials: Credentials,
        listen: SocketAddr,
    ) -> Result<Host, NodeError> {
        let folder = self.config.data_dir().to_owned();
        let storage = tokio::task::spawn_blocking(move || Storage::open(folder)).await;
        let storage = storage.map_err(|error| NodeError::Thread(io::Error::other(error)))??;
        self.source.name(storage.incarnation());
        if let Some(archiving) = &self.archiving {
            archiving.check(&self.config, storage.incarnation()).await?;
        }
        let mut links = storage.links(setup.identity, listen, setup.peers);
        (links.fingerprint, links.tuning) = (setup.fingerprint, setup.tuning);
        let machines = self.machines.clone();
        let started = Host::start(setup.host, storage, links, credentials, machines).await;
        started.map_err(|error| {
            if let StartError::Transport(transport::io::StartError::Listen { source, .. }) = error {
                return of_listen("listen.peer", self.config.listen_peer(), source);
            }
            NodeError::Start {
                data: self.config.data_dir().to_owned(),
                source: Box::new(error),
            }
        })
    }

    /// Hands the host's groups to those who speak for them.
    fn begin(&self, host: Host, client: SocketAddr) -> (Arc<Handler>, Option<ArchiveTasks>) {
        let groups: Vec<_> = self
            .config
            .space()
            .all()
            .map(|group| host.group(group))
            .collect();
        let raw = self.config.raw();
        let introduction = Introduction {
            cluster: raw.cluster.clone(),
            node: self.config.node(),
            client_port: client.port(),
            facts: ClusterFacts {
                space: self.config.space(),
                policy: Some(raw.commit_wait.policy.clone()),
                log_sync: Some(raw.log.sync),
            },
        };
        let handler = Handler::new(
            groups.clone(),
            Arc::clone(&self.store),
            (raw.commit_wait.first_ack_max.0, setup::policy(&self.config)),
            self.config.dedup_window_ms(),
            introduction,
        );
        let archive = self.archiving.as_ref().zip(self.source.incarnation());
        let archive = archive.map(|(archiving, incarnation)| {
            archiving.start(&self.config, &host, &groups, incarnation)
        });
        self.source.begin(Arc::new(host), groups);
        (Arc::new(handler), archive)
    }

    async fn serve(
        self,
        serving: Serving,
        mut stop: watch::Receiver<bool>,
        mut failure: watch::Receiver<Option<HostFailure>>,
    ) -> Result<(), NodeError> {
        let catching_up = tokio::spawn({
            let source = Arc::clone(&self.source);
            async move { source.catch_up().await }
        });
        let failed = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => None,
            failed = failure.wait_for(Option::is_some) => {
                failed.ok().and_then(|failure| failure.clone())
            }
            path = folder::gone(self.config.data_dir()) => {
                self.source.announce_stop();
                return Err(NodeError::DataGone { path });
            }
        };
        catching_up.abort();
        // Its end lets go of the groups' shards.
        let _ = catching_up.await;
        match failed {
            Some(failure) => {
                self.source.announce_stop();
                serving.clients.abort();
                serving.admin.abort();
                if let Some(archive) = serving.archive {
                    archive.abort();
                }
                self.machines.stop();
                Err(NodeError::Failed {
                    node: self.config.node(),
                    source: Box::new(failure),
                })
            }
            None => self.stop(serving).await,
        }
    }

    async fn stop(self, serving: Serving) -> Result<(), NodeError> {
        info!("stopping: no more clients are taken, those here get their answers");
        self.source.announce_stop();
        let Serving {
            tell_clients,
            clients,
            tell_admin,
            admin,
            archive,
        } = serving;
        tell_clients.send_replace(true);
        if let Err(error) = clients.await {
            warn!(%error, "the front for clients panicked");
        }
        if let Some(archive) = archive {
            archive.stop().await;
        }
        tell_admin.send_replace(true);
        if let Err(error) = admin.await {
            warn!(%error, "the admin port panicked");
        }
        let Some(host) = self.source.release() else {
            return Ok(());
        };
        let host = sole_owner(host).await;
        self.machines.stop();
        let ended = host.shut_down().await;
        let status = self.source.end(ended.stats);
        let (store, checkpointer) = (self.store, self.checkpointer);
        let closing = tokio::task::spawn_blocking(move || {
            checkpointer.join();
            let until = clock::now() + CLOSING_PATIENCE;
            store.close_settled(&|| clock::now() < until);
        });
        if let Err(error) = closing.await {
            warn!(%error, "the databases were not closed in order");
        }
        let path = folder::write_final(&self.cluster, self.config.node(), &status)?;
        info!(path = %path.display(), "stopped; the last status is written");
        Ok(())
    }
}

/// The host once nobody asks it for its status any more, which takes no longer than an answer.
async fn sole_owner(mut host: Arc<Host>) -> Host {
    loop {
        match Arc::try_unwrap(host) {
            Ok(host) => return host,
            Err(shared) => host = shared,
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
