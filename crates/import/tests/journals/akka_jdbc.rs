//! akka-persistence-jdbc and Pekko's.

use gesta_core::ContentType;
use gesta_import::{Deleted, Kind, NameRule, Options, TypeRule, Unmappable};
use serde_json::json;

use crate::support::{
    Journal, dry_run, import, imported, nothing_is_stored_twice, places, source, target, told,
    try_import,
};

/// The tables as version 5.4 makes them.
pub(crate) const TABLES: &str = "
CREATE TABLE event_journal (
    ordering bigserial,
    persistence_id varchar(255) NOT NULL,
    sequence_number bigint NOT NULL,
    deleted boolean NOT NULL DEFAULT false,
    writer varchar(255) NOT NULL,
    write_timestamp bigint,
    adapter_manifest varchar(255),
    event_ser_id int NOT NULL,
    event_ser_manifest varchar(255) NOT NULL,
    event_payload bytea NOT NULL,
    meta_ser_id int,
    meta_ser_manifest varchar(255),
    meta_payload bytea,
    PRIMARY KEY (persistence_id, sequence_number));
CREATE UNIQUE INDEX ON event_journal (ordering);
CREATE TABLE event_tag (
    event_id bigint,
    persistence_id varchar(255),
    sequence_number bigint,
    tag varchar(256),
    PRIMARY KEY (persistence_id, sequence_number, tag));
CREATE TABLE snapshot (
    persistence_id varchar(255) NOT NULL,
    sequence_number bigint NOT NULL,
    created bigint NOT NULL,
    snapshot_ser_id int NOT NULL,
    snapshot_ser_manifest varchar(255) NOT NULL,
    snapshot_payload bytea NOT NULL,
    PRIMARY KEY (persistence_id, sequence_number));";

/// The statement that writes an event with the next number of its order.
pub(crate) fn insert(id: &str, sequence: u64, payload: &str) -> String {
    format!(
        "INSERT INTO event_journal (persistence_id, sequence_number, writer, write_timestamp, event_ser_id, \
         event_ser_manifest, event_payload) \
         VALUES ('{id}', {sequence}, 'w1', 1700000000000 + {sequence}, 33, 'bank.Account$Deposited', '{payload}'::bytea);"
    )
}

fn tag(id: &str, sequence: u64, tag: &str) -> String {
    format!(
        "INSERT INTO event_tag (persistence_id, sequence_number, tag) VALUES ('{id}', {sequence}, '{tag}');"
    )
}

/// Two accounts that take turns, one whose first events were deleted, one that is a whole soft delete; a rolled-back
/// insert in between.
async fn filled() -> Option<Journal> {
    let journal = Journal::with(TABLES).await?;
    let mut sql = String::new();
    for n in 1..=3 {
        sql += &insert("Account|1", n, &format!("{{\"n\": {n}}}"));
        sql += &insert("Account|2", n, "\\x0aff");
    }
    sql += &tag("Account|1", 2, "premium");
    sql += &tag("Account|1", 2, "audit");
    sql += &insert("Order|9", 1, "a");
    journal.run(&sql).await;
    journal
        .run(&format!(
            "BEGIN; {} ROLLBACK;",
            insert("Account|1", 4, "never")
        ))
        .await;
    journal
        .run(
            &(4..=6)
                .map(|n| insert("Order|9", n, "b"))
                .collect::<String>(),
        )
        .await;
    journal.run("UPDATE event_journal SET deleted = true WHERE persistence_id = 'Order|9' AND sequence_number = 5").await;
    journal
        .run("DELETE FROM event_journal WHERE persistence_id = 'Order|9' AND sequence_number = 1")
        .await;
    journal
        .run("INSERT INTO snapshot VALUES ('Order|9', 3, 0, 1, '', 's')")
        .await;
    Some(journal)
}

