//! Addresses of servers: what answers there, and what is sent to it.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use super::support::{Limit, Server, code, gesta, output_of, run, stderr, succeed, url_of};

/// Goal: a probe needs no other program, and tells a server that is away from one that answers.
#[test]
fn the_health_of_a_server_is_asked() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&home.path().join("gesta.db")));
    let at = ["--store", &server.url];
    assert_eq!(succeed(&[&["health"], &at[..]].concat()), "live\n");
    let ready = ["health", "--ready", "--output", "json"];
    assert_eq!(
        succeed(&[&ready[..], &at].concat()),
        "{\"status\":\"ready\"}\n"
    );
    // What happened: the answer was that of a read of the stream "health".
    for path in ["/streams", "/streams/a/", "/nothing"] {
        let wrong = run(&[
            "stream",
            "list",
            "--store",
            &format!("{}{path}", server.url),
        ]);
        assert_eq!(code(&wrong), 1, "{wrong:?}");
        let told = stderr(&wrong);
        let (root, path) = (&server.url, path.trim_end_matches('/'));
        let meant = format!("at {root}{path}; is {root} meant, without {path}?");
        assert!(told.contains(&meant), "{told}");
    }
    let url = server.url.clone();
    server.stop();
    let away = run(&["health", "--store", &url]);
    assert_eq!(code(&away), 5, "{away:?}");
    assert!(stderr(&away).contains("no server answers"), "{away:?}");
    // A probe in the container of a server, whose environment names the database.
    let beside = output_of(gesta(&["health"]).env("GESTA_STORE", "sqlite:x.db"));
    assert_ne!(code(&beside), 2, "{beside:?}");
    let wrong = run(&["health", "--store", "sqlite:x.db"]);
    assert_eq!(code(&wrong), 2, "{wrong:?}");
}

/// What happened: a command said nothing while its database did not answer.
#[test]
fn a_store_that_does_not_answer_is_told_of() {
    // It takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let url = format!("postgres://u:hidden@{address}/d?connect_timeout=3600");
    for command in [
        &["stream", "append", "a", "--type", "t", "--data", "1"][..],
        &["verify"],
    ] {
        let mut command = gesta(&[command, &["--store", &url]].concat());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let _limit = Limit::of(&child);
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = said.next().expect("it says something").unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let sentence = format!("postgres://{address}/d has not answered for 2 s: ");
        assert!(said.starts_with(&sentence), "{said}");
        assert!(!said.contains("hidden"), "{said}");
    }
}

/// What happened: a second server was told of a port that is in use, and not that it was the first one that had it.
#[test]
fn who_has_an_address_is_told() {
    let home = tempfile::tempdir().unwrap();
    let first = Server::start(&url_of(&home.path().join("first.db")));
    let second = url_of(&home.path().join("second.db"));
    let listen = ["serve", "--store", &second, "--listen"];
    let refused = run(&[&listen[..], &[first.address()]].concat());
    assert_eq!(code(&refused), 1, "{refused:?}");
    let told = stderr(&refused);
    let who = format!(
        "a server of Gesta answers there: gesta info --store {}",
        first.url
    );
    assert!(told.contains(&who), "{told}");
    assert!(told.contains("--listen HOST:PORT names another"), "{told}");
    // It takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = silent.local_addr().unwrap();
    let refused = run(&[&listen[..], &[&taken.to_string()]].concat());
    let told = stderr(&refused);
    let who = format!("another program has port {}; --listen", taken.port());
    assert!(told.contains(&who), "{told}");
    let secret = home.path().join("secret");
    std::fs::write(&secret, "what all nodes of the test share").unwrap();
    let mut node = gesta(&["serve", "--store", "postgres://u@127.0.0.1:1/d", "--node"]);
    let node = node.arg(taken.to_string()).arg("--cluster-secret-file");
    let refused = output_of(node.arg(&secret));
    let told = stderr(&refused);
    assert_eq!(code(&refused), 1, "{told}");
    assert!(
        told.contains("--node HOST:PORT (cluster.node) names"),
        "{told}"
    );
}

/// Goal: a command sends nothing to what is no server of Gesta, and ends at once where none answers.
#[test]
fn a_wrong_address_of_a_server_is_told_before_anything_is_sent() {
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", stranger.local_addr().unwrap());
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let requests = Arc::clone(&seen);
    std::thread::spawn(move || {
        for connection in stranger.incoming() {
            let mut connection = connection.unwrap();
            let mut head = BufReader::new(&connection).lines().map_while(Result::ok);
            let head: Vec<_> = head.by_ref().take_while(|line| !line.is_empty()).collect();
            let mut requests = requests.lock().unwrap();
            requests.push(head.join("\n"));
            // Whether or not it knows such an address.
            let status = ["200 OK", "404 Not Found"][requests.len() % 2];
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
            connection.write_all(answer.as_bytes()).unwrap();
        }
    });
    let away = format!("http://{}", gesta_rig::free_address().unwrap());
    let token = format!("gesta_{}", "a".repeat(43));
    for command in [
        &["stream", "append", "a", "--type", "t", "--data", "1"][..],
        &["stream", "delete", "a", "--yes"],
        &["stream", "read", "a"],
        &["all", "tail"],
        &["group", "create", "a::g"],
        &["group", "reset", "a::g", "--to", "start", "--yes"],
        &["scavenge", "--yes"],
        &["verify"],
        &["virtual-streams", "on"],
        &["health"],
        &["health", "--ready"],
    ] {
        let command = [command, &["--store", &url]].concat();
        let refused = output_of(gesta(&command).env("GESTA_TOKEN", &token));
        let said = stderr(&refused);
        assert_eq!(code(&refused), 1, "{command:?}: {said}");
        let proxy = "or a proxy before it does not let GET /health/live through";
        assert!(said.contains("no server of Gesta"), "{command:?}: {said}");
        assert!(said.contains(proxy), "{command:?}: {said}");
        let away = run(&[&command[..command.len() - 1], &[&away]].concat());
        let said = stderr(&away);
        assert_eq!(code(&away), 5, "{command:?}: {said}");
        assert!(said.contains("no server answers"), "{command:?}: {said}");
    }
    let seen = seen.lock().unwrap();
    let is_question = |head: &String| {
        let is_secret = head.to_ascii_lowercase().contains("authorization");
        head.starts_with("GET /health/live ") && !is_secret
    };
    assert!(seen.len() >= 11 && seen.iter().all(is_question), "{seen:?}");
}

