//! Faults of databases: their processes are killed, suspended or ended, and other sessions stand in the way.

use std::time::{Duration, Instant};

use gesta_core::LogId;
use gesta_load::machine::postgres;
use gesta_load::random::Random;
use gesta_report::failure::{Context, Failure, Result, blocking, fail};
use tokio::time::sleep;

use super::{Field, seconds};
use crate::fault::Fault;
use crate::world::{ANSWER_TIMEOUT, Database, World};

/// How long the databases are away while a node dies.
const OUTAGE: Duration = Duration::from_secs(60);
/// How long one of several databases is away: longer than it takes to declare a silent node dead.
const ONE_AWAY: Duration = Duration::from_secs(10);
/// The statement of another session that keeps an old snapshot open.
const SNAPSHOT: &str =
    "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current(), count(*) FROM gesta.events";
/// The statement of another session that locks the events.
const LOCK: &str = "BEGIN; LOCK TABLE gesta.events IN ACCESS EXCLUSIVE MODE";

impl Field<'_> {
    /// A fault of databases; gives the members that were hurt, which are all.
    pub(super) async fn hurt_databases(
        &mut self,
        fault: Fault,
        random: &mut Random,
    ) -> Result<Vec<usize>> {
        let count = self.world.databases.len();
        if count == 0 {
            return fail("there is no PostgreSQL here");
        }
        let at = random.below(count);
        let time = self.strength.time;
        match fault {
            Fault::BackendKill | Fault::BackendTerminate | Fault::BackendPause => {
                backend_fault(fault, self.world, at, random).await?;
            }
            Fault::DatabaseKill | Fault::DatabaseRestart => {
                self.world
                    .restart_database(at, fault, self.strength.away)
                    .await?;
            }
            Fault::DatabaseHang => {
                self.server(at, |server| server.freeze())?;
                sleep(seconds(random, 10)).await;
                self.server(at, |server| server.thaw())?;
            }
            Fault::SnapshotOpen => other_session(self.world, at, SNAPSHOT, time * 2).await?,
            Fault::TableLocked => other_session(self.world, at, LOCK, time * 2).await?,
            Fault::DatabaseAwayNodeKill => return self.all_away(random).await,
            Fault::OneDatabaseAway => self.one_away(at).await?,
            other => return fail(format!("{} is nothing of databases", other.name())),
        }
        Ok((0..self.world.members.len()).collect())
    }

    /// All databases are away for a minute, and a node dies meanwhile.
    async fn all_away(&mut self, random: &mut Random) -> Result<Vec<usize>> {
        let (chosen, count) = (self.choose(random).await?, self.world.databases.len());
        let Some(owners) = self.owners else {
            return fail("only nodes can die while the databases are away");
        };
        let address = self.world.members[chosen].address.clone();
        let generations = owners.generations(&address).await?;
        let begun = Instant::now();
        for at in 0..count {
            self.server(at, gesta_rig::Server::stop)?;
        }
        sleep(seconds(random, 40)).await;
        owners.are_down(&generations);
        self.world.members[chosen].server.kill();
        sleep(OUTAGE.saturating_sub(begun.elapsed())).await;
        for at in 0..count {
            self.server(at, gesta_rig::Server::restart)?;
        }
        owners.complete(self.owned_within).await?;
        self.launch(&[chosen]).await?;
        Ok(vec![chosen])
    }

    /// One of several databases is killed and away for a while: the logs of the others go on.
    async fn one_away(&mut self, at: usize) -> Result<()> {
        let count = self.world.databases.len();
        let Some(prober) = self.prober.filter(|_| count > 1) else {
            return fail("one of several databases cannot be away here");
        };
        let is_elsewhere = |log: LogId| usize::from(log.0) % count != at;
        self.server(at, gesta_rig::Server::kill_9)?;
        let (begun, mut longest) = (Instant::now(), Duration::ZERO);
        while begun.elapsed() < ONE_AWAY {
            longest = longest.max(prober.append(is_elsewhere).await?);
        }
        eprintln!("logs of the other databases: the longest append took {longest:.1?}");
        self.server(at, gesta_rig::Server::restart)
    }

    fn server(
        &mut self,
        at: usize,
        what: impl FnOnce(&mut gesta_rig::Server) -> gesta_rig::Result<()>,
    ) -> Result<()> {
        let server = self.world.server(at)?;
        blocking(|| what(server))
    }
}

async fn backend_fault(
    fault: Fault,
    world: &mut World,
    at: usize,
    random: &mut Random,
) -> Result<()> {
    let database = world.server(at)?;
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
    let rows = session.query(sql, &[]).await;
    let rows = rows.context("looking for backends")?;
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
    /// A PostgreSQL server that stands alone and is ours.
    fn server(&mut self, at: usize) -> Result<&mut gesta_rig::Server> {
        let server = self.databases.get_mut(at).and_then(Database::server_mut);
        server.map_or_else(|| fail("there is no PostgreSQL of ours here"), Ok)
    }

    /// Ends a database, and starts it again after a while. On a thread of its own, since it blocks: the task that asks
    /// for it may do other things too, and a connection of theirs that was opened and has said nothing yet keeps a
    /// database from ending, for a minute.
    async fn restart_database(&mut self, at: usize, fault: Fault, away: Duration) -> Result<()> {
        self.server(at)?;
        let Database::Alone(mut server) = self.databases.remove(at) else {
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
        self.databases.insert(at, Database::Alone(server));
        outcome.map_err(|error| Failure(error.to_string()))
    }
}

/// Another session does this and stays open for a while.
async fn other_session(world: &mut World, at: usize, begin: &str, time: Duration) -> Result<()> {
    let session = postgres::connect(&world.server(at)?.url()).await?;
    let begun = session.batch_execute(begin).await;
    begun.context("another session")?;
    sleep(time).await;
    let end = session.batch_execute("ROLLBACK").await;
    end.context("another session")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gesta_load::machine::CurrentStore;

    use super::*;

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
            world.restart_database(0, Fault::DatabaseRestart, Duration::from_secs(1)),
            async {
                tokio::task::yield_now().await;
                signal(nix::sys::signal::SIGCONT);
            }
        );
        restarted.unwrap();
        assert_ne!(world.server(0).unwrap().pid(), Some(pid.as_raw()));
    }
}
