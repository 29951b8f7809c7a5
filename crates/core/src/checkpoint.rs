//! Checkpoints: what a consumer stores to resume after the last event that it has finished.
//!
//! The text form is opaque. It carries the incarnation of the store: a checkpoint made before the store was restored
//! from a backup is refused instead of silently skipping events. It also carries a check sum, so that a cut or mistyped
//! text is refused.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Incarnation, LogId, Position, Revision, StreamId};
use crate::limits::LOGS_MAX;
use crate::slice::fnv1a;

/// Version of the text form, its first byte.
const VERSION: u8 = 1;
const KIND_LOGS: u8 = 0;
/// Kind that version 0.1.0 wrote at first: a revision in a stream that is not named. It is read, but no longer written.
const KIND_ANY_STREAM: u8 = 1;
const KIND_STREAM: u8 = 2;

/// A subscription to all events tells its place in a log at each multiple of this number of positions while the
/// subscriber catches up: with the event that stands there, or with a checkpoint if no event there passes its filter.
///
/// These places depend on no event, so a guard that leaves events out can tell its caller of them and of no others.
pub const CHECKPOINT_POSITIONS_CATCHING_UP: u64 = 1_000;
/// The same number while the subscriber is live: a multiple of the one for catching up.
pub const CHECKPOINT_POSITIONS_LIVE: u64 = 10_000;

/// Place up to which a consumer has finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A place in all logs: the last finished position of each, in the order of the logs.
    Logs(Vec<Position>),
    /// A place in one stream.
    Stream {
        /// Hash of the stream's name; `None` in a checkpoint of an early version, which fits every stream.
        stream: Option<u64>,
        /// Last finished revision of the stream; `None` before the first.
        revision: Option<Revision>,
    },
}

/// A place together with the incarnation of the store that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Incarnation of the store in which the checkpoint was made.
    pub incarnation: Incarnation,
    /// Place up to which the consumer has finished.
    pub place: Place,
}

impl Checkpoint {
    /// Makes a checkpoint in the logs of a store.
    #[must_use]
    pub fn logs(incarnation: Incarnation, positions: Vec<Position>) -> Self {
        Self {
            incarnation,
            place: Place::Logs(positions),
        }
    }

    /// Makes a checkpoint in one stream.
    #[must_use]
    pub fn stream(incarnation: Incarnation, stream: &StreamId, revision: Option<Revision>) -> Self {
        Self {
            incarnation,
            place: Place::Stream {
                stream: Some(identity(stream)),
                revision,
            },
        }
    }

    /// Makes a checkpoint right after `position` of `log` and at the start of all other logs.
    #[must_use]
    pub fn in_log(incarnation: Incarnation, logs: u16, log: LogId, position: Position) -> Self {
        let mut positions = vec![Position::START; usize::from(logs)];
        if let Some(place) = positions.get_mut(usize::from(log.0)) {
            *place = position;
        }
        Self::logs(incarnation, positions)
    }

    /// Returns the positions, if this is a checkpoint of `incarnation` in a store of `logs` logs.
    ///
    /// # Errors
    /// `InvalidCheckpoint` if it is another checkpoint.
    pub fn positions_for(&self, incarnation: Incarnation, logs: u16) -> Result<&[Position]> {
        self.check_incarnation(incarnation)?;
        match &self.place {
            Place::Logs(positions) if positions.len() == usize::from(logs) => Ok(positions),
            Place::Logs(positions) => Err(ErrorKind::InvalidCheckpoint(format!(
                "it is of a store with {} logs, this one has {logs}",
                positions.len()
            ))
            .into()),
            Place::Stream { .. } => Err(ErrorKind::InvalidCheckpoint(
                "it is of a stream, not of all events".into(),
            )
            .into()),
        }
    }

