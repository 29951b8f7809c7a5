//! [`Entities`]: the handle of a running runtime.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::capacity::{Capacity, Permit};
use gesta_core::peers::Peers;
use gesta_core::{Clock, OwnerStore, Result as StoreResult, StreamId, SystemClock, way_point};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::ask::{Ask, CommandAsk, FnRead, Freshness, Origin, PendingReply, Request, lost};
use crate::config::Config;
use crate::decider::Decider;
use crate::error::Error;
use crate::forward::Forwarding;
use crate::forward::owner::OwnerSide;
use crate::keys;
use crate::kind::{EntityKind, EntityType};
use crate::load::load_all;
use crate::shard::{Shard, ShardParts};
use crate::shared::Shared;
use crate::snapshot_writer::write_all;
use crate::stats::{Counters, Stats};

/// The entities of one type, kept in memory while they are used. Clones are cheap.
///
/// Call [`shutdown`](Entities::shutdown) when done, and shut the store down after it. A node of a cluster leaves the
/// cluster before it, so that other nodes no longer forward requests to it. If all handles are dropped instead, what
/// was handed over is still carried out, in the background.
pub struct Entities<D: Decider> {
    shared: Arc<Shared<D>>,
}

/// Starts runtimes with other bounds or another clock than [`Entities::start`].
pub struct Builder {
    config: Config,
    clock: Arc<dyn Clock>,
    peers: Option<Arc<dyn Peers>>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Builder").field(&self.config).finish()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// Makes a builder with the default bounds and the clock of the system.
    #[must_use]
    pub fn new() -> Self {
        Self {
            config: Config::default(),
            clock: Arc::new(SystemClock),
            peers: None,
        }
    }

    /// Sets other bounds and times.
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Sets another clock, which tells `decide` the time.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Sets the other nodes of a cluster. Commands and reads of entities of an [`EntityType::forwarded`] type then go
    /// to the node that owns the stream of the entity. Without these nodes, or with another type, each node carries out
    /// what it is asked. That is as correct, but nodes that change one entity at the same time make each other decide
    /// again.
    #[must_use]
    pub fn peers(self, peers: Arc<dyn Peers>) -> Self {
        Self {
            peers: Some(peers),
            ..self
        }
    }

    /// Starts a runtime on a store. This must be called within a tokio runtime.
    #[must_use]
    pub fn start<D: Decider>(
        self,
        store: Arc<dyn OwnerStore>,
        entity_type: EntityType<D>,
    ) -> Entities<D> {
        Entities::start_with(self, store, entity_type)
    }
}

impl<D: Decider> Clone for Entities<D> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<D: Decider> std::fmt::Debug for Entities<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entities")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Returns how commands reach owners on other nodes; `None` if they are carried out on the node to which they come.
fn forwarding<D: Decider>(
    kind: &EntityKind<D>,
    peers: Option<Arc<dyn Peers>>,
    within: Duration,
) -> Option<Arc<Forwarding>> {
    let peers = peers.filter(|_| kind.forms.is_some())?;
    Some(Arc::new(Forwarding {
        peers,
        service: kind.service(),
        within,
    }))
}

impl<D: Decider> Entities<D> {
    /// Starts a runtime on a store, with the default bounds and the clock of the system. [`Builder`] sets others. This
    /// must be called within a tokio runtime.
    #[must_use]
    pub fn start(store: Arc<dyn OwnerStore>, entity_type: EntityType<D>) -> Self {
        Builder::new().start(store, entity_type)
    }

