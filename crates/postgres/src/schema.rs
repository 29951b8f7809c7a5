//! The schema of a store: makes it, migrates it, checks it, prints it.
//!
//! Invariants: one process at a time changes a schema (an advisory lock that ends with the
//! transaction); a step is applied whole or not at all; a store of another version is never written to.
//! Without rights for DDL a store that exists works; a missing one is explained.

use gesta_core::limits::LOGS_MAX;
use gesta_core::{Clock, Error, ErrorKind, Incarnation, Result, SystemClock};
use gesta_sql::{MOVED_AWAY, Migration, Migrations, Start, moved_away};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::config::Config;
use crate::connect::connection::{Connection, Connector, Role};
use crate::connect::history::lineage;
use crate::error;
use crate::log_map::{DatabaseId, LogMap, MapCopy, NamedDatabase};
use crate::map;
use crate::message::incarnation_payload;

/// All steps to the schema of this program.
pub(crate) const MIGRATIONS: Migrations = Migrations::new(&[
    Migration {
        version: 1,
        name: "events, streams, types, tags, scavenges, store",
        sql: include_str!("../sql/migrate_0001.sql"),
    },
    Migration {
        version: 2,
        name: "nodes, leases, moves",
        sql: include_str!("../sql/migrate_0002.sql"),
    },
    Migration {
        version: 3,
        name: "databases, homes, map",
        sql: include_str!("../sql/migrate_0003.sql"),
    },
    Migration {
        version: 4,
        name: "virtual streams",
        sql: include_str!("../sql/migrate_0004.sql"),
    },
    Migration {
        version: 5,
        name: "version of the cluster, held nodes",
        sql: include_str!("../sql/migrate_0005.sql"),
    },
    Migration {
        version: 6,
        name: "timeline, logs that the store has, the last event of a log stays",
        sql: include_str!("../sql/migrate_0006.sql"),
    },
    Migration {
        version: 7,
        name: "how logs came to their databases",
        sql: include_str!("../sql/migrate_0007.sql"),
    },
]);

const CREATE_RETENTION: &str = include_str!("../sql/create_retention.sql");
const INSERT_STORE: &str = include_str!("../sql/insert_store.sql");
const LIMIT_LOGS: &str = include_str!("../sql/limit_logs.sql");
const FORGET_TIMELINE: &str = include_str!("../sql/forget_timeline.sql");
const INSERT_LEASES: &str = include_str!("../sql/insert_leases.sql");
const UPDATE_SCHEMA_VERSION: &str = include_str!("../sql/update_schema_version.sql");
const UPDATE_INCARNATION: &str = include_str!("../sql/update_incarnation.sql");
const READ_STORE: &str = include_str!("../sql/read_store.sql");
const READ_ANY_EVENT: &str = include_str!("../sql/read_any_event.sql");
const READ_SCHEMA: &str = include_str!("../sql/read_schema.sql");
const READ_PLACE: &str = include_str!("../sql/read_place.sql");
const LOCK_SCHEMA: &str = include_str!("../sql/lock_schema.sql");

/// The version from which the timeline is noted beside the incarnation.
const TIMELINE_SINCE: u32 = 6;

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// The one row about a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Store {
    pub(crate) version: u32,
    pub(crate) logs: u16,
    pub(crate) incarnation: Incarnation,
}

/// Makes an empty store with `logs` logs (1 to 1,024), all in this database.
///
/// # Errors
/// `Schema` if there is a store already; `InvalidArgument` if the number of logs is not possible; `Unavailable` if the
/// database does not answer; `Unsupported` if the rights are missing.
///
/// # Cancel safety
/// If the future is dropped, the store may have been made, whole, or not.
pub async fn create(config: &Config, logs: u16) -> Result<Incarnation> {
    create_part(config, &alone(config, logs)?).await
}

/// Makes one database of a store, without events and with this copy of the map.
///
/// # Errors
/// The errors of [`create`].
///
/// # Cancel safety
/// That of [`create`].
pub async fn create_part(config: &Config, copy: &MapCopy) -> Result<Incarnation> {
    let connection = Connector::new(config.clone())?.connect(Role::Admin).await?;
    let made = create_if_missing(&connection, config, copy)
        .await
        .map_err(during_create)?;
    match made {
        Made::New(store) => Ok(store.incarnation),
        Made::Found(_) => Err(ErrorKind::Schema(format!(
            "there is a store in schema {} already",
            config.schema
        ))
        .into()),
    }
}

