//! `Read`: reads a stream or all events, to an end or without one.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::future::{self, BoxFuture};
use futures::{FutureExt, stream};
use gesta_core::{
    AllFrom, Checkpoint, Direction, ErrorKind, EventStore, Filter, LogId, Position, ReadAll,
    ReadStream, RecordedEvent, Revision, SharedEvent, StreamFrom, StreamId, shares,
};
use gesta_grpc::filter::ClientFilter;
use gesta_grpc::ids::{self, UuidForm};
use gesta_grpc::messages::streams::read_req::Options;
use gesta_grpc::messages::streams::read_req::options::FilterOptions;
use gesta_grpc::messages::streams::read_req::options::all_options::AllOption;
use gesta_grpc::messages::streams::read_req::options::stream_options::RevisionOption;
use gesta_grpc::messages::streams::read_req::options::uuid_option::Content as Form;
use gesta_grpc::messages::streams::read_req::options::{
    AllOptions, CountOption, FilterOption, ReadDirection, StreamOption, StreamOptions,
};
use gesta_grpc::messages::streams::read_resp::{Content, StreamNotFound};
use gesta_grpc::messages::streams::{ReadReq, ReadResp};
use gesta_grpc::{Code, Positions, Refusal, frame, stored};
use tokio_util::task::AbortOnDropHandle;

use super::call::GrpcCall;
use super::links::View;
use super::reply::{self, Reply};
use super::{Result, refusal_of, subscribe};
use crate::call::Admitted;
use crate::http::read;
use crate::shared::body::Reservation;
use crate::shared::pages::{PAGE_EVENTS, PageReader, Read};
use crate::shared::patterns::{Held, text_bytes};
use crate::shared::queries::filter_bytes;
use crate::state::State;

/// Level of compatibility from which on a client takes messages that tell the ends of a stream. Others fail on them.
const ENDS_ARE_TOLD: u32 = 1;

/// Carries out `Read`.
pub(crate) async fn read(call: &mut GrpcCall) -> Result<Reply> {
    let request: ReadReq = call.message().await?;
    let Some(options) = request.options else {
        return Err(Refusal::invalid("the options must be given"));
    };
    let view = view(call, &options).await?;
    let direction = match ReadDirection::try_from(options.read_direction) {
        Ok(ReadDirection::Forwards) => Direction::Forwards,
        Ok(ReadDirection::Backwards) => Direction::Backwards,
        Err(_) => {
            return Err(Refusal::invalid(format!(
                "read_direction must be 0 or 1, found {}",
                options.read_direction
            )));
        }
    };
    let filter = match options.filter_option {
        Some(FilterOption::Filter(filter)) => Some(compiled(call, filter).await?),
        Some(FilterOption::NoFilter(_)) => None,
        None => return Err(Refusal::invalid("a filter, or none, must be given")),
    };
    match (options.stream_option, options.count_option) {
        (None, _) => Err(Refusal::invalid(
            "a stream, or all events, must be asked for",
        )),
        (_, None) => Err(Refusal::invalid(
            "a count, or a subscription, must be asked for",
        )),
        (Some(StreamOption::Stream(_)), _) if filter.is_some() => {
            Err(Refusal::invalid("a read of one stream takes no filter"))
        }
        (_, Some(CountOption::Subscription(_))) if direction == Direction::Backwards => {
            Err(Refusal::invalid("a subscription reads forwards"))
        }
        (Some(StreamOption::Stream(stream)), Some(CountOption::Count(count))) => {
            let wanted = Wanted {
                direction,
                count,
                is_told_ends: options
                    .control_option
                    .is_some_and(|control| control.compatibility >= ENDS_ARE_TOLD),
            };
            of_stream(call, &stream, wanted, view).await
        }
        (Some(StreamOption::All(all)), Some(CountOption::Count(count))) => {
            of_all(call, all, direction, count, filter, view).await
        }
        (Some(StreamOption::Stream(stream)), Some(CountOption::Subscription(_))) => {
            subscribe::to_stream(call, &stream, view)
        }
        (Some(StreamOption::All(all)), Some(CountOption::Subscription(_))) => {
            subscribe::to_all(call, all, filter, view).await
        }
    }
}