/// A proxy before a server that answers `GET /health/live` itself, with this status, and lets everything else through.
fn proxy(server: &str, status: &'static str) -> String {
    let server = server.trim_start_matches("http://").to_owned();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut client = connection.unwrap();
            let (mut reader, mut head) =
                (BufReader::new(client.try_clone().unwrap()), String::new());
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
            if head.starts_with("GET /health/live ") {
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
                );
                client.write_all(answer.as_bytes()).unwrap();
                continue;
            }
            let mut server = std::net::TcpStream::connect(&server).unwrap();
            server.write_all(head.as_bytes()).unwrap();
            let mut to = server.try_clone().unwrap();
            std::thread::spawn(move || std::io::copy(&mut reader, &mut to));
            std::thread::spawn(move || std::io::copy(&mut server, &mut client));
        }
    });
    url
}

/// What happened: behind a proxy that asks for credentials or limits rates, commands that had worked said that what
/// answers is no server of Gesta.
#[test]
fn a_proxy_that_keeps_strangers_out_is_no_obstacle() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&home.path().join("gesta.db")));
    for status in [
        "401 Unauthorized",
        "403 Forbidden",
        "407 Proxy Authentication Required",
        "408 Request Timeout",
        "429 Too Many Requests",
    ] {
        let at = proxy(&server.url, status);
        succeed(&[
            "stream", "append", "a", "--type", "t", "--data", "1", "--store", &at,
        ]);
        succeed(&["health", "--ready", "--store", &at]);
        // Whether the server lives was asked of nobody.
        let unknown = run(&["health", "--store", &at]);
        assert_eq!(code(&unknown), 5, "{status}: {unknown:?}");
        let said = stderr(&unknown);
        assert!(
            said.contains("does not let GET /health/live through"),
            "{said}"
        );
        assert!(said.contains(&status[..3]), "{said}");
    }
    server.stop();
}

#[test]
fn a_url_without_a_scheme_is_told_what_a_server_is_called() {
    for (url, meant) in [
        ("localhost:2113", "is http://localhost:2113 meant?"),
        ("127.0.0.1:2113", "http://127.0.0.1:2113"),
        ("kurrentdb://localhost:2113", "http://HOST:PORT"),
        ("gesta.db", "is sqlite:gesta.db meant?"),
    ] {
        let wrong = run(&["info", "--store", url]);
        assert_eq!(code(&wrong), 2, "{wrong:?}");
        let told = stderr(&wrong);
        assert!(
            told.contains("http://HOST:PORT") && told.contains(meant),
            "{wrong:?}"
        );
    }
}

/// Goal: who has several nodes names all of them, as programs do, and one that is away is no obstacle.
#[test]
fn a_command_takes_the_urls_of_several_nodes() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&home.path().join("gesta.db")));
    let away = "http://127.0.0.1:1";
    let both = format!("{away} {}", server.url);
    let append = ["stream", "append", "a", "--type", "t", "--data", "1"];
    for at in [
        &["--store", away, "--store", &server.url][..],
        &["--store", &both],
    ] {
        succeed(&[&append[..], at].concat());
        succeed(&[&["verify"], at].concat());
    }
    let file = home.path().join("nodes");
    std::fs::write(&file, format!("{away}\n{}\n", server.url)).unwrap();
    let file = file.to_str().unwrap();
    let read = succeed(&[
        "stream",
        "read",
        "a",
        "--output",
        "json",
        "--store-file",
        file,
    ]);
    assert_eq!(read.lines().count(), 2, "{read}");
    // Each of them is healthy, or not, by itself.
    let health = run(&["health", "--store", &both]);
    assert_eq!(code(&health), 2, "{health:?}");
    assert!(stderr(&health).contains("of one server"), "{health:?}");
    server.stop();
}

#[test]
fn a_server_listens_on_a_name() {
    let home = tempfile::tempdir().unwrap();
    let store = url_of(&home.path().join("gesta.db"));
    let server = Server::start_with(&store, &["--listen", "localhost:0"]);
    assert!(server.url.starts_with("http://127.0.0.1:") || server.url.starts_with("http://[::1]:"));
    succeed(&["--store", &server.url, "info"]);
    server.stop();
    let wrong = run(&["serve", "--store", &store, "--listen", "no such name"]);
    assert_eq!(code(&wrong), 2, "{wrong:?}");
    assert!(stderr(&wrong).contains("localhost:2113"), "{wrong:?}");
}
