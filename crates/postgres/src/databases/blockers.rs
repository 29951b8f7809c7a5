//! Who holds the locks that a store waits for which is closed, shut or opened again.

use std::time::Duration;

use tokio_postgres::{Client, Row};

const READ_BLOCKERS: &str = include_str!("../../sql/read_blockers.sql");

/// A session, or a prepared transaction, that keeps a store from being closed, shut or opened again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocker {
    /// The id of its process in the database; `None` of a prepared transaction.
    pub process: Option<i32>,
    /// What the session calls itself (`application_name`).
    pub program: String,
    /// For how long its transaction is open; `None` if that is not known: this user may not see it, or it is prepared.
    pub open_for: Option<Duration>,
}

impl std::fmt::Display for Blocker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.process {
            Some(process) => write!(f, "process {process}")?,
            None => f.write_str("a prepared transaction")?,
        }
        if !self.program.is_empty() {
            write!(f, " ({})", self.program)?;
        }
        match self.open_for {
            Some(age) => write!(f, ", transaction open for {} s", age.as_secs()),
            None => Ok(()),
        }
    }
}

/// Reads who holds locks on the tables of the store, for longer than an attempt has waited.
pub(crate) async fn read(client: &Client) -> Result<Vec<Blocker>, tokio_postgres::Error> {
    let rows = client.query(READ_BLOCKERS, &[]).await?;
    let blocker = |row: &Row| {
        let seconds: Option<f64> = row.try_get("seconds")?;
        Ok(Blocker {
            process: row.try_get("process")?,
            program: row.try_get("program")?,
            open_for: seconds
                .map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()),
        })
    };
    rows.iter().map(blocker).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocker_is_named_by_what_is_known_of_it() {
        let blocker = Blocker {
            process: Some(4711),
            program: "pg_dump".into(),
            open_for: Some(Duration::from_millis(61_500)),
        };
        let text = blocker.to_string();
        assert_eq!(text, "process 4711 (pg_dump), transaction open for 61 s");
        let hidden = Blocker {
            program: String::new(),
            open_for: None,
            ..blocker
        };
        assert_eq!(hidden.to_string(), "process 4711");
        let prepared = Blocker {
            process: None,
            ..hidden
        };
        let text = prepared.to_string();
        assert_eq!(text, "a prepared transaction");
    }
}
