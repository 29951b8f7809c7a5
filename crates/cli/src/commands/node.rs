//! `gesta serve --node`: a server that is one of several nodes on a database, and what it tells about the cluster.

use std::net::SocketAddr;
use std::sync::Arc;

use gesta_core::LogId;
use gesta_server::{Cluster, ClusterNode, ClusterPlacement, LogOwner};
use tokio::net::TcpListener;

use super::address::{resolve, who_has};
use crate::config::Config;
use crate::exit::{Failure, Outcome};
use crate::private_file;

/// A node that has not joined the cluster yet.
#[derive(Debug)]
pub(super) struct Prepared {
    listener: TcpListener,
    options: gesta::NodeOptions,
}

/// Checks all that can be checked before the store is opened, and listens for the other nodes. Returns `None` if the
/// server is to be no node.
pub(super) async fn prepare(config: &Config) -> Outcome<Option<Prepared>> {
    let cluster = &config.cluster;
    let advertised = Some(&cluster.advertise).filter(|address| !address.is_empty());
    if cluster.node.is_empty() {
        return match advertised {
            None => Ok(None),
            Some(address) => Err(Failure::usage(format!(
                "--advertise (cluster.advertise) says where other nodes reach this one, but this server is no node: \
                 --node ADDR (cluster.node) is missing, found only {address:?}"
            ))),
        };
    }
    if config.store.starts_with("sqlite:") {
        let text = format!(
            "--node (cluster.node) needs a PostgreSQL database that the nodes share: {} is a store of one process",
            config.store
        );
        return Err(Failure::usage(text));
    }
    let listen = resolve("--node (cluster.node)", 2114, &cluster.node).await?;
    if !listen.ip().is_loopback() && !config.insecure {
        let text = format!(
            "refusing to listen for nodes on {listen}: it is not a loopback address, and links are not encrypted; \
             say --insecure to allow it"
        );
        return Err(Failure::usage(text));
    }
    if advertised.is_none() && listen.ip().is_unspecified() {
        let text = format!(
            "--node (cluster.node) {listen} is every address of this machine: say by --advertise HOST:PORT \
             (cluster.advertise) at which one the other nodes reach this one"
        );
        return Err(Failure::usage(text));
    }
    let secret = read_secret(&cluster.secret_file)?;
    // The address to advertise is checked before the port is taken. If none is given, it is the address that the node
    // listens on.
    let options = |address: &str| -> gesta_core::Result<gesta::NodeOptions> {
        let options = gesta::NodeOptions {
            weight: cluster.weight,
            give_up_after: config.append.give_up_after,
            ..gesta::NodeOptions::new(address, &secret)?
        };
        options.check().map(|()| options)
    };
    let told = advertised.map(|address| options(address));
    let told = told.transpose()?;
    let listener = match TcpListener::bind(listen).await {
        Ok(listener) => listener,
        Err(error) => {
            let hint = match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    let who = who_has(listen).await;
                    format!("; {who}; --node HOST:PORT (cluster.node) names another address")
                }
                _ => String::new(),
            };
            let text = format!("cannot listen for nodes on {listen}: {error}{hint}");
            return Err(Failure::other(text));
        }
    };
    let options = match told {
        Some(options) => options,
        None => options(&listener.local_addr()?.to_string())?,
    };
    Ok(Some(Prepared { listener, options }))
}

impl Prepared {
    /// Joins the cluster of the database.
    pub(super) async fn join(
        self,
        options: &gesta::Options,
        database: &gesta::Database,
    ) -> Outcome<Arc<gesta::Node>> {
        let address = self.options.address.clone();
        let node = database.start_node(options, self.listener, self.options);
        let node = node.await?;
        tracing::info!(%address, "this server is a node of the cluster of its database");
        Ok(node)
    }
}

/// Reads the secret of the cluster, without white space at its end.
fn read_secret(path: &str) -> Outcome<Vec<u8>> {
    if path.is_empty() {
        let text = "a node needs the secret that all nodes share: --cluster-secret-file FILE (cluster.secret_file)";
        return Err(Failure::usage(text.to_owned()));
    }
    private_file::warn_of_others("the secret of the cluster", path.as_ref());
    let secret = std::fs::read(path)
        .map_err(|error| Failure::usage(format!("the secret of the cluster: {path}: {error}")))?;
    Ok(secret.trim_ascii_end().to_vec())
}

/// Returns the address at which clients reach the server of a node. A server that listens at every address of its
/// machine is reached at the host at which the other nodes reach it.
pub(super) fn client_address(node: &gesta::Node, listen: SocketAddr) -> String {
    let placement = node.placement();
    let own = placement.me.and_then(|me| placement.member(me));
    let host = own.and_then(|own| own.address.rsplit_once(':'));
    match host {
        Some((host, _)) if listen.ip().is_unspecified() => format!("{host}:{}", listen.port()),
        _ => listen.to_string(),
    }
}

/// Tells the server what a node knows about its cluster.
pub(super) struct OfNode(pub(super) Arc<gesta::Node>);

impl Cluster for OfNode {
    fn placement(&self) -> ClusterPlacement {
        let (placement, apis) = (self.0.placement(), self.0.client_addresses());
        let node = |member: &gesta_cluster::Member| ClusterNode {
            node: member.id.0,
            address: member.address.to_string(),
            api: apis.get(&member.address).map(ToString::to_string),
            state: member.state.name(),
            build: member.build.to_string(),
        };
        let logs = (0..).zip(&placement.logs);
        ClusterPlacement {
            node: placement.me.map(|me| me.0),
            nodes: placement.nodes.iter().map(node).collect(),
            logs: logs.map(|(log, place)| owner(log, place)).collect(),
        }
    }

    fn owner_elsewhere(&self, log: LogId) -> Option<LogOwner> {
        let placement = self.0.placement();
        let place = placement.log(log)?;
        let elsewhere = place.owner.as_ref()?;
        (Some(elsewhere.node) != placement.me).then(|| owner(log.0, place))
    }
}

fn owner(log: u16, place: &gesta_cluster::LogPlace) -> LogOwner {
    let owner = place.owner.as_ref();
    LogOwner {
        log,
        node: owner.map(|owner| owner.node.0),
        address: owner.map(|owner| owner.address.to_string()),
        epoch: place.epoch.0,
    }
}
