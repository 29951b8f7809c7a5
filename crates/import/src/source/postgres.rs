//! What all journals on PostgreSQL share: the connection, its tables, its errors.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use gesta_core::{Error, ErrorKind, Result};
use tokio_postgres::Client;

use crate::kind::Kind;
use crate::options::Options;

/// A connection to the database of a journal.
pub(super) struct Pg {
    pub(super) client: Client,
    pub(super) kind: Kind,
    database: String,
    server: Option<String>,
    timeline: Option<String>,
}

/// A table of a journal.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// The name with its schema, quoted.
    pub(super) name: String,
    pub(super) oid: u32,
    schema: String,
    /// The columns and their types.
    columns: BTreeMap<String, String>,
}

impl Table {
    /// Tells whether the table has this column.
    pub(super) fn has(&self, column: &str) -> bool {
        self.columns.contains_key(column)
    }

    /// Returns the type of a column.
    pub(super) fn type_of(&self, column: &str) -> &str {
        self.columns.get(column).map_or("", String::as_str)
    }

    /// Returns the first of these columns that the table has.
    pub(super) fn first_of<'a>(&self, columns: &[&'a str]) -> Option<&'a str> {
        columns.iter().copied().find(|column| self.has(column))
    }

    /// Returns the expression that gives a column as bytes: JSON as its text.
    pub(super) fn bytes_of(&self, alias: &str, column: &str) -> String {
        match self.type_of(column) {
            "" => "NULL::bytea".to_owned(),
            "bytea" => format!("{alias}.{column}"),
            _ => format!("convert_to({alias}.{column}::text, 'UTF8')"),
        }
    }
}

/// Puts a name in quotes.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns the expression that gives a moment as microseconds since 1970; NULL for one that is not finite.
pub(super) fn micros(expression: &str) -> String {
    format!(
        "CASE WHEN isfinite({expression}) THEN (extract(epoch FROM {expression}) * 1000000)::int8 END"
    )
}

/// Returns the expression that gives milliseconds since 1970 as microseconds; NULL for what is no such time.
pub(super) fn micros_of_millis(expression: &str) -> String {
    format!(
        "CASE WHEN {expression} BETWEEN -9000000000000000 AND 9000000000000000 THEN ({expression} * 1000)::int8 END"
    )
}

impl Pg {
    /// Connects to the database.
    pub(super) async fn connect(options: &Options) -> Result<Self> {
        let client = connect(&options.url).await?;
        let mut pg = Self {
            client,
            kind: options.kind,
            database: String::new(),
            server: None,
            timeline: None,
        };
        let database = pg
            .client
            .query_one("SELECT current_database()::text", &[])
            .await;
        pg.database = database.map_err(|error| failed(&error))?.get(0);
        // Not every user of every server may know it.
        let sql = "SELECT (SELECT system_identifier FROM pg_control_system())::text || ' ' || d.oid::text \
                   FROM pg_database d WHERE d.datname = current_database()";
        let server = pg.client.query_one(sql, &[]).await;
        pg.server = server.ok().and_then(|row| row.try_get(0).ok());
        let sql = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
        let timeline = pg.client.query_one(sql, &[]).await;
        pg.timeline = timeline.ok().and_then(|row| row.try_get(0).ok());
        Ok(pg)
    }

    /// Returns which table of which database this is.
    pub(super) fn identity(&self, table: &Table) -> String {
        format!("{} {}", self.database, table.name)
    }

    /// Returns which database of which server this is, whatever it is called; `None` if this user may not know it.
    pub(super) fn server(&self) -> Option<String> {
        self.server.clone()
    }

    /// Returns the timeline of the server, which changes with every fail-over and every restore to a moment; `None` if
    /// it does not tell.
    pub(super) fn timeline(&self) -> Option<&str> {
        self.timeline.as_deref()
    }

    /// Finds the table of the events: the one that the options name, or else the first of these, each with the schema
    /// where it usually is.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none, or columns are missing.
    pub(super) async fn events(
        &self,
        options: &Options,
        usual: &[(Option<&str>, &str)],
        columns: &[&str],
    ) -> Result<Table> {
        let schema = options.schema.as_deref();
        let mut found = None;
        match &options.table {
            Some(name) => found = self.table(schema, name).await?,
            None => {
                for (usual_schema, name) in usual {
                    if found.is_none() {
                        found = self.table(schema.or(*usual_schema), name).await?;
                    }
                }
            }
        }
        let Some(table) = found else {
            return Err(self.no_table(options, usual).await?);
        };
        self.may_read(&table).await?;
        self.refuse_replica(&table).await?;
        let missing: Vec<&str> = columns
            .iter()
            .copied()
            .filter(|column| !table.has(column))
            .collect();
        if !missing.is_empty() {
            return Err(Error::invalid(
                "source",
                format!(
                    "must be a journal of {}: the table {} has no column {}",
                    self.kind,
                    table.name,
                    missing.join(", ")
                ),
            ));
        }
        Ok(table)
    }

