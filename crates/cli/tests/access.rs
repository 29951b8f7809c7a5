//! Users and tokens with the real binary: from an empty machine to a client's append, and what is refused.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Instant;

use support::{
    PATIENCE, Server, Tries, code, ended, gesta, output_of, patient, run_with_input, stderr,
    stdout, succeed, url_of, wait_until,
};

/// The code of a command to which the server says that nothing can be done.
const TRY_AGAIN: i32 = 5;

/// Makes a user with this password.
fn add(store: &str, user: &str, more: &[&str]) {
    let output = run_with_input(
        &[&["--store", store, "user", "add", user], more].concat(),
        &format!("password of {user}\n"),
    );
    assert!(output.status.success(), "{output:?}");
}

fn token(store: &str, user: &str, more: &[&str]) -> String {
    let text = succeed(&[&["--store", store, "token", "create", user], more].concat());
    text.trim().to_owned()
}

/// Runs with these variables, and again while the server has no news of the accounts, as after the machine has stood
/// still.
fn with(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let tries = Tries::of(format!("{arguments:?}"));
    loop {
        let output = output_of(gesta(arguments).envs(variables.iter().copied()));
        if code(&output) != TRY_AGAIN {
            return output;
        }
        std::thread::sleep(tries.pause_after(stderr(&output)));
    }
}

fn run(arguments: &[&str]) -> Output {
    with(&[], arguments)
}

const APPEND: [&str; 7] = ["stream", "append", "cart-1", "--type", "t", "--data", "1"];

/// Goal: the guide leads from an empty machine to a client's first append in at most five commands.
#[test]
fn the_guide_to_a_secure_server_works() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/secure-server.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page
        .split("\n```sh\n")
        .nth(1)
        .unwrap()
        .split("\n```")
        .next()
        .unwrap();
    let commands: Vec<&str> = block.lines().collect();
    assert!(commands.len() <= 5, "{commands:?}");
    let folder = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_gesta")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let port = gesta_rig::free_address().unwrap().port().to_string();
    let mut server = None;
    for command in commands {
        let command = command.replace("2113", &port);
        let mut shell = std::process::Command::new("bash");
        shell.args(["-euc", &command]);
        shell
            .current_dir(folder.path())
            .env("PATH", &path)
            .env_remove("GESTA_STORE");
        shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if command.starts_with("gesta serve") {
            let arguments: Vec<&str> = command.split_whitespace().skip(2).collect();
            server = Some(Server::start_in(folder.path(), &arguments));
            continue;
        }
        let mut child = shell.spawn().unwrap();
        // A command that asks for nothing may have ended.
        let _ = child.stdin.take().unwrap().write_all(b"a long password\n");
        let output = ended(child);
        assert!(output.status.success(), "{command}: {output:?}");
    }
    server.expect("served").stop();
}

/// A server of a store with the administrator `root` and the user `shop`, and a token of each.
struct Guarded {
    server: Server,
    store: String,
    /// May append to streams with the prefix `cart-`.
    append: String,
    /// May do everything.
    admin: String,
    folder: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = url_of(&folder.path().join("gesta.db"));
        add(&store, "root", &["--admin"]);
        add(&store, "shop", &["--group", "sales"]);
        let append = token(&store, "shop", &["--scope", "append", "--prefix", "cart-"]);
        let for_a_day = ["--expires", "1d", "--label", "for the test"];
        let admin = [&["--scope", "admin"][..], &for_a_day].concat();
        Self {
            admin: token(&store, "root", &admin),
            append,
            server: Server::start(&store),
            store,
            folder,
        }
    }

    fn at<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["--store", &self.server.url][..], more].concat()
    }

    fn call(&self, more: &[&str], token: &str) -> Output {
        with(&[("GESTA_TOKEN", token)], &self.at(more))
    }
}

/// Goal: done-when 8 and its contrary: who shows nothing, or too little, gets nothing and a code of its own.
#[test]
fn a_server_with_users_asks_who_calls() {
    let guarded = Guarded::start();
    let (append, admin) = (&guarded.append, &guarded.admin);
    let call = |more: &[&str], token: &str| guarded.call(more, token);
    assert_eq!(code(&run(&guarded.at(&APPEND))), 9);
    assert_eq!(code(&call(&APPEND, append)), 0);
    assert_eq!(code(&call(&["stream", "read", "cart-1"], append)), 9);
    assert_eq!(code(&call(&["stream", "read", "cart-1"], admin)), 0);
    let wrong = call(&APPEND, &append.replace("gesta_", "gesta_0"));
    assert_eq!(code(&wrong), 9);
    assert!(stderr(&wrong).contains("token"), "{}", stderr(&wrong));
    let password = guarded.folder.path().join("password");
    std::fs::write(&password, "password of shop\n").unwrap();
    let login = [
        ("GESTA_USER", "shop"),
        ("GESTA_PASSWORD_FILE", password.to_str().unwrap()),
    ];
    let read = guarded.at(&["stream", "read", "cart-1"]);
    assert_eq!(code(&with(&login, &read)), 0);
    let list = guarded.at(&["user", "list"]);
    assert_eq!(code(&with(&login, &list)), 9);
    guarded.server.stop();
}

