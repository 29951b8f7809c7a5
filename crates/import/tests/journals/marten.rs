//! Marten.

use gesta_core::EventStoreExt;
use gesta_import::{Kind, Options};
use serde_json::json;

use crate::support::{
    Journal, dry_run, import, imported, metadata, nothing_is_stored_twice, places, target, told,
};

const TABLES: &str = "
CREATE TABLE mt_streams (
    id uuid NOT NULL,
    type varchar,
    version bigint,
    timestamp timestamptz NOT NULL DEFAULT now(),
    created timestamptz NOT NULL DEFAULT now(),
    tenant_id varchar DEFAULT '*DEFAULT*',
    is_archived boolean DEFAULT false,
    PRIMARY KEY (tenant_id, id));
CREATE SEQUENCE mt_events_sequence;
CREATE TABLE mt_events (
    seq_id bigint NOT NULL PRIMARY KEY,
    id uuid NOT NULL,
    stream_id uuid,
    version bigint NOT NULL,
    data jsonb NOT NULL,
    type varchar(500) NOT NULL,
    timestamp timestamptz NOT NULL DEFAULT now(),
    tenant_id varchar DEFAULT '*DEFAULT*',
    mt_dotnet_type varchar,
    correlation_id varchar,
    causation_id varchar,
    headers jsonb,
    is_archived boolean DEFAULT false,
    UNIQUE (tenant_id, stream_id, version));
ALTER SEQUENCE mt_events_sequence OWNED BY mt_events.seq_id;";

fn insert(stream: u8, version: u64, more: &str, values: &str) -> String {
    format!(
        "INSERT INTO mt_events (seq_id, id, stream_id, version, data, type, timestamp, mt_dotnet_type{more}) \
         VALUES (nextval('mt_events_sequence'), gen_random_uuid(), '00000000-0000-0000-0000-0000000000{stream:02}', \
         {version}, '{{\"v\": {version}}}', 'invoice_sent', '2024-03-01T10:00:00.5+02', 'Shop.InvoiceSent, Shop'{values});"
    )
}

#[tokio::test]
async fn events_keep_stream_type_tenant_headers_and_time() {
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    let stream = "00000000-0000-0000-0000-00000000000";
    journal
        .run(&format!("INSERT INTO mt_streams (id, type, tenant_id) VALUES ('{stream}1', 'invoice', '*DEFAULT*'), ('{stream}1', 'invoice', 'blue'), ('{stream}2', NULL, '*DEFAULT*')"))
        .await;
    journal
        .run(
            &[
                insert(
                    1,
                    1,
                    ", correlation_id, causation_id, headers",
                    ", 'c-1', 'd-1', '{\"user\": \"x\"}'",
                ),
                insert(2, 1, "", ""),
                insert(1, 1, ", tenant_id", ", 'blue'"),
                insert(1, 2, ", is_archived", ", true"),
                insert(9, 1, "", ""),
                insert(1, 3, "", ""),
            ]
            .concat(),
        )
        .await;
    journal
        .run("UPDATE mt_events SET type = 'tombstone' WHERE stream_id::text LIKE '%09'")
        .await;
    let options = Options {
        names: "{category}-{tenant}-{id}".parse().unwrap(),
        ..journal.options(Kind::Marten)
    };
    let dry = dry_run(&options).await;
    let store = target();
    let report = import(&options, &store).await;
    for report in [&dry, &report] {
        assert_eq!(
            (report.read, report.stored, report.streams),
            (6, 4, 3),
            "{report:?}"
        );
        assert_eq!(report.left_out["deleted or archived in the source"], 1);
        assert_eq!(report.left_out["place holders of failed appends"], 1);
    }
    let events = imported(&store).await;
    assert_eq!(
        told(&events),
        [
            // Without a tenant, or without a type, the rule has a hole, and the key is the name.
            format!("{stream}1 0 invoice_sent {{\"v\": 1}}"),
            format!("{stream}2 0 invoice_sent {{\"v\": 1}}"),
            format!("invoice-blue-{stream}1 0 invoice_sent {{\"v\": 1}}"),
            format!("{stream}1 1 invoice_sent {{\"v\": 3}}"),
        ]
    );
    assert_eq!(places(&events), ["1", "2", "3", "6"]);
    let found = metadata(&events[0]);
    assert_eq!(
        (
            &found["$correlationId"],
            &found["$causationId"],
            &found["user"]
        ),
        (&json!("c-1"), &json!("d-1"), &json!("x"))
    );
    assert_eq!(
        found["$source"]["time"],
        json!("2024-03-01T08:00:00.500000Z")
    );
    assert_eq!(
        found["$source"]["manifest"],
        json!("Shop.InvoiceSent, Shop")
    );
    assert_eq!(metadata(&events[2])["$source"]["tenant"], json!("blue"));
    nothing_is_stored_twice(&options, &store).await;
    // By the usual rule a tenant's stream of the same id would be the same stream.
    let usual = dry_run(&journal.options(Kind::Marten)).await;
    assert_eq!((usual.stored, usual.unmappable), (3, 1));
}

/// Goal: a stream that gets its type after its first events stays one stream; and a checkpoint names the server, so
/// that a database of the same name elsewhere is not taken for this one.
#[tokio::test]
async fn a_stream_that_gets_a_type_stays_where_it_is() {
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    let stream = "00000000-0000-0000-0000-000000000007";
    journal
        .run(&format!("INSERT INTO mt_streams (id) VALUES ('{stream}')"))
        .await;
    journal.run(&insert(7, 1, "", "")).await;
    let options = journal.options(Kind::Marten);
    let store = target();
    assert_eq!(import(&options, &store).await.stored, 1);
    journal.run("UPDATE mt_streams SET type = 'invoice'").await;
    journal.run(&insert(7, 2, "", "")).await;
    assert_eq!(import(&options, &store).await.stored, 1);
    assert_eq!(
        told(&imported(&store).await),
        [
            format!("{stream} 0 invoice_sent {{\"v\": 1}}"),
            format!("{stream} 1 invoice_sent {{\"v\": 2}}")
        ]
    );
    let checkpoints = store.read_whole_stream("$import-marten").await.unwrap();
    let last: serde_json::Value = serde_json::from_slice(&checkpoints[0].data).unwrap();
    let server = last["server"].as_str().expect("a server");
    assert!(
        server.split(' ').all(|part| part.parse::<u64>().is_ok()),
        "{server}"
    );
}
