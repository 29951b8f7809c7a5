//! The URL of a store: its options, and what they mean.
//!
//! `postgres://user:password@host:port/database?option=value&…`. Options of Gesta are taken out, those of the
//! connection go to the driver, and any other option is refused with the list of known ones.
//! Invariant: no error and no `Debug` text of this module holds any part of a password.

mod list;
pub(crate) mod password;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use gesta_core::{Error, Result};
use percent_encoding::percent_decode_str;
use tokio_postgres::config::{Host, SslMode};

use crate::compression::Compression;
use crate::config::password::Passwords;
use crate::tls::TlsMode;

/// The options of Gesta itself, with what they mean.
const OWN_OPTIONS: &[(&str, &str)] = &[
    ("schema", "name of the PostgreSQL schema, default gesta"),
    ("durability", "full (default) or weakened"),
    (
        "compression",
        "what of large events this process compresses: binary (default), all but JSON, so that SQL can read that; \
         client, all; database, nothing",
    ),
    (
        "sslmode",
        "disable, prefer (default), require, verify-ca, verify-full",
    ),
    (
        "sslrootcert",
        "PEM file with the trusted certificates, or system",
    ),
    ("readers", "connections for reads, 1 to 100, default 4"),
    (
        "answer_timeout",
        "seconds until a silent database counts as lost, 1 to 600, default 10",
    ),
];

/// The options that the driver understands.
const DRIVER_OPTIONS: &[&str] = &[
    "user",
    "password",
    "dbname",
    "host",
    "hostaddr",
    "port",
    "application_name",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "channel_binding",
    "load_balance_hosts",
];

/// How long connecting to a single host may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connecting to one of several hosts may take, since another one may be the primary.
const CONNECT_TIMEOUT_OF_SEVERAL: Duration = Duration::from_secs(3);
/// How long a statement of the registry of nodes may take.
const REGISTRY_TIMEOUT: Duration = Duration::from_millis(2_500);
/// The shortest such time. Half of it must be a millisecond, for to PostgreSQL 0 means "no limit".
const REGISTRY_TIMEOUT_MIN: Duration = Duration::from_millis(2);
/// How old the settings of the server in `/info` may be.
const SETTINGS_PAUSE: Duration = Duration::from_secs(10);
/// How long closing waits for messages that are queued. By then the others have looked at the ends of the logs by
/// themselves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
const SCHEMA_DEFAULT: &str = "gesta";
/// The longest name of a schema, in bytes. PostgreSQL cuts names at 63 bytes, and the retention role adds `_retention`.
const SCHEMA_BYTES_MAX: usize = 50;

/// Which settings of the server are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RequiredDurability {
    /// An acknowledged append must survive a crash of the server. Weaker settings are refused.
    #[default]
    Full,
    /// The server may run with `fsync` or `full_page_writes` off. This is chosen explicitly by `durability=weakened`.
    Weakened,
}

