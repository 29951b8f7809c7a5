//! Removes what no reader may see any more, under the retention role.
//!
//! Why the lock: an append that took its snapshot long ago (a suspended process, a swapped-out
//! server) still believes an old row to be the last, and is stopped only by the row that took its
//! position. Before any row is removed, one short lock waits for all appends that are under way; those that
//! begin later see the present end, which is never removed, and miss by their condition.
//! Invariants: the last row of a log stays; a stream loses revisions from the front only, and how far is
//! remembered in the same statement, so revisions are never used again.

use gesta_core::backend::{History, Removed, RowId, RunMode};
use gesta_core::{Error, ErrorKind, LogId, Result, Visibility};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use crate::connect::connection::{Connection, Connector, Role};
use crate::error;
use crate::moment::Moment;
use crate::sql_numbers::{bound, log_number};

const COUNT_HIDDEN: &str = include_str!("../sql/count_hidden.sql");
const DELETE_HIDDEN: &str = include_str!("../sql/delete_hidden.sql");
const LOCK_EVENTS: &str = include_str!("../sql/lock_events.sql");
const READ_LOG_END: &str = include_str!("../sql/read_log_end.sql");

/// The most events that are removed in one transaction.
const ROWS_PER_TRANSACTION: i64 = 5_000;

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// Removes the events of a stream that `visibility` hides, or counts them. The stream must have been looked up in this
/// history, since in another history its row may be that of another stream.
pub(crate) async fn remove_hidden(
    connector: &Connector,
    history: History,
    log: LogId,
    stream: RowId,
    visibility: Visibility,
    mode: RunMode,
) -> Result<Removed> {
    let number = log_number(log)?;
    let mut connection = connector.connect(Role::Admin).await?;
    if connector.ledger.get().map(|ledger| ledger.history()) != Some(history) {
        return Err(Error::unavailable(
            "the history of the store has changed: start again",
        ));
    }
    let end = log_end(&connection, number)
        .await
        .map_err(|error| failed(connector, &error))?;
    crate::map::open_position(log, end)?;
    let (stream, from) = (bound(stream.0), bound(visibility.from.0));
    let created_from = visibility.created_from.map(Moment);
    let params: [&(dyn ToSql + Sync); 5] = [&number, &stream, &from, &created_from, &end];
    if mode == RunMode::Dry {
        let row = connection.client.query_one(COUNT_HIDDEN, &params).await;
        return removed(&row.map_err(|error| failed(connector, &error))?);
    }
    let become_retention = format!("SET LOCAL ROLE {}", connector.config.retention_role());
    wait_for_appends(&connection, &become_retention)
        .await
        .map_err(|error| failed(connector, &error))?;
    let mut total = Removed::default();
    loop {
        let step = remove_some(&mut connection, &become_retention, &params).await;
        let step = removed(&step.map_err(|error| failed(connector, &error))?)?;
        total.events += step.events;
        total.payload_bytes += step.payload_bytes;
        if step.events < ROWS_PER_TRANSACTION.unsigned_abs() {
            return Ok(total);
        }
    }
}

async fn log_end(connection: &Connection, log: i16) -> Driver<i64> {
    let row = connection.client.query_opt(READ_LOG_END, &[&log]).await?;
    let end: Option<i64> = row.map_or(Ok(None), |row| row.try_get(0))?;
    Ok(end.unwrap_or(0))
}

async fn wait_for_appends(connection: &Connection, become_retention: &str) -> Driver<()> {
    let statements = format!("BEGIN; {become_retention};\n{LOCK_EVENTS};\nCOMMIT");
    let outcome = connection.client.batch_execute(&statements).await;
    if outcome.is_err() {
        connection.client.batch_execute("ROLLBACK").await?;
    }
    outcome
}

async fn remove_some(
    connection: &mut Connection,
    become_retention: &str,
    params: &[&(dyn ToSql + Sync); 5],
) -> Driver<Row> {
    let client = &connection.client;
    client
        .batch_execute(&format!("BEGIN; {become_retention}"))
        .await?;
    let [log, stream, from, created_from, end] = params;
    let binds: [&(dyn ToSql + Sync); 6] = [
        *log,
        *stream,
        *from,
        *created_from,
        *end,
        &ROWS_PER_TRANSACTION,
    ];
    let outcome = client.query_one(DELETE_HIDDEN, &binds).await;
    let ending = if outcome.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    client.batch_execute(ending).await?;
    outcome
}

fn removed(row: &Row) -> Result<Removed> {
    let number = |index: usize| -> Result<u64> {
        let value: i64 = row.try_get(index).map_err(|error| error::general(&error))?;
        Ok(value.unsigned_abs())
    };
    Ok(Removed {
        events: number(0)?,
        payload_bytes: number(1)?,
    })
}

fn failed(connector: &Connector, error: &tokio_postgres::Error) -> Error {
    let role = connector.config.retention_role();
    let mapped = match error.code() {
        // There is no such role, this user is not a member of it, or the role lacks its rights.
        Some(
            &SqlState::UNDEFINED_OBJECT
            | &SqlState::INVALID_PARAMETER_VALUE
            | &SqlState::INSUFFICIENT_PRIVILEGE,
        ) => {
            let text = format!(
                "scavenging needs the role {role}, which nobody has by default: let an administrator grant it (GRANT {role} \
                 TO …) to the user that scavenges; if there is no such role, the retention part of `gesta schema print` \
                 makes it ({})",
                error::text(error)
            );
            ErrorKind::Unsupported(text).into()
        }
        _ => error::general(error),
    };
    mapped.during("scavenge")
}