    /// Refuses a table that is there, but that this role may not read.
    async fn may_read(&self, table: &Table) -> Result<()> {
        let sql = "SELECT quote_ident(current_user), has_schema_privilege(c.relnamespace, 'USAGE') \
                   AND has_any_column_privilege(c.oid, 'SELECT') FROM pg_class c WHERE c.oid = $1";
        let row = self.client.query_one(sql, &[&table.oid]).await;
        let row = row.map_err(|error| failed(&error))?;
        let (role, may_read): (String, bool) = (row.get(0), row.get(1));
        if may_read {
            return Ok(());
        }
        let (name, schema) = (&table.name, quoted(&table.schema));
        Err(ErrorKind::Unsupported(format!(
            "the source: the role {role} may not read the table {name}: GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT \
             ON ALL TABLES IN SCHEMA {schema} TO {role}"
        ))
        .into())
    }

    /// Refuses a table that gets its rows by logical replication: they come in the order in which they were committed
    /// elsewhere, so that one with a smaller number can come later, and no lock here tells.
    async fn refuse_replica(&self, table: &Table) -> Result<()> {
        let sql = "SELECT EXISTS (SELECT 1 FROM pg_subscription_rel r WHERE r.srrelid = $1 \
                   OR r.srrelid IN (SELECT p.relid FROM pg_partition_tree($1::oid::regclass) p))";
        let row = self.client.query_one(sql, &[&table.oid]).await;
        match row.map_err(|error| failed(&error))?.get(0) {
            false => Ok(()),
            true => Err(Error::invalid(
                "source",
                format!(
                    "must be the database that writes the journal: the table {} is a logical replica of another one, where \
                     rows can appear before those that are there; read the other one, or drop the subscription",
                    table.name
                ),
            )),
        }
    }

    async fn no_table(&self, options: &Options, usual: &[(Option<&str>, &str)]) -> Result<Error> {
        let wanted = match &options.table {
            Some(name) => name.clone(),
            None => super::either(&usual.iter().map(|(_, name)| *name).collect::<Vec<_>>()),
        };
        let sql = "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition \
                   AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2 LIMIT 12";
        let rows = self
            .client
            .query(sql, &[])
            .await
            .map_err(|error| failed(&error))?;
        let mut there = String::new();
        for row in &rows {
            let (schema, name): (String, String) = (row.get(0), row.get(1));
            let _ = write!(
                there,
                "{}{schema}.{name}",
                if there.is_empty() { "" } else { ", " }
            );
        }
        if there.is_empty() {
            there = "none".into();
        }
        let place = match &options.schema {
            Some(schema) => format!("schema {schema:?} of database {:?}", self.database),
            None => format!("database {:?}", self.database),
        };
        Ok(Error::invalid(
            "source",
            format!(
                "must be a journal of {}: {place} has no table {wanted} that this user sees (tables there: {there}); \
                 --schema and --table name another one",
                self.kind
            ),
        ))
    }

    /// Looks for a table; `None` if there is none.
    pub(super) async fn table(&self, schema: Option<&str>, name: &str) -> Result<Option<Table>> {
        let sql = "SELECT c.oid, n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE c.relname = $1 AND c.relkind IN ('r', 'p', 'v', 'f') \
                   AND (n.nspname = $2 OR ($2::text IS NULL AND pg_table_is_visible(c.oid)))";
        let row = self.client.query_opt(sql, &[&name, &schema]).await;
        let Some(row) = row.map_err(|error| failed(&error))? else {
            return Ok(None);
        };
        let (oid, schema): (u32, String) = (row.get(0), row.get(1));
        let sql = "SELECT a.attname::text, t.typname::text FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
                   WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped";
        let rows = self
            .client
            .query(sql, &[&oid])
            .await
            .map_err(|error| failed(&error))?;
        let columns = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        Ok(Some(Table {
            name: format!("{}.{}", quoted(&schema), quoted(name)),
            oid,
            schema,
            columns,
        }))
    }

