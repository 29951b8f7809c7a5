//! Several load processes in step, also on several hosts: they meet in tables of the database under test.
//!
//! Each process takes a number; at a gathering each posts a text and waits for those of all others. All read the same
//! posts, so all come to the same decision, and nobody has to be told. The moment of a start is one of the database's
//! clock, so that clocks of hosts need not agree; whoever comes later than that knows by how much. The tables of a
//! meeting are a schema of its own, which goes with it, also if it fails.
//! Not here: what is posted.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gesta_report::failure::{Context, Result, fail};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_util::sync::CancellationToken;

use gesta_load::machine::postgres;

/// How often a process looks whether all are there.
const LOOK: Duration = Duration::from_millis(20);
/// Time between the last arrival and the start.
const HEAD_START_MS: f64 = 300.0;
/// Tries to make the tables and to take a number, while others do the same.
const TRIES: u32 = 500;
/// Longest name of a meeting.
const NAME_MAX: usize = 32;

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../../sql/meeting/", $name, ".sql"))
    };
}

/// A process's place among those that measure together.
pub(super) enum Meeting {
    /// There are no others.
    Alone,
    /// One of several.
    Table(Box<Table>),
}

/// Reads the name of a meeting.
pub(super) fn name(text: &str) -> std::result::Result<String, String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    match !text.is_empty() && text.len() <= NAME_MAX && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is not a name of 1 to {NAME_MAX} of a-z, 0-9 and _"
        )),
    }
}

pub(super) struct Table {
    client: Client,
    schema: String,
    processes: u32,
    number: u32,
    /// Gatherings so far; the same in all processes.
    gatherings: i32,
    patience: Duration,
    /// How long after the moment of the last start this process began.
    late_ms: f64,
    /// Those that this process has started.
    others: Others,
}

/// Processes that this one has started; they end with it.
#[derive(Debug, Default)]
pub(super) struct Others(Vec<Child>);

impl Others {
    /// Starts this program so many times with these arguments.
    pub(super) fn start(count: u32, arguments: &[String]) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut others = Self::default();
        for _ in 0..count {
            let mut command = Command::new(&program);
            command
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            others
                .0
                .push(command.spawn().context("starting a process")?);
        }
        Ok(others)
    }

    /// Fails if one has failed.
    fn look(&mut self) -> Result<()> {
        for (other, number) in self.0.iter_mut().zip(1..) {
            if let Some(status) = other.try_wait()?.filter(|status| !status.success()) {
                return fail(format!(
                    "load process {number} of those started has ended: {status}"
                ));
            }
        }
        Ok(())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for other in &mut self.0 {
            // One that has ended already is as good.
            let _ = other.kill();
            let _ = other.wait();
        }
    }
}

impl Meeting {
    /// Meets `processes` processes under this name in the database at `url`. Whoever waits longer than `patience` at
    /// a gathering gives up.
    ///
    /// # Errors
    /// So many have met already, or the tables cannot be made.
    pub(super) async fn join(
        url: &str,
        name: &str,
        processes: u32,
        patience: Duration,
    ) -> Result<Self> {
        let client = postgres::connect(url).await?;
        let schema = format!("gesta_lab_meeting_{name}");
        let number = take_number(&client, &schema).await?;
        if number >= processes {
            return fail(format!(
                "{processes} processes have met as {name:?} already; another run needs another --meeting, or, if that \
                 one was killed: DROP SCHEMA {schema} CASCADE"
            ));
        }
        Ok(Self::Table(Box::new(Table {
            client,
            schema,
            processes,
            number,
            gatherings: 0,
            patience,
            late_ms: 0.0,
            others: Others::default(),
        })))
    }

    /// Keeps watch over processes that this one has started.
    pub(super) fn keep(&mut self, others: Others) {
        if let Meeting::Table(table) = self {
            table.others = others;
        }
    }

    /// True for the process that makes the tables and reports.
    pub(super) fn leads(&self) -> bool {
        match self {
            Meeting::Alone => true,
            Meeting::Table(table) => table.number == 0,
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
            Meeting::Table(table) => table.gather(&text, stop).await,
        }
    }

    /// Waits until all have come here.
    pub(super) async fn wait(&mut self, stop: &CancellationToken) -> Result<()> {
        self.gather(String::new(), stop).await.map(drop)
    }

    /// Waits until all are ready, and then for one moment. Whoever is late for it begins at once.
    pub(super) async fn start(&mut self, stop: &CancellationToken) -> Result<()> {
        let Meeting::Table(table) = self else {
            return Ok(());
        };
        let now = table.database_ms().await?;
        let arrivals = table.gather(&now.to_string(), stop).await?;
        let arrivals = arrivals.iter().filter_map(|text| text.parse().ok());
        let last = arrivals.fold(0.0, f64::max);
        table.begin_at(last + HEAD_START_MS).await
    }

    /// How long after the moment of the last start this process began.
    pub(super) fn late_ms(&self) -> f64 {
        match self {
            Meeting::Alone => 0.0,
            Meeting::Table(table) => table.late_ms,
        }
    }

