//! `gesta serve --node`: a server that is one of several nodes on a database, and what it tells about them.

use std::sync::Arc;

use gesta_core::LogId;
use gesta_server::{Cluster, ClusterNode, LogOwner, Placement};

use super::serve::resolve;
use crate::config::Config;
use crate::exit::{Failure, Outcome};

/// Joins the cluster of the database, if that is configured.
pub(super) async fn join(
    config: &Config,
    options: &gesta::Options,
    database: &gesta::Database,
) -> Outcome<Option<Arc<gesta::Node>>> {
    let cluster = &config.cluster;
    if cluster.node.is_empty() {
        return Ok(None);
    }
    let listen = resolve(&cluster.node).await?;
    if !listen.ip().is_loopback() && !config.insecure {
        let text = format!(
            "refusing to listen for nodes on {listen}: it is not a loopback address, and links are not encrypted; \
             say --insecure to allow it"
        );
        return Err(Failure::usage(text));
    }
    let secret = read_secret(&cluster.secret_file)?;
    let listener = tokio::net::TcpListener::bind(listen).await;
    let listener = listener
        .map_err(|error| Failure::other(format!("cannot listen for nodes on {listen}: {error}")))?;
    let address = match cluster.advertise.as_str() {
        "" => listener.local_addr()?.to_string(),
        advertised => advertised.to_owned(),
    };
    let node = gesta::NodeOptions {
        weight: cluster.weight,
        give_up_after: config.append.give_up_after.0,
        ..gesta::NodeOptions::new(&address, &secret)?
    };
    let node = database.start_node(options, listener, node).await?;
    tracing::info!(%address, "this server is a node of the cluster of its database");
    Ok(Some(node))
}

/// The secret of the cluster, without white space at its end.
fn read_secret(path: &str) -> Outcome<Vec<u8>> {
    if path.is_empty() {
        let text = "a node needs the secret that all nodes share: --cluster-secret-file FILE";
        return Err(Failure::usage(text.to_owned()));
    }
    let secret = std::fs::read(path)
        .map_err(|error| Failure::usage(format!("the secret of the cluster: {path}: {error}")))?;
    Ok(secret.trim_ascii_end().to_vec())
}

/// What a node tells about its cluster.
pub(super) struct OfNode(pub(super) Arc<gesta::Node>);

impl Cluster for OfNode {
    fn placement(&self) -> Placement {
        let placement = self.0.placement();
        let node = |member: &gesta_cluster::Member| ClusterNode {
            node: member.id.0,
            address: member.address.to_string(),
            state: member.state.name(),
            build: member.build.to_string(),
        };
        let logs = (0..).zip(&placement.logs);
        Placement {
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
