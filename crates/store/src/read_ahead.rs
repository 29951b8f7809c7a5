//! All events are read fast here: the next pages are read while one is used.
//!
//! A log is cut into windows of positions, so that the next read need not wait for the answer of the one before. Each
//! read is a task of its own, so the database works while the caller does.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::{Stream, stream};
use gesta_core::backend::{History, LogSlice, Rows};
use gesta_core::limits::PAGE_SCAN_MAX;
use gesta_core::{AllFrom, AllPage, Checkpoint, Direction, Error, Position, ReadAll, Result};
use tokio_util::task::AbortOnDropHandle;

use crate::Store;
use crate::all::{check_not_above, log_id};

/// Number of windows that are read while a page is used.
const WINDOWS_AHEAD: usize = 2;

/// A part of a log that is being read.
struct Window {
    log: usize,
    to: Position,
    rows: AbortOnDropHandle<Result<Rows>>,
}

struct ReadAhead {
    store: Arc<Store>,
    /// The history to which all pages belong.
    history: History,
    request: ReadAll,
    /// Position up to which each log was handed over.
    at: Vec<Position>,
    ends: Vec<Position>,
    /// Index of the log in which the next window begins.
    log: usize,
    /// Position after which the next window begins.
    next: Position,
    windows: VecDeque<Window>,
    /// Number of positions of one window.
    width: u64,
    done: bool,
}

impl Store {
    /// Reads all events forwards from `request.from` up to the ends that the logs have now, page by page. It reads the
    /// next pages while one is used. `request.limit` is the largest number of events of a page; the direction is
    /// ignored.
    ///
    /// At most three pages are held. The stream ends after the page whose `end` is true, or after an error.
    ///
    /// # Errors
    /// Those of [`read_all`](gesta_core::EventStore::read_all), as an item of the stream.
    ///
    /// # Cancel safety
    /// Dropping the stream ends the reads.
    pub fn read_ahead(
        self: &Arc<Self>,
        request: ReadAll,
    ) -> impl Stream<Item = Result<AllPage>> + Send + use<> {
        let store = Arc::clone(self);
        let request = ReadAll {
            direction: Direction::Forwards,
            ..request
        };
        stream::unfold(Begin::Not(store, request), |state| async move {
            let mut reader = match state {
                Begin::Not(store, request) => match ReadAhead::begin(store, request).await {
                    Ok(reader) => Box::new(reader),
                    Err(error) => return Some((Err(error.during("read all")), Begin::Failed)),
                },
                Begin::Done(reader) => reader,
                Begin::Failed => return None,
            };
            if reader.done {
                return None;
            }
            match reader.page().await {
                Ok(page) => Some((Ok(page), Begin::Done(reader))),
                Err(error) => Some((Err(error.during("read all")), Begin::Failed)),
            }
        })
    }
}

/// State of the stream of [`Store::read_ahead`].
enum Begin {
    Not(Arc<Store>, ReadAll),
    Done(Box<ReadAhead>),
    Failed,
}

impl ReadAhead {
    async fn begin(store: Arc<Store>, request: ReadAll) -> Result<Self> {
        store.check_open()?;
        request.validate()?;
        let history = store.backend.history();
        let ends = store.heads().await?;
        let at = match &request.from {
            AllFrom::End => ends.clone(),
            _ => store.beginning(&request, history).await?.0,
        };
        for (log, (at, end)) in at.iter().zip(&ends).enumerate() {
            check_not_above(log, *at, *end)?;
        }
        let width = if request.filter.is_all() {
            request.limit as u64
        } else {
            PAGE_SCAN_MAX
        };
        Ok(Self {
            next: at.first().copied().unwrap_or_default(),
            log: 0,
            windows: VecDeque::new(),
            width,
            done: false,
            store,
            history,
            request,
            at,
            ends,
        })
    }

    /// Returns the next page. It is empty only if a filter found nothing in it, or at the end.
    async fn page(&mut self) -> Result<AllPage> {
        self.look_ahead();
        let Some(window) = self.windows.pop_front() else {
            return Ok(self.handed_over(Vec::new()));
        };
        self.look_ahead();
        let failed = |error| Error::unavailable("a read ended early").caused_by(error);
        let rows = window.rows.await.map_err(failed)??;
        if self.store.backend.history() != self.history {
            return Err(Error::unavailable(
                "the history of the store has changed: begin anew",
            ));
        }
        let last = rows.events.last().map(|event| event.position);
        match last.filter(|_| !rows.complete) {
            None => self.at[window.log] = window.to,
            Some(last) => {
                self.at[window.log] = last;
                let rest = self.window(window.log, last, window.to);
                self.windows.push_front(rest);
            }
        }
        Ok(self.handed_over(rows.events))
    }

    /// Begins to read windows until enough of them are under way.
    fn look_ahead(&mut self) {
        while self.windows.len() < WINDOWS_AHEAD {
            let Some(end) = self.ends.get(self.log).copied() else {
                return;
            };
            if self.next >= end {
                self.log += 1;
                self.next = self.at.get(self.log).copied().unwrap_or_default();
                continue;
            }
            let to = self.next.plus(self.width).min(end);
            let window = self.window(self.log, self.next, to);
            self.next = to;
            self.windows.push_back(window);
        }
    }

    fn window(&self, log: usize, after: Position, to: Position) -> Window {
        let slice = LogSlice {
            log: log_id(log),
            after,
            to,
            direction: Direction::Forwards,
            filter: self.request.filter.clone(),
            limit: self.request.limit,
        };
        let backend = Arc::clone(&self.store.backend);
        let rows = tokio::spawn(async move { backend.read_log(slice).await });
        Window {
            log,
            to,
            rows: AbortOnDropHandle::new(rows),
        }
    }

    fn handed_over(&mut self, events: Vec<gesta_core::RecordedEvent>) -> AllPage {
        self.done = self.windows.is_empty() && self.at == self.ends;
        AllPage {
            events,
            next: Checkpoint::logs(self.history.incarnation, self.at.clone()),
            end: self.done,
        }
    }
}
