//! How the database of a target is reached, and who else is in it.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{Error, Result};
use gesta_postgres::{Config, Notices, connections};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::failed;

/// The longest wait for a host to let us in.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// The same for the question whose answer is good to have, but not needed.
const IDENTITY_MAX: Duration = Duration::from_secs(3);
/// How long sessions of others are waited for, which may be ending.
const OTHERS_MAX: Duration = Duration::from_secs(5);
/// How long is waited before they are looked for again.
const OTHERS_PAUSE: Duration = Duration::from_millis(20);

/// Connects to the primary. Returns `None` if all hosts say that there is no such database.
pub(super) async fn connect(config: &Config) -> Result<Option<(Client, Arc<Notices>)>> {
    connect_within(config, CONNECT_MAX).await
}

/// Connects as [`connect`] does, with another longest wait for each host.
async fn connect_within(config: &Config, max: Duration) -> Result<Option<(Client, Arc<Notices>)>> {
    let (hosts, tls) = connections(config)?;
    let no_host = || Error::invalid("target", "must name a host");
    let mut failure = hosts.is_empty().then(no_host);
    for host in hosts {
        match tokio::time::timeout(max, host.connect(tls.clone())).await {
            Ok(Ok((client, connection))) => {
                let notices = Notices::of(connection);
                let asked = client.query_one("SELECT pg_is_in_recovery()", &[]);
                match asked.await.map(|row| row.get(0)) {
                    Ok(false) => return Ok(Some((client, notices))),
                    Ok(true) => {
                        let text = format!("{}: it is a standby", config.name());
                        failure = Some(Error::unavailable(text));
                    }
                    Err(error) => failure = Some(failed(&error)),
                }
            }
            Ok(Err(error)) if has_no_database(&error) => {}
            Ok(Err(error)) => failure = Some(failed(&error)),
            Err(_) => {
                failure = Some(Error::unavailable(format!("{}: no answer", config.name())));
            }
        }
    }
    failure.map_or(Ok(None), Err)
}

/// Returns what tells the store from every other one, by whatever name its host was reached; `None` if there is no such
/// database. A host that does not answer soon is passed over. The moment at which a server was started, to the
/// microsecond, is that of no other server.
pub(crate) async fn identity(config: &Config) -> Result<Option<String>> {
    let Some((client, _)) = connect_within(config, IDENTITY_MAX).await? else {
        return Ok(None);
    };
    let sql = "SELECT d.oid::text || ' ' || extract(epoch FROM pg_postmaster_start_time())::text \
               FROM pg_database d WHERE d.datname = current_database()";
    let row = client.query_one(sql, &[]).await;
    let database: String = row.map_err(|error| failed(&error))?.get(0);
    Ok(Some(format!("{database} {}", config.schema)))
}

fn has_no_database(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::UNDEFINED_DATABASE)
}

/// Whether a server answers at this place, even if it lets nobody in. One that says that it has no such database does
/// not count.
pub(crate) async fn answers(config: &Config) -> Result<bool> {
    let (hosts, tls) = connections(config)?;
    for host in hosts {
        match tokio::time::timeout(CONNECT_MAX, host.connect(tls.clone())).await {
            Ok(Ok(_)) => return Ok(true),
            Ok(Err(error)) if error.code().is_some() && !has_no_database(&error) => {
                return Ok(true);
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
    Ok(false)
}

/// Waits until every session that other programs of Gesta have in the database now has ended.
///
/// Why: a server that is connected does not look at the mark before it appends. Sessions that begin later than the mark
/// are not waited for, so a program that tries to connect again and again does not keep the copy out. A program whose
/// URL gives its sessions another name is not known by it; what it appends is found (`check_ends`).
pub(super) async fn others_end(client: &Client, name: &str) -> Result<()> {
    let sql = "SELECT pid, coalesce(backend_start::text, '') FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'gesta'";
    let sessions = async || -> Result<Vec<(i32, String)>> {
        let rows = client.query(sql, &[]).await;
        let rows = rows.map_err(|error| failed(&error))?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    };
    let mut left = sessions().await?;
    let deadline = tokio::time::Instant::now() + OTHERS_MAX;
    while let Some((pid, _)) = left.first() {
        if tokio::time::Instant::now() > deadline {
            return Err(Error::unavailable(format!(
                "{} sessions of other programs of Gesta are in the database of {name} (one has the process id {pid}): stop \
                 all that use this database, also other stores in it, and repeat the copy",
                left.len()
            )));
        }
        tokio::time::sleep(OTHERS_PAUSE).await;
        let now = sessions().await?;
        left.retain(|session| now.contains(session));
    }
    Ok(())
}
