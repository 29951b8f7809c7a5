//! The texts of messages between the processes that share a store.

use std::time::Duration;

use gesta_core::backend::Signal;
use gesta_core::{Incarnation, LogId, Position};
use uuid::Uuid;

/// Writes a message as `process kind log value`, separated by spaces, and a request to give way as `process give_way
/// log asker needed waited`, with times in microseconds. A program that does not know a kind ignores the message.
pub(crate) fn to_payload(process: Uuid, signal: &Signal) -> Option<String> {
    let process = process.simple();
    Some(match signal {
        Signal::Appended { log, position } => format!("{process} appended {log} {position}"),
        Signal::GiveWay {
            log,
            by,
            needed,
            waited,
        } => {
            let (needed, waited) = (needed.as_micros(), waited.as_micros());
            format!("{process} give_way {log} {} {needed} {waited}", by.simple())
        }
        Signal::Interrupted | Signal::HistoryChanged => return None,
    })
}

/// Writes the message that an incarnation of the store has begun.
pub(crate) fn incarnation_payload(process: Uuid, incarnation: Incarnation) -> String {
    let (process, incarnation) = (process.simple(), incarnation.0.simple());
    format!("{process} incarnation 0 {incarnation}")
}

/// What another process tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    Signal(Signal),
    /// This incarnation of the store has begun.
    Incarnation(Incarnation),
}

/// Returns the process that has sent a message, whatever the message says.
pub(crate) fn sender_of(payload: &str) -> Option<Uuid> {
    payload.split(' ').next()?.parse().ok()
}

/// Reads a message; `None` for our own messages and for those that are not understood.
pub(crate) fn from_payload(process: Uuid, payload: &str) -> Option<Message> {
    let mut parts = payload.split(' ');
    let sender: Uuid = parts.next()?.parse().ok()?;
    let kind = parts.next()?;
    let log = LogId(parts.next()?.parse().ok()?);
    let value = parts.next()?;
    if sender == process {
        return None;
    }
    let signal = match kind {
        "appended" => Signal::Appended {
            log,
            position: Position(value.parse().ok()?),
        },
        "give_way" => {
            let mut time = || Some(Duration::from_micros(parts.next()?.parse().ok()?));
            Signal::GiveWay {
                log,
                by: value.parse().ok()?,
                needed: time()?,
                waited: time()?,
            }
        }
        "incarnation" => return Some(Message::Incarnation(Incarnation(value.parse().ok()?))),
        _ => return None,
    };
    Some(Message::Signal(signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_and_back_but_not_our_own() {
        let (us, them) = (Uuid::from_u128(1), Uuid::from_u128(2));
        for signal in [
            Signal::Appended {
                log: LogId(3),
                position: Position(9),
            },
            Signal::GiveWay {
                log: LogId(0),
                by: us,
                needed: Duration::from_micros(51_200),
                waited: Duration::from_micros(u64::MAX),
            },
            Signal::GiveWay {
                log: LogId(7),
                by: us,
                needed: Duration::ZERO,
                waited: Duration::ZERO,
            },
        ] {
            let payload = to_payload(them, &signal).expect("can be sent");
            assert_eq!(sender_of(&payload), Some(them));
            assert_eq!(from_payload(us, &payload), Some(Message::Signal(signal)));
            assert_eq!(from_payload(them, &payload), None);
        }
        let begun = Incarnation::random();
        assert_eq!(
            from_payload(us, &incarnation_payload(them, begun)),
            Some(Message::Incarnation(begun))
        );
        for odd in [
            "",
            "x",
            "00000000000000000000000000000002 appended 0 -1",
            // What versions before this one have said.
            "00000000000000000000000000000002 turn_requested 0 00000000000000000000000000000002",
            "00000000000000000000000000000002 turn_granted 0 00000000000000000000000000000001",
            "00000000000000000000000000000002 give_way 0 00000000000000000000000000000002",
            "00000000000000000000000000000002 give_way 0 00000000000000000000000000000002 1 -1",
            "a b c d e",
        ] {
            assert_eq!(from_payload(us, odd), None);
        }
    }
}