    /// Looks for a table in the schema of another one.
    pub(super) async fn beside(&self, table: &Table, name: &str) -> Result<Option<Table>> {
        self.table(Some(&table.schema), name).await
    }

    /// Returns the first value of the first row.
    pub(super) async fn number(&self, sql: &str) -> Result<i64> {
        let row = self
            .client
            .query_one(sql, &[])
            .await
            .map_err(|error| failed(&error))?;
        let number: Option<i64> = row.try_get(0).map_err(|error| failed(&error))?;
        Ok(number.unwrap_or(0))
    }

    /// Counts rows.
    pub(super) async fn count(&self, sql: &str) -> Result<Option<u64>> {
        Ok(u64::try_from(self.number(sql).await?).ok())
    }

    /// Refuses a standby for what needs to see the transactions of the primary.
    pub(super) async fn refuse_standby(&self) -> Result<()> {
        let row = self
            .client
            .query_one("SELECT pg_is_in_recovery()", &[])
            .await;
        let is_standby: bool = row.map_err(|error| failed(&error))?.get(0);
        // Nor does it show which numbers are given out: a sequence runs ahead in what a standby is sent.
        if is_standby {
            return Err(Error::invalid(
                "source",
                "must be the primary: a standby does not show which transactions still write",
            ));
        }
        Ok(())
    }
}

/// The longest wait for a host to let us in.
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// Connects to the first host of a URL that lets us in and is a primary; if there is none, to a standby.
async fn connect(url: &str) -> Result<Client> {
    let (hosts, tls) = gesta_postgres::connections(&gesta_postgres::Config::parse(url)?)?;
    let mut last = Error::invalid("source", "must name a host");
    let mut standby = None;
    for host in hosts {
        match tokio::time::timeout(CONNECT_MAX, host.connect(tls.clone())).await {
            Ok(Ok((client, connection))) => {
                // What breaks the connection shows in the calls.
                tokio::spawn(async move { drop(connection.await) });
                let asked = client.query_one("SELECT pg_is_in_recovery()", &[]).await;
                match asked.map(|row| row.get(0)) {
                    Ok(false) => return Ok(client),
                    Ok(true) => standby = Some(client),
                    Err(error) => last = failed(&error),
                }
            }
            Ok(Err(error)) if error.to_string().contains("password missing") => {
                let text = "the source asks for a password, and there is none: neither in the URL, nor in PGPASSWORD, \
                            nor in the password file (PGPASSFILE, or ~/.pgpass)";
                last = ErrorKind::Unsupported(text.into()).into();
            }
            Ok(Err(error)) if error.as_db_error().is_none() => {
                let (named, why) = (named(&host), with_causes(&error));
                last = Error::unavailable(format!("the source: {named}: {why}"));
            }
            Ok(Err(error)) => last = failed(&error),
            Err(_) => {
                let named = named(&host);
                let text = format!("the source: {named}: no answer within {CONNECT_MAX:?}");
                last = Error::unavailable(text);
            }
        }
    }
    standby.ok_or(last)
}

/// Returns host and port of a server, for messages.
fn named(host: &tokio_postgres::Config) -> String {
    use tokio_postgres::config::Host;
    let name = match (host.get_hosts().first(), host.get_hostaddrs().first()) {
        (Some(Host::Tcp(name)), _) => name.clone(),
        #[cfg(unix)]
        (Some(Host::Unix(path)), _) => path.display().to_string(),
        (None, Some(address)) => address.to_string(),
        (None, None) => "the server".to_owned(),
    };
    let port = host.get_ports().first().copied().unwrap_or(5432);
    format!("{name}:{port}")
}

/// Returns an error with everything that has caused it, each once.
fn with_causes(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            let _ = write!(text, ": {more}");
        }
        cause = error.source();
    }
    text
}

/// Makes an error of one of the source's database.
pub(super) fn failed(error: &tokio_postgres::Error) -> Error {
    let text = match error.as_db_error() {
        Some(db) => format!("the source: {}", db.message()),
        None => format!("the source: {}", with_causes(error)),
    };
    let class = error.code().and_then(|code| code.code().get(..2));
    match class {
        // Connection, resources, operator's intervention, conflicts.
        None | Some("08" | "53" | "57" | "40" | "55") => Error::unavailable(text),
        Some(_) => ErrorKind::Unsupported(text).into(),
    }
}