/// Goal: an administrator looks after accounts through the server, which alone has the store open.
#[test]
fn accounts_are_looked_after_through_a_server() {
    let guarded = Guarded::start();
    let (append, admin) = (&guarded.append, &guarded.admin);
    let call = |more: &[&str], token: &str| guarded.call(more, token);
    let users = stdout(&call(&["user", "list"], admin));
    assert!(
        users.contains("root  $admins") && users.contains("shop  sales"),
        "{users}"
    );
    let tokens = stdout(&call(&["token", "list", "--output", "json"], admin));
    assert!(
        tokens.contains("for the test") && tokens.contains("cart-"),
        "{tokens}"
    );
    assert!(
        !tokens.contains(append.splitn(3, '_').nth(2).unwrap()),
        "{tokens}"
    );
    assert_eq!(code(&call(&APPEND, append)), 0);
    assert_eq!(code(&call(&["user", "disable", "shop"], admin)), 0);
    wait_until("a disabled user cannot append", || {
        code(&call(&APPEND, append)) == 9
    });
    assert_ne!(code(&call(&["user", "add", "x"], append)), 0);
    let variables = [
        ("GESTA_TOKEN", admin.as_str()),
        ("GESTA_NEW_PASSWORD", "password of second"),
    ];
    let made = with(
        &variables,
        &guarded.at(&["user", "add", "second", "--admin"]),
    );
    assert!(made.status.success(), "{made:?}");
    guarded.server.stop();
    assert!(succeed(&["--store", &guarded.store, "user", "list"]).contains("second  $admins"));
}

/// Goal: the first administrator may come from the environment, at the first start only, and never by default.
#[test]
fn the_first_administrator_comes_from_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    let password = folder.path().join("password");
    let serve = |first: &str| {
        std::fs::write(&password, first).unwrap();
        let variables = [("GESTA_ADMIN_PASSWORD_FILE", password.to_str().unwrap())];
        Server::start_with_variables(&store, &["--listen", "127.0.0.1:0"], &variables)
    };
    let server = serve("the first password\n");
    let login = [
        ("GESTA_USER", "admin"),
        ("GESTA_PASSWORD_FILE", password.to_str().unwrap()),
    ];
    let info = ["--store", &server.url, "info"];
    assert_eq!(code(&with(&login, &info)), 0);
    assert_eq!(code(&run(&info)), 9);
    server.stop();
    // Another password in the environment changes nothing, also if it breaks the rule.
    for other in ["another password\n", "short\n"] {
        let server = serve(other);
        let info = ["--store", &server.url, "info"];
        assert_eq!(code(&with(&login, &info)), 9, "{other}");
        server.stop();
    }
}

/// What happened: with a password that was too short a store was made, and then refused; the next start opened it to
/// everybody. Goal: no store is made.
#[test]
fn a_first_administrator_with_a_wrong_password_makes_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gesta.db");
    let serve = [
        "serve",
        "--store",
        &url_of(&file),
        "--listen",
        "127.0.0.1:0",
    ];
    let refused = with(&[("GESTA_ADMIN_PASSWORD", "short")], &serve);
    assert_eq!(code(&refused), 2, "{refused:?}");
    let said = stderr(&refused);
    assert!(
        said.contains("GESTA_ADMIN_PASSWORD") && said.contains("8 to 1024"),
        "{said}"
    );
    assert!(!file.exists(), "{said}");
}

/// Goal: addresses that other machines reach need TLS, and then nothing is open even without users.
#[test]
fn addresses_of_other_machines_are_never_open_by_accident() {
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    let refused = run(&["serve", "--store", &store, "--listen", "0.0.0.0:0"]);
    assert_eq!(code(&refused), 2);
    assert!(stderr(&refused).contains("TLS"), "{}", stderr(&refused));
    let tls = folder.path().join("tls");
    let tls = [
        "--listen",
        "0.0.0.0:0",
        "--tls-self-signed",
        tls.to_str().unwrap(),
    ];
    let refused = run(&[&["serve", "--store", &store, "--access", "off"], &tls[..]].concat());
    assert_eq!(code(&refused), 2);
    let server = Server::start_with(&store, &tls);
    let url = server.url.replace("0.0.0.0", "localhost");
    let ca = folder.path().join("tls/ca.pem");
    let at = ["--store", &url, "--ca-file", ca.to_str().unwrap()];
    assert_eq!(code(&run(&[&at[..], &APPEND].concat())), 9);
    server.stop();
    let server = Server::start_with(&store, &["--listen", "127.0.0.1:0", "--access", "on"]);
    assert_eq!(
        code(&run(&[&["--store", &server.url], &APPEND[..]].concat())),
        9
    );
    server.stop();
}

