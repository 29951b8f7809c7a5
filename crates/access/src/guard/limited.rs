//! Reads for a caller who may not see every event.
//!
//! What such a caller is told depends on the events that they may see, and on positions, which count all events:
//! never on the name, the type, the tags or the size of an event that is hidden from them. So a page is not what is
//! left of a page of the store, whose end the hidden events would decide. The guard reads on until it has what was
//! asked for and knows whether one more follows, until it has looked at [`PAGE_SCAN_MAX`] positions, or until the end.
//! The filter of the caller goes to the store nevertheless, because the store finds by it what is asked for: which
//! hidden events match changes how many pages of the store are read, and with it only the time of the answer.
//! Not here: subscriptions (`subscription`), which events may be seen (`shared`).

use futures::stream::{self, StreamExt, TryStreamExt};
use gesta_core::limits::{FILTER_VALUES_MAX, PAGE_BYTES_MAX, PAGE_EVENTS_MAX, PAGE_SCAN_MAX};
use gesta_core::{
    AllFrom, AllPage, Checkpoint, Direction, Error, ErrorKind, Filter, Incarnation, ListStreams,
    LogId, Place, Position, Query, ReadAll, ReadStream, RecordedEvent, Result, Revision,
    StreamFrom, StreamId, StreamInfo, StreamPage, StreamsPage,
};

use super::{Guarded, READS_MAX};

/// The number of pages of names that are read for one page of names that the caller may see, unless that page would
/// be empty.
const NAME_PAGES_MAX: usize = 200;
/// The largest page that is read to look for one more event, beside what was asked for.
const MORE_MAX: usize = 1_000;
/// What a position or a name costs that was looked at, in bytes of payload, whatever stands there.
const POSITION_COST_BYTES: u64 = 16;

/// A page of all events while it is filled.
struct Filling {
    incarnation: Incarnation,
    /// Position up to which each log was read; backwards, the position from which on it is still to be read.
    at: Vec<Position>,
    events: Vec<RecordedEvent>,
    bytes: usize,
    /// Number of positions that may still be looked at.
    scan: u64,
}

impl Filling {
    fn place(&self, log: usize) -> Position {
        self.at.get(log).copied().unwrap_or_default()
    }

    fn arrive(&mut self, log: usize, position: Position) {
        if let Some(at) = self.at.get_mut(log) {
            *at = position;
        }
    }

    fn takes(&self, event: &RecordedEvent, limit: usize) -> bool {
        self.events.is_empty()
            || (self.events.len() < limit && self.bytes + event.cost_bytes() <= PAGE_BYTES_MAX)
    }

    fn checkpoint(&self) -> Checkpoint {
        Checkpoint::logs(self.incarnation, self.at.clone())
    }
}

/// How many events are asked for next: those that are missing and one more, and the more the longer nothing was found.
struct Asking(usize);

impl Asking {
    fn next(&mut self, missing: usize) -> usize {
        let limit = (missing + 1).max(self.0).min(PAGE_EVENTS_MAX);
        self.0 = (self.0.max(8) * 2).min(MORE_MAX);
        limit
    }
}

impl Guarded {
    /// Reads a page of all events of which the caller may see some.
    pub(super) async fn read_some(&self, request: ReadAll) -> Result<AllPage> {
        request.validate()?;
        let (incarnation, at) = match &request.from {
            AllFrom::Checkpoint(checkpoint) => match &checkpoint.place {
                Place::Logs(at) => (checkpoint.incarnation, at.clone()),
                Place::Stream { .. } => {
                    let why = "it is of a stream, not of all events".into();
                    return Err(ErrorKind::InvalidCheckpoint(why).into());
                }
            },
            AllFrom::Start | AllFrom::End => {
                let info = self.store.info().await?;
                let at = match request.from {
                    AllFrom::Start => vec![Position::START; info.heads.len()],
                    _ => info.heads,
                };
                (info.incarnation, at)
            }
        };
        let prefixes = self.access.shared.prefixes(&self.caller);
        let filter = narrowed(&request.filter, &prefixes);
        let order = request.reading_order(&at)?;
        let order: Vec<usize> = match request.direction {
            Direction::Forwards => order.collect(),
            Direction::Backwards => order.rev().collect(),
        };
        let mut page = Filling {
            incarnation,
            at,
            events: Vec::new(),
            bytes: 0,
            scan: PAGE_SCAN_MAX,
        };
        let request = ReadAll { filter, ..request };
        let mut end = true;
        for log in order {
            if page.scan == 0 || !self.fill(&mut page, log, &request).await? {
                end = false;
                break;
            }
        }
        self.had_positions(PAGE_SCAN_MAX - page.scan);
        self.had(super::payload_bytes(&page.events));
        Ok(AllPage {
            next: page.checkpoint(),
            events: page.events,
            end,
        })
    }

