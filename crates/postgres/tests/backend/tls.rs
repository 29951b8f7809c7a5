//! Encryption: each `sslmode` against a server with a certificate for `localhost` of an authority that nobody knows.

use gesta_core::ErrorKind;
use gesta_core::backend::Backend;
use gesta_postgres::PostgresBackend;
use gesta_rig::{Auth, Server, ServerConfig, fresh_schema, shared};

use crate::common::{LOG, config, until_row};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tls");

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(format!("{FIXTURES}/{name}")).expect("fixture")
}

/// A server with a certificate and a password.
fn server_with_tls() -> Option<Server> {
    let with_tls = ServerConfig {
        auth: Auth::Password("se-cret".to_owned()),
        ..ServerConfig::default()
    };
    let with_tls = with_tls
        .with("ssl", "on")
        .with_file("server.crt", &fixture("server.crt"))
        .with_file("server.key", &fixture("server.key"));
    Server::start_with(with_tls).expect("starts")
}

/// True if the connections of a store are encrypted, as the server sees them; closes the store.
async fn is_encrypted(backend: PostgresBackend, server: &Server) -> Option<bool> {
    let _writer = backend.open_writer(LOG).await.expect("opens");
    let used = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                WHERE application_name = 'gesta' AND state IS NOT NULL";
    let url = server.url() + "?sslmode=disable";
    let client = gesta_rig::connect(&url).await.expect("connects");
    let found = client.query_one(used, &[]).await.expect("reads").get(0);
    backend.close().await;
    let end =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gesta'";
    client.batch_execute(end).await.expect("ended");
    let none_is_left = "SELECT WHERE NOT EXISTS
                        (SELECT FROM pg_stat_activity WHERE application_name = 'gesta')";
    until_row(&client, none_is_left).await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_believed_as_the_mode_says() {
    let Some(server) = server_with_tls() else {
        return;
    };
    let root = format!("&sslrootcert={FIXTURES}/ca.pem").replace('/', "%2F");
    let schema = fresh_schema();
    let by_address = server.url();
    let by_name = by_address.replace("127.0.0.1", "localhost");
    let open = async |base: &str, options: &str| {
        PostgresBackend::open(config(&format!("{base}?schema={schema}{options}"))).await
    };
    let full = format!("&sslmode=verify-full{root}");
    let accepted = [
        (&by_address, "&sslmode=disable".to_owned(), false),
        (&by_address, String::new(), true),
        (&by_address, "&sslmode=require".to_owned(), true),
        (&by_address, format!("&sslmode=verify-ca{root}"), true),
        (&by_address, format!("&sslmode=require{root}"), true),
        (&by_name, full.clone(), true),
        (&by_name, format!("{full}&channel_binding=require"), true),
    ];
    for (base, options, encrypted) in accepted {
        let backend = open(base, &options).await.expect(&options);
        let found = is_encrypted(backend, &server).await;
        assert_eq!(found, Some(encrypted), "{options}");
    }
    let refused = [
        (&by_address, &*full),
        (&by_name, "&sslmode=verify-full"),
        (&by_name, "&sslmode=verify-ca"),
        (&by_name, "&sslmode=verify-full&sslrootcert=%2Fmissing.pem"),
    ];
    for (base, options) in refused {
        let error = open(base, options).await.expect_err(options);
        assert!(
            error.to_string().contains("ertificate") || error.to_string().contains("sslrootcert"),
            "{error}"
        );
    }
}

/// What happened: what a server says when it refuses a connection was told to each user, with host and role, and to no
/// log. Goal: it is known as something for an administrator.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_refused_is_for_an_administrator() {
    let (Some(server), Some(plain)) = (server_with_tls(), shared()) else {
        return;
    };
    let (own, schema) = (server.url(), fresh_schema());
    let refused = [
        (own.replace("se-cret", "wrong"), "28P01"),
        (own.replace(":se-cret", ""), "asks for a password"),
        (format!("{own}-of-nobody"), "3D000"),
        (format!("{own}?sslmode=verify-full"), "ertificate"),
        (format!("{}?sslmode=require", plain.url()), "speaks no TLS"),
    ];
    for (url, why) in refused {
        let mark = if url.contains('?') { '&' } else { '?' };
        let opened = PostgresBackend::open(config(&format!("{url}{mark}schema={schema}"))).await;
        let error = opened.expect_err(why);
        let text = error.to_string();
        assert!(text.contains(why), "{text}");
        assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{text}");
        assert!(error.is_for_administrator(), "{error:?}");
    }
}
