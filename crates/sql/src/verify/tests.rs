//! A healthy store in memory, and one test per kind of damage.

use super::*;
use crate::checksum::{RawRow, name_checksum};
use gesta_core::backend::RowId;

#[derive(Clone)]
struct Store {
    rows: Vec<AuditRow>,
    streams: Vec<AuditName>,
    types: Vec<AuditName>,
    tags: Vec<AuditTag>,
    floors: Vec<AuditFloor>,
}

fn page<T: Clone>(all: &[T], after: i64, limit: usize, key: impl Fn(&T) -> i64) -> Vec<T> {
    let mut sorted: Vec<T> = all
        .iter()
        .filter(|item| key(item) > after)
        .cloned()
        .collect();
    sorted.sort_by_key(&key);
    let Some(last) = sorted
        .get(limit.min(sorted.len()).wrapping_sub(1))
        .map(&key)
    else {
        return Vec::new();
    };
    sorted.retain(|item| key(item) <= last);
    sorted
}

#[async_trait]
impl AuditSource for Store {
    fn logs(&self) -> u16 {
        1
    }
    async fn rows(&mut self, _: LogId, after: i64, _: usize) -> Result<Vec<AuditRow>> {
        Ok(page(&self.rows, after, 7, |row| row.position))
    }
    async fn streams(&mut self, _: LogId, after: i64, _: usize) -> Result<Vec<AuditName>> {
        Ok(page(&self.streams, after, 3, |name| name.id))
    }
    async fn types(&mut self, _: LogId, after: i64, _: usize) -> Result<Vec<AuditName>> {
        Ok(page(&self.types, after, 3, |name| name.id))
    }
    async fn tags(
        &mut self,
        _: LogId,
        after: Option<&AuditTag>,
        _: usize,
    ) -> Result<Vec<AuditTag>> {
        let mut all = self.tags.clone();
        all.sort();
        Ok(all
            .into_iter()
            .filter(|tag| after.is_none_or(|after| tag > after))
            .take(3)
            .collect())
    }
    async fn floors(&mut self, _: LogId, after: i64, _: usize) -> Result<Vec<AuditFloor>> {
        Ok(page(&self.floors, after, 3, |floor| floor.stream))
    }
    async fn stream_name(&mut self, _: LogId, row: i64) -> Result<Option<String>> {
        Ok(self
            .streams
            .iter()
            .find(|name| name.id == row)
            .map(|name| name.name.clone()))
    }
}

fn sign(row: &mut AuditRow) {
    let raw = RawRow {
        log: LogId(0),
        position: row.position,
        stream: row.stream,
        revision: row.revision,
        event_id: row.event_id.as_ref().try_into().expect("16 bytes"),
        event_type: row.event_type,
        created: row.created,
        content_type: row.content_type,
        writer: row.writer,
        data: &row.data,
        metadata: &row.metadata,
    };
    row.checksum = raw.checksum(row.tags.iter().map(String::as_str));
}

fn name(id: i64, name: &str) -> AuditName {
    AuditName {
        id,
        name: name.into(),
        checksum: name_checksum(LogId(0), RowId(id.cast_unsigned()), name),
    }
}

/// 40 events over 4 streams in turn, two types, every third event tagged.
fn healthy() -> Store {
    let mut store = Store {
        rows: Vec::new(),
        streams: (1..=4).map(|id| name(id, &format!("cart-{id}"))).collect(),
        types: vec![name(1, "Added"), name(2, "Removed")],
        tags: Vec::new(),
        floors: Vec::new(),
    };
    for index in 0..40_i64 {
        let mut row = AuditRow {
            position: index + 1,
            stream: index % 4 + 1,
            revision: index / 4,
            event_id: Bytes::copy_from_slice(&[u8::try_from(index).expect("small"); 16]),
            event_type: if index == 0 || index > 20 { 1 } else { 2 },
            created: 1_000 + index / 2,
            content_type: 0,
            writer: 9,
            data: Bytes::from_static(b"{}"),
            metadata: Bytes::new(),
            tags: Vec::new(),
            checksum: 0,
        };
        if index % 3 == 0 {
            row.tags = vec!["red".into(), format!("n:{index}")];
            store.tags.extend(row.tags.iter().map(|tag| AuditTag {
                tag: tag.clone(),
                position: row.position,
            }));
        }
        sign(&mut row);
        store.rows.push(row);
    }
    store
}

