//! One connection: how it is made, set up, verified, driven and closed.
//!
//! Every session states what it relies on instead of trusting the server's defaults, and reads it back. What an
//! administrator has set on purpose is overruled only where the contract needs it (`session_settings`). Invariants: a
//! connection that is handed out speaks to a primary with a UTF-8 database of a known version, which holds the store
//! that this process has opened; that database has been compared with what this process knows (`history`); a connection
//! that appends is not read-only; a warning of the server is never lost (`notices`). Not here: which host is
//! asked (`reach`, `hosts`), which connection does what (`append`, `pool`, `signals`, `schema`).

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use gesta_core::backend::{BackendInfo, ClockReading};
use gesta_core::{Durability, Error, Incarnation, Result, Timestamp, uptime};
use tokio::sync::oneshot;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Notification, Row, Socket};

use crate::config::{Config, RequiredDurability};
use crate::connect::history::Ledger;
use crate::connect::history::lineage::Noted;
use crate::connect::hosts::{HostUse, Hosts, Timeline, Unfit};
use crate::connect::notices::Notices;
use crate::error;
use crate::received::{Inbox, Inlet, inbox};

const SET_SESSION: &str = include_str!("../../sql/set_session.sql");
const READ_SESSION: &str = include_str!("../../sql/read_session.sql");
const READ_SETTINGS: &str = include_str!("../../sql/read_settings.sql");
const READ_TIMELINE: &str = include_str!("../../sql/read_timeline.sql");

/// The oldest version of the server that is accepted: 14 brought lz4, and is the oldest version that is tested.
const VERSION_MIN: i32 = 140_000;
/// How long a connection may take to close in good order.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The most messages of `LISTEN` that wait on one connection.
const NOTIFICATIONS_MAX: usize = 1_024;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The connection appends.
    Writer,
    /// The connection reads.
    Reader,
    /// The connection carries messages between processes.
    Signals,
    /// The connection sends the beats of this node, which must not wait for anything.
    Beats,
    /// The connection changes leases.
    Leases,
    /// The connection changes the schema, audits or scavenges, which may take long.
    Admin,
}

/// Makes connections to one store; see `reach` for how.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) config: Config,
    pub(crate) hosts: Arc<Hosts>,
    /// What the backend tells about itself, once it is open, and the settings on which this is based.
    told: RwLock<Option<(Arc<BackendInfo>, Settings)>>,
    /// What every connection is compared with, once the store is open.
    pub(crate) ledger: OnceLock<Arc<Ledger>>,
    /// The database's clock as it was read last.
    clock: RwLock<Option<ClockReading>>,
    /// Whether the last session that looked was read-only.
    read_only: AtomicBool,
}

/// A verified connection. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Arc<Client>,
    pub(crate) session: Session,
    pub(crate) notices: Arc<Notices>,
    /// The generation of the connection. Its answers count as long as this is the present one; see `witness`.
    pub(crate) generation: u64,
    /// The messages of `LISTEN`.
    pub(crate) notifications: Inbox<Notification>,
    pub(crate) hosts: Arc<Hosts>,
    /// The use of the host, which ends when the host is given up.
    pub(crate) used: HostUse,
    /// Is dropped with the connection, which ends the driver.
    _open: oneshot::Sender<()>,
}

/// What the server told about a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Session {
    pub(crate) version: String,
    pub(crate) backend: i32,
    pub(crate) settings: Settings,
    /// The timeline of the server; `None` if the server does not tell it.
    pub(crate) timeline: Option<Timeline>,
    isolation: String,
    read_only: bool,
    in_recovery: bool,
    clock: Timestamp,
    limits: Limits,
}

/// The limits of a session. Those of time-outs are in milliseconds, those of keep-alive in seconds and in probes; 0 is
/// none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Limits {
    statement: i64,
    lock: i64,
    idle_in_transaction: i64,
    keepalives_idle: i64,
    keepalives_interval: i64,
    keepalives_count: i64,
    user_timeout: i64,
}

impl Session {
    /// Returns where the store is, as the server tells it.
    pub(crate) fn place(&self) -> Option<Noted> {
        Noted::on(self.timeline, &self.settings.standby_names)
    }
}

/// The settings that decide how durable an acknowledged append is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) fsync: bool,
    pub(crate) full_page_writes: bool,
    pub(crate) synchronous_commit: String,
    pub(crate) standby_names: String,
}

