//! What a PostgreSQL counts of itself while something is measured: statements and their time, transactions, log and
//! blocks.
//!
//! The same for a database at hand and for one far away, whose processors nobody here can see. Statements are those of
//! `pg_stat_statements`, where that extension is installed in the database; where it is not, that is said, and only
//! transactions, log and blocks are known. What others do in the database meanwhile is counted too; the looks of the
//! lab itself are not.
//! Not here: processor time (`host`, `reservation`), and settings (`postgres`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gesta_report::failure::{Context, Result};
use gesta_report::{Report, Table, Unit};
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use crate::machine::postgres;

/// How long a backend may keep its counters to itself (`PGSTAT_IDLE_INTERVAL`), and a bit.
const COUNTERS_LATE: Duration = Duration::from_millis(11_000);
/// Statements that are told of a stretch, those that took the most time.
const DEAREST: usize = 5;
/// Letters of a statement that are told.
const LETTERS: usize = 120;

/// What a database did in a stretch of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatabaseFigures {
    /// Length of the stretch.
    pub seconds: f64,
    /// Transactions that ended; of the last second some are missing.
    pub transactions: u64,
    /// Time that sessions spent executing, as the sessions tell of it.
    pub active_ms: f64,
    /// Blocks that were not in the database's own cache.
    pub blocks_read: u64,
    /// Write-ahead log of the whole server; none where the server does not say.
    pub log_bytes: Option<u64>,
    /// Statements, where they are counted.
    pub statements: Option<Statements>,
}

/// The statements of a stretch of time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Statements {
    /// Executed, `BEGIN` and `COMMIT` too.
    pub calls: u64,
    /// Time spent executing them.
    pub executing_ms: f64,
    /// Those among them that insert events or tell of them.
    pub appends: u64,
    /// Those that read events.
    pub reads: u64,
    /// Those that took the most time.
    pub dearest: Vec<Dearest>,
}

/// A statement that took much of the time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dearest {
    /// Its beginning, with `$1` for each value.
    pub text: String,
    /// How often it was executed.
    pub calls: u64,
    /// Time spent executing it.
    pub executing_ms: f64,
}

/// What a database did, as `tags` compares it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spent {
    /// Statements executed (or transactions, where statements are not counted).
    pub queries: u64,
    /// Those among them that insert events or tell of them; none where statements are not counted.
    pub appends: Option<u64>,
    /// Time spent executing them.
    pub database_ms: f64,
}

impl From<&DatabaseFigures> for Spent {
    fn from(figures: &DatabaseFigures) -> Self {
        match &figures.statements {
            Some(statements) => Self {
                queries: statements.calls,
                appends: Some(statements.appends),
                database_ms: statements.executing_ms,
            },
            None => Self {
                queries: figures.transactions,
                appends: None,
                database_ms: figures.active_ms,
            },
        }
    }
}

/// Counts what a database does.
pub struct Watch {
    client: Client,
    /// The view of statements, with its schema; none where statements are not counted.
    statements: Option<String>,
}

/// The counters at a moment.
#[derive(Debug, Clone)]
pub struct Look {
    at: Instant,
    transactions: i64,
    active_ms: f64,
    blocks_read: i64,
    log_bytes: Option<i64>,
    statements: Option<HashMap<i64, Counted>>,
}

/// One statement, since it was first seen.
#[derive(Debug, Clone, Copy)]
struct Counted {
    calls: i64,
    executing_ms: f64,
    is_append: bool,
    is_read: bool,
}

