//! Message DB.

use gesta_core::EventId;
use gesta_import::Kind;
use serde_json::json;

use crate::support::{
    Journal, dry_run, import, imported, metadata, nothing_is_stored_twice, places, target, told,
};

pub(crate) const TABLES: &str = "
CREATE SCHEMA message_store;
CREATE TABLE message_store.messages (
    global_position bigserial NOT NULL PRIMARY KEY,
    position bigint NOT NULL,
    time timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'utc'),
    stream_name text NOT NULL,
    type text NOT NULL,
    data jsonb,
    metadata jsonb,
    id uuid NOT NULL DEFAULT gen_random_uuid());
CREATE UNIQUE INDEX ON message_store.messages (id);
CREATE UNIQUE INDEX ON message_store.messages (stream_name, position);";

#[tokio::test]
async fn messages_keep_stream_type_id_metadata_and_time() {
    let Some(journal) = Journal::with(TABLES).await else {
        return;
    };
    journal
        .run(
            "INSERT INTO message_store.messages (position, time, stream_name, type, data, metadata, id) VALUES
             (0, '2024-03-01 10:00:00.000001', 'account-1', 'Opened', '{\"owner\": \"x\"}',
              '{\"correlationStreamName\": \"signup-7\"}', '00000000-0000-4000-8000-000000000001'),
             (0, '2024-03-01 10:00:01', 'account:command-1+2', 'Open', '{}', NULL, DEFAULT),
             (1, '2024-03-01 10:00:02', 'account-1', 'Deposited', NULL, NULL, DEFAULT)",
        )
        .await;
    let options = journal.options(Kind::MessageDb);
    let dry = dry_run(&options).await;
    let store = target();
    let report = import(&options, &store).await;
    for report in [dry, report] {
        assert_eq!((report.read, report.stored, report.streams), (3, 3, 2));
        assert_eq!((report.missing_numbers, report.snapshots), (0, None));
        assert_eq!(
            report.last_time.as_deref(),
            Some("2024-03-01T10:00:02.000000Z")
        );
    }
    let events = imported(&store).await;
    assert_eq!(
        told(&events),
        [
            "account-1 0 Opened {\"owner\": \"x\"}",
            "account:command-1+2 0 Open {}",
            "account-1 1 Deposited null",
        ]
    );
    assert_eq!(places(&events), ["1", "2", "3"]);
    assert_eq!(
        events[0].id,
        EventId("00000000-0000-4000-8000-000000000001".parse().unwrap())
    );
    let found = metadata(&events[0]);
    assert_eq!(found["correlationStreamName"], json!("signup-7"));
    assert_eq!(
        found["$source"]["time"],
        json!("2024-03-01T10:00:00.000001Z")
    );
    assert_eq!(found["$source"]["sequence"], json!(0));
    nothing_is_stored_twice(&options, &store).await;
}
