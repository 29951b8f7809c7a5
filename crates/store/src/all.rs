//! One page of all events is read here.
//!
//! A page reads one log after the other until it is full; with which it begins depends on its checkpoint
//! ([`ReadAll::reading_order`]), so that no log starves because of a busy one. An unfiltered page of a single log costs
//! one round trip. The end of a log is read where the answer depends on it: for a filter, whose windows must end
//! somewhere, and to tell a checkpoint at the end from one after the end.

use gesta_core::backend::{History, LogSlice, Purpose};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{
    AllFrom, AllPage, Checkpoint, Direction, ErrorKind, LogId, Position, ReadAll, RecordedEvent,
    Result,
};

use crate::Store;

/// A page while it is filled.
struct Page<'a> {
    store: &'a Store,
    history: History,
    request: &'a ReadAll,
    /// Position up to which each log was read; backwards, the position from which on it is still to be read.
    at: Vec<Position>,
    /// End of each log, if the ends had to be read.
    ends: Option<Vec<Position>>,
    events: Vec<RecordedEvent>,
    bytes: usize,
    /// Number of positions that may still be looked at.
    scan: u64,
}

impl Store {
    pub(crate) async fn all_page(&self, request: &ReadAll, history: History) -> Result<AllPage> {
        self.check_open()?;
        request.validate()?;
        let (at, ends) = self.beginning(request, history).await?;
        let page = Page {
            store: self,
            history,
            request,
            at,
            ends,
            events: Vec::new(),
            bytes: 0,
            scan: request.filter.scan_max(),
        };
        match request.direction {
            Direction::Forwards => page.forwards().await,
            Direction::Backwards => page.backwards().await,
        }
    }

    /// Returns where a read begins, and the ends of the logs if they had to be read.
    pub(crate) async fn beginning(
        &self,
        request: &ReadAll,
        history: History,
    ) -> Result<(Vec<Position>, Option<Vec<Position>>)> {
        let info = self.backend_info();
        let forwards = request.direction == Direction::Forwards;
        let ends = match &request.from {
            AllFrom::Start if !forwards => None,
            AllFrom::Start if request.filter.is_all() => None,
            // The page itself tells, unless it is empty.
            AllFrom::Checkpoint(_) if forwards && info.logs == 1 && request.filter.is_all() => None,
            _ => Some(self.heads().await?),
        };
        let at = match (&request.from, &ends) {
            (AllFrom::Checkpoint(checkpoint), _) => checkpoint
                .positions_for(history.incarnation, info.logs)?
                .to_vec(),
            (AllFrom::End, Some(ends)) => ends.clone(),
            (AllFrom::End | AllFrom::Start, _) => vec![Position::START; usize::from(info.logs)],
        };
        for (log, (at, end)) in at.iter().zip(ends.iter().flatten()).enumerate() {
            check_not_above(log, *at, *end)?;
        }
        Ok((at, ends))
    }
}

pub(crate) fn check_not_above(log: usize, position: Position, end: Position) -> Result<()> {
    if position > end {
        return Err(ErrorKind::InvalidCheckpoint(format!(
            "position {position} of log {log} is above its end {end}"
        ))
        .into());
    }
    Ok(())
}

