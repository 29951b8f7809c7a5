//! Tests every kind of call with every kind of caller, and names that are nearly those of another user or stream.

use gesta_grpc::messages::shared::StreamIdentifier;
use gesta_grpc::messages::streams::append_req;

use super::*;

/// Deadline of a call that ends by itself.
const TIMEOUT: &str = "60S";
/// Deadline that ends a call without an end.
const ENDLESS: &str = "500m";

/// Goal: each kind of caller, each kind of call.
#[tokio::test]
async fn every_call_with_every_caller() {
    let world = world().await;
    for name in ["open", "team", "$x"] {
        world.seed(name).await;
    }
    world.set_metadata("open", "{}").await;
    world.set_metadata("team", OF_TEAM).await;
    let of_team = || bytes_of(&reading(read_of("team")));
    soon(async { while world.call(READ, &basic("user"), of_team()).await.0 != 7 {} }).await;
    for name in ["open", "team"] {
        let stream = StreamId::new(name).expect("valid");
        world.group(Source::Stream(stream)).await;
    }
    let read = world.token("user", &[Scope::Read], &[]).await;
    let append = world.token("user", &[Scope::Append], &[]).await;
    let admin = world.token("root", &[Scope::Admin], &[]).await;
    let narrow = world.token("root", &[Scope::Read, Scope::Append], &["open"]);
    let callers = [
        ("anonymous", String::new()),
        ("wrong", format!("Basic {}", STANDARD.encode("root:x"))),
        ("user", basic("user")),
        ("in the group", basic("mate")),
        ("ops", basic("ops")),
        ("admin", basic("root")),
        ("token read", read),
        ("token append", append),
        ("token admin", admin),
        ("token of some streams", narrow.await),
    ];
    for (path, sent, expected) in rows() {
        for (n, ((name, authorization), expected)) in callers.iter().zip(expected).enumerate() {
            let bytes = sent(n);
            let timeout = if expected == 4 { ENDLESS } else { TIMEOUT };
            let by = (authorization.as_str(), timeout);
            let code = status(&world.client, &path, by, bytes.clone()).await;
            assert_eq!(code, expected, "{name}: {path} {bytes:?}");
        }
    }
    // All events leave out what may not be read.
    let events = all(read_of("x"));
    let (_, seen) = world.call(READ, &basic("user"), events.clone()).await;
    let (_, whole) = world.call(READ, &basic("root"), events).await;
    assert!(0 < seen && seen < whole, "{seen} of {whole}");
}

/// Goal: names that differ in case, encoding or length from those that a token is for get no further than their rights.
#[tokio::test]
async fn a_token_reaches_its_streams_by_their_bytes() {
    let world = world().await;
    let token = world.token("user", &[Scope::Append], &["cart-"]).await;
    let mut long = "cart-".to_owned();
    long.push_str(&"x".repeat(1_019));
    for (stream, code) in [
        ("cart-1", 0),
        ("cart-", 0),
        (long.as_str(), 0),
        ("Cart-1", 7),
        ("CART-1", 7),
        ("cart", 7),
        ("cart%2D1", 7),
        ("cart\u{2010}1", 7),
        ("\u{ff43}art-1", 7),
        ("ca\u{301}rt-1", 7),
        (" cart-1", 7),
        ("$$cart-1", 7),
        ("$user-cart-", 7),
        ("$ce-cart", 7),
    ] {
        let found = status(&world.client, APPEND, (&token, TIMEOUT), append(stream)).await;
        assert_eq!(found, code, "{stream}");
    }
    for stream in [format!("{long}x").as_bytes(), b"cart-\xff", b"cart-\0", b""] {
        let [mut options, event] = appending("cart-1", 5);
        if let Some(append_req::Content::Options(options)) = &mut options.content {
            let name = StreamIdentifier {
                stream_name: Bytes::copy_from_slice(stream),
            };
            options.stream_identifier = Some(name);
        }
        let found = status(
            &world.client,
            APPEND,
            (&token, TIMEOUT),
            bytes_of(&[options, event]),
        )
        .await;
        assert_eq!(found, 3, "{stream:?}");
    }
}
