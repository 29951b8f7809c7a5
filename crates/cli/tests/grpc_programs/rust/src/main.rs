//! What a team does with the published Rust client, against servers whose addresses are the first argument.
//!
//! The second argument is a way to one of them that is cut whenever somebody connects to the address that is the third.
//! Each check stands alone, on streams of its own. The program prints a line for each and fails with the first that is
//! wrong.

use std::time::Duration;

use kurrentdb::{
    AppendToStreamOptions, BatchAppendOptions, Client, DeletePersistentSubscriptionOptions,
    DeleteStreamOptions, Error, EventData, GenericProjectionOptions, NakAction,
    PersistentSubscription, PersistentSubscriptionEvent, PersistentSubscriptionOptions,
    PersistentSubscriptionToAllOptions, ProjectionClient, ReadAllOptions, ReadEvent,
    ReadStreamOptions, ResolvedEvent, StreamMetadataBuilder, StreamPosition, StreamState,
    SubscribeToAllOptions, SubscribeToStreamOptions, SubscriptionFilter, TombstoneStreamOptions,
};
use serde_json::json;
use uuid::Uuid;

type Checked = kurrentdb::Result<()>;

/// However long a check takes, no event of a group comes again because of that.
const NEVER: Duration = Duration::from_secs(3_600);

fn connect(address: &str, scheme: &str) -> Client {
    let settings = format!("{scheme}://{address}?tls=false");
    Client::new(settings.parse().expect("settings")).expect("a client")
}

fn name(category: &str) -> String {
    format!("{category}-{}", Uuid::new_v4())
}

fn event(n: usize) -> EventData {
    let event = EventData::json("item-added", &json!({ "n": n })).expect("JSON");
    event.id(Uuid::new_v4())
}

fn events(count: usize) -> Vec<EventData> {
    (0..count).map(event).collect()
}

fn expecting(state: StreamState) -> AppendToStreamOptions {
    AppendToStreamOptions::default().stream_state(state)
}

/// The number in an event of these checks.
fn number(event: &ResolvedEvent) -> u64 {
    let event = event.event.as_ref().expect("the event");
    let data: serde_json::Value = event.as_json().expect("JSON");
    data["n"].as_u64().expect("a number")
}

async fn read(
    client: &Client,
    stream: &str,
    options: ReadStreamOptions,
) -> kurrentdb::Result<Vec<ResolvedEvent>> {
    let mut reading = client.read_stream(stream, &options).await?;
    let mut found = Vec::new();
    while let Some(event) = reading.next().await? {
        found.push(event);
    }
    Ok(found)
}

async fn revisions(client: &Client, stream: &str) -> kurrentdb::Result<Vec<u64>> {
    let found = read(client, stream, ReadStreamOptions::default()).await?;
    Ok(found
        .iter()
        .map(|event| event.get_original_event().revision)
        .collect())
}

async fn expected_states(client: &Client) -> Checked {
    for state in [StreamState::Any, StreamState::NoStream] {
        let written = client
            .append_to_stream(name("cart"), &expecting(state), event(0))
            .await?;
        assert_eq!(written.next_expected_version, 0);
    }
    let stream = name("cart");
    for state in [StreamState::StreamExists, StreamState::StreamRevision(0)] {
        let options = expecting(state);
        let wrong = client.append_to_stream(stream.as_str(), &options, event(0));
        assert!(matches!(
            wrong.await,
            Err(Error::WrongExpectedVersion { .. })
        ));
    }
    let append = |state, count| {
        let (client, stream) = (client.clone(), stream.clone());
        async move {
            let options = expecting(state);
            client
                .append_to_stream(stream, &options, events(count))
                .await
        }
    };
    append(StreamState::NoStream, 1).await?;
    for state in [StreamState::NoStream, StreamState::StreamRevision(5)] {
        let wrong = append(state, 1).await;
        assert!(matches!(wrong, Err(Error::WrongExpectedVersion { .. })));
    }
    append(StreamState::StreamRevision(0), 2).await?;
    append(StreamState::StreamExists, 1).await?;
    assert_eq!(revisions(client, &stream).await?, [0, 1, 2, 3]);
    Ok(())
}

