//! The configuration of a SQLite store: where it is and how it is opened. It can also be read from a URL.

use std::path::PathBuf;
use std::str::FromStr;

use gesta_core::{Error, Result};

/// Where the data are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// The data are in a file. Beside it lie files with the endings `-wal`, `-shm`, `-end` and `.lock`.
    File(PathBuf),
    /// The data are in memory, and gone when the store is closed.
    Memory,
}

/// What a commit waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Synchronous {
    /// A commit waits for the disk. Nothing acknowledged is ever lost.
    #[default]
    Full,
    /// A commit waits for the operating system; the disk follows at checkpoints. A power loss takes the last commits.
    Normal,
    /// A commit waits for nothing. A power loss can take everything.
    Off,
}

/// What to do if the file does not exist, or is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Missing {
    /// Creates the store, and the directories above the file.
    #[default]
    Create,
    /// Refuses to open a store.
    Refuse,
}

/// Largest number of reading connections.
const READERS_MAX: usize = 64;
/// Default length of the write-ahead log at which it is started again, in bytes.
const WAL_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Largest length of the write-ahead log that can be asked for, in MiB.
const WAL_MIB_MAX: u64 = 4096;

/// Configuration with which a store is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SqliteConfig {
    /// Where the data are.
    pub location: Location,
    /// What a commit waits for. Anything but `Full` is shown as weakened durability.
    pub synchronous: Synchronous,
    /// What to do if there is no store.
    pub missing: Missing,
    /// Number of connections that read at once (1 to 64). They are opened with the store.
    pub readers: usize,
    /// Length of the write-ahead log, in bytes, at which it is started again from its beginning. It grows beyond that
    /// length while a reader holds an old snapshot.
    pub wal_bytes_max: u64,
}

impl SqliteConfig {
    /// Makes the configuration of a store in a file, with full durability, which is created if it is missing.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::at(Location::File(path.into()))
    }

    /// Makes the configuration of a store in memory.
    #[must_use]
    pub fn memory() -> Self {
        Self::at(Location::Memory)
    }

    fn at(location: Location) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            location,
            synchronous: Synchronous::Full,
            missing: Missing::Create,
            // One caller leaves one of them to others.
            readers: (cores + 1).clamp(3, 8),
            wal_bytes_max: WAL_BYTES_MAX,
        }
    }

    /// Makes opening refuse a store that does not exist, instead of creating it.
    #[must_use]
    pub fn must_exist(mut self) -> Self {
        self.missing = Missing::Refuse;
        self
    }

    /// Reads `sqlite:PATH`, `sqlite://PATH` or `sqlite::memory:`, with options after `?`, joined by `&`:
    /// `synchronous=full|normal|off`, `create=true|false`, `readers=1..64`, `wal_mib=1..4096`. The path is taken as it
    /// stands.
    ///
    /// # Errors
    /// `InvalidArgument` for another scheme, no path, or an unknown option or value.
    pub fn parse(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("sqlite:").ok_or_else(|| {
            Error::invalid("store", format!("must begin with sqlite:, found {url:?}"))
        })?;
        check_is_one(rest)?;
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        let mut config = match path.strip_prefix("//").unwrap_or(path) {
            path if path == "~" || path.starts_with("~/") => {
                let rule =
                    format!("must be a path: nobody expands ~ here, so say $HOME, found {path:?}");
                return Err(Error::invalid("store", rule));
            }
            "" => {
                return Err(Error::invalid(
                    "store",
                    "must name a file, as in sqlite:gesta-data/gesta.db",
                ));
            }
            ":memory:" => Self::memory(),
            path => Self::file(path),
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            config.set(name, value)?;
        }
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let wrong = |rule: &str| {
            Error::invalid(
                format!("store option {name}"),
                format!("{rule}, found {value:?}"),
            )
        };
        match name {
            "synchronous" => {
                self.synchronous = match value {
                    "full" => Synchronous::Full,
                    "normal" => Synchronous::Normal,
                    "off" => Synchronous::Off,
                    _ => return Err(wrong("must be full, normal or off")),
                }
            }
            "create" => {
                self.missing = match value {
                    "true" => Missing::Create,
                    "false" => Missing::Refuse,
                    _ => return Err(wrong("must be true or false")),
                }
            }
            "readers" => {
                self.readers = value
                    .parse()
                    .ok()
                    .filter(|count| (1..=READERS_MAX).contains(count))
                    .ok_or_else(|| wrong("must be a number from 1 to 64"))?;
            }
            "wal_mib" => {
                let mib: Option<u64> = value.parse().ok();
                let mib = mib.filter(|mib| (1..=WAL_MIB_MAX).contains(mib));
                self.wal_bytes_max =
                    mib.ok_or_else(|| wrong("must be a number from 1 to 4096"))? * 1024 * 1024;
            }
            _ => {
                return Err(Error::invalid(
                    format!("store option {name}"),
                    "is unknown; known are synchronous, create, readers and wal_mib",
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for SqliteConfig {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        Self::parse(url)
    }
}

/// Checks that no other URL follows: several URLs are separated by spaces, and the path of a file may hold some.
fn check_is_one(rest: &str) -> Result<()> {
    let schemes = [
        "sqlite:",
        "postgres://",
        "postgresql://",
        "http://",
        "https://",
    ];
    let is_url = |word: &str| schemes.iter().any(|scheme| word.starts_with(scheme));
    match rest.split_whitespace().skip(1).any(is_url) {
        // It may hold a password.
        true => Err(Error::invalid(
            "store",
            "must be one file: only PostgreSQL databases can be several, found another URL behind it",
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_file_or_memory() {
        for (url, path) in [
            ("sqlite:gesta-data/gesta.db", "gesta-data/gesta.db"),
            ("sqlite:/var/lib/gesta.db", "/var/lib/gesta.db"),
            ("sqlite://gesta.db", "gesta.db"),
            ("sqlite:///var/lib/gesta.db", "/var/lib/gesta.db"),
        ] {
            let config = SqliteConfig::parse(url).expect("valid");
            assert_eq!(config, SqliteConfig::file(path), "{url}");
        }
        let memory = SqliteConfig::parse("sqlite::memory:").expect("valid");
        assert_eq!(memory.location, Location::Memory);
    }

    #[test]
    fn options_are_known_or_refused() {
        let config = SqliteConfig::parse("sqlite:a.db?synchronous=normal&readers=3&create=false")
            .expect("valid");
        assert_eq!(config.synchronous, Synchronous::Normal);
        assert_eq!((config.readers, config.missing), (3, Missing::Refuse));
        let config = SqliteConfig::parse("sqlite:a.db?wal_mib=4").expect("valid");
        assert_eq!(config.wal_bytes_max, 4 * 1024 * 1024);
        for bad in [
            "sqlite:",
            "sqlite:?synchronous=full",
            "postgres://x",
            "sqlite:a?sync=full",
            "sqlite:a?synchronous=",
            "sqlite:a?synchronous=FULL",
            "sqlite:a?readers=0",
            "sqlite:a?readers=65",
            "sqlite:a?readers=-1",
            "sqlite:a?wal_mib=0",
            "sqlite:a?wal_mib=99999999999999999999",
            "sqlite:a?create",
        ] {
            assert!(SqliteConfig::parse(bad).is_err(), "{bad}");
        }
        let error = SqliteConfig::parse("sqlite:a?sync=full").expect_err("unknown");
        assert!(error.to_string().contains("sync is unknown"), "{error}");
    }
}
