//! The second version of the protocol: appends to several streams at once.

use std::collections::{HashMap, HashSet};

use gesta_access::Operation;
use gesta_core::{
    Append, Appended, Condition, ErrorKind, EventData, ExpectedRevision, Revision, StreamAppend,
    StreamId, limits,
};
use gesta_grpc::messages::v2::consistency_check::Type as Check;
use gesta_grpc::messages::v2::{
    AppendRecordsRequest, AppendRecordsResponse, AppendRequest, AppendResponse,
    AppendSessionResponse, ConsistencyCheck, StreamRevision,
};
use gesta_grpc::v2::{self, StreamState, Target, Violation};
use gesta_grpc::{Code, Expected, Positions, Refusal, proposed};

use super::Result;
use super::call::{GrpcCall, in_read_time};
use super::claim::{self, Backing};
use super::reply::Reply;
use crate::shared::metrics::AppendSize;

/// One stream of a session, its claim and its events.
type OfStream = (StreamId, Expected, Vec<EventData>);

/// Carries out `AppendSession`.
pub(crate) async fn append_session(call: &mut GrpcCall) -> Result<Reply> {
    let on = call.backing();
    let appends = in_read_time(&on.state, session(call)).await?;
    if appends.is_empty() {
        return Err(v2::no_requests());
    }
    let appended = store_session(&on, appends).await?;
    let output = appended.streams.iter().map(|stream| AppendResponse {
        stream: stream.stream.as_str().to_owned(),
        stream_revision: StreamState::At(stream.last_revision).number(),
        position: None,
    });
    Ok(Reply::message(&AppendSessionResponse {
        output: output.collect(),
        position: shown(&appended),
    }))
}

/// Returns the position of what was stored, as clients see it.
fn shown(appended: &Appended) -> i64 {
    signed(Positions::from(appended.checkpoint.incarnation).shown(appended.position))
}

