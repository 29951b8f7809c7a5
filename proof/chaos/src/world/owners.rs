//! Which logs have an owner that lives, seen from outside: by the tables of the databases, all the time.
//!
//! Invariant: a lease counts only while its owner's process was neither killed, suspended nor cut off by chaos,
//! whatever the tables still say. Of a store of several databases each says who owns the logs that lie in it.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta_core::LogId;
use gesta_load::machine::postgres;
use gesta_report::failure::{Failure, Result, fail};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::World;

/// How often the tables are read.
const LOOK: Duration = Duration::from_millis(50);
/// An answer within this time belongs to the moment at which it came.
const AT_ONCE: Duration = Duration::from_millis(200);
/// How long an answer at once is tried for.
const AT_ONCE_WITHIN: Duration = Duration::from_secs(60);

/// What was seen since the last round began.
#[derive(Debug, Default)]
struct Seen {
    /// Generations of processes that were killed, or are suspended or cut off.
    down: HashSet<i64>,
    /// Since when some log has no owner that lives.
    without_since: Option<Instant>,
    /// The longest such time.
    longest: Duration,
    /// When all logs were last seen with owners.
    complete_at: Option<Instant>,
}

/// Moves of leases, by their reason.
pub type Moves = BTreeMap<String, u64>;

/// A log that has moved.
#[derive(Debug, Clone)]
pub struct Moved {
    /// The log.
    pub log: LogId,
    /// When its lease changed.
    pub at: Instant,
    /// Why.
    pub reason: String,
}

/// A database that is watched.
struct Database {
    url: String,
    /// Which of the leases are those of logs that lie in it.
    is_here: String,
    seen: Arc<Mutex<Seen>>,
}

/// Watches the leases until it is dropped.
pub struct Owners {
    databases: Vec<Database>,
    over: CancellationToken,
}

impl Owners {
    /// Begins to watch.
    pub fn watch(world: &World) -> Self {
        let urls = world.urls();
        let count = urls.len();
        let numbered = urls.into_iter().enumerate();
        let databases = numbered.map(|(at, url)| Database {
            url,
            // No log of these worlds moves to another database.
            is_here: format!("l.log % {count} = {at}"),
            seen: Arc::default(),
        });
        let owners = Self {
            databases: databases.collect(),
            over: CancellationToken::new(),
        };
        for database in &owners.databases {
            let over = owners.over.clone();
            tokio::spawn(over.run_until_cancelled_owned(database.watch()));
        }
        owners
    }

    /// The process at this address is about to be killed, suspended or cut off; gives its generations.
    pub async fn goes_down(&self, address: &str) -> Result<Vec<i64>> {
        let generations = self.generations(address).await?;
        self.are_down(&generations);
        Ok(generations)
    }

    /// The present generation of the process at this address, in each database.
    pub async fn generations(&self, address: &str) -> Result<Vec<i64>> {
        let mut generations = Vec::new();
        for database in &self.databases {
            let client = postgres::connect(&database.url).await?;
            let sql = "SELECT generation FROM gesta.nodes WHERE address = $1";
            generations.push(client.query_one(sql, &[&address]).await?.get(0));
        }
        Ok(generations)
    }

    /// The same, for who knows the generations already.
    pub fn are_down(&self, generations: &[i64]) {
        for (database, generation) in self.databases.iter().zip(generations) {
            database.seen.lock().unwrap().down.insert(*generation);
        }
    }

    /// The process goes on.
    pub fn goes_on(&self, generations: &[i64]) {
        for (database, generation) in self.databases.iter().zip(generations) {
            database.seen.lock().unwrap().down.remove(generation);
        }
    }

    /// Forgets what was longest, and gives the number of the last move in each database.
    pub async fn begin_round(&self) -> Result<Vec<i64>> {
        let mut numbers = Vec::new();
        for database in &self.databases {
            database.seen.lock().unwrap().longest = Duration::ZERO;
            let client = postgres::connect(&database.url).await?;
            let sql = "SELECT coalesce(max(number), 0) FROM gesta.moves";
            numbers.push(client.query_one(sql, &[]).await?.get(0));
        }
        Ok(numbers)
    }

    /// The longest time that some log was without an owner that lives.
    pub fn longest(&self) -> Duration {
        let all = self.databases.iter();
        let longest = all.map(|database| database.seen.lock().unwrap().longest);
        longest.max().unwrap_or_default()
    }

    /// Moves after those of these numbers, by their reason.
    pub async fn moves_since(&self, numbers: &[i64]) -> Result<Moves> {
        let mut moves = Moves::new();
        for moved in self.moved_since(numbers).await? {
            *moves.entry(moved.reason).or_default() += 1;
        }
        Ok(moves)
    }

