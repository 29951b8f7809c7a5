//! Which backend a URL means.

use gesta_core::{Error, Result};

/// The URLs that a store can have.
pub const SCHEMES: &[&str] = &[
    "sqlite:PATH",
    "sqlite::memory:",
    "postgres://USER:PASSWORD@HOST:PORT/DATABASE",
];

/// A kind of database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scheme {
    Sqlite,
    Postgres,
}

impl Scheme {
    /// The kind of database that a URL names.
    ///
    /// # Errors
    /// `InvalidArgument` if there is none of this name. The rest of the URL, which may hold a password, is not repeated.
    pub(crate) fn of(url: &str) -> Result<Self> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => Ok(Self::Sqlite),
            Some("postgres" | "postgresql") => Ok(Self::Postgres),
            found => {
                let is_name = |scheme: &&str| {
                    scheme.len() <= 20 && scheme.chars().all(|c| c.is_ascii_alphanumeric())
                };
                let found = found.filter(is_name).map_or_else(
                    || "no scheme".to_owned(),
                    |scheme| format!("scheme {scheme:?}"),
                );
                Err(Error::invalid(
                    "store",
                    format!("must be one of {}, found {found}", SCHEMES.join(", ")),
                ))
            }
        }
    }
}

/// The error of a build without this backend.
#[cfg(not(all(feature = "sqlite", feature = "postgres")))]
pub(crate) fn left_out(backend: &str) -> Error {
    gesta_core::ErrorKind::Unsupported(format!(
        "this program was built without the backend {backend} (feature `{backend}`)"
    ))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_known_or_refused_with_the_list() {
        assert_eq!(
            Scheme::of("sqlite::memory:").expect("known"),
            Scheme::Sqlite
        );
        assert_eq!(
            Scheme::of("postgresql://localhost/x").expect("known"),
            Scheme::Postgres
        );
        for bad in [
            "",
            "gesta.db",
            "mysql://u:secret@h/d",
            "SQLITE:x",
            ":secret@x",
        ] {
            let error = Scheme::of(bad).expect_err("unknown").to_string();
            assert!(error.contains("sqlite:PATH, sqlite::memory:"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