/// Where the store is and how to connect to it.
#[derive(Clone)]
pub struct Config {
    pub(crate) driver: tokio_postgres::Config,
    pub(crate) passwords: Passwords,
    pub(crate) tls: TlsMode,
    pub(crate) root_certificates: Option<PathBuf>,
    /// The PostgreSQL schema that holds the store.
    pub schema: String,
    /// Which settings of the server are accepted.
    pub durability: RequiredDurability,
    /// Which data of large events this process compresses itself.
    pub compression: Compression,
    /// The most connections for ordinary reads. One for reads that appends wait for, one for messages and one for
    /// appends come on top.
    pub readers_max: usize,
    /// How long a batch may take to be answered; after that its connection counts as lost. One second is added for each
    /// MiB.
    pub answer_timeout: Duration,
    /// How long a statement of the registry of nodes may take in the database. It may wait half of this time for a
    /// lock. Nodes give up sooner, and a statement must have no effect long after that. It is no option of the URL, and
    /// at least two milliseconds.
    pub registry_timeout: Duration,
    /// The time between two looks at the settings of the server and at the incarnation of the store. It is no option of
    /// the URL; tests set it.
    #[doc(hidden)]
    pub settings_pause: Duration,
    /// How long closing waits for messages to other processes that are queued. It is no option of the URL; tests set
    /// it.
    #[doc(hidden)]
    pub close_timeout: Duration,
    /// How many logs the store gets if it does not exist yet and is made on opening.
    pub logs_if_new: u16,
    /// Whether opening a store that does not exist is refused, instead of making it.
    pub must_exist: bool,
    /// Whether a database may be opened that holds only some logs of its store. This is set by a caller that opens all
    /// databases and routes calls by log.
    pub is_part: bool,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.driver.get_hosts())
            .field("database", &self.driver.get_dbname())
            .field("user", &self.driver.get_user())
            .field("schema", &self.schema)
            .field("tls", &self.tls)
            .field("durability", &self.durability)
            .field("compression", &self.compression)
            .field("readers_max", &self.readers_max)
            .field("answer_timeout", &self.answer_timeout)
            .field("registry_timeout", &self.registry_timeout)
            .field("settings_pause", &self.settings_pause)
            .field("close_timeout", &self.close_timeout)
            .field("logs_if_new", &self.logs_if_new)
            .field("must_exist", &self.must_exist)
            .field("is_part", &self.is_part)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Reads a URL. Gesta's defaults hold for times and sizes that it does not name. If the URL has no password, that
    /// is taken from `PGPASSWORD`, or from the password file: `PGPASSFILE`, or else `~/.pgpass`.
    ///
    /// # Errors
    /// `InvalidArgument`, which names the option and the rule that it breaks, but never the password.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(invalid("must begin with postgres://"));
        }
        let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
        // What follows an `@` or a `/` inside of a password that was not encoded would be shown as the host.
        let hosts = base.split_once('@').map_or(base, |(_, hosts)| hosts);
        if hosts.contains('@') || base.split('/').skip(1).any(|part| part.contains('@')) {
            return Err(not_encoded());
        }
        let options = Options::parse(query)?;
        let mut driver_url = format!("postgres://{base}");
        for (index, (name, value)) in options.driver.iter().enumerate() {
            driver_url.push(if index == 0 { '?' } else { '&' });
            driver_url.push_str(&format!("{name}={value}"));
        }
        let driver = driver_url.parse::<tokio_postgres::Config>();
        // The messages of the driver name an option, but never its value.
        let driver = driver.map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            invalid(cause.as_deref().unwrap_or("cannot be understood"))
        })?;
        let passwords = match driver.get_password() {
            Some(_) => Passwords::None,
            None => Passwords::of_environment(),
        };
        let mut config = Self {
            driver,
            passwords,
            tls: TlsMode::Prefer,
            root_certificates: None,
            schema: SCHEMA_DEFAULT.to_owned(),
            durability: RequiredDurability::Full,
            compression: Compression::default(),
            readers_max: 4,
            answer_timeout: Duration::from_secs(10),
            registry_timeout: REGISTRY_TIMEOUT,
            settings_pause: SETTINGS_PAUSE,
            close_timeout: CLOSE_TIMEOUT,
            logs_if_new: 1,
            must_exist: false,
            is_part: false,
        };
        for (name, value) in &options.own {
            config.set(name, value)?;
        }
        config.finish(&options);
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "schema" => {
                check_schema(value)?;
                value.clone_into(&mut self.schema);
            }
            "durability" => {
                self.durability = match value {
                    "full" => RequiredDurability::Full,
                    "weakened" => RequiredDurability::Weakened,
                    _ => return Err(wrong(name, "full or weakened", value)),
                };
            }
            "compression" => {
                self.compression = match value {
                    "database" => Compression::Database,
                    "binary" => Compression::Binary,
                    "client" => Compression::Client,
                    _ => return Err(wrong(name, "database, binary or client", value)),
                };
            }
            "sslmode" => {
                self.tls = TlsMode::parse(value).ok_or_else(|| {
                    wrong(
                        name,
                        "disable, prefer, require, verify-ca or verify-full",
                        value,
                    )
                })?;
            }
            "sslrootcert" if value == "system" => self.root_certificates = None,
            "sslrootcert" => self.root_certificates = Some(PathBuf::from(value)),
            "readers" => self.readers_max = number(name, value, 1, 100)?,
            "answer_timeout" => {
                let seconds = number(name, value, 1, 600)?;
                self.answer_timeout =
                    Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX));
            }
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    /// Completes the configuration: with a named root certificate `require` means `verify-ca`, as for libpq, and what
    /// nobody should have to name gets a default.
    fn finish(&mut self, options: &Options) {
        let has = |wanted: &str| options.driver.iter().any(|(name, _)| name == wanted);
        if self.tls == TlsMode::Require && self.root_certificates.is_some() {
            self.tls = TlsMode::VerifyCa;
        }
        self.driver.ssl_mode(match self.tls {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
        });
        if self.driver.get_hosts().is_empty() && self.driver.get_hostaddrs().is_empty() {
            self.driver.host("localhost");
        }
        if !has("application_name") {
            self.driver.application_name("gesta");
        }
        if !has("connect_timeout") {
            let several = self
                .driver
                .get_hosts()
                .len()
                .max(self.driver.get_hostaddrs().len())
                > 1;
            self.driver.connect_timeout(match several {
                true => CONNECT_TIMEOUT_OF_SEVERAL,
                false => CONNECT_TIMEOUT,
            });
        }
        if !has("keepalives_idle") {
            self.driver.keepalives_idle(Duration::from_secs(5));
        }
        if !has("keepalives_interval") {
            self.driver.keepalives_interval(Duration::from_secs(2));
        }
        if !has("keepalives_retries") {
            self.driver.keepalives_retries(3);
        }
        if !has("tcp_user_timeout") {
            self.driver.tcp_user_timeout(self.answer_timeout);
        }
    }

    /// Checks what a caller can set beside the URL.
    ///
    /// # Errors
    /// `InvalidArgument` if statements of the registry had no limit.
    pub(crate) fn check(&self) -> Result<()> {
        let found = self.registry_timeout;
        if found < REGISTRY_TIMEOUT_MIN {
            let rule = format!("must be at least {REGISTRY_TIMEOUT_MIN:?}, found {found:?}");
            return Err(Error::invalid("registry_timeout", rule));
        }
        Ok(())
    }

    /// Returns how long connecting to one host may take, with the start of the session.
    pub(crate) fn connect_timeout(&self) -> Duration {
        let timeout = self.driver.get_connect_timeout().copied();
        // For the driver 0 means "no limit", as for libpq; a host that hangs must not keep a caller for ever.
        timeout
            .filter(|timeout| !timeout.is_zero())
            .unwrap_or(CONNECT_TIMEOUT)
    }

    /// Names the store for people: the hosts with their ports, the database, and the schema if it is not the usual one.
    #[must_use]
    pub fn name(&self) -> String {
        let ports = self.driver.get_ports();
        let names = self.driver.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let addresses = self.driver.get_hostaddrs().iter().map(ToString::to_string);
        let hosts: Vec<String> = match self.driver.get_hosts().is_empty() {
            true => addresses.collect(),
            false => names.collect(),
        };
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let hosts = hosts.iter().enumerate();
        let hosts: Vec<String> = hosts
            .map(|(at, host)| format!("{host}:{}", port(at)))
            .collect();
        let database = self.driver.get_dbname().unwrap_or("(default)");
        let mut name = format!("{}/{database}", hosts.join(","));
        if self.schema != SCHEMA_DEFAULT {
            name.push_str(" schema ");
            name.push_str(&self.schema);
        }
        name
    }

    /// Names the hosts to which nothing protects the connection, because nobody has said what should: those that are
    /// not on this machine, with `sslmode=prefer`. Returns `None` if there are none.
    pub(crate) fn unprotected_hosts(&self) -> Option<String> {
        if self.tls != TlsMode::Prefer {
            return None;
        }
        let is_near = |name: &str| {
            name == "localhost"
                || name
                    .parse()
                    .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        };
        let addresses = self.driver.get_hostaddrs();
        let far: Vec<String> = match addresses.is_empty() {
            true => {
                let hosts = self.driver.get_hosts().iter();
                let far = hosts.filter_map(|host| match host {
                    Host::Tcp(name) if !is_near(name) => Some(name.clone()),
                    _ => None,
                });
                far.collect()
            }
            false => {
                let far = addresses.iter().filter(|address| !address.is_loopback());
                far.map(ToString::to_string).collect()
            }
        };
        (!far.is_empty()).then(|| far.join(", "))
    }

    /// Returns the schema as SQL takes it: a plain identifier may be a reserved word.
    pub(crate) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema)
    }

    /// Returns the name of the channel of the messages between processes.
    pub(crate) fn channel(&self) -> String {
        format!("gesta_{}", self.schema)
    }

    /// Returns the name of the role that alone may remove events.
    pub(crate) fn retention_role(&self) -> String {
        format!("{}_retention", self.schema)
    }
}

