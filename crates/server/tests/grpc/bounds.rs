//! Tests what calls may hold, and what happens beyond that.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gesta_core::{Filter, StreamId};
use gesta_groups::{Create, GroupId, Settings, Source};
use gesta_grpc::frame;
use gesta_grpc::messages::monitoring::{StatsReq, StatsResp};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::messages::streams::BatchAppendResp;
use gesta_grpc::messages::streams::batch_append_req::options::ExpectedStreamPosition;
use gesta_grpc::messages::streams::batch_append_resp::Result as Outcome;
use gesta_grpc::messages::streams::read_req;
use gesta_grpc::messages::streams::read_req::options::all_options::AllOption;
use gesta_grpc::messages::streams::read_req::options::filter_options::{
    Expression, Filter as Subject, Window,
};
use gesta_grpc::messages::streams::read_req::options::{
    AllOptions, FilterOption, FilterOptions, StreamOption,
};
use gesta_memory::MemoryStore;
use gesta_server::Config;
use prost::Message;

use crate::claims::{BATCHES, batch, proposed};
use crate::client::Client;
use crate::connection::soon;
use crate::requests::{APPEND, GROUPS, READ, appending, consuming, following, reading};

async fn with(config: Config) -> Client {
    Client::with(config, Arc::new(MemoryStore::new())).await
}

/// Waits until the server holds this number of bytes.
async fn has_arrived(client: &Client, bytes: usize) {
    let path = "/event_store.client.monitoring.Monitoring/Stats";
    let mut figures = client.open(path, &[]).await;
    figures.send(&StatsReq::default()).await;
    figures.close();
    soon(async {
        loop {
            let message = figures.next().await.expect("figures");
            let figures = StatsResp::decode(message).expect("figures").stats;
            let held = figures["gesta-bytes-in-flight"].parse::<usize>();
            if held.expect("a number") >= bytes {
                return;
            }
        }
    })
    .await;
}

/// Goal: messages that arrive count against the bytes in flight, also if they never become whole, and are given back.
#[tokio::test]
async fn what_arrives_is_counted_and_given_back() {
    let client = with(Config {
        bytes_in_flight_max: 1_000_000,
        ..Config::default()
    })
    .await;
    // A call that is sent the half of a large event, and no more.
    let [options, event] = appending("cart-1", 800_000);
    let whole = [frame::framed(&options), frame::framed(&event)].concat();
    let mut half = client.open(APPEND, &[]).await;
    half.send_bytes(Bytes::from(whole).slice(..600_000)).await;
    has_arrived(&client, 600_000).await;
    // Now there is no room for another one, until the first is given up.
    let refused = soon(async {
        loop {
            let ended = client.call(APPEND, &appending("cart-2", 500_000)).await;
            if ended.code != 0 {
                return ended;
            }
        }
    })
    .await;
    assert_eq!(refused.code, 14, "{}", refused.message());
    assert!(refused.message().starts_with("Server Is Too Busy"));
    drop(half);
    soon(async {
        loop {
            let ended = client.call(APPEND, &appending("cart-2", 500_000)).await;
            if ended.code == 0 {
                return;
            }
        }
    })
    .await;
}