    /// Ends the meeting: when all have come here, and so have read everything, its tables are removed.
    pub(super) async fn leave(mut self, stop: &CancellationToken) -> Result<()> {
        match &mut self {
            Meeting::Alone => return Ok(()),
            Meeting::Table(table) if table.number > 0 => return table.post("").await,
            Meeting::Table(_) => {}
        }
        if let Err(why) = self.wait(stop).await {
            self.abandon().await;
            return Err(why);
        }
        let Meeting::Table(mut table) = self else {
            return Ok(());
        };
        // Those that were started end by themselves now.
        for other in &mut table.others.0 {
            other.wait()?;
        }
        let drop = format!("DROP SCHEMA {} CASCADE", table.schema);
        table.client.batch_execute(&drop).await.context(drop)
    }

    /// Ends a meeting that has failed: the processes that this one has started are ended, and if it leads, the tables
    /// are removed, without which the others fail as well.
    pub(super) async fn abandon(self) {
        let Meeting::Table(table) = self else { return };
        let Table {
            client,
            schema,
            number,
            others,
            ..
        } = *table;
        drop(others);
        if number > 0 {
            return;
        }
        let sql = format!("DROP SCHEMA IF EXISTS {schema} CASCADE");
        if let Err(error) = client.batch_execute(&sql).await {
            eprintln!("the tables of the meeting are left, see to it: {sql}: {error}");
        }
    }
}

impl Table {
    fn sql(&self, sql: &str) -> String {
        sql.replace("{schema}", &self.schema)
    }

