//! A database by its URL, and what only particular databases can do.

use std::path::Path;
use std::sync::Arc;

use gesta_core::backend::{Backend, BackendInfo, Purpose};
use gesta_core::registry::Registry;
use gesta_core::{Clock, Error, ErrorKind, Incarnation, Position, Result, SystemClock};
use gesta_sql::verify::{AuditProgress, AuditReport, AuditSource, audit};
use gesta_store::{Config, Store, VirtualStreamsStatus};

#[cfg(feature = "sqlite")]
use crate::blocking::blocking;
use crate::left_virtual_streams::LeftVirtualStreams;
use crate::url::Scheme;

/// What to do if the database holds no store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Missing {
    /// Refuse with `Schema` and make nothing, since a mistyped URL should not make a new store.
    #[default]
    Refuse,
    /// Make a store, unless the URL says `create=false` (SQLite).
    Create,
}

/// How a store in a database is opened.
#[derive(Clone)]
pub struct Options {
    config: Config,
    pub(crate) logs: u16,
    missing: Missing,
    clock: Arc<dyn Clock>,
}

impl Default for Options {
    /// Opens a store that exists, with the default bounds and the clock of the system.
    fn default() -> Self {
        Self {
            config: Config::default(),
            logs: 1,
            missing: Missing::Refuse,
            clock: Arc::new(SystemClock),
        }
    }
}

impl Options {
    /// Creates the store, with one log, if there is none.
    #[must_use]
    pub fn creating() -> Self {
        Self::default().missing(Missing::Create)
    }

    /// Sets what to do if there is no store yet. A store in memory is always created.
    #[must_use]
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Sets how many logs the store gets if it does not exist yet (1 to 1,024; SQLite: 1). A store that exists keeps
    /// its
    /// number.
    #[must_use]
    pub fn logs(mut self, logs: u16) -> Self {
        self.logs = logs;
        self
    }

    /// Sets the bounds and times of the store.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets the clock that tells the time at which events are stored.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the store in the database at `url` with these options, as [`open_database`](crate::open_database) does.
    ///
    /// # Errors
    /// The errors of [`open_database`](crate::open_database).
    ///
    /// # Cancel safety
    /// If the future is dropped, a store that was to be made may have been made or not.
    pub async fn open_database(self, url: &str) -> Result<Arc<Store>> {
        Database::open(url, &self).await?.start(&self)
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("config", &self.config)
            .field("logs", &self.logs)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

/// An open database, on which a [`Store`] may run. Clones are cheap.
#[derive(Clone)]
pub struct Database {
    kind: Engine,
}

#[derive(Clone)]
enum Engine {
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<gesta_sqlite::SqliteBackend>),
    #[cfg(feature = "postgres")]
    Postgres(gesta_postgres::several::Databases),
}

/// Everything that a store holds, at one moment.
#[doc(hidden)]
pub struct Snapshot {
    /// The rows.
    pub rows: Box<dyn AuditSource>,
    /// The last position of each log.
    pub ends: Vec<Position>,
    /// The incarnation.
    pub incarnation: Incarnation,
    /// Whether virtual streams are switched on.
    pub virtual_streams: bool,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Database").field(&self.info()).finish()
    }
}

impl Database {
    /// Opens the database at `url`. An empty database becomes a store if the options say so.
    ///
    /// # Errors
    /// The errors of [`open`](crate::open); `InvalidArgument` for the URL of a server.
    ///
    /// # Cancel safety
    /// If the future is dropped, a store that was to be made may have been made or not.
    pub async fn open(url: &str, options: &Options) -> Result<Self> {
        let opened = match Scheme::of(url) {
            Ok(Scheme::Sqlite) => open_sqlite(url, options).await,
            Ok(Scheme::Postgres) => open_postgres(url, options).await,
            Err(error) => Err(error),
        };
        let kind = opened.map_err(|error| error.during("open the store"))?;
        Ok(Self { kind })
    }

    /// Returns what kind of database this is and what it can do.
    #[must_use]
    pub fn info(&self) -> Arc<BackendInfo> {
        self.backend().info()
    }