/// One batch for which there was no room ended the call, and with it all batches that its client had under way. Goal:
/// that batch is refused, and the call goes on.
#[tokio::test]
async fn a_batch_without_room_does_not_end_its_call() {
    let client = with(Config {
        bytes_in_flight_max: 300_000,
        ..Config::default()
    })
    .await;
    let any = || ExpectedStreamPosition::Any(());
    // Small as a message, and much larger in memory.
    let many = || (0..2_000).map(|_| proposed(1)).collect();
    let mut open = client.open(BATCHES, &[]).await;
    for events in [many(), vec![proposed(1)], many(), vec![proposed(1)]] {
        let is_refused = events.len() > 1;
        let asked = batch("cart-1", any(), events);
        open.send(&asked).await;
        let message = open.next().await.expect("the call goes on");
        let answer = BatchAppendResp::decode(message).expect("an answer");
        assert_eq!(answer.correlation_id, asked.correlation_id);
        match answer.result {
            Some(Outcome::Error(status)) => {
                assert!(is_refused, "{status:?}");
                assert_eq!(status.code, 14);
                assert!(status.message.starts_with("Server Is Too Busy"));
            }
            other => assert!(!is_refused, "{other:?}"),
        }
    }
    // So is one whose chunks cannot be kept until the last one comes, whatever else comes of it.
    let mut chunk = batch("cart-1", any(), many());
    chunk.is_final = false;
    open.send(&chunk).await;
    let message = open.next().await.expect("the call goes on");
    let answer = BatchAppendResp::decode(message).expect("an answer");
    assert!(matches!(answer.result, Some(Outcome::Error(_))));
    chunk.proposed_messages.clear();
    chunk.is_final = true;
    open.send(&chunk).await;
    open.send(&batch("cart-1", any(), vec![proposed(1)])).await;
    open.close();
    let ended = open.end().await;
    assert_eq!((ended.code, ended.messages.len()), (0, 1));
}

/// Goal: a batch for which there is no room as it arrives waits for it, and its call goes on.
#[tokio::test]
async fn a_batch_that_arrives_waits_for_room() {
    let client = with(Config {
        bytes_in_flight_max: 1_000_000,
        ..Config::default()
    })
    .await;
    let [options, event] = appending("cart-1", 800_000);
    let whole = [frame::framed(&options), frame::framed(&event)].concat();
    let mut half = client.open(APPEND, &[]).await;
    half.send_bytes(Bytes::from(whole).slice(..700_000)).await;
    has_arrived(&client, 700_000).await;
    let any = || ExpectedStreamPosition::Any(());
    let mut open = client.open(BATCHES, &[]).await;
    open.send(&batch("cart-1", any(), vec![proposed(400_000)]))
        .await;
    // What is small has room, and is sent after it on the same connection.
    for _ in 0..20 {
        let ended = client.call(APPEND, &appending("cart-3", 10)).await;
        assert_eq!(ended.code, 0, "{}", ended.message());
    }
    drop(half);
    let message = open.next().await.expect("the call goes on");
    let answer = BatchAppendResp::decode(message).expect("an answer");
    assert!(
        matches!(answer.result, Some(Outcome::Success(_))),
        "{answer:?}"
    );
}

/// What happened: batches that were begun and had no event held memory that nothing counted. Goal: they count while
/// they wait, with what their names hold beside the bytes that came, and all is given back.
#[tokio::test]
async fn batches_without_events_are_counted_and_given_back() {
    let client = with(Config {
        bytes_in_flight_max: 1_000_000,
        ..Config::default()
    })
    .await;
    let any = || ExpectedStreamPosition::Any(());
    let mut open = client.open(BATCHES, &[]).await;
    for number in 0..380 {
        let name = format!("{number:n>1000}");
        let mut begun = batch(&name, any(), Vec::new());
        begun.is_final = false;
        open.send(&begun).await;
    }
    has_arrived(&client, 900_000).await;
    open.cancel();
    soon(async {
        loop {
            let ended = client.call(APPEND, &appending("cart-2", 500_000)).await;
            if ended.code == 0 {
                return;
            }
        }
    })
    .await;
}