async fn findings(mut store: Store) -> Vec<Finding> {
    let report = audit(&mut store, &mut |_| {}).await.expect("readable");
    assert_eq!(report.is_healthy(), report.findings.is_empty());
    report.findings
}

async fn kinds(store: Store) -> Vec<FindingKind> {
    findings(store)
        .await
        .into_iter()
        .map(|finding| finding.kind)
        .collect()
}

#[tokio::test]
async fn a_healthy_store_is_called_healthy_and_counted() {
    let mut store = healthy();
    let mut seen = Vec::new();
    let report = audit(&mut store, &mut |progress| seen.push(progress.position))
        .await
        .expect("readable");
    assert!(report.is_healthy(), "{:?}", report.findings);
    let log = report.logs[0];
    assert_eq!(
        (log.events, log.streams, log.types, log.tags),
        (40, 4, 2, 28)
    );
    assert_eq!((log.last_position, log.payload_bytes), (40, 80));
    assert_eq!(seen, [7, 14, 21, 28, 35, 40]);
}

#[tokio::test]
async fn a_missing_revision_is_found_with_its_stream() {
    let mut store = healthy();
    store.rows.remove(9);
    store.tags.retain(|tag| tag.position != 10);
    let found = findings(store).await;
    let kinds: Vec<_> = found.iter().map(|f| f.kind).collect();
    assert_eq!(kinds, [FindingKind::Position, FindingKind::Revision]);
    assert_eq!(
        found[1].to_string(),
        "revision: log 0, position 14, stream cart-2, revision 3: expected revision 2"
    );
}

#[tokio::test]
async fn a_lost_last_event_of_a_stream_is_found_by_its_hole() {
    let mut store = healthy();
    store.rows.remove(37);
    assert_eq!(kinds(store).await, [FindingKind::Position]);
}

#[tokio::test]
async fn a_position_used_twice_is_found() {
    let mut store = healthy();
    let mut twin = store.rows[6].clone();
    twin.revision = 10;
    sign(&mut twin);
    store.rows.push(twin);
    let found = kinds(store).await;
    assert!(found.contains(&FindingKind::Position), "{found:?}");
}

#[tokio::test]
async fn a_wrong_link_and_a_dangling_link_are_found() {
    let mut store = healthy();
    store.rows[17].stream = 3;
    sign(&mut store.rows[17]);
    assert!(kinds(store).await.contains(&FindingKind::Revision));
    let mut store = healthy();
    store.rows[39].stream = 99;
    store.rows[38].event_type = 98;
    sign(&mut store.rows[39]);
    sign(&mut store.rows[38]);
    assert_eq!(kinds(store).await, [FindingKind::Link, FindingKind::Link]);
}

#[tokio::test]
async fn orphans_are_found() {
    let mut store = healthy();
    store.streams.push(name(50, "ghost"));
    store.types.push(name(51, "Ghost"));
    store.floors.push(AuditFloor {
        stream: 60,
        revision: 1,
        position: 2,
    });
    let found = kinds(store).await;
    assert_eq!(
        found
            .iter()
            .filter(|kind| **kind == FindingKind::Orphan)
            .count(),
        3,
        "{found:?}"
    );
}

#[tokio::test]
async fn changed_payload_names_and_ids_are_found() {
    let mut store = healthy();
    store.rows[3].data = Bytes::from_static(b"{ }");
    assert_eq!(kinds(store).await, [FindingKind::Checksum]);
    let mut store = healthy();
    store.streams[0].name = "cart-x".into();
    assert_eq!(kinds(store).await, [FindingKind::Checksum]);
    let mut store = healthy();
    store.rows[3].event_id = Bytes::from_static(b"short");
    assert_eq!(kinds(store).await, [FindingKind::Checksum]);
}

