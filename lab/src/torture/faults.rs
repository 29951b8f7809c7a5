//! The faults: what each does, how it heals, and whether it excuses an unknown outcome.
//!
//! Every fault is over when [`inflict`] returns: processes run, connections can be made, locks are free.

use std::time::{Duration, Instant};

use gesta_pgtest::LoseReply;
use nix::sys::signal::Signal;
use serde::Serialize;

use super::world::{Database, World};
use crate::failure::{Context, Failure, Result, fail};
use crate::postgres;
use crate::random::Random;

/// How long a reply to be lost is waited for: there may be no append meanwhile.
const REPLY_WITHIN: Duration = Duration::from_secs(5);

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// `kill -9` of a server; it is started again.
    ServerKill,
    /// An orderly stop of a server; it is started again.
    ServerStop,
    /// A server is suspended and goes on.
    ServerPause,
    /// `kill -9` of the database's process that appends; the database throws everybody out and recovers.
    BackendKill,
    /// The database's processes for Gesta are ended by an administrator.
    BackendTerminate,
    /// The process that appends is suspended for longer than Gesta waits: its statement lands after the reconnect.
    BackendPause,
    /// `kill -9` of the whole database; it is started again.
    DatabaseKill,
    /// An orderly restart of the database.
    DatabaseRestart,
    /// Connections to the database are cut.
    DatabaseCut,
    /// Connections to the database are cut and refused for a while.
    DatabaseRefuse,
    /// Every byte to and from the database takes longer.
    DatabaseDelay,
    /// Connections to the database fall silent, then break.
    DatabaseHalfOpen,
    /// Connections to the database fall silent and never speak again; new ones work.
    DatabaseSilent,
    /// An append is committed, its reply is lost.
    ReplyLost,
    /// A statement is held on its way for longer than Gesta waits, then lands.
    RequestHeld,
    /// Another session keeps an old snapshot open.
    SnapshotOpen,
    /// Another session locks the table of events for a while.
    TableLocked,
    /// Connections of clients to a server are cut.
    ClientsCut,
    /// Connections of clients to a server fall silent for a while; nothing is lost.
    ClientsFrozen,
    /// A server's answers to clients are lost, then their connections break.
    AnswersLost,
    /// No space is left where the database keeps its files; then there is again.
    DiskFull,
}

impl Fault {
    /// All of them.
    pub(crate) const ALL: &[Fault] = &[
        Fault::ServerKill,
        Fault::ServerStop,
        Fault::ServerPause,
        Fault::BackendKill,
        Fault::BackendTerminate,
        Fault::BackendPause,
        Fault::DatabaseKill,
        Fault::DatabaseRestart,
        Fault::DatabaseCut,
        Fault::DatabaseRefuse,
        Fault::DatabaseDelay,
        Fault::DatabaseHalfOpen,
        Fault::DatabaseSilent,
        Fault::ReplyLost,
        Fault::RequestHeld,
        Fault::SnapshotOpen,
        Fault::TableLocked,
        Fault::ClientsCut,
        Fault::ClientsFrozen,
        Fault::AnswersLost,
        Fault::DiskFull,
    ];

    /// True if clients may get *outcome unknown*: nobody was left to tell them, or no way to.
    pub(crate) fn excuses_unknown(self) -> bool {
        matches!(
            self,
            Fault::ServerKill | Fault::ServerStop | Fault::ClientsCut | Fault::AnswersLost
        )
    }

    /// True if this world can suffer it.
    pub(crate) fn fits(self, world: &World) -> bool {
        let postgres = matches!(world.database, Database::Postgres(_));
        match self {
            Fault::ServerKill
            | Fault::ServerStop
            | Fault::ServerPause
            | Fault::ClientsCut
            | Fault::ClientsFrozen
            | Fault::AnswersLost => world.has_servers(),
            Fault::DiskFull => world.small_disk.is_some(),
            _ => postgres,
        }
    }

    /// Its name in the table.
    pub(crate) fn name(self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        value.as_str().unwrap_or_default().to_owned()
    }
}