#[derive(Default)]
struct Options {
    /// The options of Gesta, decoded.
    own: Vec<(String, String)>,
    /// The options of the driver, still encoded.
    driver: Vec<(String, String)>,
}

impl Options {
    fn parse(query: &str) -> Result<Self> {
        // A `?` inside of a password that was not encoded leads here, so the text is not repeated.
        if query.contains('@') {
            return Err(not_encoded());
        }
        let mut options = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let seen = options.own.iter().chain(&options.driver);
            if seen.into_iter().any(|(known, _)| known == name) {
                return Err(Error::invalid(name, "must be given once"));
            }
            if OWN_OPTIONS.iter().any(|(known, _)| *known == name) {
                let decoded = percent_decode_str(value).decode_utf8();
                let decoded = decoded.map_err(|_| Error::invalid(name, "must be UTF-8"))?;
                options.own.push((name.to_owned(), decoded.into_owned()));
            } else if DRIVER_OPTIONS.contains(&name) {
                options.driver.push((name.to_owned(), value.to_owned()));
            } else {
                return Err(unknown(name));
            }
        }
        Ok(options)
    }
}

/// Checks that a schema is a plain identifier, so that it can be part of DDL and of the name of a role as it is.
fn check_schema(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if !begins
        || !name.chars().all(plain)
        || name.len() > SCHEMA_BYTES_MAX
        || name.starts_with("pg_")
    {
        let rule = format!(
            "must be 1 to {SCHEMA_BYTES_MAX} of a-z 0-9 _, begin with a letter or _, and not with pg_, found {name:?}"
        );
        return Err(Error::invalid("schema", rule));
    }
    Ok(())
}

