//! Tests who may call what: every call of the API with every kind of caller, and what takes rights away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gesta_access::{Accounts, Config as AccessConfig, Mode, NewToken, Scope};
use gesta_core::{Clock, EventStore, SystemClock};
use gesta_kit::support::OffsetClock;
use gesta_memory::MemoryStore;
use gesta_server::Config;
use tokio::task::JoinSet;

use crate::client::{Server, config, soon};
use crate::logged::Logged;

mod expiry;
mod kept;
mod names;
mod rows;
pub(crate) mod world;

use self::rows::{EVENT, OF_TEAM, rows};
use self::world::{World, access_config, add, basic};

/// Goal: done-when 7 of the security plan, for HTTP: each kind of caller, each call.
#[tokio::test]
async fn every_call_with_every_caller() {
    let world = World::new().await;
    let read = world.token("user", &[Scope::Read], &[]).await;
    let append = world.token("user", &[Scope::Append], &[]).await;
    let admin = world.token("root", &[Scope::Admin], &[]).await;
    let narrow = world
        .token(
            "root",
            &[Scope::Read, Scope::Append],
            &["open-", "several", "other"],
        )
        .await;
    let callers = [
        ("anonymous", String::new()),
        (
            "wrong",
            format!("Basic {}", STANDARD.encode("root:password of user")),
        ),
        ("user", basic("user")),
        ("in the group", basic("mate")),
        ("ops", basic("ops")),
        ("admin", basic("root")),
        ("token read", read),
        ("token append", append),
        ("token admin", admin),
        ("token of some streams", narrow),
    ];
    for n in 0..callers.len() {
        world.seed(&format!("open-{n}")).await;
    }
    for name in ["team", "$x"] {
        world.seed(name).await;
    }
    world.set_metadata("team", OF_TEAM).await;
    world.until("/streams/team", &basic("user"), 403).await;
    for source in ["open-1", "team", "$all"] {
        world.group(source, "g").await;
    }
    for (method, target, body, expected) in rows() {
        for (n, ((name, authorization), expected)) in callers.iter().zip(expected).enumerate() {
            let target = target.replace("{n}", &n.to_string());
            let status = world.status(method, &target, authorization, body).await;
            assert_eq!(status, expected, "{name}: {method} {target}");
        }
    }
    soon(world.server.handle.shutdown()).await;
}

/// Goal: who is refused learns how to say who they are, once, and never what there is.
#[tokio::test]
async fn refusals_say_how_to_prove_who_one_is() {
    let world = World::new().await;
    let answer = world.server.get("/streams/x").await;
    assert_eq!(
        (answer.status, answer.problem().0.as_str()),
        (401, "unauthenticated")
    );
    let schemes: Vec<_> = answer
        .head
        .headers()
        .get_all("www-authenticate")
        .iter()
        .collect();
    assert_eq!(schemes.len(), 2, "{schemes:?}");
    for value in [
        "Digest x",
        "Basic",
        "Basic !",
        "Bearer",
        "bearer gesta_x_y",
        "Negotiate",
        "x",
    ] {
        assert_eq!(
            world.status("GET", "/info", value, "").await,
            401,
            "{value}"
        );
    }
    let twice = format!("{}\r\nAuthorization: {}", basic("root"), basic("root"));
    assert_eq!(world.status("GET", "/info", &twice, "").await, 401);
    let answer = world
        .server
        .send(
            "GET",
            "/streams/$x",
            &[("authorization", &basic("user"))],
            "",
        )
        .await;
    assert_eq!(
        (answer.status, answer.problem().0.as_str()),
        (403, "forbidden")
    );
    assert_eq!(answer.header("www-authenticate"), "");
}

/// Goal: a body that nobody may send is not read.
#[tokio::test]
async fn bodies_of_the_anonymous_are_not_waited_for() {
    let world = World::new().await;
    for target in ["/streams/a", "/append"] {
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50000000\r\n\r\n"
        );
        let mut raw = world.server.raw(&head).await;
        raw.until("HTTP/1.1 401").await;
    }
}