impl Connector {
    pub(crate) fn new(config: Config) -> Result<Self> {
        config.check()?;
        let hosts = Arc::new(Hosts::new(&config)?);
        Ok(Self {
            config,
            hosts,
            told: RwLock::default(),
            ledger: OnceLock::new(),
            clock: RwLock::default(),
            read_only: AtomicBool::new(false),
        })
    }

    /// Returns what the backend tells about itself, by the settings that were seen last.
    pub(crate) fn info(&self) -> Option<Arc<BackendInfo>> {
        let told = self.told.read().unwrap_or_else(PoisonError::into_inner);
        told.as_ref().map(|(info, _)| Arc::clone(info))
    }

    pub(crate) fn tell(&self, info: Arc<BackendInfo>, settings: &Settings) {
        let mut told = self.told.write().unwrap_or_else(PoisonError::into_inner);
        *told = Some((info, settings.clone()));
    }

    /// Returns the database's clock as it was read last.
    pub(crate) fn clock(&self) -> Option<ClockReading> {
        *self.clock.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the database's clock has shown. `asked` is the uptime at which it was asked, so that the clock is
    /// never taken for slower than it is.
    pub(crate) fn see_clock(&self, shown: Timestamp, asked: Duration) {
        let mut clock = self.clock.write().unwrap_or_else(PoisonError::into_inner);
        *clock = Some(ClockReading {
            uptime: asked,
            shown,
        });
    }

    /// Tells whether an administrator has made the database read-only, as far as is known.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    pub(crate) fn see_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    /// Takes over the settings of the server as they are now. `role` is that of the session that has found them.
    pub(crate) fn observe(&self, role: Role, found: &Settings) {
        let mut told = self.told.write().unwrap_or_else(PoisonError::into_inner);
        let Some((info, settings)) = told.as_mut() else {
            return;
        };
        let mut found = found.clone();
        if role == Role::Signals {
            // Sessions for messages choose their own setting; those that append use the one that was told.
            found
                .synchronous_commit
                .clone_from(&settings.synchronous_commit);
        }
        if found == *settings {
            return;
        }
        let durability = found.durability();
        let (level, detail) = (durability.name(), durability.detail());
        tracing::warn!(
            durability = level,
            settings = detail,
            "the database's settings have changed"
        );
        *settings = found;
        *info = Arc::new(BackendInfo {
            durability,
            ..BackendInfo::clone(info)
        });
    }

    /// Opens a connection to one host and verifies it.
    pub(crate) async fn open(
        &self,
        host: usize,
        role: Role,
    ) -> std::result::Result<Connection, Unfit> {
        let used = self.hosts.begin(host);
        let connected = self.hosts.get(host).driver.connect(self.hosts.tls.clone());
        let (client, driver) = connected.await.map_err(|error| connect_error(&error))?;
        let notices = Arc::new(Notices::new());
        let (open, closing) = oneshot::channel();
        let (inlet, notifications) = inbox(NOTIFICATIONS_MAX);
        let (drive_hosts, drive_notices) = (Arc::clone(&self.hosts), Arc::clone(&notices));
        tokio::spawn(async move {
            if drive(driver, closing, drive_notices, inlet).await == End::Lost {
                drive_hosts.disappointed(host);
            }
        });
        let (session, asked) = self.set_up(&client, role).await?;
        let generation = match self.ledger.get() {
            Some(ledger) => {
                let checked = ledger.check(&client, session.timeline, session.place());
                checked.await?
            }
            None => 0,
        };
        self.take_over(role, &session, asked)?;
        notices.forget();
        Ok(Connection {
            client: Arc::new(client),
            session,
            notices,
            generation,
            notifications,
            hosts: Arc::clone(&self.hosts),
            used,
            _open: open,
        })
    }

    /// Sets up a session. Returns it with the uptime at which its clock was asked. Nothing that the server says is
    /// taken over here: it may hold another store, or have been replaced.
    async fn set_up(
        &self,
        client: &Client,
        role: Role,
    ) -> std::result::Result<(Session, Duration), Unfit> {
        let found = read_session(client).await?;
        if found.in_recovery {
            return Err(Unfit::Standby);
        }
        let mut wanted = session_settings(role, &self.config, found.limits);
        if let Some(level) = raised_synchronous_commit(&found.settings.synchronous_commit, role) {
            wanted.push(("synchronous_commit", level.to_owned()));
        }
        let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
        let values: Vec<&str> = wanted.iter().map(|(_, value)| value.as_str()).collect();
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&names, Type::TEXT_ARRAY), (&values, Type::TEXT_ARRAY)];
        let set = client.query_typed(SET_SESSION, &params).await;
        set.map_err(|error| error::general(&error))?;
        let asked = uptime();
        let (session, timeline) = tokio::join!(read_session(client), read_timeline(client));
        let session = Session {
            timeline,
            ..session?
        };
        if session.isolation != "read committed" {
            let found = &session.isolation;
            let text = format!("the session must be read committed, found {found}");
            return Err(error::unfit(text).into());
        }
        Ok((session, asked))
    }

    /// Takes over what a server says whose store was compared.
    ///
    /// # Errors
    /// `Unavailable` if the database is read-only and the role is of no use then; `Unsupported` if its settings are
    /// weaker than the configuration accepts.
    fn take_over(&self, role: Role, session: &Session, asked: Duration) -> Result<()> {
        self.see_clock(session.clock, asked);
        self.see_read_only(session.read_only);
        if session.read_only && role.only_writes() {
            return Err(error::read_only());
        }
        if role == Role::Writer {
            self.observe(role, &session.settings);
            self.check_durability(&session.settings)?;
        }
        Ok(())
    }

    /// Returns the durability that the settings give.
    ///
    /// # Errors
    /// `Unsupported` if the settings are weaker than full and the configuration does not accept that.
    pub(crate) fn check_durability(&self, settings: &Settings) -> Result<Durability> {
        let durability = settings.durability();
        if let (Durability::Weakened(why), RequiredDurability::Full) =
            (&durability, self.config.durability)
        {
            let text = format!(
                "the database does not keep what it acknowledges: {why}; correct it, or accept it by durability=weakened in the store's URL"
            );
            return Err(error::unfit(text));
        }
        Ok(durability)
    }
}

