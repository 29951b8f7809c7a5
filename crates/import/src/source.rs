//! Sources: journals that are read page by page, in their order.
//!
//! Invariants: a page holds everything that the journal shows after a place and up to the place that it names; nothing
//! can appear there later, or the source looks for it again by itself. Events of one stream come in their order, or
//! `between` gives what was passed over.

mod akka;
mod emmett;
mod fence;
mod field;
mod kurrent;
mod lines;
mod mark;
mod numbered;
mod postgres;
mod r2dbc;
mod row;
mod shape;
mod sqlite;

use async_trait::async_trait;
use gesta_core::{Error, Result};

use crate::event::{Place, SourceEvent};
use crate::kind::Kind;
use crate::options::Options;

/// The most events in one page.
const PAGE_EVENTS: usize = 5_000;
/// A page ends early after so many bytes.
const PAGE_BYTES: usize = 16 * 1024 * 1024;

/// A page of events.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) events: Vec<SourceEvent>,
    /// The place up to which nothing is left to read.
    pub(crate) place: Place,
    /// Whether the source had nothing after it.
    pub(crate) end: bool,
    /// For whom the source waits before it can tell what follows.
    pub(crate) waiting: Option<String>,
    /// Whether the events stand before what was read already.
    pub(crate) late: bool,
}

/// A journal that is read.
#[async_trait]
pub(crate) trait Source: Send {
    /// Returns which database or server this is, so that a checkpoint is not used for another one.
    fn identity(&self) -> String;

    /// Returns what tells the server from every other one that has a database of the same name; `None` if nothing does,
    /// or if [`mark`](Self::mark) does.
    fn server(&self) -> Option<String> {
        None
    }

    /// Tells whether a place means the same when the source is opened again.
    fn resumes(&self) -> bool {
        true
    }

    /// Returns what identifies the last event that was read, if numbers can be given out again, or nothing else tells
    /// which source this is.
    fn mark(&self) -> Option<String> {
        None
    }

    /// Takes the mark of a checkpoint.
    fn recall(&mut self, mark: &str) {
        let _ = mark;
    }

    /// Reads the page after a place. The place of the page can be an earlier one if numbers were given out again.
    async fn page(&mut self, after: Place) -> Result<Page>;

    /// Reads events of the stream of `event` from one number up to, but without, another.
    async fn between(
        &mut self,
        event: &SourceEvent,
        from: u64,
        to: u64,
    ) -> Result<Vec<SourceEvent>> {
        let _ = (event, from, to);
        Ok(Vec::new())
    }

    /// Counts the events after a place; `None` if that would take as long as reading them.
    async fn count(&mut self, after: Place) -> Result<Option<u64>>;

    /// Counts the snapshots; `None` if the source has none.
    async fn snapshots(&mut self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// Opens a source.
///
/// # Errors
/// `Unavailable` if it does not answer; `InvalidArgument` or `Unsupported` if it is no journal of this kind.
pub(crate) async fn open(options: &Options) -> Result<Box<dyn Source>> {
    let is_sqlite = options.url.starts_with("sqlite:");
    Ok(match options.kind {
        Kind::AkkaSql | Kind::Emmett if is_sqlite => Box::new(sqlite::Sqlite::open(options).await?),
        Kind::AkkaR2dbc => Box::new(r2dbc::R2dbc::open(options).await?),
        Kind::Emmett => Box::new(emmett::Emmett::open(options).await?),
        Kind::KurrentDb => Box::new(kurrent::Kurrent::open(options).await?),
        Kind::Lines => Box::new(lines::Lines::open(options)?),
        _ => Box::new(numbered::Numbered::open(options).await?),
    })
}

/// Tells whether a source can be opened, before anything is made in the target.
///
/// # Errors
/// Those of [`open`].
pub(crate) async fn check(options: &Options) -> Result<()> {
    match options.kind {
        // A pipe is opened once.
        Kind::Lines => lines::check(&options.url),
        _ => open(options).await.map(drop),
    }
}

/// Names several tables in a sentence, each once.
fn either(names: &[&str]) -> String {
    let mut each: Vec<&str> = Vec::new();
    for name in names {
        if !each.contains(name) {
            each.push(name);
        }
    }
    each.join(" or ")
}

/// The error of a source whose transactions do not end.
pub(crate) fn still_open(told: &str) -> Error {
    Error::unavailable(format!(
        "the source: still waits for {told}; end them, or follow (--follow)"
    ))
}