    /// Starts a store on the database. This may be done once: the store owns the writing connections, and closes the
    /// database on shutdown.
    ///
    /// # Errors
    /// The errors of [`Store::open`].
    pub fn start(&self, options: &Options) -> Result<Arc<Store>> {
        Store::open(
            self.backend(),
            options.config.clone(),
            Arc::clone(&options.clock),
        )
    }

    /// Starts a store on the database that is one node of its cluster: it appends to the logs that it owns, and
    /// forwards changes of other logs to their owners. `listener` takes the links of the other nodes. This may be done
    /// once, as with [`start`](Self::start).
    ///
    /// # Errors
    /// The errors of [`Store::open`]; `Unsupported` if the database is used by one process alone; `Unavailable` if it
    /// does not answer.
    #[cfg(feature = "cluster")]
    pub async fn start_node(
        &self,
        options: &Options,
        listener: tokio::net::TcpListener,
        node: crate::NodeOptions,
    ) -> Result<Arc<crate::Node>> {
        self.registries()?;
        let started = crate::Node::join(self.start(options)?, listener, node).await;
        started.map_err(|error| error.during("join the cluster"))
    }

    /// For the command line. Returns the registries of the nodes that share this store, one for each of its databases.
    /// They tell for administration who is alive, and who appends to the logs that lie there.
    ///
    /// # Errors
    /// `Unsupported` if the database is used by one process alone.
    #[doc(hidden)]
    pub fn registries(&self) -> Result<Vec<Arc<dyn Registry>>> {
        let registries = self.backend().registries();
        if registries.is_empty() {
            let text = "this database is used by one process; several nodes need PostgreSQL";
            return Err(Error::new(ErrorKind::Unsupported(text.into())));
        }
        Ok(registries)
    }

    /// For the command line. Returns the copies of logs that were open, in databases in which the logs do not lie, when
    /// this was opened; none if the store has one database.
    #[cfg(feature = "postgres")]
    #[doc(hidden)]
    #[must_use]
    pub fn open_copies(&self) -> Vec<gesta_postgres::several::OpenCopy> {
        match self.kind {
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(_) => Vec::new(),
            Engine::Postgres(ref databases) => databases.open_copies(),
        }
    }

    fn backend(&self) -> Arc<dyn Backend> {
        match self.kind {
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(ref backend) => Arc::clone(backend) as Arc<dyn Backend>,
            #[cfg(feature = "postgres")]
            Engine::Postgres(ref databases) => databases.backend(),
        }
    }

    /// Reads the whole store again and checks every promise that data can show. Damage is told in the report and is no
    /// error.
    ///
    /// # Errors
    /// `Unavailable` if the database cannot be read.
    ///
    /// # Cancel safety
    /// The check only reads.
    pub async fn verify(&self, progress: impl FnMut(AuditProgress) + Send) -> Result<AuditReport> {
        let mut progress = progress;
        let report = async {
            let mut rows = self.rows().await?;
            audit(&mut *rows, &mut progress).await
        };
        report.await.map_err(|error: Error| error.during("verify"))
    }

    /// For `gesta copy`. Returns everything that the store holds, at one moment.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    #[doc(hidden)]
    pub async fn snapshot(&self) -> Result<Snapshot> {
        let backend = self.backend();
        // The rows are read after this, so they reach these ends.
        let incarnation = backend.history().incarnation;
        let ends = backend.log_ends(Purpose::Read).await?;
        let virtual_streams = match backend.virtual_index() {
            Some(index) => index.state().await?.on,
            None => false,
        };
        Ok(Snapshot {
            rows: self.rows().await?,
            ends: ends.into_iter().map(|end| end.position).collect(),
            incarnation,
            virtual_streams,
        })
    }

    /// For `gesta move`. Returns the rows of the store at one moment, also of one whose logs are closed.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    #[doc(hidden)]
    pub async fn rows(&self) -> Result<Box<dyn AuditSource>> {
        Ok(match self.kind {
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(ref backend) => Box::new(backend.audit().await?),
            #[cfg(feature = "postgres")]
            Engine::Postgres(ref databases) => databases.audit_source().await?,
        })
    }