    /// Returns the revision, if this is a checkpoint of `incarnation` in this stream.
    ///
    /// # Errors
    /// `InvalidCheckpoint` if it is another checkpoint.
    pub fn revision_for(
        &self,
        incarnation: Incarnation,
        stream: &StreamId,
    ) -> Result<Option<Revision>> {
        self.check_incarnation(incarnation)?;
        match self.place {
            Place::Stream {
                stream: Some(of), ..
            } if of != identity(stream) => Err(ErrorKind::InvalidCheckpoint(format!(
                "it is of another stream than {stream}"
            ))
            .into()),
            Place::Stream { revision, .. } => Ok(revision),
            Place::Logs(_) => Err(ErrorKind::InvalidCheckpoint(
                "it is of all events, not of a stream".into(),
            )
            .into()),
        }
    }

    fn check_incarnation(&self, incarnation: Incarnation) -> Result<()> {
        if self.incarnation == incarnation {
            return Ok(());
        }
        Err(ErrorKind::InvalidCheckpoint(format!(
            "it is of incarnation {}, the store is now {incarnation} (restored or replaced)",
            self.incarnation
        ))
        .into())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        match &self.place {
            Place::Logs(_) => out.push(KIND_LOGS),
            Place::Stream { stream: None, .. } => out.push(KIND_ANY_STREAM),
            Place::Stream { .. } => out.push(KIND_STREAM),
        }
        out.extend_from_slice(self.incarnation.0.as_bytes());
        match &self.place {
            Place::Logs(positions) => positions.iter().for_each(|p| put_varint(&mut out, p.0)),
            Place::Stream { stream, revision } => {
                put_varint(&mut out, revision.map_or(0, |r| r.next().0));
                if let Some(stream) = stream {
                    put_varint(&mut out, *stream);
                }
            }
        }
        let check = check_sum(&out);
        out.extend_from_slice(&check);
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, check) = bytes.split_at_checked(bytes.len().checked_sub(2)?)?;
        if check != check_sum(body) || *body.first()? != VERSION {
            return None;
        }
        let incarnation = Incarnation(Uuid::from_slice(body.get(2..18)?).ok()?);
        let mut rest = body.get(18..)?;
        let mut numbers = Vec::new();
        while !rest.is_empty() {
            if numbers.len() == usize::from(LOGS_MAX) {
                return None;
            }
            numbers.push(take_varint(&mut rest)?);
        }
        let place = match (*body.get(1)?, numbers.as_slice()) {
            (KIND_LOGS, [_, ..]) if numbers.iter().all(|n| *n <= Position::MAX.0) => {
                Place::Logs(numbers.into_iter().map(Position).collect())
            }
            (KIND_ANY_STREAM, [n]) if *n <= Revision::MAX.0 + 1 => Place::Stream {
                stream: None,
                revision: n.checked_sub(1).map(Revision),
            },
            (KIND_STREAM, [n, stream]) if *n <= Revision::MAX.0 + 1 => Place::Stream {
                stream: Some(*stream),
                revision: n.checked_sub(1).map(Revision),
            },
            _ => return None,
        };
        Some(Self { incarnation, place })
    }
}