    /// Counts positions or names that were looked at for the user, whether they are shown or not.
    fn had_positions(&self, looked_at: u64) {
        let bytes = looked_at.saturating_mul(POSITION_COST_BYTES);
        self.had(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Reads on in one log. Returns true if the log was read to its end, and everything in it that may be seen stands
    /// in the page.
    async fn fill(&self, page: &mut Filling, log: usize, request: &ReadAll) -> Result<bool> {
        let forwards = request.direction == Direction::Forwards;
        let begin = page.place(log);
        // The last position in the direction of the read that this page looks at; backwards, the one before it.
        let bound = match forwards {
            true => begin.plus(page.scan),
            false => Position(begin.0.saturating_sub(page.scan)),
        };
        let is_beyond = |position: Position| match forwards {
            true => position > bound,
            false => position <= bound,
        };
        let only = u16::try_from(log).map(LogId).ok();
        let mut shown_up_to = begin;
        let mut from = begin;
        let mut asking = Asking(0);
        loop {
            page.arrive(log, from);
            let found = self
                .store
                .read_all(ReadAll {
                    only: only.filter(|_| page.at.len() > 1),
                    from: AllFrom::Checkpoint(page.checkpoint()),
                    limit: asking.next(request.limit.saturating_sub(page.events.len())),
                    ..request.clone()
                })
                .await?;
            let shown = self.shown(&found.events).await?;
            for (event, shown) in found.events.into_iter().zip(shown) {
                if is_beyond(event.position) {
                    break;
                }
                if !shown {
                    continue;
                }
                if !page.takes(&event, request.limit) {
                    page.arrive(log, shown_up_to);
                    page.scan -= begin.0.abs_diff(shown_up_to.0).min(page.scan);
                    return Ok(false);
                }
                shown_up_to = match forwards {
                    true => event.position,
                    false => Position(event.position.0.saturating_sub(1)),
                };
                page.bytes += event.cost_bytes();
                page.events.push(event);
            }
            let covered = place_of(&found.next, log)?;
            let passed = begin.0.abs_diff(covered.0);
            if passed > page.scan || (passed == page.scan && !found.end) {
                page.arrive(log, bound);
                page.scan = 0;
                return Ok(false);
            }
            if found.end {
                page.arrive(log, covered);
                page.scan -= passed;
                return Ok(true);
            }
            if covered == from {
                return Err(Error::corrupt("a page of all events leads to itself"));
            }
            from = covered;
        }
    }

    /// Tells which of these events of all events the caller may see.
    pub(super) async fn shown(&self, events: &[RecordedEvent]) -> Result<Vec<bool>> {
        let shared = &self.access.shared;
        let known = events
            .iter()
            .map(|event| shared.shows_now(&self.caller, event));
        let known: Vec<Option<bool>> = known.collect::<Result<_>>()?;
        if known.iter().all(Option::is_some) {
            return Ok(known.into_iter().flatten().collect());
        }
        let asked: Vec<_> = events
            .iter()
            .map(|event| shared.shows(&self.caller, event))
            .collect();
        stream::iter(asked).buffered(READS_MAX).try_collect().await
    }

    /// Lists the names that the caller may see. The page ends where one more follows that may be seen, and the next
    /// page continues after the last name that is shown. So a page that shows no name is the last one: any name after
    /// which another page could begin would be hidden, and the search goes on until it has found one to show.
    pub(super) async fn list_some(&self, mut request: ListStreams) -> Result<StreamsPage> {
        request.validate()?;
        let limit = request.limit;
        let prefixes = self.access.shared.prefixes(&self.caller);
        if let [only] = prefixes.as_slice()
            && narrows(&request.prefix, only)
        {
            request.prefix = only.to_string();
        }
        let mut found: Vec<StreamInfo> = Vec::new();
        let mut asking = Asking(0);
        for pages in 1_usize.. {
            request.limit = match asking.next(limit.saturating_sub(found.len())) {
                MORE_MAX.. => PAGE_EVENTS_MAX,
                few => few,
            };
            let page = self.store.list_streams(request.clone()).await?;
            // A page may be one of very many whose names are all hidden.
            let looked_at = u64::try_from(page.streams.len()).unwrap_or(u64::MAX);
            self.had_positions(looked_at);
            for info in page.streams {
                if !self.lists(&info.stream).await? {
                    continue;
                }
                if found.len() == limit {
                    return Ok(names(found, Follows::More));
                }
                found.push(info);
            }
            match page.next {
                None => return Ok(names(found, Follows::Nothing)),
                next => request.after = next,
            }
            if pages >= NAME_PAGES_MAX && !found.is_empty() {
                break;
            }
        }
        Ok(names(found, Follows::More))
    }

    /// Reads a page of a virtual stream of which the caller may see some links. A stream of which they see none is not
    /// there for them, and its last link is the last that they see.
    pub(super) async fn read_virtual(&self, request: ReadStream) -> Result<StreamPage> {
        request.validate()?;
        let forwards = request.direction == Direction::Forwards;
        let links = self.links(&request).await?;
        let at_end = links.follows == Follows::Nothing;
        // Who has read forwards to the end knows the last link, unless the page begins after it.
        let newest = links.events.last().map(|link| link.revision);
        let last = match newest.filter(|_| forwards && at_end) {
            Some(last) => last,
            None => self
                .last_link(&request.stream)
                .await?
                .ok_or_else(|| no_stream(&request.stream))?,
        };
        let from = match request.from {
            StreamFrom::Revision(revision) if forwards => revision,
            _ => Revision(0),
        };
        Ok(StreamPage {
            events: links.events,
            next: match links.follows {
                Follows::Nothing if forwards => Some(last.next().max(from)),
                Follows::Nothing => None,
                Follows::More => links.next,
            },
            end: at_end,
            last_revision: last,
        })
    }

    /// Returns the revision of the last link of a virtual stream that the caller may see; `None` if they see none. If
    /// very many links after it are hidden, a later revision is returned.
    pub(super) async fn last_link(&self, stream: &StreamId) -> Result<Option<Revision>> {
        let request = ReadStream::backwards(stream.clone()).limit(1);
        match self.links(&request).await {
            Ok(links) => Ok(match links.events.first() {
                Some(link) => Some(link.revision),
                None => links.next,
            }),
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads links of a virtual stream that the caller may see, as many as are asked for, and looks whether one more
    /// follows.
    async fn links(&self, request: &ReadStream) -> Result<Links> {
        let mut links = Links {
            events: Vec::new(),
            follows: Follows::Nothing,
            next: None,
        };
        let mut request = request.clone();
        let (limit, mut asking, mut looked_at) = (request.limit, Asking(0), 0);
        loop {
            request.limit = asking.next(limit.saturating_sub(links.events.len()));
            let page = match self.store.read_stream(request.clone()).await {
                Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                    return Err(no_stream(&request.stream));
                }
                page => page?,
            };
            looked_at += u64::try_from(page.events.len()).unwrap_or(u64::MAX);
            self.had(super::payload_bytes(&page.events));
            for link in self.leave_out_hidden(page.events).await? {
                if links.events.len() == limit {
                    links.follows = Follows::More;
                    links.next = Some(link.revision);
                    return Ok(links);
                }
                links.events.push(link);
            }
            let Some(next) = page.next.filter(|_| !page.end) else {
                return Ok(links);
            };
            if looked_at >= PAGE_SCAN_MAX {
                links.follows = Follows::More;
                links.next = Some(next);
                return Ok(links);
            }
            request.from = StreamFrom::Revision(next);
        }
    }
}

/// Whether something that the caller may see follows a page, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follows {
    More,
    Nothing,
}

/// Links of a virtual stream that the caller may see.
struct Links {
    events: Vec<RecordedEvent>,
    follows: Follows,
    /// Revision to continue from, if something follows.
    next: Option<Revision>,
}

fn no_stream(stream: &StreamId) -> Error {
    Error::new(ErrorKind::StreamNotFound(stream.clone())).during("read stream")
}

fn names(streams: Vec<StreamInfo>, follows: Follows) -> StreamsPage {
    let last = streams.last().map(|info| info.stream.clone());
    StreamsPage {
        next: last.filter(|_| follows == Follows::More),
        streams,
    }
}

/// Returns the place of one log in a checkpoint of all events.
fn place_of(checkpoint: &Checkpoint, log: usize) -> Result<Position> {
    match &checkpoint.place {
        Place::Logs(at) => at.get(log).copied(),
        Place::Stream { .. } => None,
    }
    .ok_or_else(|| Error::corrupt("a page of all events leads to another place"))
}

/// Tells whether the names that begin with `only` are some of those that begin with `asked`, and of the same kind:
/// names that begin with `$` are listed only when they are asked for.
pub(super) fn narrows(asked: &str, only: &str) -> bool {
    only.starts_with(asked) && only.starts_with('$') == asked.starts_with('$')
}

/// Returns a filter that lets through less: only events of streams whose names begin with one of these prefixes, and of
/// their metadata streams. If this cannot be said, or there are no prefixes, the filter stays as it is.
fn narrowed(filter: &Filter, prefixes: &[Box<str>]) -> Filter {
    let unchanged = || filter.clone();
    if prefixes.is_empty() {
        return unchanged();
    }
    let names: Vec<String> = prefixes
        .iter()
        .flat_map(|prefix| [prefix.to_string(), format!("$${prefix}")])
        .collect();
    let everything = [Query::default()];
    let queries: &[Query] = match filter.is_all() {
        true => &everything,
        false => &filter.any_of,
    };
    let mut any_of = Vec::with_capacity(queries.len());
    for query in queries {
        let mut query = query.clone();
        query.stream_prefixes = match query.stream_prefixes.is_empty() {
            true => names.clone(),
            false => both(&query.stream_prefixes, &names),
        };
        if query.stream_prefixes.is_empty() || query.stream_prefixes.len() > FILTER_VALUES_MAX {
            return unchanged();
        }
        any_of.push(query);
    }
    Filter { any_of }
}

/// Returns the prefixes of the names that begin with one of `asked` and with one of `only`.
fn both(asked: &[String], only: &[String]) -> Vec<String> {
    let pairs = asked
        .iter()
        .flat_map(|asked| only.iter().map(move |only| (asked, only)));
    let longer = pairs.filter_map(|(asked, only)| {
        if only.starts_with(asked.as_str()) {
            Some(only)
        } else if asked.starts_with(only.as_str()) {
            Some(asked)
        } else {
            None
        }
    });
    let mut found: Vec<String> = longer.cloned().collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(prefixes: &[&str]) -> Query {
        Query {
            stream_prefixes: prefixes.iter().map(ToString::to_string).collect(),
            ..Query::default()
        }
    }

    #[test]
    fn prefixes_of_a_token_narrow_a_filter() {
        let only: Vec<Box<str>> = vec!["a-".into()];
        let narrow = |filter: Filter| narrowed(&filter, &only);
        assert_eq!(narrow(Filter::ALL).any_of, [of(&["a-", "$$a-"])]);
        let asked = Filter {
            any_of: vec![of(&["a-1", "b"]), of(&["a", "$$"])],
        };
        assert_eq!(narrow(asked).any_of, [of(&["a-1"]), of(&["$$a-", "a-"])]);
        let elsewhere = Filter::query(of(&["b"]));
        assert_eq!(narrow(elsewhere.clone()), elsewhere);
        assert_eq!(narrowed(&Filter::ALL, &[]), Filter::ALL);
    }
}