impl Connection {
    /// Tells whether the connection must be discarded.
    pub(crate) fn is_lost(&self) -> bool {
        self.client.is_closed() || *self.notices.lost.borrow() || self.used.is_over()
    }
}

impl Settings {
    pub(crate) fn durability(&self) -> Durability {
        let mut weak = Vec::new();
        if !self.fsync {
            weak.push("fsync=off, a crash of the machine can lose or damage everything");
        }
        if !self.full_page_writes {
            weak.push("full_page_writes=off, a crash of the machine can damage pages");
        }
        if !matches!(self.synchronous_commit.as_str(), "on" | "remote_apply") {
            weak.push("synchronous_commit is not on, a crash can lose acknowledged appends");
        }
        if weak.is_empty() {
            let standbys = match self.standby_names.as_str() {
                "" => "no synchronous standby".to_owned(),
                names => format!("synchronous standbys {names}"),
            };
            let level = &self.synchronous_commit;
            Durability::Full(format!(
                "fsync=on, full_page_writes=on, synchronous_commit={level}, {standbys}"
            ))
        } else {
            Durability::Weakened(weak.join("; "))
        }
    }
}

/// Returns the level to which `synchronous_commit` is raised. A level weaker than `on` is raised; a stricter one stays.
/// Messages and beats need no durability at all.
fn raised_synchronous_commit(found: &str, role: Role) -> Option<&'static str> {
    match (role, found) {
        (Role::Signals | Role::Beats, _) => Some("off"),
        (_, "on" | "remote_apply") => None,
        _ => Some("on"),
    }
}

impl Role {
    /// Tells whether a connection of this role is of no use in a read-only database.
    fn only_writes(self) -> bool {
        matches!(self, Self::Writer | Self::Beats | Self::Leases)
    }
}

