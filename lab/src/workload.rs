//! What is appended: streams, payloads and event ids, all fixed by a seed before the clock starts.
//!
//! Event ids carry the run and the number of the event, scrambled so that they look random to an
//! index; the read-back check recognises its own events by them and keeps a few bytes per append only.
//! Not here: who appends when (`append`, `torture`).

use bytes::Bytes;
use gesta_core::{EventData, EventId, EventType, StreamId};
use uuid::Uuid;

use crate::random::Random;

/// Most bytes of payloads that are made in advance.
const POOL_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most payloads that are made in advance.
const POOL_PAYLOADS_MAX: usize = 4_096;

/// What payloads look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PayloadKind {
    /// JSON of seats, names and times; lz4 takes about a third away.
    Json,
    /// Random bytes, which nothing compresses.
    Random,
}

/// The parameters of a workload.
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct WorkloadArgs {
    /// Number of streams.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) streams: u32,
    /// Bytes of data per event.
    #[arg(long, default_value_t = 50)]
    pub(crate) payload: usize,
    /// What the data look like.
    #[arg(long, value_enum, default_value_t = PayloadKind::Json)]
    pub(crate) payload_kind: PayloadKind,
    /// Bytes of metadata per event.
    #[arg(long, default_value_t = 36)]
    pub(crate) metadata: usize,
    /// Seed of names, payloads and choices.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
}

/// Identity of one run: 60 random bits in the id of each of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run(u64);

impl Run {
    /// A new run.
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4().as_u64_pair().0 >> 4)
    }

    /// The run of this number; for tests.
    #[cfg(test)]
    pub(crate) fn numbered(number: u64) -> Self {
        Self(number & (u64::MAX >> 4))
    }

    /// Its number.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The id of an event of this run. `number` must be below 2^62.
    pub(crate) fn event_id(self, number: u64) -> EventId {
        let scrambled = (number & LOW_MASK).wrapping_mul(SCRAMBLE) & LOW_MASK;
        // 48 bits of the run, version 8 (custom), 12 bits of the run; variant, 62 bits of the number.
        let high = ((self.0 >> 12) << 16) | (8 << 12) | (self.0 & 0xfff);
        EventId(Uuid::from_u64_pair(high, (0b10 << 62) | scrambled))
    }

    /// The number of an event, if it is of this run.
    pub(crate) fn number_of(self, id: EventId) -> Option<u64> {
        let (high, low) = id.0.as_u64_pair();
        let number = (low & LOW_MASK).wrapping_mul(UNSCRAMBLE) & LOW_MASK;
        (self.event_id(number) == id && high != 0).then_some(number)
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:015x}", self.0)
    }
}

const LOW_MASK: u64 = u64::MAX >> 2;
/// An odd factor, so that multiplying by it modulo 2^62 can be undone.
const SCRAMBLE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Its inverse modulo 2^64, hence modulo 2^62.
const UNSCRAMBLE: u64 = inverse(SCRAMBLE);

/// Newton's iteration: each step doubles the number of right bits, beginning with three.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut steps = 0;
    while steps < 5 {
        x = x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x)));
        steps += 1;
    }
    x
}

/// Streams and payloads, ready for use by many tasks.
#[derive(Debug)]
pub(crate) struct Workload {
    /// The run, part of each event id.
    pub(crate) run: Run,
    seed: u64,
    streams: Vec<StreamId>,
    event_type: EventType,
    payload_kind: PayloadKind,
    payloads: Vec<Bytes>,
    metadata: Bytes,
}

impl Workload {
    /// Makes everything that needs making.
    pub(crate) fn new(args: &WorkloadArgs, run: Run) -> Self {
        let mut random = Random::fork(args.seed, 1);
        let streams = (0..args.streams)
            .map(|_| StreamId::new(format!("show-{}", random.uuid())).expect("a valid name"))
            .collect();
        let mut random = Random::fork(args.seed, 2);
        let count = (POOL_BYTES_MAX / args.payload.max(1)).clamp(1, POOL_PAYLOADS_MAX);
        let payloads = (0..count)
            .map(|_| match args.payload_kind {
                PayloadKind::Json => json(args.payload, &mut random),
                PayloadKind::Random => noise(args.payload, &mut random),
            })
            .collect();
        let metadata = json(args.metadata, &mut random);
        Self {
            run,
            seed: args.seed,
            streams,
            event_type: EventType::new("SeatReserved").expect("a valid type"),
            payload_kind: args.payload_kind,
            payloads,
            metadata,
        }
    }