/// What happened: what a subscription keeps of its filter counted nothing. Goal: it counts, and is given back.
#[tokio::test]
async fn filters_of_subscriptions_are_counted_and_given_back() {
    let client = with(Config {
        bytes_in_flight_max: 1_000_000,
        ..Config::default()
    })
    .await;
    let all = |n: usize| {
        let prefixes = (0..50).map(|k| format!("{n}-{k}-{:p>500}", ""));
        let stream = Subject::StreamIdentifier(Expression {
            regex: String::new(),
            prefix: prefixes.collect(),
        });
        let options = FilterOptions {
            filter: Some(stream),
            window: Some(Window::Max(32)),
            checkpoint_interval_multiplier: 1_000,
        };
        reading(read_req::Options {
            stream_option: Some(StreamOption::All(AllOptions {
                all_option: Some(AllOption::End(Empty {})),
            })),
            filter_option: Some(FilterOption::Filter(options)),
            ..following("x")
        })
    };
    let mut open = Vec::new();
    for number in 0..10 {
        let mut call = client.open(READ, &[]).await;
        call.send(&all(number)[0]).await;
        call.close();
        if call.next().await.is_none() {
            let ended = call.end().await;
            assert_eq!(ended.code, 14, "{}", ended.message());
            break;
        }
        open.push(call);
    }
    assert!((1..9).contains(&open.len()), "{}", open.len());
    open.clear();
    soon(async {
        loop {
            let mut call = client.open(READ, &[]).await;
            call.send(&all(100)[0]).await;
            call.close();
            if call.next().await.is_some() {
                return;
            }
        }
    })
    .await;
}

/// Goal: calls without an end have places of their own, which come back when their clients go.
#[tokio::test]
async fn calls_without_an_end_take_places_of_their_own() {
    let client = with(Config {
        subscriptions_max: 1,
        requests_in_flight_max: 1,
        ..Config::default()
    })
    .await;
    let [request] = reading(following("cart-1"));
    let mut first = client.open(READ, &[]).await;
    first.send(&request).await;
    first.close();
    first.next().await.expect("the confirmation");
    // It takes no place among the requests: an append has room.
    let ended = client.call(APPEND, &appending("cart-1", 10)).await;
    assert_eq!(ended.code, 0, "{}", ended.message());
    let second = client.call(READ, std::slice::from_ref(&request)).await;
    assert_eq!(second.code, 14, "{}", second.message());
    let batches = "/event_store.client.streams.Streams/BatchAppend";
    let none: &[gesta_grpc::messages::streams::BatchAppendReq] = &[];
    assert_eq!(client.call(batches, none).await.code, 14);
    drop(first);
    soon(async { while client.call(batches, none).await.code != 0 {} }).await;
}

/// Goal: a server that stops tells the calls without an end, so that their clients look for another one.
#[tokio::test]
async fn a_server_that_stops_says_so() {
    let client = Client::start().await;
    let [request] = reading(following("cart-1"));
    let mut open = client.open(READ, &[]).await;
    open.send(&request).await;
    open.close();
    open.next().await.expect("the confirmation");
    let server = client.server.clone();
    let stopping = tokio::spawn(async move { server.shutdown().await });
    let ended = open.end().await;
    assert_eq!(
        (ended.code, ended.message().as_str()),
        (14, "the server is stopping")
    );
    soon(stopping).await.expect("it stops");
}

/// Goal: frames that break the rules are refused by their heads, before any of their bytes are waited for.
#[tokio::test]
async fn a_message_that_is_announced_larger_than_allowed_is_refused_at_once() {
    let client = Client::start().await;
    let head = Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff]);
    let ended = client.call_bytes(APPEND, &[], head).await;
    assert_eq!(ended.code, 3, "{}", ended.message());
    let compressed = Bytes::from_static(&[1, 0, 0, 0, 1, 0]);
    assert_eq!(client.call_bytes(APPEND, &[], compressed).await.code, 12);
    let cut = Bytes::from_static(&[0, 0, 0, 0, 9, 0]);
    let ended = client.call_bytes(APPEND, &[], cut).await;
    assert_eq!(
        (ended.code, ended.message().as_str()),
        (3, "the last message is cut")
    );
}

