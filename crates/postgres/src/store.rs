//! The backend: what it consists of, and which module answers which call.

use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use gesta_core::backend::{
    Backend, BackendInfo, ClockReading, EventLookup, EventRef, History, LoadRequest, Loaded,
    LogEnd, LogSlice, LogTail, LogWriter, Purpose, Removed, RowId, Rows, RunMode, Signal, StoredId,
    StreamSlice, Topic, VirtualIndex,
};
use gesta_core::registry::Registry;
use gesta_core::{
    Capabilities, ContentType, Error, ErrorKind, LogId, Position, Result, StreamId, Visibility,
};
use tokio_util::sync::CancellationToken;

use crate::append::Writers;
use crate::audit::PostgresAudit;
use crate::cluster::registry::PostgresRegistry;
use crate::cluster::signals::Signals;
use crate::config::Config;
use crate::connect::connection::{
    Connection, Connector, Role, is_pooled_by_transaction, read_session,
};
use crate::connect::history::Ledger;
use crate::connect::history::lineage;
use crate::connect::identity::Identity;
use crate::connect::pool::Pool;
use crate::error::{self, READ_ONLY};
use crate::log_map::{Held, HeldRow, KeepsMap, MapCopy};
use crate::map;
use crate::map::{ReadHeld, ReadMap, Shows, SoughtRow};
use crate::read::lookup::{List, Load, Lookup, ReadIds, ReadLogEnd, ReadLogEnds};
use crate::read::streams::ReadStreamsPage;
use crate::read::tails::Tails;
use crate::read::{ReadLogPage, ReadStreamPage};
use crate::scavenge;
use crate::schema;
use crate::virtual_index::PostgresIndex;

/// The most batches that may be on their way at once. The pipeline sends more than a few of them only far from the
/// database.
const BATCHES_IN_FLIGHT_MAX: usize = 64;

/// The sessions of a process beside those for reads of callers: for appends, for reads that appends wait for, for reads
/// of the server itself, for messages, and one for administration now and then.
const SESSIONS_BESIDE_READERS: usize = 5;

/// A store in a schema of a PostgreSQL database.
#[derive(Debug)]
pub struct PostgresBackend {
    /// The information as it was when the store was opened.
    info: Arc<BackendInfo>,
    map: RwLock<Arc<MapCopy>>,
    ledger: Arc<Ledger>,
    connector: Arc<Connector>,
    pool: Arc<Pool>,
    tails: Tails,
    index: Arc<PostgresIndex>,
    writers: Writers,
    signals: Signals,
    registry: Arc<PostgresRegistry>,
    closed: CancellationToken,
}

impl PostgresBackend {
    /// Opens a store. If there is none, it is made with [`Config::logs_if_new`] logs, unless [`Config::must_exist`] is
    /// set.
    ///
    /// # Errors
    /// `Unavailable` if no primary can be reached; `Schema` if the store is of another version, or is missing and must
    /// exist; `Unsupported` if the server, its settings, our rights, or a pooler in between cannot keep the contract;
    /// `InvalidArgument` if the configuration breaks a rule.
    ///
    /// # Cancel safety
    /// If the future is dropped, a store that was to be made may have been made or not.
    pub async fn open(config: Config) -> Result<Self> {
        let connector = Arc::new(Connector::new(config)?);
        let one = connector.connect(Role::Admin).await?;
        let durability = connector.check_durability(&one.session.settings)?;
        let other = match connector.connect(Role::Admin).await {
            Ok(other) => other,
            // The first session works, so it is not the database that does not answer.
            Err(error) if answers(&one).await => {
                let needed = connector.config.readers_max + SESSIONS_BESIDE_READERS;
                let text = format!(
                    "a second session could not be opened beside the first one ({}): Gesta needs {needed} of its own, and a \
                     pooler or a limit of the database (max_connections, CONNECTION LIMIT) allows fewer",
                    error.kind()
                );
                return Err(Error::new(ErrorKind::Unsupported(text)).caused_by(error));
            }
            Err(error) => return Err(error),
        };
        if is_pooled_by_transaction(&one, &other, connector.config.connect_timeout()).await? {
            let text = "a pooler hands out the database's sessions by transaction or by statement, or has too few of them; \
                        Gesta needs sessions of its own: connect to PostgreSQL directly, or set the pooler's mode to session";
            return Err(ErrorKind::Unsupported(text.to_owned()).into());
        }
        let store = schema::open(&one, &connector.config).await?;
        let map = map::read(&one.client, store.logs).await?;
        if !connector.config.is_part {
            check_whole(&map)?;
        }
        let (incarnation, noted) =
            lineage::settle(&one.client, one.session.place(), &connector.config).await?;
        let info = BackendInfo {
            backend: "postgres",
            engine: format!("PostgreSQL {}", one.session.version),
            logs: store.logs,
            durability,
            capabilities: Capabilities {
                persistent: true,
                shared: true,
                several_logs: true,
                batches_in_flight_max: BATCHES_IN_FLIGHT_MAX,
            },
        };
        let info = Arc::new(info);
        connector.tell(Arc::clone(&info), &one.session.settings);
        let channel = connector.config.channel();
        let identity = Identity {
            store: map.map.store(),
            database: map.here.0,
            logs: store.logs,
            version: store.version,
        };
        let ledger = connector.ledger.get_or_init(|| {
            Ledger::new(
                identity,
                incarnation,
                (one.session.timeline, noted),
                channel,
            )
        });
        let ledger = Arc::clone(ledger);
        ledger.observe_map(one.generation, map.map.version());
        let closed = CancellationToken::new();
        let pool = Arc::new(Pool::new(Arc::clone(&connector), Arc::clone(&ledger)));
        Ok(Self {
            writers: Writers::new(Arc::clone(&connector), info.logs),
            info,
            map: RwLock::new(Arc::new(map)),
            index: Arc::new(PostgresIndex::new(&pool)),
            tails: Tails::start(&pool, &ledger, connector.config.is_part),
            pool,
            signals: Signals::start(Arc::clone(&connector), Arc::clone(&ledger)),
            registry: Arc::new(PostgresRegistry::new(&connector, &ledger, &closed)),
            ledger,
            connector,
            closed,
        })
    }

