//! Batches that arrive in chunks on one call, several at once, and the answers to them.
//!
//! Invariants: the batches that wait for their last chunk have a maximum in batches, events and bytes; all that is kept
//! of them counts, also of one without events; each batch is answered once, under its own id in the form in which the
//! id came.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use gesta_core::{Appended, EventData, Revision, StreamId, limits};
use prost_types::Any;
use uuid::Uuid;

use crate::expected::Expected;
use crate::ids::{self, UuidForm};
use crate::messages::rpc::Status;
use crate::messages::shared::{self, AllStreamPosition};
use crate::messages::streams::batch_append_req::Options;
use crate::messages::streams::batch_append_req::options::DeadlineOption;
use crate::messages::streams::batch_append_resp::{Result as Outcome, Success, success};
use crate::messages::streams::{BatchAppendReq, BatchAppendResp};
use crate::proposed::{self, Proposed};
use crate::refusal::{APPEND_SIZE_MAX, APPEND_TOO_LARGE, Code, Refusal, detail};
use crate::{Positions, Result};

/// Most batches of a call whose last chunk is still to come.
const BATCHES_MAX: usize = 1_000;
/// Most refused batches of a call whose further chunks are known and passed over. Most clients send no more of a batch
/// once it is refused, so these ids would never leave by themselves.
const REFUSED_MAX: usize = 1_000;
/// Memory that a batch holds beside its events and the name of its stream, roughly, in bytes.
const BEGUN_BYTES: usize = 512;
/// Longest time that a client is taken to wait for a batch. One client asks for ten thousand years.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// How long a client is taken to wait whose deadline is a time of its own clock. Clocks differ, so that time is not
/// read.
const ABSOLUTE_DEADLINE_MIN: Duration = Duration::from_secs(10);

/// What the answer to a batch needs of the request: the id of the batch, its stream and its claim.
#[derive(Clone, Debug)]
pub struct BatchHead {
    id: Uuid,
    form: UuidForm,
    stream: Option<StreamId>,
    expected: Expected,
}

/// A batch whose chunks have all arrived.
#[derive(Debug)]
pub struct Batch {
    /// What the answer needs of the request.
    pub asked: BatchHead,
    /// Stream to append to.
    pub stream: StreamId,
    /// The client's claim about the stream.
    pub expected: Expected,
    /// Events of the batch; there may be none.
    pub events: Vec<EventData>,
    /// How long the client of the batch waits.
    pub deadline: Duration,
    /// When the first chunk came.
    begun: Instant,
    /// Memory that the batch holds, roughly, and payload of the events, both in bytes.
    cost_bytes: usize,
    payload_bytes: usize,
}

/// What a chunk leads to.
#[derive(Debug)]
pub enum Taken {
    /// More chunks of the batch are to come, or the batch was refused before.
    More,
    /// The chunk was the last one; this is the whole batch.
    Whole(Box<Batch>),
    /// The batch is refused with this answer. Its further chunks are passed over.
    Refused(Box<BatchAppendResp>),
}

/// The batches of one call that are still arriving.
#[derive(Debug, Default)]
pub struct Arriving {
    batches: HashMap<Uuid, Batch>,
    /// Ids of batches that were refused before their last chunk, the newest at the end.
    refused: VecDeque<Uuid>,
    bytes: usize,
    /// Id of the batch to which the last chunk belongs.
    last: Uuid,
    /// A time at or before which the oldest of the batches was begun; `None` if there are none.
    oldest: Option<Instant>,
}

