//! [`Node`]: the parts of which it is made, and which part does what.

mod asking;
mod peers;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, join, pending};
use gesta_cluster::{Member, Placement, Status, Stop};
use gesta_core::{
    AllPage, Append, Appended, DeleteStream, Deleted, Error, EventStore, Incarnation, ListStreams,
    LoadStream, LoadedPage, LogId, MetadataSet, OwnerStore, Position, ReadAll, ReadStream,
    Resolved, Result, SetStreamMetadata, SharedEvent, StoreInfo, StreamId, StreamMetadataRecord,
    StreamPage, StreamsPage, Submission, Subscribe, Subscription,
};
use gesta_link::{Forwarder, LinkConfig, LinkServer, LinkStartError, Reach};
use gesta_store::Store;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::calls::Change;
use crate::clients::{ClientAddresses, Clients};
use crate::direct::DirectPace;
use crate::placements::Placements;
use crate::routes;
use crate::serve::OwnerSide;
use crate::services::Services;
use crate::standing::{self, Counts, NodeStats};
use crate::taking_over;

/// How long a node that shuts down waits for the calls of others that it has taken.
const ANSWER_OTHERS_WITHIN: Duration = Duration::from_secs(5);

/// How a node talks to the others.
#[derive(Debug, Clone)]
pub struct Config {
    /// The configuration of its links.
    pub link: LinkConfig,
    /// How long a change may wait for the owner of its log before it is given up, whichever node takes the log over
    /// meanwhile.
    pub give_up_after: Duration,
}

/// The link to another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeLink {
    /// The address at which the node is reached.
    pub address: Arc<str>,
    /// Whether calls can be sent to the node.
    pub is_up: bool,
}

