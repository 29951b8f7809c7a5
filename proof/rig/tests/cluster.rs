//! A primary with standbys: what is lost at a promotion, what is not, and hosts that do not answer.

#![expect(clippy::expect_used, reason = "tests stop at the first surprise")]

use std::time::Duration;

use gesta_rig::{Cluster, Replication, Server, SilentHost};
use tokio_postgres::NoTls;

/// No test waits longer for anything. A server that does not end is waited for as long before it is killed.
const PATIENCE: Duration = Duration::from_secs(60);

fn count(server: &Server) -> Option<String> {
    server.query("SELECT count(*) FROM t").expect("counted")
}

/// Goal: commits that a standby has not received are gone after its promotion, the old primary keeps them, and it can
/// follow the new one.
#[test]
fn a_standby_that_lags_loses_commits_when_it_is_promoted() {
    let Some(mut cluster) = Cluster::start(1, Replication::Asynchronous).expect("starts") else {
        return;
    };
    let primary = cluster.server(0);
    primary.execute("CREATE TABLE t(i int)").expect("created");
    primary.execute("INSERT INTO t VALUES (1)").expect("stored");
    cluster.wait_for_standby(1).expect("caught up");
    cluster.hold_replication(1).expect("held");
    primary
        .execute("INSERT INTO t VALUES (2)")
        .expect("acknowledged");
    cluster.release_replication(1).expect("released");
    cluster.wait_for_standby(1).expect("caught up");
    assert_eq!(count(cluster.server(1)).as_deref(), Some("2"));
    cluster.hold_replication(1).expect("held");
    cluster
        .server(0)
        .execute("INSERT INTO t VALUES (3)")
        .expect("acknowledged");
    cluster.promote(1).expect("promoted");
    assert_eq!(cluster.primary(), 1);
    assert_eq!(
        count(cluster.server(0)).as_deref(),
        Some("3"),
        "the old primary goes on"
    );
    assert_eq!(
        count(cluster.server(1)).as_deref(),
        Some("2"),
        "one commit was lost"
    );
    cluster
        .server(1)
        .execute("INSERT INTO t VALUES (4), (5)")
        .expect("accepts writes");
    cluster.follow(0).expect("follows");
    assert_eq!(count(cluster.server(0)).as_deref(), Some("4"));
    assert!(
        cluster
            .server(0)
            .execute("INSERT INTO t VALUES (6)")
            .is_err(),
        "a standby"
    );
}

/// Goal: with synchronous replication nothing acknowledged is lost, and a commit waits for a standby that is lost.
#[tokio::test(flavor = "multi_thread")]
async fn synchronous_replication_loses_nothing() {
    let Some(mut cluster) = Cluster::start(1, Replication::Synchronous).expect("starts") else {
        return;
    };
    cluster
        .server(0)
        .execute("CREATE TABLE t(i int)")
        .expect("created");
    for (old, new) in [(0, 1), (1, 0)] {
        cluster
            .server(old)
            .execute("INSERT INTO t VALUES (1)")
            .expect("acknowledged");
        cluster.hold_replication(new).expect("held");
        let url = cluster.server(old).url();
        let client = gesta_rig::connect(&url).await.expect("connects");
        let waiting = client.batch_execute("INSERT INTO t VALUES (2)");
        assert!(
            tokio::time::timeout(Duration::from_millis(300), waiting)
                .await
                .is_err()
        );
        cluster.server_mut(old).kill_9().expect("killed");
        cluster.promote(new).expect("promoted");
        cluster.follow(old).expect("follows");
        cluster
            .set_replication(Replication::Synchronous)
            .expect("set");
    }
    assert_eq!(
        count(cluster.server(1)).as_deref(),
        Some("2"),
        "what was acknowledged, and nothing else"
    );
}

/// Goal: a frozen server and a silent host accept connections and do not answer; both end in time.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_and_silent_hosts_accept_and_do_not_answer() {
    let silent = SilentHost::start().await.expect("listens");
    let Some(cluster) = Cluster::start(1, Replication::Asynchronous).expect("starts") else {
        return;
    };
    cluster.server(0).freeze().expect("frozen");
    for addr in [silent.addr(), cluster.server(0).addr()] {
        let url = cluster.url_through(&[addr]);
        let attempt =
            tokio::spawn(async move { tokio_postgres::connect(&url, NoTls).await.is_ok() });
        if addr == silent.addr() {
            let accepted = async {
                while silent.connections() == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let accepted = tokio::time::timeout(PATIENCE, accepted).await;
            accepted.expect("accepted");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!attempt.is_finished(), "{addr} answers");
        attempt.abort();
    }
    assert_eq!(silent.connections(), 1);
    cluster.server(0).thaw().expect("goes on");
    cluster
        .server(0)
        .execute("CREATE TABLE t(i int)")
        .expect("answers again");
    cluster.server(0).freeze().expect("frozen");
    let begun = std::time::Instant::now();
    drop(cluster);
    assert!(begun.elapsed() < PATIENCE, "a frozen server ends too");
}