async fn a_retry_is_stored_once(client: &Client) -> Checked {
    let (stream, batch) = (name("cart"), events(3));
    let options = expecting(StreamState::NoStream);
    let first = client
        .append_to_stream(stream.as_str(), &options, batch.clone())
        .await?;
    client
        .append_to_stream(stream.as_str(), &Default::default(), event(3))
        .await?;
    for state in [StreamState::NoStream, StreamState::Any] {
        let again = client
            .append_to_stream(stream.as_str(), &expecting(state), batch.clone())
            .await?;
        assert_eq!(again.position, first.position);
    }
    assert_eq!(revisions(client, &stream).await?.len(), 4);
    Ok(())
}

async fn batches(client: &Client) -> Checked {
    let batches = client.batch_append(&BatchAppendOptions::default()).await?;
    for _ in 0..20 {
        let stream = name("cart");
        batches
            .append_to_stream(stream.as_str(), StreamState::NoStream, events(10))
            .await?;
        assert_eq!(revisions(client, &stream).await?.len(), 10);
    }
    Ok(())
}

async fn reads(client: &Client) -> Checked {
    let stream = name("größe");
    client
        .append_to_stream(stream.as_str(), &Default::default(), events(1_500))
        .await?;
    assert_eq!(revisions(client, &stream).await?.len(), 1_500);
    let options = ReadStreamOptions::default()
        .backwards()
        .position(StreamPosition::End);
    let found = read(client, &stream, options).await?;
    assert_eq!(number(&found[0]), 1_499);
    assert_eq!(found.len(), 1_500);
    let options = ReadStreamOptions::default().position(StreamPosition::Position(1_498));
    assert_eq!(read(client, &stream, options).await?.len(), 2);
    let from = |revision| ReadStreamOptions::default().position(StreamPosition::Position(revision));
    for (options, expected) in [
        (from(10).max_count(3), [10, 11, 12]),
        (from(10).backwards().max_count(3), [10, 9, 8]),
    ] {
        let found = read(client, &stream, options).await?;
        assert_eq!(found.iter().map(number).collect::<Vec<_>>(), expected);
    }
    let missing = read(client, &name("cart"), ReadStreamOptions::default()).await;
    assert!(matches!(missing, Err(Error::ResourceNotFound)));
    let options = ReadAllOptions::default()
        .backwards()
        .position(StreamPosition::End)
        .max_count(2);
    let mut reading = client.read_all(&options).await?;
    let last = reading.next().await?.expect("an event");
    assert_eq!(number(&last), 1_499);
    assert_eq!(reading.next().await?.as_ref().map(number), Some(1_498));
    assert!(reading.next().await?.is_none(), "the limit");
    Ok(())
}

/// All events that a filter lets through: stream and type.
async fn all_through(
    client: &Client,
    filter: SubscriptionFilter,
) -> kurrentdb::Result<Vec<(String, String)>> {
    let options = ReadAllOptions::default()
        .filter(filter)
        .max_count(usize::MAX);
    let mut reading = client.read_all(&options).await?;
    let mut found = Vec::new();
    while let Some(event) = reading.next().await? {
        let event = event.get_original_event();
        found.push((event.stream_id().to_owned(), event.event_type.clone()));
    }
    Ok(found)
}