/// One node of a cluster: an event store that sends each change to the node that owns its log.
///
/// A node that is dropped without [`shutdown`](EventStore::shutdown) becomes silent, as if its process had died: its
/// links are cut, its port is free, and its beats end.
pub struct Node {
    pub(crate) store: Arc<Store>,
    pub(crate) forwarder: Forwarder,
    pub(crate) give_up_after: Duration,
    /// The pace of appends to each log while its owner cannot be reached, by log.
    pub(crate) direct: Vec<DirectPace>,
    pub(crate) services: Arc<Services>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) clients: Arc<Clients>,
    placement: watch::Receiver<Arc<Placement>>,
    placements: Arc<dyn Placements>,
    server: LinkServer,
    /// The task that sets the forwarder's routes and prepares for logs that this node takes over. The task ends with
    /// the node.
    _following: AbortOnDropHandle<()>,
    /// Why this node has left by itself, if it has given way to a node with another secret.
    gave_way: Arc<OnceLock<String>>,
    /// The departure, once somebody has asked for it.
    left: OnceLock<Shared<BoxFuture<'static, ()>>>,
    /// The end of the node, once somebody has shut it down. All callers of `shutdown` wait for the same end.
    ended: OnceLock<Shared<BoxFuture<'static, Result<()>>>>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Node {
    /// Makes a node of a store. `listener` takes the links of the other nodes. This must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// `InvalidArgument` if a value of the configuration is out of range.
    pub fn start(
        store: Arc<Store>,
        listener: TcpListener,
        config: Config,
        placements: Arc<dyn Placements>,
    ) -> Result<Arc<Self>> {
        check_window(store.idempotency().time, config.give_up_after)?;
        let placement = placements.changes();
        let services = Arc::new(Services::new(config.link.bounds.body_bytes_max));
        let clients = Arc::<Clients>::default();
        let owner_side = Arc::new(OwnerSide {
            store: Arc::clone(&store),
            placement: placement.clone(),
            services: Arc::clone(&services),
            placements: Arc::clone(&placements),
            clients: Arc::clone(&clients),
        });
        let logs = config.link.store.logs;
        let forwarder =
            Forwarder::start(config.link.clone(), Arc::new(|_, _| {})).map_err(invalid)?;
        let here = config.link.address.clone();
        let server = LinkServer::start(listener, config.link, owner_side).map_err(invalid)?;
        routes::set(&placement.borrow(), &forwarder, &here);
        let routing = routes::follow(placement.clone(), forwarder.clone(), here);
        let taking_over = taking_over::follow(placement.clone(), Arc::clone(&store));
        let following = tokio::spawn(join(routing, taking_over).map(drop));
        let node = Arc::new(Self {
            store,
            forwarder,
            give_up_after: config.give_up_after,
            services,
            counts: Arc::default(),
            clients,
            direct: (0..logs).map(|_| DirectPace::new()).collect(),
            placement,
            placements,
            server,
            _following: AbortOnDropHandle::new(following),
            gave_way: Arc::default(),
            left: OnceLock::new(),
            ended: OnceLock::new(),
        });
        // Ends by itself once the node is gone.
        tokio::spawn(asking::follow(
            Arc::downgrade(&node),
            node.placement.clone(),
        ));
        Ok(node)
    }

    /// Returns who owns which log, as this node knows it.
    #[must_use]
    pub fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.placement.borrow())
    }

    /// Returns what people may want to know about the membership; `None` if the placement is fixed.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        self.placements.status()
    }

    /// Returns the links to the other nodes that have not left, in the order of their numbers.
    #[must_use]
    pub fn links(&self) -> Vec<NodeLink> {
        let (placement, reach) = (self.placement(), self.forwarder.nodes());
        let others = placement.nodes.iter();
        let others = others.filter(|other| Some(other.id) != placement.me);
        let link = |other: &Member| NodeLink {
            address: Arc::clone(&other.address),
            is_up: reach.iter().any(|node| {
                node.address.as_str() == &*other.address && node.reach == Reach::Reachable
            }),
        };
        others.map(link).collect()
    }

    /// Sets the address, as host and port, at which clients reach what serves this node, so that every node can tell
    /// it. The other nodes learn it within some seconds.
    pub fn set_client_address(&self, address: &str) {
        self.clients.set_own(address);
    }

    /// Returns the addresses at which clients reach the nodes, as far as the nodes have told them. These addresses are
    /// advice, and may be some seconds old.
    #[must_use]
    pub fn client_addresses(&self) -> ClientAddresses {
        let placement = self.placement();
        let own = placement.me.and_then(|me| placement.member(me));
        self.clients.known(own.map(|own| &*own.address))
    }

    /// Returns what this node has done since it was started.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        self.counts.read(self.forwarder.stats())
    }

    /// Waits until the node no longer takes part: it was shut down, replaced by another process, or has failed. It
    /// still serves then.
    #[must_use]
    pub fn stopped(&self) -> BoxFuture<'static, Stop> {
        self.placements.stopped()
    }

    /// Waits until the node no longer takes part although nobody has shut it down, and returns the reason. Its process
    /// should end then, because the node appends slowly and is never ready again. A node that finds, before it has a
    /// log, that the others have another secret ends so.
    #[must_use]
    pub fn ended_by_itself(&self) -> BoxFuture<'static, String> {
        let (stopped, placement) = (self.stopped(), self.placement());
        let me = placement.me.and_then(|me| placement.member(me));
        let address = me.map(|me| Arc::clone(&me.address)).unwrap_or_default();
        let gave_way = Arc::clone(&self.gave_way);
        async move {
            let stop = stopped.await;
            let gave_way = gave_way.get().cloned();
            match gave_way.or_else(|| standing::reason_to_end(stop, &address)) {
                Some(reason) => reason,
                None => pending().await,
            }
        }
        .boxed()
    }

    /// Returns the store of this node, which appends to every log by itself.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Gives all logs to other nodes and leaves the cluster. Everything is still served, by this node or by the new
    /// owners. Something that lives beside the store, such as an entity runtime, must be ended after this and before
    /// [`shutdown`](EventStore::shutdown), because until then other nodes send it what it owns.
    ///
    /// # Cancel safety
    /// If the future is dropped, the node leaves all the same.
    pub async fn leave(&self) {
        self.departure().await;
    }

    /// Leaves the cluster because the others have another secret. `why` is for who has started the process.
    pub(crate) async fn give_way(&self, why: String) {
        // Who waits for the end of the membership finds the reason.
        let _ = self.gave_way.set(why);
        self.leave().await;
    }

    /// Returns the departure, which begins with the first call.
    fn departure(&self) -> Shared<BoxFuture<'static, ()>> {
        let left = self.left.get_or_init(|| {
            let leaving = tokio::spawn(self.placements.leave());
            let left = leaving.map(|left| {
                if let Err(error) = left {
                    tracing::error!(%error, "leaving the cluster has failed");
                }
            });
            left.boxed().shared()
        });
        left.clone()
    }

    /// Returns the forwarder, which has the links to the other nodes.
    #[must_use]
    pub fn forwarder(&self) -> &Forwarder {
        &self.forwarder
    }

    pub(crate) fn is_mine(&self, log: LogId) -> bool {
        self.placement.borrow().is_mine(log)
    }
}

