//! Reads that the sequencer asks for: as data, so that a simulation can answer them as well as a database.

use std::sync::Arc;

use gesta_core::backend::{EventRef, LoadRequest, Loaded, LogEnd};
use gesta_core::{Error, IdempotencyWindow, Position, Result, Timestamp};

use super::knowledge::{Hashes, Listing, OlderIds};
use super::lookup::{Found, Hits, Questions, Search};

/// Number of a read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct JobId(pub(crate) u64);

/// A read that the sequencer wants done.
#[derive(Debug, Clone)]
pub struct Job(pub(crate) What);

impl Job {
    /// The answer if the read fails.
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
        })
    }
}

/// What is read.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// The end of the log.
    End,
    /// The next events of the log after this position, at most this many.
    After(Position, usize),
    /// Streams and types.
    Load(LoadRequest),
    /// Where the first events of several commands are in the window, if they are.
    Search(Search),
    /// Whether the events of one command are stored, where a search has found this.
    LookUp(Questions, Arc<Hits>),
    /// The names of all streams.
    List(Listing),
    /// Where the deduplication window begins.
    WindowStart {
        window: IdempotencyWindow,
        now: Timestamp,
        end: Position,
    },
    /// The ids of a range of positions.
    Ids(OlderIds),
}

/// The answer to a [`Job`], each to its own kind.
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
    /// `None`: more names than are to be kept.
    Listed(Result<Option<Hashes>>),
    WindowStart(Result<Position>),
    Ids(Result<OlderIds>),
}
