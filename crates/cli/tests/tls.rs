//! `gesta serve` over TLS, and commands that reach it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use support::{Server, code, gesta, output_of, run, stderr, succeed, url_of};

/// Goal: a server with a certificate of its own is reached by who is told of its authority, and by nobody else.
#[test]
fn a_self_signed_server_is_reached_through_its_authority() {
    let folder = tempfile::tempdir().unwrap();
    let tls = folder.path().join("tls");
    let store = url_of(&folder.path().join("gesta.db"));
    let options = [
        "--listen",
        "127.0.0.1:0",
        "--tls-self-signed",
        tls.to_str().unwrap(),
    ];
    let server = Server::start_with(&store, &options);
    assert!(
        server.url.starts_with("https://127.0.0.1:"),
        "{}",
        server.url
    );
    let ca = tls.join("ca.pem");
    let ca = ca.to_str().unwrap();
    let append = ["stream", "append", "cart-1", "--type", "t", "--data", "1"];
    let at = ["--store", &server.url];
    succeed(&[&append[..], &at, &["--ca-file", ca]].concat());
    let by_name = server.url.replace("127.0.0.1", "localhost");
    let read = [
        "stream", "read", "cart-1", "--store", &by_name, "--output", "json",
    ];
    let output = output_of(gesta(&read).env("GESTA_CA_FILE", ca));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 1);
    // None of these passes by trying again, so none has the code of what may pass.
    let unknown = run(&[&append[..], &at].concat());
    assert_eq!(code(&unknown), 1);
    assert!(stderr(&unknown).contains("--ca-file"), "{unknown:?}");
    let plain = server.url.replace("https", "http");
    let plain = run(&["info", "--store", &plain]);
    assert_eq!(code(&plain), 2, "{plain:?}");
    assert!(stderr(&plain).contains("TLS"), "{plain:?}");
    assert!(!stderr(&plain).contains("no server answers"), "{plain:?}");
    server.stop();
}

/// Goal: a URL with https for a server that speaks http is told as that, and not as a server that is away.
#[test]
fn https_at_a_port_of_http_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&url_of(&folder.path().join("gesta.db")));
    let encrypted = server.url.replace("http", "https");
    let output = run(&["info", "--store", &encrypted]);
    assert_eq!(code(&output), 1, "{output:?}");
    assert!(stderr(&output).contains("does not speak TLS"), "{output:?}");
    server.stop();
}

/// Goal: files of TLS that are missing or contradict each other are told before anything is opened.
#[test]
fn wrong_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    let refused = |options: &[&str], code_wanted: i32, text: &str| {
        let output = run(&[
            &["serve", "--store", &store, "--listen", "127.0.0.1:0"],
            options,
        ]
        .concat());
        assert_eq!(code(&output), code_wanted, "{}", stderr(&output));
        assert!(stderr(&output).contains(text), "{}", stderr(&output));
        assert!(!folder.path().join("gesta.db").exists());
    };
    refused(&["--tls-certificate", "c.pem"], 2, "--tls-key");
    refused(
        &["--tls-certificate", "c.pem", "--tls-key", "k.pem"],
        2,
        "c.pem: ",
    );
    refused(&["--tls-client-ca", "a.pem"], 2, "tls.client_ca");
}
