//! What the statements of several designs bind, and what their errors mean.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use futures::future::try_join_all;
use gesta_core::{Clock, SystemClock};
use gesta_report::failure::Result;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Row, Statement};
use uuid::Uuid;

use gesta_load::target::{Append, AppendError, Event};

/// Result of an append.
pub(super) type Answer<T> = std::result::Result<T, AppendError>;

/// Sequence number of an event: these designs count from 1.
pub(super) fn sequence(revision: u64) -> i64 {
    version(revision) + 1
}

/// Number of events before this revision.
pub(super) fn version(revision: u64) -> i64 {
    i64::try_from(revision).expect("revisions have 12 bits")
}

/// The event of an append to a design that is measured with one event per append.
pub(super) fn only<'a>(append: &Append<'a>) -> Answer<&'a Event> {
    match append.events {
        [event] => Ok(event),
        _ => Err(AppendError::Failed("one event per append".into())),
    }
}

/// Now, in milliseconds since 1970.
pub(super) fn millis() -> i64 {
    SystemClock.now().as_micros() / 1_000
}

/// The name that those systems give to the one that writes: new with each start.
pub(super) fn writer() -> String {
    Uuid::new_v4().to_string()
}

/// JSON text as a value of type `jsonb`.
#[derive(Debug)]
pub(super) struct Json<'a>(pub(super) &'a [u8]);

impl ToSql for Json<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn Error + Sync + Send>> {
        // The version of the binary form.
        out.put_u8(1);
        out.extend_from_slice(self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::JSONB
    }

    to_sql_checked!();
}

pub(super) async fn prepare<const N: usize>(
    client: &Client,
    sql: [&str; N],
) -> Result<[Statement; N]> {
    let all = try_join_all(sql.map(|sql| client.prepare(sql))).await?;
    Ok(all
        .try_into()
        .unwrap_or_else(|_| unreachable!("a statement for each text")))
}

/// Executes a statement; returns its rows.
pub(super) async fn query(
    client: &Client,
    statement: &Statement,
    values: &[&(dyn ToSql + Sync)],
) -> Answer<Vec<Row>> {
    let rows = client.query(statement, values).await;
    rows.map_err(append_error)
}

/// Executes BEGIN or COMMIT.
pub(super) async fn command(client: &Client, command: &str) -> Answer<()> {
    let done = client.batch_execute(command).await;
    done.map_err(append_error)
}

/// What an error of a statement means for its append, if nothing else was stored in the same transaction before.
pub(super) fn append_error(error: tokio_postgres::Error) -> AppendError {
    let Some(database) = error.as_db_error() else {
        let failure = gesta_report::failure::Failure::from(error);
        return AppendError::Unknown(failure.0);
    };
    let (code, message) = (database.code().code(), database.message());
    match code {
        // Serialization failure, deadlock, lock not available.
        "40001" | "40P01" | "55P03" => AppendError::Retry(code.to_owned()),
        // The server ends the connection.
        "57P01" | "57P02" | "57P03" | "57P05" => AppendError::Unknown(format!("{code}: {message}")),
        "53200" => AppendError::Failed(format!(
            "{code}: {message}; partitions took more locks than max_locks_per_transaction allows for"
        )),
        _ => AppendError::Failed(format!("{code}: {message}")),
    }
}
