//! What each fault does, and how it heals.
//!
//! Every fault is over when [`inflict`] returns: processes run, connections can be made, locks are free.

use std::time::{Duration, Instant};

use gesta_rig::{FaultProxy, LoseReply};
use nix::sys::signal::Signal;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use gesta_report::failure::{Context, Failure, Result, fail};
use gesta_load::machine::child::Server;
use gesta_load::machine::postgres;
use gesta_load::random::Random;

use super::Fault;
use super::world::{ANSWER_TIMEOUT, Link, World};

/// How long a reply to be lost is waited for: there may be no append meanwhile.
const REPLY_WITHIN: Duration = Duration::from_secs(60);

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
    let time = strength.time;
    match fault {
        Fault::ServerKill | Fault::ServerStop | Fault::ServerPause => {
            let server = world.some(random, |entry| entry.server.as_mut())?;
            server_fault(fault, server, time).await
        }
        Fault::BackendKill | Fault::BackendTerminate | Fault::BackendPause => {
            backend_fault(fault, world, random).await
        }
        Fault::DatabaseKill | Fault::DatabaseRestart => {
            world.restart_database(fault, strength.away).await
        }
        Fault::SnapshotOpen => {
            let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current(), count(*) FROM gesta.events";
            other_session(world, begin, time * 2).await
        }
        Fault::TableLocked => {
            let begin = "BEGIN; LOCK TABLE gesta.events IN ACCESS EXCLUSIVE MODE";
            other_session(world, begin, time * 2).await
        }
        Fault::ClientsCut | Fault::ClientsFrozen | Fault::AnswersLost => {
            let clients = world.some(random, |entry| entry.clients.as_mut())?;
            match fault {
                Fault::ClientsCut => refuse(clients, time / 4, over).await,
                Fault::ClientsFrozen => switched(time, over, |on| clients.freeze(on)).await,
                _ => return lose_answers(clients).await,
            }
            Ok(())
        }
        Fault::DiskFull => disk_fault(world, time).await,
        Fault::Reopen => {
            let store = world.some(random, |entry| {
                Some(&mut entry.store).filter(|store| store.can_reopen())
            })?;
            store.reopen().await
        }
        _ => {
            let link = world.some(random, |entry| entry.link.as_mut())?;
            link_fault(fault, link, strength, random, over).await
        }
    }
}

async fn server_fault(fault: Fault, server: &mut Server, time: Duration) -> Result<()> {
    match fault {
        Fault::ServerPause => {
            server.signal(Signal::SIGSTOP);
            sleep(time * 2).await;
            server.signal(Signal::SIGCONT);
            return Ok(());
        }
        Fault::ServerStop => {
            if !server.stop().await {
                let log = server.log_tail();
                return fail(format!("a server did not stop in time:\n{log}"));
            }
        }
        _ => {
            server.kill();
            sleep(time / 4).await;
        }
    }
    server.launch().await
}

async fn backend_fault(fault: Fault, world: &mut World, random: &mut Random) -> Result<()> {
    let database = world.database()?;
    let session = postgres::connect(&database.url()).await?;
    if fault == Fault::BackendTerminate {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        let ended = session.execute(sql, &[]).await;
        return ended.map(drop).context("terminating backends");
    }
    // The process that wrote last; the names that Gesta gives its connections are for people.
    let sql = "SELECT pid FROM pg_stat_activity
               WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
               ORDER BY (query ILIKE '%insert%') DESC, coalesce(query_start, backend_start) DESC LIMIT 3";
    let rows = session
        .query(sql, &[])
        .await
        .context("looking for backends")?;
    drop(session);
    // Mostly the one that appends, now and then another.
    let pick = match random.below(4) {
        0 => random.below(rows.len().max(1)),
        _ => 0,
    };
    let Some(row) = rows.get(pick) else {
        return Ok(());
    };
    let pid: i32 = row.get(0);
    if fault == Fault::BackendKill {
        // It may have ended by itself in between, which is as good.
        let _ = database.kill_backend(pid);
    } else if database.suspend_backend(pid, true).is_ok() {
        sleep(ANSWER_TIMEOUT + Duration::from_secs(1)).await;
        let _ = database.suspend_backend(pid, false);
    }
    Ok(())
}

