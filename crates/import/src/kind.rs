//! The journals that can be read.

use std::fmt;
use std::str::FromStr;

use gesta_core::{Error, Result};

/// How URLs of KurrentDB and EventStoreDB begin.
pub(crate) const KURRENT_SCHEMES: [&str; 5] = [
    "kurrentdb://",
    "kdb://",
    "esdb://",
    "kurrent://",
    "eventstore://",
];

/// A journal that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// akka-persistence-jdbc and pekko-persistence-jdbc on PostgreSQL, also the table of versions before 5.0.
    AkkaJdbc,
    /// akka-persistence-r2dbc and pekko-persistence-r2dbc on PostgreSQL.
    AkkaR2dbc,
    /// akka-persistence-postgres of SwissBorg: the plain, the partitioned and the nested schema.
    AkkaPostgres,
    /// Akka.Persistence.Sql (.NET) on PostgreSQL and SQLite.
    AkkaSql,
    /// EventStore of Elixir, which Commanded uses.
    ElixirEventStore,
    /// Message DB.
    MessageDb,
    /// Marten.
    Marten,
    /// Emmett on PostgreSQL and SQLite.
    Emmett,
    /// KurrentDB and EventStoreDB, over their own protocol.
    KurrentDb,
    /// One JSON object per line, from a file or from standard input.
    Lines,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 10] = [
        Kind::AkkaJdbc,
        Kind::AkkaR2dbc,
        Kind::AkkaPostgres,
        Kind::AkkaSql,
        Kind::ElixirEventStore,
        Kind::MessageDb,
        Kind::Marten,
        Kind::Emmett,
        Kind::KurrentDb,
        Kind::Lines,
    ];

    /// Returns the name by which users choose the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::AkkaJdbc => "akka-persistence-jdbc",
            Kind::AkkaR2dbc => "akka-persistence-r2dbc",
            Kind::AkkaPostgres => "akka-persistence-postgres",
            Kind::AkkaSql => "akka-persistence-sql",
            Kind::ElixirEventStore => "elixir-eventstore",
            Kind::MessageDb => "message-db",
            Kind::Marten => "marten",
            Kind::Emmett => "emmett",
            Kind::KurrentDb => "kurrentdb",
            Kind::Lines => "lines",
        }
    }

    /// Returns the number that the first event of a stream has in this journal.
    pub(crate) fn first_sequence(self) -> u64 {
        match self {
            Kind::MessageDb | Kind::KurrentDb => 0,
            _ => 1,
        }
    }

    /// Returns the number with which a stream begins that begins with this one, unless its first events are gone.
    /// Tables of one's own count from 0 or from 1.
    pub(crate) fn first_sequence_of(self, sequence: u64) -> u64 {
        match self {
            Kind::Lines => sequence.min(1),
            _ => self.first_sequence(),
        }
    }

    /// Returns the rule by which names are made unless the user gives one.
    pub(crate) fn default_names(self) -> &'static str {
        match self {
            Kind::AkkaJdbc | Kind::AkkaR2dbc | Kind::AkkaPostgres | Kind::AkkaSql => {
                "{category:lower}-{id}"
            }
            Kind::Marten => "{category}-{id}",
            _ => "{key}",
        }
    }

    /// Returns the character that stands between the type of an entity and its id in the keys of this journal.
    pub(crate) fn separator(self) -> char {
        match self {
            Kind::AkkaJdbc | Kind::AkkaR2dbc | Kind::AkkaPostgres | Kind::AkkaSql => '|',
            _ => '-',
        }
    }

    /// Returns the forms of URLs that this kind is read from.
    pub(crate) fn urls(self) -> &'static str {
        match self {
            Kind::AkkaSql | Kind::Emmett => "postgres://… or sqlite:PATH",
            Kind::KurrentDb => "kurrentdb://HOST:PORT?tls=false (or esdb://…)",
            Kind::Lines => "the path of a file, or - for standard input",
            _ => "postgres://…",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = match text {
            "pekko-persistence-jdbc" => Some(Kind::AkkaJdbc),
            "pekko-persistence-r2dbc" => Some(Kind::AkkaR2dbc),
            "eventstoredb" => Some(Kind::KurrentDb),
            text => Kind::ALL.into_iter().find(|kind| kind.name() == text),
        };
        found.ok_or_else(|| {
            let names = Kind::ALL.map(Kind::name).join(", ");
            let rule = format!(
                "must be one of {names}, pekko-persistence-jdbc, pekko-persistence-r2dbc, eventstoredb, found {text:?}"
            );
            Error::invalid("kind", rule)
        })
    }
}