    /// Returns the state of virtual streams that were switched on before the store got a second database, after
    /// switching them off if that is asked for; `None` if the store has one database. Stores in several databases keep
    /// no virtual streams.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer; `Unsupported` if the rights do not suffice.
    ///
    /// # Cancel safety
    /// If the future is dropped, virtual streams may have been switched off or not.
    pub async fn left_virtual_streams(
        &self,
        left: LeftVirtualStreams,
    ) -> Result<Option<VirtualStreamsStatus>> {
        match self.kind {
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(_) => {
                let _ = left;
                Ok(None)
            }
            #[cfg(feature = "postgres")]
            Engine::Postgres(ref databases) => {
                let found = match left {
                    LeftVirtualStreams::Look => databases.left_virtual_streams().await,
                    LeftVirtualStreams::SwitchOff => {
                        databases.switch_off_left_virtual_streams().await
                    }
                };
                let found = found.map_err(|error| error.during("look at virtual streams"))?;
                Ok(found.map(|(state, end)| VirtualStreamsStatus {
                    on: state.on,
                    position: state.position,
                    end,
                }))
            }
        }
    }

    /// Copies a SQLite store to a new file while it is in use. Appends go on.
    ///
    /// # Errors
    /// `InvalidArgument` if the file exists; `Unavailable` if it cannot be written; `Overloaded` while another copy is
    /// being made; `Unsupported` for other databases, which have their own ways (`pg_dump`, `pg_basebackup`).
    ///
    /// # Cancel safety
    /// If the future is dropped, the copy ends soon and removes what it wrote; [`Database::close`] waits for that.
    pub async fn backup(&self, to: &Path) -> Result<()> {
        let done = match self.kind {
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(ref backend) => backend.backup(to).await,
            #[cfg(feature = "postgres")]
            Engine::Postgres(_) => Err(own_backups("nothing was written")),
        };
        done.map_err(|error: Error| error.during("back up"))
    }

    /// Copies a SQLite store, while it is in use, to a file without a name, which can then be sent elsewhere.
    ///
    /// # Errors
    /// The errors of [`Database::backup`].
    ///
    /// # Cancel safety
    /// That of [`Database::backup`].
    pub async fn backup_file(&self) -> Result<std::fs::File> {
        let done = match self.kind {
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(ref backend) => backend.backup_file().await,
            #[cfg(feature = "postgres")]
            Engine::Postgres(_) => Err(own_backups("nothing was copied")),
        };
        done.map_err(|error: Error| error.during("back up"))
    }

    /// Closes the database. This is only for a database on which no store was started.
    pub async fn close(&self) {
        self.backend().close().await;
    }
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(url: &str, options: &Options) -> Result<Engine> {
    let mut config = crate::schema::sqlite_config(url, options.logs)?;
    if options.missing == Missing::Refuse {
        config = config.must_exist();
    }
    let open = move || gesta_sqlite::SqliteBackend::open(config);
    Ok(Engine::Sqlite(Arc::new(blocking(open).await?)))
}

#[cfg(not(feature = "sqlite"))]
async fn open_sqlite(_url: &str, _options: &Options) -> Result<Engine> {
    Err(crate::url::left_out("sqlite"))
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: &str, options: &Options) -> Result<Engine> {
    let mut configs = crate::schema::postgres_configs(url, options.logs)?;
    for config in &mut configs {
        config.must_exist = options.missing == Missing::Refuse;
    }
    let databases = gesta_postgres::several::Databases::open(configs).await?;
    Ok(Engine::Postgres(databases))
}

#[cfg(not(feature = "postgres"))]
async fn open_postgres(_url: &str, _options: &Options) -> Result<Engine> {
    Err(crate::url::left_out("postgres"))
}

/// Returns the error for a backup or restore of PostgreSQL, which has its own tools for that.
pub(crate) fn own_backups(done: &str) -> Error {
    ErrorKind::Unsupported(format!(
        "PostgreSQL makes its own backups: pg_basebackup with WAL archiving, or pg_dump and pg_restore; after every restore run \
         `gesta schema new-incarnation`. {done}"
    ))
    .into()
}
