//! When the database takes writes: plain SQL on a connection to each member, beside Gesta.
//!
//! A write is one row and its commit, as durable as the member has it: with a synchronous standby it waits for it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta_report::failure::Result;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use gesta_load::machine::ask::until;
use gesta_load::machine::postgres;

/// Pause between two writes to a member, and between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);
const CONNECT_PAUSE: Duration = Duration::from_millis(25);
/// A member that does not let us in by then is asked anew.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Somebody takes a write this soon after it can.
const WRITABLE_WITHIN: Duration = Duration::from_secs(60);
/// Where the rows go; a row per member.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS probe (member int PRIMARY KEY, n bigint NOT NULL)";
const WRITE: &str =
    "INSERT INTO probe VALUES ($1, 1) ON CONFLICT (member) DO UPDATE SET n = probe.n + 1";

/// A write that was acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write {
    /// By which member.
    pub(crate) member: usize,
    /// When it was sent.
    pub(crate) begun: Instant,
    /// When its answer came.
    pub(crate) acknowledged: Instant,
}

/// Writes to all members until it is dropped.
pub(crate) struct Probe {
    writes: Arc<Mutex<Vec<Write>>>,
    tasks: JoinSet<()>,
}

impl Probe {
    /// Makes the table where the rows go.
    pub(crate) async fn prepare(primary: &str) -> Result<()> {
        let client = postgres::connect(primary).await?;
        Ok(client.batch_execute(TABLE).await?)
    }

    /// Begins to write.
    pub(crate) fn start(members: Vec<String>) -> Self {
        let writes: Arc<Mutex<Vec<Write>>> = Arc::default();
        let mut tasks = JoinSet::new();
        for (member, url) in members.into_iter().enumerate() {
            tasks.spawn(ask(member, url, Arc::clone(&writes)));
        }
        Self { writes, tasks }
    }

    /// Waits until a write has been acknowledged that was begun from now on.
    pub(crate) async fn goes_on(&self) -> Result<()> {
        let begun = Instant::now();
        let goes_on = async || {
            let writes = self.writes.lock().unwrap();
            writes.iter().any(|write| write.begun >= begun)
        };
        until("a member takes writes", WRITABLE_WITHIN, goes_on).await
    }

    /// Ends it; gives the writes.
    pub(crate) fn end(mut self) -> Vec<Write> {
        self.tasks.abort_all();
        std::mem::take(&mut *self.writes.lock().unwrap())
    }
}

/// Writes to one member whenever it is the primary.
async fn ask(member: usize, url: String, writes: Arc<Mutex<Vec<Write>>>) {
    loop {
        if let Ok(Ok(client)) = tokio::time::timeout(CONNECT_MAX, postgres::connect(&url)).await {
            let _ = write(&client, member, &writes).await;
        }
        tokio::time::sleep(CONNECT_PAUSE).await;
    }
}

/// Until the connection fails. It outlives the promotion of its member.
async fn write(
    client: &Client,
    member: usize,
    writes: &Mutex<Vec<Write>>,
) -> std::result::Result<(), tokio_postgres::Error> {
    let role = client.prepare("SELECT pg_is_in_recovery()").await?;
    let statement = client.prepare(WRITE).await?;
    let number = i32::try_from(member).unwrap_or(i32::MAX);
    loop {
        if !client.query_one(&role, &[]).await?.get::<_, bool>(0) {
            let begun = Instant::now();
            client.execute(&statement, &[&number]).await?;
            let acknowledged = Instant::now();
            writes.lock().unwrap().push(Write {
                member,
                begun,
                acknowledged,
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}