impl Watch {
    /// Watches the database of this URL.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn start(url: &str) -> Result<Self> {
        let client = postgres::connect(url).await?;
        let home = "SELECT quote_ident(n.nspname) || '.pg_stat_statements' FROM pg_extension e
                    JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'pg_stat_statements'";
        let view = client.query_opt(home, &[]).await.context("extensions")?;
        let mut watch = Self {
            client,
            statements: view.map(|row| row.get(0)),
        };
        // Fails if the library is not loaded at server start, or the role may not read it.
        if watch.statements().await.is_err() {
            watch.statements = None;
        }
        Ok(watch)
    }

    /// True if statements are counted.
    pub fn counts_statements(&self) -> bool {
        self.statements.is_some()
    }

    /// How it counts, as a sentence.
    pub fn method(&self) -> &'static str {
        match self.statements {
            Some(_) => {
                "Statements are counted by pg_stat_statements, BEGIN and COMMIT too; what others do in the database \
                 meanwhile is counted as well."
            }
            None => {
                "pg_stat_statements is not installed in this database, or this role may not read it: so statements are \
                 not counted, and transactions (pg_stat_database, some of them late) are rough figures."
            }
        }
    }

    /// The counters now.
    pub async fn look(&self) -> Result<Look> {
        // The comments keep these looks out of what they count.
        let sql =
            "SELECT xact_commit + xact_rollback, active_time, blks_read /* pg_stat_statements */
                   FROM pg_stat_database WHERE datname = current_database()";
        let row = self.client.query_one(sql, &[]).await;
        let row = row.context("counting transactions")?;
        let log = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8 /* pg_stat_statements */";
        let log = self.client.query_one(log, &[]).await.ok();
        Ok(Look {
            statements: self.statements().await?,
            at: Instant::now(),
            transactions: row.get(0),
            active_ms: row.get(1),
            blocks_read: row.get(2),
            log_bytes: log.map(|row| row.get(0)),
        })
    }

    /// The counters once every session has told of its own; takes a while where statements are not counted.
    pub async fn look_settled(&self) -> Result<Look> {
        if self.statements.is_none() {
            tokio::time::sleep(COUNTERS_LATE).await;
        }
        self.look().await
    }

    /// What the database did since an earlier look, with its dearest statements.
    pub async fn since(&self, before: &Look) -> Result<DatabaseFigures> {
        let now = self.look().await?;
        let mut figures = now.since(before);
        if let (Some(view), Some(statements)) = (&self.statements, &mut figures.statements) {
            let dearest = now.dearest(before);
            let ids: Vec<i64> = dearest.iter().map(|(id, _)| *id).collect();
            let sql = format!(
                "SELECT coalesce(queryid, 0), min(query) FROM {view} WHERE coalesce(queryid, 0) = ANY($1) GROUP BY 1"
            );
            let rows = self.client.query(&sql, &[&ids]).await?;
            let texts: HashMap<i64, String> =
                rows.iter().map(|row| (row.get(0), row.get(1))).collect();
            statements.dearest = dearest
                .into_iter()
                .map(|(id, one)| Dearest {
                    text: texts.get(&id).map_or(String::new(), |text| shortened(text)),
                    ..one
                })
                .collect();
        }
        Ok(figures)
    }

    async fn statements(&self) -> Result<Option<HashMap<i64, Counted>>> {
        let Some(view) = &self.statements else {
            return Ok(None);
        };
        let sql = format!(
            "SELECT coalesce(queryid, 0), sum(calls)::int8, sum(total_exec_time)::float8,
                    bool_or(query ~ 'INSERT INTO (events|journal)|pg_notify'), bool_or(query ~ 'FROM events')
             FROM {view}
             WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND query NOT LIKE '%pg_stat_statements%'
             GROUP BY 1"
        );
        let rows = self.client.query(&sql, &[]).await;
        let counted = rows.context("counting statements")?.into_iter().map(|row| {
            let counted = Counted {
                calls: row.get(1),
                executing_ms: row.get(2),
                is_append: row.get(3),
                is_read: row.get(4),
            };
            (row.get(0), counted)
        });
        Ok(Some(counted.collect()))
    }
}

impl Look {
    /// What happened since an earlier look; the dearest statements are not named.
    pub fn since(&self, before: &Look) -> DatabaseFigures {
        let statements = self.grown(before).map(|grown| {
            let mut sum = Statements::default();
            for (_, calls, executing_ms, kind) in grown {
                sum.calls += calls;
                sum.executing_ms += executing_ms;
                sum.appends += if kind.is_append { calls } else { 0 };
                sum.reads += if kind.is_read { calls } else { 0 };
            }
            sum
        });
        DatabaseFigures {
            seconds: self.at.saturating_duration_since(before.at).as_secs_f64(),
            transactions: more(self.transactions, before.transactions),
            active_ms: (self.active_ms - before.active_ms).max(0.0),
            blocks_read: more(self.blocks_read, before.blocks_read),
            log_bytes: self
                .log_bytes
                .zip(before.log_bytes)
                .map(|(now, then)| more(now, then)),
            statements,
        }
    }

