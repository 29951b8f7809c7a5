//! A store as it is opened: in one database, or in several, each of which holds some of its logs.
//!
//! Why here: who opens a store by its URLs should not care how many they are. Invariant: a store of several databases
//! is made only by a command that names them all, never by opening it. Not here: making one (`schema`), routing
//! (`backend`), moving logs (`mover`).

use std::sync::Arc;

use futures::future::{join_all, try_join_all};
use gesta_core::backend::{Backend, IndexState, Purpose};
use gesta_core::{Error, ErrorKind, Position, Result};
use gesta_sql::verify::AuditSource;

use crate::audit::PostgresAudit;
use crate::config::Config;
use crate::log_map::{KeepsMap, LogMap, MapCopy};
use crate::several::audit::SeveralAudit;
use crate::several::backend::Several;
use crate::several::check::{OpenCopy, arrange};
use crate::several::route::DatabasePart;
use crate::store::PostgresBackend;

/// The open databases of a store: all of them. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Databases(Opened);

#[derive(Clone, Debug)]
enum Opened {
    One(Arc<PostgresBackend>),
    Several {
        routed: Arc<Several>,
        /// The backends of the databases, in the order of the map.
        parts: Vec<Arc<PostgresBackend>>,
    },
}

/// What is done with virtual streams that were left switched on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    Look,
    SwitchOff,
}

impl Databases {
    /// Opens all databases of a store, which may be given in any order. A store in one database is made if there is
    /// none, unless [`Config::must_exist`] is set.
    ///
    /// # Errors
    /// The errors of [`PostgresBackend::open`], of several databases with the name of the one that it is about. Of
    /// several databases `InvalidArgument` if one is missing, given twice, or of another store; `Corrupt` if the copies
    /// of the map differ, or if the home of a log was set back and lacks what other databases know of the log.
    ///
    /// # Cancel safety
    /// If the future is dropped, a store that was to be made may have been made or not.
    pub async fn open(configs: Vec<Config>) -> Result<Self> {
        match <[Config; 1]>::try_from(configs) {
            Ok([config]) => {
                let backend = PostgresBackend::open(config).await?;
                Ok(Self(Opened::One(Arc::new(backend))))
            }
            Err(configs) => open_several(configs).await.map(Self),
        }
    }

    /// Returns the backend of the whole store.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn Backend> {
        match &self.0 {
            Opened::One(backend) => Arc::clone(backend) as Arc<dyn Backend>,
            Opened::Several { routed, .. } => Arc::clone(routed) as Arc<dyn Backend>,
        }
    }

    /// Returns the map that tells where each log lies, as far as this process knows.
    #[must_use]
    pub fn map(&self) -> Arc<LogMap> {
        match &self.0 {
            Opened::One(backend) => Arc::new(backend.map().map.clone()),
            Opened::Several { routed, .. } => routed.map(),
        }
    }

    /// Returns the copies of logs that were open, in databases in which the logs do not lie, when all databases were
    /// asked last; none if the store has one database.
    #[must_use]
    pub fn open_copies(&self) -> Vec<OpenCopy> {
        match &self.0 {
            Opened::One(_) => Vec::new(),
            Opened::Several { routed, .. } => routed.open_copies(),
        }
    }

    /// Takes one snapshot of each database.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future ends the snapshots.
    pub async fn audit_source(&self) -> Result<Box<dyn AuditSource>> {
        let parts = match &self.0 {
            Opened::One(backend) => return Ok(Box::new(backend.audit_source().await?)),
            Opened::Several { parts, .. } => parts,
        };
        let sources = try_join_all(parts.iter().map(|part| part.audit_source())).await?;
        // A log may move while the snapshots are taken. The newest map among them is the one by which they are read.
        let copies = try_join_all(sources.iter().map(PostgresAudit::read_map)).await?;
        let (map, _) = arrange(&copies.iter().collect::<Vec<&MapCopy>>())?;
        let map = Arc::new(map.clone());
        Ok(Box::new(SeveralAudit { map, sources }))
    }

    /// Returns the state of virtual streams that were switched on before the store got a second database, and the end
    /// of the first log; `None` if the store has one database. Stores in several databases keep no virtual streams.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer.
    ///
    /// # Cancel safety
    /// This only reads.
    pub async fn left_virtual_streams(&self) -> Result<Option<(IndexState, Position)>> {
        self.left_streams(Left::Look).await
    }

    /// Switches off what [`left_virtual_streams`](Self::left_virtual_streams) tells of, and returns the state after
    /// that.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer; `Unsupported` if the rights do not suffice.
    ///
    /// # Cancel safety
    /// If the future is dropped, virtual streams may have been switched off or not.
    pub async fn switch_off_left_virtual_streams(&self) -> Result<Option<(IndexState, Position)>> {
        self.left_streams(Left::SwitchOff).await
    }

    async fn left_streams(&self, left: Left) -> Result<Option<(IndexState, Position)>> {
        let Opened::Several { routed, parts } = &self.0 else {
            return Ok(None);
        };
        let ends = routed.log_ends(Purpose::Read).await?;
        let end = ends.first().map_or(Position::START, |end| end.position);
        let mut all = IndexState::default();
        for part in parts {
            let Some(index) = part.virtual_index() else {
                continue;
            };
            let mut state = index.state().await?;
            if state.on && left == Left::SwitchOff {
                state = index.switch(false).await?;
            }
            all.on |= state.on;
            all.position = all.position.max(state.position);
        }
        Ok(Some((all, end)))
    }
}