/// Reads all messages of a session.
async fn session(call: &mut GrpcCall) -> Result<Vec<OfStream>> {
    let mut appends: Vec<OfStream> = Vec::new();
    let mut named = HashSet::new();
    let mut size = Size::default();
    while let Some(request) = call.next::<AppendRequest>().await? {
        let stream = v2::stream(&request.stream)?;
        if !named.insert(stream.clone()) {
            return Err(v2::stream_twice(&stream));
        }
        if request.records.is_empty() {
            return Err(v2::no_records());
        }
        let expected = v2::expected(request.expected_revision)?;
        let records = request.records.into_iter();
        let events = records.map(|record| v2::event(record, &stream));
        let mut events = events.collect::<Result<Vec<_>>>()?;
        proposed::own(&mut events, call.requests.last_bytes());
        size.add(&events)?;
        // They hold more than the bytes that came.
        call.requests.hold(size.cost_bytes)?;
        appends.push((stream, expected, events));
    }
    Ok(appends)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What a call appends. It is held against the limits of an append before the store is asked about any of its streams.
#[derive(Debug, Default)]
struct Size {
    streams: usize,
    events: usize,
    bytes: usize,
    /// Memory that the events hold, with the names of their streams, roughly, in bytes.
    cost_bytes: usize,
}

impl Size {
    /// Counts the events of one more stream.
    fn add(&mut self, events: &[EventData]) -> Result<()> {
        self.streams += 1;
        self.events += events.len();
        self.bytes += events.iter().map(EventData::payload_bytes).sum::<usize>();
        self.cost_bytes += limits::STREAM_NAME_BYTES_MAX;
        self.cost_bytes += events.iter().map(EventData::cost_bytes).sum::<usize>();
        if self.streams > limits::APPEND_STREAMS_MAX {
            return Err(v2::too_many_streams(self.streams, self.bytes));
        }
        if self.events > limits::APPEND_EVENTS_MAX {
            return Err(v2::too_many_records(self.events, self.bytes));
        }
        if self.bytes > limits::APPEND_BYTES_MAX {
            return Err(v2::append_too_large(self.bytes));
        }
        Ok(())
    }
}

async fn store_session(on: &Backing, appends: Vec<OfStream>) -> Result<Appended> {
    let claims: HashMap<StreamId, Expected> = appends
        .iter()
        .map(|(stream, expected, _)| (stream.clone(), *expected))
        .collect();
    let mut streams = Vec::with_capacity(appends.len());
    for (stream, expected, events) in appends {
        let Some(expected) = in_store(on, &stream, expected).await? else {
            return Err(conflict(on, &stream, expected).await?);
        };
        streams.push(StreamAppend {
            stream,
            expected,
            events,
        });
    }
    let request = Append {
        streams,
        conditions: Vec::new(),
    };
    match attempt(on, request).await? {
        AppendAttempt::Stored(appended) => Ok(appended),
        AppendAttempt::Tombstoned(stream) => Err(v2::tombstoned(&stream)),
        AppendAttempt::NotAsExpected(stream) => {
            let expected = claims.get(&stream).copied().unwrap_or(Expected::Any);
            Err(conflict(on, &stream, expected).await?)
        }
    }
}

/// Returns the claim as the store takes it; `None` if no stream can be so. A deleted stream at its last revision does
/// not exist for the store. The store then checks that the stream still does not exist.
async fn in_store(
    on: &Backing,
    stream: &StreamId,
    expected: Expected,
) -> Result<Option<ExpectedRevision>> {
    if let Expected::Exact(revision) = expected
        && let StreamState::Deleted(last) = claim::look(on, Operation::Append(stream), stream)
            .await?
            .state
        && revision == last
    {
        return Ok(Some(ExpectedRevision::NoStream));
    }
    Ok(expected.revision())
}

async fn conflict(on: &Backing, stream: &StreamId, expected: Expected) -> Result<Refusal> {
    Ok(
        match claim::look(on, Operation::Append(stream), stream)
            .await?
            .state
        {
            StreamState::Tombstoned => v2::tombstoned(stream),
            StreamState::Deleted(_) if expected == Expected::StreamExists => v2::tombstoned(stream),
            StreamState::At(last) | StreamState::Deleted(last) => {
                v2::conflict(stream, expected, Some(last))
            }
            StreamState::NoStream => v2::conflict(stream, expected, None),
        },
    )
}

enum AppendAttempt {
    Stored(Appended),
    Tombstoned(StreamId),
    NotAsExpected(StreamId),
}

async fn attempt(on: &Backing, request: Append) -> Result<AppendAttempt> {
    let size = AppendSize::from(&request);
    let holder = on.admitted.holder();
    let _turn = on.state.bounds.appends.turn(holder, &request).await?;
    let outcome = on.admitted.store.append(request).await;
    on.state.metrics.append(size, &outcome);
    match outcome {
        Ok(appended) => Ok(AppendAttempt::Stored(appended)),
        Err(error) => match error.kind() {
            ErrorKind::StreamTombstoned(stream) => Ok(AppendAttempt::Tombstoned(stream.clone())),
            ErrorKind::WrongExpectedRevision { stream, .. } => {
                Ok(AppendAttempt::NotAsExpected(stream.clone()))
            }
            _ => Err(error.into()),
        },
    }
}

/// Carries out `AppendRecords`.
pub(crate) async fn append_records(call: &mut GrpcCall) -> Result<Reply> {
    let request: AppendRecordsRequest = call.message().await?;
    if request.records.is_empty() {
        return Err(v2::no_records());
    }
    let mut appends: Vec<(StreamId, Vec<EventData>)> = Vec::new();
    let mut places: HashMap<StreamId, usize> = HashMap::new();
    for mut record in request.records {
        let stream = v2::stream(&record.stream.take().unwrap_or_default())?;
        let event = v2::event(record, &stream)?;
        let place = *places.entry(stream.clone()).or_insert_with(|| {
            appends.push((stream, Vec::new()));
            appends.len() - 1
        });
        appends[place].1.push(event);
    }
    let mut size = Size::default();
    for (_, events) in &mut appends {
        proposed::own(events, call.requests.last_bytes());
        size.add(events)?;
    }
    call.requests.hold(size.cost_bytes)?;
    let checks = checks(request.checks, &places)?;
    // The guard asks this again with the append, and `look` with each stream. It is asked of all of them before any is
    // looked at: whether a caller is refused must not depend on how far the checks hold.
    for check in checks
        .iter()
        .filter(|check| check.target == Target::CheckedAlone)
    {
        call.backing().check(Operation::Read(&check.stream)).await?;
    }
    let appended = store_records(&call.backing(), appends, &checks).await?;
    let revisions = appended.streams.iter().map(|stream| StreamRevision {
        stream: stream.stream.as_str().to_owned(),
        revision: StreamState::At(stream.last_revision).number(),
    });
    Ok(Reply::message(&AppendRecordsResponse {
        revisions: revisions.collect(),
        position: shown(&appended),
    }))
}

/// What a call expects of a stream, to which it may also write.
struct StreamCheck {
    stream: StreamId,
    expected: i64,
    target: Target,
}

impl StreamCheck {
    /// The right that a caller needs to be told of the stream.
    fn operation(&self) -> Operation<'_> {
        match self.target {
            Target::Written => Operation::Append(&self.stream),
            Target::CheckedAlone => Operation::Read(&self.stream),
        }
    }

    async fn look(&self, on: &Backing) -> Result<StreamState> {
        Ok(claim::look(on, self.operation(), &self.stream).await?.state)
    }
}