fn invalid(error: LinkStartError) -> Error {
    Error::invalid("the node", error.to_string())
}

/// Refuses a memory of recent ids that is too short for a change that is tried again. Its attempts begin within the
/// time after which it is given up, and the store may do each of them as much later.
fn check_window(window: Duration, give_up_after: Duration) -> Result<()> {
    if window >= give_up_after.saturating_mul(2) {
        return Ok(());
    }
    let rule = format!(
        "retries must be recognised for at least twice the time after which a node gives a change up ({give_up_after:?}), \
         found {window:?}"
    );
    Err(Error::invalid("the time of idempotency", rule))
}

#[async_trait]
impl EventStore for Node {
    async fn incarnation(&self) -> Result<Incarnation> {
        self.store.incarnation().await
    }

    async fn info(&self) -> Result<StoreInfo> {
        self.store.info().await
    }

    async fn ready(&self) -> Result<()> {
        self.store.ready().await?;
        self.placements.ready()
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        let appended = self.append_anywhere(request).await;
        let appended = appended.map_err(|error: Error| error.during("append"))?;
        Ok(appended.0)
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        self.store.read_stream(request).await
    }

    async fn resolve(&self, events: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        self.store.resolve(events).await
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.store.read_all(request).await
    }

    async fn list_streams(&self, request: ListStreams) -> Result<StreamsPage> {
        self.store.list_streams(request).await
    }

    async fn delete_stream(&self, request: DeleteStream) -> Result<Deleted> {
        let log = self.store.log_of(&request.stream);
        let deleted = self.change_anywhere(log, Change::delete(request)).await;
        let deleted = deleted.map_err(|error| error.during("delete stream"))?;
        Ok(deleted.into())
    }

    async fn stream_metadata(&self, stream: StreamId) -> Result<StreamMetadataRecord> {
        self.store.stream_metadata(stream).await
    }

    async fn set_stream_metadata(&self, request: SetStreamMetadata) -> Result<MetadataSet> {
        let log = self.store.log_of(&request.stream);
        let set = self
            .change_anywhere(log, Change::set_metadata(request))
            .await;
        let set = set.map_err(|error| error.during("set metadata"))?;
        Ok(set.into())
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.store.subscribe(request).await
    }

    async fn shutdown(&self) -> Result<()> {
        let ended = self.ended.get_or_init(|| {
            let (leave, server) = (self.departure(), self.server.clone());
            let (forwarder, store) = (self.forwarder.clone(), Arc::clone(&self.store));
            let ending = tokio::spawn(async move {
                // First the logs: who calls meanwhile is told where they are now.
                leave.await;
                server.shutdown(ANSWER_OTHERS_WITHIN).await;
                forwarder.shutdown().await;
                store.shutdown().await
            });
            let failed = |error| Error::unavailable("shutting down failed").caused_by(error);
            ending
                .map(move |ended| ended.map_err(failed)?)
                .boxed()
                .shared()
        });
        ended.clone().await
    }
}

#[async_trait]
impl OwnerStore for Node {
    fn submit(&self, submission: Submission) {
        self.store.submit(submission);
    }

    fn known_end(&self, stream: &StreamId) -> Position {
        self.store.known_end(stream)
    }

    async fn read_streams(&self, requests: Vec<LoadStream>) -> Result<Vec<LoadedPage>> {
        self.store.read_streams(requests).await
    }
}
