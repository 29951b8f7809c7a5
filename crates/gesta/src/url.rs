//! Tells which backend a URL means.

use gesta_core::{Error, Result};

/// The forms of URLs that a store can have.
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
    /// Returns the kind of database that a URL names.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no kind of this name. The rest of the URL, which may hold a password, is not
    /// repeated.
    pub(crate) fn of(url: &str) -> Result<Self> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => Ok(Self::Sqlite),
            Some("postgres" | "postgresql") => Ok(Self::Postgres),
            Some("http" | "https") => Err(Error::invalid(
                "store",
                format!(
                    "must be a database here, one of {}, and this URL names a server",
                    SCHEMES.join(", ")
                ),
            )),
            found => {
                let is_name = |scheme: &&str| {
                    scheme.len() <= 20 && scheme.chars().all(|c| c.is_ascii_alphanumeric())
                };
                let mut found = found.filter(is_name).map_or_else(
                    || "no scheme".to_owned(),
                    |scheme| format!("scheme {scheme:?}"),
                );
                if let Some(meant) = meant(url) {
                    found.push_str(&format!(": is {meant} meant?"));
                }
                Err(Error::invalid(
                    "store",
                    format!(
                        "must be one of {}, or http://HOST:PORT for a server, found {found}",
                        SCHEMES.join(", ")
                    ),
                ))
            }
        }
    }
}

/// Returns the URL that is probably meant by a path, or by a host and a port. Nothing else is repeated.
fn meant(url: &str) -> Option<String> {
    let is_plain = |text: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/');
        !text.is_empty() && text.chars().all(plain)
    };
    match url.split_once(':') {
        Some((host, port)) => {
            let is_port = !port.is_empty() && port.chars().all(|c| c.is_ascii_digit());
            (is_plain(host) && is_port).then(|| format!("http://{url}"))
        }
        None => is_plain(url).then(|| format!("sqlite:{url}")),
    }
}

/// Tells whether the URL, or the first of several, is that of a server.
pub(crate) fn is_server(url: &str) -> bool {
    let url = url.trim_start();
    url.starts_with("http://") || url.starts_with("https://")
}

/// Returns the error of a build without this feature.
#[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "client")))]
pub(crate) fn left_out(feature: &str) -> Error {
    gesta_core::ErrorKind::Unsupported(format!(
        "this program was built without the feature `{feature}` of the crate gesta"
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
        for (mistaken, meant) in [
            ("data/gesta.db", "is sqlite:data/gesta.db meant?"),
            ("localhost:2113", "is http://localhost:2113 meant?"),
        ] {
            let error = Scheme::of(mistaken).expect_err("unknown").to_string();
            assert!(error.ends_with(meant), "{error}");
        }
    }
}