#[tokio::test]
async fn names_stored_twice_are_found() {
    let mut store = healthy();
    store.streams.push(name(40, "cart-1"));
    let found = kinds(store).await;
    assert!(
        found.contains(&FindingKind::Name) && found.contains(&FindingKind::RowId),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_clock_that_ran_back_is_found() {
    let mut store = healthy();
    store.rows[20].created = 5;
    sign(&mut store.rows[20]);
    assert_eq!(kinds(store).await, [FindingKind::Created]);
    // An administrator has set the time back after events of a wrong clock: by more than clocks differ.
    let mut store = healthy();
    for row in &mut store.rows[..20] {
        row.created += 10 * 366 * 86_400_000_000;
        sign(row);
    }
    assert_eq!(kinds(store).await, []);
}

#[tokio::test]
async fn a_tag_index_that_differs_is_found_entry_by_entry() {
    let mut store = healthy();
    store.tags.retain(|tag| tag.tag != "n:9");
    store.tags.push(AuditTag {
        tag: "blue".into(),
        position: 2,
    });
    let found: Vec<String> = findings(store)
        .await
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        found,
        [
            "tags: log 0, position 10: the tag index lacks \"n:9\" of this event",
            "tags: log 0, position 2: the tag index has \"blue\", which no event here carries",
        ]
    );
}

/// Goal: what scavenging removed is no damage, one event more is.
#[tokio::test]
async fn scavenged_streams_are_healthy() {
    let mut store = healthy();
    let removed = |row: &AuditRow| row.stream == 2 && row.revision < 6 || row.stream == 4;
    let gone: Vec<i64> = store
        .rows
        .iter()
        .filter(|row| removed(row))
        .map(|row| row.position)
        .collect();
    // The last row of the log is never removed.
    store.rows.retain(|row| !removed(row) || row.position == 40);
    store
        .tags
        .retain(|tag| tag.position == 40 || !gone.contains(&tag.position));
    store.floors = vec![
        AuditFloor {
            stream: 2,
            revision: 6,
            position: 22,
        },
        AuditFloor {
            stream: 4,
            revision: 9,
            position: 36,
        },
    ];
    assert_eq!(kinds(store.clone()).await, []);
    store.rows.remove(0);
    store.tags.retain(|tag| tag.position != 1);
    let found = kinds(store).await;
    assert!(
        found.contains(&FindingKind::Position) && found.contains(&FindingKind::Revision),
        "{found:?}"
    );
}

#[tokio::test]
async fn numbers_out_of_range_do_not_panic() {
    let mut store = healthy();
    for (index, value) in [i64::MIN, -1, i64::MAX].into_iter().enumerate() {
        let row = &mut store.rows[10 + index];
        (row.position, row.revision, row.stream) = (value, value, value);
        (row.event_type, row.content_type, row.created) = (value, value, value);
        sign(row);
    }
    store.floors.push(AuditFloor {
        stream: i64::MIN,
        revision: i64::MIN,
        position: i64::MAX,
    });
    assert!(!kinds(store).await.is_empty());
}

/// A damaged index can lead back to rows already seen. The audit of such a store once never ended.
#[tokio::test]
async fn an_index_that_leads_back_ends_the_audit_with_a_finding() {
    struct Circle(Store);

    #[async_trait]
    impl AuditSource for Circle {
        fn logs(&self) -> u16 {
            1
        }
        async fn rows(&mut self, log: LogId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
            self.0
                .rows(log, if after > 20 { 3 } else { after }, limit)
                .await
        }
        async fn streams(&mut self, log: LogId, _: i64, limit: usize) -> Result<Vec<AuditName>> {
            self.0.streams(log, i64::MIN, limit).await
        }
        async fn types(&mut self, log: LogId, _: i64, limit: usize) -> Result<Vec<AuditName>> {
            self.0.types(log, i64::MIN, limit).await
        }
        async fn tags(
            &mut self,
            log: LogId,
            _: Option<&AuditTag>,
            limit: usize,
        ) -> Result<Vec<AuditTag>> {
            self.0.tags(log, None, limit).await
        }
        async fn floors(
            &mut self,
            log: LogId,
            after: i64,
            limit: usize,
        ) -> Result<Vec<AuditFloor>> {
            self.0.floors(log, after, limit).await
        }
        async fn stream_name(&mut self, log: LogId, row: i64) -> Result<Option<String>> {
            self.0.stream_name(log, row).await
        }
    }

    let report = audit(&mut Circle(healthy()), &mut |_| {})
        .await
        .expect("readable");
    let engine = report
        .findings
        .iter()
        .filter(|finding| finding.kind == FindingKind::Engine);
    assert_eq!(engine.count(), 4);
}
