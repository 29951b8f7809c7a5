//! Opens, makes and audits a store whose logs lie in several databases of PostgreSQL.
//!
//! Invariant: a store of several databases is made only by a command that names them all, never by opening it.
//! Not here: routing (`gesta_postgres::several`), moving logs (`databases`), the tables (`gesta_postgres`).

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::{join_all, try_join_all};
use gesta_core::backend::{Backend, Purpose};
use gesta_core::{Error, ErrorKind, Incarnation, LogId, Position, Result};
use gesta_postgres::several::{DatabasePart, Several, arrange};
use gesta_postgres::{
    Config, DatabaseId, KeepsMap, LogMap, MapCopy, Moving, NamedDatabase, PostgresAudit,
    PostgresBackend, Relocation, schema,
};
use gesta_sql::verify::{AuditFloor, AuditName, AuditRow, AuditSource, AuditTag};
use gesta_store::VirtualStreamsStatus;

use crate::left_virtual_streams::LeftVirtualStreams;

/// The open databases of a store.
pub(crate) struct Databases {
    pub(crate) routed: Arc<Several>,
    /// The backends of the databases, in the order of the map.
    parts: Vec<Arc<PostgresBackend>>,
}

/// Opens all databases of a store.
///
/// # Errors
/// The errors of [`PostgresBackend::open`] and [`Several::open`]; the error names the database.
pub(crate) async fn open(configs: Vec<Config>) -> Result<Databases> {
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

async fn put_together(opened: &[Arc<PostgresBackend>]) -> Result<Databases> {
    let part = |backend: &Arc<PostgresBackend>| DatabasePart {
        copy: backend.map(),
        backend: Arc::clone(backend) as Arc<dyn Backend>,
        keeper: Arc::clone(backend) as Arc<dyn KeepsMap>,
    };
    let parts: Vec<DatabasePart> = opened.iter().map(part).collect();
    let routed = Several::open(&parts).await?;
    let mut parts = opened.to_vec();
    parts.sort_by_key(|backend| backend.map().place());
    Ok(Databases {
        routed: Arc::new(routed),
        parts,
    })
}

/// Adds to an error which of the given databases it is about.
fn named(at: usize, count: usize, name: &str, error: Error) -> Error {
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

/// Makes the map of a new store whose logs lie in turn in these databases.
///
/// # Errors
/// `InvalidArgument` if a database is given twice, or there are too few logs.
fn new_map(configs: &[Config], logs: u16) -> Result<LogMap> {
    let names: Vec<String> = configs.iter().map(Config::name).collect();
    let twice = (1..names.len()).find(|at| names[..*at].contains(&names[*at]));
    if let Some(at) = twice {
        let rule = format!("must be different, found {} twice", names[at]);
        return Err(Error::invalid("databases", rule));
    }
    let named = names.into_iter().map(|name| NamedDatabase {
        id: DatabaseId::random(),
        name,
    });
    LogMap::new(logs, named.collect())
}

fn copy_at(map: &LogMap, place: usize) -> MapCopy {
    MapCopy::new(map.databases()[place].id, map.clone())
}

/// Makes an empty store whose logs lie in turn in these databases. If an earlier call was interrupted, this one
/// finishes it.
///
/// # Errors
/// `Schema` if there is a store in one of them already; `InvalidArgument` if a database is given twice, or there are
/// too few logs; `Unavailable` if a database does not answer; `Unsupported` if the rights are missing.
pub(crate) async fn create(configs: &[Config], logs: u16) -> Result<Incarnation> {
    let count = configs.len();
    let map = new_map(configs, logs)?;
    let found = configs.iter().enumerate().map(async |(at, config)| {
        let found = schema::read_empty(config).await;
        found.map_err(|error| named(at, count, &config.name(), error))
    });
    let found = try_join_all(found).await?;
    let begun = found.iter().flatten().next();
    let map = begun.map_or(&map, |copy| &copy.map);
    for (at, copy) in found.iter().enumerate() {
        let Some(copy) = copy else { continue };
        let is_of_this = copy.map == *map
            && copy.place() == Some(at)
            && map.databases().len() == count
            && map.logs() == logs;
        if !is_of_this || found.iter().all(Option::is_some) {
            let error = ErrorKind::Schema("there is a store already".to_owned()).into();
            return Err(named(at, count, &configs[at].name(), error));
        }
    }
    for (place, config) in configs.iter().enumerate() {
        if found[place].is_none() {
            let made = schema::create_part(config, &copy_at(map, place)).await;
            made.map_err(|error| named(place, count, &config.name(), error))?;
        }
    }
    Ok(map.origin())
}

/// Returns the statements that make such a store, for each database its own.
///
/// # Errors
/// `InvalidArgument` if a database is given twice, or there are too few logs.
pub(crate) fn print(configs: &[Config], logs: u16) -> Result<String> {
    let map = new_map(configs, logs)?;
    let parts = configs.iter().enumerate().map(|(place, config)| {
        let about = map.describe(place);
        let ddl = schema::ddl_of_part(config, &copy_at(&map, place));
        format!("-- For {about}; print the statements for all databases at once, for they share ids.\n{ddl}")
    });
    Ok(parts.collect::<Vec<_>>().join("\n"))
}

/// Begins a new incarnation in each of these databases, which must be all databases of a store. Returns the incarnation
/// of the store, which is made of them. What the databases hold is not checked: after a restore, logs may be lost.
///
/// # Errors
/// `Schema` if there is no store; `InvalidArgument` if a database is missing; `Unavailable` if a database does not
/// answer; `Unsupported` if the rights are missing.
pub(crate) async fn new_incarnation(configs: &[Config]) -> Result<Incarnation> {
    let copies = configs.iter().map(async |config| {
        let database = Relocation::open(config).await?;
        database.read_map().await
    });
    let copies: Vec<MapCopy> = try_join_all(copies).await?;
    let (map, _) = arrange(&copies.iter().collect::<Vec<_>>())?;
    let mut begun = Vec::with_capacity(configs.len());
    for config in configs {
        begun.push(schema::new_incarnation(config).await?);
    }
    Ok(map.incarnation(begun))
}

impl Databases {
    /// Returns the state of virtual streams that were switched on before the store got a second database, after
    /// switching them off if that is asked for. The store keeps them no longer.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer; `Unsupported` if the rights do not suffice.
    pub(crate) async fn left_virtual_streams(
        &self,
        left: LeftVirtualStreams,
    ) -> Result<VirtualStreamsStatus> {
        let ends = self.routed.log_ends(Purpose::Read).await?;
        let mut status = VirtualStreamsStatus {
            on: false,
            position: Position::START,
            end: ends.first().map_or(Position::START, |end| end.position),
        };
        for part in &self.parts {
            let Some(index) = part.virtual_index() else {
                continue;
            };
            let mut state = index.state().await?;
            if state.on && left == LeftVirtualStreams::SwitchOff {
                state = index.switch(false).await?;
            }
            status.on |= state.on;
            status.position = status.position.max(state.position);
        }
        Ok(status)
    }

    /// Takes one snapshot of each database.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer.
    pub(crate) async fn audit_source(&self) -> Result<SeveralAudit> {
        let sources = try_join_all(self.parts.iter().map(|part| part.audit_source()));
        let sources = sources.await?;
        // A log may move while the snapshots are taken. The newest map among them is the one by which they are read.
        let copies = try_join_all(sources.iter().map(PostgresAudit::read_map)).await?;
        let (map, _) = arrange(&copies.iter().collect::<Vec<_>>())?;
        let map = Arc::new(map.clone());
        Ok(SeveralAudit { map, sources })
    }
}

/// Reads the rows of each log from the database in which the log lies.
pub(crate) struct SeveralAudit {
    map: Arc<LogMap>,
    sources: Vec<PostgresAudit>,
}

impl SeveralAudit {
    fn of(&mut self, log: LogId) -> Result<&mut PostgresAudit> {
        let home = self.map.home(log);
        let source = home.and_then(|home| self.sources.get_mut(home));
        source.ok_or_else(|| Error::corrupt(format!("the store has no log {log}")))
    }
}

impl SeveralAudit {
    /// Compares the copies of a log in other databases with the log itself, as far as they go.
    async fn compare_copies(&self, log: LogId) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        let Some(home) = self.map.home(log) else {
            return Ok(findings);
        };
        for (at, copy) in self.sources.iter().enumerate() {
            if at == home {
                continue;
            }
            // The snapshot of a copy that is being made may be newer than that of the log.
            let up_to = match self.map.moving() == Some(Moving { log, to: at }) {
                true => self.sources[home].last_position(log).await?,
                false => Position::MAX,
            };
            if let Some(differs) = self.sources[home].first_unknown(copy, log, up_to).await? {
                let (copy, home) = (self.map.describe(at), self.map.describe(home));
                findings.push(format!(
                    "log {log}: the copy in {copy} has an event at position {differs} that the log itself, in {home}, has \
                     never had: one of the databases was set back by a restore or a fail-over (`gesta cluster recover-log {log}`)"
                ));
            }
        }
        Ok(findings)
    }
}

#[async_trait]
impl AuditSource for SeveralAudit {
    fn logs(&self) -> u16 {
        self.map.logs()
    }

    async fn rows(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        self.of(log)?.rows(log, after, limit).await
    }

    async fn streams(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>> {
        self.of(log)?.streams(log, after, limit).await
    }

    async fn types(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>> {
        self.of(log)?.types(log, after, limit).await
    }

    async fn tags(
        &mut self,
        log: LogId,
        after: Option<&AuditTag>,
        limit: usize,
    ) -> Result<Vec<AuditTag>> {
        self.of(log)?.tags(log, after, limit).await
    }

    async fn floors(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditFloor>> {
        self.of(log)?.floors(log, after, limit).await
    }

    async fn stream_name(&mut self, log: LogId, row: i64) -> Result<Option<String>> {
        self.of(log)?.stream_name(log, row).await
    }

    async fn engine_findings(&mut self) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        for source in &mut self.sources {
            findings.extend(source.engine_findings().await?);
        }
        for log in (0..self.map.logs()).map(LogId) {
            findings.extend(self.compare_copies(log).await?);
        }
        Ok(findings)
    }

    async fn schema_findings(&mut self) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        for source in &mut self.sources {
            findings.extend(source.schema_findings().await?);
        }
        Ok(findings)
    }
}