/// Returns the settings of a session. No wait is endless; plans are made once and use the indexes for which the
/// statements were written.
///
/// What an administrator has set for the server, the database or the user counts, unless the contract needs something
/// else: `default_transaction_read_only` is never touched, and of two limits the stricter one holds. Which settings are
/// overruled, and why, is told in docs/operating/postgresql.md.
fn session_settings(role: Role, config: &Config, found: Limits) -> Vec<(&'static str, String)> {
    let mut settings: Vec<(&'static str, String)> = [
        ("default_transaction_isolation", "read committed"),
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO"),
        ("jit", "off"),
    ]
    .into_iter()
    .map(|(name, value)| (name, value.to_owned()))
    .collect();
    if role != Role::Reader {
        // A reader that is ended is replaced; the others are idle while nobody appends, or while a command works.
        settings.push(("idle_session_timeout", "0".to_owned()));
    }
    settings.push((
        "search_path",
        format!("{}, pg_temp", config.quoted_schema()),
    ));
    let milliseconds = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    let (statement, lock, idle) = match role {
        // A statement gives up before its answer is given up, so a long wait has a known outcome.
        Role::Writer => (
            config.answer_timeout * 8 / 10,
            config.answer_timeout * 4 / 10,
            config.answer_timeout,
        ),
        Role::Reader | Role::Signals => (
            Duration::from_secs(30),
            Duration::from_secs(10),
            Duration::from_secs(30),
        ),
        // The caller gives up earlier, and the statement must have no effect long after that.
        Role::Beats | Role::Leases => (
            config.registry_timeout,
            config.registry_timeout / 2,
            config.registry_timeout,
        ),
        Role::Admin => (
            Duration::ZERO,
            Duration::from_secs(30),
            Duration::from_secs(600),
        ),
    };
    // What administers the store reads all of it, as pg_dump does, and sets the same limits aside.
    let (statement_found, idle_found) = match role {
        Role::Admin => (0, 0),
        _ => (found.statement, found.idle_in_transaction),
    };
    let limits = [
        (
            "statement_timeout",
            stricter(statement_found, milliseconds(statement)),
        ),
        ("lock_timeout", stricter(found.lock, milliseconds(lock))),
        (
            "idle_in_transaction_session_timeout",
            stricter(idle_found, milliseconds(idle)),
        ),
        ("tcp_keepalives_idle", stricter(found.keepalives_idle, 15)),
        (
            "tcp_keepalives_interval",
            stricter(found.keepalives_interval, 5),
        ),
        ("tcp_keepalives_count", stricter(found.keepalives_count, 3)),
        ("tcp_user_timeout", stricter(found.user_timeout, 20_000)),
    ];
    settings.extend(limits.map(|(name, limit)| (name, limit.to_string())));
    if !matches!(role, Role::Signals | Role::Admin) {
        for name in [
            "enable_seqscan",
            "enable_bitmapscan",
            "enable_hashjoin",
            "enable_mergejoin",
        ] {
            settings.push((name, "off".to_owned()));
        }
        settings.push(("plan_cache_mode", "force_generic_plan".to_owned()));
    }
    settings
}

/// Returns the stricter of two limits, of which 0 is none.
fn stricter(found: i64, ours: i64) -> i64 {
    match (found, ours) {
        (0, limit) | (limit, 0) => limit,
        (found, ours) => found.min(ours),
    }
}

pub(crate) async fn read_session(client: &Client) -> Result<Session> {
    let rows = client.query_typed(READ_SESSION, &[]).await;
    let rows = rows.map_err(|error| error::general(&error))?;
    let row = rows
        .first()
        .ok_or_else(|| Error::unavailable("no answer about the session"))?;
    check_session(row).map_err(|error| error::general(&error))?
}

/// Reads the timeline on which the server writes. Returns `None` if the server is a standby or does not tell it, like
/// some services.
pub(crate) async fn read_timeline(client: &Client) -> Option<Timeline> {
    let rows = client.query_typed(READ_TIMELINE, &[]).await;
    let row = rows.ok()?.into_iter().next()?;
    Some(Timeline {
        cluster: row.try_get("cluster").ok()?,
        number: row.try_get::<_, Option<i64>>("timeline").ok()??,
        started: row.try_get("started").ok()?,
    })
}

fn check_session(row: &Row) -> std::result::Result<Result<Session>, tokio_postgres::Error> {
    let unsupported = |text: String| Ok(Err(error::unfit(text)));
    let version: String = row.try_get("version")?;
    if row.try_get::<_, i32>("version_number")? < VERSION_MIN {
        return unsupported(format!("PostgreSQL 14 or newer is needed, found {version}"));
    }
    let encoding: &str = row.try_get("encoding")?;
    if encoding != "UTF8" {
        return unsupported(format!(
            "the database must have the encoding UTF8, found {encoding}: make one by CREATE DATABASE … ENCODING 'UTF8' \
             TEMPLATE template0, and name it in the URL"
        ));
    }
    Ok(Ok(Session {
        version,
        isolation: row.try_get("isolation")?,
        read_only: row.try_get::<_, &str>("read_only")? == "on",
        in_recovery: row.try_get("in_recovery")?,
        timeline: None,
        backend: row.try_get("backend")?,
        clock: Timestamp(row.try_get("clock")?),
        limits: limits_in(row)?,
        settings: settings_in(row)?,
    }))
}

