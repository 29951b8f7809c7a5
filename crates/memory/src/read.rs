//! Pages of a stream, of all events, and of the names of streams.

use std::sync::Arc;

use gesta_core::limits::{PAGE_BYTES_MAX, PAGE_SCAN_MAX};
use gesta_core::{
    Direction, ErrorKind, ListStreams, LogId, Position, ReadAll, ReadStream, RecordedEvent, Result,
    Revision, SharedEvent, StreamFrom, StreamId, StreamInfo, StreamPage, StreamsPage, Timestamp,
    virtual_link, virtual_streams_of,
};

use crate::state::State;

/// A page while it is filled.
struct Page {
    events: Vec<RecordedEvent>,
    limit: usize,
    cost_bytes: usize,
}

impl Page {
    fn new(limit: usize) -> Self {
        Self {
            events: Vec::new(),
            limit,
            cost_bytes: 0,
        }
    }

    /// Returns true if the event still fits. The first event always fits.
    fn takes(&self, event: &RecordedEvent) -> bool {
        self.events.is_empty()
            || (self.events.len() < self.limit
                && self.cost_bytes + event.cost_bytes() <= PAGE_BYTES_MAX)
    }

    fn push(&mut self, event: &RecordedEvent) {
        self.cost_bytes += event.cost_bytes();
        self.events.push(event.clone());
    }
}

/// Result of a read of all events.
pub(crate) struct Found {
    pub(crate) events: Vec<RecordedEvent>,
    pub(crate) end: bool,
}

impl State {
    pub(crate) fn read_stream(&self, request: &ReadStream, now: Timestamp) -> Result<StreamPage> {
        request.validate()?;
        self.check_has(&request.stream)?;
        let lifecycle = self.lifecycle_unless_tombstoned(&request.stream)?;
        let last = self.last(&request.stream);
        let Some(last) = last.filter(|_| lifecycle.exists(last)) else {
            return Err(ErrorKind::StreamNotFound(request.stream.clone()).into());
        };
        let visible = self.visible(&request.stream, now)?;
        Ok(match request.direction {
            Direction::Forwards => forwards(request, &visible, last),
            Direction::Backwards => backwards(request, &visible, last),
        })
    }

    /// Returns the events of a stream that readers may see; none if the stream does not exist.
    pub(crate) fn visible(&self, stream: &StreamId, now: Timestamp) -> Result<Vec<SharedEvent>> {
        if stream.is_virtual() {
            return Ok(self.links(stream));
        }
        let lifecycle = self.lifecycle_unless_tombstoned(stream)?;
        let events = self.streams.get(stream).map_or(&[][..], |s| &s.events);
        let Some(last) = events.last() else {
            return Ok(Vec::new());
        };
        let visibility = lifecycle.visibility(last.revision, now);
        Ok(events
            .iter()
            .filter(|event| visibility.shows(event.revision, event.created))
            .cloned()
            .collect())
    }

    /// Makes the links of a virtual stream: one for each event of the log that stands in it, in their order.
    pub(crate) fn links(&self, stream: &StreamId) -> Vec<SharedEvent> {
        let stands_here = |event: &&SharedEvent| {
            let found = virtual_streams_of(&event.stream, event.revision, &event.event_type);
            found.iter().any(|(_, name)| name == stream)
        };
        let events = self.log(LogId(0)).iter().filter(stands_here);
        let links = (0..).map(Revision).zip(events);
        links
            .map(|(revision, event)| Arc::new(virtual_link(stream, revision, &**event)))
            .collect()
    }

    /// Checks that the store can have this stream.
    ///
    /// # Errors
    /// `Unsupported` if the stream is virtual and the store has several logs.
    pub(crate) fn check_has(&self, stream: &StreamId) -> Result<()> {
        let logs = self.logs.len();
        if logs == 1 || !stream.is_virtual() {
            return Ok(());
        }
        let text = format!(
            "virtual streams need one order of all events, and this store has {logs} logs: a store of one log has them"
        );
        Err(ErrorKind::Unsupported(text).into())
    }

