//! The real binary on PostgreSQL: where passwords come from, what errors name, a database that comes later, and one
//! that goes away.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gesta_client::HttpStore;
use gesta_core::{
    Append, EventData, EventStore, EventType, ExpectedRevision, Filter, StreamId, Subscribe,
    SubscribeFrom, SubscribeTo, SubscriptionMessage,
};
use gesta_kit::depth;
use gesta_rig::{Auth, Child, Server as Postgres, ServerConfig, fresh_schema, shared};
use nix::sys::signal::Signal;
use support::{Limit, PATIENCE, Server, code, gesta, output_of, patient, run, stderr, stdout};

/// Nothing that anybody prints may hold this.
const PASSWORD: &str = "pass:wo\\rd-s3cr3t";

fn secured() -> Option<Postgres> {
    let config = ServerConfig {
        auth: Auth::Password(PASSWORD.to_owned()),
        ..ServerConfig::default()
    };
    Postgres::start_with(config).unwrap()
}

/// The binary with nothing of our environment that tells a password.
fn without_passwords(arguments: &[&str], home: &Path) -> Command {
    let mut command = gesta(arguments);
    command
        .env_remove("PGPASSWORD")
        .env_remove("PGPASSFILE")
        .env_remove("GESTA_STORE_FILE")
        .env("HOME", home);
    command
}

fn write_private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn keeps_the_secret(output: &Output) {
    let said = stdout(output) + &stderr(output);
    assert!(!said.contains("s3cr3t"), "{said}");
}

/// What a command tells, which is not the secret.
fn info(command: &mut Command) -> Output {
    let output = output_of(command);
    keeps_the_secret(&output);
    output
}

/// Goal: a password need not stand on the command line, wherever else it stands; it is never shown.
#[test]
fn passwords_come_from_the_environment_or_a_file_and_are_never_shown() {
    let Some(postgres) = secured() else { return };
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path();
    let address = postgres.addr();
    let url = patient(&format!("postgres://postgres@{address}/postgres"));
    let mut create = without_passwords(&["schema", "create", "--store", &url], home);
    let made = output_of(create.env("PGPASSWORD", PASSWORD));
    assert!(made.status.success(), "{made:?}");
    let plain = || without_passwords(&["info", "--store", &url], home);
    let missing = info(&mut plain());
    assert_eq!(code(&missing), 1, "{missing:?}");
    let said = stderr(&missing);
    assert!(
        said.contains(&address.to_string()) && said.contains("PGPASSFILE"),
        "{said}"
    );
    let wrong = info(plain().env("PGPASSWORD", "wr0ng"));
    assert_eq!(code(&wrong), 1, "{wrong:?}");
    assert!(stderr(&wrong).contains(&address.to_string()), "{wrong:?}");
    assert!(!stderr(&wrong).contains("wr0ng"), "{wrong:?}");
    assert!(info(plain().env("PGPASSWORD", PASSWORD)).status.success());

    let escaped = PASSWORD.replace('\\', "\\\\").replace(':', "\\:");
    let line = format!("*:{}:postgres:postgres:{escaped}\n", address.port());
    let file = home.join("passwords");
    write_private(&file, &line);
    assert!(info(plain().env("PGPASSFILE", &file)).status.success());
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = info(
        plain()
            .env("PGPASSFILE", &file)
            .env("GESTA_LOG_FILTER", "warn"),
    );
    assert_eq!(code(&open), 1);
    assert!(stderr(&open).contains("chmod 600"), "{open:?}");
    write_private(&home.join(".pgpass"), &line);
    assert!(info(&mut plain()).status.success());

    let encoded = PASSWORD.replace(':', "%3A").replace('\\', "%5C");
    let store = home.join("store-url");
    let with_password = patient(&format!("postgres://postgres:{encoded}@{address}/postgres"));
    write_private(&store, &format!("{with_password}\n"));
    let store = store.to_str().unwrap();
    let nowhere = home.join("nobody");
    let by_flag = info(&mut without_passwords(
        &["info", "--store-file", store],
        &nowhere,
    ));
    assert!(by_flag.status.success(), "{by_flag:?}");
    let by_variable = info(without_passwords(&["info"], &nowhere).env("GESTA_STORE_FILE", store));
    assert!(by_variable.status.success(), "{by_variable:?}");
}