/// Returns the order in which a page of all events that begins at these positions reads the logs; backwards the
/// reverse.
///
/// It begins with another log after each page, whichever that is, as by chance: a page ends in the log that fills it,
/// and if one log was always the first, a busy one would leave no room to the others for as long as it is busy. It
/// depends on the positions alone, so the same checkpoint gives the same page, and nobody has to remember anything. A
/// read from the start begins with log 0.
///
/// ```
/// # use gesta_core::{Position, reading_order};
/// let order = |at: &[u64]| -> Vec<usize> {
///     let at: Vec<Position> = at.iter().copied().map(Position).collect();
///     reading_order(&at).collect()
/// };
/// assert_eq!(order(&[0, 0, 0]), [0, 1, 2]);
/// let first: std::collections::BTreeSet<usize> = (1..20).map(|page| order(&[page, 0, 0])[0]).collect();
/// assert_eq!(first.len(), 3);
/// ```
pub fn reading_order(at: &[Position]) -> impl DoubleEndedIterator<Item = usize> + use<> {
    // The multiplier of splitmix64: the high bits of the product depend on all bits.
    let mixed = at.iter().fold(0_u64, |mixed, position| {
        (mixed.rotate_left(29) ^ position.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    let logs = at.len();
    let first = usize::try_from(mixed >> 33).unwrap_or(0) % logs.max(1);
    (0..logs).map(move |n| (first + n) % logs)
}

/// Returns the first position after `position` that is a multiple of `count`.
///
/// ```
/// # use gesta_core::{Position, next_multiple};
/// assert_eq!(next_multiple(Position(999), 1_000), Position(1_000));
/// assert_eq!(next_multiple(Position(1_000), 1_000), Position(2_000));
/// ```
#[must_use]
pub fn next_multiple(position: Position, count: u64) -> Position {
    Position((position.0 / count + 1).saturating_mul(count))
}

/// Returns the number that tells a stream from others in a checkpoint: 63 bits of FNV-1a of its name, so that a varint
/// holds them.
fn identity(stream: &StreamId) -> u64 {
    fnv1a(stream.as_str().as_bytes()) >> 1
}

/// Returns the low 16 bits of FNV-1a.
fn check_sum(bytes: &[u8]) -> [u8; 2] {
    let [.., a, b] = fnv1a(bytes).to_be_bytes();
    [a, b]
}

/// Appends a number as LEB128: seven bits a byte, the lowest first.
fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..63).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.encode()))
    }
}

impl FromStr for Checkpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .and_then(|bytes| Self::decode(&bytes))
            .ok_or_else(|| Error::invalid("checkpoint", "is not a checkpoint of Gesta, or was cut"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn incarnation() -> Incarnation {
        Incarnation(Uuid::from_u128(7))
    }

    fn cart() -> StreamId {
        StreamId::new("cart-1").expect("valid")
    }

    /// A checkpoint of one stream was taken for any other: the subscriber silently began at the wrong event.
    #[test]
    fn a_checkpoint_of_a_stream_is_of_that_stream() {
        let revision = Some(Revision(300));
        let checkpoint = Checkpoint::stream(incarnation(), &cart(), revision);
        let found = checkpoint.revision_for(incarnation(), &cart());
        assert_eq!(found.expect("its own"), revision);
        let other = StreamId::new("cart-2").expect("valid");
        let error = checkpoint.revision_for(incarnation(), &other);
        assert!(matches!(
            error.expect_err("another's").kind(),
            ErrorKind::InvalidCheckpoint(_)
        ));
        let early = Checkpoint {
            incarnation: incarnation(),
            place: Place::Stream {
                stream: None,
                revision,
            },
        };
        let early: Checkpoint = early.to_string().parse().expect("readable");
        assert_eq!(
            early.revision_for(incarnation(), &other).expect("any"),
            revision
        );
    }

    proptest! {
        #[test]
        fn text_form_and_back(numbers in prop::collection::vec(0..=Position::MAX.0, 1..20), r in prop::option::of(0..=Revision::MAX.0)) {
            let logs = Checkpoint::logs(incarnation(), numbers.into_iter().map(Position).collect());
            prop_assert_eq!(logs.to_string().parse::<Checkpoint>().expect("valid"), logs);
            let stream = Checkpoint::stream(incarnation(), &cart(), r.map(Revision));
            prop_assert_eq!(stream.to_string().parse::<Checkpoint>().expect("valid"), stream);
        }

        #[test]
        fn no_text_panics(text in ".{0,80}", bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = text.parse::<Checkpoint>();
            let _ = Checkpoint::decode(&bytes);
        }
    }

    #[test]
    fn a_cut_text_and_another_incarnation_are_refused() {
        let checkpoint = Checkpoint::logs(incarnation(), vec![Position(300)]);
        let text = checkpoint.to_string();
        assert!(text[..text.len() - 1].parse::<Checkpoint>().is_err());
        assert!(checkpoint.positions_for(Incarnation::random(), 1).is_err());
        assert!(checkpoint.positions_for(incarnation(), 2).is_err());
        assert!(checkpoint.revision_for(incarnation(), &cart()).is_err());
        assert_eq!(
            checkpoint.positions_for(incarnation(), 1).expect("its own"),
            [Position(300)]
        );
    }
}