async fn filters(client: &Client) -> Checked {
    let [one, two] = ["one", "two"].map(name);
    let removed = EventData::json("item-removed", &json!({ "n": 1 })).expect("JSON");
    let both = vec![event(0), removed.id(Uuid::new_v4())];
    client
        .append_to_stream(one.as_str(), &Default::default(), both)
        .await?;
    client
        .append_to_stream(two.as_str(), &Default::default(), event(0))
        .await?;
    let newest = StreamMetadataBuilder::new().max_count(10).build();
    client
        .set_stream_metadata(one.as_str(), &Default::default(), &newest)
        .await?;
    let expected = [
        (one.clone(), "item-added".to_owned()),
        (one.clone(), "item-removed".to_owned()),
        (two, "item-added".to_owned()),
    ];
    let of_type = SubscriptionFilter::on_event_type;
    let of_stream = SubscriptionFilter::on_stream_name;
    let found = all_through(client, of_type().exclude_system_events()).await?;
    assert!(found.ends_with(&expected), "system events are left out");
    let found = all_through(client, of_type().regex("^(?!\\$|item-rem)")).await?;
    let without = [expected[0].clone(), expected[2].clone()];
    assert!(found.ends_with(&without), "those that do not begin so");
    let found = all_through(client, of_type().add_prefix("item-rem")).await?;
    assert_eq!(found.last(), Some(&expected[1]));
    let found = all_through(client, of_stream().regex(format!("^{one}$"))).await?;
    assert_eq!(found, expected[..2]);
    let found = all_through(client, of_stream().add_prefix(one.as_str())).await?;
    assert_eq!(found, expected[..2]);
    let options = ReadAllOptions::default()
        .backwards()
        .position(StreamPosition::End)
        .max_count(1);
    let last = client.read_all(&options).await?.next().await?;
    let last = last.expect("an event");
    assert_eq!(last.get_original_event().event_type, "$metadata");
    Ok(())
}

async fn subscriptions(client: &Client) -> Checked {
    let stream = name("cart");
    client
        .append_to_stream(stream.as_str(), &Default::default(), events(100))
        .await?;
    let writing = {
        let (client, stream) = (client.clone(), stream.clone());
        tokio::spawn(async move {
            for n in 100..300 {
                let options = expecting(StreamState::StreamRevision(n as u64 - 1));
                client
                    .append_to_stream(stream.as_str(), &options, event(n))
                    .await?;
            }
            Ok::<_, Error>(())
        })
    };
    let mut next = 0;
    let options = SubscribeToStreamOptions::default().start_from(StreamPosition::Start);
    let mut subscription = client.subscribe_to_stream(stream.as_str(), &options).await;
    while next < 180 {
        assert_eq!(number(&subscription.next().await?), next);
        next += 1;
    }
    let options = SubscribeToStreamOptions::default().start_from(StreamPosition::Position(179));
    let mut subscription = client.subscribe_to_stream(stream.as_str(), &options).await;
    while next < 300 {
        assert_eq!(number(&subscription.next().await?), next);
        next += 1;
    }
    writing.await.expect("no panic")?;
    all_is_followed(client, &stream).await
}

/// Subscriptions to all events, with a filter, of which one looks ahead.
async fn all_is_followed(client: &Client, stream: &str) -> Checked {
    let options = SubscribeToAllOptions::default()
        .position(StreamPosition::Start)
        .filter(SubscriptionFilter::on_stream_name().add_prefix(stream));
    let mut subscription = client.subscribe_to_all(&options).await;
    for n in 0..300 {
        assert_eq!(number(&subscription.next().await?), n);
    }
    let options = SubscribeToAllOptions::default()
        .position(StreamPosition::Start)
        .filter(SubscriptionFilter::on_event_type().exclude_system_events());
    let mut subscription = client.subscribe_to_all(&options).await;
    let first = subscription.next().await?;
    assert!(!first.get_original_event().event_type.starts_with('$'));
    let options = SubscribeToAllOptions::default()
        .position(StreamPosition::Start)
        .filter(SubscriptionFilter::on_event_type().regex("^(?!\\$|other)"));
    let mut subscription = client.subscribe_to_all(&options).await;
    let first = subscription.next().await?;
    assert!(!first.get_original_event().event_type.starts_with('$'));
    Ok(())
}

