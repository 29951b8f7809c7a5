//! Two nodes on one PostgreSQL database: each serves every show.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use gesta_cinema::application::Application;
use gesta_cinema::config::Config;
use support::Client;

const SHOW: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Two applications on a new schema, with these arguments beside; the folder has their secret. `None` without a
/// database. They wait longer than a busy machine stands still: each error of theirs fails a test.
async fn two_nodes(more: &[&str]) -> Option<(Vec<Application>, tempfile::TempDir)> {
    let server = gesta_rig::shared()?;
    let schema = gesta_rig::fresh_schema();
    let times = "answer_timeout=60&connect_timeout=60";
    let url = format!("{}?schema={schema}&{times}", server.url());
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret of the tests\n").expect("written");
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let secret = secret.to_str().expect("text");
        let args = [
            "cinema",
            "--listen=127.0.0.1:0",
            "--node=127.0.0.1:0",
            "--store",
            &*url,
            "--cluster-secret-file",
            secret,
        ];
        let mut config = Config::parse_from(args.iter().chain(more));
        config.forward_within = Duration::from_secs(120);
        config.leave_within = Duration::from_secs(120);
        nodes.push(Application::start(config).await.expect("started"));
    }
    Some((nodes, folder))
}

/// What happened: an application whose node was replaced by another process went on as if nothing was, owned no show,
/// and was healthy. Now it tells why it should end, and is no longer healthy. Metrics of the node are among the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_that_is_replaced_says_so() {
    // Nobody listens there, so the second one cannot tell that the first one is alive.
    let address = gesta_rig::free_address().expect("a port").to_string();
    let Some((nodes, _folder)) = two_nodes(&["--advertise", &address]).await else {
        return;
    };
    let ended = tokio::time::timeout(support::DEADLINE, nodes[0].ended_by_itself()).await;
    let reason = ended.expect("it is told");
    assert!(reason.contains("another process"), "{reason}");
    let mut clients = Vec::new();
    for node in &nodes {
        clients.push(Client::connect(node.server().local_addr()).await);
    }
    let replaced = "another process";
    let health = clients[0].get_until_it_has("/health", replaced).await;
    assert_eq!(health.status, 503, "{health:?}");
    clients[1].get_until("/health", "OK").await;
    let owns_one = "gesta_cluster_logs_owned 1";
    clients[1].get_until_it_has("/metrics", owns_one).await;
    for node in &nodes {
        node.shutdown().await.expect("stopped");
    }
}

/// Goal: what one node was told, the other one knows, and no seat is given away twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_serves_any_show() {
    let Some((nodes, _folder)) = two_nodes(&[]).await else {
        return;
    };
    let mut clients = Vec::new();
    for node in &nodes {
        clients.push(Client::connect(node.server().local_addr()).await);
    }
    // A show that does not exist has no state that could travel. Once the other node took that for damage.
    for client in &mut clients {
        let shown = client
            .request("GET", &format!("/shows/{SHOW}"), "", "")
            .await;
        assert_eq!(shown.status, 404, "{shown:?}");
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

/// Goal: of two nodes one says that it gives back what is not paid, and how many reservations it watches; when it is
/// stopped, the other one says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_that_gives_back_says_so() {
    let Some((nodes, _folder)) = two_nodes(&["--pay-within=30m"]).await else {
        return;
    };
    let mut clients = Vec::new();
    for node in &nodes {
        clients.push(Client::connect(node.server().local_addr()).await);
    }
    let created = clients[0].create(SHOW, 20).await;
    assert!(created.status < 300, "{created:?}");
    for seat in 0..2 {
        let reserved = clients[1].reserve(SHOW, seat).await;
        assert!(reserved.status < 300, "{reserved:?}");
    }
    let owns = "cinema_unpaid_reservations_owned 1\n";
    let pending = "cinema_unpaid_reservations_pending 2\n";
    let owner = tokio::time::timeout(support::DEADLINE, async {
        for at in (0..clients.len()).cycle() {
            let told = clients[at].get("/metrics").await.body;
            if told.contains(owns) && told.contains(pending) {
                return at;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        unreachable!("the circle has no end")
    });
    let owner = owner.await.expect("one says so");
    let other = clients[1 - owner].get("/metrics").await.body;
    assert!(
        other.contains("cinema_unpaid_reservations_owned 0\n"),
        "{other}"
    );
    // Who looks for a value must not find it in the help.
    for help in other
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "))
    {
        let (_, text) = help.split_once(' ').expect("a name and a text");
        assert!(text.starts_with(char::is_alphabetic), "{help}");
    }
    nodes[owner].shutdown().await.expect("stopped");
    let told = clients[1 - owner].get_until_it_has("/metrics", owns).await;
    assert!(told.body.contains(pending), "{told:?}");
    nodes[1 - owner].shutdown().await.expect("stopped");
}

/// What happened: an application that was stopped ended its shows while its node still owned logs; what the other one
/// forwarded until these had moved was answered 503. Now nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_one_of_two_is_stopped_the_other_has_no_errors() {
    let Some((nodes, _folder)) = two_nodes(&[]).await else {
        return;
    };
    let done = Arc::new(AtomicBool::new(false));
    let counts = Arc::new([const { AtomicU64::new(0) }; 8]);
    let callers: Vec<_> = (0..counts.len())
        .map(|number| {
            let (done, counts) = (Arc::clone(&done), Arc::clone(&counts));
            let address = nodes[1].server().local_addr();
            tokio::spawn(async move {
                let mut client = Client::connect(address).await;
                let show = format!("01890a5d-ac96-774b-bcce-b302099a80{number:02}");
                let json = "content-type: application/json\r\n";
                let body = format!(r#"{{"showId":"{show}","title":"Ran","maxSeats":1}}"#);
                let created = client.request("POST", "/shows", json, &body).await;
                assert!(created.status < 300, "{created:?}");
                let path = format!("/shows/{show}/seats/0");
                let reserve = r#"{"action":"RESERVE"}"#;
                let cancel = r#"{"action":"CANCEL_RESERVATION"}"#;
                while !done.load(Ordering::SeqCst) {
                    let reserved = client.request("PATCH", &path, json, reserve).await;
                    assert!(reserved.status < 300, "{reserved:?}");
                    let shown = client
                        .request("GET", &format!("/shows/{show}"), "", "")
                        .await;
                    assert!(shown.body.contains("RESERVED"), "{shown:?}");
                    let cancelled = client.request("PATCH", &path, json, cancel).await;
                    assert!(cancelled.status < 300, "{cancelled:?}");
                    counts[number].fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let all_reach = |more: u64| {
        let goals = counts
            .iter()
            .map(|count| count.load(Ordering::SeqCst) + more);
        let goals: Vec<u64> = goals.collect();
        let counts = Arc::clone(&counts);
        let callers = &callers;
        let reached = async move {
            for ((count, goal), caller) in counts.iter().zip(goals).zip(callers) {
                while count.load(Ordering::SeqCst) < goal && !caller.is_finished() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        async move {
            let reached = tokio::time::timeout(support::DEADLINE, reached).await;
            reached.expect("each goes on");
        }
    };
    all_reach(5).await;
    nodes[0].shutdown().await.expect("stopped");
    all_reach(5).await;
    done.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.await.expect("no error");
    }
    nodes[1].shutdown().await.expect("stopped");
}