/// Lets it happen, and heals it.
pub(crate) async fn inflict(fault: Fault, world: &mut World, random: &mut Random) -> Result<()> {
    let some_time = Duration::from_millis(200 + random.next() % 1_300);
    match fault {
        Fault::ServerKill | Fault::ServerStop | Fault::ServerPause => {
            server_fault(fault, world, random, some_time).await
        }
        Fault::BackendKill | Fault::BackendTerminate | Fault::BackendPause => {
            backend_fault(fault, world, random).await
        }
        Fault::DatabaseKill => restart(world.postgres()?, Ending::Kill, some_time).await,
        Fault::DatabaseRestart => restart(world.postgres()?, Ending::Stop, some_time).await,
        Fault::SnapshotOpen | Fault::TableLocked => session_fault(fault, world, some_time).await,
        Fault::ClientsCut | Fault::ClientsFrozen | Fault::AnswersLost => {
            clients_fault(fault, world, random, some_time).await
        }
        Fault::DiskFull => disk_fault(world, some_time).await,
        _ => network_fault(fault, world, random, some_time).await,
    }
}

async fn server_fault(
    fault: Fault,
    world: &mut World,
    random: &mut Random,
    some_time: Duration,
) -> Result<()> {
    let server = world.some_server(random)?;
    match fault {
        Fault::ServerPause => {
            server.signal(Signal::SIGSTOP);
            tokio::time::sleep(some_time * 2).await;
            server.signal(Signal::SIGCONT);
        }
        Fault::ServerStop => {
            if !server.stop().await {
                return fail(format!(
                    "a server did not stop in time:\n{}",
                    server.log_tail()
                ));
            }
            server.launch().await?;
        }
        _ => {
            server.kill();
            tokio::time::sleep(some_time / 4).await;
            server.launch().await?;
        }
    }
    Ok(())
}

async fn backend_fault(fault: Fault, world: &mut World, random: &mut Random) -> Result<()> {
    let longer_than_answers = world.answer_timeout + Duration::from_millis(1_000);
    let database = world.postgres()?;
    let session = postgres::connect(&database.url()).await?;
    if fault == Fault::BackendTerminate {
        session
            .execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
                &[],
            )
            .await
            .context("terminating backends")?;
        return Ok(());
    }
    // The process that wrote last; the names that Gesta gives its connections are for people.
    let rows = session
        .query(
            "SELECT pid FROM pg_stat_activity
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
             ORDER BY (query ILIKE '%insert%') DESC, coalesce(query_start, backend_start) DESC LIMIT 3",
            &[],
        )
        .await
        .context("looking for backends")?;
    drop(session);
    if rows.is_empty() {
        return Ok(());
    }
    // Mostly the one that appends, now and then another.
    let pick = if random.below(4) == 0 {
        random.below(rows.len())
    } else {
        0
    };
    let pid: i32 = rows[pick].get(0);
    if fault == Fault::BackendKill {
        // It may have ended by itself in between, which is as good.
        let _ = database.kill_backend(pid);
        return Ok(());
    }
    if database.suspend_backend(pid, true).is_ok() {
        tokio::time::sleep(longer_than_answers).await;
        let _ = database.suspend_backend(pid, false);
    }
    Ok(())
}

/// How a database ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// `kill -9` of all its processes.
    Kill,
    /// As its operator would.
    Stop,
}

/// Ends a database, and starts it again after a while.
pub(crate) async fn restart(
    database: &mut gesta_pgtest::Server,
    ending: Ending,
    away: Duration,
) -> Result<()> {
    let text = |error: Box<dyn std::error::Error + Send + Sync>| Failure(error.to_string());
    tokio::task::block_in_place(|| match ending {
        Ending::Kill => database.kill_9(),
        Ending::Stop => database.stop(),
    })
    .map_err(text)?;
    tokio::time::sleep(away).await;
    tokio::task::block_in_place(|| database.restart()).map_err(text)
}

async fn session_fault(fault: Fault, world: &mut World, some_time: Duration) -> Result<()> {
    let database = world.postgres()?;
    let session = postgres::connect(&database.url()).await?;
    let sql = match fault {
        Fault::SnapshotOpen => {
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current(), count(*) FROM gesta.events"
        }
        _ => "BEGIN; LOCK TABLE gesta.events IN ACCESS EXCLUSIVE MODE",
    };
    session
        .batch_execute(sql)
        .await
        .context("another session")?;
    tokio::time::sleep(some_time * 2).await;
    session
        .batch_execute("ROLLBACK")
        .await
        .context("another session")
}