fn number(name: &str, value: &str, min: usize, max: usize) -> Result<usize> {
    let parsed = value.parse().ok().filter(|n| (min..=max).contains(n));
    parsed.ok_or_else(|| wrong(name, &format!("a number from {min} to {max}"), value))
}

fn invalid(rule: &str) -> Error {
    Error::invalid("store URL", rule)
}

/// The text is not repeated: it holds a piece of a password.
fn not_encoded() -> Error {
    invalid("must percent-encode the characters ? / @ : of user and password (%3F %2F %40 %3A)")
}

fn wrong(name: &str, rule: &str, value: &str) -> Error {
    Error::invalid(name, format!("must be {rule}, found {value:?}"))
}

fn unknown(name: &str) -> Error {
    let own = OWN_OPTIONS
        .iter()
        .map(|(name, meaning)| format!("{name} ({meaning})"));
    let driver = DRIVER_OPTIONS.iter().map(ToString::to_string);
    let known: Vec<String> = own.chain(driver).collect();
    // A text that does not look like the name of an option may be a piece of a password.
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let shown = if plain { name } else { "(not shown)" };
    invalid(&format!(
        "has the unknown option {shown}; known are {}",
        known.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_filled_in() {
        let config = Config::parse("postgres://u:se-cret@db.example:5433/shop").expect("valid");
        assert_eq!(config.schema, "gesta");
        assert_eq!(config.driver.get_ports(), [5433]);
        assert_eq!(config.driver.get_dbname(), Some("shop"));
        assert_eq!(config.driver.get_application_name(), Some("gesta"));
        assert_eq!(config.tls, TlsMode::Prefer);
        assert_eq!(config.compression, Compression::Binary);
        let local = Config::parse("postgresql:///shop").expect("valid");
        assert_eq!(local.driver.get_hosts().len(), 1);
    }

    #[test]
    fn a_store_is_named_by_where_it_is() {
        let name = |url| Config::parse(url).expect("valid").name();
        assert_eq!(name("postgres://u:secret@db/shop"), "db:5432/shop");
        assert_eq!(
            name("postgres://u:secret@a:1,b:2/shop?schema=x"),
            "a:1,b:2/shop schema x"
        );
        assert_eq!(name("postgres:///?host=%2Ftmp&port=7"), "/tmp:7/(default)");
    }

    #[test]
    fn options_are_read() {
        let config = Config::parse(
            "postgres://u@h/d?schema=shop_1&durability=weakened&compression=client&sslmode=require&sslrootcert=%2Fca.pem&readers=9&answer_timeout=3&application_name=x&connect_timeout=1",
        )
        .expect("valid");
        assert_eq!(config.schema, "shop_1");
        assert_eq!(config.durability, RequiredDurability::Weakened);
        assert_eq!(config.compression, Compression::Client);
        assert_eq!(config.tls, TlsMode::VerifyCa);
        assert_eq!(config.readers_max, 9);
        assert_eq!(config.answer_timeout, Duration::from_secs(3));
        assert_eq!(config.driver.get_application_name(), Some("x"));
        assert_eq!(
            config.driver.get_connect_timeout(),
            Some(&Duration::from_secs(1))
        );
    }

    /// Goal: no piece of a password that was not encoded is taken for a host, which errors and the log show.
    #[test]
    fn a_password_that_was_not_encoded_is_refused_and_not_repeated() {
        for url in [
            "postgres://app:p@ssw0rd@127.0.0.1:1/x",
            "postgres://app:a/ssw0rd@127.0.0.1:1/x",
            "postgres://app:a?ssw0rd@127.0.0.1:1/x",
            "postgres://app:a@b/ssw0rd@127.0.0.1:1/x",
        ] {
            let error = Config::parse(url).expect_err(url).to_string();
            assert!(error.contains("percent-encode"), "{error}");
            assert!(!error.contains("ssw0rd"), "{error}");
        }
        let encoded = Config::parse("postgres://app:p%40%2Fss@127.0.0.1:1/x").expect("valid");
        assert_eq!(encoded.name(), "127.0.0.1:1/x");
    }

    #[test]
    fn wrong_options_are_refused_with_what_is_known() {
        for bad in [
            "mysql://h/d",
            "postgres://h:port/d",
            "postgres://h/d?schema=Shop",
            "postgres://h/d?schema=pg_x",
            "postgres://h/d?schema=",
            "postgres://h/d?schema=a&schema=b",
            "postgres://h/d?durability=none",
            "postgres://h/d?compression=lz4",
            "postgres://h/d?sslmode=allow",
            "postgres://h/d?readers=0",
            "postgres://h/d?options=-csynchronous_commit%3Doff",
        ] {
            assert!(Config::parse(bad).is_err(), "{bad}");
        }
        let error = Config::parse("postgres://h/d?shema=x")
            .expect_err("unknown")
            .to_string();
        assert!(
            error.contains("shema") && error.contains("schema (name of"),
            "{error}"
        );
    }

    #[test]
    fn hosts_elsewhere_are_named_if_nobody_has_said_how_they_are_reached() {
        let hosts = |url| Config::parse(url).expect("valid").unprotected_hosts();
        for near in [
            "postgres:///d",
            "postgres://localhost/d",
            "postgres://127.0.0.2/d",
            "postgres://[::1]/d",
            "postgres:///d?host=%2Ftmp",
            "postgres://db/d?hostaddr=127.0.0.1",
            "postgres://db/d?sslmode=disable",
            "postgres://db/d?sslmode=verify-full",
        ] {
            assert_eq!(hosts(near), None, "{near}");
        }
        for (far, named) in [
            ("postgres://db/d", "db"),
            (
                "postgres://localhost,10.0.0.1,b/d?sslmode=prefer",
                "10.0.0.1, b",
            ),
            ("postgres://localhost/d?hostaddr=10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(hosts(far).as_deref(), Some(named), "{far}");
        }
    }

    #[test]
    fn statements_of_the_registry_always_have_a_limit() {
        let mut config = Config::parse("postgres://h/d").expect("valid");
        assert!(config.check().is_ok());
        for wrong in [Duration::ZERO, Duration::from_millis(1)] {
            config.registry_timeout = wrong;
            let error = config.check().expect_err("no limit").to_string();
            assert!(error.contains("registry_timeout"), "{error}");
        }
        config.registry_timeout = REGISTRY_TIMEOUT_MIN;
        assert!(config.check().is_ok());
    }

    #[test]
    fn a_password_is_never_told() {
        let password = "hunter2";
        for url in [
            format!("postgres://u:{password}@h:port/d"),
            format!("postgres://u:{password}@h/d?shema=x"),
            format!("postgres://u:a?{password}@h/d"),
            format!("postgres://u:a?{password}=@h/d"),
            format!("postgres://u:%zz{password}@h/d?password={password}&password=b"),
            format!("u:{password}@h/d"),
        ] {
            let error = Config::parse(&url).expect_err(&url);
            let text = format!("{error} {error:?}");
            assert!(!text.contains(password), "{text}");
        }
        let config = Config::parse(&format!("postgres://u:{password}@h/d")).expect("valid");
        assert!(!format!("{config:?}").contains(password));
    }
}
