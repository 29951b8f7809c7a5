use super::*;
use gesta_core::{ContentType, EventId, EventType, LogId, Position, Tags};
use serde_json::json;

fn event(stream: &str, revision: u64, kind: &str, data: &serde_json::Value) -> RecordedEvent {
    RecordedEvent {
        stream: StreamId::new(stream).expect("valid"),
        revision: Revision(revision),
        log: LogId(0),
        position: Position(1),
        id: EventId::random(),
        event_type: EventType::new(kind).expect("valid"),
        created: Timestamp(0),
        content_type: ContentType::Json,
        data: data.to_string().into(),
        metadata: bytes::Bytes::new(),
        tags: Tags::NONE,
    }
}

const HASH: &str = "$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHQxMjM0NTY$MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE";

fn created(name: &str, revision: u64, realm: Uuid, id: Uuid) -> RecordedEvent {
    let data =
        json!({"kind": "created", "realm": realm, "id": id, "password": HASH, "groups": ["team"]});
    event(&format!("$user-{name}"), revision, "$user", &data)
}

fn marker(realm: Uuid, settings_before: u64) -> RecordedEvent {
    event(
        "$access",
        0,
        "$access",
        &json!({"realm": realm, "settings_before": settings_before}),
    )
}

fn token(id: Uuid, user: &str, user_id: Uuid) -> RecordedEvent {
    let hash = crate::token::Secret::random().hash().text();
    let data = json!({
        "kind": "created", "user": user, "user_id": user_id, "hash": hash, "label": "", "scopes": ["read"],
        "prefixes": [], "expires": null
    });
    event(&format!("$token-{}", id.simple()), 0, "$token", &data)
}

fn directory(events: &[RecordedEvent]) -> Directory {
    let mut directory = Directory::default();
    for event in events {
        directory.apply(event);
    }
    directory
}

/// Goal: what comes from several logs has no common order.
#[test]
fn accounts_are_the_same_in_whatever_order_their_streams_come() {
    let (realm, id) = (Uuid::new_v4(), Uuid::new_v4());
    let groups = json!({"kind": "groups", "id": id, "groups": ["$admins"]});
    let user = [
        created("a", 0, realm, id),
        event("$user-a", 1, "$user", &groups),
    ];
    for events in [
        [&[marker(realm, 0)][..], &user].concat(),
        [&user[..], &[marker(realm, 0)]].concat(),
    ] {
        let mut found = directory(&events);
        assert_eq!(*found.user("a").expect("there").groups, ["$admins".into()]);
        assert!(!found.apply(&events[1]), "seen");
        assert!(found.is_on() && found.damaged().is_empty());
    }
}

/// Goal: what was planted while anybody could write does not come to life with the first user.
#[test]
fn what_was_there_before_counts_nothing() {
    let (realm, id) = (Uuid::new_v4(), Uuid::new_v4());
    let planted = Uuid::new_v4();
    let settings = json!({"$systemStreamAcl": {"$r": "$all"}});
    let mut found = directory(&[
        created("mallory", 0, planted, planted),
        token(planted, "mallory", planted),
        token(Uuid::new_v4(), "root", planted),
        event("$settings", 0, "x", &settings),
        event("$settings", 1, "x", &settings),
    ]);
    assert!(!found.is_on());
    found.apply(&marker(realm, 2));
    found.apply(&created("root", 0, realm, id));
    assert!(found.user("mallory").is_none());
    assert_eq!(found.users().count(), 1);
    assert_eq!(*found.defaults(), Defaults::default());
    // The planted token names another account than that of the same name.
    assert_ne!(found.user("root").expect("there").id, planted);
    found.apply(&event("$settings", 2, "x", &settings));
    assert_ne!(*found.defaults(), Defaults::default(), "an administrator's");
}

#[test]
fn a_damaged_stream_closes_its_own_account() {
    let (realm, id) = (Uuid::new_v4(), Uuid::new_v4());
    let good = [
        marker(realm, 0),
        created("a", 0, realm, id),
        created("b", 0, realm, Uuid::new_v4()),
    ];
    let odd = [
        event("$user-a", 1, "$user", &json!({"kind": "disabled"})),
        event("$user-a", 1, "$user", &json!({"kind": "odd", "id": id})),
        event(
            "$user-a",
            1,
            "other",
            &json!({"kind": "disabled", "id": id}),
        ),
        event(
            "$user-a",
            1,
            "$user",
            &json!({"kind": "disabled", "id": Uuid::new_v4()}),
        ),
        event(
            "$user-a",
            1,
            "$user",
            &json!({"kind": "groups", "id": id, "groups": ["$all"]}),
        ),
        event(
            "$user-a",
            1,
            "$user",
            &json!({"kind": "password", "id": id, "password": "x"}),
        ),
        event("$user-a", 1, "$user", &json!([1])),
        event("$$$user-a", 0, "$deleted", &json!({})),
        event("$$$user-a", 0, "$tombstone", &json!({})),
    ];
    for odd in odd {
        let mut found = directory(&good);
        assert!(found.apply(&odd));
        assert!(
            found.user("a").is_none() && found.user("b").is_some(),
            "{odd:?}"
        );
        assert_eq!(found.damaged().len(), 1, "{odd:?}");
        assert!(!format!("{:?}", found.damaged()).contains("argon2"));
        found.apply(&created("a", 9, realm, Uuid::new_v4()));
        assert!(
            found.user("a").is_some() && found.damaged().is_empty(),
            "begun again"
        );
    }
}