/// What happened: a role without a right on the schema of a store, or of a read model, was told that a table does not
/// exist. Goal: the right is named, the role, and what grants it; and that is enough.
#[test]
fn rights_that_are_missing_are_named_with_what_grants_them() {
    let Some(postgres) = gesta_rig::shared() else {
        return;
    };
    let (schema, role) = (gesta_rig::fresh_schema(), gesta_rig::fresh_schema());
    let owner = patient(&format!("{}?schema={schema}", postgres.url()));
    let append = ["stream", "append", "a-1", "--type", "t", "--data", "{}"];
    let of = |url: &str, arguments: &[&str]| run(&[&["--store", url], arguments].concat());
    assert!(of(&owner, &["schema", "create"]).status.success());
    assert!(of(&owner, &append).status.success());
    postgres
        .execute(&format!("CREATE ROLE {role} LOGIN"))
        .unwrap();
    let database = postgres
        .query("SELECT current_database()")
        .unwrap()
        .unwrap();
    let limited = format!("postgres://{role}@{}/{database}", postgres.addr());
    let reader = patient(&format!("{limited}?schema={schema}"));
    for right in ["USAGE on the schema", "SELECT on its tables"] {
        let refused = of(&reader, &["verify"]);
        assert_eq!(code(&refused), 1, "{refused:?}");
        let text = stderr(&refused);
        assert!(!text.contains("does not exist"), "{text}");
        assert!(
            text.contains(&format!("the role {role} may not read")),
            "{text}"
        );
        assert!(text.contains(&format!("it lacks {right}")), "{text}");
        let grants = text
            .split_once("run GRANT ")
            .and_then(|(_, rest)| rest.split_once("; `"));
        let (usage, select) = grants
            .and_then(|(all, _)| all.split_once("; "))
            .expect(&text);
        let grant = match right.starts_with("USAGE") {
            true => format!("GRANT {usage}"),
            false => select.to_owned(),
        };
        postgres.execute(&grant).unwrap();
    }
    assert!(of(&reader, &["verify"]).status.success());
    let refused = of(&reader, &append);
    let text = stderr(&refused);
    assert!(
        !refused.status.success() && text.contains("permission denied for"),
        "{text}"
    );
    assert!(
        text.contains("`gesta schema print` ends with the GRANT"),
        "{text}"
    );
    // A new store, which this role may not make.
    let new = patient(&format!("{limited}?schema={}", gesta_rig::fresh_schema()));
    let refused = of(&new, &["schema", "create"]);
    let grant = format!("GRANT CREATE ON DATABASE \"{database}\" TO \"{role}\"");
    assert!(stderr(&refused).contains(&grant), "{refused:?}");
    // The tables of read models.
    let models = gesta_rig::fresh_schema();
    postgres
        .execute(&format!("CREATE SCHEMA {models}"))
        .unwrap();
    let index = [
        "index", "run", "i", "--path", "a", "--once", "--schema", &models, "--target",
    ];
    let target = patient(&postgres.url());
    let made = of(&owner, &[&index[..], &[&target]].concat());
    assert!(made.status.success(), "{made:?}");
    let list = ["index", "list", "--schema", &models, "--target", &limited];
    for what in ["use the schema", "read the table"] {
        let refused = run(&list);
        assert!(!refused.status.success(), "{refused:?}");
        let text = stderr(&refused);
        assert!(
            text.contains(&format!("the role {role} may not {what} {models}")),
            "{text}"
        );
        let (_, grant) = text.split_once(": GRANT ").expect(&text);
        postgres.execute(&format!("GRANT {grant}")).unwrap();
    }
    // Each of the tables that are asked for is granted by itself.
    let tables = format!("GRANT SELECT ON ALL TABLES IN SCHEMA {models} TO {role}");
    postgres.execute(&tables).unwrap();
    assert!(stdout(&run(&list)).contains("i v1  active"));
    let drop = format!("DROP SCHEMA {models} CASCADE; DROP OWNED BY {role}; DROP ROLE {role}");
    postgres.execute(&drop).unwrap();
}