    /// Reads forwards after the positions in `at`, and moves them on.
    pub(crate) fn read_forwards(&self, at: &mut [Position], request: &ReadAll) -> Result<Found> {
        let (limit, filter) = (request.limit, &request.filter);
        let mut page = Page::new(limit);
        let mut positions = 0;
        for number in request.reading_order(at)? {
            let (log, at) = (&self.logs[number], &mut at[number]);
            while let Some(event) = log.get(index(*at)) {
                let wanted = filter.matches(event);
                if positions == PAGE_SCAN_MAX || page.events.len() == limit {
                    return Ok(page.unfinished());
                }
                if wanted && !page.takes(event) {
                    return Ok(page.unfinished());
                }
                if wanted {
                    page.push(event);
                }
                *at = event.position;
                positions += 1;
            }
        }
        Ok(page.finished())
    }

    /// Reads backwards from the positions in `at`, which are included, and moves them back.
    pub(crate) fn read_backwards(&self, at: &mut [Position], request: &ReadAll) -> Result<Found> {
        let (limit, filter) = (request.limit, &request.filter);
        let mut page = Page::new(limit);
        let mut positions = 0;
        for number in request.reading_order(at)?.rev() {
            let (log, at) = (&self.logs[number], &mut at[number]);
            while let Some(event) =
                at.0.checked_sub(1)
                    .and_then(|i| log.get(index(Position(i))))
            {
                let wanted = filter.matches(event);
                if positions == PAGE_SCAN_MAX || page.events.len() == limit {
                    return Ok(page.unfinished());
                }
                if wanted && !page.takes(event) {
                    return Ok(page.unfinished());
                }
                if wanted {
                    page.push(event);
                }
                *at = Position(event.position.0 - 1);
                positions += 1;
            }
        }
        Ok(page.finished())
    }

    pub(crate) fn list(&self, request: &ListStreams) -> Result<StreamsPage> {
        request.validate()?;
        let mut found = Vec::new();
        for (name, stream) in &self.streams {
            let listed = name.as_str().starts_with(&request.prefix)
                && (!name.is_system() || request.prefix.starts_with('$'))
                && request.after.as_ref().is_none_or(|after| name > after);
            let last = stream.last();
            if !listed || !self.lifecycle(name)?.exists(last) {
                continue;
            }
            if found.len() == request.limit {
                let next = found.last().map(|info: &StreamInfo| info.stream.clone());
                return Ok(StreamsPage {
                    streams: found,
                    next,
                });
            }
            found.extend(last.map(|last_revision| StreamInfo {
                stream: name.clone(),
                last_revision,
            }));
        }
        Ok(StreamsPage {
            streams: found,
            next: None,
        })
    }
}

impl Page {
    fn finished(self) -> Found {
        Found {
            events: self.events,
            end: true,
        }
    }

    fn unfinished(self) -> Found {
        Found {
            events: self.events,
            end: false,
        }
    }
}

/// Returns the index of the event after this position.
fn index(position: Position) -> usize {
    usize::try_from(position.0).unwrap_or(usize::MAX)
}

fn forwards(request: &ReadStream, visible: &[SharedEvent], last: Revision) -> StreamPage {
    let from = match request.from {
        StreamFrom::Start => Revision(0),
        StreamFrom::Revision(revision) => revision,
        StreamFrom::End => last.next(),
    };
    let mut page = Page::new(request.limit);
    let mut rest = visible.iter().filter(|event| event.revision >= from);
    let left = rest.find(|event| {
        let fits = page.takes(event);
        if fits {
            page.push(event);
        }
        !fits
    });
    let next = left.map_or(from.max(last.next()), |event| event.revision);
    StreamPage {
        events: page.events,
        next: Some(next),
        end: left.is_none(),
        last_revision: last,
    }
}

fn backwards(request: &ReadStream, visible: &[SharedEvent], last: Revision) -> StreamPage {
    let from = match request.from {
        StreamFrom::Start => visible.first().map_or(Revision(0), |event| event.revision),
        StreamFrom::Revision(revision) => revision,
        StreamFrom::End => last,
    };
    let mut page = Page::new(request.limit);
    let mut rest = visible.iter().rev().filter(|event| event.revision <= from);
    let left = rest.find(|event| {
        let fits = page.takes(event);
        if fits {
            page.push(event);
        }
        !fits
    });
    StreamPage {
        events: page.events,
        next: left.map(|event| event.revision),
        end: left.is_none(),
        last_revision: last,
    }
}
