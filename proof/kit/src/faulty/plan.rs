//! Says what goes wrong for one process, and when.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gesta_core::backend::{Batch, Row};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{Error, EventData, EventType, StreamId};

use super::random::Random;
use super::read::Read;

/// What happens to one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing is stored, for a passing reason such as a deadlock. The pipeline tries again.
    Failed,
    /// Nothing is stored, since the database refuses the batch. The pipeline looks for the offending append; if the
    /// batch holds only one, that one is refused.
    Refused,
    /// The connection dies before the commit arrives; nothing is stored.
    LostRequest,
    /// The events are stored, but the connection dies before the reply.
    LostReply,
    /// This commit and all that were sent after it are stored, but no reply comes, since the connection dies.
    LostReplies,
    /// The connection dies, and what was sent on it from this commit on reaches the database later.
    Lost(LateCommit),
    /// The commit reaches the database this much later.
    SlowRequest(Duration),
    /// The events are stored at once, but the reply takes this much longer.
    SlowReply(Duration),
    /// Nothing is stored, since the disk is full. Trying again does not help.
    DiskFull,
    /// Another process appends these events just before, so that the commit misses.
    Overtaken(StreamId, Vec<EventData>),
}

/// When a commit whose connection died reaches the database after all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateCommit {
    /// The commit arrives after this time.
    After(Duration),
    /// The commit arrives just before the next commit of the same process.
    BeforeNextCommit,
    /// The commit arrives when the test says so: [`Faulty::commit_lost`](super::Faulty::commit_lost).
    WhenTold,
}

/// What happens to one read, or to one attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadFault {
    /// The database does not answer; the call fails with `Unavailable`.
    Failed,
    /// The answer was true when the call was made, but comes this much later.
    SlowReply(Duration),
    /// The call reaches the database this much later.
    SlowRequest(Duration),
}

/// Invents what another process appends just before a commit: given that commit, a stream and events.
#[derive(Clone)]
pub struct ForeignEvents(Arc<Make>);

type Make = dyn Fn(&mut Random, &Batch) -> (StreamId, Vec<EventData>) + Send + Sync;

impl ForeignEvents {
    /// Makes it of a function, which should use only the random numbers that it is given.
    pub fn new(
        make: impl Fn(&mut Random, &Batch) -> (StreamId, Vec<EventData>) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(make))
    }
}

impl Default for ForeignEvents {
    /// Appends one event to a stream `overtaken-1`.
    fn default() -> Self {
        Self::new(|_, _| {
            let stream = StreamId::new("overtaken-1").expect("valid");
            let event_type = EventType::new("overtaken").expect("valid");
            (stream, vec![EventData::json(event_type, "{}").without_id()])
        })
    }
}

impl fmt::Debug for ForeignEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ForeignEvents")
    }
}

/// Random faults. Shares are from 0.0, never, to 1.0, always.
#[derive(Debug, Clone)]
pub struct RandomFaults {
    /// The seed. The same seed gives the same sequence of faults.
    pub seed: u64,
    /// The share of commits that suffer one of the [`Fault`]s; each kind is as frequent as the others.
    pub commits: f64,
    /// The share of reads and attempts to connect that suffer one of the [`ReadFault`]s.
    pub reads: f64,
    /// The share of commits at which the database goes away for up to `away_max`.
    pub away: f64,
    /// The share of messages between processes that are lost.
    pub messages: f64,
    /// The longest delay of a slow call, and of a late commit.
    pub slow_max: Duration,
    /// The longest time for which the database is away.
    pub away_max: Duration,
    /// What overtaking processes append.
    pub foreign: ForeignEvents,
}

impl RandomFaults {
    /// Makes faults for this share of commits and of reads, for a tenth of it of messages, and with the database away
    /// at a twentieth of it of the commits.
    #[must_use]
    pub fn new(seed: u64, share: f64) -> Self {
        Self {
            seed,
            commits: share,
            reads: share,
            away: share / 20.0,
            messages: share / 10.0,
            slow_max: Duration::from_millis(500),
            away_max: Duration::from_secs(2),
            foreign: ForeignEvents::default(),
        }
    }
}