async fn clients_fault(
    fault: Fault,
    world: &mut World,
    random: &mut Random,
    some_time: Duration,
) -> Result<()> {
    let proxy = world.some_client_proxy(random)?;
    match fault {
        Fault::AnswersLost => {
            let before = proxy.swallowed_bytes();
            proxy.swallow_replies(true);
            let deadline = Instant::now() + REPLY_WITHIN;
            while proxy.swallowed_bytes() == before {
                if Instant::now() > deadline {
                    return fail("no server answered while its answer should have been lost");
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            proxy.cut_all();
            proxy.swallow_replies(false);
        }
        Fault::ClientsFrozen => {
            proxy.freeze(true);
            tokio::time::sleep(some_time).await;
            proxy.freeze(false);
        }
        _ => {
            proxy.refuse_connections(true);
            proxy.cut_all();
            tokio::time::sleep(some_time / 4).await;
            proxy.refuse_connections(false);
        }
    }
    Ok(())
}

async fn network_fault(
    fault: Fault,
    world: &mut World,
    random: &mut Random,
    some_time: Duration,
) -> Result<()> {
    let answer_timeout = world.answer_timeout;
    let link = world.some_link(random)?;
    let (proxy, usual) = (&link.proxy, link.delay);
    match fault {
        Fault::DatabaseRefuse => {
            proxy.refuse_connections(true);
            proxy.cut_all();
            tokio::time::sleep(some_time * 2).await;
            proxy.refuse_connections(false);
        }
        Fault::DatabaseDelay => {
            let delay = usual + some_time / 20;
            proxy.set_delay(delay, delay);
            tokio::time::sleep(some_time * 2).await;
            proxy.set_delay(usual, usual);
        }
        Fault::DatabaseHalfOpen => {
            proxy.set_half_open(true);
            tokio::time::sleep(some_time).await;
            proxy.set_half_open(false);
            proxy.cut_all();
        }
        Fault::DatabaseSilent => {
            proxy.set_half_open(true);
            tokio::time::sleep(some_time / 2).await;
            proxy.set_half_open(false);
            // Nobody tells Gesta: it must notice by itself.
        }
        Fault::RequestHeld => {
            proxy.hold_requests(true);
            tokio::time::sleep(answer_timeout + some_time).await;
            proxy.hold_requests(false);
        }
        Fault::ReplyLost => {
            let nth = u32::try_from(1 + random.below(5)).unwrap_or(1);
            proxy.lose_reply(LoseReply {
                tag_prefix: "INSERT".into(),
                nth,
            });
            let lost = proxy.replies_lost(link.lost + 1);
            if tokio::time::timeout(REPLY_WITHIN, lost).await.is_err() {
                return fail("no append was committed while its reply should have been lost");
            }
            link.lost += 1;
        }
        _ => {
            proxy.cut_all();
        }
    }
    Ok(())
}

async fn disk_fault(world: &mut World, some_time: Duration) -> Result<()> {
    let Some(dir) = world.small_disk.clone() else {
        return fail("there is no small disk");
    };
    let ballast = dir.join("ballast");
    let path = ballast.clone();
    tokio::task::spawn_blocking(move || fill_up(&path)).await??;
    tokio::time::sleep(some_time).await;
    std::fs::remove_file(&ballast).context("removing the ballast")?;
    world.revive().await
}

/// Writes until nothing more fits. The size is bounded, so that a wrong folder does little harm.
fn fill_up(path: &std::path::Path) -> std::io::Result<()> {
    use std::io::Write;
    const BALLAST_BYTES_MAX: u64 = 4 << 30;
    let mut file = std::fs::File::create(path)?;
    let (mut written, mut block) = (0, vec![0_u8; 1 << 20]);
    while written < BALLAST_BYTES_MAX {
        match file.write(&block) {
            Ok(n) => written += n as u64,
            Err(e) if e.kind() == std::io::ErrorKind::StorageFull && block.len() > 1 => {
                block.truncate(block.len() / 4)
            }
            Err(e) if e.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    std::fs::remove_file(path)?;
    Err(std::io::Error::other("--small-disk is larger than 4 GiB"))
}
