//! Reads that the sequencer asks for. Reads are data, so that a simulation can answer them as well as a database.

use std::sync::Arc;

use gesta_core::backend::{EventRef, LoadRequest, Loaded, LogEnd};
use gesta_core::{Error, Filter, IdempotencyWindow, Position, Result, Timestamp};

use super::knowledge::{Hashes, Listing, OlderIds};
use super::lookup::{Found, Hits, Questions, Search};

/// The number of a read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct JobId(pub(crate) u64);

/// A read that the sequencer wants done.
#[derive(Debug, Clone)]
pub struct Job(pub(crate) What);

impl Job {
    /// Makes the answer to this read if it fails.
    #[must_use]
    pub fn fail(&self, error: Error) -> Answer {
        Answer(match &self.0 {
            What::End => Gave::End(Err(error)),
            What::After(..) => Gave::After(Err(error)),
            What::Load(_) => Gave::Loaded(Err(error)),
            What::Search(_) => Gave::Searched(Err(error)),
            What::LookUp(..) => Gave::LookedUp(Err(error)),
            What::List(_) => Gave::Listed(Err(error)),
            What::WindowStart { .. } => Gave::WindowStart(Err(error)),
            What::Ids(_) => Gave::Ids(Err(error)),
            What::Match(_) => Gave::Matched(Err(error)),
        })
    }
}

/// What is read.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// The end of the log is read.
    End,
    /// The next events of the log after this position are read, at most this many.
    After(Position, usize),
    /// The heads of streams and the row ids of event types are read.
    Load(LoadRequest),
    /// The first events of several commands are sought in the window.
    Search(Search),
    /// The events of one command are looked up. A search has found these hits.
    LookUp(Questions, Arc<Hits>),
    /// The names of all streams are read.
    List(Listing),
    /// The beginning of the deduplication window is sought.
    WindowStart {
        window: IdempotencyWindow,
        now: Timestamp,
        end: Position,
    },
    /// The ids of a range of positions are read.
    Ids(OlderIds),
    /// The first event is sought that passes a filter.
    Match(MatchSearch),
}

/// A search for the first event of a part of the log that passes a filter.
#[derive(Debug, Clone)]
pub(crate) struct MatchSearch {
    pub(crate) filter: Arc<Filter>,
    /// The position before the part.
    pub(crate) after: Position,
    /// The last position of the part.
    pub(crate) until: Position,
}

/// The answer to a [`Job`], of the kind of the job.
#[derive(Debug)]
pub struct Answer(pub(crate) Gave);

/// What a read gave.
#[derive(Debug)]
pub(crate) enum Gave {
    End(Result<LogEnd>),
    After(Result<Vec<EventRef>>),
    Loaded(Result<Loaded>),
    Searched(Result<Hits>),
    LookedUp(Result<Vec<Found>>),
    /// The names of all streams; `None` if there are more than are to be kept.
    Listed(Result<Option<Hashes>>),
    WindowStart(Result<Position>),
    Ids(Result<OlderIds>),
    Matched(Result<Option<Position>>),
}