/// Goal: what is wrong with an account is told before anything is changed, and no password comes from an argument.
#[test]
fn wrong_accounts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    let refused = |arguments: &[&str], input: &str, text: &str| {
        let output = run_with_input(&[&["--store", &store], arguments].concat(), input);
        assert_eq!(code(&output), 2, "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(text), "{}", stderr(&output));
    };
    refused(&["user", "add", "root"], "a long password\n", "$admins");
    refused(&["user", "add", "root", "--admin"], "short\n", "8");
    refused(&["user", "add", "root", "--admin"], "", "standard input");
    refused(
        &["user", "add", "a:b", "--admin"],
        "a long password\n",
        "colons",
    );
    refused(
        &["user", "add", "root", "--password", "x"],
        "",
        "--password",
    );
    refused(&["token", "create", "root"], "", "--scope");
    let acl = [
        "stream",
        "metadata",
        "plan",
        "--set",
        r#"{"$acl":{"$r":"mallory"}}"#,
    ];
    succeed(&[&["--store", &store], &APPEND[..]].concat());
    succeed(&[&["--store", &store], &acl[..]].concat());
    refused(
        &["user", "add", "root", "--admin"],
        "a long password\n",
        "--keep-rights",
    );
    add(&store, "root", &["--admin", "--keep-rights"]);
    refused(
        &["user", "add", "root"],
        "a long password\n",
        "exists already",
    );
    refused(
        &["token", "create", "nobody", "--scope", "read"],
        "",
        "nobody",
    );
    refused(&["token", "revoke", "x"], "", "id of a token");
}

/// What happened: a token was told that its scopes, its prefixes or the rights of its user stand in its way, or not;
/// and quotes in the audit log were escaped twice. Goal: it is told which of them, and the log says the same.
#[test]
fn a_token_is_told_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    add(&store, "root", &["--admin"]);
    let root = |more: &[&str]| token(&store, "root", more);
    let orders = root(&["--scope", "append", "--prefix", "order-"]);
    let reads = root(&["--scope", "read"]);
    let server = Server::start(&store);
    for (token, why) in [
        (
            orders,
            "the token is only for streams whose names begin with \"order-\"",
        ),
        (reads, "the token does not have the scope append"),
    ] {
        let refused = append(&server, &token);
        assert_eq!(code(&refused), 9, "{refused:?}");
        assert!(stderr(&refused).contains(why), "{refused:?}");
        let escaped = why.replace('"', "\\\"");
        wait_until("it is in the log", || !server.logged(&escaped).is_empty());
    }
    server.stop();
}

/// Calls until the code is as wanted.
fn wait_for(server: &Server, what: &str, wanted: i32, call: &dyn Fn(&Server) -> Output) {
    let begun = Instant::now();
    while code(&call(server)) != wanted {
        assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", call(server));
    }
}

/// Appends as whoever has a token.
fn append(server: &Server, token: &str) -> Output {
    let append = [&["--store", &server.url], &APPEND[..]].concat();
    with(&[("GESTA_TOKEN", token)], &append)
}

/// Goal: on PostgreSQL with several logs, accounts are changed beside two running servers, and both follow.
#[test]
fn accounts_change_beside_running_servers() {
    let Some(postgres) = gesta_rig::shared() else {
        return;
    };
    let schema = gesta_rig::fresh_schema();
    let store = patient(&format!("{}?schema={schema}", postgres.url()));
    succeed(&["--store", &store, "schema", "create", "--logs", "4"]);
    let servers = [Server::start(&store), Server::start(&store)];
    for server in &servers {
        let open = run(&[&["--store", &server.url], &APPEND[..]].concat());
        assert_eq!(code(&open), 0, "open");
    }
    add(&store, "root", &["--admin"]);
    add(&store, "shop", &[]);
    let admin = token(&store, "root", &["--scope", "admin"]);
    let shop = token(&store, "shop", &["--scope", "read", "--scope", "append"]);
    let until = |what: &str, wanted: i32, call: &dyn Fn(&Server) -> Output| {
        servers
            .iter()
            .for_each(|server| wait_for(server, what, wanted, call));
    };
    until("who says nothing is refused", 9, &|server| {
        append(server, "")
    });
    until("a token counts", 0, &|server| append(server, &shop));
    let acl = r#"{"$acl": {"$w": [], "$r": [], "$mr": []}}"#;
    let set = [
        "--store", &store, "stream", "metadata", "cart-1", "--set", acl,
    ];
    succeed(&set);
    until("rights of a stream count", 9, &|server| {
        append(server, &shop)
    });
    until("not for administrators", 0, &|server| {
        append(server, &admin)
    });
    let read = |server: &Server| {
        with(
            &[("GESTA_TOKEN", shop.as_str())],
            &["--store", &server.url, "all", "read", "--output", "json"],
        )
    };
    for server in &servers {
        let seen = stdout(&read(server));
        assert!(
            !seen.contains("cart-1") && !seen.contains("$user"),
            "{seen}"
        );
    }
    let id = shop.split('_').nth(1).unwrap();
    succeed(&["--store", &store, "token", "revoke", id]);
    until("a revoked token is worth nothing", 9, &read);
    let others = run(&["--store", &store, "token", "list"]);
    assert!(stdout(&others).contains("worth nothing"), "{others:?}");
    for server in servers {
        server.stop();
    }
}