    /// Each statement that was executed since: its id, how often, for how long, and its counters now. None if
    /// statements are not counted.
    fn grown(&self, before: &Look) -> Option<impl Iterator<Item = (i64, u64, f64, Counted)>> {
        let (now, then) = (self.statements.as_ref()?, before.statements.as_ref()?);
        let grown = now.iter().map(|(id, now)| {
            // A statement that was forgotten meanwhile, or whose counters were reset, begins anew.
            let then = then.get(id).filter(|then| then.calls <= now.calls);
            let (calls, executing_ms) =
                then.map_or((0, 0.0), |then| (then.calls, then.executing_ms));
            (
                *id,
                more(now.calls, calls),
                (now.executing_ms - executing_ms).max(0.0),
                *now,
            )
        });
        Some(grown.filter(|(_, calls, ..)| *calls > 0))
    }

    /// The statements that took the most time since, without their texts.
    fn dearest(&self, before: &Look) -> Vec<(i64, Dearest)> {
        let grown = self.grown(before).into_iter().flatten();
        let mut all: Vec<(i64, Dearest)> = grown
            .map(|(id, calls, executing_ms, _)| {
                let text = String::new();
                (
                    id,
                    Dearest {
                        text,
                        calls,
                        executing_ms,
                    },
                )
            })
            .collect();
        all.sort_by(|(a, x), (b, y)| y.executing_ms.total_cmp(&x.executing_ms).then(a.cmp(b)));
        all.truncate(DEAREST);
        all
    }
}

/// How much a counter has grown; nothing if it was reset.
fn more(now: i64, then: i64) -> u64 {
    u64::try_from(now.saturating_sub(then)).unwrap_or(0)
}

/// A statement on one line without comments and without the values in it, which may be a password: the extension leaves
/// them in statements such as `CREATE ROLE`. Cut at its end.
fn shortened(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default());
    let lines = lines.collect::<Vec<_>>().join(" ");
    let text = lines.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = without_values(&text);
    match text.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A statement with `'…'` for each text in it, and cut where a text between dollars begins.
fn without_values(text: &str) -> String {
    let is_digit = |after: &str| after.starts_with(|c: char| c.is_ascii_digit());
    let mut dollars = text.match_indices('$');
    let dollar = dollars.find(|(at, _)| !is_digit(&text[at + 1..]));
    let (text, rest) = match dollar {
        Some((at, _)) => (&text[..at], "$…"),
        None => (text, ""),
    };
    // Every second piece is within quotes; a doubled quote is two of them.
    let pieces = text.split('\'').enumerate();
    let shown = pieces.map(|(at, piece)| if at % 2 == 0 { piece } else { "'…'" });
    shown.collect::<String>() + rest
}

/// A measured stretch: its name, how many things were done a second, and what the database did.
pub struct Stretch<'a> {
    /// What the stretch is called.
    pub name: String,
    /// What was done in it, a second.
    pub done_per_second: f64,
    /// What the database counted.
    pub figures: &'a DatabaseFigures,
}

