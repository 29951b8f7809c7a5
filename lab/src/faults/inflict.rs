//! What each fault does, and how it heals.
//!
//! Every fault is over when [`inflict`] returns: processes run, connections can be made, locks are free.

use std::time::{Duration, Instant};

use gesta_pgtest::LoseReply;
use nix::sys::signal::Signal;
use tokio_util::sync::CancellationToken;

use super::Fault;
use super::world::World;
use crate::failure::{Context, Failure, Result, fail};
use crate::postgres;
use crate::random::Random;

/// How long a reply to be lost is waited for: there may be no append meanwhile.
const REPLY_WITHIN: Duration = Duration::from_secs(5);

/// How hard faults are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strength {
    /// How long most faults last, some half or twice of it.
    pub(crate) time: Duration,
    /// How long the database is frozen.
    pub(crate) freeze: Duration,
    /// Extra round trip of a delay.
    pub(crate) delay: Duration,
    /// How long a delay lasts.
    pub(crate) delay_for: Duration,
    /// How long a database that was ended stays away.
    pub(crate) away: Duration,
}

impl Strength {
    /// Everything in proportion to this time.
    pub(crate) fn of(time: Duration) -> Self {
        Self {
            time,
            freeze: time,
            delay: time / 10,
            delay_for: time * 2,
            away: time,
        }
    }
}

/// Lets it happen, and heals it; sooner if the run is over.
pub(crate) async fn inflict(
    fault: Fault,
    strength: &Strength,
    world: &mut World,
    random: &mut Random,
    over: &CancellationToken,
) -> Result<()> {
    let some_time = strength.time;
    match fault {
        Fault::ServerKill | Fault::ServerStop | Fault::ServerPause => {
            server_fault(fault, world, random, some_time).await
        }
        Fault::BackendKill | Fault::BackendTerminate | Fault::BackendPause => {
            backend_fault(fault, world, random).await
        }
        Fault::DatabaseKill => world.restart_database(Ending::Kill, strength.away).await,
        Fault::DatabaseRestart => world.restart_database(Ending::Stop, strength.away).await,
        Fault::SnapshotOpen | Fault::TableLocked => session_fault(fault, world, some_time).await,
        Fault::ClientsCut | Fault::ClientsFrozen | Fault::AnswersLost => {
            clients_fault(fault, world, random, some_time).await
        }
        Fault::DiskFull => disk_fault(world, some_time).await,
        Fault::Reopen => world.some_store(random)?.reopen().await,
        Fault::DatabaseCut | Fault::DatabaseFreeze | Fault::DatabaseDelay => {
            link_fault(fault, strength, world, random, over).await
        }
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
    let database = world.database()?;
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

impl World {
    /// Ends the database, and starts it again after a while. On a thread of its own, since it blocks: the task that asks for
    /// it may do other things too, and a connection of theirs that was opened and has said nothing yet keeps a database
    /// from ending, for a minute.
    pub(crate) async fn restart_database(&mut self, ending: Ending, away: Duration) -> Result<()> {
        let Some(mut server) = self.postgres.take() else {
            return fail("there is no database to restart");
        };
        let restarted = tokio::task::spawn_blocking(move || {
            let ended = match ending {
                Ending::Kill => server.kill_9(),
                Ending::Stop => server.stop(),
            };
            let outcome = ended.and_then(|()| {
                std::thread::sleep(away);
                server.restart()
            });
            (server, outcome)
        });
        let (server, outcome) = restarted.await?;
        self.postgres = Some(server);
        outcome.map_err(|error| Failure(error.to_string()))
    }
}

async fn session_fault(fault: Fault, world: &mut World, some_time: Duration) -> Result<()> {
    let database = world.database()?;
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
    let proxy = &link.proxy;
    match fault {
        Fault::DatabaseRefuse => {
            proxy.refuse_connections(true);
            proxy.cut_all();
            tokio::time::sleep(some_time * 2).await;
            proxy.refuse_connections(false);
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
        _ => return fail(format!("{} is nothing of the network", fault.name())),
    }
    Ok(())
}

/// What any connection to a database or server can suffer.
async fn link_fault(
    fault: Fault,
    strength: &Strength,
    world: &mut World,
    random: &mut Random,
    over: &CancellationToken,
) -> Result<()> {
    let link = world.some_link(random)?;
    let (proxy, usual) = (&link.proxy, link.round_trip);
    let lasts = async |time: Duration| {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = over.cancelled() => {}
        }
    };
    match fault {
        Fault::DatabaseFreeze => {
            proxy.freeze(true);
            lasts(strength.freeze).await;
            proxy.freeze(false);
        }
        Fault::DatabaseDelay => {
            proxy.set_round_trip(usual + strength.delay);
            lasts(strength.delay_for).await;
            proxy.set_round_trip(usual);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::faults::CurrentStore;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_restart_of_the_database_leaves_the_rest_of_its_task_running() {
        let Some(server) = gesta_pgtest::Server::start().unwrap() else {
            return;
        };
        let pid = nix::unistd::Pid::from_raw(server.pid().unwrap());
        let store = Arc::new(gesta_memory::MemoryStore::new());
        let store = CurrentStore::new(store, None);
        let mut world = World::around(store, None, Duration::ZERO, Some(server)).unwrap();
        // A database that is suspended does not end. What lets it go on is in the same task as what ends it.
        let signal = |signal| nix::sys::signal::kill(pid, signal).unwrap();
        signal(nix::sys::signal::SIGSTOP);
        let (restarted, ()) = tokio::join!(
            world.restart_database(Ending::Stop, Duration::from_secs(1)),
            async {
                tokio::task::yield_now().await;
                signal(nix::sys::signal::SIGCONT);
            }
        );
        restarted.unwrap();
        assert_ne!(world.postgres.unwrap().pid(), Some(pid.as_raw()));
    }
}