/// Goal: the server does not forget that there was a user.
#[test]
fn access_stays_on_whatever_becomes_of_the_streams() {
    let realm = Uuid::new_v4();
    for (stream, kind) in [("$$$access", "$deleted"), ("$$$access", "$tombstone")] {
        let found = directory(&[marker(realm, 0), event(stream, 0, kind, &json!({}))]);
        assert!(found.is_on());
    }
    let mut lost = Directory::default();
    lost.keep_on();
    assert!(lost.is_on(), "the marker was lost in a fail-over");
    let mut found = directory(&[event("$access", 0, "x", &json!({}))]);
    assert!(found.is_on(), "a marker that cannot be read");
    assert_eq!(found.realm(), None);
    found.apply(&event(
        "$access",
        1,
        "$access",
        &json!({"realm": realm, "settings_before": 0}),
    ));
    assert_eq!(found.realm(), Some(realm));
    found.apply(&event(
        "$access",
        2,
        "$access",
        &json!({"realm": Uuid::new_v4(), "settings_before": 0}),
    ));
    assert_eq!(found.realm(), Some(realm), "the first one counts");
}

#[test]
fn settings_that_cannot_be_read_leave_everything_to_administrators() {
    let realm = Uuid::new_v4();
    for odd in [
        json!(1),
        json!({"$userStreamAcl": 1}),
        json!({"userStreamAcl": {}}),
    ] {
        let found = directory(&[marker(realm, 0), event("$settings", 0, "x", &odd)]);
        assert_eq!(*found.defaults(), Defaults::closed(), "{odd}");
        assert_eq!(found.damaged().len(), 1, "{odd}");
        let found = directory(&[event("$settings", 0, "x", &odd), marker(realm, 1)]);
        assert_eq!(
            *found.defaults(),
            Defaults::default(),
            "they do not count: {odd}"
        );
    }
}

#[test]
fn tokens_end_once_and_for_all() {
    let (id, user) = (Uuid::new_v4(), Uuid::new_v4());
    let stream = format!("$token-{}", id.simple());
    let revoked = event(&stream, 1, "$token", &json!({"kind": "revoked"}));
    let mut found = directory(&[token(id, "a", user), revoked]);
    assert!(found.token(id).expect("there").is_over(Timestamp(0)));
    let mut again = token(id, "a", user);
    again.revision = Revision(2);
    found.apply(&again);
    assert!(
        found
            .token(id)
            .is_none_or(|token| token.is_over(Timestamp(0)))
    );
    let mut found = directory(&[token(id, "a", user)]);
    let token = found.tokens.get_mut(&id).expect("there");
    token.expires = Some(Timestamp(10));
    assert!(!token.is_over(Timestamp(9)) && token.is_over(Timestamp(10)));
    assert!(found.ends_between(Timestamp(9), Timestamp(10)));
    assert!(!found.ends_between(Timestamp(10), Timestamp(11)));
}

#[test]
fn what_would_close_an_account_is_refused() {
    let check = |stream: &str, kind: &str, data: serde_json::Value| {
        let event =
            gesta_core::EventData::json(EventType::new(kind).expect("valid"), data.to_string());
        check_event(stream, &event)
    };
    let id = Uuid::new_v4();
    let good = json!({"kind": "created", "realm": id, "id": id, "password": HASH, "groups": []});
    assert_eq!(check("$user-a", "$user", good.clone()), Ok(()));
    // What happened: a token with "expire" instead of "expires" was stored, and never ended.
    let token = format!("$token-{id}");
    let mut made = json!({
        "kind": "created", "user": "a", "user_id": id, "hash": "A".repeat(43), "label": "", "scopes": ["read"],
        "prefixes": [], "expires": 1
    });
    assert_eq!(check(&token, "$token", made.clone()), Ok(()));
    made["expire"] = json!(1);
    let why = check(&token, "$token", made).expect_err("it would never end");
    assert!(why.contains("no field \"expire\""), "{why}");
    let mut odd = good.clone();
    odd["full_name"] = json!("");
    assert_eq!(check("$user-a", "$user", odd.clone()), Ok(()));
    odd["disabled"] = json!(true);
    assert!(check("$user-a", "$user", odd).is_err());
    assert!(check(&token, "$token", json!({"kind": "revoked", "at": 5})).is_err());
    for (stream, kind, data) in [
        ("$user-a:b", "$user", good.clone()),
        ("$user-a", "x", good),
        (
            "$user-a",
            "$user",
            json!({"kind": "groups", "id": id, "groups": ["$x"]}),
        ),
        ("$token-a", "$token", json!({"kind": "revoked"})),
        ("$settings", "x", json!({"$userStreamAcl": 5})),
        (
            "$access",
            "$access",
            json!({"realm": id, "settings_before": 0}),
        ),
    ] {
        assert!(check(stream, kind, data).is_err(), "{stream}");
    }
    assert_eq!(
        check(
            "$settings",
            "x",
            json!({"$userStreamAcl": {"$r": "$admins"}})
        ),
        Ok(())
    );
}
