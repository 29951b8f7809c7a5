use super::*;
use gesta_core::{
    ContentType, EventId, EventType, LifecycleChange, LogId, Position, RecordedEvent,
    StreamMetadata, Tags, Timestamp,
};

fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

fn rights(json: &str) -> Arc<StreamRights> {
    Arc::new(StreamRights {
        acl: Acl::of_metadata(json.as_bytes()).expect("readable"),
        ..StreamRights::default()
    })
}

struct Who {
    groups: Vec<Box<str>>,
    scopes: Scopes,
    prefixes: Vec<Box<str>>,
}

fn user(groups: &[&str]) -> Who {
    Who {
        groups: groups.iter().map(|group| (*group).into()).collect(),
        scopes: Scopes::ALL,
        prefixes: vec![],
    }
}

impl Who {
    fn scopes(mut self, scopes: &[Scope]) -> Self {
        self.scopes = scopes.iter().copied().collect();
        self
    }

    fn prefix(mut self, prefix: &str) -> Self {
        self.prefixes.push(prefix.into());
        self
    }

    fn may(&self, operation: Operation<'_>, json: &str) -> bool {
        let standing = Standing {
            user: "u",
            groups: &self.groups,
            scopes: self.scopes,
            prefixes: &self.prefixes,
        };
        decide(standing, operation, &Defaults::default(), |_| {
            Some(rights(json))
        }) == RightsVerdict::Yes
    }

    /// The letters of what may be done with a stream. The metadata are a stream, too, with the same rights.
    fn letters(&self, subject: &str, json: &str) -> String {
        let (of, about) = (stream(subject), stream(subject).metadata_stream());
        let calls = [
            ('r', Operation::Read(&of), None),
            ('a', Operation::Append(&of), None),
            ('d', Operation::Delete(&of), None),
            (
                'm',
                Operation::ReadMetadata(&of),
                Some(Operation::Read(&about)),
            ),
            (
                'w',
                Operation::WriteMetadata(&of),
                Some(Operation::Append(&about)),
            ),
        ];
        let mut letters = String::new();
        for (letter, call, same) in calls {
            let may = self.may(call, json);
            letters.extend(may.then_some(letter));
            if let Some(same) = same {
                assert_eq!(self.may(same, json), may, "{same:?} {json}");
            }
        }
        letters
    }
}