fn limits_in(row: &Row) -> std::result::Result<Limits, tokio_postgres::Error> {
    // A relative of PostgreSQL may lack some of them.
    let found: Vec<Option<i64>> = row.try_get("limits")?;
    let limit = |place: usize| found.get(place).copied().flatten().unwrap_or(0);
    Ok(Limits {
        statement: limit(0),
        lock: limit(1),
        idle_in_transaction: limit(2),
        keepalives_idle: limit(3),
        keepalives_interval: limit(4),
        keepalives_count: limit(5),
        user_timeout: limit(6),
    })
}

fn settings_in(row: &Row) -> std::result::Result<Settings, tokio_postgres::Error> {
    let is_on = |name: &str| row.try_get::<_, &str>(name).map(|value| value == "on");
    Ok(Settings {
        fsync: is_on("fsync")?,
        full_page_writes: is_on("full_page_writes")?,
        synchronous_commit: row.try_get("synchronous_commit")?,
        standby_names: row.try_get("standby_names")?,
    })
}

/// What [`read_settings`] finds.
#[derive(Debug)]
pub(crate) struct FoundSettings {
    pub(crate) settings: Settings,
    pub(crate) read_only: bool,
    /// What the database's clock shows.
    pub(crate) clock: Timestamp,
    /// The incarnation that the database has, if there is a store in it.
    pub(crate) incarnation: Option<Incarnation>,
}

/// Reads the settings as they are now.
pub(crate) async fn read_settings(client: &Client) -> Result<FoundSettings> {
    let found = async {
        let rows = client.query_typed(READ_SETTINGS, &[]).await?;
        let found = rows.first().map(|row| {
            let incarnation: Option<uuid::Uuid> = row.try_get("incarnation")?;
            Ok(FoundSettings {
                settings: settings_in(row)?,
                read_only: row.try_get::<_, &str>("read_only")? == "on",
                clock: Timestamp(row.try_get("clock")?),
                incarnation: incarnation.map(Incarnation),
            })
        });
        found.transpose()
    };
    let found = found.await.map_err(|error| error::general(&error))?;
    found.ok_or_else(|| Error::unavailable("no answer about the settings"))
}

fn connect_error(error: &tokio_postgres::Error) -> Error {
    let text = error::text(error);
    if text.contains("password missing") {
        let text = "the server asks for a password, and there is none: neither in the store's URL, nor in PGPASSWORD, nor a line \
                    for this host, database and user in the password file (PGPASSFILE, or ~/.pgpass)";
        return error::unfit(text);
    }
    if text.contains("server does not support TLS") {
        let text = "the server speaks no TLS, and sslmode asks for it: set ssl = on at the server, or sslmode=prefer or \
                    disable where nobody listens on the way";
        return error::unfit(text);
    }
    if refuses_certificate(error) {
        return error::unfit(text);
    }
    match error.code().and_then(|code| code.code().get(..2)) {
        // With a wrong password or without such a database, waiting does not help.
        Some("28" | "3D" | "42") => error::unfit(text),
        _ => Error::unavailable(text),
    }
}

