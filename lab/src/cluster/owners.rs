//! Which logs have an owner that lives, seen from outside: by the tables of the database, all the time.
//!
//! Invariant: a lease counts only while its owner's process was neither killed nor suspended by the lab, whatever the
//! tables still say.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::SizeArgs;
use super::nodes::Nodes;
use crate::failure::{Failure, Result, fail};
use crate::postgres;

/// How often the tables are read.
const LOOK: Duration = Duration::from_millis(50);
/// The generation of the owner of each log, as far as the lease is valid.
const OWNERS: &str = "SELECT n.generation FROM gesta.leases AS l \
     LEFT JOIN gesta.nodes AS n ON n.id = l.owner AND n.generation = l.generation AND n.state <> 'left'";

/// What was seen since the last round began.
#[derive(Debug, Default)]
struct Seen {
    /// Generations of processes that were killed or are suspended.
    down: HashSet<i64>,
    /// Since when some log has no owner that lives.
    without_since: Option<Instant>,
    /// The longest such time.
    longest: Duration,
    /// When all logs were last seen with owners.
    complete_at: Option<Instant>,
}

/// Moves of leases, by their reason.
pub(crate) type Moves = BTreeMap<String, u64>;

/// Watches the leases until it is dropped.
pub(crate) struct Owners {
    seen: Arc<Mutex<Seen>>,
    over: CancellationToken,
    url: String,
}

impl Owners {
    /// Begins to watch.
    pub(crate) fn watch(nodes: &Nodes) -> Self {
        let owners = Self {
            seen: Arc::default(),
            over: CancellationToken::new(),
            url: nodes.postgres.url(),
        };
        let (seen, over) = (Arc::clone(&owners.seen), owners.over.clone());
        let url = owners.url.clone();
        tokio::spawn(over.run_until_cancelled_owned(async move {
            loop {
                // A database that is away shows nothing.
                if let Ok(client) = postgres::connect(&url).await {
                    while look(&client, &seen).await.is_ok() {
                        tokio::time::sleep(LOOK).await;
                    }
                }
                tokio::time::sleep(LOOK).await;
            }
        }));
        owners
    }

    /// The present generation of a node.
    async fn generation(&self, address: &str) -> Result<i64> {
        let client = postgres::connect(&self.url).await?;
        let sql = "SELECT generation FROM gesta.nodes WHERE address = $1";
        Ok(client.query_one(sql, &[&address]).await?.get(0))
    }

    /// The process at this address is about to be killed or suspended; gives its generation.
    pub(crate) async fn goes_down(&self, address: &str) -> Result<i64> {
        let generation = self.generation(address).await?;
        self.seen.lock().unwrap().down.insert(generation);
        Ok(generation)
    }

    /// The process goes on.
    pub(crate) fn goes_on(&self, generation: i64) {
        self.seen.lock().unwrap().down.remove(&generation);
    }

    /// Forgets what was longest, and gives the number of the last move.
    pub(crate) async fn begin_round(&self) -> Result<i64> {
        self.seen.lock().unwrap().longest = Duration::ZERO;
        let client = postgres::connect(&self.url).await?;
        let sql = "SELECT coalesce(max(number), 0) FROM gesta.moves";
        Ok(client.query_one(sql, &[]).await?.get(0))
    }

    /// The longest time that some log was without an owner that lives.
    pub(crate) fn longest(&self) -> Duration {
        self.seen.lock().unwrap().longest
    }

    /// Moves after the one of this number, by their reason.
    pub(crate) async fn moves_since(&self, number: i64) -> Result<Moves> {
        let client = postgres::connect(&self.url).await?;
        let sql = "SELECT reason, count(*) FROM gesta.moves WHERE number > $1 GROUP BY reason";
        let rows = client.query(sql, &[&number]).await?;
        let of_row = |row: &tokio_postgres::Row| {
            let count = u64::try_from(row.get::<_, i64>(1)).unwrap_or_default();
            (row.get(0), count)
        };
        Ok(rows.iter().map(of_row).collect())
    }

    /// The address of the node that has the most logs; of one of them.
    pub(crate) async fn busiest(&self) -> Result<String> {
        let client = postgres::connect(&self.url).await?;
        let sql = "SELECT n.address FROM gesta.leases AS l \
             JOIN gesta.nodes AS n ON n.id = l.owner AND n.generation = l.generation \
             GROUP BY n.address ORDER BY count(*) DESC LIMIT 1";
        Ok(client.query_one(sql, &[]).await?.get(0))
    }

    /// Waits until all logs are seen with owners that live.
    pub(crate) async fn complete(&self, within: Duration) -> Result<()> {
        let begun = Instant::now();
        while self.seen.lock().unwrap().complete_at < Some(begun) {
            if begun.elapsed() > within {
                return fail(format!("some log has no owner that lives after {within:?}"));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until no node has more than its share of the logs, rounded up.
    pub(crate) async fn balanced(&self, size: &SizeArgs, within: Duration) -> Result<Duration> {
        let share = i64::from(size.logs.div_ceil(size.nodes));
        let begun = Instant::now();
        loop {
            let client = postgres::connect(&self.url).await?;
            let sql = "SELECT count(*) FROM gesta.leases GROUP BY owner, generation ORDER BY 1";
            let rows = client.query(sql, &[]).await?;
            let counts: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            if counts.last().is_some_and(|most| *most <= share) {
                return Ok(begun.elapsed());
            }
            if begun.elapsed() > within {
                return fail(format!("after {within:?} nodes have {counts:?} logs"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Owners {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

async fn look(client: &Client, seen: &Mutex<Seen>) -> Result<()> {
    // The state as of before the answer, so that who goes down meanwhile is not taken for gone.
    let begun = Instant::now();
    let rows = tokio::time::timeout(Duration::from_secs(5), client.query(OWNERS, &[])).await;
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