#[tokio::test]
async fn every_event_is_found_again_in_order_with_tags_and_times() {
    let Some(journal) = filled().await else {
        return;
    };
    let options = journal.options(Kind::AkkaJdbc);
    let dry = dry_run(&options).await;
    let store = target();
    let report = import(&options, &store).await;
    for report in [&dry, &report] {
        assert_eq!(
            (report.read, report.stored, report.unmappable),
            (9, 8, 0),
            "{report:?}"
        );
        assert_eq!(report.left_out["deleted or archived in the source"], 1);
        assert_eq!(
            (report.missing_numbers, report.streams_without_beginning),
            (3, 1)
        );
        assert_eq!(
            (report.streams, report.tags, report.snapshots),
            (3, 2, Some(1))
        );
        assert_eq!(report.in_source, Some(9));
        assert_eq!(
            report.first_time.as_deref(),
            Some("2023-11-14T22:13:20.001000Z")
        );
        assert_eq!((report.displaced, report.late), (0, 0));
    }
    let events = imported(&store).await;
    let deposited = "bank.Account$Deposited";
    assert_eq!(
        told(&events),
        [
            format!("account-1 0 {deposited} {{\"n\": 1}}"),
            format!("account-2 0 {deposited} \n\u{fffd}"),
            format!("account-1 1 {deposited} {{\"n\": 2}} audit,premium"),
            format!("account-2 1 {deposited} \n\u{fffd}"),
            format!("account-1 2 {deposited} {{\"n\": 3}}"),
            format!("account-2 2 {deposited} \n\u{fffd}"),
            format!("order-9 0 {deposited} b"),
            format!("order-9 1 {deposited} b"),
        ]
    );
    assert_eq!(places(&events), ["1", "2", "3", "4", "5", "6", "9", "11"]);
    assert_eq!(events[0].content_type, ContentType::Json);
    assert_eq!(events[1].content_type, ContentType::Binary);
    assert_eq!(
        source(&events[6]),
        json!({"kind": "akka-persistence-jdbc", "key": "Order|9", "sequence": 4, "place": "9",
               "time": "2023-11-14T22:13:20.004000Z", "manifest": deposited, "serializer": 33, "writer": "w1"})
    );
    nothing_is_stored_twice(&options, &store).await;
    // What comes later goes on where the stream ends.
    journal.run(&insert("Order|9", 7, "c")).await;
    let more = import(&options, &store).await;
    assert_eq!(
        (more.read, more.stored, more.missing_numbers),
        (1, 1, 0),
        "{more:?}"
    );
    let events = imported(&store).await;
    assert_eq!(told(&events[8..]), [format!("order-9 2 {deposited} c")]);
}

#[tokio::test]
async fn deleted_events_are_kept_if_that_is_wanted() {
    let Some(journal) = filled().await else {
        return;
    };
    let options = Options {
        deleted: Deleted::Keep,
        types: TypeRule::Short,
        names: "{key}".parse::<NameRule>().unwrap(),
        ..journal.options(Kind::AkkaJdbc)
    };
    assert_eq!(dry_run(&options).await.stored, 9);
    let store = target();
    assert_eq!(import(&options, &store).await.stored, 9);
    let events = imported(&store).await;
    let last: Vec<_> = events
        .iter()
        .filter(|event| event.stream.as_str() == "Order|9")
        .collect();
    assert_eq!(
        last.iter()
            .map(|event| source(event)["deleted"].clone())
            .collect::<Vec<_>>(),
        [json!(null), json!(true), json!(null)]
    );
    assert_eq!(events[0].event_type.as_str(), "Deposited");
}

#[tokio::test]
async fn two_keys_with_one_name_are_told() {
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    journal
        .run(
            &[
                insert("a-b|c", 1, "x"),
                insert("a|b-c", 1, "y"),
                insert("ok|1", 1, "z"),
            ]
            .concat(),
        )
        .await;
    let options = journal.options(Kind::AkkaJdbc);
    let dry = dry_run(&options).await;
    assert_eq!((dry.stored, dry.unmappable), (2, 1));
    let sample = &dry.unmappable_samples[0];
    assert_eq!((sample.key.as_str(), sample.sequence), ("a|b-c", 1));
    assert!(
        sample.why.contains("would both be stream \"a-b-c\""),
        "{}",
        sample.why
    );
    let error = try_import(&options, &target())
        .await
        .expect_err("a collision")
        .to_string();
    assert!(
        error.contains("\"a-b|c\"") && error.contains("\"a|b-c\"") && error.contains("--names"),
        "{error}"
    );
    let apart = Options {
        names: "{key}".parse().unwrap(),
        ..options
    };
    assert_eq!(import(&apart, &target()).await.stored, 3);
}

#[tokio::test]
async fn events_that_cannot_be_are_told_or_left_out() {
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    let mut sql = [
        insert("a|1", 1, "x"),
        insert("a|1", 2, "y"),
        insert("$x", 1, "z"),
        insert("a|1", 3, "v"),
    ]
    .concat();
    for n in 0..33 {
        sql += &tag("a|1", 2, &format!("t{n}"));
    }
    journal.run(&sql).await;
    let options = journal.options(Kind::AkkaJdbc);
    let error = try_import(&options, &target())
        .await
        .expect_err("33 tags")
        .to_string();
    assert!(
        error.contains("\"a|1\" number 2 (place 2)") && error.contains("at most 32, found 33"),
        "{error}"
    );
    let options = Options {
        unmappable: Unmappable::LeaveOut,
        ..options
    };
    let store = target();
    let report = import(&options, &store).await;
    assert_eq!((report.stored, report.unmappable), (2, 2));
    let mut samples = dry_run(&options).await.unmappable_samples;
    samples.sort_by(|one, other| one.place.cmp(&other.place));
    assert_eq!(samples, report.unmappable_samples);
    assert_eq!(places(&imported(&store).await), ["1", "4"]);
}