    /// The random choices of one of the tasks.
    pub(crate) fn choices(&self, task: usize) -> Random {
        Random::fork(self.seed, 1_000 + task as u64)
    }

    /// All streams.
    pub(crate) fn streams(&self) -> &[StreamId] {
        &self.streams
    }

    /// The event of this number.
    pub(crate) fn event(&self, number: u64) -> EventData {
        let data = self.payload(number).clone();
        let event = match self.payload_kind {
            PayloadKind::Json => EventData::json(self.event_type.clone(), data),
            PayloadKind::Random => EventData::binary(self.event_type.clone(), data),
        };
        event
            .with_id(self.run.event_id(number))
            .with_metadata(self.metadata.clone())
    }

    /// The data of the event of this number.
    pub(crate) fn payload(&self, number: u64) -> &Bytes {
        let at = number % (self.payloads.len() as u64);
        &self.payloads[usize::try_from(at).expect("an index")]
    }

    /// The metadata of the events.
    pub(crate) fn metadata(&self) -> &Bytes {
        &self.metadata
    }
}

fn noise(bytes: usize, random: &mut Random) -> Bytes {
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        out.extend_from_slice(&random.next().to_le_bytes());
    }
    out.truncate(bytes);
    out.into()
}

/// A JSON document of exactly `bytes` bytes (below 8 bytes: a number), of records as services write them.
fn json(bytes: usize, random: &mut Random) -> Bytes {
    const FRAME: usize = r#"{"p":""}"#.len();
    if bytes < FRAME {
        return Bytes::from("7".repeat(bytes));
    }
    let mut out = String::with_capacity(bytes);
    out.push('{');
    let mut number = 0;
    loop {
        let record = format!(
            r#""s{number}":{{"row":{},"seat":{},"by":"{:012x}","price":"{}.{:02}"}},"#,
            random.below(40),
            random.below(60),
            random.next() >> 16,
            random.below(90) + 10,
            random.below(100)
        );
        if out.len() + record.len() + FRAME - 1 > bytes {
            break;
        }
        out.push_str(&record);
        number += 1;
    }
    out.push_str(r#""p":""#);
    while out.len() < bytes - 2 {
        out.push(char::from(
            b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[random.below(64)],
        ));
    }
    out.push_str(r#""}"#);
    debug_assert_eq!(out.len(), bytes);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(payload: usize) -> WorkloadArgs {
        WorkloadArgs {
            streams: 100,
            payload,
            payload_kind: PayloadKind::Json,
            metadata: 36,
            seed: 7,
        }
    }

    #[test]
    fn a_seed_makes_the_same_workload_again() {
        let one = Workload::new(&args(200), Run::numbered(1));
        let two = Workload::new(&args(200), Run::numbered(1));
        assert_eq!(one.streams(), two.streams());
        assert!((0..10_000).all(|n| one.event(n) == two.event(n)));
        assert_eq!(one.choices(3).next(), two.choices(3).next());
        assert_ne!(one.choices(3).next(), one.choices(4).next());
        let other = Workload::new(
            &WorkloadArgs {
                seed: 8,
                ..args(200)
            },
            Run::numbered(1),
        );
        assert_ne!(one.streams(), other.streams());
        assert_ne!(one.payload(0), other.payload(0));
    }

    #[test]
    fn payloads_have_the_size_asked_for_and_are_json() {
        for bytes in [1, 7, 8, 9, 36, 50, 51, 64, 500, 1_138, 23_961] {
            let workload = Workload::new(&args(bytes), Run::numbered(1));
            for n in 0..20 {
                let payload = workload.payload(n);
                assert_eq!(payload.len(), bytes);
                serde_json::from_slice::<serde_json::Value>(payload).unwrap();
            }
        }
        assert!(
            Workload::new(&args(0), Run::numbered(1))
                .payload(3)
                .is_empty()
        );
    }

    #[test]
    fn ids_tell_their_run_and_number() {
        let run = Run::numbered(0x0123_4567_89ab_cdef);
        for number in [0, 1, 2, 1_000_003, LOW_MASK] {
            let id = run.event_id(number);
            assert_eq!(run.number_of(id), Some(number));
            assert_eq!(Run::numbered(1).number_of(id), None);
            assert_eq!(id.0.get_version_num(), 8);
            assert_eq!(id.0.get_variant(), uuid::Variant::RFC4122);
        }
        assert_eq!(run.number_of(EventId(Uuid::nil())), None);
        assert_eq!(run.number_of(EventId::random()), None);
    }
}
