//! The guard over a store in memory, as an attacker meets it.

mod differences;
mod running;
mod world;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gesta_core::{AllFrom, DeleteKind, EventData, EventStoreExt, EventType, ExpectedRevision};

use super::*;
use crate::{Accounts, NewToken, Scope};

use self::world::*;

/// Goal: without users everything is as it was, but for the streams that accounts will live in.
#[tokio::test]
async fn without_users_nobody_proves_anything() {
    let world = World::open().await;
    assert!(!world.access.is_on());
    let anybody = world.anonymous();
    write(&anybody, "a").await.expect("open");
    write(&anybody, "$stats-a").await.expect("open");
    anybody
        .set_stream_metadata(metadata("a", r#"{"$acl": 5}"#))
        .await
        .expect("open");
    assert_eq!(read(&anybody, "a").await.expect("open"), 1);
    for name in ["$user-x", "$token-x", "$settings", "$access"] {
        assert!(is_forbidden(write(&anybody, name).await), "{name}");
        assert!(
            is_forbidden(anybody.set_stream_metadata(metadata(name, "{}")).await),
            "{name}"
        );
        assert!(
            is_forbidden(
                anybody
                    .delete_stream(delete(name, DeleteKind::Tombstone))
                    .await
            ),
            "{name}"
        );
        let raw = EventData::json(EventType::new("$metadata").expect("valid"), "{}");
        let raw = anybody
            .append_to(&format!("$${name}"), ExpectedRevision::Any, vec![raw])
            .await;
        assert!(is_forbidden(raw), "{name}");
    }
    // Credentials are not looked at, as long as nobody has any.
    let caller = world.access.caller([&b"Digest x"[..], b"y"], here()).await;
    assert_eq!(caller.expect("open"), Caller::anonymous(Some(here())));
}

/// Goal: who does not say who they are may do nothing, and hears that and not what there is.
#[tokio::test]
async fn with_users_the_anonymous_may_do_nothing() {
    let world = World::closed().await;
    world.append("a").await;
    world.set_acl("a", r#"{"$acl":{"$r":"$all"}}"#).await;
    let anybody = world.anonymous();
    assert!(is_unauthenticated(read(&anybody, "a").await));
    assert!(is_unauthenticated(read(&anybody, "missing").await));
    assert!(is_unauthenticated(write(&anybody, "a").await));
    assert!(is_unauthenticated(anybody.info().await));
    assert!(is_unauthenticated(
        anybody.read_all(ReadAll::forwards()).await
    ));
    let request = ListStreams {
        prefix: String::new(),
        after: None,
        limit: 10,
    };
    assert!(is_unauthenticated(anybody.list_streams(request).await));
    for bad in ["Basic dTpwYXNz", "Bearer gesta_x", "Digest x", "Basic", ""] {
        assert!(
            is_unauthenticated(world.access.caller([bad.as_bytes()], here()).await),
            "{bad}"
        );
    }
    let twice = STANDARD.encode("u:password of u");
    let header = format!("Basic {twice}");
    let twice = world
        .access
        .caller([header.as_bytes(), header.as_bytes()], here())
        .await;
    assert!(is_unauthenticated(twice));
}

/// Goal: no token without the scope admin reaches accounts, whoever it is of.
#[tokio::test]
async fn tokens_of_administrators_reach_accounts_only_with_the_scope_for_it() {
    let world = World::closed().await;
    let (_, weak) = world
        .token("root", &[Scope::Read, Scope::Append], &[])
        .await;
    let (_, narrow) = world.token("root", &[Scope::Admin], &["$user-"]).await;
    let (_, strong) = world.token("root", &[Scope::Admin], &[]).await;
    for name in ["$user-u", "$access", "$settings"] {
        for token in [&weak, &narrow] {
            assert!(is_forbidden(read(token, name).await), "{name}");
            assert!(is_forbidden(write(token, name).await), "{name}");
            assert!(
                is_forbidden(token.stream_metadata(id(name)).await),
                "{name}"
            );
        }
        assert!(
            is_forbidden(strong.delete_stream(delete(name, DeleteKind::Soft)).await),
            "{name}"
        );
        assert!(
            is_forbidden(
                strong
                    .set_stream_metadata(metadata(name, r#"{"$maxCount":1}"#))
                    .await
            ),
            "{name}"
        );
    }
    assert_eq!(read(&strong, "$user-u").await.expect("allowed"), 1);
    assert!(!is_forbidden(
        strong
            .append_to("$user-u", ExpectedRevision::Any, vec![event("{}")])
            .await
    ));
    let all = weak.read_all(ReadAll::forwards()).await.expect("allowed");
    assert!(
        all.events
            .iter()
            .all(|event| !event.stream.as_str().contains("$user")),
        "{all:?}"
    );
    let all = strong.read_all(ReadAll::forwards()).await.expect("allowed");
    assert!(
        all.events
            .iter()
            .any(|event| event.stream.as_str() == "$user-u")
    );
}

/// Goal: an administrator can look after accounts through a server.
#[tokio::test]
async fn accounts_are_changed_through_the_guard() {
    let world = World::closed().await;
    let root: Arc<dyn EventStore> = Arc::new(world.login("root").await);
    let through = Accounts::of(root);
    through
        .set_groups("u", vec!["$ops".into()])
        .await
        .expect("changed");
    through
        .set_password("u", "another password".into())
        .await
        .expect("changed");
    let token = NewToken {
        user: "u".into(),
        label: String::new(),
        scopes: vec![Scope::Read],
        prefixes: vec![],
        expires: None,
    };
    let text = through.create_token(token.clone()).await.expect("made");
    soon(async {
        while world.bearer(&text).await.is_err()
            || world.try_login("u", "another password").await.is_err()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(is_unauthenticated(
        world.try_login("u", "password of u").await
    ));
    let user: Arc<dyn EventStore> = Arc::new(world.login("t").await);
    assert!(is_forbidden(Accounts::of(user).create_token(token).await));
}

/// Goal: an append to several streams is refused as a whole if one of them is not allowed.
#[tokio::test]
async fn of_several_streams_each_is_checked_before_anything_is_written() {
    let world = World::closed().await;
    let user = world.login("u").await;
    for forbidden in ["$stats-x", "$user-u"] {
        let append = |name: &str| gesta_core::StreamAppend {
            stream: id(name),
            expected: ExpectedRevision::Any,
            events: vec![event("{}")],
        };
        let request = Append {
            streams: vec![append("a"), append(forbidden)],
            conditions: Vec::new(),
        };
        assert!(is_forbidden(user.append(request).await), "{forbidden}");
        // A condition tells whether there is such a stream.
        let events = vec![event("{}")];
        let append = Append::to(id("a"), ExpectedRevision::Any, events);
        let request = append.provided_that(id(forbidden), ExpectedRevision::NoStream);
        assert!(is_forbidden(user.append(request).await), "{forbidden}");
    }
    assert!(
        world
            .store
            .read_stream(ReadStream::forwards(id("a")))
            .await
            .is_err()
    );
}

/// Goal: a condition that only asks for the history of the store needs no right beyond that to append; one that tells
/// of events of any stream is for administrators.
#[tokio::test]
async fn everybody_may_require_a_history() {
    let world = World::closed().await;
    let user = world.login("u").await;
    let append = || Append::to(id("a"), ExpectedRevision::Any, vec![event("{}")]);
    let first = user.append(append()).await.expect("allowed");
    let mut guarded = append();
    let history = Condition::same_history(first.checkpoint.clone());
    guarded.conditions.push(history);
    user.append(guarded).await.expect("allowed");
    for prefixes in [&["a"][..], &["$", "a"]] {
        let query = gesta_core::Query {
            stream_prefixes: prefixes.iter().map(|&prefix| prefix.to_owned()).collect(),
            ..Default::default()
        };
        let after = Some(first.checkpoint.clone());
        let guarded = append().provided_no_match(query.into(), after);
        assert!(is_forbidden(user.append(guarded).await), "{prefixes:?}");
    }
}

/// Goal: rights are those of the stream, metadata streams have their stream's, and odd forms are refused where they are
/// set and close where they are stored.
#[tokio::test]
async fn streams_have_rights_of_their_own() {
    let world = World::closed().await;
    let (user, member) = (world.login("u").await, world.login("t").await);
    world.append("plan").await;
    world
        .set_acl(
            "plan",
            r#"{"$acl":{"$r":"team","$w":["team"],"$mr":"team","$mw":[]}}"#,
        )
        .await;
    assert!(is_forbidden(read(&user, "plan").await));
    assert!(is_forbidden(read(&user, "$$plan").await));
    assert!(is_forbidden(write(&user, "plan").await));
    assert!(is_forbidden(user.stream_metadata(id("plan")).await));
    write(&member, "plan").await.expect("in the group");
    assert_eq!(read(&member, "plan").await.expect("in the group"), 2);
    assert_eq!(read(&member, "$$plan").await.expect("in the group"), 1);
    let raw = || {
        EventData::json(
            EventType::new("$metadata").expect("valid"),
            r#"{"$acl":{"$r":"$all"}}"#,
        )
    };
    assert!(is_forbidden(
        member
            .append_to("$$plan", ExpectedRevision::Any, vec![raw()])
            .await
    ));
    for odd in [r#"{"$acl":5}"#, r#"{"$acl":{"$r":{"a":1}}}"#] {
        let refused = user
            .set_stream_metadata(metadata("mine", odd))
            .await
            .expect_err("refused");
        assert!(refused.to_string().contains("metadata.$acl"), "{refused}");
        let raw = EventData::json(EventType::new("$metadata").expect("valid"), odd);
        let refused = user
            .append_to("$$mine", ExpectedRevision::Any, vec![raw])
            .await
            .expect_err("refused");
        assert!(refused.to_string().contains("metadata.$acl"), "{refused}");
    }
    world
        .store
        .set_stream_metadata(metadata("odd", r#"{"$acl":5}"#))
        .await
        .expect("stored");
    soon(async {
        while !is_forbidden(write(&member, "odd").await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(write(&world.login("root").await, "odd").await.is_ok());
}

/// The names of all streams, by pages, which begin after none but visible ones.
pub(super) async fn listed(who: &Guarded, limit: usize, visible: &[&str]) -> Vec<String> {
    let mut names = Vec::new();
    let mut request = ListStreams {
        prefix: String::new(),
        after: None,
        limit,
    };
    loop {
        let page = who.list_streams(request.clone()).await.expect("allowed");
        assert!(page.streams.len() <= limit);
        names.extend(page.streams.iter().map(|info| info.stream.to_string()));
        let Some(next) = page.next else { return names };
        assert!(visible.contains(&next.as_str()), "{next} is hidden");
        request.after = Some(next);
    }
}

/// The streams of all events, by pages.
async fn streams_of_all(who: &Guarded, limit: usize) -> Vec<String> {
    let mut seen = Vec::new();
    let mut request = ReadAll::forwards().limit(limit);
    loop {
        let page = who.read_all(request.clone()).await.expect("allowed");
        seen.extend(page.events.iter().map(|event| event.stream.to_string()));
        if page.end {
            return seen;
        }
        request = request.from(AllFrom::Checkpoint(page.next));
    }
}

/// Goal: pages of all events and of names leave out what may not be seen, and lead to the end all the same.
#[tokio::test]
async fn pages_leave_out_what_may_not_be_seen() {
    let world = World::closed().await;
    for name in ["a1", "b1", "b2", "b3", "c1", "$stats-x"] {
        world.append(name).await;
    }
    for name in ["b1", "b2", "b3"] {
        world.set_acl(name, r#"{"$acl":{"$r":"team"}}"#).await;
    }
    let (user, member) = (world.login("u").await, world.login("t").await);
    for (who, expected) in [
        (&user, &["a1", "c1"][..]),
        (&member, &["a1", "b1", "b2", "b3", "c1"]),
    ] {
        for limit in 1..=4 {
            let names = listed(who, limit, expected).await;
            assert_eq!(names, expected, "{limit}");
            let mut seen = streams_of_all(who, limit).await;
            seen.retain(|name| !name.starts_with("$$"));
            assert_eq!(seen, expected, "{limit}");
        }
    }
    let hidden = ListStreams {
        prefix: "$".into(),
        after: None,
        limit: 10,
    };
    let page = user.list_streams(hidden).await.expect("allowed");
    assert!(
        page.streams
            .iter()
            .all(|info| info.stream.as_str().starts_with("$$")),
        "{page:?}"
    );
    use limited::narrows;
    assert!(narrows("", "b") && narrows("b", "bc") && narrows("$", "$x"));
    assert!(!narrows("bc", "b") && !narrows("$$", "b") && !narrows("", "$x"));
    let (_, token) = world.token("root", &[Scope::Read], &["b"]).await;
    let page = token
        .list_streams(ListStreams {
            prefix: String::new(),
            after: None,
            limit: 10,
        })
        .await;
    assert_eq!(page.expect("allowed").streams.len(), 3);
}

/// Goal: who may read a virtual stream learns nothing from it of streams that they may not read.
#[tokio::test]
async fn virtual_streams_leave_out_links_to_what_may_not_be_seen() {
    let world = World::closed().await;
    let root = world.login("root").await;
    let settings = event(r#"{"$systemStreamAcl":{"$r":["$all"]}}"#);
    root.append_to("$settings", ExpectedRevision::Any, vec![settings])
        .await
        .expect("an administrator");
    for name in ["plan-open", "plan-secret", "plan-other"] {
        world.append(name).await;
    }
    world
        .set_acl("plan-secret", r#"{"$acl":{"$r":"team"}}"#)
        .await;
    let (user, member) = (world.login("u").await, world.login("t").await);
    let names = |events: &[RecordedEvent]| -> Vec<String> {
        let targets = events.iter().filter_map(LinkTarget::of);
        targets.map(|target| target.stream.to_string()).collect()
    };
    for virtual_stream in ["$ce-plan", "$et-t", "$streams"] {
        soon(async {
            while is_forbidden(read(&user, virtual_stream).await) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        for limit in [1, 100] {
            let mut seen = Vec::new();
            let mut request = ReadStream::forwards(id(virtual_stream)).limit(limit);
            loop {
                let page = user.read_stream(request.clone()).await.expect("allowed");
                seen.extend(names(&page.events));
                let Some(next) = page.next.filter(|_| !page.end) else {
                    break;
                };
                request = request.from(gesta_core::StreamFrom::Revision(next));
            }
            assert_eq!(seen, ["plan-open", "plan-other"], "{virtual_stream}");
        }
        let whole = member.read_whole_stream(virtual_stream).await;
        assert_eq!(names(&whole.expect("allowed")).len(), 3, "{virtual_stream}");
        let follow = Subscribe {
            to: SubscribeTo::Stream(id(virtual_stream)),
            from: gesta_core::SubscribeFrom::Start,
        };
        let mut following = user.subscribe(follow).await.expect("allowed");
        let mut seen = Vec::new();
        while seen.len() < 2 {
            let link = soon(following.next_event()).await.expect("running");
            seen.extend(names(&[(*link).clone()]));
        }
        assert_eq!(seen, ["plan-open", "plan-other"], "{virtual_stream}");
    }
}

/// Goal: a program that goes on as a user who was disabled costs one comparison, as one with a wrong password does.
#[tokio::test]
async fn the_password_of_a_disabled_user_is_compared_once() {
    let world = World::closed().await;
    world.add("gone", &[]).await.expect("added");
    world.accounts.disable("gone").await.expect("disabled");
    world.login("root").await;
    let directory = || world.access.shared.directory();
    soon(async {
        while !directory()
            .user("gone")
            .is_some_and(|user| user.is_disabled)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let before = world.access.shared.logins.known();
    for _ in 0..3 {
        assert!(is_unauthenticated(
            world.try_login("gone", "password of gone").await
        ));
    }
    assert_eq!(world.access.shared.logins.known(), before + 1);
}