impl Arriving {
    /// Returns how much memory is held of the batches that wait and of those that were refused, roughly, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes + self.refused.len() * size_of::<Uuid>()
    }

    /// Takes a chunk, which was a message of `message_bytes` bytes and came at `now`.
    ///
    /// # Errors
    /// The refusal that ends the call: `InvalidArgument` if the chunk does not say to which batch it belongs,
    /// `ResourceExhausted` if too many batches wait.
    pub fn take(
        &mut self,
        chunk: BatchAppendReq,
        message_bytes: usize,
        now: Instant,
    ) -> Result<Taken> {
        let (id, form) = ids::read_uuid("correlation_id", chunk.correlation_id.as_ref())?;
        self.last = id;
        let last = chunk.is_final;
        if let Some(place) = self.refused.iter().position(|refused| *refused == id) {
            if last {
                self.refused.remove(place);
            }
            return Ok(Taken::More);
        }
        let begun = self.batches.remove(&id);
        if begun.is_none() && self.batches.len() >= BATCHES_MAX {
            return Err(Refusal::new(
                Code::ResourceExhausted,
                format!("at most {BATCHES_MAX} batches may be begun on one call"),
            ));
        }
        let mut asked = BatchHead {
            id,
            form,
            stream: None,
            expected: Expected::Any,
        };
        let batch = match begun {
            Some(batch) => {
                self.bytes -= batch.cost_bytes;
                asked = batch.asked.clone();
                grow(batch, chunk, message_bytes)
            }
            None => Batch::begin(&mut asked, chunk.options.as_ref(), now)
                .and_then(|batch| grow(batch, chunk, message_bytes)),
        };
        match batch {
            Ok(batch) if last => Ok(Taken::Whole(Box::new(batch))),
            Ok(batch) => {
                self.keep(batch);
                Ok(Taken::More)
            }
            Err(refusal) => {
                if !last {
                    self.pass_over(id);
                }
                Ok(Taken::Refused(Box::new(asked.refused(&refusal))))
            }
        }
    }

    fn keep(&mut self, batch: Batch) {
        self.bytes += batch.cost_bytes;
        let oldest = self.oldest.get_or_insert(batch.begun);
        *oldest = batch.begun.min(*oldest);
        self.batches.insert(batch.asked.id, batch);
    }

    /// Remembers a refused batch whose further chunks may come. The oldest such batch is forgotten if there are too
    /// many.
    fn pass_over(&mut self, id: Uuid) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.pop_front();
        }
        self.refused.push_back(id);
    }

    /// Refuses the batch of the last chunk, if more of the batch is to come. Its further chunks are passed over.
    /// Returns the answer; `None` if there is no such batch.
    pub fn refuse_last(&mut self, refusal: &Refusal) -> Option<BatchAppendResp> {
        self.refuse(self.last, refusal)
    }

    fn refuse(&mut self, id: Uuid, refusal: &Refusal) -> Option<BatchAppendResp> {
        let batch = self.batches.remove(&id)?;
        self.bytes -= batch.cost_bytes;
        self.pass_over(id);
        Some(batch.asked.refused(refusal))
    }

    /// Returns a time at or before which the oldest batch was begun; `None` if no batch waits for its last chunk.
    #[must_use]
    pub fn oldest(&self) -> Option<Instant> {
        self.oldest
    }

    /// Refuses the batches that were begun at this time or before. Their further chunks are passed over. Returns the
    /// answers.
    pub fn refuse_begun_by(&mut self, time: Instant, refusal: &Refusal) -> Vec<BatchAppendResp> {
        let old = self.batches.values().filter(|batch| batch.begun <= time);
        let old: Vec<Uuid> = old.map(|batch| batch.asked.id).collect();
        let answers = old.into_iter().filter_map(|id| self.refuse(id, refusal));
        let answers = answers.collect();
        self.oldest = self.batches.values().map(|batch| batch.begun).min();
        answers
    }
}

impl Batch {
    fn begin(asked: &mut BatchHead, options: Option<&Options>, now: Instant) -> Result<Self> {
        let Some(options) = options else {
            return Err(Refusal::invalid(
                "the first chunk of a batch must have options",
            ));
        };
        let stream = ids::stream(options.stream_identifier.as_ref())?;
        asked.stream = Some(stream.clone());
        asked.expected = Expected::of_batch(options.expected_stream_position)?;
        Ok(Self {
            cost_bytes: BEGUN_BYTES + 2 * stream.as_str().len(),
            asked: asked.clone(),
            stream,
            expected: asked.expected,
            events: Vec::new(),
            deadline: deadline(options.deadline_option.as_ref()),
            begun: now,
            payload_bytes: 0,
        })
    }

    /// Returns how much memory the batch holds, roughly, in bytes.
    #[must_use]
    pub fn cost_bytes(&self) -> usize {
        self.cost_bytes
    }
}

fn grow(mut batch: Batch, chunk: BatchAppendReq, message_bytes: usize) -> Result<Batch> {
    let first = batch.events.len();
    let events = first + chunk.proposed_messages.len();
    if events > limits::APPEND_EVENTS_MAX {
        return Err(Refusal::too_many_events(events));
    }
    for message in chunk.proposed_messages {
        let event = Proposed::from(message).into_event(&batch.stream)?;
        batch.events.push(event);
    }
    let new = &mut batch.events[first..];
    proposed::own(new, message_bytes);
    batch.cost_bytes += new.iter().map(EventData::cost_bytes).sum::<usize>();
    batch.payload_bytes += new.iter().map(EventData::payload_bytes).sum::<usize>();
    if batch.payload_bytes > limits::APPEND_BYTES_MAX {
        return Err(Refusal::append_too_large(limits::APPEND_BYTES_MAX));
    }
    Ok(batch)
}

