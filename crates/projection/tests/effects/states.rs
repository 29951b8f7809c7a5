//! What effects do when the store was restored, and when their states are not to be seen.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, SetStreamMetadata, StreamId,
    StreamMetadata,
};
use gesta_kit::faulty::FaultyStore;
use gesta_projection::{BeginAt, Config, Effects, Phase};

use super::support::{
    Held, Mail, Sent, append, quick, restored, run, run_held, store, texts, until, until_phase,
};

/// What happened: after a restore an effect stopped, and nothing led on but to delete its stream. Goal: it stops, since
/// its checkpoint is of another life of the store, and begins again where it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restore_it_begins_again_where_it_is_told() {
    let store = store();
    append(&store, &["a", "b"]).await;
    let (running, _) = run::<1>(&store, quick(), 0).await;
    let done = until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    let store = restored(&store).await;
    append(&store, &["c"]).await;
    let (running, sent) = run::<1>(&store, quick(), 0).await;
    let stopped = until_phase(&running, Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(why.contains("the store was restored or replaced"), "{why}");
    assert!(why.contains("begin_again"), "{why}");
    let resumed = running.resume("mail").await.expect_err("of no use");
    assert!(resumed.to_string().contains("begin_again"), "{resumed}");
    let old = BeginAt::Checkpoint(done.checkpoint.expect("known"));
    let error = running.begin_again("mail", old).await.expect_err("refused");
    assert!(
        error.to_string().contains("effect mail cannot begin at"),
        "{error}"
    );
    let again = running.begin_again("mail", BeginAt::End).await;
    again.expect("it begins");
    until_phase(&running, Phase::Live).await;
    append(&store, &["d"]).await;
    until(&running, |progress| progress.events == 1).await;
    assert_eq!(texts(&sent), ["d"]);
    // Also one that has not stopped.
    let again = running.begin_again("mail", BeginAt::Start).await;
    again.expect("it begins");
    until(&running, |progress| progress.events == 5).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["d", "a", "b", "c", "d"]);
}

/// Goal: an effect that is told so before goes on by itself after a restore.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restore_it_may_go_on_by_itself() {
    let store = store();
    append(&store, &["a", "b"]).await;
    let (running, _) = run::<1>(&store, quick(), 0).await;
    until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    let store = restored(&store).await;
    let sent = Sent::default();
    let mail = Mail::<1> {
        sent: Arc::clone(&sent),
        fails: 0,
    };
    let effects = Effects::on(&store).config(quick());
    let effects = effects.effect(mail, BeginAt::End);
    let effects = effects.after_restore(BeginAt::Start);
    let running = effects.start().await.expect("started");
    until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["a", "b"]);
}

/// What happened: when the store had begun another history while a batch was performed, the rest of the batch was
/// performed too, though other events may be in these places. Goal: it stops before the next event.
#[tokio::test(start_paused = true)]
async fn what_was_read_before_a_restore_is_not_performed_after_it() {
    let faulty = FaultyStore::new();
    let store: Arc<dyn EventStore> = faulty.share();
    append(&store, &["a", "b", "c"]).await;
    let held = Held::new();
    let config = Config {
        lease: Duration::from_secs(60),
        ..quick()
    };
    let running = run_held(&store, &held, config).await;
    held.until_begun().await;
    faulty.begin_history();
    // It asks the store no more than once a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    held.goes_on.add_permits(10);
    let stopped = until_phase(&running, Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(why.contains("the store was restored or replaced"), "{why}");
    assert_eq!(texts(&held.sent), ["a"]);
    running.shutdown().await;
}

/// What happened: metadata that hide the states of an effect made it wait for ever without a word. Goal: it says so,
/// and begins again where it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_states_are_told() {
    let store = store();
    append(&store, &["a", "b"]).await;
    let (running, _) = run::<1>(&store, quick(), 0).await;
    until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    let states = store
        .read_whole_stream("$effect-mail")
        .await
        .expect("its states");
    let hide = SetStreamMetadata {
        stream: StreamId::new("$effect-mail").expect("valid"),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(format!("{{\"$tb\":{}}}", states.len())).expect("valid"),
    };
    store.set_stream_metadata(hide).await.expect("set");
    let (running, sent) = run::<1>(&store, quick(), 0).await;
    let stopped = until_phase(&running, Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(
        why.contains("stream $effect-mail hide all its states"),
        "{why}"
    );
    let resumed = running.resume("mail").await.expect_err("of no use");
    assert!(resumed.to_string().contains("begin_again"), "{resumed}");
    let again = running.begin_again("mail", BeginAt::End).await;
    again.expect("it begins");
    until_phase(&running, Phase::Live).await;
    append(&store, &["c"]).await;
    until(&running, |progress| progress.events == 1).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["c"]);
}

