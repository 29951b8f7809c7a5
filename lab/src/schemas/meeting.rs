//! Several processes in step, also on several hosts: they meet in a table of the database under test.
//!
//! Each process takes a number; at a gathering each posts a text and waits for those of all others. All read the same
//! posts, so all come to the same decision without being told. The moment of a start is one of the database's clock.
//! Each holds a lock of its session while it is there: of one that was killed the others hear at once.
//! Not here: what is posted.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;

use crate::failure::{Context, Result, fail};
use crate::postgres;

/// How often a process looks whether all are there.
const LOOK: Duration = Duration::from_millis(20);
/// How often it looks whether those who are not there still live.
const LOOK_FOR_MISSING: Duration = Duration::from_secs(1);
/// Time between the last arrival and the start.
const HEAD_START_MS: f64 = 300.0;
/// Tries to make the tables and to take a number, while others do the same.
const TRIES: u32 = 100;

const TABLES: &str = include_str!("../../sql/meeting/create_tables.sql");
const TAKE_NUMBER: &str = include_str!("../../sql/meeting/take_number.sql");
const POST: &str = include_str!("../../sql/meeting/insert_post.sql");
const MISSING: &str = include_str!("../../sql/meeting/select_missing.sql");
const READ: &str = include_str!("../../sql/meeting/select_posts.sql");
const LEAVE: &str = include_str!("../../sql/meeting/delete_meeting.sql");

/// A process's place among those that measure together.
pub(super) enum Meeting {
    /// There are no others.
    Alone,
    /// One of several.
    Table(Box<Table>),
}

pub(super) struct Table {
    client: Client,
    name: String,
    processes: u32,
    number: u8,
    /// Gatherings so far; the same in all processes.
    gatherings: u32,
    patience: Duration,
}

impl Meeting {
    /// Meets `processes` processes under this name in the database at `url`. Whoever waits longer than `patience` at
    /// a gathering gives up.
    pub(super) async fn join(
        url: &str,
        name: &str,
        processes: u32,
        patience: Duration,
    ) -> Result<Self> {
        let client = postgres::connect(url).await?;
        let number = take_number(&client, name).await?;
        if u32::from(number) >= processes {
            return fail(format!(
                "{processes} processes have met as {name:?} already; a new run needs another --meeting"
            ));
        }
        Ok(Self::Table(Box::new(Table {
            client,
            name: name.to_owned(),
            processes,
            number,
            gatherings: 0,
            patience,
        })))
    }

    /// This process; the one with 0 prepares and reports.
    pub(super) fn number(&self) -> u8 {
        match self {
            Meeting::Alone => 0,
            Meeting::Table(table) => table.number,
        }
    }

    /// Posts a text and returns those of all processes, in the order of their numbers.
    pub(super) async fn gather(
        &mut self,
        text: String,
        stop: &CancellationToken,
    ) -> Result<Vec<String>> {
        match self {
            Meeting::Alone => Ok(vec![text]),
            Meeting::Table(table) => table.gather(text, stop).await,
        }
    }

    /// Waits until all are ready, and then for one moment.
    pub(super) async fn start(&mut self, stop: &CancellationToken) -> Result<()> {
        let Meeting::Table(table) = self else {
            return Ok(());
        };
        let now = table.database_ms().await?;
        let arrivals = table.gather(now.to_string(), stop).await?;
        let arrivals = arrivals.iter().filter_map(|text| text.parse().ok());
        let start = arrivals.fold(0.0, f64::max) + HEAD_START_MS;
        let asked = Instant::now();
        let now = table.database_ms().await?;
        let left = start - now - asked.elapsed().as_secs_f64() * 500.0;
        tokio::time::sleep(Duration::from_secs_f64(left.max(0.0) / 1_000.0)).await;
        Ok(())
    }

    /// Ends the meeting: when all have come here, and so have read everything, its traces are removed.
    pub(super) async fn leave(self, stop: &CancellationToken) -> Result<()> {
        let Meeting::Table(mut table) = self else {
            return Ok(());
        };
        if table.number > 0 {
            return table.post("").await;
        }
        table.gather(String::new(), stop).await?;
        table.client.execute(LEAVE, &[&table.name]).await?;
        Ok(())
    }
}