/// What each kind of caller may do with each kind of stream: r(ead), a(ppend), d(elete), m(etadata read), w(rite them).
#[test]
fn callers_and_streams() {
    use Scope::{Admin, Append, Read};
    let callers = [
        ("user", user(&[])),
        ("group", user(&["team"])),
        ("ops", user(&["$ops"])),
        ("admin", user(&["$admins"])),
        ("read", user(&["$admins"]).scopes(&[Read])),
        ("append", user(&["$admins"]).scopes(&[Append])),
        ("both", user(&["$admins"]).scopes(&[Read, Append])),
        ("all", user(&["$admins"]).scopes(&[Admin])),
        ("prefix", user(&["$admins"]).prefix("cart-")),
        ("user's", user(&[]).scopes(&[Admin]).prefix("cart-")),
        ("none", user(&["$admins"]).scopes(&[])),
    ];
    let acl = r#"{"$acl":{"$r":["team"],"$w":"u","$d":[],"$mr":["team","u"],"$mw":"$admins"}}"#;
    let streams = [
        ("cart-1", "{}"),
        ("cart-1", r#"{"$acl":{"$r":["team"]}}"#),
        ("cart-1", acl),
        ("other", "{}"),
        ("$stats-cart", "{}"),
        ("$stats-cart", acl),
        (
            "$user-u",
            r#"{"$acl":{"$r":"$all","$w":"$all","$d":"$all","$mr":"$all","$mw":"$all"}}"#,
        ),
        ("$settings", "{}"),
    ];
    // One column for each stream.
    let expected = [
        ("user", ["radmw", "a", "am", "radmw", "", "am", "", ""]),
        (
            "group",
            ["radmw", "radmw", "ram", "radmw", "", "ram", "", ""],
        ),
        ("ops", ["radmw", "a", "am", "radmw", "", "am", "", ""]),
        (
            "admin",
            [
                "radmw", "radmw", "radmw", "radmw", "radmw", "radmw", "ram", "ram",
            ],
        ),
        ("read", ["rm", "rm", "rm", "rm", "rm", "rm", "", ""]),
        ("append", ["a", "a", "a", "a", "a", "a", "", ""]),
        ("both", ["ram", "ram", "ram", "ram", "ram", "ram", "", ""]),
        (
            "all",
            [
                "radmw", "radmw", "radmw", "radmw", "radmw", "radmw", "ram", "ram",
            ],
        ),
        ("prefix", ["radmw", "radmw", "radmw", "", "", "", "", ""]),
        ("user's", ["radmw", "a", "am", "", "", "", "", ""]),
        ("none", ["", "", "", "", "", "", "", ""]),
    ];
    for ((name, who), (expected_name, expected)) in callers.iter().zip(expected) {
        assert_eq!(*name, expected_name);
        for ((subject, json), expected) in streams.iter().zip(expected) {
            assert_eq!(
                who.letters(subject, json),
                expected,
                "{name} {subject} {json}"
            );
        }
    }
}

/// `$r` alone kept nobody from reading: who was kept from it gave themselves the right, or deleted the stream and with
/// it its rights.
#[test]
fn rights_of_which_nothing_is_said_go_with_those_that_are_named() {
    let cases = [
        (r#"{"$r":["team"]}"#, "a", "radmw"),
        (r#"{"$r":"$all","$w":["team"]}"#, "rm", "radmw"),
        (r#"{"$w":[]}"#, "rm", "rm"),
        (r#"{"$r":[]}"#, "a", "a"),
        (r#"{"$mw":["team"]}"#, "ram", "radmw"),
        (r#"{"$mr":["team"]}"#, "rad", "radmw"),
        (r#"{"$d":["team"]}"#, "ram", "radmw"),
        (r#"{"$r":["team"],"$mr":"$all"}"#, "am", "radmw"),
        (r#"{"$r":["team"],"$d":"$all","$mw":"u"}"#, "adw", "radmw"),
        (r#"{"$r":["u"],"$w":["team"]}"#, "rm", "radmw"),
        ("{}", "radmw", "radmw"),
    ];
    let other = Who {
        groups: vec!["team".into()],
        ..user(&[])
    };
    for (acl, of_u, of_team) in cases {
        let json = format!("{{\"$acl\":{acl}}}");
        assert_eq!(user(&[]).letters("s", &json), of_u, "{acl}");
        // The user of the group is u too.
        let of_both = other.letters("s", &json);
        let has = |letter| of_u.contains(letter) || of_team.contains(letter);
        assert!(of_both.chars().all(has), "{acl} {of_both}");
        if !acl.contains("\"u\"") {
            assert_eq!(of_both, of_team, "{acl}");
        }
        // What `$settings` say of all streams counts in the same way.
        let settings = format!("{{\"$userStreamAcl\":{acl}}}");
        let defaults = Defaults::read(settings.as_bytes()).expect("readable");
        let who = user(&[]);
        let standing = Standing {
            user: "u",
            groups: &who.groups,
            scopes: who.scopes,
            prefixes: &who.prefixes,
        };
        let name = stream("s");
        for (letter, operation) in [
            ('r', Operation::Read(&name)),
            ('a', Operation::Append(&name)),
            ('d', Operation::Delete(&name)),
            ('m', Operation::ReadMetadata(&name)),
            ('w', Operation::WriteMetadata(&name)),
        ] {
            let verdict = decide(standing, operation, &defaults, |_| Some(rights("{}")));
            let expected = of_u.contains(letter);
            assert_eq!(verdict == RightsVerdict::Yes, expected, "{letter} {acl}");
        }
        // A stream cannot take back by saying less what `$settings` say, nor the other way round.
        let own = rights(r#"{"$acl":{"$r":["u"]}}"#);
        let closed = Defaults::read(br#"{"$userStreamAcl":{"$w":["team"]}}"#).expect("readable");
        let verdict = decide(standing, Operation::WriteMetadata(&name), &closed, |_| {
            Some(Arc::clone(&own))
        });
        assert_eq!(verdict, RightsVerdict::No);
    }
}

/// Who might read other streams of the system by `$settings`, as the guide to virtual streams says, got the state of
/// entities and the parked events of streams that they might not read.
#[test]
fn streams_that_are_made_of_others_need_the_rights_of_those() {
    let open =
        r#"{"$systemStreamAcl":{"$r":"$all","$w":"$all","$d":"$all","$mr":"$all","$mw":"$all"}}"#;
    let defaults = Defaults::read(open.as_bytes()).expect("readable");
    let letters = |who: &Who, name: &str, of: &[(&str, &str)]| {
        let standing = Standing {
            user: "u",
            groups: &who.groups,
            scopes: who.scopes,
            prefixes: &who.prefixes,
        };
        let rights_of = |asked: &str| {
            let json = of.iter().find(|(name, _)| *name == asked);
            Some(rights(json.map_or("{}", |(_, json)| json)))
        };
        let name = stream(name);
        let calls = [
            ('r', Operation::Read(&name)),
            ('c', Operation::Consume(&name)),
            ('a', Operation::Append(&name)),
            ('d', Operation::Delete(&name)),
            ('m', Operation::ReadMetadata(&name)),
            ('w', Operation::WriteMetadata(&name)),
        ];
        let may = calls.into_iter().filter(|(_, call)| {
            decide(standing, *call, &defaults, rights_of) == RightsVerdict::Yes
        });
        may.map(|(letter, _)| letter).collect::<String>()
    };
    let hidden = ("pay-1", r#"{"$acl":{"$r":["team"]}}"#);
    let own = r#"{"$acl":{"$r":"u"}}"#;
    let team = user(&["team"]);
    for name in [
        "$snapshot-pay-1",
        "$persistentsubscription-pay-1::g-parked",
        "$persistentsubscription-pay-1::g-checkpoint",
        "$persistentsubscriptionconfig-pay-1::g",
    ] {
        // As with pay-1 itself, of which `$mr`, `$d` and `$mw` go with `$r`.
        assert_eq!(letters(&user(&[]), name, &[hidden]), "a", "{name}");
        assert_eq!(letters(&team, name, &[hidden]), "rcadmw", "{name}");
        assert_eq!(letters(&user(&[]), name, &[]), "rcadmw", "{name}");
        assert_eq!(letters(&user(&["$admins"]), name, &[hidden]), "rcadmw");
        // What the stream itself says does not take the place of the other rights, and is needed besides.
        assert_eq!(letters(&user(&[]), name, &[hidden, (name, own)]), "a");
        assert_eq!(letters(&team, name, &[hidden, (name, own)]), "rcadmw");
        let closed = (name, r#"{"$acl":{"$r":[]}}"#);
        assert_eq!(letters(&team, name, &[hidden, closed]), "a", "{name}");
    }
    let about = "$persistentsubscription-$$pay-1::g-parked";
    assert_eq!(letters(&user(&[]), about, &[hidden]), "", "{about}");
    let account = "$persistentsubscription-$user-u::g-parked";
    assert_eq!(letters(&user(&[]), account, &[(account, own)]), "");
    assert_eq!(letters(&user(&["$admins"]), account, &[]), "rcadmw");
    // As of the account itself, of which it holds something.
    for limited in [
        user(&["$admins"]).scopes(&[Scope::Read, Scope::Consume]),
        user(&["$admins"]).prefix("$persistentsubscription-"),
    ] {
        assert_eq!(letters(&limited, account, &[]), "", "{account}");
    }
    for name in [
        "$persistentsubscription-$all::g-parked",
        "$persistentsubscription-$ce-pay::g-parked",
        "$snapshot-$snapshot-pay-1",
        "$timers-pay",
        "$effect-mail",
        "$import-akka",
    ] {
        assert_eq!(letters(&team, name, &[]), "", "{name}");
        assert_eq!(letters(&user(&["$admins"]), name, &[]), "rcadmw", "{name}");
        // Their own metadata may open them.
        assert_eq!(letters(&user(&[]), name, &[(name, own)]), "rc", "{name}");
    }
    for name in ["$ce-pay", "$streams", "$mine"] {
        assert_eq!(letters(&user(&[]), name, &[hidden]), "rcadmw", "{name}");
    }
}

/// Goal: the state of an entity whose stream was deleted, and was closed until then, stays closed.
#[test]
fn what_is_left_of_a_deleted_stream_keeps_what_restricted_it() {
    let defaults = Defaults::read(br#"{"$systemStreamAcl":{"$r":"$all"}}"#).expect("readable");
    let deleted = Arc::new(StreamRights {
        deleted_before: Revision(3),
        was_restricted: true,
        ..StreamRights::default()
    });
    let rights_of = |name: &str| match name {
        "pay-1" => Some(Arc::clone(&deleted)),
        _ => Some(Arc::default()),
    };
    let name = stream("$snapshot-pay-1");
    for (groups, expected) in [
        (vec![], RightsVerdict::No),
        (vec!["$admins".into()], RightsVerdict::Yes),
    ] {
        let standing = Standing {
            user: "u",
            groups: &groups,
            scopes: Scopes::ALL,
            prefixes: &[],
        };
        let verdict = decide(standing, Operation::Read(&name), &defaults, rights_of);
        assert_eq!(verdict, expected);
        let unread = decide(standing, Operation::Read(&name), &defaults, |name| {
            (name != "pay-1").then(Arc::default)
        });
        if groups.is_empty() {
            assert_eq!(unread, RightsVerdict::AsksRights("pay-1"));
        }
    }
    // What was said of the stream after it had begun again was never said of the events that were deleted.
    let said = |json: &'static str, deleted_before| Lifecycle {
        metadata: StreamMetadata::parse(json).expect("valid"),
        deleted_before: Revision(deleted_before),
        tombstoned: false,
    };
    let team = r#"{"$acl":{"$r":"team"}}"#;
    for (before, after, may) in [
        ("{}", team, true),
        (team, "{}", false),
        (team, team, false),
        ("{}", "{}", true),
    ] {
        let events = [
            metadata_event(3, &said(after, 3), LifecycleChange::Metadata),
            metadata_event(2, &said("{}", 3), LifecycleChange::Metadata),
            metadata_event(1, &said("{}", 3), LifecycleChange::Deleted),
            metadata_event(0, &said(before, 0), LifecycleChange::Metadata),
        ];
        let groups = ["team".into()];
        let standing = Standing {
            user: "u",
            groups: &groups,
            scopes: Scopes::ALL,
            prefixes: &[],
        };
        let again = Arc::new(StreamRights::of(&events, true));
        let verdict = decide(standing, Operation::Read(&name), &defaults, |name| {
            Some(match name {
                "pay-1" => Arc::clone(&again),
                _ => Arc::default(),
            })
        });
        assert_eq!(verdict, RightsVerdict::from(may), "{before} {after}");
    }
}

/// A token that may only read took the events of a group from its consumers.
#[test]
fn who_consumes_needs_a_scope_that_reading_does_not_give() {
    use Scope::{Admin, Append, Consume, Read};
    let name = stream("s");
    let operation = Operation::Consume(&name);
    for (scopes, may) in [
        (&[Read][..], false),
        (&[Append], false),
        (&[Consume], true),
        (&[Read, Append], true),
        (&[Admin], true),
    ] {
        let who = user(&[]).scopes(scopes);
        assert_eq!(who.may(operation, "{}"), may, "{scopes:?}");
        let hidden = r#"{"$acl":{"$r":["team"]}}"#;
        assert!(!who.may(operation, hidden), "{scopes:?}");
    }
    assert!(
        !user(&[])
            .scopes(&[Consume])
            .may(Operation::Read(&name), "{}")
    );
    let prefix = user(&[]).scopes(&[Consume]).prefix("t");
    assert!(!prefix.may(operation, "{}"));
}

#[test]
fn what_is_about_the_whole_store() {
    use Scope::{Admin, Append, Read};
    let cases = [
        (user(&[]), [true, true, false, false]),
        (user(&["$ops"]), [true, true, true, false]),
        (user(&["$ops"]).scopes(&[Read]), [true, true, true, false]),
        (user(&["$admins"]), [true, true, true, true]),
        (
            user(&["$admins"]).scopes(&[Read, Append]),
            [true, true, true, false],
        ),
        (
            user(&["$admins"]).scopes(&[Append]),
            [false, true, false, false],
        ),
        (
            user(&["$admins"]).scopes(&[Admin]),
            [true, true, true, true],
        ),
        (user(&["$admins"]).prefix("a"), [true, true, false, false]),
    ];
    for (who, expected) in cases {
        let calls = [
            Operation::ReadMany,
            Operation::Info,
            Operation::Observe,
            Operation::Manage,
        ];
        let found = calls.map(|call| who.may(call, "{}"));
        assert_eq!(
            found, expected,
            "{:?} {:?} {:?}",
            who.groups, who.scopes, who.prefixes
        );
    }
}

/// Goal: a name that differs from one with rights in case, encoding or length is another name.
#[test]
fn prefixes_are_bytes() {
    let who = user(&["$admins"]).prefix("Café-");
    for (name, may) in [
        ("Café-1", true),
        ("Café-", true),
        ("Cafe\u{301}-1", false),
        ("café-1", false),
        ("Café", false),
    ] {
        assert_eq!(
            who.may(Operation::Append(&stream(name)), "{}"),
            may,
            "{name}"
        );
    }
    assert!(
        who.may(Operation::Append(&stream("$$Café-1")), "{}"),
        "the metadata of a stream that is covered"
    );
}

/// What happened: a token was told that "neither the scopes and prefixes of the token nor the rights of its user allow
/// it, or one of them does not". Goal: it is told which of them.
#[test]
fn a_token_is_told_what_stands_in_its_way() {
    let why = |who: &Who, operation| {
        let standing = Standing {
            user: "u",
            groups: &who.groups,
            scopes: who.scopes,
            prefixes: &who.prefixes,
        };
        why_a_token_may_not(standing, operation)
    };
    let stream = stream("order-1");
    let append = Operation::Append(&stream);
    let reads = user(&[]).scopes(&[Scope::Read]);
    assert_eq!(
        why(&reads, append),
        "the token does not have the scope append"
    );
    let carts = user(&[]).prefix("cart-");
    let only = "the token is only for streams whose names begin with \"cart-\"";
    assert_eq!(why(&carts, append), only);
    assert_eq!(why(&carts, Operation::Manage), only);
    let two = user(&[]).prefix("cart-").prefix("shop-");
    assert!(why(&two, append).ends_with("begin with one of its prefixes"));
    let covered = user(&[]).prefix("order-");
    assert_eq!(
        why(&covered, append),
        "the rights of the user of the token do not allow it"
    );
}

fn metadata_event(revision: u64, state: &Lifecycle, change: LifecycleChange) -> RecordedEvent {
    let event = state.to_event(change);
    RecordedEvent {
        stream: stream("$$s"),
        revision: Revision(revision),
        log: LogId(0),
        position: Position(revision + 1),
        id: EventId::random(),
        event_type: EventType::new("$metadata").expect("valid"),
        created: Timestamp(0),
        content_type: ContentType::Json,
        data: event.data,
        metadata: event.metadata,
        tags: Tags::NONE,
    }
}

/// Goal: a delete takes the rights of a stream away with its metadata, but not from the events that lie there still.
#[test]
fn events_of_a_deleted_stream_keep_what_restricted_them() {
    let restricted = Lifecycle {
        metadata: StreamMetadata::parse(r#"{"$acl":{"$r":"team"}}"#).expect("valid"),
        ..Lifecycle::default()
    };
    let deleted = Lifecycle {
        deleted_before: Revision(3),
        ..Lifecycle::default()
    };
    let plain = Lifecycle::default();
    let first = metadata_event(0, &restricted, LifecycleChange::Metadata);
    let second = metadata_event(1, &deleted, LifecycleChange::Deleted);
    let was = StreamRights::of(&[second.clone(), first], true);
    assert!(was.was_restricted && was.acl.is_none());
    let open = metadata_event(0, &plain, LifecycleChange::Metadata);
    let was = StreamRights::of(&[second.clone(), open.clone()], true);
    assert!(!was.was_restricted, "it never had rights of its own");
    let was = StreamRights::of(&[second, open], false);
    assert!(was.was_restricted, "nobody knows");
    let mut event = metadata_event(2, &plain, LifecycleChange::Metadata);
    event.stream = stream("s");
    let rights = StreamRights {
        deleted_before: Revision(3),
        was_restricted: true,
        ..StreamRights::default()
    };
    let groups: Vec<Box<str>> = vec!["$admins".into()];
    let of = |groups| Standing {
        user: "u",
        groups,
        scopes: Scopes::ALL,
        prefixes: &[],
    };
    assert!(!shows(of(&[]), &event, &rights) && shows(of(&groups), &event, &rights));
    event.revision = Revision(3);
    assert!(
        shows(of(&[]), &event, &rights),
        "written after the stream began again"
    );
    event.stream = stream("$$s");
    assert!(
        !shows(of(&[]), &event, &rights),
        "an old document of its metadata"
    );
}

#[test]
fn metadata_that_cannot_be_read_leave_a_stream_to_administrators() {
    let mut event = metadata_event(0, &Lifecycle::default(), LifecycleChange::Metadata);
    for odd in [
        &b"{"[..],
        br#"{"$acl":5}"#,
        br#"{"$acl":{"$r":"a"},"$acl":{}}"#,
    ] {
        event.data = bytes::Bytes::from_static(odd);
        let found = StreamRights::of(std::slice::from_ref(&event), true);
        assert_eq!(found, StreamRights::closed(), "{odd:?}");
    }
}
