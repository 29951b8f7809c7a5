//! Passwords that are not in the URL: `PGPASSWORD`, and the password file of libpq.
//!
//! As libpq does: the URL comes first, then `PGPASSWORD`, then the file named by `PGPASSFILE`, or else `~/.pgpass`. A
//! file that others may read is not used. The file is read when the URL is. Invariant: no message and no `Debug` text
//! of this module holds a password or a line of the file.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where passwords come from, if not from the URL.
#[derive(Clone, Default)]
pub(crate) enum Passwords {
    /// There is no password.
    #[default]
    None,
    /// There is one password for all hosts.
    One(String),
    /// The passwords are those of a password file, of which the first match counts.
    File(Vec<PasswordLine>),
}

/// A line of a password file. `None` matches everything.
#[derive(Clone)]
pub(crate) struct PasswordLine {
    host: Option<String>,
    port: Option<String>,
    database: Option<String>,
    user: Option<String>,
    password: String,
}

impl fmt::Debug for Passwords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passwords")
    }
}

/// The connection for which a password is wanted.
pub(crate) struct Wanted<'a> {
    /// The name of the host; `localhost` for a socket of this machine.
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) database: &'a str,
    pub(crate) user: &'a str,
}

impl Passwords {
    /// Reads the passwords from the environment of this process.
    pub(crate) fn of_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(password) = variable("PGPASSWORD") {
            return Self::One(password);
        }
        let named = variable("PGPASSFILE").map(PathBuf::from);
        let is_named = named.is_some();
        let of_home = || variable("HOME").map(|home| Path::new(&home).join(".pgpass"));
        match named.or_else(of_home) {
            Some(path) => Self::read(&path, is_named),
            None => Self::None,
        }
    }

    /// Reads a password file. A file that cannot be used counts as none. The reason is logged, unless the file is the
    /// default one and missing.
    fn read(path: &Path, is_named: bool) -> Self {
        let shown = path.display();
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => {
                // What cannot be looked at is not missing.
                if is_named || error.kind() != std::io::ErrorKind::NotFound {
                    tracing::warn!("the password file {shown} is not used: {error}");
                }
                return Self::None;
            }
        };
        if !metadata.is_file() || is_open_to_others(&metadata) {
            tracing::warn!(
                "the password file {shown} is not used: it must be a plain file that its owner alone may read (chmod 600)"
            );
            return Self::None;
        }
        match std::fs::read_to_string(path) {
            Ok(text) => Self::File(text.lines().filter_map(entry).collect()),
            Err(error) => {
                tracing::warn!("the password file {shown} is not used: {error}");
                Self::None
            }
        }
    }

    /// Returns the password for a connection.
    pub(crate) fn find(&self, wanted: &Wanted<'_>) -> Option<&str> {
        match self {
            Self::None => None,
            Self::One(password) => Some(password),
            Self::File(entries) => {
                let port = wanted.port.to_string();
                let fits = |pattern: &Option<String>, value: &str| {
                    pattern.as_ref().is_none_or(|pattern| pattern == value)
                };
                let found = entries.iter().find(|entry| {
                    fits(&entry.host, wanted.host)
                        && fits(&entry.port, &port)
                        && fits(&entry.database, wanted.database)
                        && fits(&entry.user, wanted.user)
                });
                found.map(|entry| entry.password.as_str())
            }
        }
    }
}

#[cfg(unix)]
fn is_open_to_others(metadata: &std::fs::Metadata) -> bool {
    std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0
}

#[cfg(not(unix))]
fn is_open_to_others(_: &std::fs::Metadata) -> bool {
    false
}

/// Reads a line such as `host:port:database:user:password`. A `*` alone matches everything, and `\` takes the next
/// character as it is.
fn entry(line: &str) -> Option<PasswordLine> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let count = fields.len();
        let field = fields.last_mut()?;
        match character {
            '\\' => field.extend(characters.next()),
            ':' if count < 5 => fields.push(String::new()),
            // What follows the password is not read.
            ':' => break,
            character => field.push(character),
        }
    }
    let mut fields = fields.into_iter();
    let mut pattern = || fields.next().map(|text| (text != "*").then_some(text));
    let (host, port, database, user) = (pattern()?, pattern()?, pattern()?, pattern()?);
    Some(PasswordLine {
        host,
        port,
        database,
        user,
        password: fields.next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(passwords: &'a Passwords, host: &str, port: u16, user: &str) -> Option<&'a str> {
        passwords.find(&Wanted {
            host,
            port,
            database: "shop",
            user,
        })
    }

    #[test]
    fn the_first_line_that_fits_is_used() {
        let text = "# a comment\n\
                    odd line\n\
                    db1:5432:shop:gesta:one\n\
                    db2:*:*:gesta:t\\:w\\\\o\n\
                    *:*:other:*:never\n\
                    *:6000:*:*:last\n";
        let passwords = Passwords::File(text.lines().filter_map(entry).collect());
        assert_eq!(found(&passwords, "db1", 5432, "gesta"), Some("one"));
        assert_eq!(found(&passwords, "db2", 7, "gesta"), Some("t:w\\o"));
        assert_eq!(found(&passwords, "db1", 6000, "gesta"), Some("last"));
        assert_eq!(found(&passwords, "db1", 5432, "other"), None);
        assert_eq!(format!("{passwords:?}"), "Passwords");
    }
}
