//! A store that is closed and shut for good, since it moves: what stops that, and what is never taken back.

use gesta_core::backend::Backend;
use gesta_postgres::{Departure, Moved, NotClosed, Stand};
use gesta_rig::shared;
use uuid::Uuid;

use crate::common::{Author, LOG, config, direct, draft, fresh, is_committed};

const LIMIT_WAIT: &str = include_str!("../../sql/limit_wait.sql");

fn moved() -> Moved {
    Moved {
        id: Uuid::from_u128(1),
        place: "there".into(),
        copied: None,
    }
}

/// What happened: what was scavenged or appended after the last look at a closed store was not noticed when it was
/// shut, so the copy was opened with events that were removed, or without the last ones. What holds now: the store is
/// looked at again under the lock that shuts it.
#[tokio::test]
async fn a_store_is_shut_only_with_what_was_seen() {
    let Some((backend, url)) = fresh().await else {
        return;
    };
    let mut writer = backend.open_writer(LOG).await.expect("opens");
    let mut author = Author::default();
    let appended = author
        .append(&mut *writer, &[draft("a", "T"), draft("b", "T")])
        .await;
    assert!(is_committed(&appended));
    let departure = Departure::open(&config(&url)).await.expect("opens");
    let seen = departure.ends().await.expect("reads");
    let closed = departure.close(&moved(), &seen).await.expect("answers");
    assert_eq!(closed, Ok(()));

    let client = direct(&url).await;
    let id = moved().id;
    let changes = [
        (
            "INSERT INTO scavenges (stream, last_revision, last_position, events, payload_bytes, log) \
             VALUES (1, 0, 1, 1, 0, 0)",
            "DELETE FROM scavenges",
            NotClosed::Scavenged,
        ),
        (
            "UPDATE virtual_index SET is_on = true",
            "UPDATE virtual_index SET is_on = false",
            NotClosed::Changed,
        ),
        (
            "INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log, content_type, \
             data, metadata) SELECT 3, stream, 7, type, created, writer, checksum, gen_random_uuid(), log, content_type, \
             data, metadata FROM events WHERE position = 2",
            "",
            NotClosed::Changed,
        ),
    ];
    for (change, takes_back, why) in changes {
        client.batch_execute(change).await.expect("changed");
        let shut = departure.shut(id, "digest", &seen).await.expect("answers");
        assert_eq!(shut, Err(why), "{change}");
        let stand = departure.stand().await.expect("answers");
        assert_eq!(stand, Stand::Closed(moved()), "{change}");
        client.batch_execute(takes_back).await.expect("taken back");
    }
    let seen = departure.ends().await.expect("reads");
    let shut = departure.shut(id, "digest", &seen).await.expect("answers");
    assert_eq!(shut, Ok(()));
    let shut = Moved {
        copied: Some("digest".into()),
        ..moved()
    };
    assert_eq!(departure.stand().await.expect("answers"), Stand::Shut(shut));
}

/// Goal: a store notes one opening of its new place, only when it is shut; once it has noted that the place was opened
/// it is not opened again.
#[tokio::test]
async fn a_store_whose_new_place_was_opened_stays_shut() {
    let Some((_backend, url)) = fresh().await else {
        return;
    };
    let departure = Departure::open(&config(&url)).await.expect("opens");
    let (id, opening, other) = (moved().id, Uuid::from_u128(11), Uuid::from_u128(12));
    let seen = departure.ends().await.expect("reads");
    let closed = departure.close(&moved(), &seen).await.expect("answers");
    assert_eq!(closed, Ok(()));
    assert!(
        departure.note_opening(id, opening).await.is_err(),
        "not shut"
    );
    let shut = departure.shut(id, "digest", &seen).await.expect("answers");
    assert_eq!(shut, Ok(()));

    departure.note_opening(id, opening).await.expect("noted");
    departure.note_opening(id, opening).await.expect("again");
    for (id, opening) in [(id, other), (other, opening)] {
        assert!(departure.note_opening(id, opening).await.is_err());
        assert!(departure.note_opened(id, opening).await.is_err());
    }
    let stand = departure.stand().await.expect("answers");
    assert!(matches!(stand, Stand::Opening(_, noted) if noted == opening));
    // Until it was opened there the move may be undone.
    assert!(departure.reopen(id).await.expect("opened"));
    assert_eq!(departure.stand().await.expect("answers"), Stand::Open);

    let closed = departure.close(&moved(), &seen).await.expect("answers");
    assert_eq!(closed, Ok(()));
    let shut = departure.shut(id, "digest", &seen).await.expect("answers");
    assert_eq!(shut, Ok(()));
    departure.note_opening(id, opening).await.expect("noted");
    departure.note_opened(id, opening).await.expect("noted");
    departure.note_opened(id, opening).await.expect("again");
    let error = departure.reopen(id).await.expect_err("it was opened there");
    assert!(
        error.to_string().contains("was opened at its new place"),
        "{error}"
    );
    assert!(departure.note_opening(id, opening).await.is_err());
    let stand = departure.stand().await.expect("answers");
    assert!(matches!(stand, Stand::Opened(_, noted) if noted == opening));
}

/// What happened: an attempt to take the tables waited for as long as PostgreSQL waits before it ends an autovacuum
/// that is in the way, so that was never ended. What holds now: it waits longer than that, and never more than 3 s.
#[tokio::test]
async fn an_attempt_waits_until_an_autovacuum_gives_way() {
    let Some(server) = shared() else {
        return;
    };
    // The setting is what the statement returns.
    let limit_with = |deadlock_timeout: &str| {
        let set = format!("BEGIN; SET LOCAL deadlock_timeout = '{deadlock_timeout}'; {LIMIT_WAIT}");
        server.query(&set)
    };
    for (deadlock_timeout, limit) in [("1s", "1500ms"), ("200ms", "700ms"), ("1min", "3s")] {
        let found = limit_with(deadlock_timeout).expect("answers");
        assert_eq!(found.as_deref(), Some(limit), "{deadlock_timeout}");
    }
}
