//! Generated requests that are wrong as HTTP: address, method, head, size, or not HTTP at all.

use rand::RngExt;
use rand::rngs::StdRng;

use crate::generate::{Attempt, Expect, pick, random_bytes};

/// The body of an append.
const APPEND: &[u8] = br#"{"events":[{"type":"T","data":1}]}"#;

/// Makes a request whose address, method, media type or header does not fit.
pub(crate) fn wrong_call(rng: &mut StdRng) -> Attempt {
    match rng.random_range(0..7) {
        0 => unknown_address(rng),
        1 => wrong_method(rng),
        2 => wrong_media_type(rng),
        3 => Attempt::request("POST", "/append", &[], APPEND).expect(Expect::Refused(415)),
        4 => wrong_last_event_id(rng),
        5 => wrong_host(rng),
        _ => odd_accept(rng),
    }
}

fn unknown_address(rng: &mut StdRng) -> Attempt {
    let targets = &[
        "/nope",
        "/streams/a/b/c",
        "/all/x",
        "//",
        "/Streams/a",
        "/streams%2Fa",
        "/health",
        "*",
        "/all/",
        "/%ff",
    ];
    Attempt::get(pick(rng, targets)).expect(Expect::Refused(404))
}

fn wrong_method(rng: &mut StdRng) -> Attempt {
    let methods = &["POST", "PUT", "PATCH", "OPTIONS", "TRACE", "FOO", "get"];
    let targets = &[
        "/all",
        "/info",
        "/streams",
        "/streams/a-1/0",
        "/all/subscribe",
        "/",
    ];
    Attempt::request(pick(rng, methods), pick(rng, targets), &[], b"").expect(Expect::Refused(405))
}

fn wrong_media_type(rng: &mut StdRng) -> Attempt {
    let media_types = &[
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonx",
        "multipart/form-data; boundary=x",
        "\u{fc}",
    ];
    let header = ("Content-Type", pick(rng, media_types));
    let target = pick(rng, &["/streams/a-1", "/append"]);
    Attempt::request("POST", target, &[header], APPEND).expect(Expect::Refused(415))
}

fn wrong_last_event_id(rng: &mut StdRng) -> Attempt {
    let ids = &["x", "-1", "AQAC", "\u{fc}", "9223372036854775807", "%41"];
    let targets = &[
        "/all/subscribe",
        "/streams/a-1/subscribe",
        "/all/subscribe?after=end",
    ];
    let header = ("Last-Event-ID", pick(rng, ids));
    Attempt::request("GET", pick(rng, targets), &[header], b"").field("Last-Event-ID")
}

fn wrong_host(rng: &mut StdRng) -> Attempt {
    let hosts = &[
        "example.org",
        "localhost.example.org:2113",
        "\u{fc}",
        "[",
        "a b",
        "1.2.3",
    ];
    let host = pick(rng, hosts);
    let status = match host {
        "\u{fc}" | "[" | "a b" => 400,
        _ => 421,
    };
    let attempt = Attempt::get(pick(rng, &["/info", "/streams/a-1", "/nope"]));
    let text = String::from_utf8(attempt.bytes).expect("text");
    Attempt {
        bytes: text.replacen("localhost", host, 1).into_bytes(),
        expect: Expect::Refused(status),
    }
}

/// Makes a request with a random `Accept`, which may say anything.
fn odd_accept(rng: &mut StdRng) -> Attempt {
    let accepts = &[
        "",
        "*/*",
        "text/html;q=0.9,;,,",
        "application/json",
        "\u{fc}",
        "x",
    ];
    Attempt::request("GET", "/info", &[("Accept", pick(rng, accepts))], b"")
}

pub(crate) fn oversized(rng: &mut StdRng, body_bytes_max: usize) -> Attempt {
    let target = pick(rng, &["/streams/a-1", "/append"]);
    let large = body_bytes_max + rng.random_range(1..10_000);
    let head =
        format!("POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    let bytes = match rng.random_range(0..3) {
        // Announced: refused before it comes.
        0 => format!(
            "{head}Content-Length: {}\r\n\r\n",
            pick(rng, &[2_000_000, 200_000_000, usize::MAX >> 1])
        )
        .into_bytes(),
        // Not announced.
        1 => {
            let chunk = format!("{:x}\r\n{}\r\n", large, " ".repeat(large));
            format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n").into_bytes()
        }
        _ => [
            format!("{head}Content-Length: {large}\r\n\r\n").as_bytes(),
            &vec![b'['; large],
        ]
        .concat(),
    };
    Attempt {
        bytes,
        expect: Expect::Refused(413),
    }
}

/// Makes bytes that are hardly HTTP.
pub(crate) fn garbage(rng: &mut StdRng) -> Attempt {
    let bytes = match rng.random_range(0..14) {
        0 => random_bytes(rng, 2_000),
        1 => [&random_bytes(rng, 50)[..], b"\r\n\r\n"].concat(),
        2 => format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(rng.random_range(60_000..70_000))).into_bytes(),
        3 => format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(rng.random_range(90..300))).into_bytes(),
        4 => format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(rng.random_range(100_000..200_000))).into_bytes(),
        5 => format!("GET / HTTP/{}\r\n\r\n", pick(rng, &["9.9", "1", "0.9", "1.1.1", "2.0", "\u{fc}"])).into_bytes(),
        6 => [&b"GET /streams/"[..], &random_bytes(rng, 30), b" HTTP/1.1\r\n\r\n"].concat(),
        7 => [&b"GET / HTTP/1.1\r\n"[..], &random_bytes(rng, 30), b": x\r\n\r\n"].concat(),
        8 => {
            let chunks = pick(rng, &["zz\r\n", "-1\r\nx\r\n", "fffffffffffffffff\r\n", "5\r\nab\r\n", "1\r\naXX", "0\r\nx", ""]);
            format!("POST /append HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}").into_bytes()
        }
        9 => {
            let length = pick(rng, &["-1", "x", "1, 2", "99999999999999999999", "", "+3", "0x3"]);
            format!("POST /append HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{{}}").into_bytes()
        }
        // A body that ends too soon.
        10 => b"POST /streams/a-1 HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"events\"".to_vec(),
        11 => [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &random_bytes(rng, 500)].concat(),
        // Two answers belong to this; only the first is looked at.
        12 => b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\nBAD\r\n\r\n".to_vec(),
        _ => pick(rng, &[
            &b"\r\n\r\n"[..], b"GET\r\n\r\n", b"GET /\r\n\r\n", b"GET  / HTTP/1.1\r\n\r\n", b"\0", b"GET / HTTP/1.1\r\nHost: x", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"POST /append HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n{}", b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"GET http://x/nope HTTP/1.0\r\n\r\n", b"",
        ]).to_vec(),
    };
    Attempt {
        bytes,
        expect: Expect::Garbage,
    }
}