/// Goal: tags that point at the number of the event, as before version 5.4, at its stream, or at either.
#[tokio::test]
async fn tags_are_found_by_the_old_and_the_new_key() {
    let old = TABLES.replace(
        "event_id bigint,
    persistence_id varchar(255),
    sequence_number bigint,
    tag varchar(256),
    PRIMARY KEY (persistence_id, sequence_number, tag)",
        "event_id bigint NOT NULL, tag varchar(256) NOT NULL, PRIMARY KEY (event_id, tag)",
    );
    let on_the_way = TABLES.replace(
        "PRIMARY KEY (persistence_id, sequence_number, tag)",
        "UNIQUE (event_id, tag)",
    );
    for (tables, tags) in [
        (old, "INSERT INTO event_tag VALUES (1, 'x'), (2, 'y')"),
        (
            on_the_way,
            "INSERT INTO event_tag VALUES (1, NULL, NULL, 'x'), (NULL, 'a|1', 2, 'y')",
        ),
    ] {
        let Some(journal) = Journal::with(&tables).await else {
            return;
        };
        journal
            .run(&[insert("a|1", 1, "p"), insert("a|1", 2, "q")].concat())
            .await;
        journal.run(tags).await;
        let store = target();
        import(&journal.options(Kind::AkkaJdbc), &store).await;
        let tags: Vec<String> = told(&imported(&store).await);
        assert!(
            tags[0].ends_with(" x") && tags[1].ends_with(" y"),
            "{tags:?}"
        );
    }
}

#[tokio::test]
async fn the_one_table_of_earlier_versions_is_read_as_it_is() {
    let tables = "CREATE TABLE journal (ordering bigserial, persistence_id varchar(255) NOT NULL,
        sequence_number bigint NOT NULL, deleted boolean DEFAULT false, tags varchar(255), message bytea NOT NULL,
        PRIMARY KEY (persistence_id, sequence_number))";
    let Some(journal) = Journal::with(tables).await else {
        return;
    };
    journal.run("INSERT INTO journal (persistence_id, sequence_number, tags, message) VALUES ('a|1', 1, 'x,y', 'm'), ('a|1', 2, NULL, 'n')").await;
    let store = target();
    import(&journal.options(Kind::AkkaJdbc), &store).await;
    assert_eq!(
        told(&imported(&store).await),
        ["a-1 0 persistent-repr m x,y", "a-1 1 persistent-repr n"]
    );
}

#[tokio::test]
async fn a_wrong_source_is_told_in_plain_words() {
    let Some(journal) = Journal::with(
        "CREATE TABLE other (a int); CREATE SCHEMA s; CREATE TABLE s.event_journal (a int)",
    )
    .await
    else {
        return;
    };
    let options = journal.options(Kind::AkkaJdbc);
    let refused = async |options: &Options| {
        try_import(options, &target())
            .await
            .expect_err("refused")
            .to_string()
    };
    let error = refused(&options).await;
    assert!(
        error.contains("no table event_journal or journal")
            && error.contains("public.other, s.event_journal"),
        "{error}"
    );
    let in_schema = Options {
        schema: Some("s".into()),
        ..options.clone()
    };
    let error = refused(&in_schema).await;
    assert!(
        error.contains("no column ordering, persistence_id"),
        "{error}"
    );
    let nowhere = Options {
        url: "postgres://127.0.0.1:1/x?connect_timeout=5".into(),
        ..options.clone()
    };
    assert!(
        try_import(&nowhere, &target())
            .await
            .expect_err("nobody")
            .is_retryable()
    );
    let missing = Options {
        url: journal.url.replace("test_", "none_"),
        ..options
    };
    let error = refused(&missing).await;
    assert!(error.contains("does not exist"), "{error}");
}

/// Goal: the command turns what it is asked about, and only what is stored.
#[tokio::test]
async fn payloads_are_turned_by_a_command() {
    let Some(journal) = filled().await else {
        return;
    };
    let command = r#"n=0; while read -r line; do n=$((n+1)); printf '{"n":%d,"type":"turned","data":{"n":%d}}\n' $n $n; done"#;
    let options = Options {
        transform: Some(command.into()),
        ..journal.options(Kind::AkkaJdbc)
    };
    let store = target();
    assert_eq!(import(&options, &store).await.stored, 8);
    let events = imported(&store).await;
    assert_eq!(told(&events)[7], "order-9 1 turned {\"n\":8}");
    assert_eq!(events[7].content_type, ContentType::Json);
    assert_eq!(
        source(&events[7])["manifest"],
        json!("bank.Account$Deposited")
    );
    nothing_is_stored_twice(&options, &store).await;
    let dying = Options {
        transform: Some("read line; exit 7".into()),
        ..options
    };
    let error = try_import(&dying, &target())
        .await
        .expect_err("it dies")
        .to_string();
    assert!(
        error.contains("exit status: 7") && error.contains("\"Account|1\" number 1"),
        "{error}"
    );
}