/// A filter whose pattern is compiled.
pub(crate) struct CompiledFilter {
    pub(crate) asked: ClientFilter,
    pub(crate) held: Arc<Held>,
    /// Share of what this one call keeps of the filter.
    pub(crate) kept: Reservation,
}

impl CompiledFilter {
    /// Returns the part of the filter that the store can apply. Every event that passes the whole filter passes that
    /// part.
    pub(crate) fn in_store(&self) -> Filter {
        self.held.pattern.in_store()
    }

    /// Waits until memory of the filter is given up for a caller who holds less. A subscription with it is to end then.
    pub(crate) fn gave_way(&self) -> BoxFuture<'static, ()> {
        let (pattern, kept) = (self.held.gave_way(), self.kept.gave_way());
        future::select(pattern, kept).map(|_| ()).boxed()
    }
}

async fn compiled(call: &GrpcCall, options: FilterOptions) -> Result<CompiledFilter> {
    let asked = ClientFilter::read(options)?;
    let (state, holder) = (&call.state, call.admitted.holder());
    let compiled =
        state
            .bounds
            .patterns
            .compile(asked.pattern().clone(), &state.bounds.budget, holder);
    let held = compiled.await?;
    asked.refuse_index()?;
    // The text of the pattern is here, with the compiled pattern, and where compiled patterns are looked up.
    let bytes = 3 * text_bytes(asked.pattern()) + 2 * filter_bytes(&held.pattern.in_store());
    let mut kept = call.admitted.reservation_of_subscriptions(state);
    kept.grow(bytes).map_err(|problem| refusal_of(&problem))?;
    Ok(CompiledFilter { asked, held, kept })
}

async fn view(call: &GrpcCall, options: &Options) -> Result<View> {
    let form = match options.uuid_option.and_then(|option| option.content) {
        Some(Form::Structured(_)) => UuidForm::Structured,
        Some(Form::String(_)) => UuidForm::Text,
        None => return Err(Refusal::invalid("uuid_option must be given")),
    };
    Ok(View {
        form,
        resolve_links: options.resolve_links,
        positions: call.admitted.store.incarnation().await?.into(),
    })
}

/// How much of a stream a client wants to read.
#[derive(Clone, Copy)]
struct Wanted {
    direction: Direction,
    count: u64,
    /// True if the client wants to be told of the first readable and of the last revision.
    is_told_ends: bool,
}

async fn of_stream(
    call: &GrpcCall,
    options: &StreamOptions,
    wanted: Wanted,
    view: View,
) -> Result<Reply> {
    let Wanted {
        direction,
        count,
        is_told_ends,
    } = wanted;
    let stream = ids::stream(options.stream_identifier.as_ref())?;
    let from = match options.revision_option {
        Some(RevisionOption::Start(_)) => StreamFrom::Start,
        Some(RevisionOption::End(_)) => StreamFrom::End,
        Some(RevisionOption::Revision(n)) if n > Revision::MAX.0 => StreamFrom::End,
        Some(RevisionOption::Revision(n)) => StreamFrom::Revision(Revision(n)),
        None => return Err(Refusal::invalid("where to begin must be given")),
    };
    // The last event is in the first page of a read from the end, which looks for itself.
    if !matches!((from, direction), (StreamFrom::End, Direction::Backwards)) {
        let _turn = call.turn_to_read().await;
        refuse_if_closed(&*call.store(), &stream).await?;
    }
    let reader = PageReader::Stream(ReadStream {
        stream: stream.clone(),
        from,
        direction,
        limit: PAGE_EVENTS,
    });
    let mut pages = Pages::new(call, reader, count, None, view);
    pages.ends = is_told_ends.then(|| Ends::of(from, direction));
    match pages.first().await {
        Ok(first) => Ok(pages.reply(first)),
        Err(Failure::NoStream) => Ok(Reply::message(&not_found(&stream))),
        Err(failure) => Err(failure.into()),
    }
}