async fn open_several(configs: Vec<Config>) -> Result<Opened> {
    let count = configs.len();
    let opened = configs
        .into_iter()
        .enumerate()
        .map(async |(at, mut config)| {
            config.is_part = true;
            config.must_exist = true;
            let name = config.name();
            let opened = PostgresBackend::open(config).await;
            opened
                .map(Arc::new)
                .map_err(|error| named(at, count, &name, error))
        });
    let (opened, failed): (Vec<_>, Vec<_>) =
        join_all(opened).await.into_iter().partition(Result::is_ok);
    let opened: Vec<Arc<PostgresBackend>> = opened.into_iter().flatten().collect();
    let put_together = match failed.into_iter().find_map(Result::err) {
        Some(error) => Err(error),
        None => put_together(&opened).await,
    };
    if put_together.is_err() {
        join_all(opened.iter().map(|backend| backend.close())).await;
    }
    put_together
}

async fn put_together(opened: &[Arc<PostgresBackend>]) -> Result<Opened> {
    let part = |backend: &Arc<PostgresBackend>| DatabasePart {
        copy: backend.map(),
        backend: Arc::clone(backend) as Arc<dyn Backend>,
        keeper: Arc::clone(backend) as Arc<dyn KeepsMap>,
    };
    let parts: Vec<DatabasePart> = opened.iter().map(part).collect();
    let routed = Arc::new(Several::open(&parts).await?);
    let mut parts = opened.to_vec();
    parts.sort_by_key(|backend| backend.map().place());
    Ok(Opened::Several { routed, parts })
}

/// Adds to an error which of the given databases it is about.
pub(super) fn named(at: usize, count: usize, name: &str, error: Error) -> Error {
    let at = at + 1;
    let which = |why: &str| format!("number {at} of the {count} databases given ({name}): {why}");
    let kind = match error.kind() {
        ErrorKind::Unavailable(why) => ErrorKind::Unavailable(which(why)),
        ErrorKind::Schema(why) => ErrorKind::Schema(which(why)),
        ErrorKind::Unsupported(why) => ErrorKind::Unsupported(which(why)),
        ErrorKind::Corrupt(why) => ErrorKind::Corrupt(which(why)),
        _ => return error,
    };
    Error::new(kind).caused_by(error)
}