    fn start_with(from: Builder, store: Arc<dyn OwnerStore>, entity_type: EntityType<D>) -> Self {
        let (config, clock, peers) = (from.config, from.clock, from.peers);
        let count = match config.shards {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let active_max = config.active_max.div_ceil(count).max(1);
        let config = Arc::new(config);
        let kind = Arc::new(entity_type.kind);
        let forwarding = forwarding(&kind, peers, config.forward_within);
        let counters = Arc::new(Counters::default());
        let commands = Capacity::new([config.commands_max]);
        let reads = Capacity::new([config.reads_max]);
        let (loads, to_load) = mpsc::unbounded_channel();
        let (snapshots, to_write) = mpsc::channel(config.snapshots_waiting_max.max(1));
        let mut tasks = vec![
            tokio::spawn(load_all(
                Arc::clone(&store),
                to_load,
                config.loads_max,
                config.load_batch_max.clamp(1, 1_000),
            )),
            tokio::spawn(write_all(
                Arc::clone(&kind),
                Arc::clone(&store),
                to_write,
                Arc::clone(&counters),
            )),
        ];
        let mut shards = Vec::with_capacity(count);
        for _ in 0..count {
            let parts = ShardParts {
                kind: Arc::clone(&kind),
                config: Arc::clone(&config),
                counters: Arc::clone(&counters),
                store: Arc::clone(&store),
                clock: Arc::clone(&clock),
                forwarding: forwarding.clone(),
                loads: loads.clone(),
                snapshots: snapshots.clone(),
                waiting: [Arc::clone(&commands), Arc::clone(&reads)],
            };
            let (shard, sender) = Shard::new(parts, active_max);
            tasks.push(tokio::spawn(shard.run()));
            shards.push(sender);
        }
        let shared = Arc::new(Shared {
            kind,
            shards,
            commands,
            reads,
            counters,
            tasks: Mutex::new(tasks),
        });
        if let Some(Forwarding { peers, service, .. }) = forwarding.as_deref() {
            peers.register(service, Arc::new(OwnerSide(Arc::downgrade(&shared))));
        }
        Self { shared }
    }

    /// Carries out a command and waits for the reply.
    ///
    /// # Errors
    /// [`Error`] says why the command has no reply.
    ///
    /// # Cancel safety
    /// Once the future was polled, the command is carried out even if the future is dropped.
    pub async fn execute(
        &self,
        id: &str,
        command: D::Command,
    ) -> Result<D::Reply, Error<D::Rejection>> {
        let done = self.submit(id, Request::new(command)).await?;
        Ok(done.reply)
    }

    /// Hands a command over at once. The future that is returned gives the outcome.
    ///
    /// Commands to one entity are decided in the order of the calls, also while earlier ones are not answered yet.
    pub fn submit(&self, id: &str, request: Request<D::Command>) -> PendingReply<D> {
        let (reply, answer) = oneshot::channel();
        let key = request.idempotency_key.as_deref();
        let checked = key.map_or(Ok(()), keys::check_given);
        let admitted = checked
            .map_err(Error::from)
            .and_then(|()| self.admit(id, &self.shared.commands));
        match admitted {
            Ok((stream, permit)) => {
                way_point!(stream, "asked");
                let ask = CommandAsk::new(request, reply, permit, Origin::Caller);
                self.shared.send(stream, Ask::Command(ask));
            }
            Err(error) => {
                let _ = reply.send(Err(error.cast()));
            }
        }
        PendingReply { answer }
    }

    /// Looks at the state of an entity. An entity without events is in its default state.
    ///
    /// The read is linearizable: it sees every event that anyone, in any process, had stored before the call. `read`
    /// may run more than once.
    ///
    /// # Errors
    /// [`Error`], but never `Rejected`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn read<R: Send + 'static>(
        &self,
        id: &str,
        read: impl Fn(&D) -> R + Send + 'static,
    ) -> Result<R, Error<Infallible>> {
        self.look(id, read, Freshness::Confirmed).await
    }

    /// Looks at the state as [`read`](Self::read) does, without asking the store if the entity is in memory. So it may
    /// miss what *other processes* have stored since the entity was loaded. This read never shows what is not stored.
    ///
    /// # Errors
    /// [`Error`], but never `Rejected`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn read_stale<R: Send + 'static>(
        &self,
        id: &str,
        read: impl Fn(&D) -> R + Send + 'static,
    ) -> Result<R, Error<Infallible>> {
        self.look(id, read, Freshness::StaleAllowed).await
    }

    async fn look<R: Send + 'static>(
        &self,
        id: &str,
        read: impl Fn(&D) -> R + Send + 'static,
        freshness: Freshness,
    ) -> Result<R, Error<Infallible>> {
        let (reply, answer) = oneshot::channel();
        let (stream, permit) = self.admit(id, &self.shared.reads)?;
        let read = FnRead {
            read,
            freshness,
            found: None,
            looks: 0,
            reply,
            permit,
        };
        self.shared.send(stream, Ask::Read(Box::new(read)));
        answer.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Returns what the runtime has done since it was started, and what it holds now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let waiting = |capacity: &Capacity| u64::try_from(capacity.taken()[0]).unwrap_or(u64::MAX);
        Stats {
            commands_waiting: waiting(&self.shared.commands),
            reads_waiting: waiting(&self.shared.reads),
            ..self.shared.counters.snapshot()
        }
    }

    /// Takes no more commands and reads, answers all that were taken, and frees the memory. The store stays open.
    ///
    /// This may be called more than once, also at the same time. Each call returns when all that was taken is answered
    /// and the last snapshot is written.
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, the runtime takes no more commands and reads. Another call waits
    /// for the end.
    pub async fn shutdown(&self) {
        self.shared.commands.close();
        self.shared.reads.close();
        self.shared.commands.emptied().await;
        self.shared.reads.emptied().await;
        self.shared.stop_shards();
        let mut tasks = self.shared.tasks.lock().await;
        while let Some(task) = tasks.last_mut() {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the entity runtime has failed");
            }
            tasks.pop();
        }
    }

    /// Returns the stream of an entity, and the permit for one more command or read.
    fn admit(
        &self,
        id: &str,
        capacity: &Arc<Capacity>,
    ) -> Result<(StreamId, Permit), Error<Infallible>> {
        let stream: StoreResult<StreamId> = self.shared.kind.stream(id);
        let permit = self.shared.admit(capacity)?;
        Ok((stream?, permit))
    }
}