impl Page<'_> {
    fn is_full(&self) -> bool {
        self.events.len() >= self.request.limit || self.bytes >= PAGE_BYTES_MAX
    }

    async fn forwards(mut self) -> Result<AllPage> {
        let mut order = self.request.reading_order(&self.at)?;
        while let Some(log) = order.next() {
            if self.is_full() {
                let end = self.are_all_read(std::iter::once(log).chain(order)).await?;
                return Ok(self.done(end));
            }
            if !self.read_forwards(log).await? {
                return Ok(self.done(false));
            }
        }
        Ok(self.done(true))
    }

    /// Reads on in one log. Returns true if the log was read to its end.
    async fn read_forwards(&mut self, log: usize) -> Result<bool> {
        let after = self.at[log];
        let end = self.ends.as_ref().and_then(|ends| ends.get(log).copied());
        let filtered = !self.request.filter.is_all();
        let to = match end {
            Some(end) if filtered => end.min(after.plus(self.scan)),
            _ => Position::MAX,
        };
        if filtered && to <= after {
            return Ok(end.is_none_or(|end| after >= end));
        }
        // Nothing is stored above the highest position.
        let complete = after >= to || self.read(log, after, to).await?;
        let last = self.events.last().filter(|event| event.position > after);
        let last = last.filter(|event| usize::from(event.log.0) == log);
        let last = last.map(|event| event.position);
        if !complete {
            self.at[log] = last.unwrap_or(after);
            return Ok(false);
        }
        if filtered {
            self.at[log] = to;
            self.scan -= to.0 - after.0;
            return Ok(end.is_none_or(|end| to >= end));
        }
        match last {
            Some(last) => self.at[log] = last,
            None if after > Position::START && end.is_none() => {
                let end = self
                    .store
                    .backend
                    .log_end(log_id(log), Purpose::Read)
                    .await?;
                check_not_above(log, after, end.position)?;
            }
            None => {}
        }
        Ok(true)
    }

    async fn backwards(mut self) -> Result<AllPage> {
        let mut order = self.request.reading_order(&self.at)?.rev();
        while let Some(log) = order.next() {
            if self.is_full() {
                let mut left = std::iter::once(log).chain(order);
                let end = left.all(|log| self.at[log] == Position::START);
                return Ok(self.done(end));
            }
            if !self.read_backwards(log).await? {
                return Ok(self.done(false));
            }
        }
        Ok(self.done(true))
    }

    /// Reads on in one log. Returns true if the log was read to its beginning.
    async fn read_backwards(&mut self, log: usize) -> Result<bool> {
        let to = self.at[log];
        let after = if self.request.filter.is_all() {
            Position::START
        } else {
            Position(to.0.saturating_sub(self.scan))
        };
        if to <= after {
            return Ok(to == Position::START);
        }
        if self.read(log, after, to).await? {
            self.scan = self.scan.saturating_sub(to.0 - after.0);
            self.at[log] = after;
            return Ok(after == Position::START);
        }
        let last = self
            .events
            .last()
            .filter(|event| usize::from(event.log.0) == log);
        self.at[log] = last.map_or(to, |event| Position(event.position.0.saturating_sub(1)));
        Ok(false)
    }

    /// Adds the events of a part of a log that fit. Returns true if the part held no more.
    async fn read(&mut self, log: usize, after: Position, to: Position) -> Result<bool> {
        let slice = LogSlice {
            log: log_id(log),
            after,
            to,
            direction: self.request.direction,
            filter: self.request.filter.clone(),
            limit: self.request.limit - self.events.len(),
        };
        let mut rows = self.store.backend.read_log(slice).await?;
        if self.events.is_empty() {
            self.bytes = rows.events.iter().map(RecordedEvent::cost_bytes).sum();
            self.events = rows.events;
            return Ok(rows.complete);
        }
        let fitting = rows.events.iter().take_while(|event| {
            let fits = self.bytes + event.cost_bytes() <= PAGE_BYTES_MAX;
            self.bytes += event.cost_bytes();
            fits
        });
        let fitting = fitting.count();
        let whole = fitting == rows.events.len();
        rows.events.truncate(fitting);
        self.events.append(&mut rows.events);
        Ok(rows.complete && whole)
    }

    /// Returns true if in these logs nothing more follows. It is for a page that is full.
    async fn are_all_read(&self, logs: impl Iterator<Item = usize> + Send) -> Result<bool> {
        for log in logs {
            let end = self
                .store
                .backend
                .log_end(log_id(log), Purpose::Read)
                .await?;
            if end.position > self.at[log] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn done(self, end: bool) -> AllPage {
        AllPage {
            events: self.events,
            next: Checkpoint::logs(self.history.incarnation, self.at),
            end,
        }
    }
}

pub(crate) fn log_id(log: usize) -> LogId {
    LogId(u16::try_from(log).unwrap_or(u16::MAX))
}