    /// Returns the copy of the map of the logs that this database keeps, as it was read last.
    #[must_use]
    pub fn map(&self) -> Arc<MapCopy> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes one snapshot of the store for [`gesta_sql::verify::audit`].
    ///
    /// # Errors
    /// `Unavailable` if no primary can be reached.
    ///
    /// # Cancel safety
    /// Dropping the future ends the snapshot.
    pub async fn audit_source(&self) -> Result<PostgresAudit> {
        PostgresAudit::begin(&self.connector, self.info.logs).await
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.is_cancelled() {
            return Err(gesta_core::Error::unavailable("the store is closed"));
        }
        Ok(())
    }

    /// Refuses a log that lies in another database, since what is appended here would never be found.
    fn check_home(&self, log: LogId) -> Result<()> {
        let copy = self.map();
        let map = &copy.map;
        match map.home(log) {
            _ if copy.has(log, map) => Ok(()),
            Some(home) if Some(home) == copy.place() => {
                let text = format!("this database has lost log {log}, which had come to it");
                Err(Error::unavailable(text))
            }
            Some(home) => {
                let home = map.describe(home);
                let text = format!("log {log} lies in {home}, not in this one");
                Err(error::unfit(text))
            }
            None => Err(Error::corrupt(format!("the store has no log {log}"))),
        }
    }
}

#[async_trait]
impl KeepsMap for PostgresBackend {
    async fn read_map(&self) -> Result<Arc<MapCopy>> {
        self.check_open()?;
        let logs = self.info.logs;
        let read = self
            .pool
            .read(
                "read the map of the logs",
                Purpose::Append,
                ReadMap { logs },
            )
            .await;
        let copy = Arc::new(read?);
        // The newest answer counts, even if its version is older: the database may have been set back.
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&copy);
        Ok(copy)
    }

    async fn read_held(&self) -> Result<Vec<Held>> {
        self.check_open()?;
        let what = "read what the database holds of the logs";
        self.pool.read(what, Purpose::Read, ReadHeld).await
    }

    async fn shows(&self, rows: &[(LogId, HeldRow)]) -> Result<Vec<bool>> {
        self.check_open()?;
        let asked = rows.iter().map(|(log, row)| SoughtRow::of(*log, row));
        let read = Shows(asked.collect());
        self.pool
            .read("look for rows of logs", Purpose::Read, read)
            .await
    }
}

/// Tells whether a session works.
async fn answers(connection: &Connection) -> bool {
    read_session(&connection.client).await.is_ok()
}

/// Refuses a database whose store has other databases too.
fn check_whole(copy: &MapCopy) -> Result<()> {
    let map = &copy.map;
    let count = map.databases().len();
    if count == 1 {
        return Ok(());
    }
    let others = (0..count).filter(|place| Some(*place) != copy.place());
    let others: Vec<String> = others.map(|place| map.describe(place)).collect();
    let rule = format!(
        "must name all {count} databases of the store, found one: {} is missing",
        others.join(", ")
    );
    Err(Error::invalid("store", rule))
}