/// Tells what the database did in some stretches, by each of the things that were done (`event`, `request`), and how
/// that was counted.
pub fn tell(report: &mut Report, one: &str, stretches: &[Stretch<'_>], method: &str) {
    if stretches.is_empty() {
        return;
    }
    let per_second = |stretch: &Stretch<'_>, count: f64| count / stretch.figures.seconds.max(0.001);
    let each = |stretch: &Stretch<'_>, count: f64| {
        let done = stretch.done_per_second;
        (done > 0.0).then(|| per_second(stretch, count) / done)
    };
    let statements = |stretch: &Stretch<'_>| stretch.figures.statements.clone();
    let calls = |stretch: &Stretch<'_>| statements(stretch).map(|all| all.calls as f64);
    let executing = |stretch: &Stretch<'_>| statements(stretch).map(|all| all.executing_ms);
    let table = Table::of("What the database did", stretches)
        .column("in", Unit::Words, |stretch| &stretch.name)
        .column("transactions/s", Unit::Count, |stretch| {
            per_second(stretch, stretch.figures.transactions as f64)
        })
        .column("statements/s", Unit::Count, |stretch| {
            calls(stretch).map(|calls| per_second(stretch, calls))
        })
        .column(&format!("statements per {one}"), Unit::Count, |stretch| {
            each(stretch, calls(stretch)?)
        })
        .column("executing at once", Unit::Count, |stretch| {
            executing(stretch).map(|ms| per_second(stretch, ms / 1_000.0))
        })
        .column(&format!("executing per {one}"), Unit::Millis, |stretch| {
            each(stretch, executing(stretch)?)
        })
        .column(&format!("log written per {one}"), Unit::Bytes, |stretch| {
            each(stretch, stretch.figures.log_bytes? as f64)
        })
        .column("blocks read/s", Unit::Count, |stretch| {
            per_second(stretch, stretch.figures.blocks_read as f64)
        });
    report.table(table.table());
    let mut dearest = Vec::new();
    for stretch in stretches {
        for statement in statements(stretch).into_iter().flat_map(|all| all.dearest) {
            dearest.push((stretch, statement));
        }
    }
    let table = Table::of("The statements that took the most of its time", &dearest)
        .column("in", Unit::Words, |(stretch, _)| &stretch.name)
        .column("statement", Unit::Words, |(_, one)| &one.text)
        .column("calls/s", Unit::Count, |(stretch, one)| {
            per_second(stretch, one.calls as f64)
        })
        .column("each", Unit::Millis, |(_, one)| {
            one.executing_ms / (one.calls.max(1) as f64)
        })
        .column("of all time", Unit::Share, |(stretch, one)| {
            executing(stretch)
                .filter(|all| *all > 0.0)
                .map(|all| one.executing_ms / all)
        });
    report.table(table.table().folded());
    report.text(method);
}