/// Refuses a read of the metadata of a stream that is closed for ever, whichever events of it are read.
pub(crate) async fn refuse_if_closed(store: &dyn EventStore, stream: &StreamId) -> Result<()> {
    if stream.described_stream().is_none() {
        return Ok(());
    }
    match store
        .read_stream(ReadStream::backwards(stream.clone()).limit(1))
        .await
    {
        Ok(page) if page.events.first().is_some_and(stored::is_tombstone) => {
            Err(Refusal::stream_deleted(stream))
        }
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether an event is left out of all events: what groups on all events keep about themselves, which is more with
/// every event that they deliver.
pub(crate) fn is_hidden(event: &RecordedEvent) -> bool {
    gesta_groups::keeps_state_of_a_group_on_all(&event.stream)
}

fn not_found(stream: &StreamId) -> ReadResp {
    told(Content::StreamNotFound(StreamNotFound {
        stream_identifier: Some(ids::identifier(stream)),
    }))
}

async fn of_all(
    call: &GrpcCall,
    options: AllOptions,
    direction: Direction,
    count: u64,
    filter: Option<CompiledFilter>,
    view: View,
) -> Result<Reply> {
    let option = all_option(options)?;
    refuse_virtual_alone(call, filter.as_ref()).await?;
    // One event needs no order. The Python client reads the newest whenever it has connected anew.
    let is_newest_alone =
        matches!(option, AllOption::End(_)) && direction == Direction::Backwards && count <= 1;
    let from = if is_newest_alone {
        AllFrom::End
    } else {
        begin(&Order::of(call).await?, option)?
    };
    let reader = PageReader::All(ReadAll {
        only: None,
        from,
        direction,
        limit: PAGE_EVENTS,
        filter: filter
            .as_ref()
            .map_or(Filter::ALL, CompiledFilter::in_store),
    });
    let mut pages = Pages::new(call, reader, count, filter, view);
    let first = pages.first().await?;
    Ok(pages.reply(first))
}

/// Refuses a filter that would find nothing for ever.
pub(crate) async fn refuse_virtual_alone(
    call: &GrpcCall,
    filter: Option<&CompiledFilter>,
) -> Result<()> {
    match filter.is_some_and(|filter| filter.held.pattern.is_of_virtual_streams()) {
        true => Ok(read::refuse_virtual_alone(&*call.store()).await?),
        false => Ok(()),
    }
}

/// Returns where a read of all events begins.
fn begin(order: &Order, option: AllOption) -> Result<AllFrom> {
    Ok(match option {
        AllOption::Start(_) => AllFrom::Start,
        AllOption::End(_) => AllFrom::End,
        AllOption::Position(at) if at.commit_position > Position::MAX.0 => AllFrom::End,
        // The event at a position is read forwards, and not backwards.
        AllOption::Position(at) => match order.read(at.commit_position)?.0.checked_sub(1) {
            None => AllFrom::Start,
            Some(before) if before >= order.head.0 => AllFrom::End,
            Some(before) => AllFrom::Checkpoint(order.checkpoint(Position(before))),
        },
    })
}

pub(crate) fn all_option(options: AllOptions) -> Result<AllOption> {
    options
        .all_option
        .ok_or_else(|| Refusal::invalid("where to begin must be given"))
}

/// The one order of all events, which a store has if it has one log.
pub(crate) struct Order {
    incarnation: gesta_core::Incarnation,
    pub(crate) head: Position,
}

impl Order {
    pub(crate) async fn of(call: &GrpcCall) -> Result<Self> {
        let info = call.store().info().await?;
        match info.heads.as_slice() {
            [head] => Ok(Self {
                incarnation: info.incarnation,
                head: *head,
            }),
            heads => Err(Refusal::new(
                Code::FailedPrecondition,
                format!(
                    "reading $all needs the one order that a store with one log has; this store has {} logs: read streams, or subscribe to all events over HTTP",
                    heads.len()
                ),
            )),
        }
    }

    /// Returns the position for which a client has seen this number.
    pub(crate) fn read(&self, shown: u64) -> Result<Position> {
        Positions::from(self.incarnation).read(shown)
    }

    /// Returns the checkpoint after this position.
    pub(crate) fn checkpoint(&self, position: Position) -> Checkpoint {
        Checkpoint::in_log(self.incarnation, 1, LogId(0), position)
    }
}

/// The reason why a page could not be read.
enum Failure {
    NoStream,
    Refused(Refusal),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoStream => Refusal::new(Code::NotFound, "the stream was deleted meanwhile"),
            Failure::Refused(refusal) => refusal,
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure::Refused(refusal)
    }
}

/// What a read of a stream is to tell of the ends of the stream.
#[derive(Clone, Copy)]
struct Ends {
    /// Revision that the first event has unless earlier events cannot be read; `None` backwards, at the end, and once
    /// an event was found.
    asked: Option<Revision>,
    /// First revision that can be read, if that has to be told first.
    first: Option<Revision>,
    /// Last revision of the stream, as the last page tells it.
    last: Option<Revision>,
}

impl Ends {
    fn of(from: StreamFrom, direction: Direction) -> Self {
        let asked = match (direction, from) {
            (Direction::Forwards, StreamFrom::Start) => Some(Revision(0)),
            (Direction::Forwards, StreamFrom::Revision(revision)) => Some(revision),
            (Direction::Forwards, StreamFrom::End) | (Direction::Backwards, _) => None,
        };
        Self {
            asked,
            first: None,
            last: None,
        }
    }

    /// Notes what a page tells.
    fn note(&mut self, events: &[RecordedEvent], last: Option<Revision>) {
        self.last = last.or(self.last);
        if let Some(event) = events.first()
            && let Some(asked) = self.asked.take()
        {
            self.first = (event.revision > asked).then_some(event.revision);
        }
    }
}

fn told(content: Content) -> ReadResp {
    ReadResp {
        content: Some(content),
    }
}

/// What is left of a read that has an end.
struct Pages {
    state: Arc<State>,
    /// The caller, and the store as the caller may use it.
    admitted: Admitted,
    reader: PageReader,
    filter: Option<CompiledFilter>,
    view: View,
    /// Events of the last page that are not sent yet.
    pending: VecDeque<SharedEvent>,
    /// Number of events that may still be read.
    left: u64,
    /// What is to be told of the ends of the stream; `None` if nothing is, or all of it was told.
    ends: Option<Ends>,
    /// True if the last page had no event that is shown.
    was_empty: bool,
    end: bool,
}

/// A page as messages, and its share of the bytes in flight.
type Page = (Bytes, Reservation);
/// A page that is being read, with what is left of the read after it.
type NextPage = AbortOnDropHandle<(Pages, std::result::Result<Option<Page>, Failure>)>;

impl Pages {
    fn new(
        call: &GrpcCall,
        reader: PageReader,
        count: u64,
        filter: Option<CompiledFilter>,
        view: View,
    ) -> Self {
        Self {
            state: call.state.clone(),
            admitted: call.admitted.clone(),
            reader,
            filter,
            view,
            pending: VecDeque::new(),
            left: count,
            ends: None,
            was_empty: false,
            end: false,
        }
    }

    /// Reads the first page, which tells whether there is anything to read, even if the client wants no event.
    async fn first(&mut self) -> std::result::Result<Option<Page>, Failure> {
        if self.left == 0 {
            self.page(1).await?;
        }
        self.next().await
    }

    /// Reads the next page as messages, or as much of it as the store follows links of at once; returns `None` at the
    /// end.
    async fn next(&mut self) -> std::result::Result<Option<Page>, Failure> {
        let mut out = BytesMut::new();
        while self.pending.is_empty() {
            if self.end || self.left == 0 {
                let Some(last) = self.ends.take().and_then(|ends| ends.last) else {
                    return Ok(None);
                };
                frame::write(&mut out, &told(Content::LastStreamPosition(last.0)));
                return Ok(Some((out.freeze(), self.admitted.reservation(&self.state))));
            }
            self.fill().await?;
        }
        let mut held = self.admitted.reservation(&self.state);
        if let Some(first) = self.ends.as_mut().and_then(|ends| ends.first.take()) {
            frame::write(&mut out, &told(Content::FirstStreamPosition(first.0)));
        }
        let store = &*self.admitted.store;
        self.view.write(store, &mut out, &mut self.pending).await?;
        let taken = held.grow(out.len());
        taken.map_err(|problem| refusal_of(&problem))?;
        Ok(Some((out.freeze(), held)))
    }

    /// Reads a page of events, and leaves out those that do not pass.
    async fn fill(&mut self) -> std::result::Result<(), Failure> {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        // Events are left out by a filter, for want of rights, or because they are hidden. Then more may have to be
        // looked at than are wanted, and not in pages of a few.
        let limit = if self.filter.is_some() || self.was_empty {
            PAGE_EVENTS
        } else {
            left.min(PAGE_EVENTS)
        };
        let mut events = self.page(limit).await?;
        if matches!(self.reader, PageReader::All(_)) {
            events.retain(|event| !is_hidden(event));
        }
        self.pass(&mut events).await?;
        self.was_empty = events.is_empty();
        events.truncate(left);
        self.left -= u64::try_from(events.len()).unwrap_or(0);
        self.pending = events.into_iter().map(Arc::new).collect();
        Ok(())
    }

    async fn page(&mut self, limit: usize) -> std::result::Result<Vec<RecordedEvent>, Failure> {
        let _turn = self.state.turn_to_read(self.admitted.holder()).await;
        match self.reader.page(&*self.admitted.store, limit).await {
            Ok(Read { events, end, last }) => {
                self.end = end;
                if let Some(ends) = &mut self.ends {
                    ends.note(&events, last);
                }
                match (
                    &self.reader,
                    events.iter().find(|e| stored::is_tombstone(e)),
                ) {
                    // The metadata of a stream end with the stream.
                    (PageReader::Stream(_), Some(event)) => {
                        Err(Refusal::stream_deleted(&event.stream).into())
                    }
                    _ => Ok(self.as_it_is_now(events, last).await?),
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {
                Err(Failure::NoStream)
            }
            Err(error) => Err(Failure::Refused(error.into())),
        }
    }

    /// Shows the delete of a stream that has begun again as the metadata that the stream has now. That is read only if
    /// the delete is the last event of the metadata.
    async fn as_it_is_now(
        &self,
        mut events: Vec<RecordedEvent>,
        last: Option<Revision>,
    ) -> Result<Vec<RecordedEvent>> {
        let mut deletes = events
            .iter_mut()
            .filter(|event| Some(event.revision) == last && stored::is_delete(event));
        if let Some(delete) = deletes.next()
            && let Some(stream) = delete.stream.described_stream()
        {
            // Who may read the metadata may know this, whether they may read the stream or not.
            let newest = ReadStream::backwards(stream).limit(1);
            match self.state.store.read_stream(newest).await {
                Ok(_) => *delete = stored::begun_again(delete.clone()),
                Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(events)
    }

    /// Leaves out the events that the client's filter does not let pass.
    async fn pass(&self, events: &mut Vec<RecordedEvent>) -> Result<()> {
        let Some(filter) = &self.filter else {
            return Ok(());
        };
        let (patterns, holder) = (&self.state.bounds.patterns, self.admitted.holder());
        let all = std::mem::take(events);
        *events = patterns.pass(&filter.held, all, holder).await?;
        Ok(())
    }

    /// Begins to read the next page in a task of its own.
    fn read_next(mut self) -> NextPage {
        AbortOnDropHandle::new(tokio::spawn(async move {
            let holder = self.admitted.holder().clone();
            let page = shares::act(&holder, self.next()).await;
            (self, page)
        }))
    }

    /// Makes the answer. While a page is being sent the next one is read, and no more.
    fn reply(self, first: Option<Page>) -> Reply {
        let begun = first.map(|(page, held)| (Some(page), held, self.read_next()));
        let parts = stream::unfold(begun, |begun| async {
            let (page, held, next) = begun?;
            if let Some(page) = page {
                return Some((Ok(page), Some((None, held, next))));
            }
            // The share of a page is given back when the connection asks for the next one.
            drop(held);
            match next.await {
                Ok((pages, Ok(Some((page, held))))) => {
                    Some((Ok(page), Some((None, held, pages.read_next()))))
                }
                Ok((_, Ok(None))) => None,
                Ok((_, Err(failure))) => Some((Err(failure.into()), None)),
                Err(error) => {
                    let detail = format!("a read ended early: {error}");
                    Some((Err(Refusal::unavailable(detail)), None))
                }
            }
        });
        Reply::Finite(reply::made(parts))
    }
}