/// Tells whether a certificate was refused, which it will be again.
fn refuses_certificate(error: &tokio_postgres::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        // An error of input and output hides what it was made of from `source`.
        let inner = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
            .map(|inner| inner as &(dyn std::error::Error + 'static));
        let found = inner.unwrap_or(error).downcast_ref::<rustls::Error>();
        if matches!(found, Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Why a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Closed,
    Lost,
}

async fn drive<S>(
    mut driver: tokio_postgres::Connection<Socket, S>,
    mut closing: oneshot::Receiver<()>,
    notices: Arc<Notices>,
    notifications: Inlet<Notification>,
) -> End
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let run = async {
        loop {
            match poll_fn(|cx| driver.poll_message(cx)).await {
                Some(Ok(AsyncMessage::Notice(notice))) => notices.record(&notice),
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    notifications.put(notification);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(error = error::text(&error), "connection lost");
                    break;
                }
                None => break,
            }
        }
    };
    let closed = async {
        let _ = (&mut closing).await;
        tokio::time::sleep(CLOSE_TIMEOUT).await;
    };
    tokio::select! {
        () = run => {}
        () = closed => {}
    }
    notices.lost.send_replace(true);
    // The sender lives as long as the connection is wanted.
    match closing.try_recv() {
        Err(oneshot::error::TryRecvError::Empty) => End::Lost,
        _ => End::Closed,
    }
}

/// Tells whether sessions share backends: whether two sessions that are open at once, one of them in a transaction, do
/// not each have a backend of their own. One that does not answer for as long as `patience` while the other is in a
/// transaction waits for its backend.
pub(crate) async fn is_pooled_by_transaction(
    one: &Connection,
    other: &Connection,
    patience: Duration,
) -> Result<bool> {
    let general = |error| error::general(&error);
    match other.client.batch_execute("BEGIN").await {
        // PostgreSQL begins a transaction whatever happens; a pooler by statement ends the connection with such a code.
        Err(error) if error::is_of_protocol(&error) => return Ok(true),
        begun => begun.map_err(general)?,
    }
    let others = backend_of(other).await;
    let ones = tokio::time::timeout(patience, backend_of(one)).await;
    let ended = other.client.batch_execute("ROLLBACK").await;
    let Ok(ones) = ones else {
        return Ok(true);
    };
    ended.map_err(general)?;
    Ok(shares_backends(
        one.session.backend,
        ones?,
        other.session.backend,
        others?,
    ))
}

async fn backend_of(connection: &Connection) -> Result<i32> {
    read_session(&connection.client)
        .await
        .map(|session| session.backend)
}

/// Tells whether a session did not keep its backend, or both have the same.
fn shares_backends(one_before: i32, one_now: i32, other_before: i32, other_now: i32) -> bool {
    one_before != one_now || other_before != other_now || one_now == other_now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(fsync: bool, full_page_writes: bool, level: &str) -> Settings {
        Settings {
            fsync,
            full_page_writes,
            synchronous_commit: level.to_owned(),
            standby_names: String::new(),
        }
    }

    #[test]
    fn only_the_full_set_of_settings_is_full() {
        assert_eq!(settings(true, true, "on").durability().name(), "full");
        assert_eq!(
            settings(true, true, "remote_apply").durability().name(),
            "full"
        );
        for weak in [
            settings(false, true, "on"),
            settings(true, false, "on"),
            settings(true, true, "local"),
        ] {
            assert_eq!(weak.durability().name(), "weakened");
        }
    }

    #[test]
    fn synchronous_commit_is_raised_and_never_lowered() {
        for weak in ["off", "local", "remote_write"] {
            assert_eq!(raised_synchronous_commit(weak, Role::Writer), Some("on"));
        }
        for strict in ["on", "remote_apply"] {
            assert_eq!(raised_synchronous_commit(strict, Role::Writer), None);
        }
    }

    #[test]
    fn what_an_administrator_limits_counts_if_it_is_stricter() {
        let config = Config::parse("postgres://h/d?answer_timeout=10").expect("valid");
        let set = |role, found| -> std::collections::HashMap<&str, String> {
            session_settings(role, &config, found).into_iter().collect()
        };
        let ours = set(Role::Writer, Limits::default());
        assert_eq!(ours["statement_timeout"], "8000");
        assert_eq!(ours["tcp_user_timeout"], "20000");
        assert!(!ours.contains_key("default_transaction_read_only"));
        let found = Limits {
            statement: 500,
            lock: 60_000,
            idle_in_transaction: 1,
            keepalives_idle: 7_200,
            keepalives_interval: 1,
            keepalives_count: 2,
            user_timeout: 9,
        };
        let both = set(Role::Writer, found);
        assert_eq!(both["statement_timeout"], "500");
        assert_eq!(both["lock_timeout"], "4000");
        assert_eq!(both["idle_in_transaction_session_timeout"], "1");
        assert_eq!(both["tcp_keepalives_idle"], "15");
        assert_eq!(both["tcp_keepalives_interval"], "1");
        assert_eq!(both["tcp_keepalives_count"], "2");
        assert_eq!(both["tcp_user_timeout"], "9");
        assert!(!set(Role::Reader, found).contains_key("idle_session_timeout"));
        let admin = set(Role::Admin, found);
        assert_eq!(admin["statement_timeout"], "0", "as pg_dump");
        assert_eq!(admin["lock_timeout"], "30000");
    }

    #[test]
    fn sharing_of_backends_is_seen() {
        assert!(!shares_backends(1, 1, 2, 2));
        assert!(shares_backends(1, 3, 1, 1));
        assert!(shares_backends(1, 1, 1, 1));
        assert!(shares_backends(1, 2, 2, 1));
    }
}