#[async_trait]
impl Backend for PostgresBackend {
    fn info(&self) -> Arc<BackendInfo> {
        let current = self.connector.info();
        current.unwrap_or_else(|| Arc::clone(&self.info))
    }

    fn history(&self) -> History {
        self.ledger.history()
    }

    fn clock(&self, _: LogId) -> Option<ClockReading> {
        self.connector.clock()
    }

    fn refuses_appends(&self, _: LogId) -> Option<String> {
        self.connector.is_read_only().then(|| READ_ONLY.to_owned())
    }

    fn pack(&self, stream: &StreamId, content_type: ContentType, data: &Bytes) -> Option<Bytes> {
        let compression = self.connector.config.compression;
        compression
            .pack(stream, content_type, data)
            .map(Bytes::from)
    }

    fn ready(&self) -> Result<()> {
        Ok(())
    }

    async fn open_writer(&self, log: LogId) -> Result<Box<dyn LogWriter>> {
        self.check_open()?;
        if self.check_home(log).is_err() {
            self.read_map().await?;
            self.check_home(log)?;
        }
        Ok(Box::new(self.writers.open(log).await?))
    }

    async fn log_end(&self, log: LogId, purpose: Purpose) -> Result<LogEnd> {
        let read = ReadLogEnd {
            log,
            ledger: &self.ledger,
        };
        self.pool.read("read the end of a log", purpose, read).await
    }

    async fn log_ends(&self, purpose: Purpose) -> Result<Vec<LogEnd>> {
        let is_part = self.connector.config.is_part;
        if self.info.logs == 1 && !is_part {
            // Every connection has prepared this statement already. It does not tell that a log is closed from an
            // error.
            return Ok(vec![self.log_end(LogId(0), purpose).await?]);
        }
        let read = ReadLogEnds {
            is_part,
            ledger: &self.ledger,
        };
        self.pool
            .read("read the ends of the logs", purpose, read)
            .await
    }

    async fn load(&self, log: LogId, request: LoadRequest, purpose: Purpose) -> Result<Loaded> {
        let request = &request;
        self.pool
            .read("load streams", purpose, Load { log, request })
            .await
    }

    async fn lookup(
        &self,
        log: LogId,
        lookup: EventLookup,
        purpose: Purpose,
    ) -> Result<Vec<EventRef>> {
        let (names, what) = (&self.ledger.names, &lookup);
        self.pool
            .read("look up events", purpose, Lookup { names, log, what })
            .await
    }

    async fn read_ids(&self, log: LogId, after: Position, to: Position) -> Result<Vec<StoredId>> {
        let read = ReadIds { log, after, to };
        self.pool.read("read event ids", Purpose::Read, read).await
    }

    async fn read_stream(&self, slice: StreamSlice) -> Result<Rows> {
        let (names, slice) = (&self.ledger.names, &slice);
        self.pool
            .read(
                "read a stream",
                Purpose::Read,
                ReadStreamPage { names, slice },
            )
            .await
    }

    async fn read_streams(&self, log: LogId, slices: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        let (names, slices) = (&self.ledger.names, slices.as_slice());
        self.pool
            .read(
                "read streams",
                Purpose::Read,
                ReadStreamsPage { names, log, slices },
            )
            .await
    }

    async fn read_log(&self, slice: LogSlice) -> Result<Rows> {
        let (names, slice) = (&self.ledger.names, &slice);
        self.pool
            .read("read a log", Purpose::Read, ReadLogPage { names, slice })
            .await
    }

    async fn read_tail(&self, tail: LogTail) -> Result<Rows> {
        self.tails.read(tail).await
    }

    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        self.pool
            .read(
                "list streams",
                Purpose::Read,
                List {
                    prefix,
                    after,
                    limit,
                },
            )
            .await
    }

    fn signals(&self, topic: Topic) -> BoxStream<'static, Signal> {
        self.signals.subscribe(topic)
    }

    async fn send_signal(&self, signal: Signal) {
        self.signals.send(signal);
    }

    async fn remove_hidden(
        &self,
        log: LogId,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Result<Removed> {
        self.check_open()?;
        let history = self.history();
        scavenge::remove_hidden(&self.connector, history, log, stream, visibility, mode).await
    }

    fn registry(&self) -> Option<Arc<dyn Registry>> {
        Some(self.registry.clone())
    }

    fn virtual_index(&self) -> Option<Arc<dyn VirtualIndex>> {
        Some(self.index.clone())
    }

    async fn close(&self) {
        self.closed.cancel();
        self.pool.close();
        tokio::join!(self.signals.close(), self.registry.close());
    }
}