/// Returns how long the client of a batch waits.
fn deadline(asked: Option<&DeadlineOption>) -> Duration {
    match asked {
        Some(DeadlineOption::Deadline(time)) => {
            let seconds = u64::try_from(time.seconds).unwrap_or(0);
            let nanos = u32::try_from(time.nanos).unwrap_or(0);
            Duration::from_secs(seconds.min(DEADLINE_MAX.as_secs()))
                .saturating_add(Duration::from_nanos(nanos.into()))
                .min(DEADLINE_MAX)
        }
        Some(DeadlineOption::Deadline21100(_)) => ABSOLUTE_DEADLINE_MIN,
        None => DEADLINE_MAX,
    }
}

impl BatchHead {
    fn answer(&self, result: Outcome) -> BatchAppendResp {
        BatchAppendResp {
            correlation_id: Some(ids::uuid(self.id, self.form)),
            result: Some(result),
            // One client reads it on errors, whatever was wrong.
            stream_identifier: Some(match &self.stream {
                Some(stream) => ids::identifier(stream),
                None => shared::StreamIdentifier::default(),
            }),
            expected_stream_position: None,
        }
    }

    /// Makes the answer to a batch that is stored.
    #[must_use]
    pub fn stored(&self, appended: &Appended) -> BatchAppendResp {
        let last = appended.streams.last();
        let position = last.map_or(appended.position, |stream| stream.position);
        let position = Positions::from(appended.checkpoint.incarnation).shown(position);
        self.answer(Outcome::Success(Success {
            current_revision_option: last.map(|stream| {
                success::CurrentRevisionOption::CurrentRevision(stream.last_revision.0)
            }),
            position_option: Some(success::PositionOption::Position(AllStreamPosition {
                commit_position: position,
                prepare_position: position,
            })),
        }))
    }

    /// Makes the answer to a batch without events whose claim is right. `last` is the last revision of the stream.
    #[must_use]
    pub fn nothing_stored(&self, last: Option<Revision>) -> BatchAppendResp {
        use success::{CurrentRevisionOption as Current, PositionOption};
        self.answer(Outcome::Success(Success {
            current_revision_option: Some(match last {
                Some(revision) => Current::CurrentRevision(revision.0),
                None => Current::NoStream(()),
            }),
            position_option: Some(PositionOption::NoPosition(())),
        }))
    }

    /// Makes the answer to a batch that is refused for any reason but a wrong claim.
    #[must_use]
    pub fn refused(&self, refusal: &Refusal) -> BatchAppendResp {
        match refusal.exception_name() {
            Some("stream-deleted") => {
                let stream_identifier = self.stream.as_ref().map(ids::identifier);
                let deleted = shared::StreamDeleted { stream_identifier };
                let name = "StreamDeleted";
                self.error(Code::NotFound, name, of_shared(name, &deleted))
            }
            Some("access-denied") => {
                let name = "AccessDenied";
                let denied = of_shared(name, &shared::AccessDenied {});
                self.error(Code::PermissionDenied, name, denied)
            }
            Some(APPEND_TOO_LARGE) => {
                let most = refusal.trailer_value(APPEND_SIZE_MAX);
                let most = most.and_then(|most| most.parse().ok());
                let exceeded = shared::MaximumAppendSizeExceeded {
                    max_append_size: most.unwrap_or(u32::MAX),
                };
                let detail = of_shared("MaximumAppendSizeExceeded", &exceeded);
                self.error(Code::InvalidArgument, &refusal.message, detail)
            }
            _ => self.refused_by_code(refusal),
        }
    }

    fn refused_by_code(&self, refusal: &Refusal) -> BatchAppendResp {
        let message = refusal.message.clone();
        match refusal.code {
            Code::InvalidArgument | Code::FailedPrecondition => {
                let detail = of_shared("BadRequest", &shared::BadRequest { message });
                self.error(Code::InvalidArgument, &refusal.message, detail)
            }
            Code::Aborted | Code::DeadlineExceeded => {
                let name = "Timeout";
                let detail = of_shared(name, &shared::Timeout {});
                self.error(Code::DeadlineExceeded, name, detail)
            }
            code => self.error(code, &message, of_shared("Unknown", &shared::Unknown {})),
        }
    }

    /// Makes the answer to a batch whose claim is wrong. `actual` is the last revision of the stream.
    #[must_use]
    pub fn wrong_version(&self, actual: Option<Revision>) -> BatchAppendResp {
        let detail = of_shared(
            "WrongExpectedVersion",
            &self.expected.wrong_in_batch(actual),
        );
        self.error(Code::AlreadyExists, "WrongExpectedVersion", detail)
    }