/// Goal: names that differ in case, encoding or length from those of a token's streams get no further.
#[tokio::test]
async fn a_token_reaches_its_streams_by_their_bytes() {
    let world = World::new().await;
    let token = world.token("user", &[Scope::Append], &["cart-"]).await;
    for (target, status) in [
        ("cart-1", 201),
        ("cart%2D1", 201),
        ("%63art-1", 201),
        ("cart-", 201),
        ("Cart-1", 403),
        ("cart", 403),
        ("ca%72t", 403),
        ("cart%E2%80%901", 403),
        ("%24%24cart-1", 403),
        ("$user-cart-", 403),
        ("cart%252D1", 403),
    ] {
        let found = world
            .status("POST", &format!("/streams/{target}"), &token, EVENT)
            .await;
        assert_eq!(found, status, "{target}");
    }
}

/// Goal: what was asked for with rights that are gone ends soon, also if nothing happens in its streams.
#[tokio::test]
async fn running_subscriptions_end_with_their_rights() {
    let world = World::new().await;
    world.seed("plan").await;
    let mut streams = Vec::new();
    let token = world.token("mate", &[Scope::Read], &[]).await;
    for authorization in [basic("mate"), token] {
        for target in ["/streams/plan/subscribe", "/all/subscribe"] {
            let mut raw = world.say("GET", target, &authorization, "").await;
            raw.until("event: caught_up").await;
            streams.push(raw);
        }
    }
    world.accounts.disable("mate").await.expect("disabled");
    for raw in streams {
        let text = soon(raw.rest()).await;
        assert!(text.contains("urn:gesta:problem:unauthenticated"), "{text}");
    }
}

/// Goal: tokens end when they expire, and not only for new calls.
#[tokio::test]
async fn tokens_expire() {
    let world = World::new().await;
    let expires = SystemClock.now().0 + 3_600_000_000;
    let token = NewToken {
        user: "user".into(),
        label: String::new(),
        scopes: vec![Scope::Read],
        prefixes: vec![],
        expires: Some(gesta_core::Timestamp(expires)),
    };
    let text = world.accounts.create_token(token).await.expect("made");
    let header = format!("Bearer {text}");
    let clock = OffsetClock::default();
    clock.set(3_601_000_000);
    let late = AccessConfig {
        clock: Arc::new(clock),
        ..access_config()
    };
    let late = World::over(
        Arc::clone(&world.store),
        world.accounts.clone(),
        config(),
        late,
    )
    .await;
    let early = World::over(
        Arc::clone(&world.store),
        world.accounts.clone(),
        config(),
        access_config(),
    )
    .await;
    assert_eq!(early.status("GET", "/info", &header, "").await, 200);
    assert_eq!(late.status("GET", "/info", &header, "").await, 401);
}