/// Reads the checks. There is at most one for each stream.
fn checks(
    checks: Vec<ConsistencyCheck>,
    written: &HashMap<StreamId, usize>,
) -> Result<Vec<StreamCheck>> {
    if checks.len() > limits::APPEND_STREAMS_MAX {
        let (max, found) = (limits::APPEND_STREAMS_MAX, checks.len());
        return Err(v2::bad_check(format!(
            "must be at most {max}, found {found}"
        )));
    }
    let mut read = Vec::new();
    let mut checked = HashSet::new();
    for check in checks {
        let Some(Check::StreamState(check)) = check.r#type else {
            return Err(v2::bad_check("must be of the state of a stream".into()));
        };
        let stream = v2::stream(&check.stream)?;
        let expected = check.expected_state;
        if expected < -6 || expected == -3 {
            return Err(v2::bad_check(format!(
                "must expect a revision, -1, -2, -4, -5 or -6, found {expected}"
            )));
        }
        if !checked.insert(stream.clone()) {
            return Err(v2::bad_check(format!("name stream '{stream}' twice")));
        }
        let target = match written.contains_key(&stream) {
            true => Target::Written,
            false => Target::CheckedAlone,
        };
        read.push(StreamCheck {
            stream,
            expected,
            target,
        });
    }
    Ok(read)
}

async fn store_records(
    on: &Backing,
    appends: Vec<(StreamId, Vec<EventData>)>,
    checks: &[StreamCheck],
) -> Result<Appended> {
    let mut streams = Vec::with_capacity(appends.len());
    let targets: Vec<StreamId> = appends.iter().map(|(stream, _)| stream.clone()).collect();
    for (stream, events) in appends {
        let check = checks.iter().find(|check| check.stream == stream);
        let expected = match check {
            None => ExpectedRevision::Any,
            Some(check) => match check_in_store(on, &stream, check.expected).await? {
                Some(expected) => expected,
                None => return Err(violated(on, checks, &targets).await?),
            },
        };
        streams.push(StreamAppend {
            stream,
            expected,
            events,
        });
    }
    let mut conditions = Vec::new();
    for check in checks
        .iter()
        .filter(|check| check.target == Target::CheckedAlone)
    {
        let state = check.look(on).await?;
        let expected = match (check.expected, state) {
            // A tombstone is for ever, so what is so now stays so. And -2 claims nothing.
            (-2, _) | (-1 | -6, StreamState::Tombstoned) => continue,
            (-1, _) | (-5, StreamState::Deleted(_)) => ExpectedRevision::NoStream,
            (-4, _) => ExpectedRevision::StreamExists,
            // To the store a deleted stream does not exist, whatever its last revision was.
            (0.., StreamState::Deleted(_)) if state.is(check.expected, check.target) => {
                ExpectedRevision::NoStream
            }
            (0.., _) => ExpectedRevision::Exact(Revision(check.expected.unsigned_abs())),
            _ => return Err(violated(on, checks, &targets).await?),
        };
        conditions.push(Condition::Stream {
            stream: check.stream.clone(),
            expected,
        });
    }
    let request = Append {
        streams,
        conditions,
    };
    match attempt(on, request).await? {
        AppendAttempt::Stored(appended) => Ok(appended),
        AppendAttempt::Tombstoned(_) | AppendAttempt::NotAsExpected(_) => {
            Err(violated(on, checks, &targets).await?)
        }
    }
}

/// Returns a check as a claim that the store checks; `None` if the check fails already.
async fn check_in_store(
    on: &Backing,
    stream: &StreamId,
    expected: i64,
) -> Result<Option<ExpectedRevision>> {
    Ok(match expected {
        -1 => Some(ExpectedRevision::NoStream),
        -2 => Some(ExpectedRevision::Any),
        -4 => Some(ExpectedRevision::StreamExists),
        // What was deleted does not exist to the store.
        -5 => match claim::look(on, Operation::Append(stream), stream)
            .await?
            .state
        {
            // One that is there is what a retry finds: then its first events are those of the request.
            StreamState::Deleted(_) | StreamState::At(_) => Some(ExpectedRevision::NoStream),
            StreamState::NoStream | StreamState::Tombstoned => None,
        },
        -6 => None,
        revision => {
            let revision = u64::try_from(revision).unwrap_or(u64::MAX);
            in_store(on, stream, Expected::Exact(Revision(revision))).await?
        }
    })
}

/// Makes the refusal that lists all checks that fail, and all streams with a tombstone that the call writes to.
async fn violated(on: &Backing, checks: &[StreamCheck], targets: &[StreamId]) -> Result<Refusal> {
    let mut failed = Vec::new();
    for (place, check) in checks.iter().enumerate() {
        let actual = check.look(on).await?;
        if !actual.is(check.expected, check.target) {
            failed.push(Violation {
                check: place,
                stream: check.stream.clone(),
                expected: check.expected,
                actual,
            });
        }
    }
    let unchecked = targets
        .iter()
        .filter(|target| checks.iter().all(|check| check.stream != **target));
    for (place, stream) in unchecked.enumerate() {
        if claim::look(on, Operation::Append(stream), stream)
            .await?
            .state
            == StreamState::Tombstoned
        {
            failed.push(Violation {
                check: checks.len() + place,
                stream: stream.clone(),
                expected: Expected::Any.signed(),
                actual: StreamState::Tombstoned,
            });
        }
    }
    if failed.is_empty() {
        return Err(Refusal::new(
            Code::Aborted,
            "a stream has changed while its checks were made; try again",
        ));
    }
    Ok(v2::violations(&failed))
}
