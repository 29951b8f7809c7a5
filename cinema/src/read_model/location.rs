//! Where the read model of a store is kept: next to the store.

use std::path::PathBuf;
use std::sync::Arc;

use super::Views;
use super::postgres::PostgresViews;
use super::sqlite::SqliteViews;

/// Where the rows are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// In memory, like the store.
    Memory,
    /// In a SQLite file next to that of the store.
    File(PathBuf),
    /// In the database and schema of the store.
    Postgres(Box<PostgresLocation>),
}

/// A PostgreSQL database.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresLocation {
    pub(super) config: tokio_postgres::Config,
    pub(super) schema: String,
}

impl std::fmt::Debug for PostgresLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresLocation")
            .field("hosts", &self.config.get_hosts())
            .field("database", &self.config.get_dbname())
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

impl Location {
    /// The place next to the store at `url`, which has been opened with success, so that it is known to be valid.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL of another kind; `Unsupported` if the URL asks for encryption.
    pub fn beside(url: &str) -> gesta::Result<Self> {
        match url.split_once(':') {
            Some(("sqlite", rest)) => Ok(Self::beside_sqlite(rest)),
            Some(("postgres" | "postgresql", _)) => {
                Ok(Self::Postgres(Box::new(beside_postgres(url)?)))
            }
            _ => Err(gesta::Error::invalid(
                "store",
                "must be sqlite:… or postgres://…",
            )),
        }
    }

    fn beside_sqlite(rest: &str) -> Self {
        let path = rest.split_once('?').map_or(rest, |(path, _)| path);
        match path.strip_prefix("//").unwrap_or(path) {
            ":memory:" => Self::Memory,
            path => {
                let stem = path.strip_suffix(".db").unwrap_or(path);
                Self::File(PathBuf::from(format!("{stem}.views.db")))
            }
        }
    }

    pub(super) fn open(self) -> Arc<dyn Views> {
        match self {
            Self::Memory => Arc::new(SqliteViews::new(None)),
            Self::File(path) => Arc::new(SqliteViews::new(Some(path))),
            Self::Postgres(location) => Arc::new(PostgresViews::new(*location)),
        }
    }
}

/// Takes the options that are not the driver's out of the URL.
fn beside_postgres(url: &str) -> gesta::Result<PostgresLocation> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut schema = "gesta";
    let mut driver = String::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("schema", value) => schema = value,
            ("sslmode", "require" | "verify-ca" | "verify-full") => return Err(encrypted()),
            ("durability" | "readers" | "answer_timeout" | "sslrootcert" | "sslmode", _) => {}
            _ => {
                driver.push(if driver.is_empty() { '?' } else { '&' });
                driver.push_str(option);
            }
        }
    }
    // The driver's message names an option, but never its value.
    let config = format!("{base}{driver}").parse::<tokio_postgres::Config>();
    let mut config = config.map_err(|error| gesta::Error::invalid("store", error.to_string()))?;
    config.ssl_mode(tokio_postgres::config::SslMode::Disable);
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        config.host("localhost");
    }
    if config.get_application_name().is_none() {
        config.application_name("cinema");
    }
    config.target_session_attrs(tokio_postgres::config::TargetSessionAttrs::ReadWrite);
    Ok(PostgresLocation {
        config,
        schema: schema.to_owned(),
    })
}

fn encrypted() -> gesta::Error {
    gesta::ErrorKind::Unsupported(
        "the read model of the cinema connects without encryption; sslmode must be disable or prefer".into(),
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lies_next_to_the_store() {
        let beside = |url: &str| Location::beside(url).expect(url);
        let file = |path: &str| Location::File(path.into());
        assert_eq!(beside("sqlite::memory:"), Location::Memory);
        assert_eq!(
            beside("sqlite:data/cinema.db"),
            file("data/cinema.views.db")
        );
        assert_eq!(beside("sqlite:///x/s?readers=2"), file("/x/s.views.db"));
        let Location::Postgres(found) =
            beside("postgres://u:pa%2Fss@h:5433/d?schema=shop&readers=9&connect_timeout=1")
        else {
            panic!("another kind of place");
        };
        assert_eq!(found.schema, "shop");
        assert_eq!(found.config.get_dbname(), Some("d"));
        assert_eq!(found.config.get_ports(), [5433]);
        assert!(found.config.get_connect_timeout().is_some());
        assert!(!format!("{found:?}").contains("pa"), "{found:?}");
        assert!(Location::beside("postgres://h/d?sslmode=require").is_err());
        assert!(Location::beside("mysql://h/d").is_err());
    }
}