    /// Each move after those of these numbers.
    pub async fn moved_since(&self, numbers: &[i64]) -> Result<Vec<Moved>> {
        let mut moves = Vec::new();
        for (database, number) in self.databases.iter().zip(numbers) {
            let client = postgres::connect(&database.url).await?;
            let sql = "SELECT log, reason, \
                 (extract(epoch FROM clock_timestamp() - at) * 1000000)::bigint \
                 FROM gesta.moves WHERE number > $1";
            let first = Instant::now();
            let (rows, now) = loop {
                let asked = Instant::now();
                let rows = client.query(sql, &[number]).await?;
                if asked.elapsed() < AT_ONCE || first.elapsed() > AT_ONCE_WITHIN {
                    break (rows, Instant::now());
                }
            };
            for row in rows {
                let ago = u64::try_from(row.get::<_, i64>(2)).unwrap_or_default();
                moves.push(Moved {
                    log: LogId(u16::try_from(row.get::<_, i16>(0))?),
                    at: now.checked_sub(Duration::from_micros(ago)).unwrap_or(now),
                    reason: row.get(1),
                });
            }
        }
        Ok(moves)
    }

    /// How many logs each node owns, by its address.
    pub async fn owned(&self) -> Result<BTreeMap<String, u64>> {
        let mut owned = BTreeMap::new();
        for database in &self.databases {
            for (address, count) in database.owned().await? {
                *owned.entry(address).or_default() += count;
            }
        }
        Ok(owned)
    }

    /// The address of the node that has the most logs; of one of them.
    pub async fn busiest(&self) -> Result<String> {
        let owned = self.owned().await?.into_iter();
        let busiest = owned.max_by_key(|(_, count)| *count);
        busiest.map_or_else(|| fail("no log has an owner"), |(address, _)| Ok(address))
    }

    /// Waits until all logs are seen with owners that live.
    pub async fn complete(&self, within: Duration) -> Result<()> {
        let begun = Instant::now();
        let is_missing = |database: &Database| {
            let complete_at = database.seen.lock().unwrap().complete_at;
            complete_at < Some(begun)
        };
        while self.databases.iter().any(is_missing) {
            if begun.elapsed() > within {
                return fail(format!("some log has no owner that lives after {within:?}"));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until no node has more than its share of the logs of a database, rounded up.
    pub async fn balanced(&self, world: &World, within: Duration) -> Result<Duration> {
        let begun = Instant::now();
        let (nodes, databases) = (world.members.len(), self.databases.len());
        for (at, database) in self.databases.iter().enumerate() {
            let logs = (usize::from(world.logs) - at).div_ceil(databases);
            let share = logs.div_ceil(nodes) as u64;
            loop {
                let owned = database.owned().await?;
                let is_whole = owned.values().sum::<u64>() == logs as u64;
                if is_whole && owned.values().all(|count| *count <= share) {
                    break;
                }
                if begun.elapsed() > within {
                    return fail(format!("after {within:?} nodes have {owned:?} logs"));
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(begun.elapsed())
    }
}

impl Drop for Owners {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

impl Database {
    /// Looks at the leases again and again.
    fn watch(&self) -> impl Future<Output = ()> + Send + use<> {
        let (url, seen) = (self.url.clone(), Arc::clone(&self.seen));
        // The generation of the owner of each log, as far as the lease is valid.
        let owners = format!(
            "SELECT n.generation FROM gesta.leases AS l LEFT JOIN gesta.nodes AS n \
             ON n.id = l.owner AND n.generation = l.generation AND n.state <> 'left' WHERE {}",
            self.is_here
        );
        async move {
            loop {
                // A database that is away shows nothing.
                if let Ok(client) = postgres::connect(&url).await {
                    while look(&client, &owners, &seen).await.is_ok() {
                        tokio::time::sleep(LOOK).await;
                    }
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// How many logs each node owns here.
    async fn owned(&self) -> Result<BTreeMap<String, u64>> {
        let client = postgres::connect(&self.url).await?;
        let sql = format!(
            "SELECT n.address, count(*) FROM gesta.leases AS l JOIN gesta.nodes AS n \
             ON n.id = l.owner AND n.generation = l.generation WHERE {} GROUP BY n.address",
            self.is_here
        );
        let rows = client.query(&sql, &[]).await?;
        let counted = |row: &tokio_postgres::Row| {
            let count = u64::try_from(row.get::<_, i64>(1)).unwrap_or_default();
            (row.get(0), count)
        };
        Ok(rows.iter().map(counted).collect())
    }
}

async fn look(client: &Client, owners: &str, seen: &Mutex<Seen>) -> Result<()> {
    // The state as of before the answer, so that who goes down meanwhile is not taken for gone.
    let begun = Instant::now();
    let rows = tokio::time::timeout(Duration::from_secs(5), client.query(owners, &[])).await;
    let rows = rows.map_err(|_| Failure("the database hangs".into()))??;
    let mut seen = seen.lock().unwrap();
    let lives = |generation: Option<i64>| generation.is_some_and(|g| !seen.down.contains(&g));
    let is_complete = !rows.is_empty() && rows.iter().all(|row| lives(row.get(0)));
    if is_complete {
        seen.without_since = None;
        seen.complete_at = Some(begun);
    } else {
        let since = *seen.without_since.get_or_insert(begun);
        seen.longest = seen.longest.max(since.elapsed());
    }
    Ok(())
}
