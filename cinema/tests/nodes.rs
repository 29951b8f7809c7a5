//! Two nodes on one PostgreSQL database: each serves every show.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]

mod support;

use clap::Parser;
use gesta_cinema::application::Application;
use gesta_cinema::config::Config;
use support::Client;

const SHOW: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Goal: what one node was told, the other one knows, and no seat is given away twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_serves_any_show() {
    let Some(server) = gesta_pgtest::shared() else {
        return;
    };
    let url = format!("{}?schema={}", server.url(), gesta_pgtest::fresh_schema());
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret of the tests\n").expect("written");
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let secret = secret.to_str().expect("text");
        let config = Config::parse_from([
            "cinema",
            "--listen=127.0.0.1:0",
            "--node=127.0.0.1:0",
            "--store",
            &*url,
            "--cluster-secret-file",
            secret,
        ]);
        nodes.push(Application::start(config).await.expect("started"));
    }
    let mut clients = Vec::new();
    for node in &nodes {
        clients.push(Client::connect(node.server().local_addr()).await);
    }
    let body = format!(r#"{{"showId":"{SHOW}","title":"Ran","maxSeats":20}}"#);
    let json = "content-type: application/json\r\n";
    let created = clients[1].request("POST", "/shows", json, &body).await;
    assert!(created.status < 300, "{created:?}");
    for seat in 0..20 {
        let path = format!("/shows/{SHOW}/seats/{seat}");
        let reserve = r#"{"action":"RESERVE"}"#;
        let (first, second) = (seat % 2, (seat + 1) % 2);
        let reserved = clients[first].request("PATCH", &path, json, reserve).await;
        assert!(reserved.status < 300, "{reserved:?}");
        let refused = clients[second].request("PATCH", &path, json, reserve).await;
        assert_eq!(refused.status, 400, "{refused:?}");
        assert!(refused.body.contains("SEAT_NOT_AVAILABLE"), "{refused:?}");
        let path = format!("/shows/{SHOW}");
        let shown = clients[second].request("GET", &path, "", "").await;
        let reserved = shown.body.matches("RESERVED").count();
        assert_eq!(reserved, seat + 1, "{shown:?}");
    }
    for node in &nodes {
        node.shutdown().await.expect("stopped");
    }
}