impl Table {
    async fn gather(&mut self, text: String, stop: &CancellationToken) -> Result<Vec<String>> {
        let gathering = i32::try_from(self.gatherings)?;
        self.post(&text).await?;
        let deadline = Instant::now() + self.patience;
        let mut looked = Instant::now();
        loop {
            let rows = self.client.query(READ, &[&self.name, &gathering]).await?;
            if rows.len() == self.processes as usize {
                return Ok(rows.iter().map(|row| row.get(0)).collect());
            }
            if looked.elapsed() >= LOOK_FOR_MISSING {
                looked = Instant::now();
                self.check_that_all_live(gathering).await?;
            }
            if Instant::now() > deadline {
                return fail(format!(
                    "only {} of {} processes came within {:?}",
                    rows.len(),
                    self.processes,
                    self.patience
                ));
            }
            if stop.is_cancelled() && self.gatherings == 1 {
                return fail("interrupted before all processes had come");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Without one of them nobody can go on. Whoever finds that first clears away.
    async fn check_that_all_live(&self, gathering: i32) -> Result<()> {
        let number = i32::from(self.number);
        let binds: [&(dyn ToSql + Sync); 3] = [&self.name, &gathering, &number];
        let Some(missing) = self.client.query(MISSING, &binds).await?.into_iter().next() else {
            return Ok(());
        };
        self.client.execute(LEAVE, &[&self.name]).await?;
        match missing.get::<_, Option<i32>>(0) {
            Some(gone) => fail(format!(
                "process {} of {} has gone",
                gone + 1,
                self.processes
            )),
            None => fail("one of the other processes has gone"),
        }
    }

    async fn post(&mut self, text: &str) -> Result<()> {
        let gathering = i32::try_from(self.gatherings)?;
        self.gatherings += 1;
        let number = i32::from(self.number);
        self.client
            .execute(POST, &[&self.name, &gathering, &number, &text])
            .await
            .context("posting to the meeting")?;
        Ok(())
    }

    /// Milliseconds of the database's clock.
    async fn database_ms(&self) -> Result<f64> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8";
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }
}

async fn take_number(client: &Client, name: &str) -> Result<u8> {
    for _ in 0..TRIES {
        // Two processes that come at the same moment: one of them fails and looks again.
        if let Err(error) = client.batch_execute(TABLES).await {
            if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
                return Err(error).context("making the table of the meeting");
            }
            tokio::time::sleep(LOOK).await;
            continue;
        }
        match client.query_one(TAKE_NUMBER, &[&name]).await {
            Ok(row) => return Ok(u8::try_from(row.get::<_, i32>(0))?),
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
            Err(error) => return Err(error).context("taking a number at the meeting"),
        }
    }
    fail(format!(
        "no number at the meeting {name:?} in {TRIES} tries"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the others hear of a process that was killed, and what they have left is cleared away.
    #[tokio::test]
    async fn a_process_that_dies_is_missed() {
        let Some(server) = gesta_pgtest::shared() else {
            return;
        };
        let (url, name) = (server.url(), format!("test-{}", uuid::Uuid::new_v4()));
        let stop = CancellationToken::new();
        let patience = Duration::from_secs(600);
        let mut meetings = Vec::new();
        for number in 0..3 {
            let meeting = Meeting::join(&url, &name, 3, patience).await.unwrap();
            assert_eq!(meeting.number(), number);
            meetings.push(meeting);
        }
        let [mut first, mut second, third] = meetings.try_into().ok().unwrap();
        let Meeting::Table(mut third) = third else {
            panic!("there are three")
        };
        third.post("c").await.unwrap();
        let all = tokio::join!(
            first.gather("a".into(), &stop),
            second.gather("b".into(), &stop)
        );
        assert_eq!(all.0.unwrap(), ["a", "b", "c"]);
        assert_eq!(all.1.unwrap(), ["a", "b", "c"]);
        drop(third);
        let (one, other) = tokio::join!(
            first.gather(String::new(), &stop),
            second.gather(String::new(), &stop)
        );
        for told in [one, other] {
            let told = told.unwrap_err().to_string();
            assert!(told.contains("has gone"), "{told}");
        }
        drop((first, second));
        assert!(
            Meeting::join(&url, &name, 3, patience).await.is_ok(),
            "the name is free again"
        );
    }
}