impl World {
    /// Ends the database, and starts it again after a while. On a thread of its own, since it blocks: the task that
    /// asks for it may do other things too, and a connection of theirs that was opened and has said nothing yet keeps a
    /// database from ending, for a minute.
    async fn restart_database(&mut self, fault: Fault, away: Duration) -> Result<()> {
        let Some(mut server) = self.postgres.take() else {
            return fail("there is no database to restart");
        };
        let restarted = tokio::task::spawn_blocking(move || {
            let ended = match fault {
                Fault::DatabaseKill => server.kill_9(),
                _ => server.stop(),
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

/// Another session does this and stays open for a while.
async fn other_session(world: &mut World, begin: &str, time: Duration) -> Result<()> {
    let session = postgres::connect(&world.database()?.url()).await?;
    session
        .batch_execute(begin)
        .await
        .context("another session")?;
    sleep(time).await;
    let end = session.batch_execute("ROLLBACK").await;
    end.context("another session")
}

/// Something is on for a while.
async fn switched(time: Duration, over: &CancellationToken, switch: impl Fn(bool)) {
    switch(true);
    over.run_until_cancelled(sleep(time)).await;
    switch(false);
}

/// Connections are cut and refused for a while.
async fn refuse(proxy: &FaultProxy, time: Duration, over: &CancellationToken) {
    switched(time, over, |on| {
        proxy.refuse_connections(on);
        proxy.cut_all();
    })
    .await;
}

/// Answers to clients are lost, then the connections break.
async fn lose_answers(proxy: &FaultProxy) -> Result<()> {
    let before = proxy.swallowed_bytes();
    proxy.swallow_replies(true);
    let deadline = Instant::now() + REPLY_WITHIN;
    while proxy.swallowed_bytes() == before {
        if Instant::now() > deadline {
            return fail("no server answered while its answer should have been lost");
        }
        sleep(Duration::from_millis(1)).await;
    }
    proxy.cut_all();
    proxy.swallow_replies(false);
    Ok(())
}

/// An append is committed, its reply is lost.
async fn lose_reply(link: &mut Link, random: &mut Random) -> Result<()> {
    let nth = u32::try_from(1 + random.below(5)).unwrap_or(1);
    link.proxy.lose_reply(LoseReply {
        tag_prefix: "INSERT".into(),
        nth,
    });
    let lost = link.proxy.replies_lost(link.lost + 1);
    if tokio::time::timeout(REPLY_WITHIN, lost).await.is_err() {
        return fail("no append was committed while its reply should have been lost");
    }
    link.lost += 1;
    Ok(())
}

/// What any connection to a database or server can suffer.
async fn link_fault(
    fault: Fault,
    link: &mut Link,
    strength: &Strength,
    random: &mut Random,
    over: &CancellationToken,
) -> Result<()> {
    let (proxy, time) = (&link.proxy, strength.time);
    let half_open = |on| proxy.set_half_open(on);
    match fault {
        Fault::DatabaseCut => drop(proxy.cut_all()),
        Fault::DatabaseFreeze => switched(strength.freeze, over, |on| proxy.freeze(on)).await,
        Fault::DatabaseRefuse => refuse(proxy, time * 2, over).await,
        Fault::DatabaseDelay => {
            let delay = |on| if on { strength.delay } else { Duration::ZERO };
            let set = |on| proxy.set_round_trip(link.round_trip + delay(on));
            switched(strength.delay_for, over, set).await;
        }
        Fault::DatabaseHalfOpen => {
            switched(time, over, half_open).await;
            proxy.cut_all();
        }
        // Nobody tells Gesta: it must notice by itself.
        Fault::DatabaseSilent => switched(time / 2, over, half_open).await,
        Fault::RequestHeld => {
            let time = ANSWER_TIMEOUT + time;
            switched(time, over, |on| proxy.hold_requests(on)).await;
        }
        Fault::ReplyLost => return lose_reply(link, random).await,
        _ => return fail(format!("{} is nothing of the network", fault.name())),
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
    sleep(some_time).await;
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
    use gesta_load::machine::CurrentStore;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_restart_of_the_database_leaves_the_rest_of_its_task_running() {
        let Some(server) = gesta_rig::Server::start().unwrap() else {
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
            world.restart_database(Fault::DatabaseRestart, Duration::from_secs(1)),
            async {
                tokio::task::yield_now().await;
                signal(nix::sys::signal::SIGCONT);
            }
        );
        restarted.unwrap();
        assert_ne!(world.postgres.unwrap().pid(), Some(pid.as_raw()));
    }
}