/// Goal: a server that takes its URL from a file shows the password to nobody: not in its command line, its log or
/// `/info`.
#[test]
fn a_server_by_store_file_shows_no_password() {
    let Some(postgres) = secured() else { return };
    let directory = tempfile::tempdir().unwrap();
    let encoded = PASSWORD.replace(':', "%3A").replace('\\', "%5C");
    let file = directory.path().join("store-url");
    let address = postgres.addr();
    let with_password = patient(&format!("postgres://postgres:{encoded}@{address}/postgres"));
    write_private(&file, &with_password);
    let arguments = [
        "serve",
        "--store-file",
        file.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
    ];
    let mut serve = without_passwords(&arguments, directory.path());
    serve
        .env("GESTA_LOG_FILTER", "debug")
        .stderr(Stdio::piped());
    let mut child = Child::spawn(&mut serve).unwrap();
    let _limit = Limit::of_process(child.pid());
    let mut said = String::new();
    let mut url = String::new();
    let mut lines = BufReader::new(child.take_errors().unwrap()).lines();
    while url.is_empty() {
        let line = lines.next().expect("the server ended").unwrap();
        if let Some((_, found)) = line.split_once("listening on ") {
            found.trim().clone_into(&mut url);
        }
        said += &line;
    }
    let shown = std::fs::read_to_string(format!("/proc/{}/cmdline", child.pid())).unwrap();
    assert!(!shown.contains("s3cr3t"), "{shown}");
    let info = run(&["info", "--store", &url, "--output", "json"]);
    assert!(info.status.success(), "{info:?}");
    keeps_the_secret(&info);
    child.signal(Signal::SIGTERM);
    said.extend(lines.map_while(Result::ok));
    assert!(child.wait().unwrap().success());
    assert!(!said.contains("s3cr3t"), "{said}");
}

#[test]
fn a_store_file_that_will_not_do_is_refused_with_the_rule() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("url");
    let path = file.to_str().unwrap();
    for text in ["", "\n\n", "postgres://u:s3cr3t@h/d\nsqlite:s3cr3t.db\n"] {
        write_private(&file, text);
        let output = run(&["info", "--store-file", path]);
        keeps_the_secret(&output);
        assert_eq!(code(&output), 2, "{output:?}");
        let said = stderr(&output);
        assert!(
            said.contains(path) && said.contains("must hold one line"),
            "{said}"
        );
    }
    std::fs::remove_file(&file).unwrap();
    let output = run(&["info", "--store-file", path]);
    assert!(
        code(&output) == 2 && stderr(&output).contains(path),
        "{output:?}"
    );
    let output = run(&["info", "--store-file", path, "--store", "sqlite:x"]);
    assert_eq!(code(&output), 2, "one of the two");
}

/// Goal: a server that is started with its database waits for it, and says what it waits for; without a wait, or after
/// it, it ends with an error that names host and port.
#[test]
fn a_server_waits_for_its_database_as_long_as_it_is_told() {
    let Some(mut postgres) = Postgres::start().unwrap() else {
        return;
    };
    let url = postgres.url();
    let address = postgres.addr().to_string();
    postgres.stop().unwrap();
    for wait in [&[][..], &["--wait-for-store", "1s"]] {
        let begun = Instant::now();
        let arguments = [&["serve", "--store", &url, "--listen", "127.0.0.1:0"], wait].concat();
        let output = run(&arguments);
        let (took, bound) = (begun.elapsed(), Duration::from_secs(15));
        assert_eq!(code(&output), 5, "{output:?}");
        assert!(stderr(&output).contains(&address), "{output:?}");
        depth::in_time("a server gives up a database that is away", took, bound);
    }
    let arguments = [
        "serve",
        "--store",
        &url,
        "--listen",
        "127.0.0.1:0",
        "--wait-for-store",
        "10m",
    ];
    let mut child = Child::spawn(gesta(&arguments).stderr(Stdio::piped())).unwrap();
    let _limit = Limit::of_process(child.pid());
    let mut lines = BufReader::new(child.take_errors().unwrap()).lines();
    let mut next_with = |text: &str| {
        let line = lines
            .by_ref()
            .map_while(Result::ok)
            .find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("the server ended without {text:?}"))
    };
    let waits = next_with("waiting for the store");
    assert!(waits.contains(&address), "{waits}");
    postgres.restart().unwrap();
    next_with("listening on ");
    child.signal(Signal::SIGTERM);
    assert!(child.wait().unwrap().success());
}

