//! Texts of checkpoints.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gesta_core::{
    Checkpoint, ErrorKind, Incarnation, Place, Position, Revision, StreamId, limits, reading_order,
};

use crate::Seed;
use crate::sample::{after, byte, id, incarnation, stream};

/// Texts, and bytes to which the right check sum is added, since no change of a text would hit it.
pub(crate) fn checkpoint(mut input: &[u8]) {
    match byte(&mut input) {
        0 => {
            if let Ok(text) = std::str::from_utf8(input) {
                check(text);
            }
        }
        _ => {
            let [.., a, b] = fnv1a(input).to_be_bytes();
            check(&URL_SAFE_NO_PAD.encode([input, &[a, b]].concat()));
        }
    }
}

/// What is read is written so that it is read as the same, and belongs to its incarnation, store and stream alone.
fn check(text: &str) {
    let read = match text.parse::<Checkpoint>() {
        Ok(read) => read,
        Err(error) => {
            let ErrorKind::InvalidArgument { field, .. } = error.kind() else {
                panic!("{error}");
            };
            return assert_eq!(field, "checkpoint");
        }
    };
    let written = read.to_string();
    let again: Checkpoint = written.parse().expect("what is written can be read");
    assert_eq!(again, read);
    assert_eq!(again.to_string(), written);
    assert!(
        written.len() <= text.len(),
        "{written} is longer than {text}"
    );

    let other = Incarnation(id(1));
    assert!(read.incarnation == other || read.positions_for(other, 1).is_err());
    match &read.place {
        Place::Logs(positions) => {
            let logs = u16::try_from(positions.len()).expect("few logs");
            assert!((1..=limits::LOGS_MAX).contains(&logs));
            assert!(positions.iter().all(|position| *position <= Position::MAX));
            assert_eq!(
                read.positions_for(read.incarnation, logs).expect("its own"),
                positions
            );
            assert!(read.positions_for(read.incarnation, logs + 1).is_err());
            assert!(
                read.revision_for(read.incarnation, &stream("cart-1"))
                    .is_err()
            );
            let mut order: Vec<usize> = reading_order(positions).collect();
            order.sort_unstable();
            assert!(order.into_iter().eq(0..positions.len()), "each log once");
        }
        Place::Stream { revision, stream } => {
            assert!(revision.is_none_or(|revision| revision <= Revision::MAX));
            assert!(read.positions_for(read.incarnation, 1).is_err());
            let streams = ["cart-1", "cart-2"].map(|name| StreamId::new(name).expect("valid"));
            let fits = streams.map(|of| read.revision_for(read.incarnation, &of).is_ok());
            match stream {
                Some(_) => assert_ne!(fits, [true, true]),
                None => assert_eq!(fits, [true, true]),
            }
        }
    }
}

/// FNV-1a with 64 bits, of which a checkpoint has the last 16 as its check sum (Fowler, Noll, Vo).
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub(crate) fn seeds() -> Vec<Seed> {
    let logs = |positions: &[u64]| {
        let positions = positions.iter().copied().map(Position).collect();
        Checkpoint::logs(incarnation(), positions)
    };
    let of_stream = |revision| Checkpoint::stream(incarnation(), &stream("cart-1"), revision);
    let bytes = |checkpoint: &Checkpoint| {
        let all = URL_SAFE_NO_PAD
            .decode(checkpoint.to_string())
            .expect("as it is written");
        // Without the check sum.
        after(&[1], &all[..all.len() - 2])
    };
    let early = Checkpoint {
        incarnation: incarnation(),
        place: Place::Stream {
            stream: None,
            revision: Some(Revision(300)),
        },
    };
    let four = logs(&[0, 1, 300, Position::MAX.0]);
    vec![
        ("text", after(&[0], four.to_string())),
        ("four", bytes(&four)),
        ("one", bytes(&logs(&[0]))),
        ("stream", bytes(&of_stream(Some(Revision(7))))),
        ("before", bytes(&of_stream(None))),
        ("last", bytes(&of_stream(Some(Revision::MAX)))),
        ("early", bytes(&early)),
    ]
}