/// Goal: a store without users is as open as it was, but on loopback addresses only; the streams of accounts are not.
#[tokio::test]
async fn without_users_the_server_is_open() {
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let accounts = Accounts::of(Arc::clone(&store));
    let world = World::over(Arc::clone(&store), accounts, config(), access_config()).await;
    for (method, target, body, status) in [
        ("POST", "/streams/a", EVENT, 201),
        ("GET", "/all", "", 200),
        ("GET", "/metrics", "", 200),
        ("GET", "/info", "", 200),
        ("POST", "/streams/$user-root", EVENT, 403),
        ("POST", "/streams/%24settings", EVENT, 403),
        ("DELETE", "/streams/$access", "", 403),
        ("PUT", "/streams/$user-root/metadata", "{}", 403),
    ] {
        assert_eq!(
            world.status(method, target, "Bearer whatever", body).await,
            status,
            "{target}"
        );
    }
    add(&world.accounts, "root", &["$admins"]).await;
    soon(async {
        while world.status("GET", "/all", "", "").await != 401 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(world.access.is_on());
}

/// Goal: other addresses than loopback need TLS and users, or the word of who starts the server.
#[tokio::test]
async fn addresses_of_other_machines_need_tls_and_users() {
    let far = Config {
        listen: ([0, 0, 0, 0], 0).into(),
        ..config()
    };
    let error = gesta_server::bind(Config {
        requires_access: true,
        ..far.clone()
    })
    .await
    .expect_err("no TLS");
    assert!(error.to_string().contains("TLS"), "{error}");
    assert!(gesta_server::bind(far).await.is_err());
    // Whoever forgets the accounts serves nothing.
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let near = Config {
        requires_access: true,
        ..config()
    };
    let server = Server::with(near, store).await;
    assert_eq!(server.get("/all").await.status, 503);
    assert_eq!(server.get("/health/live").await.status, 200);
    let forced = AccessConfig {
        mode: Mode::On,
        ..access_config()
    };
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let world = World::over(Arc::clone(&store), Accounts::of(store), config(), forced).await;
    assert_eq!(world.status("GET", "/all", "", "").await, 401);
}

/// Goal: refused and administrative calls are in the log, names cannot make lines, and secrets are nowhere.
#[tokio::test]
async fn the_log_tells_what_was_refused_and_no_secret() {
    let (logged, _guard) = Logged::begin();
    let world = World::new().await;
    let token = world.token("user", &[Scope::Read], &[]).await;
    // `Bearer gesta_ID_SECRET`; the secret itself may hold underscores.
    let secret = token.splitn(3, '_').nth(2).expect("a secret").to_owned();
    assert!(secret.len() > 30, "{} characters", secret.len());
    world
        .status("POST", "/streams/a%E2%80%A8b", &token, EVENT)
        .await;
    world
        .status(
            "GET",
            "/info",
            &format!("Basic {}", STANDARD.encode("root:hunter2hunter2")),
            "",
        )
        .await;
    world
        .status("GET", "/info", &format!("Bearer {}x", &token[7..]), "")
        .await;
    world
        .status("PUT", "/streams/a/metadata", &basic("root"), "{}")
        .await;
    let made = world
        .status("PUT", "/streams/a/groups/readers", &basic("root"), "{}")
        .await;
    assert_eq!(made, 201);
    let refused = logged.with("gesta::audit");
    assert!(
        refused
            .iter()
            .any(|line| line.contains(r#"who="root""#) && line.contains("prove"))
    );
    let text = refused.join("\n");
    assert!(
        text.contains("refused") && text.contains("administrative"),
        "{text}"
    );
    assert!(text.contains(r#"what="a::readers""#), "{text}");
    assert!(
        text.contains(r"\u{2028}") && !text.contains('\u{2028}'),
        "{text}"
    );
    let all = logged.with("").join("\n");
    for secret in [
        secret.as_str(),
        "hunter2",
        "password of root",
        &STANDARD.encode("root:hunter2hunter2"),
    ] {
        assert!(!all.contains(secret), "{secret}");
    }
}

/// A user who was allowed nothing of it could delete streams that do not exist, a hundred a second, and of what
/// administrators did meanwhile nothing stood in the log. Lines told what was tried, not what became of it.
#[tokio::test]
async fn nobody_drowns_the_audit_lines_of_administrators() {
    let (logged, _guard) = Logged::begin();
    let world = World::new().await;
    for n in 0..300 {
        let target = format!("/streams/none-{n}");
        assert_eq!(
            world.status("DELETE", &target, &basic("user"), "").await,
            404
        );
        let refused = world.status("GET", "/metrics", &basic("user"), "").await;
        assert_eq!(refused, 403);
    }
    let group = "/streams/a/groups/readers";
    assert_eq!(world.status("PUT", group, &basic("root"), "{}").await, 201);
    assert_eq!(world.status("PUT", group, &basic("root"), "{}").await, 409);
    assert_eq!(
        world
            .status("DELETE", "/streams/b", &basic("root"), "")
            .await,
        404
    );
    assert_eq!(
        world
            .status("DELETE", "/streams/c", &basic("mate"), "")
            .await,
        404
    );
    let lines = logged.with("gesta::audit");
    let has = |parts: &[&str]| {
        let all = |line: &&String| parts.iter().all(|part| line.contains(part));
        lines.iter().filter(all).count()
    };
    let made = [r#"who="root""#, "administrative", r#"what="a::readers""#];
    assert_eq!(has(&made), 2, "{:#?}", lines.last());
    assert_eq!(has(&[&made[..], &[r#"outcome="done""#]].concat()), 1);
    assert_eq!(has(&[&made[..], &["failed"]].concat()), 1);
    let deleted = [
        r#"who="root""#,
        "administrative",
        r#"what="b""#,
        "not found",
    ];
    assert_eq!(has(&deleted), 1);
    assert_eq!(
        has(&[r#"who="mate""#, "change", r#"what="c""#, "failed"]),
        1
    );
    let of_user = has(&[r#"who="user""#]);
    assert!((200..600).contains(&of_user), "{of_user}");
    assert_eq!(has(&["login", r#"who="root""#, "password"]), 1);
}

/// What happened: lines about groups and calls of operators had no bound, so that an operator, or a program with the
/// password of one, could fill the disk. Goal: they have the bound of every caller, the metrics tell how many lines
/// were left out, and no line of an administrator is.
#[tokio::test]
async fn operators_do_not_fill_the_audit_log() {
    let (logged, _guard) = Logged::begin();
    let world = World::new().await;
    let group = "/streams/a/groups/readers";
    let mut made = world.status("PUT", group, &basic("root"), "{}").await;
    for _ in 0..600 {
        assert!([201, 409].contains(&made), "{made}");
        made = world.status("PUT", group, &basic("ops"), "{}").await;
        let of_root = world.status("PUT", group, &basic("root"), "{}").await;
        assert_eq!(of_root, 409);
    }
    let lines = logged.with("administrative");
    let of = |who: &str| {
        let who = format!("who=\"{who}\"");
        lines.iter().filter(|line| line.contains(&who)).count()
    };
    assert_eq!(of("root"), 601);
    // A burst, and what comes in the time that the calls take.
    let of_ops = of("ops");
    assert!((199..600).contains(&of_ops), "{of_ops}");
    let metrics = world
        .server
        .send("GET", "/metrics", &[("authorization", &basic("root"))], "")
        .await;
    let line = metrics
        .body
        .lines()
        .find(|line| line.starts_with("gesta_audit_lines_left_out_total "));
    let left_out: usize = line.expect("a metric")[33..]
        .trim()
        .parse()
        .expect("a number");
    assert_eq!(left_out, 600 - of_ops);
}

/// Goal: a group tells the names of its consumers to those who manage groups, and nobody else.
#[tokio::test]
async fn names_of_consumers_are_told_to_those_who_manage_groups() {
    let world = World::new().await;
    world.group("a", "g").await;
    let join = gesta_groups::JoinGroup {
        buffer: 1,
        identity: gesta_groups::Identity {
            name: "billing-7".into(),
            address: "10.0.0.7".into(),
            user: "mate".into(),
        },
        patience: Duration::ZERO,
    };
    let group = "a::g".parse().expect("valid");
    let groups = world.server.handle.groups();
    let _consumer = groups.join(&group, join).await.expect("joined");
    for (who, name) in [("user", ""), ("ops", "billing-7"), ("root", "billing-7")] {
        let told = world
            .server
            .send(
                "GET",
                "/streams/a/groups/g",
                &[("authorization", &basic(who))],
                "",
            )
            .await;
        let consumer = &told.json()["running"]["consumers"][0];
        assert_eq!(consumer["name"], name, "{who}");
        // Nor its number, with which one could answer for it.
        assert_eq!(consumer["consumer"].is_string(), !name.is_empty(), "{who}");
    }
}

/// What happened: whoever knew the number of a consumer, and may consume from the group, could answer for what it got.
#[tokio::test]
async fn nobody_answers_for_the_consumer_of_another_user() {
    let world = World::new().await;
    world.seed("a").await;
    world.group("a", "g").await;
    let join = gesta_groups::JoinGroup {
        buffer: 1,
        identity: gesta_groups::Identity {
            user: "mate".into(),
            ..gesta_groups::Identity::default()
        },
        patience: Duration::ZERO,
    };
    let group = "a::g".parse().expect("valid");
    let groups = world.server.handle.groups();
    let consumer = groups.join(&group, join).await.expect("joined");
    for (how, action) in [("ack", ""), ("nack", r#","action":"skip""#)] {
        let target = format!("/streams/a/groups/g/{how}");
        let body = format!(
            r#"{{"consumer":"{}","deliveries":[1]{action}}}"#,
            consumer.id()
        );
        for (who, status) in [("user", 404), ("root", 404), ("mate", 200)] {
            let found = world.status("POST", &target, &basic(who), &body).await;
            assert_eq!(found, status, "{who} {how}");
        }
    }
}

/// Goal: wrong passwords, as many as come, keep nobody with a token or a known password from being answered.
#[tokio::test]
async fn a_flood_of_wrong_passwords_starves_nobody() {
    let world = Arc::new(World::new().await);
    let token = world.token("user", &[Scope::Read], &[]).await;
    assert_eq!(world.status("GET", "/info", &basic("user"), "").await, 200);
    let refused = Arc::new(AtomicUsize::new(0));
    // It ends with the test.
    let mut flood = JoinSet::new();
    for n in 0..60 {
        let (world, refused) = (Arc::clone(&world), Arc::clone(&refused));
        flood.spawn(async move {
            for m in 0.. {
                let wrong = format!("Basic {}", STANDARD.encode(format!("root:wrong {n} {m}")));
                let status = world.status("GET", "/info", &wrong, "").await;
                assert!(status == 401 || status == 503, "{status}");
                refused.fetch_add(usize::from(status == 503), Ordering::SeqCst);
            }
        });
    }
    let mut answered = 0;
    // What waits is bounded, and the others are answered meanwhile.
    soon(async {
        while answered < 20 || refused.load(Ordering::SeqCst) < 100 {
            assert_eq!(world.status("GET", "/info", &token, "").await, 200);
            assert_eq!(world.status("GET", "/info", &basic("user"), "").await, 200);
            answered += 1;
        }
    })
    .await;
    assert!(flood.try_join_next().is_none(), "each wrong one is refused");
}

/// Goal: a program that goes on with an old password costs one comparison, and does not make its address a guessing
/// one, whose next password would wait.
#[tokio::test]
async fn a_wrong_password_is_compared_once() {
    let world = World::new().await;
    let old = format!("Basic {}", STANDARD.encode("root:an old password"));
    for _ in 0..1_000 {
        assert_eq!(world.status("GET", "/info", &old, "").await, 401);
    }
    assert_eq!(world.status("GET", "/info", &basic("root"), "").await, 200);
}

/// Goal: pages of named sites may call, and read the answers, refusals too; pages of others may not.
#[tokio::test]
async fn pages_of_named_sites_may_call() {
    let named = Config {
        cors_origins: "https://app.example.org".into(),
        ..config()
    };
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let accounts = Accounts::of(Arc::clone(&store));
    add(&accounts, "root", &["$admins"]).await;
    let world = World::over(store, accounts, named, access_config()).await;
    let allowed = "access-control-allow-origin";
    for (origin, expected) in [
        ("https://app.example.org", "https://app.example.org"),
        ("https://app.example.org:444", ""),
        ("https://other.example.org", ""),
        ("null", ""),
    ] {
        for authorization in [basic("root"), "Basic x".into()] {
            let headers = [("origin", origin), ("authorization", &authorization)];
            let answer = world.server.send("GET", "/info", &headers, "").await;
            assert_eq!(answer.header(allowed), expected, "{origin}");
            assert_eq!(answer.header("vary"), "origin");
            assert_eq!(answer.header("access-control-allow-credentials"), "");
        }
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
        ];
        let answer = world
            .server
            .send("OPTIONS", "/streams/a", &headers, "")
            .await;
        let status = if expected.is_empty() { 405 } else { 204 };
        assert_eq!(
            (answer.status, answer.header(allowed)),
            (status, expected),
            "{origin}"
        );
    }
    let plain = World::new().await;
    let headers = [("origin", "https://app.example.org")];
    let answer = plain.server.send("GET", "/health/live", &headers, "").await;
    assert_eq!((answer.header(allowed), answer.header("vary")), ("", ""));
}