/// Appends and reads until it is stopped; counts the answers that were errors.
async fn use_store(
    store: HttpStore,
    caller: usize,
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicUsize>,
) {
    let stream = StreamId::new(format!("caller-{caller}")).unwrap();
    while !stop.load(Ordering::SeqCst) {
        let outcome = if caller < 4 {
            let event = EventData::json(EventType::new("happened").unwrap(), "{}");
            let append = Append::to(stream.clone(), ExpectedRevision::Any, vec![event]);
            store.append(append).await.map(drop)
        } else {
            store.info().await.map(drop)
        };
        if let Err(error) = outcome {
            assert!(error.is_retryable(), "{error}");
            failed.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What happened: while the database was away the log had a warning for each attempt of each task, and an error for
/// each request. What holds now: each fault is told once when it begins and once when it is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_goes_away_is_told_once_and_not_at_each_attempt() {
    let Some(mut postgres) = Postgres::start().unwrap() else {
        return;
    };
    // A machine that stands still is no fault of the database.
    let url = patient(&postgres.url()) + "&answer_timeout=60";
    let server = Server::start(&url);
    let store = HttpStore::connect(&server.url).unwrap();
    let all = Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::Start,
    };
    let mut subscription = store.subscribe(all).await.unwrap();
    let (stop, failed) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let callers: Vec<_> = (0..12)
        .map(|caller| {
            let (stop, failed) = (Arc::clone(&stop), Arc::clone(&failed));
            tokio::spawn(use_store(store.clone(), caller, stop, failed))
        })
        .collect();
    let event = async {
        loop {
            let message = subscription.next().await.expect("it goes on").unwrap();
            if matches!(message, SubscriptionMessage::Event { .. }) {
                return;
            }
        }
    };
    let event = tokio::time::timeout(PATIENCE, event).await;
    event.expect("an event");
    postgres.stop().unwrap();
    let away = Instant::now();
    // Which of the two it is depends on whether a batch was on its way.
    let of_appends = ["connection lost during a commit", "batch failed"];
    let faults = [
        &of_appends[..],
        &["messages between servers"],
        &["requests fail because the store is away"],
    ];
    let is_told = |texts: &&[&str]| texts.iter().any(|text| !server.logged(text).is_empty());
    let has_failed = || failed.load(Ordering::SeqCst);
    let is_long_enough = || has_failed() >= 12 && away.elapsed() > Duration::from_secs(2);
    support::wait_until("requests fail, and each fault is told", || {
        is_long_enough() && faults.iter().all(is_told)
    });
    postgres.restart().unwrap();
    support::wait_until("appends are stored again", || {
        !server.logged("batches are committed again").is_empty()
    });
    stop.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(
        server.logged("ERROR").is_empty(),
        "{:?}",
        server.logged("ERROR")
    );
    let mut warnings = server.logged("WARN");
    // Requests that waited for the store are told one by one, however many they are.
    warnings.retain(|line| !line.contains("slow request"));
    let different: HashSet<&str> = warnings.iter().map(|line| fault(line)).collect();
    assert_eq!(different.len(), warnings.len(), "{warnings:#?}");
    assert!(warnings.len() <= 8, "{warnings:#?}");
    server.stop();
}

/// What happened: a command that appends and ends queued the message about its last events, and ended before it was
/// sent, so that servers had these events when they looked by themselves. Goal: they hear of all.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_appends_tells_of_all_events_before_it_ends() {
    let Some(postgres) = shared() else { return };
    let url = patient(&format!("{}?schema={}", postgres.url(), fresh_schema()));
    let mut config = gesta::Config::default();
    // It looks by itself only when no test runs any more.
    config.tail.poll_interval = Duration::from_secs(86_400);
    let store = gesta::open(&url).create().config(config).await.unwrap();
    let subscribe = Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::End,
    };
    let mut followed = store.subscribe(subscribe).await.unwrap();
    let lines = "{\"type\":\"happened\",\"data\":1}\n".repeat(20);
    let append = [
        "stream", "append", "cart-1", "--batch", "1", "--store", &url,
    ];
    let append = || support::run_with_input(&append, &lines);
    let appended = tokio::task::block_in_place(append);
    assert!(appended.status.success(), "{appended:?}");
    let mut heard = 0;
    let hears = async {
        while heard < 20 {
            let message = followed.next().await.expect("it goes on").unwrap();
            heard += usize::from(matches!(message, SubscriptionMessage::Event { .. }));
        }
    };
    let hears = tokio::time::timeout(PATIENCE, hears).await;
    assert!(hears.is_ok(), "{heard} events of 20");
    store.shutdown().await.unwrap();
}

/// What a warning tells, without its time and its fields.
fn fault(line: &str) -> &str {
    let (_, told) = line.split_once("WARN").unwrap();
    told.split('=').next().unwrap()
}
