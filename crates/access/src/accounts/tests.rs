use super::*;
use gesta_core::{DeleteKind, DeleteStream, EventStoreExt, Revision};
use gesta_memory::MemoryStore;

fn user(name: &str, groups: &[&str], first: FirstUser) -> AddUser {
    AddUser {
        name: name.into(),
        password: "a long password".into(),
        groups: groups.iter().map(ToString::to_string).collect(),
        full_name: String::new(),
        first,
    }
}

fn admin(first: FirstUser) -> AddUser {
    user("root", &["$admins"], first)
}

async fn set(store: &MemoryStore, name: &str, json: &str) {
    let request = SetStreamMetadata {
        stream: StreamId::new(name).expect("valid"),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(json.to_owned()).expect("valid"),
    };
    store.set_stream_metadata(request).await.expect("set");
}

/// Goal: rights that somebody set while anybody could do not count unseen.
#[tokio::test]
async fn rights_that_are_there_are_named() {
    let store = Arc::new(MemoryStore::new());
    let accounts = Accounts::of(Arc::clone(&store) as Arc<dyn EventStore>);
    set(&store, "plain", r#"{"$maxCount":5}"#).await;
    set(&store, "gone", r#"{"$acl":{"$r":"mallory"}}"#).await;
    set(&store, "gone", "{}").await;
    set(&store, "plan", r#"{"$acl":{"$w":"mallory"}}"#).await;
    let error = accounts
        .add_user(admin(FirstUser::RefuseRights))
        .await
        .expect_err("refused");
    let told = error.to_string();
    assert!(
        told.contains("\"plan\"") && !told.contains("gone") && !told.contains("plain"),
        "{told}"
    );
    assert!(
        !follow::read(&*store).await.expect("read").is_on(),
        "nothing was done"
    );
    accounts
        .add_user(admin(FirstUser::KeepRights))
        .await
        .expect("added");
    assert_eq!(accounts.users().await.expect("listed").len(), 1);
}

/// Accounts with an administrator and the user `a`.
async fn with_user() -> Accounts {
    let accounts = Accounts::of(Arc::new(MemoryStore::new()));
    let password = || "a long password".into();
    let made = accounts.first_admin(password()).await;
    assert!(made.expect("made"));
    let user = user("a", &["team"], FirstUser::RefuseRights);
    accounts.add_user(user).await.expect("added");
    accounts
}

#[tokio::test]
async fn the_first_user_is_an_administrator() {
    let accounts = Accounts::of(Arc::new(MemoryStore::new()));
    let refused = accounts
        .add_user(user("a", &[], FirstUser::RefuseRights))
        .await;
    assert!(
        refused
            .expect_err("no administrator")
            .to_string()
            .contains("$admins")
    );
    assert!(
        accounts
            .first_admin("a long password".into())
            .await
            .expect("made")
    );
    assert!(
        !accounts
            .first_admin("a long password".into())
            .await
            .expect("there")
    );
}

#[tokio::test]
async fn users_that_break_a_rule_are_refused() {
    let accounts = with_user().await;
    for (wrong, why) in [
        (user("a", &[], FirstUser::RefuseRights), "exists already"),
        (
            user("team", &[], FirstUser::RefuseRights),
            "name of a group",
        ),
        (user("b", &["a"], FirstUser::RefuseRights), "name of a user"),
        (
            user("b", &["b"], FirstUser::RefuseRights),
            "name of a group",
        ),
        (user("b:c", &[], FirstUser::RefuseRights), "colons"),
        (user("b", &["$all"], FirstUser::RefuseRights), "$"),
        (
            AddUser {
                password: "short".into(),
                ..user("b", &[], FirstUser::RefuseRights)
            },
            "8",
        ),
    ] {
        let error = accounts.add_user(wrong).await.expect_err("refused");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn users_are_changed() {
    let accounts = with_user().await;
    accounts.disable("a").await.expect("disabled");
    accounts
        .set_groups("a", vec!["$ops".into()])
        .await
        .expect("changed");
    let shown = accounts.users().await.expect("listed");
    let a = ShownUser {
        user: "a".into(),
        groups: vec!["$ops".into()],
        full_name: String::new(),
        disabled: true,
        changed: shown[0].changed,
    };
    assert_eq!((shown.len(), &shown[0]), (2, &a));
    accounts.enable("a").await.expect("enabled");
    assert!(!accounts.users().await.expect("listed")[0].disabled);
    assert!(
        accounts
            .set_password("nobody", "a long password".into())
            .await
            .is_err()
    );
    assert!(accounts.set_password("a", "short".into()).await.is_err());
    assert!(accounts.revoke_token("x").await.is_err());
}

/// Goal: an account that is deleted is gone, with its tokens; another one of its name has nothing of it.
#[tokio::test]
async fn a_deleted_user_leaves_nothing_to_the_next_of_the_name() {
    let accounts = with_user().await;
    let token = |user: &str| NewToken {
        user: user.into(),
        label: String::new(),
        scopes: vec![Scope::Read],
        prefixes: Vec::new(),
        expires: None,
    };
    accounts.create_token(token("a")).await.expect("made");
    let full_name = || "Alice of the Shop".to_owned();
    let described = accounts.describe("a", vec!["shop".into()], full_name());
    described.await.expect("described");
    accounts.set_groups("a", Vec::new()).await.expect("changed");
    let shown = accounts.users().await.expect("listed").remove(0);
    assert_eq!((shown.user.as_str(), shown.full_name), ("a", full_name()));
    assert!(shown.changed > Timestamp(0));
    let odd = accounts.describe("a", Vec::new(), "a\nb".to_owned()).await;
    assert!(odd.expect_err("refused").to_string().contains("control"));

    accounts.delete_user("a").await.expect("deleted");
    assert_eq!(accounts.users().await.expect("listed").len(), 1);
    assert!(!accounts.tokens().await.expect("listed")[0].active);
    for gone in [accounts.delete_user("a").await, accounts.enable("a").await] {
        assert!(gone.expect_err("gone").to_string().contains("\"a\""));
    }
    assert!(accounts.create_token(token("a")).await.is_err());
    let again = user("a", &[], FirstUser::RefuseRights);
    accounts.add_user(again).await.expect("added");
    let directory = accounts.read().await.expect("read");
    assert!(directory.damaged().is_empty(), "{directory:?}");
    let shown = accounts.users().await.expect("listed").remove(0);
    assert_eq!((shown.groups.len(), shown.full_name.as_str()), (0, ""));
    assert!(!accounts.tokens().await.expect("listed")[0].active);
}

/// Goal: what was planted in the stream of a user or of the marker neither counts nor keeps the account from beginning.
#[tokio::test]
async fn planted_streams_do_not_count() {
    let store = Arc::new(MemoryStore::new());
    for name in ["$user-root", "$settings"] {
        let odd = EventData::json(EventType::new("odd").expect("valid"), "{}");
        store
            .append_to(name, ExpectedRevision::Any, vec![odd])
            .await
            .expect("planted");
    }
    set(&store, "$user-root", r#"{"$tb": 1000}"#).await;
    set(&store, "$access", r#"{"$maxAge": 1}"#).await;
    let accounts = Accounts::of(Arc::clone(&store) as Arc<dyn EventStore>);
    accounts
        .add_user(admin(FirstUser::RefuseRights))
        .await
        .expect("added");
    let directory = follow::read(&*store).await.expect("read");
    assert!(
        directory.user("root").is_some() && directory.damaged().is_empty(),
        "{directory:?}"
    );
}

/// What happened: programs that were written for EventStoreDB waited for ever for a user in `$users`. Goal: every user
/// is listed there once, also those that were there before it was written, and a name stays when its account ends.
#[tokio::test]
async fn users_are_listed_in_a_stream() {
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let accounts = Accounts::of(Arc::clone(&store));
    accounts.list_users().await.expect("nobody to list");
    let listed = async || {
        let events = store.read_whole_stream("$users").await.expect("readable");
        let shown = events.iter().map(|event| {
            let data = String::from_utf8(event.data.to_vec()).expect("text");
            format!("{} {data}", event.event_type)
        });
        shown.collect::<Vec<_>>()
    };
    accounts
        .add_user(admin(FirstUser::RefuseRights))
        .await
        .expect("added");
    let alice = || user("alice", &[], FirstUser::RefuseRights);
    accounts.add_user(alice()).await.expect("added");
    assert_eq!(listed().await, [r#"$User "root""#, r#"$User "alice""#]);
    // As if a version had made them that did not list users.
    let delete = DeleteStream {
        stream: StreamId::new("$users").expect("valid"),
        expected: ExpectedRevision::Any,
        kind: DeleteKind::Soft,
    };
    store.delete_stream(delete).await.expect("deleted");
    accounts.delete_user("alice").await.expect("deleted");
    accounts.add_user(alice()).await.expect("added");
    accounts.list_users().await.expect("listed");
    let mut both = listed().await;
    both.sort();
    assert_eq!(both, [r#"$User "alice""#, r#"$User "root""#]);
}

/// Goal: of two first users at once, both are there or one is told; the store has one marker.
#[tokio::test]
async fn two_first_users_race() {
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let add = |name: &'static str| {
        let accounts = Accounts::of(Arc::clone(&store));
        async move {
            accounts
                .add_user(user(name, &["$admins"], FirstUser::RefuseRights))
                .await
        }
    };
    let (a, b) = futures::join!(add("a"), add("b"));
    a.expect("added");
    b.expect("added");
    assert_eq!(Accounts::of(store).users().await.expect("listed").len(), 2);
}

/// What happened: the users of a store that had more of them than an append may have events were never listed. Goal:
/// they are listed in several appends, each once.
#[tokio::test]
async fn more_users_than_one_append_takes_are_listed() {
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let accounts = Accounts::of(Arc::clone(&store));
    let count = 2 * limits::APPEND_EVENTS_MAX + 5;
    let names: BTreeSet<String> = (0..count).map(|n| format!("user-{n:06}")).collect();
    let known: BTreeSet<String> = names.iter().take(3).cloned().collect();
    accounts.list(known).await.expect("listed");
    for _ in 0..2 {
        accounts.list(names.clone()).await.expect("listed");
        let mut left = names.clone();
        let expected = accounts
            .leave_out_listed(&StreamId::new(USERS).expect("valid"), &mut left)
            .await
            .expect("readable");
        let last = Revision(u64::try_from(count).expect("small") - 1);
        assert_eq!((left.len(), expected), (0, ExpectedRevision::Exact(last)));
    }
}
