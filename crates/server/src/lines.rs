//! Answers in lines: everything that a read finds, one event in each line.
//!
//! While a page is encoded and sent the next one is read, and no more. Invariant: a page counts among the bytes in
//! flight from when it was read until the connection asks for the one after it.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use gesta_core::{RecordedEvent, Resolved, shares};
use gesta_wire::event;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use tokio_util::task::AbortOnDropHandle;

use crate::api::{Admitted, Answer, Call, with_type};
use crate::body::{AnswerBody, BrokenOff, Reservation};
use crate::pages::{Links, PAGE_EVENTS, PageReader, Read};
use crate::problem::{Problem, Result, UNAVAILABLE};
use crate::state::State;

/// The media type of such answers.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// The events of a page.
enum PageEvents {
    AsTheyAre(Vec<RecordedEvent>),
    Followed(Vec<Resolved>),
}

impl PageEvents {
    fn len(&self) -> usize {
        match self {
            PageEvents::AsTheyAre(events) => events.len(),
            PageEvents::Followed(events) => events.len(),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            PageEvents::AsTheyAre(events) => events.truncate(len),
            PageEvents::Followed(events) => events.truncate(len),
        }
    }

    /// Returns the memory that the events hold.
    fn cost_bytes(&self) -> usize {
        match self {
            PageEvents::AsTheyAre(events) => events.iter().map(RecordedEvent::cost_bytes).sum(),
            PageEvents::Followed(events) => events.iter().map(Resolved::cost_bytes).sum(),
        }
    }

    fn into_lines(self) -> Bytes {
        match self {
            PageEvents::AsTheyAre(events) => event::write_lines(events),
            PageEvents::Followed(events) => event::write_resolved_lines(events),
        }
    }
}

/// A page that was read, and its share of the bytes in flight.
struct Page {
    found: PageEvents,
    held: Reservation,
}

impl Page {
    /// Encodes the page, which is gone afterwards.
    fn into_lines(self) -> Result<(Bytes, Reservation)> {
        let Page { found, mut held } = self;
        let lines = found.into_lines();
        held.set(lines.len())?;
        Ok((lines, held))
    }
}

/// What is left of an answer in lines.
struct Lines {
    state: Arc<State>,
    admitted: Admitted,
    reader: PageReader,
    links: Links,
    /// Number of events that may still be sent.
    left: usize,
    /// True if the last page had no event that the caller may see.
    was_empty: bool,
    end: bool,
}

impl Lines {
    /// Reads the next page that has events; returns `None` at the end.
    async fn next(&mut self) -> Result<Option<Page>> {
        while !self.end && self.left > 0 {
            let found = self.page().await?;
            self.left -= found.len();
            self.was_empty = found.len() == 0;
            if !self.was_empty {
                let mut held = self.admitted.reservation(&self.state);
                held.grow(found.cost_bytes())?;
                return Ok(Some(Page { found, held }));
            }
        }
        Ok(None)
    }

    /// Reads a page, of no more events than may still be sent.
    async fn page(&mut self) -> Result<PageEvents> {
        let _turn = self.state.turn_to_read(self.admitted.holder()).await;
        let store = &*self.admitted.store;
        // Events are left out for want of rights. Then more may have to be looked at than are wanted, and not in pages
        // of a few.
        let limit = match self.was_empty {
            true => PAGE_EVENTS,
            false => self.left.min(PAGE_EVENTS),
        };
        let mut found = match self.links {
            Links::AsTheyAre => {
                let Read { events, end, .. } = self.reader.page(store, limit).await?;
                self.end = end;
                PageEvents::AsTheyAre(events)
            }
            Links::Followed => {
                let (events, end) = self.reader.resolved_page(store, limit).await?;
                self.end = end;
                PageEvents::Followed(events)
            }
        };
        found.truncate(self.left);
        Ok(found)
    }

    /// Begins to read the next page in a task of its own.
    fn read_next(mut self) -> NextPage {
        AbortOnDropHandle::new(tokio::spawn(async move {
            let holder = self.admitted.holder().clone();
            let page = shares::act(&holder, self.next()).await;
            (self, page)
        }))
    }
}

/// A page that is being read, with what is left of the answer after it.
type NextPage = AbortOnDropHandle<(Lines, Result<Option<Page>>)>;

/// Answers with everything up to the end, or up to `limit` events. The first page is read and encoded before the answer
/// begins, so that the status tells what is wrong; an error that comes later breaks the answer off.
pub(crate) async fn lines(
    call: &Call<'_>,
    reader: PageReader,
    links: Links,
    limit: Option<usize>,
) -> Result<Answer> {
    let mut lines = Lines {
        state: call.state.clone(),
        admitted: call.admitted().clone(),
        reader,
        links,
        left: limit.unwrap_or(usize::MAX),
        was_empty: false,
        end: false,
    };
    let (first, rest) = match lines.next().await? {
        None => (None, None),
        Some(page) => {
            let next_page = lines.read_next();
            let (lines, held) = page.into_lines()?;
            (Some(lines), Some((held, next_page)))
        }
    };
    // The share of a page is given back when the connection asks for the next one.
    let rest = stream::unfold(rest, |state| async {
        let (held, next_page) = state?;
        drop(held);
        let broken_off = match part(next_page).await {
            Ok(None) => return None,
            Ok(Some((lines, rest))) => return Some((Ok(lines), Some(rest))),
            Err(problem) => BrokenOff::unavailable(problem.detail.clone()),
        };
        tracing::warn!(detail = %broken_off, "answer breaks off");
        Some((Err(broken_off), None))
    });
    let parts = stream::iter(first.map(Ok)).chain(rest);
    Ok(with_type(
        StatusCode::OK,
        HeaderValue::from_static(NDJSON),
        AnswerBody::parts(parts),
    ))
}

/// Waits for a page, begins to read the one after it, and encodes it. Returns `None` at the end.
async fn part(next_page: NextPage) -> Result<Option<(Bytes, (Reservation, NextPage))>> {
    let ended = |error| Problem::new(UNAVAILABLE, format!("a read ended early: {error}"));
    let (rest, page) = next_page.await.map_err(ended)?;
    let Some(page) = page? else {
        return Ok(None);
    };
    let next_page = rest.read_next();
    let (lines, held) = page.into_lines()?;
    Ok(Some((lines, (held, next_page))))
}