/// Brings an existing store to the schema of this program. Returns the versions before and after.
///
/// # Errors
/// `Schema` if there is no store, or a newer one; `Unavailable` if the database does not answer; `Unsupported` if the
/// rights are missing.
///
/// # Cancel safety
/// If the future is dropped, the store may have been migrated, whole, or not.
pub async fn migrate(config: &Config) -> Result<(u32, u32)> {
    let connection = Connector::new(config.clone())?.connect(Role::Admin).await?;
    let outcome = locked(&connection, config, async || {
        let store = read(&connection, config)
            .await?
            .ok_or_else(|| missing(config))?;
        for step in MIGRATIONS.pending(Some(store.version))? {
            apply(&connection, step)
                .await
                .map_err(|error| denied(&error, config))?;
        }
        Ok((store.version, MIGRATIONS.latest()))
    });
    outcome
        .await
        .map_err(|error| error.during("migrate the schema"))
}

/// Begins a new life of the store, as is needed after a restore. From now on every checkpoint of the old life is
/// refused, also by servers that are running.
///
/// # Errors
/// `Schema` if there is no store; `Unavailable` if the database does not answer; `Unsupported` if the right is missing.
///
/// # Cancel safety
/// If the future is dropped, the new incarnation may have begun or not.
pub async fn new_incarnation(config: &Config) -> Result<Incarnation> {
    let connection = Connector::new(config.clone())?.connect(Role::Admin).await?;
    let store = read(&connection, config)
        .await?
        .ok_or_else(|| missing(config))?;
    let end = lineage::greatest_end(&connection.client).await?;
    let incarnation = store.incarnation.after(end, SystemClock.now());
    let payload = incarnation_payload(Uuid::new_v4(), incarnation);
    let updated = connection
        .client
        .execute(
            UPDATE_INCARNATION,
            &[&incarnation.0, &config.channel(), &payload],
        )
        .await;
    updated.map_err(|error| denied(&error, config).during("begin a new incarnation"))?;
    if store.version >= TIMELINE_SINCE {
        let forgotten = connection.client.execute(FORGET_TIMELINE, &[]).await;
        forgotten.map_err(|error| denied(&error, config).during("forget the timeline"))?;
    }
    Ok(incarnation)
}

/// Reads the copy of the map of a database that holds no events. Returns `None` if there is no store.
///
/// # Errors
/// `Unavailable` if the database does not answer; `Schema` if the store is of another version, or holds events.
///
/// # Cancel safety
/// Dropping the future changes nothing.
pub async fn read_empty(config: &Config) -> Result<Option<MapCopy>> {
    let connection = Connector::new(config.clone())?.connect(Role::Admin).await?;
    let Some(store) = read(&connection, config).await? else {
        return Ok(None);
    };
    MIGRATIONS.on_open(Some(store.version))?;
    let events = connection.client.query_opt(READ_ANY_EVENT, &[]).await;
    if events.map_err(|error| error::general(&error))?.is_some() {
        let schema = &config.schema;
        let text = format!("there is a store with events in schema {schema} already");
        return Err(ErrorKind::Schema(text).into());
    }
    map::read(&connection.client, store.logs).await.map(Some)
}

/// Returns the map of a new store that has this database only.
///
/// # Errors
/// `InvalidArgument` if the number of logs is not possible.
fn alone(config: &Config, logs: u16) -> Result<MapCopy> {
    check_logs(logs)?;
    let here = DatabaseId::random();
    let name = config.name();
    let map = LogMap::new(logs, vec![NamedDatabase { id: here, name }])?;
    Ok(MapCopy::new(here, map))
}

/// Returns the statements that make a store with `logs` logs, all in this database, for people who run them by hand.
///
/// # Errors
/// `InvalidArgument` if the number of logs is not possible.
pub fn ddl(config: &Config, logs: u16) -> Result<String> {
    Ok(ddl_of_part(config, &alone(config, logs)?))
}

/// Returns the statements that make one database of a store, for people who run them by hand.
#[must_use]
pub fn ddl_of_part(config: &Config, copy: &MapCopy) -> String {
    let (schema, retention) = (config.quoted_schema(), config.retention_role());
    let version = MIGRATIONS.latest();
    let (logs, incarnation) = (copy.map.logs(), copy.map.origin());
    let map = map::print(copy);
    format!(
        "BEGIN;\nCREATE SCHEMA IF NOT EXISTS {schema};\nSET LOCAL search_path = {schema}, pg_temp;\n\n{}\n\
         INSERT INTO store (schema_version, logs, incarnation) VALUES ({version}, {logs}, '{incarnation}');\n\n\
         {INSERT_LEASES};\n\n{LIMIT_LOGS};\n\n{map}\n\
         -- Retention: only `gesta scavenge` needs this part.\n{CREATE_RETENTION}\nCOMMIT;\n\n\
         -- Rights of a server that may not run DDL, as role gesta_server:\n\
         -- GRANT USAGE ON SCHEMA {schema} TO gesta_server;\n\
         -- GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO gesta_server;\n\
         -- GRANT INSERT ON {schema}.events, {schema}.streams, {schema}.types, {schema}.tags TO gesta_server;\n\
         -- GRANT INSERT, UPDATE, DELETE ON {schema}.nodes TO gesta_server;  -- for several servers, as the next two\n\
         -- GRANT UPDATE ON {schema}.leases TO gesta_server;\n\
         -- GRANT INSERT, DELETE ON {schema}.moves TO gesta_server;\n\
         -- GRANT UPDATE (version) ON {schema}.clusters TO gesta_server;  -- for the role that runs gesta cluster finalize\n\
         -- GRANT INSERT, UPDATE ON {schema}.virtual_streams TO gesta_server;  -- for virtual streams, as the next two\n\
         -- GRANT INSERT ON {schema}.virtual_entries TO gesta_server;\n\
         -- GRANT UPDATE ON {schema}.virtual_index TO gesta_server;\n\
         -- GRANT UPDATE (incarnation, cluster, timeline, synchronous) ON {schema}.store TO gesta_server;  -- for a \
         fail-over that loses commits\n\
         -- GRANT {retention} TO gesta_keeper;  -- for who scavenges and moves logs: not for a server, who could then \
         delete events\n",
        MIGRATIONS.print()
    )
}

