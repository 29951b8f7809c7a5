//! Errors of calls: a problem document, and what goes with it in the head of the answer.
//!
//! Not here: the documents and the table from [`ErrorKind`] (`gesta_wire`), errors of HTTP that hyper itself answers
//! (`edge`).

use std::ops::Deref;
use std::sync::LazyLock;

use gesta_access::FOR_OPERATORS;
use gesta_core::{Error, ErrorKind};
use gesta_grpc::Refusal;
use gesta_wire::problem::Document;
pub(crate) use gesta_wire::problem::*;
use hyper::StatusCode;
use tokio::time::Instant;

use crate::shared::request_log::LinePace;

/// The error of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    document: Document,
    allow: Option<&'static str>,
    /// True if the store is away, which makes many requests fail.
    store_is_away: bool,
    /// Whether it says what only those may know who look after the server: what a database says, and what is damaged.
    is_for_operators: bool,
    /// Why it is so, for the log, if the caller is not told.
    why: Option<String>,
}

pub(crate) type Result<T> = std::result::Result<T, Problem>;

impl Deref for Problem {
    type Target = Document;

    fn deref(&self) -> &Document {
        &self.document
    }
}

impl From<Document> for Problem {
    fn from(document: Document) -> Self {
        Self {
            document,
            allow: None,
            store_is_away: false,
            is_for_operators: false,
            why: None,
        }
    }
}

impl Problem {
    pub(crate) fn new(kind: &'static ProblemKind, detail: impl Into<String>) -> Self {
        Document::new(kind, detail).into()
    }

    /// Makes the problem of a request that breaks a rule. `rule` continues a sentence that begins with `field`.
    pub(crate) fn invalid(field: impl Into<String>, rule: impl AsRef<str>) -> Self {
        Document::invalid(field, rule).into()
    }

    /// Makes the problem of an error. A wrong field has the name that it has in this request.
    pub(crate) fn invalid_at(field: impl Into<String>, error: &Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidArgument { rule, .. } => Self::invalid(field, rule),
            _ => Self::from(error),
        }
    }

    pub(crate) fn overloaded(detail: impl Into<String>) -> Self {
        Self::new(OVERLOADED, detail)
    }

    /// Makes the problem of a request that comes while the server stops.
    pub(crate) fn stopping() -> Self {
        Self::new(UNAVAILABLE, "the server is stopping")
    }

    pub(crate) fn field(mut self, field: impl Into<String>) -> Self {
        self.document.members.field = Some(field.into());
        self
    }

    /// Adds the methods that the address has.
    pub(crate) fn allowing(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    /// Returns the methods that the address has, if the method of the request is the problem.
    pub(crate) fn allow(&self) -> Option<&'static str> {
        self.allow
    }

    /// Returns true if the request failed because the store is away. The code that answers the request tells the log
    /// once.
    pub(crate) fn store_is_away(&self) -> bool {
        self.store_is_away
    }

    /// Returns what the log is told of why the request failed.
    pub(crate) fn why(&self) -> &str {
        self.why.as_deref().unwrap_or(&self.document.detail)
    }

    /// Leaves out what only those may know who look after the server.
    pub(crate) fn for_others(mut self) -> Self {
        if self.is_for_operators {
            let why = std::mem::replace(&mut self.document.detail, FOR_OPERATORS.to_owned());
            self.why.get_or_insert(why);
        }
        self
    }

    /// Returns the document alone.
    pub(crate) fn into_document(self) -> Document {
        self.document
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.kind.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl From<gesta_groups::Error> for Problem {
    fn from(error: gesta_groups::Error) -> Self {
        use gesta_groups::{Error as OfGroup, Refused};
        let kind = match &error {
            OfGroup::Store(error) => return Self::from(error),
            OfGroup::Exists(_) => GROUP_EXISTS,
            OfGroup::NotFound(_) => GROUP_NOT_FOUND,
            OfGroup::NotHere { .. } => GROUP_ELSEWHERE,
            OfGroup::NoConsumer { .. } => CONSUMER_NOT_FOUND,
            OfGroup::ReplayRunning(_) => GROUP_REPLAYING,
            OfGroup::Halted { .. } => GROUP_HALTED,
            OfGroup::Silent { .. } => CONSUMER_SILENT,
            OfGroup::Refused {
                refused: Refused::Full { .. },
                ..
            } => GROUP_FULL,
            OfGroup::Refused { refused, .. } => {
                return Self::invalid("buffer", refused.to_string());
            }
            OfGroup::Overloaded(text) => return Self::overloaded(text.clone()),
            OfGroup::Stopping => UNAVAILABLE,
            // Those that are left tell a consumer to join again.
            _ => GROUP_DROPPED,
        };
        let mut problem = Self::new(kind, error.to_string());
        let members = &mut problem.document.members;
        match error {
            OfGroup::NotHere { elsewhere, .. } => {
                members.owner = Some(GroupNode {
                    log: elsewhere.log.0,
                    node: elsewhere.node,
                    address: elsewhere.address,
                });
            }
            OfGroup::Refused {
                refused: Refused::Full { max },
                ..
            } => members.max = u64::try_from(max).ok(),
            _ => {}
        }
        problem
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let mut problem = Self::from(Document::from(error.kind()));
        let cause = || std::error::Error::source(error).map(ToString::to_string);
        let kind = problem.kind.name;
        problem.is_for_operators = [UNAVAILABLE, OUTCOME_UNKNOWN, CORRUPT, SCHEMA]
            .contains(&problem.kind)
            || error.is_for_administrator();
        if [UNAVAILABLE, OUTCOME_UNKNOWN].contains(&problem.kind) {
            problem.store_is_away = true;
            problem.why = cause();
            tracing::debug!(%error, cause = cause(), problem = kind, "request failed");
        } else if problem.kind == UNSUPPORTED && !error.is_for_administrator() {
            // Anybody may ask for what the store does not have.
            tracing::debug!(%error, cause = cause(), problem = kind, "request failed");
        } else if problem.status().is_server_error()
            && problem.kind != OVERLOADED
            && let Some(others) = turn_of_error()
        {
            tracing::error!(%error, cause = cause(), problem = kind, others, "request failed");
        }
        problem
    }
}

/// Writes to the log why a call failed, or a part of it, if callers may be told no more than that the log says why.
/// There is one line a second at most. A call that fails as a whole because the store is away is told by readiness.
pub(crate) fn tell_operators(path: Option<&str>, refusal: &Refusal) {
    // What an outage breaks leaves the lines of other faults alone.
    static OUTAGES: LazyLock<LinePace> = LazyLock::new(LinePace::begin);
    let turn = || match refusal.is_store_away() {
        true => OUTAGES.turn(Instant::now()),
        false => turn_of_error(),
    };
    if refusal.is_for_operators()
        && let Some(others) = turn()
    {
        tracing::error!(path, why = refusal.why(), others, "call failed");
    }
}

/// Returns how many errors were not told since the last line about one, if there may be another line now. Whoever asks
/// again and again for what cannot be read would fill the log.
fn turn_of_error() -> Option<u64> {
    static ERRORS: LazyLock<LinePace> = LazyLock::new(LinePace::begin);
    ERRORS.turn(Instant::now())
}

/// Returns the kind of problem that an error becomes.
pub(crate) fn kind_of(error: &Error) -> &'static ProblemKind {
    Document::from(error.kind()).kind
}