    async fn gather(&mut self, text: &str, stop: &CancellationToken) -> Result<Vec<String>> {
        let gathering = self.gatherings;
        self.post(text).await?;
        let (count, read) = (
            self.sql(sql!("count_posts")),
            self.sql(sql!("select_posts")),
        );
        let count = self.client.prepare(&count).await?;
        let deadline = Instant::now() + self.patience;
        loop {
            let row = self.client.query_one(&count, &[&gathering]).await?;
            let come: i64 = row.get(0);
            if come >= i64::from(self.processes) {
                let rows = self.client.query(&read, &[&gathering]).await?;
                return Ok(rows.iter().map(|row| row.get(0)).collect());
            }
            self.others.look()?;
            if Instant::now() > deadline {
                return fail(format!(
                    "only {come} of {} load processes came within {:?}",
                    self.processes, self.patience
                ));
            }
            // Later on all hear of it from each other.
            if stop.is_cancelled() && gathering == 0 {
                return fail("interrupted before all load processes had come");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn post(&mut self, text: &str) -> Result<()> {
        let gathering = self.gatherings;
        self.gatherings += 1;
        let (sql, number) = (self.sql(sql!("insert_post")), i32::try_from(self.number)?);
        let posted = self
            .client
            .execute(&sql, &[&gathering, &number, &text])
            .await;
        posted.context("posting to the meeting").map(drop)
    }

    /// Waits for a moment of the database's clock. Whoever is late for it begins at once, and knows by how much.
    async fn begin_at(&mut self, start: f64) -> Result<()> {
        let asked = Instant::now();
        let now = self.database_ms().await?;
        // The answer was made half a round trip ago.
        let answered = asked + asked.elapsed() / 2;
        let since_answer = || answered.elapsed().as_secs_f64() * 1_000.0;
        let left = start - now - since_answer();
        tokio::time::sleep(Duration::from_secs_f64(left.max(0.0) / 1_000.0)).await;
        self.late_ms = (now + since_answer() - start).max(0.0);
        Ok(())
    }

    /// Milliseconds of the database's clock.
    async fn database_ms(&self) -> Result<f64> {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8";
        Ok(self.client.query_one(sql, &[]).await?.get(0))
    }
}

async fn take_number(client: &Client, schema: &str) -> Result<u32> {
    let [tables, take] =
        [sql!("create_tables"), sql!("take_number")].map(|sql| sql.replace("{schema}", schema));
    for _ in 0..TRIES {
        // Of processes that come at the same moment one makes the tables; the others fail and look again.
        if let Err(error) = client.batch_execute(&tables).await {
            if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
                return Err(error).context("making the tables of the meeting");
            }
            tokio::time::sleep(LOOK).await;
            continue;
        }
        match client.query_one(&take, &[]).await {
            Ok(row) => return Ok(u32::try_from(row.get::<_, i32>(0))?),
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
            Err(error) => return Err(error).context("taking a number at the meeting"),
        }
    }
    fail(format!(
        "no number at the meeting in {schema} in {TRIES} tries"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    async fn schemas_left(url: &str, name: &str) -> i64 {
        let client = postgres::connect(url).await.unwrap();
        let sql = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
        let schema = format!("gesta_lab_meeting_{name}");
        client.query_one(sql, &[&schema]).await.unwrap().get(0)
    }

    /// Comes to a meeting of three, says its number in two gatherings, and leaves.
    async fn come(url: String, name: &'static str) -> (bool, Vec<Vec<String>>) {
        let stop = CancellationToken::new();
        let mut meeting = Meeting::join(&url, name, 3, SOON).await.unwrap();
        let Meeting::Table(table) = &meeting else {
            unreachable!()
        };
        let (leads, own) = (meeting.leads(), table.number);
        let mut heard = Vec::new();
        for gathering in 0..2 {
            let said = meeting.gather(format!("{own} in {gathering}"), &stop).await;
            heard.push(said.unwrap());
            meeting.start(&stop).await.unwrap();
        }
        meeting.leave(&stop).await.unwrap();
        (leads, heard)
    }

    /// Goal: whoever comes at the same moment gets a number of its own, all hear the same, and nothing is left behind.
    #[tokio::test(flavor = "multi_thread")]
    async fn all_hear_the_same_and_nothing_is_left() {
        let Some(server) = gesta_rig::shared() else {
            return;
        };
        let name = "all_hear_the_same";
        let (a, b, c) = tokio::join!(
            come(server.url(), name),
            come(server.url(), name),
            come(server.url(), name),
        );
        let said = |gathering| {
            [0, 1, 2]
                .map(|own| format!("{own} in {gathering}"))
                .to_vec()
        };
        for (_, heard) in [&a, &b, &c] {
            assert_eq!(*heard, [said(0), said(1)]);
        }
        assert_eq!(
            [a.0, b.0, c.0].into_iter().filter(|leads| *leads).count(),
            1
        );
        assert_eq!(schemas_left(&server.url(), name).await, 0);
    }

    /// Goal: nobody waits for ever: a process too many is refused, one that nobody joins gives up, and one that fails
    /// is told.
    #[tokio::test(flavor = "multi_thread")]
    async fn who_waits_in_vain_is_told() {
        let Some(server) = gesta_rig::shared() else {
            return;
        };
        let (url, stop, name) = (server.url(), CancellationToken::new(), "in_vain");
        let mut first = Meeting::join(&url, name, 1, Duration::ZERO).await.unwrap();
        let late = Meeting::join(&url, name, 1, SOON).await.err().unwrap();
        assert!(
            late.to_string().contains("have met as \"in_vain\" already"),
            "{late}"
        );
        first.wait(&stop).await.unwrap();
        first.leave(&stop).await.unwrap();

        let mut alone = Meeting::join(&url, name, 2, Duration::ZERO).await.unwrap();
        let why = alone.wait(&stop).await.unwrap_err();
        assert!(
            why.to_string().contains("only 1 of 2 load processes"),
            "{why}"
        );

        alone.abandon().await;
    }

    /// What happened: when a process failed, the tables of the meeting stayed in the user's database.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_meeting_that_fails_leaves_nothing() {
        let Some(server) = gesta_rig::shared() else {
            return;
        };
        let (url, stop) = (server.url(), CancellationToken::new());
        // This test program does not know the argument.
        let unknown = ["--no-such-option".to_owned()];
        let told = "load process 1 of those started has ended";
        let mut leader = Meeting::join(&url, "broken", 2, SOON).await.unwrap();
        leader.keep(Others::start(1, &unknown).unwrap());
        let why = leader.wait(&stop).await.unwrap_err();
        assert!(why.to_string().contains(told), "{why}");
        leader.abandon().await;
        assert_eq!(schemas_left(&url, "broken").await, 0);

        let mut leader = Meeting::join(&url, "broken", 2, SOON).await.unwrap();
        let mut member = Meeting::join(&url, "broken", 2, SOON).await.unwrap();
        leader.keep(Others::start(1, &unknown).unwrap());
        let why = leader.leave(&stop).await.unwrap_err();
        assert!(why.to_string().contains(told), "{why}");
        assert_eq!(schemas_left(&url, "broken").await, 0);
        // The others do not wait for one that will not come.
        assert!(member.wait(&stop).await.is_err());
        member.abandon().await;
    }

    /// What happened: whoever came late for a start began at once, and nobody heard of it.
    #[tokio::test(flavor = "multi_thread")]
    async fn who_is_late_says_so() {
        let Some(server) = gesta_rig::shared() else {
            return;
        };
        let mut alone = Meeting::join(&server.url(), "late", 1, SOON).await.unwrap();
        let Meeting::Table(table) = &mut alone else {
            unreachable!()
        };
        let now = table.database_ms().await.unwrap();
        table.begin_at(now - 10_000.0).await.unwrap();
        assert!(alone.late_ms() >= 10_000.0, "{}", alone.late_ms());
        alone.abandon().await;
    }

    #[test]
    fn a_name_is_plain() {
        assert_eq!(name("run_7").as_deref(), Ok("run_7"));
        for bad in ["", "Run", "a-b", "a\"b", "x".repeat(33).as_str()] {
            assert!(name(bad).unwrap_err().contains("is not a name of 1 to 32"));
        }
    }
}