/// Finds the store, or makes it if there is none and it may be made.
///
/// # Errors
/// `Schema` if there is no store and none may be made, or the store is of another version; `Unavailable` if the
/// database does not answer; `Unsupported` if the rights are missing.
pub(crate) async fn open(connection: &Connection, config: &Config) -> Result<Store> {
    let store = match read(connection, config).await? {
        Some(store) => store,
        None if config.must_exist => return Err(missing(config)),
        None => {
            let copy = alone(config, config.logs_if_new)?;
            let made = create_if_missing(connection, config, &copy).await;
            match made.map_err(during_create)? {
                Made::New(store) | Made::Found(store) => store,
            }
        }
    };
    match MIGRATIONS.on_open(Some(store.version))? {
        Start::Ready | Start::Create => Ok(store),
    }
}

fn check_logs(logs: u16) -> Result<()> {
    if logs == 0 || logs > LOGS_MAX {
        let rule = format!("must be 1 to {LOGS_MAX}, found {logs}");
        return Err(Error::invalid("logs", rule));
    }
    Ok(())
}

enum Made {
    New(Store),
    Found(Store),
}

async fn create_if_missing(
    connection: &Connection,
    config: &Config,
    copy: &MapCopy,
) -> Result<Made> {
    locked(connection, config, async || {
        if let Some(found) = read(connection, config).await? {
            return Ok(Made::Found(found));
        }
        let store = Store {
            version: MIGRATIONS.latest(),
            logs: copy.map.logs(),
            incarnation: copy.map.origin(),
        };
        build(connection, config, &store, copy)
            .await
            .map_err(|error| denied(&error, config))?;
        tracing::info!(schema = config.schema, store.logs, "created a new store");
        Ok(Made::New(store))
    })
    .await
}

async fn build(
    connection: &Connection,
    config: &Config,
    store: &Store,
    copy: &MapCopy,
) -> Driver<()> {
    let client = &connection.client;
    let schema = config.quoted_schema();
    client
        .batch_execute(&format!("CREATE SCHEMA IF NOT EXISTS {schema}"))
        .await?;
    for step in MIGRATIONS.pending(None).unwrap_or_default() {
        client.batch_execute(step.sql).await?;
    }
    let version = i32::try_from(store.version).unwrap_or(i32::MAX);
    let logs = i16::try_from(store.logs).unwrap_or(i16::MAX);
    client
        .execute(INSERT_STORE, &[&version, &logs, &store.incarnation.0])
        .await?;
    client.execute(INSERT_LEASES, &[]).await?;
    client.query_opt(LIMIT_LOGS, &[]).await?;
    map::insert(client, copy).await?;
    client.batch_execute("SAVEPOINT retention").await?;
    if let Err(error) = client.batch_execute(CREATE_RETENTION).await {
        // Everything but scavenging works without the retention role.
        client
            .batch_execute("ROLLBACK TO SAVEPOINT retention")
            .await?;
        tracing::warn!(
            role = config.retention_role(),
            cause = error::text(&error),
            "the retention role could not be created: nothing can be scavenged, and no log moved, until somebody with CREATEROLE \
             creates it, as `gesta schema print` shows (see docs/operating/postgresql.md, \"who may delete events\")"
        );
    }
    Ok(())
}

async fn apply(connection: &Connection, step: &Migration) -> Driver<()> {
    connection.client.batch_execute(step.sql).await?;
    let version = i32::try_from(step.version).unwrap_or(i32::MAX);
    connection
        .client
        .execute(UPDATE_SCHEMA_VERSION, &[&version])
        .await?;
    Ok(())
}

