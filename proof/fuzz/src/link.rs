//! What nodes send each other: frames on a lane, and the hello before them.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use gesta_core::{LogId, Moment};
use gesta_link::core::{Frame, Frames, Introduction, Outbox, Violation, dial, listen};
use gesta_link::{Address, Epoch, Hint, Secret};
use tokio::io::{join, sink};

use crate::Seed;
use crate::sample::{after, byte, id, incarnation, parts};

/// Frames come in parts of any size: what they say does not depend on the parts, and is written as it was read.
pub(crate) fn frame(mut input: &[u8]) {
    let (part_bytes, body_bytes_max) = (usize::from(byte(&mut input)) + 1, byte(&mut input));
    let body_bytes_max = u32::from(body_bytes_max) * 64;
    let whole = read(body_bytes_max, &[input]);
    assert_eq!(read(body_bytes_max, &parts(input, part_bytes)), whole);

    let (frames, _) = whole;
    let bytes: usize = frames.iter().map(body_bytes).sum();
    assert!(bytes <= input.len(), "more than came");
    let mut outbox = Outbox::default();
    frames.iter().for_each(|frame| outbox.push(frame.clone()));
    let written = bytes_of(outbox);
    assert_eq!(read(u32::MAX, &[&written]), (frames, None));
}

/// Reads frames up to the first violation.
fn read(body_bytes_max: u32, parts: &[&[u8]]) -> (Vec<Frame>, Option<Violation>) {
    let now = Moment::START;
    let (mut reader, mut read) = (Frames::new(body_bytes_max), Vec::new());
    for part in parts {
        reader.feed(now, Bytes::copy_from_slice(part));
        loop {
            match reader.next(now) {
                Ok(Some((frame, _))) => read.push(frame),
                Ok(None) => break,
                Err(violation) => return (read, Some(violation)),
            }
        }
    }
    (read, None)
}

fn body_bytes(frame: &Frame) -> usize {
    match frame {
        Frame::Call { body, .. }
        | Frame::Reply { body, .. }
        | Frame::Ask { body, .. }
        | Frame::Answer { body } => body.len(),
        Frame::Open { .. } | Frame::NotHere { .. } | Frame::DeadlineOver { .. } => 0,
    }
}

fn bytes_of(mut outbox: Outbox) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = outbox.next() {
        let piece = piece.split_to(piece.len());
        all.extend_from_slice(&piece);
        outbox.written(piece.len());
    }
    assert_eq!(outbox.bytes(), 0);
    all
}

pub(crate) fn frame_seeds() -> Vec<Seed> {
    let epoch = Epoch {
        incarnation: incarnation(),
        number: 7,
    };
    let remaining = Duration::from_millis(250);
    let hint = |owner: Option<&str>| Hint {
        owner: owner.map(Address::new),
        epoch,
    };
    let open = Frame::Open {
        log: LogId(3),
        lane: 1,
        epoch,
    };
    let call = |seq, is_in_doubt| Frame::Call {
        seq,
        kind: 4,
        is_in_doubt,
        remaining,
        body: Bytes::from_static(b"body"),
    };
    let reply = |bytes: &'static [u8]| Frame::Reply {
        seq: 0,
        body: Bytes::from_static(bytes),
    };
    let refused = |owner| Frame::NotHere {
        from: 1,
        untaken: 2,
        hint: hint(owner),
    };
    let ask = Frame::Ask {
        kind: 1,
        remaining,
        body: Bytes::from_static(b"which"),
    };
    let answer = Frame::Answer {
        body: Bytes::from_static(b"this"),
    };
    let of = |frames: Vec<Frame>| {
        let mut outbox = Outbox::default();
        frames.into_iter().for_each(|frame| outbox.push(frame));
        after(&[6, 255], bytes_of(outbox))
    };
    vec![
        ("calls", of(vec![open, call(0, false), call(1, true)])),
        ("replies", of(vec![reply(b"done"), reply(b"")])),
        ("large", of(vec![reply(&[7; 5_000])])),
        (
            "refused",
            of(vec![refused(Some("node-b:7071")), refused(None)]),
        ),
        ("late", of(vec![Frame::DeadlineOver { seq: 5 }])),
        ("questions", of(vec![ask, answer])),
        ("optional", after(&[6, 1], [0_u8, 0, 0, 3, 0x90, 1, 2])),
    ]
}

/// Hellos: an introduction is written as it was read, and nobody is let in by chance.
pub(crate) fn hello(input: &[u8]) {
    if let Some(read) = Introduction::decode(input) {
        let written = read.encode();
        let again = Introduction::decode(&written).expect("what is written can be read");
        assert_eq!(again.encode(), written);
        assert!(written.len() <= input.len(), "more than came");
    }
    let secret = Secret::new(b"0123456789abcdef0123456789abcdef").expect("long enough");
    let own = Introduction::decode(&introduction("1.2.3", "node-a:1")).expect("valid");
    let listened = listen(&mut join(input, sink()), &secret, &own).now_or_never();
    assert!(listened.expect("everything has come").is_err());
    let dialled = dial(&mut join(input, sink()), &secret, &own).now_or_never();
    assert!(dialled.expect("everything has come").is_err());
}

/// An introduction as nodes write it: versions, store, logs, process, credit, build, address.
fn introduction(build: &str, address: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend([0, 1, 0, 1]);
    bytes.extend(id(7).as_bytes());
    bytes.extend([0, 16]);
    bytes.extend(id(8).as_bytes());
    bytes.extend([0, 0, 0, 5, 0, 0, 0, 6]);
    bytes.push(u8::try_from(build.len()).expect("short"));
    bytes.extend(build.as_bytes());
    bytes.extend(u16::try_from(address.len()).expect("short").to_be_bytes());
    bytes.extend(address.as_bytes());
    bytes
}

pub(crate) fn hello_seeds() -> Vec<Seed> {
    let usual = introduction("1.2.3", "node-a:1");
    let framed = |text: &[u8]| {
        let length = u16::try_from(text.len()).expect("short").to_be_bytes();
        after(&length, text)
    };
    let dialling = [&b"GESTALNK"[..], &[9; 32], &framed(&usual), &[8; 32]].concat();
    let welcome = [&[9; 32][..], &[0], &framed(&usual), &[8; 32]].concat();
    let refused = [&[9; 32][..], &[1], &framed(b"no"), &[8; 32]].concat();
    let long = introduction(&"ß".repeat(100), &"a".repeat(400));
    for own in [&usual, &long] {
        let read = Introduction::decode(own).expect("as nodes write it");
        assert!(own.starts_with(&read.encode()[..46]));
    }
    vec![
        ("introduction", usual.clone()),
        ("later", after(&usual, b"what a later build adds")),
        ("long", long),
        ("dialling", dialling),
        ("welcome", welcome),
        ("refused", refused),
        ("unproven", after(&[9; 32], [2_u8])),
    ]
}
