//! Wrong parameters, and wrong metadata of streams.

use rand::RngExt;
use rand::rngs::StdRng;

use crate::generate::{Attempt, Expect, pick};

/// Texts that are no numbers.
const NUMBERS: &[&str] = &[
    "-1",
    "x",
    "",
    "1.5",
    "99999999999999999999",
    "%ff",
    "%zz",
    "+1",
    "0x10",
    "1e3",
    "%00",
    "1%200",
];

/// Texts that are no positions, revisions or checkpoints.
const POSITIONS: &[&str] = &[
    "-1",
    "x%20",
    "1.5",
    "9223372036854775807",
    "%ff",
    "%",
    "%00",
    "START",
    "AQAC",
    "AQECXB0eRPdBXoAi",
];

/// Texts that are no names.
const TEXTS: &[&str] = &["%00", "a%0Ab", "%C2%85", "%ff", "%"];

/// Filters, and the field that is wrong in each.
const FILTERS: &[(&str, &str)] = &[
    ("", "filter"),
    ("%7B%7D", "filter"),
    ("7", "filter"),
    ("%5B7%5D", "filter[0]"),
    ("%5B%7B%22types%22:7%7D%5D", "filter[0].types"),
    ("%5B%7B%22tags%22:%5B%22%22%5D%7D%5D", "filter[0].tags"),
    ("%5B%7B%22x%22:1%7D%5D", "filter[0].x"),
    (
        "%5B%7B%22stream_prefixes%22:%5B%22%5Cu0000%22%5D%7D%5D",
        "filter[0].stream_prefixes",
    ),
];

/// Calls of `DELETE`, and the field that is wrong in each.
const DELETES: &[(&str, &str)] = &[
    ("/streams/a-1?expected=", "expected"),
    ("/streams/a-1?expected=-1", "expected"),
    ("/streams/a-1?expected=9223372036854775807", "expected"),
    ("/streams/a-1?tombstone=", "tombstone"),
    ("/streams/a-1?tombstone=1", "tombstone"),
    ("/streams/a-1?tombstone=true&tombstone=true", "tombstone"),
    ("/streams/a-1?expected=%ff", "expected"),
];

/// Makes a wrong limit or direction, or a parameter that is unknown or repeated.
fn wrong_page(rng: &mut StdRng) -> (String, &'static str) {
    let number = pick(rng, NUMBERS);
    match rng.random_range(0..7) {
        0 => (format!("/streams/a-1?limit={number}"), "limit"),
        1 => {
            let limit = pick(rng, &["0", "10001", "18446744073709551615", number]);
            (format!("/all?limit={limit}"), "limit")
        }
        2 => (format!("/streams?limit={number}&prefix=a"), "limit"),
        3 => {
            let direction = pick(rng, &["", "up", "Forwards", "forwards%20"]);
            (format!("/all?direction={direction}"), "direction")
        }
        4 => {
            let direction = pick(rng, TEXTS);
            (format!("/streams/a-1?direction={direction}"), "direction")
        }
        5 => {
            let limit = pick(rng, &["1", "2"]);
            (format!("/all?limit=1&limit={limit}"), "limit")
        }
        _ => {
            let unknown = pick(rng, &["limt", "after", "Limit", "type"]);
            (format!("/streams/a-1?{unknown}=1"), "")
        }
    }
}

/// Makes a wrong place to begin at.
fn wrong_place(rng: &mut StdRng) -> (String, &'static str) {
    let position = pick(rng, POSITIONS);
    match rng.random_range(0..5) {
        0 => (format!("/streams/a-1?from={position}"), "from"),
        1 => (format!("/all?from={position}"), "from"),
        2 => (format!("/streams/a-1/subscribe?after={position}"), "after"),
        3 => (format!("/all/subscribe?after={position}"), "after"),
        _ => {
            let text = pick(rng, TEXTS);
            let after = pick(rng, &["", text]);
            (format!("/streams?after={after}"), "after")
        }
    }
}

/// Makes a wrong condition on what is wanted.
fn wrong_condition(rng: &mut StdRng) -> (String, &'static str) {
    let text = pick(rng, TEXTS);
    let text_or_none = pick(rng, &["", text]);
    match rng.random_range(0..7) {
        0 => (format!("/all?type={text_or_none}"), "type"),
        1 => (format!("/all/subscribe?tag=x&tag={text_or_none}"), "tag"),
        2 => (format!("/all?stream_prefix={text}"), "stream_prefix"),
        3 => (format!("/all?category={text}"), "category"),
        4 => {
            let tags = vec!["tag=x"; rng.random_range(101..300)].join("&");
            (format!("/all?{tags}"), "tag")
        }
        5 => (format!("/streams?prefix={text}"), "prefix"),
        _ => {
            let (filter, field) = pick(rng, FILTERS);
            (format!("/all?filter={filter}"), field)
        }
    }
}

/// Makes a request with a parameter that is unknown, repeated, or has a wrong value.
pub(crate) fn wrong_parameter(rng: &mut StdRng) -> Attempt {
    let (target, field) = match rng.random_range(0..20) {
        0..7 => wrong_page(rng),
        7..12 => wrong_place(rng),
        12..19 => wrong_condition(rng),
        _ => {
            let (target, field) = pick(rng, DELETES);
            return Attempt::request("DELETE", target, &[], b"").field(field);
        }
    };
    let attempt =
        if rng.random_range(0..5) == 0 && !target.contains("subscribe") && field != "limit" {
            Attempt::request("GET", &target, &[("Accept", "application/x-ndjson")], b"")
        } else {
            Attempt::get(&target)
        };
    if field.is_empty() {
        return attempt.expect(Expect::Refused(400));
    }
    attempt.field(field)
}

pub(crate) fn wrong_metadata(rng: &mut StdRng) -> Attempt {
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(66_000));
    let (body, field) = match rng.random_range(0..5) {
        0 => (
            pick(
                rng,
                &[
                    "",
                    "[]",
                    "7",
                    "{",
                    "null",
                    "{\"a\":}",
                    "{} {}",
                    "\u{feff}{}",
                ],
            ),
            "metadata",
        ),
        1 => (
            pick(rng, &["{\"$maxAge\":0}", "{\"$maxAge\":0,\"a\":1}"]),
            "metadata.$maxAge",
        ),
        2 => ("{\"$maxCount\":0}", "metadata.$maxCount"),
        3 => (
            pick(
                rng,
                &[
                    "{\"$tb\":9223372036854775807}",
                    "{\"$tb\":18446744073709551615}",
                ],
            ),
            "metadata.$tb",
        ),
        _ => {
            let body = pick(
                rng,
                &[
                    "{\"$maxAge\":-1}",
                    "{\"$maxCount\":1.5}",
                    "{\"$tb\":\"x\"}",
                    "{\"$maxAge\":18446744073709551616}",
                    &long,
                ],
            );
            return Attempt::json("PUT", "/streams/a-1/metadata", body)
                .expect(Expect::Refused(400));
        }
    };
    if rng.random_range(0..8) == 0 {
        return Attempt::json("PUT", "/streams/a-2/metadata", b"{\"a\":\"\xff\"}")
            .field("metadata");
    }
    let target = format!(
        "/streams/a-1/metadata?expected={}",
        pick(rng, &["any", "0", "no_stream"])
    );
    Attempt::json("PUT", &target, body).field(field)
}
