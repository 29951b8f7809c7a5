//! A page that is filled with events, in their order.

use gesta_core::backend::{LogSlice, Rows};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{Direction, Position, RecordedEvent};

use crate::error::Outcome;
use crate::payload::Payloads;
use crate::row::out_of_order;

/// Number of events up to which a page takes memory before it has found any.
const PAGE_CAPACITY_MAX: usize = 1_024;

/// A page while it is filled.
///
/// Rows must come in order, and inside the part that was asked for. A caller goes on after the last event of a page, so
/// rows of a damaged index could otherwise lead it round in circles.
pub(crate) struct Page {
    direction: Direction,
    /// The last position that was taken, or the border of the part that was asked for.
    border: Option<Position>,
    limit: usize,
    /// Memory of the events of the answer so far, roughly, in bytes.
    pub(crate) bytes: usize,
    /// True if the first event is taken even if it is larger than what is left, so that the caller makes progress.
    pub(crate) takes_first: bool,
    pub(crate) payloads: Payloads,
    pub(crate) rows: Rows,
}

impl Page {
    pub(crate) fn new(limit: usize, direction: Direction, border: Option<Position>) -> Self {
        let events = Vec::with_capacity(limit.min(PAGE_CAPACITY_MAX));
        Self {
            direction,
            border,
            limit: limit.max(1),
            bytes: 0,
            takes_first: true,
            payloads: Payloads::default(),
            rows: Rows {
                events,
                complete: true,
                last_writer: None,
            },
        }
    }

    /// Takes an event. Returns false if the page was full; the page is then not complete.
    ///
    /// # Errors
    /// `Corrupt` if the event is out of order.
    pub(crate) fn push(&mut self, event: RecordedEvent) -> Outcome<bool> {
        let in_order = self.border.is_none_or(|border| match self.direction {
            Direction::Forwards => event.position > border,
            Direction::Backwards => event.position < border,
        });
        if !in_order {
            let position = event.position;
            return Err(out_of_order(position.0.cast_signed()).into());
        }
        self.border = Some(event.position);
        let bytes = self.bytes.saturating_add(event.cost_bytes());
        let full = self.rows.events.len() >= self.limit || bytes > PAGE_BYTES_MAX;
        if full && !(self.takes_first && self.rows.events.is_empty()) {
            self.rows.complete = false;
            return Ok(false);
        }
        self.bytes = bytes;
        self.rows.events.push(event);
        Ok(true)
    }

    /// Returns true if no further event can be taken, so that the next one need not be decoded.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.events.len() >= self.limit
    }

    pub(crate) fn finish(self) -> Rows {
        self.rows
    }

    pub(crate) fn finish_incomplete(mut self) -> Rows {
        self.rows.complete = false;
        self.rows
    }
}

/// Makes an empty page for a part of the log.
pub(crate) fn log_page_of(slice: &LogSlice) -> Page {
    let border = match slice.direction {
        Direction::Forwards => slice.after,
        Direction::Backwards => slice.to.next(),
    };
    Page::new(slice.limit, slice.direction, Some(border))
}