    fn error(&self, code: Code, message: &str, detail: Any) -> BatchAppendResp {
        self.answer(Outcome::Error(Status {
            code: code as i32,
            message: message.to_owned(),
            details: vec![detail],
        }))
    }
}

fn of_shared(name: &str, message: &impl prost::Message) -> Any {
    detail(&format!("event_store.client.{name}"), message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::streams::batch_append_req::ProposedMessage;
    use crate::messages::streams::batch_append_req::options::ExpectedStreamPosition;

    fn chunk(batch: u128, options: bool, events: usize, is_final: bool) -> BatchAppendReq {
        let options = options.then(|| Options {
            stream_identifier: Some(ids::identifier(&StreamId::new("cart-1").expect("valid"))),
            expected_stream_position: Some(ExpectedStreamPosition::Any(())),
            deadline_option: None,
        });
        let event = || ProposedMessage {
            id: Some(ids::uuid(Uuid::new_v4(), UuidForm::Structured)),
            metadata: [("type", "added"), ("content-type", "application/json")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..ProposedMessage::default()
        };
        BatchAppendReq {
            correlation_id: Some(ids::uuid(Uuid::from_u128(batch), UuidForm::Structured)),
            options,
            proposed_messages: (0..events).map(|_| event()).collect(),
            is_final,
        }
    }

    #[test]
    fn chunks_of_several_batches_find_their_batch() {
        let mut arriving = Arriving::default();
        let mut take = |chunk| arriving.take(chunk, 100, Instant::now()).expect("a batch");
        assert!(matches!(take(chunk(1, true, 2, false)), Taken::More));
        assert!(matches!(take(chunk(2, true, 1, false)), Taken::More));
        let Taken::Whole(first) = take(chunk(1, false, 3, true)) else {
            panic!("the last chunk");
        };
        assert_eq!(first.events.len(), 5);
        let Taken::Whole(second) = take(chunk(2, false, 0, true)) else {
            panic!("the last chunk");
        };
        assert_eq!(second.events.len(), 1);
        assert_eq!(arriving.bytes(), 0);
    }

    #[test]
    fn a_refused_batch_is_answered_once() {
        let mut arriving = Arriving::default();
        let mut take = |chunk| arriving.take(chunk, 100, Instant::now()).expect("a batch");
        let Taken::Refused(answer) = take(chunk(1, false, 1, false)) else {
            panic!("it has no options");
        };
        let Some(Outcome::Error(status)) = answer.result else {
            panic!("an error");
        };
        assert_eq!(status.code, 3);
        assert_eq!(
            status.details[0].type_url,
            "type.googleapis.com/event_store.client.BadRequest"
        );
        assert!(answer.stream_identifier.is_some());
        assert!(matches!(take(chunk(1, false, 1, false)), Taken::More));
        assert!(matches!(take(chunk(1, false, 1, true)), Taken::More));
        assert!(matches!(take(chunk(1, true, 1, true)), Taken::Whole(_)));
    }

    #[test]
    fn what_waits_has_a_maximum() {
        let now = Instant::now();
        let mut arriving = Arriving::default();
        for batch in 0..BATCHES_MAX as u128 {
            arriving
                .take(chunk(batch, true, 1, false), 100, now)
                .expect("room");
        }
        let refusal = arriving.take(chunk(5_000, true, 1, false), 100, now);
        assert_eq!(refusal.expect_err("full").code, Code::ResourceExhausted);
        let mut arriving = Arriving::default();
        let most = chunk(1, true, limits::APPEND_EVENTS_MAX, false);
        assert!(matches!(arriving.take(most, 100, now), Ok(Taken::More)));
        let more = arriving
            .take(chunk(1, false, 1, true), 100, now)
            .expect("a batch");
        assert!(matches!(more, Taken::Refused(_)));
        assert_eq!(arriving.bytes(), 0);
    }

    /// Refused batches counted as begun until their last chunk came, which most clients do not send. After 1,000 of
    /// them the whole call ended. Goal: they do not count, and their number has a maximum.
    #[test]
    fn refused_batches_leave_their_places() {
        let now = Instant::now();
        let mut arriving = Arriving::default();
        for batch in 0..3_000 {
            let taken = arriving.take(chunk(batch, false, 1, false), 100, now);
            assert!(matches!(taken, Ok(Taken::Refused(_))), "{taken:?}");
            assert!(arriving.refused.len() <= REFUSED_MAX);
        }
        for batch in 5_000..5_500 {
            let begun = arriving.take(chunk(batch, true, 1, false), 100, now);
            assert!(matches!(begun, Ok(Taken::More)), "{begun:?}");
            let refused = arriving.refuse_last(&Refusal::overloaded("x"));
            assert!(refused.is_some());
        }
        let of_ids = REFUSED_MAX * size_of::<Uuid>();
        let left = (arriving.bytes(), arriving.batches.len());
        assert_eq!(left, (of_ids, 0));
        // The newest refused ones are still passed over.
        let passed = arriving.take(chunk(5_499, false, 1, true), 100, now);
        assert!(matches!(passed, Ok(Taken::More)), "{passed:?}");
    }

    /// Goal: sums that are kept are those of all events.
    #[test]
    fn sums_are_those_of_all_chunks() {
        let now = Instant::now();
        let mut arriving = Arriving::default();
        for events in [1, 0, 7] {
            let more = arriving.take(chunk(1, true, events, false), 100, now);
            assert!(matches!(more, Ok(Taken::More)), "{more:?}");
        }
        let waiting = arriving.bytes();
        let Ok(Taken::Whole(batch)) = arriving.take(chunk(1, false, 0, true), 100, now) else {
            panic!("the last chunk");
        };
        let of_events: usize = batch.events.iter().map(EventData::cost_bytes).sum();
        let cost = BEGUN_BYTES + 2 * "cart-1".len() + of_events;
        let payload: usize = batch.events.iter().map(EventData::payload_bytes).sum();
        assert_eq!((batch.cost_bytes(), batch.payload_bytes), (cost, payload));
        assert_eq!((waiting, arriving.bytes()), (cost, 0));
    }

    /// What happened: batches that were begun without events counted nothing, so that one client could fill the memory
    /// with them. Goal: each counts what it holds, the name of its stream above all, until it is whole.
    #[test]
    fn batches_without_events_count_what_they_hold() {
        let now = Instant::now();
        let name = "n".repeat(1_000);
        let stream = StreamId::new(name.clone()).expect("valid");
        let mut arriving = Arriving::default();
        for batch in 0..BATCHES_MAX as u128 {
            let mut begun = chunk(batch, true, 0, false);
            let options = begun.options.as_mut().expect("the first chunk");
            options.stream_identifier = Some(ids::identifier(&stream));
            let more = arriving.take(begun, 1_000, now);
            assert!(matches!(more, Ok(Taken::More)), "{more:?}");
        }
        let least = BATCHES_MAX * (name.len() + BEGUN_BYTES);
        assert!(arriving.bytes() >= least, "{}", arriving.bytes());
        for batch in 0..BATCHES_MAX as u128 {
            let whole = arriving.take(chunk(batch, false, 0, true), 100, now);
            assert!(matches!(whole, Ok(Taken::Whole(_))), "{whole:?}");
        }
        assert_eq!(arriving.bytes(), 0);
    }

    #[test]
    fn batches_that_wait_too_long_are_refused_once() {
        let begun = Instant::now();
        let later = begun + Duration::from_secs(1);
        let mut arriving = Arriving::default();
        for (batch, time) in [(1, begun), (2, later)] {
            let more = arriving.take(chunk(batch, true, 1, false), 100, time);
            assert!(matches!(more, Ok(Taken::More)), "{more:?}");
        }
        assert_eq!(arriving.oldest(), Some(begun));
        let late = arriving.refuse_begun_by(begun, &Refusal::deadline());
        let [answer] = late.as_slice() else {
            panic!("{late:?}");
        };
        let first = ids::uuid(Uuid::from_u128(1), UuidForm::Structured);
        assert_eq!(answer.correlation_id, Some(first));
        assert_eq!(arriving.oldest(), Some(later));
        let passed = arriving.take(chunk(1, false, 1, true), 100, later);
        assert!(matches!(passed, Ok(Taken::More)), "{passed:?}");
        assert_eq!(
            arriving.refuse_begun_by(later, &Refusal::deadline()).len(),
            1
        );
        let of_ids = size_of::<Uuid>();
        assert_eq!((arriving.bytes(), arriving.oldest()), (of_ids, None));
    }

    #[test]
    fn deadlines_of_ten_thousand_years_are_cut() {
        let relative = |seconds, nanos| {
            deadline(Some(&DeadlineOption::Deadline(prost_types::Duration {
                seconds,
                nanos,
            })))
        };
        assert_eq!(relative(315_576_000_000, 0), DEADLINE_MAX);
        assert_eq!(relative(1, 5), Duration::new(1, 5));
        assert_eq!(relative(-1, -5), Duration::ZERO);
    }
}