async fn metadata(client: &Client) -> Checked {
    let stream = name("cart");
    client
        .append_to_stream(stream.as_str(), &Default::default(), events(10))
        .await?;
    let newest = StreamMetadataBuilder::new().max_count(3).build();
    client
        .set_stream_metadata(stream.as_str(), &Default::default(), &newest)
        .await?;
    assert_eq!(revisions(client, &stream).await?, [7, 8, 9]);
    let truncated = StreamMetadataBuilder::new().truncate_before(5).build();
    client
        .set_stream_metadata(stream.as_str(), &Default::default(), &truncated)
        .await?;
    assert_eq!(revisions(client, &stream).await?, [5, 6, 7, 8, 9]);
    // This client writes as many milliseconds as were asked for, where servers understand seconds.
    let seconds = |seconds| {
        let age = Duration::from_millis(seconds);
        StreamMetadataBuilder::new().max_age(age).build()
    };
    client
        .set_stream_metadata(stream.as_str(), &Default::default(), &seconds(1))
        .await?;
    let wait = async {
        while !revisions(client, &stream).await?.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, Error>(())
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("all are too old")?;
    client
        .set_stream_metadata(stream.as_str(), &Default::default(), &seconds(3_600))
        .await?;
    assert_eq!(revisions(client, &stream).await?.len(), 10);
    Ok(())
}

async fn deletes(client: &Client) -> Checked {
    let stream = name("cart");
    client
        .append_to_stream(stream.as_str(), &Default::default(), events(2))
        .await?;
    let wrong = DeleteStreamOptions::default().stream_state(StreamState::StreamRevision(7));
    // This client has no error of its own for such a delete.
    let wrong = client.delete_stream(stream.as_str(), &wrong).await;
    let Err(Error::Grpc { code, .. }) = wrong else {
        panic!("{wrong:?}");
    };
    assert_eq!(format!("{code:?}"), "FailedPrecondition");
    let right = DeleteStreamOptions::default().stream_state(StreamState::StreamRevision(1));
    client.delete_stream(stream.as_str(), &right).await?;
    let deleted = revisions(client, &stream).await;
    assert!(matches!(deleted, Err(Error::ResourceNotFound)));
    let options = expecting(StreamState::NoStream);
    client
        .append_to_stream(stream.as_str(), &options, event(2))
        .await?;
    assert_eq!(revisions(client, &stream).await?, [2]);
    client
        .tombstone_stream(stream.as_str(), &TombstoneStreamOptions::default())
        .await?;
    let closed = revisions(client, &stream).await;
    assert!(matches!(closed, Err(Error::ResourceDeleted)));
    let options = AppendToStreamOptions::default();
    let closed = client.append_to_stream(stream.as_str(), &options, event(3));
    assert!(matches!(closed.await, Err(Error::ResourceDeleted)));
    let options = DeleteStreamOptions::default();
    let closed = client.delete_stream(stream.as_str(), &options).await;
    assert!(matches!(closed, Err(Error::ResourceDeleted)));
    Ok(())
}

async fn ends_of_a_stream(client: &Client) -> Checked {
    let stream = name("cart");
    client
        .append_to_stream(stream.as_str(), &Default::default(), events(5))
        .await?;
    let truncated = StreamMetadataBuilder::new().truncate_before(2).build();
    client
        .set_stream_metadata(stream.as_str(), &Default::default(), &truncated)
        .await?;
    let mut reading = client
        .read_stream(stream.as_str(), &ReadStreamOptions::default())
        .await?;
    let mut found = Vec::new();
    while let Some(told) = reading.next_read_event().await? {
        found.push(match told {
            ReadEvent::FirstStreamPosition(first) => format!("first {first}"),
            ReadEvent::LastStreamPosition(last) => format!("last {last}"),
            ReadEvent::Event(event) => event.get_original_event().revision.to_string(),
            ReadEvent::LastAllStreamPosition(_) => panic!("not a read of all events"),
        });
    }
    assert_eq!(found, ["first 2", "2", "3", "4", "last 4"]);
    Ok(())
}

/// What the client has for operators: the nodes, which it asks over HTTP, and the projections of the system.
async fn operators(client: &Client) -> Checked {
    let settings = client.settings().clone();
    let operations = kurrentdb::operations::Client::new(settings.clone()).expect("a client");
    let nodes = operations.read_gossip().await?;
    let leaders = nodes
        .iter()
        .filter(|node| node.state == kurrentdb::operations::VNodeState::Leader);
    assert_eq!(leaders.count(), 1);
    let projections = ProjectionClient::new(settings).expect("a client");
    let options = GenericProjectionOptions::default();
    projections.enable("$by_category", &options).await?;
    let status = projections.get_status("$by_category", &options).await?;
    assert_eq!(status.expect("known").status, "Running");
    Ok(())
}

/// Takes ten events, of which one comes again, and answers for each; their numbers and retries.
async fn take_eleven(
    consumer: &mut PersistentSubscription,
) -> kurrentdb::Result<Vec<(u64, usize)>> {
    let mut found = Vec::new();
    while found.len() < 11 {
        let PersistentSubscriptionEvent::EventAppeared { retry_count, event } =
            consumer.next_subscription_event().await?
        else {
            continue;
        };
        let n = number(&event);
        found.push((n, retry_count));
        match (n, retry_count) {
            (3, 0) => consumer.nack(&event, NakAction::Retry, "not yet").await?,
            (4, _) => consumer.nack(&event, NakAction::Park, "never").await?,
            (5, _) => consumer.nack(&event, NakAction::Skip, "unneeded").await?,
            _ => consumer.ack(&event).await?,
        }
    }
    Ok(found)
}

async fn groups(client: &Client) -> Checked {
    let (stream, group) = (name("cart"), "mail");
    client
        .append_to_stream(stream.as_str(), &Default::default(), events(10))
        .await?;
    let options = PersistentSubscriptionOptions::default()
        .start_from(StreamPosition::Start)
        .message_timeout(NEVER)
        .max_retry_count(1);
    client
        .create_persistent_subscription(stream.as_str(), group, &options)
        .await?;
    let again = client.create_persistent_subscription(stream.as_str(), group, &options);
    assert!(matches!(again.await, Err(Error::ResourceAlreadyExists)));
    let mut consumer = client
        .subscribe_to_persistent_subscription(stream.as_str(), group, &Default::default())
        .await?;
    let mut found = take_eleven(&mut consumer).await?;
    found.sort_unstable();
    let mut expected: Vec<(u64, usize)> = (0..10).map(|n| (n, 0)).collect();
    expected.insert(4, (3, 1));
    assert_eq!(found, expected);
    until(client, (&stream, group), |stats, _| {
        stats.parked_message_count == 1 && stats.outstanding_messages_count == 0
    })
    .await?;
    client
        .replay_parked_messages(stream.as_str(), group, &Default::default())
        .await?;
    let replayed = consumer.next().await?;
    assert_eq!(number(&replayed), 4);
    consumer.ack(&replayed).await?;
    let info = client
        .get_persistent_subscription_info(stream.as_str(), group, &Default::default())
        .await?;
    assert_eq!(info.group_name, group);
    let listed = client
        .list_persistent_subscriptions_for_stream(stream.as_str(), &Default::default())
        .await?;
    assert_eq!(listed.len(), 1);
    let options = DeletePersistentSubscriptionOptions::default();
    client
        .delete_persistent_subscription(stream.as_str(), group, &options)
        .await?;
    let joined = client
        .subscribe_to_persistent_subscription(stream.as_str(), group, &Default::default())
        .await;
    assert!(matches!(joined, Err(Error::ResourceNotFound)));
    Ok(())
}

async fn a_group_of_all_events(client: &Client) -> Checked {
    let (mark, all) = (name("wanted"), Uuid::new_v4().to_string());
    let options = PersistentSubscriptionToAllOptions::default()
        .start_from(StreamPosition::Start)
        .filter(SubscriptionFilter::on_stream_name().regex(format!("^{mark}$")));
    client
        .create_persistent_subscription_to_all(all.as_str(), &options)
        .await?;
    client
        .append_to_stream(mark.as_str(), &Default::default(), event(7))
        .await?;
    let mut consumer = client
        .subscribe_to_persistent_subscription_to_all(all.as_str(), &Default::default())
        .await?;
    let found = consumer.next().await?;
    assert_eq!(number(&found), 7);
    consumer.ack(&found).await?;
    Ok(())
}

/// Waits until something is so of a group, but not for ever.
async fn until(
    client: &Client,
    (stream, group): (&str, &str),
    is_so: impl Fn(&kurrentdb::PersistentSubscriptionStats, usize) -> bool,
) -> Checked {
    let wait = async {
        loop {
            let info = client
                .get_persistent_subscription_info(stream, group, &Default::default())
                .await?;
            if is_so(&info.stats, info.connections.len()) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .expect("it is never so")
}

/// A group is joined again after the connection of its consumer was cut: what was not answered for comes again.
async fn a_cut(client: &Client, through: &str, cutter: &str) -> Checked {
    let (stream, group) = (name("cart"), "cut");
    client
        .append_to_stream(stream.as_str(), &Default::default(), events(10))
        .await?;
    let options = PersistentSubscriptionOptions::default()
        .start_from(StreamPosition::Start)
        .message_timeout(NEVER);
    client
        .create_persistent_subscription(stream.as_str(), group, &options)
        .await?;
    let own = connect(through, "kurrentdb");
    let mut consumer = own
        .subscribe_to_persistent_subscription(stream.as_str(), group, &Default::default())
        .await?;
    let mut found = Vec::new();
    while found.len() < 10 {
        let event = consumer.next().await?;
        found.push(number(&event));
        if found.len() <= 4 {
            consumer.ack(&event).await?;
        }
    }
    until(client, (&stream, group), |stats, _| {
        stats.outstanding_messages_count == 6
    })
    .await?;
    let mut knock = tokio::net::TcpStream::connect(cutter)
        .await
        .expect("the cutter");
    tokio::io::AsyncReadExt::read_to_end(&mut knock, &mut Vec::new())
        .await
        .expect("it is cut");
    assert!(consumer.next().await.is_err(), "the connection was cut");
    until(client, (&stream, group), |_, consumers| consumers == 0).await?;
    // The first call after a cut tells that the connection is gone.
    let joined = async {
        loop {
            match own
                .subscribe_to_persistent_subscription(stream.as_str(), group, &Default::default())
                .await
            {
                Ok(consumer) => break consumer,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let mut consumer = tokio::time::timeout(Duration::from_secs(60), joined)
        .await
        .expect("it is joined again");
    let mut rest = Vec::new();
    while rest.len() < 6 {
        let event = consumer.next().await?;
        rest.push(number(&event));
        consumer.ack(&event).await?;
    }
    let mut expected = found[4..].to_vec();
    expected.sort_unstable();
    rest.sort_unstable();
    assert_eq!(rest, expected);
    Ok(())
}

#[tokio::main]
async fn main() -> Checked {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, through, cutter] = arguments.as_slice() else {
        panic!("three addresses");
    };
    for scheme in ["kurrentdb", "kurrentdb+discover"] {
        let client = connect(address, scheme);
        macro_rules! check {
            ($($check:ident),*) => {$(
                $check(&client).await?;
                println!("{scheme} {}", stringify!($check));
            )*};
        }
        check!(
            expected_states,
            a_retry_is_stored_once,
            batches,
            reads,
            filters,
            subscriptions,
            metadata,
            deletes,
            ends_of_a_stream,
            operators,
            groups,
            a_group_of_all_events
        );
        a_cut(&client, through, cutter).await?;
        println!("{scheme} a_cut");
    }
    Ok(())
}
