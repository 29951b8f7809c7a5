//! Answers in lines: everything that a read finds, one event in each line.
//!
//! While a page is encoded and sent the next one is read, unless the page is large, and no more. A page is encoded in
//! parts, since its events and all of their lines together are twice its bytes. Invariant: an event counts among the
//! bytes in flight from when it was read, and its lines until the connection asks for the ones after them.

use std::sync::Arc;
use std::vec;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use gesta_core::{RecordedEvent, Resolved, shares};
use gesta_wire::event;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use tokio_util::task::AbortOnDropHandle;

use crate::call::{Admitted, Answer, Call, with_type};
use crate::shared::body::{AnswerBody, BrokenOff, Reservation};
use crate::shared::pages::{Links, PAGE_EVENTS, PageReader, Read};
use crate::shared::problem::{Problem, Result, UNAVAILABLE};
use crate::state::State;

/// The media type of such answers.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// Bytes of events that are encoded together.
const CHUNK_BYTES: usize = 1024 * 1024;
/// A page of more bytes is sent before the next one is read: two of them would be much to hold.
const AHEAD_BYTES_MAX: usize = 8 * 1024 * 1024;

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
}

/// The events of a page that are not encoded yet, in their order.
enum EventsLeft {
    AsTheyAre(vec::IntoIter<RecordedEvent>),
    Followed(vec::IntoIter<Resolved>),
}

impl From<PageEvents> for EventsLeft {
    fn from(events: PageEvents) -> Self {
        match events {
            PageEvents::AsTheyAre(events) => EventsLeft::AsTheyAre(events.into_iter()),
            PageEvents::Followed(events) => EventsLeft::Followed(events.into_iter()),
        }
    }
}

/// Takes the next events, of about [`CHUNK_BYTES`]; returns their cost too.
fn take<T>(events: &mut vec::IntoIter<T>, cost_bytes: impl Fn(&T) -> usize) -> (Vec<T>, usize) {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while bytes < CHUNK_BYTES
        && let Some(event) = events.next()
    {
        bytes += cost_bytes(&event);
        taken.push(event);
    }
    (taken, bytes)
}

/// A page that was read, and its share of the bytes in flight.
struct Page {
    left: EventsLeft,
    /// Memory that the events hold that are left.
    left_bytes: usize,
    held: Reservation,
}

impl Page {
    /// Encodes the next events, which are gone afterwards; returns `None` after the last one. What was encoded before
    /// is no longer counted.
    fn next_lines(&mut self) -> Result<Option<Bytes>> {
        let (lines, bytes) = match &mut self.left {
            EventsLeft::AsTheyAre(left) => {
                let (events, bytes) = take(left, RecordedEvent::cost_bytes);
                (event::write_lines(events), bytes)
            }
            EventsLeft::Followed(left) => {
                let (events, bytes) = take(left, Resolved::cost_bytes);
                (event::write_resolved_lines(events), bytes)
            }
        };
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        self.held.set(self.left_bytes + lines.len())?;
        Ok((!lines.is_empty()).then_some(lines))
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
                let left_bytes = found.cost_bytes();
                held.grow(left_bytes)?;
                return Ok(Some(Page {
                    left: found.into(),
                    left_bytes,
                    held,
                }));
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

/// A page that is being sent, and what follows it.
struct Sending {
    page: Page,
    rest: Rest,
}

/// What follows a page.
enum Rest {
    /// The next page is being read meanwhile.
    BeingRead(NextPage),
    /// The next page is read once this one was sent.
    ToBeRead(Box<Lines>),
}

impl Sending {
    fn new(page: Page, lines: Lines) -> Self {
        let rest = match page.left_bytes > AHEAD_BYTES_MAX {
            true => Rest::ToBeRead(Box::new(lines)),
            false => Rest::BeingRead(lines.read_next()),
        };
        Self { page, rest }
    }

    /// Returns the next lines, with what is left after them; `None` at the end.
    async fn next(mut self) -> Result<Option<(Bytes, Self)>> {
        loop {
            if let Some(lines) = self.page.next_lines()? {
                return Ok(Some((lines, self)));
            }
            drop(self.page);
            let next_page = match self.rest {
                Rest::BeingRead(next_page) => next_page,
                Rest::ToBeRead(lines) => lines.read_next(),
            };
            let ended = |error| Problem::new(UNAVAILABLE, format!("a read ended early: {error}"));
            let (lines, page) = next_page.await.map_err(ended)?;
            let Some(page) = page? else {
                return Ok(None);
            };
            self = Self::new(page, lines);
        }
    }
}

/// Answers with everything up to the end, or up to `limit` events. The first page is read and its first lines are
/// encoded before the answer begins, so that the status tells what is wrong; an error that comes later breaks the
/// answer off.
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
    let first = match lines.next().await? {
        None => None,
        Some(page) => Sending::new(page, lines).next().await?,
    };
    let (first, rest) = first.unzip();
    let rest = stream::unfold(rest, async |sending| {
        let broken_off = match sending?.next().await {
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