/// Runs `work` in a transaction that holds the lock of the schema.
async fn locked<T>(
    connection: &Connection,
    config: &Config,
    work: impl AsyncFnOnce() -> Result<T>,
) -> Result<T> {
    let general = |error| error::general(&error);
    connection
        .client
        .batch_execute("BEGIN")
        .await
        .map_err(general)?;
    let outcome = async {
        let lock = connection
            .client
            .execute(LOCK_SCHEMA, &[&config.schema])
            .await;
        lock.map_err(|error| error::general(&error))?;
        work().await
    };
    let outcome = outcome.await;
    let ending = if outcome.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    connection
        .client
        .batch_execute(ending)
        .await
        .map_err(general)?;
    outcome
}

/// Tells whether there is a store in the schema.
///
/// # Errors
/// `Unsupported` if there is one that this role may not read; `Unavailable` if the database does not answer.
pub(crate) async fn has_store(client: &Client, config: &Config) -> Result<bool> {
    let general = |error: tokio_postgres::Error| error::general(&error);
    let found = client.query_one(READ_SCHEMA, &[&config.schema]).await;
    let found = found.map_err(general)?;
    let is = |what: &str| found.try_get::<_, bool>(what).map_err(general);
    if !is("has_store")? {
        return Ok(false);
    }
    if is("may_use")? && is("may_read")? {
        return Ok(true);
    }
    let role: String = found.try_get("role").map_err(general)?;
    let right = match is("may_use")? {
        false => "USAGE on the schema",
        true => "SELECT on its tables",
    };
    let (name, schema) = (&config.schema, config.quoted_schema());
    let database = config.driver.get_dbname().unwrap_or("(default)");
    Err(error::unfit(format!(
        "the role {role} may not read the store in schema {name} of database {database}, for it lacks {right}: let an \
         administrator run GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}; \
         `gesta schema print` ends with what a server needs beside these"
    )))
}

/// Reads the row about the store; `None` if there is no store in the schema.
async fn read(connection: &Connection, config: &Config) -> Result<Option<Store>> {
    let general = |error: tokio_postgres::Error| error::general(&error);
    if !has_store(&connection.client, config).await? {
        return Ok(None);
    }
    let row = connection
        .client
        .query_opt(READ_STORE, &[])
        .await
        .map_err(general)?;
    let row =
        row.ok_or_else(|| Error::corrupt(format!("the table {}.store is empty", config.schema)))?;
    let version: i32 = row.try_get(0).map_err(general)?;
    let logs: i16 = row.try_get(1).map_err(general)?;
    let incarnation: Uuid = row.try_get(2).map_err(general)?;
    let (Ok(version), Ok(logs)) = (u32::try_from(version), u16::try_from(logs)) else {
        return Err(Error::corrupt(format!(
            "the table {}.store holds version {version}, logs {logs}",
            config.schema
        )));
    };
    if version > MOVED_AWAY {
        return Err(moved_away(place(connection).await.as_deref()));
    }
    if logs == 0 || logs > LOGS_MAX {
        return Err(Error::corrupt(format!(
            "the store says that it has {logs} logs"
        )));
    }
    Ok(Some(Store {
        version,
        logs,
        incarnation: Incarnation(incarnation),
    }))
}

/// Returns where a store is that has moved away; `None` if that cannot be read.
async fn place(connection: &Connection) -> Option<String> {
    let row = connection.client.query_one(READ_PLACE, &[]).await;
    row.ok()?.try_get(0).ok()
}

fn missing(config: &Config) -> Error {
    let database = config.driver.get_dbname().unwrap_or("(default)");
    let makers = match config.is_part {
        true => "`gesta schema create --on URL --on URL` makes one",
        false => {
            "`gesta serve` and `gesta schema create` make one, in a program `gesta::open(…).create()`; `gesta --help` names \
             the other commands that do"
        }
    };
    ErrorKind::Schema(format!(
        "there is no store in schema {} of database {database} ({makers})",
        config.schema
    ))
    .into()
}

fn during_create(error: Error) -> Error {
    error.during("make the store")
}

fn denied(error: &tokio_postgres::Error, config: &Config) -> Error {
    if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        let role = config.driver.get_user().unwrap_or("of this connection");
        let database = config.driver.get_dbname().unwrap_or("(default)");
        let schema = &config.schema;
        let text = format!(
            "the role {role} may not make or change the tables in schema {schema} of database {database} ({}): let the role that \
             owns them do it; or let an administrator run what `gesta schema print` prints, or for a new store GRANT CREATE ON \
             DATABASE \"{database}\" TO \"{role}\", and if the schema is there, GRANT USAGE, CREATE ON SCHEMA \"{schema}\" TO \
             \"{role}\"",
            error::text(error)
        );
        return error::unfit(text);
    }
    error::general(error)
}
