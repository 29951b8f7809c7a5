//! `pg_dump` into `pg_restore`: how the rows of a store on PostgreSQL are usually brought to another database.

use std::process::{Command, Stdio};
use std::time::Instant;

use gesta_load::machine::postgres;
use gesta_report::failure::{Context, Result, fail};

use super::legs::database_bytes;
use super::places::Places;

/// What it is called in tables.
pub(super) const TITLE: &str = "pg_dump | pg_restore, PostgreSQL to PostgreSQL";

/// What was brought over.
#[derive(Debug)]
pub(super) struct Dumped {
    pub(super) rows: u64,
    pub(super) seconds: f64,
    pub(super) bytes: u64,
}

/// Brings the store of one log to another database. The dump is not compressed, as it goes through a pipe.
pub(super) async fn dump_and_restore(places: &Places) -> Result<Dumped> {
    let Some(programs) = gesta_rig::find_binaries() else {
        return fail("pg_dump and pg_restore were not found beside a PostgreSQL server");
    };
    let begun = Instant::now();
    tokio::task::block_in_place(|| {
        let mut dump = Command::new(programs.join("pg_dump"))
            .args(["--format=custom", "--compress=0", "--dbname", &places.one()])
            .stdout(Stdio::piped())
            .spawn()
            .context("pg_dump")?;
        let Some(dumped) = dump.stdout.take() else {
            return fail("pg_dump has no output");
        };
        let restored = Command::new(programs.join("pg_restore"))
            .args([
                "--exit-on-error",
                "--no-owner",
                "--dbname",
                &places.restored(),
            ])
            .stdin(dumped)
            .status();
        let ended = (
            dump.wait().context("pg_dump")?,
            restored.context("pg_restore")?,
        );
        if !(ended.0.success() && ended.1.success()) {
            return fail(format!(
                "pg_dump ended with {}, pg_restore with {}",
                ended.0, ended.1
            ));
        }
        Ok(())
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let client = postgres::connect(&places.restored()).await?;
    let row = client
        .query_one("SELECT count(*) FROM gesta.events", &[])
        .await;
    let rows: i64 = row.context("counting the rows that were restored")?.get(0);
    Ok(Dumped {
        rows: u64::try_from(rows).unwrap_or(0),
        seconds,
        bytes: database_bytes(&places.restored()).await?,
    })
}