/// Two bytes of a message became an event of 160 bytes, whoever sent it. Goal: elements are counted before a message is
/// decoded, and a message without events has little room from its head on.
#[tokio::test]
async fn messages_that_grow_when_they_are_decoded_are_refused() {
    let client = Client::start().await;
    let framed = |message: &[u8]| {
        let length = u32::try_from(message.len()).expect("short");
        Bytes::from([&[0], &length.to_be_bytes()[..], message].concat())
    };
    let message = framed(&[0x1a, 0].repeat(500_001));
    let ended = client.call_bytes(BATCHES, &[], message).await;
    assert_eq!(ended.code, 3, "{}", ended.message());
    let head = Bytes::from_static(&[0, 0, 16, 0, 1]);
    let ended = client.call_bytes(READ, &[], head).await;
    assert_eq!(ended.code, 8, "{}", ended.message());
    let ended = client.call(APPEND, &appending("cart-1", 2_000_000)).await;
    assert_eq!(ended.code, 0, "{}", ended.message());
}

/// A client that sent the half of a message on a call without an end, and then nothing or next to nothing, held its
/// bytes of the budget for ever. Goal: a message that has begun becomes whole in time, or its call ends.
#[tokio::test]
async fn a_message_that_does_not_become_whole_ends_its_call() {
    let client = with(Config {
        body_read_max: Duration::from_millis(200),
        ..Config::default()
    })
    .await;
    let create = Create {
        group: GroupId::new(Source::Stream(StreamId::new("cart-1").expect("valid")), "g")
            .expect("valid"),
        settings: Settings::default(),
        filter: Filter::ALL,
    };
    let groups = client.server.groups();
    groups.create(create).await.expect("made");
    let consume = format!("{GROUPS}/Read");
    for (path, begun) in [(BATCHES, Bytes::new()), (&consume, consuming("cart-1"))] {
        for half in [&[0, 0][..], &[0, 0, 0, 0, 9, 0]] {
            let mut open = client.open(path, &[]).await;
            open.send_bytes(begun.clone()).await;
            open.send_bytes(Bytes::copy_from_slice(half)).await;
            let ended = open.end().await;
            assert_eq!(ended.code, 4, "{path}: {}", ended.message());
            assert!(ended.message().contains("begun"), "{}", ended.message());
        }
    }
    // One byte again and again does not help.
    let mut open = client.open(BATCHES, &[]).await;
    open.send_bytes(Bytes::from_static(&[0, 0, 1, 0, 0])).await;
    let sender = open.sender.clone().expect("open");
    let drip = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        while sender.send(Bytes::from_static(&[0])).await.is_ok() {
            ticks.tick().await;
        }
    });
    let ended = open.end().await;
    drip.abort();
    assert_eq!(ended.code, 4, "{}", ended.message());
}

/// A batch whose last chunk never came held its bytes for ever. Goal: it is refused after a time, and its call goes on.
#[tokio::test]
async fn a_batch_that_does_not_become_whole_is_refused() {
    let client = with(Config {
        body_read_max: Duration::from_millis(200),
        ..Config::default()
    })
    .await;
    let any = || ExpectedStreamPosition::Any(());
    let mut open = client.open(BATCHES, &[]).await;
    let mut begun = batch("cart-1", any(), vec![proposed(100)]);
    begun.is_final = false;
    open.send(&begun).await;
    let message = open.next().await.expect("the call goes on");
    let answer = BatchAppendResp::decode(message).expect("an answer");
    assert_eq!(answer.correlation_id, begun.correlation_id);
    let Some(Outcome::Error(status)) = answer.result else {
        panic!("{answer:?}");
    };
    assert_eq!(status.code, 4, "{status:?}");
    // Chunks that come later are passed over, and other batches are stored.
    open.send(&begun).await;
    let whole = batch("cart-1", any(), vec![proposed(100)]);
    open.send(&whole).await;
    let message = open.next().await.expect("the call goes on");
    let answer = BatchAppendResp::decode(message).expect("an answer");
    assert_eq!(answer.correlation_id, whole.correlation_id);
    assert!(matches!(answer.result, Some(Outcome::Success(_))));
}