/// What happened: the first start of an effect set the metadata of its stream as a whole, and so took away who alone
/// may append to it. Goal: what somebody has set is kept, beside the number of states; and that number is set also if
/// the process that was to do so has died before, but never against what somebody has set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_operators_are_kept() {
    let store = store();
    let stream = || StreamId::new("$effect-mail").expect("valid");
    let set = async |metadata: &str| {
        let request = SetStreamMetadata {
            stream: stream(),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::parse(metadata.to_owned()).expect("valid"),
        };
        store.set_stream_metadata(request).await.expect("set");
    };
    let known = async || -> serde_json::Value {
        let known = store.stream_metadata(stream()).await.expect("known");
        serde_json::from_slice(known.metadata.json()).expect("JSON")
    };
    let runs = async || {
        let (running, _) = run::<1>(&store, quick(), 0).await;
        until_phase(&running, Phase::Live).await;
        running.shutdown().await;
    };
    set(r#"{"$acl":{"$w":"app"}}"#).await;
    append(&store, &["a"]).await;
    runs().await;
    let kept = serde_json::json!({"$acl": {"$w": "app"}, "$maxCount": 100});
    assert_eq!(known().await, kept);
    for (before, after) in [
        (r#"{"$acl":{"$w":"app"}}"#, kept),
        (r#"{"$maxCount":7}"#, serde_json::json!({"$maxCount": 7})),
    ] {
        set(before).await;
        runs().await;
        assert_eq!(known().await, after);
    }
}

/// What happened: of two groups of effects that keep their states in different places, and whose filters let everything
/// pass, each performed the states of the other, and so begot more of them, for ever. Goal: a state is known by what it
/// is, and an event of somebody else that has its type alone is performed.
#[tokio::test(start_paused = true)]
async fn states_of_another_group_are_not_performed() {
    let store = store();
    append(&store, &["a"]).await;
    let mut all = Vec::new();
    for prefix in ["effects-", "others-"] {
        let sent = Sent::default();
        let mail = Mail::<1> {
            sent: Arc::clone(&sent),
            fails: 0,
        };
        let effects = Effects::on(&store).config(quick()).keep_in(prefix);
        let effects = effects.effect(mail, BeginAt::Start);
        all.push((effects.start().await.expect("started"), sent));
    }
    // Some leases, in each of which an owner says several times that it lives.
    tokio::time::sleep(quick().lease * 20).await;
    let event_type = EventType::new("effect-state").expect("valid");
    let own = EventData::json(event_type, "7");
    let appended = store.append_to("note-1", ExpectedRevision::Any, [own]);
    appended.await.expect("appended");
    tokio::time::sleep(quick().lease * 20).await;
    for (running, sent) in all {
        running.shutdown().await;
        let sent = texts(&sent);
        // Each sets the metadata of its stream once.
        let sent: Vec<&String> = sent
            .iter()
            .filter(|text| !text.contains("$maxCount"))
            .collect();
        assert_eq!(sent, ["a", "7"]);
    }
}

/// Goal: what somebody else has written among the states stops no effect, and the last state before it counts. What
/// happened: a state with a checkpoint that was none was taken for the last one, and the effect tried for ever to begin
/// there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_state_is_passed_over() {
    let store = store();
    append(&store, &["a", "b"]).await;
    let (running, _) = run::<1>(&store, quick(), 0).await;
    until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    for strange in ["1", r#"{"version":1,"owner":null,"checkpoint":"nonsense"}"#] {
        let strange = EventData::json(EventType::new("effect-state").expect("valid"), strange);
        let appended = store.append_to("$effect-mail", ExpectedRevision::Any, [strange]);
        appended.await.expect("appended");
    }
    let (running, sent) = run::<1>(&store, quick(), 0).await;
    until_phase(&running, Phase::Live).await;
    append(&store, &["c"]).await;
    until(&running, |progress| progress.events == 1).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["c"]);
}