type Refuses = Box<dyn Fn(&Row) -> bool + Send>;
pub(super) type Packing = Arc<dyn Fn(&Bytes) -> Option<Bytes> + Send + Sync>;
type Fails = Box<dyn FnMut(Read<'_>) -> Option<Error> + Send>;

/// The plan of one process.
pub(super) struct Plan {
    pub(super) commits: VecDeque<Fault>,
    pub(super) reads: VecDeque<ReadFault>,
    pub(super) refuses: Option<Refuses>,
    pub(super) fails: Option<Fails>,
    /// Makes a form of the data of an event.
    pub(super) packing: Option<Packing>,
    /// How long a call takes, half of it on the way to the database.
    pub(super) round_trip: Duration,
    /// The number of bytes after which a page ends.
    pub(super) page_bytes_max: usize,
    /// Whether all messages of the process are lost.
    pub(super) mute: bool,
    random: Option<(Random, RandomFaults)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            commits: VecDeque::new(),
            reads: VecDeque::new(),
            refuses: None,
            fails: None,
            packing: None,
            round_trip: Duration::ZERO,
            page_bytes_max: PAGE_BYTES_MAX,
            mute: false,
            random: None,
        }
    }
}

/// What a commit meets.
#[derive(Default)]
pub(super) struct Meets {
    pub(super) fault: Option<Fault>,
    /// How long the database goes away, if it does.
    pub(super) away: Option<Duration>,
}

impl Plan {
    pub(super) fn randomly(&mut self, faults: RandomFaults) {
        self.random = Some((Random::new(faults.seed), faults));
    }

    /// Ends the planned and the random faults. What was set for all calls is kept.
    pub(super) fn heal(&mut self) {
        self.commits.clear();
        self.reads.clear();
        self.random = None;
    }

    /// Returns what this commit meets. Faults that were asked for one by one wait for a commit with events.
    pub(super) fn next_commit(&mut self, batch: &Batch) -> Meets {
        if !batch.rows.is_empty()
            && let Some(fault) = self.commits.pop_front()
        {
            let fault = Some(fault);
            return Meets { fault, away: None };
        }
        let Some((random, faults)) = &mut self.random else {
            return Meets::default();
        };
        let away = random
            .chance(faults.away)
            .then(|| random.duration(faults.away_max));
        let fault = random
            .chance(faults.commits)
            .then(|| any_fault(random, faults, batch));
        Meets { fault, away }
    }

    pub(super) fn next_read(&mut self) -> Option<ReadFault> {
        if let Some(fault) = self.reads.pop_front() {
            return Some(fault);
        }
        let (random, faults) = self.random.as_mut()?;
        random.chance(faults.reads).then(|| match random.below(3) {
            0 => ReadFault::Failed,
            1 => ReadFault::SlowReply(random.duration(faults.slow_max)),
            _ => ReadFault::SlowRequest(random.duration(faults.slow_max)),
        })
    }

    pub(super) fn failure_of(&mut self, read: Read<'_>) -> Option<Error> {
        self.fails.as_mut().and_then(|fails| fails(read))
    }

    pub(super) fn loses_message(&mut self) -> bool {
        let random = self.random.as_mut();
        self.mute || random.is_some_and(|(random, faults)| random.chance(faults.messages))
    }

    pub(super) fn refuses(&self, batch: &Batch) -> bool {
        let refuses = self.refuses.as_ref();
        refuses.is_some_and(|refuses| batch.rows.iter().any(refuses))
    }
}

fn any_fault(random: &mut Random, faults: &RandomFaults, batch: &Batch) -> Fault {
    match random.below(10) {
        0 => Fault::Failed,
        1 => Fault::Refused,
        2 => Fault::LostRequest,
        3 => Fault::LostReply,
        4 => Fault::LostReplies,
        5 => Fault::Lost(LateCommit::After(random.duration(faults.slow_max))),
        6 => Fault::Lost(LateCommit::BeforeNextCommit),
        7 => Fault::SlowRequest(random.duration(faults.slow_max)),
        8 => Fault::SlowReply(random.duration(faults.slow_max)),
        _ => {
            let (stream, events) = (faults.foreign.0)(random, batch);
            Fault::Overtaken(stream, events)
        }
    }
}