/// Watches the database of a URL, if it is a PostgreSQL.
///
/// # Errors
/// It cannot be reached.
pub async fn watch(url: &str) -> Result<Option<Watch>> {
    let endpoint = gesta_report::endpoint::Endpoint::parse(url);
    match endpoint.is_some_and(|endpoint| endpoint.is_postgres()) {
        true => Watch::start(url).await.map(Some),
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(statements: Option<&[(i64, i64, f64, bool)]>, counters: [i64; 3]) -> Look {
        let statements = statements.map(|all| {
            let all = all.iter().map(|&(id, calls, executing_ms, is_append)| {
                let counted = Counted {
                    calls,
                    executing_ms,
                    is_append,
                    is_read: !is_append,
                };
                (id, counted)
            });
            all.collect()
        });
        Look {
            at: Instant::now(),
            transactions: counters[0],
            active_ms: 5.0,
            blocks_read: counters[1],
            log_bytes: Some(counters[2]),
            statements,
        }
    }

    #[test]
    fn what_happened_is_the_difference_of_two_looks() {
        let before = look(
            Some(&[(1, 10, 5.0, true), (2, 7, 1.0, false), (3, 900, 9.0, false)]),
            [100, 5, 1_000],
        );
        // The third was forgotten meanwhile and began anew; the second was not executed; the fourth is new.
        let after = [
            (1, 30, 25.0, true),
            (2, 7, 1.0, false),
            (3, 4, 2.0, false),
            (4, 1, 50.0, true),
        ];
        let after = look(Some(&after), [150, 5, 9_000]);
        let figures = after.since(&before);
        assert_eq!((figures.transactions, figures.blocks_read), (50, 0));
        assert_eq!(figures.log_bytes, Some(8_000));
        let statements = figures.statements.clone().unwrap();
        assert_eq!(
            (statements.calls, statements.appends, statements.reads),
            (25, 21, 4)
        );
        assert!(
            (statements.executing_ms - 72.0).abs() < 1e-9,
            "{statements:?}"
        );
        let dearest: Vec<i64> = after.dearest(&before).iter().map(|(id, _)| *id).collect();
        assert_eq!(dearest, [4, 1, 3]);
        assert_eq!(Spent::from(&figures).queries, 25);
        // Counters that were reset count nothing.
        assert_eq!(before.since(&after).transactions, 0);
        let uncounted = look(None, [150, 5, 9_000]).since(&look(None, [100, 5, 1_000]));
        assert_eq!(
            (
                uncounted.statements.is_none(),
                Spent::from(&uncounted).queries
            ),
            (true, 50)
        );
    }

    #[test]
    fn what_the_database_did_is_told_by_what_was_done() {
        let dearest = Dearest {
            text: "INSERT INTO events".into(),
            calls: 100,
            executing_ms: 300.0,
        };
        let figures = DatabaseFigures {
            seconds: 2.0,
            transactions: 200,
            log_bytes: Some(400_000),
            statements: Some(Statements {
                calls: 400,
                executing_ms: 400.0,
                appends: 100,
                reads: 0,
                dearest: vec![dearest],
            }),
            ..DatabaseFigures::default()
        };
        let mut report = Report::begin("test", "Test", 7);
        let stretch = Stretch {
            name: "x".into(),
            done_per_second: 1_000.0,
            figures: &figures,
        };
        tell(&mut report, "event", &[stretch], "Counted so.");
        let row = |table: usize| report.tables().nth(table).unwrap().rows[0].cells.clone();
        let numbers = |table| {
            row(table)
                .iter()
                .map(gesta_report::Cell::number)
                .collect::<Vec<_>>()
        };
        // 200 ms of work a second; 0.2 statements, 0.2 ms and 200 bytes for each event.
        let wanted = [
            None,
            Some(100.0),
            Some(200.0),
            Some(0.2),
            Some(0.2),
            Some(0.2),
            Some(200.0),
            Some(0.0),
        ];
        assert_eq!(numbers(0), wanted);
        assert_eq!(numbers(1), [None, None, Some(50.0), Some(3.0), Some(0.75)]);
        assert!(report.to_string().contains("Counted so."));
        tell(&mut report, "event", &[], "Nothing.");
        assert!(!report.to_string().contains("Nothing."));
    }

    #[test]
    fn a_statement_is_told_on_one_line() {
        assert_eq!(
            shortened("-- Says\nSELECT a, -- b\n   c\nFROM t"),
            "SELECT a, c FROM t"
        );
        for (text, wanted) in [
            (
                "CREATE ROLE a PASSWORD 'sec''ret' LOGIN",
                "CREATE ROLE a PASSWORD '…''…' LOGIN",
            ),
            ("ALTER ROLE a PASSWORD 'secret", "ALTER ROLE a PASSWORD '…'"),
            ("DO $x$ secret $x$", "DO $…"),
            ("SELECT $1, $22 FROM t", "SELECT $1, $22 FROM t"),
        ] {
            assert_eq!(shortened(text), wanted);
        }
        let long = shortened(&"ö".repeat(200));
        assert_eq!(long.chars().count(), LETTERS + 1);
    }

    /// Goal: where statements are counted, those of others are and the looks are not; where they are not, that is said.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_is_watched_with_the_extension_and_without() {
        if gesta_rig::shared().is_none() {
            return;
        }
        let server = crate::machine::store::new_server().unwrap();
        let watch = watch(&server.url()).await.unwrap().unwrap();
        let client = postgres::connect(&server.url()).await.unwrap();
        let before = watch.look().await.unwrap();
        for _ in 0..20 {
            client
                .query("SELECT 1 AS watched_by_the_lab", &[])
                .await
                .unwrap();
        }
        let figures = watch.since(&before).await.unwrap();
        if let Some(statements) = figures.statements {
            assert_eq!(statements.calls, 20, "{statements:?}");
            assert_eq!(
                statements.dearest[0].text,
                "SELECT $1 AS watched_by_the_lab"
            );
            assert!(
                watch
                    .method()
                    .starts_with("Statements are counted by pg_stat_statements")
            );
        }
        let bare = server.create_database("bare").unwrap();
        let bare = Watch::start(&bare).await.unwrap();
        let before = bare.look().await.unwrap();
        assert!(bare.since(&before).await.unwrap().statements.is_none());
        assert!(bare.method().contains("is not installed in this database"));
    }

    #[tokio::test]
    async fn only_a_postgresql_is_watched() {
        for url in ["memory:", "sqlite:lab.db", "http://127.0.0.1:1"] {
            assert!(watch(url).await.unwrap().is_none());
        }
    }
}
