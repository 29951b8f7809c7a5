//! What an import is told.

use std::time::Duration;

use gesta_core::{Error, Result};

use crate::kind::{KURRENT_SCHEMES, Kind};
use crate::names::NameRule;
use crate::types::TypeRule;

/// What becomes of events that the source has marked as deleted or archived, but has kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deleted {
    /// They are left out and counted.
    #[default]
    LeaveOut,
    /// They are imported like the others; their metadata say that they were deleted.
    Keep,
}

/// What becomes of events that cannot be events of this store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unmappable {
    /// The import stops at the first one.
    #[default]
    Stop,
    /// They are left out and counted.
    LeaveOut,
}

/// Where a login may be sent that everybody on the way can read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PlainLogin {
    /// It may be sent to this machine only.
    #[default]
    Loopback,
    /// It may be sent to every machine.
    Anywhere,
}

/// How long an import waits for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// The longest wait for transactions of the source that may still write events before the end, unless the import
    /// follows.
    pub settle: Duration,
    /// Journals that draw numbers before the transaction that uses them: the shortest time for which a missing number
    /// is waited for.
    pub gap_min: Duration,
    /// The same journals: the longest such time. Events that come later are still found, and told as late.
    pub gap_max: Duration,
    /// Journals whose order is that of times: how far back the times of events that are not yet known may lie, behind
    /// the moment up to which everything was read.
    pub look_back: Duration,
    /// The same journals: how long after one look back the next one is due, while an import follows.
    pub look_again: Duration,
    /// The longest wait for an answer of the command that turns payloads.
    pub transform: Duration,
    /// For how long an append is tried again while the target does not answer.
    pub retry: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(60),
            gap_min: Duration::from_secs(2),
            gap_max: Duration::from_secs(30),
            look_back: Duration::from_secs(600),
            look_again: Duration::from_secs(60),
            transform: Duration::from_secs(60),
            retry: Duration::from_secs(60),
        }
    }
}

/// What an import is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// The journal that is read.
    pub kind: Kind,
    /// Where the journal is.
    pub url: String,
    /// Where a login of KurrentDB may be sent without TLS.
    pub plain_login: PlainLogin,
    /// Name of this import in the target, by which it finds its checkpoint again. Two sources of one kind need two
    /// names.
    pub name: String,
    /// The schema of the journal's tables in PostgreSQL; `None` takes the search path of the user.
    pub schema: Option<String>,
    /// The table of the events, if it has another name than usual.
    pub table: Option<String>,
    /// How names of streams are made.
    pub names: NameRule,
    /// How types of events are made.
    pub types: TypeRule,
    /// What becomes of events that the source has marked as deleted.
    pub deleted: Deleted,
    /// What becomes of events that cannot be events of this store.
    pub unmappable: Unmappable,
    /// Whether a file of lines may begin behind what is stored of a stream, so that numbers are missing between.
    pub allow_gaps: bool,
    /// A command that turns each event; see `transform`.
    pub transform: Option<String>,
    /// Whether events are still written to the source, so that its end is not the end.
    pub follow: bool,
    /// How many appends may be on their way to the target at once. More than one keeps the order of the source only if
    /// the target takes appends in the order in which they are sent, as a store of this process does and a server does
    /// not.
    pub in_flight: usize,
    /// How long others are waited for.
    pub patience: Patience,
}

impl Options {
    /// Makes the options of an import from a journal of this kind, with the defaults.
    ///
    /// # Errors
    /// `InvalidArgument` if the URL is none of this kind.
    pub fn new(kind: Kind, url: impl Into<String>) -> Result<Self> {
        let url = url.into();
        let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
        let is_sqlite = url.starts_with("sqlite:");
        let fits = match kind {
            Kind::AkkaSql | Kind::Emmett => is_postgres || is_sqlite,
            Kind::KurrentDb => KURRENT_SCHEMES.iter().any(|scheme| url.starts_with(scheme)),
            Kind::Lines => !url.contains("://") && !is_sqlite && !url.is_empty(),
            _ => is_postgres,
        };
        if !fits {
            // A URL may hold a password, so only its scheme is repeated.
            let scheme = url
                .split_once(':')
                .map_or("no scheme", |(scheme, _)| scheme);
            let scheme: String = scheme.chars().take(20).collect();
            return Err(Error::invalid(
                "source",
                format!(
                    "must be {} for the kind {kind}, found {scheme:?}",
                    kind.urls()
                ),
            ));
        }
        Ok(Self {
            kind,
            url,
            plain_login: PlainLogin::default(),
            name: kind.name().to_owned(),
            schema: None,
            table: None,
            names: kind.default_names().parse()?,
            types: TypeRule::default(),
            deleted: Deleted::default(),
            unmappable: Unmappable::default(),
            allow_gaps: false,
            transform: None,
            follow: false,
            in_flight: 64,
            patience: Patience::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_must_fit_its_kind_and_is_not_repeated() {
        assert!(Options::new(Kind::Marten, "postgres://u:p@h/d").is_ok());
        assert!(Options::new(Kind::Emmett, "sqlite:x.db").is_ok());
        assert!(Options::new(Kind::KurrentDb, "esdb://h:2113?tls=false").is_ok());
        for (kind, url) in [
            (Kind::Marten, "sqlite:x.db"),
            (Kind::KurrentDb, "postgres://u:secret@h/d"),
            (Kind::Lines, "postgres://u:secret@h/d"),
            (Kind::Lines, "esdb://u:secret@h:2113"),
            (Kind::MessageDb, "mysql://u:secret@h/d"),
        ] {
            let error = Options::new(kind, url).expect_err(url).to_string();
            assert!(
                error.contains(kind.name()) && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
