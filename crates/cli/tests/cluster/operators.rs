//! What operators decide and what outlasts a restart: a drain that is held, and the version of the cluster.

use serde_json::Value;

use crate::nodes::{Nodes, WAIT};
use crate::support::{self, wait_until};

/// The row of a node in `gesta cluster status`; null if there is none.
fn row(nodes: &Nodes, node: usize) -> Value {
    let status = nodes.command(&["cluster", "status", "--output", "json"]);
    let rows = status
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let address = nodes.all[node].address.to_string();
    let mut mine = rows.filter(|row: &Value| row["kind"] == "node" && row["address"] == *address);
    mine.next().unwrap_or_default()
}

/// Goal: a node that is held stays empty when it is started again, until that is taken back, also while it is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_is_held_outlasts_a_restart() {
    let Some(mut nodes) = Nodes::start(2, 4).await else {
        return;
    };
    let held = nodes.all[0].address.to_string();
    nodes.command(&["cluster", "drain", &held, "--hold", "--wait", WAIT]);
    nodes.all[0].stop().await;
    nodes.all[0].launch();
    nodes.all[0].ready().await;
    let now = row(&nodes, 0);
    assert_eq!(
        (&now["state"], &now["held"]),
        (&"draining".into(), &true.into())
    );
    nodes
        .owned("the other one has all", |owned| owned[0] == 0)
        .await;
    let refused = nodes.named(&["cluster", "move", "0", "--to", &held]);
    let refused = support::run(&refused.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(
        support::stderr(&refused).contains("is draining"),
        "{refused:?}"
    );
    nodes.all[0].stop().await;
    // It may have had no time to leave.
    wait_until("the node has left", || row(&nodes, 0).is_null());
    let said = nodes.command(&["cluster", "drain", &held, "--undo"]);
    assert!(said.contains("takes part when it joins again"), "{said}");
    nodes.all[0].launch();
    nodes.all[0].ready().await;
    let now = row(&nodes, 0);
    assert_eq!((&now["state"], &now["held"]), (&"up".into(), &false.into()));
    nodes.command(&["cluster", "move", "0", "--to", &held, "--wait", WAIT]);
}

/// Goal: `finalize` goes no further than the oldest build reads; a node that cannot read the version of the cluster
/// stops and refuses to start, with a sentence.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_cannot_read_the_version_of_the_cluster_says_so() {
    let Some(mut nodes) = Nodes::start(1, 1).await else {
        return;
    };
    let said = nodes.command(&["cluster", "finalize"]);
    assert!(
        said.contains("nothing to do: the cluster is at version 1"),
        "{said}"
    );
    assert_eq!(row(&nodes, 0)["cluster_version"], 1);
    nodes.ask("UPDATE gesta.clusters SET version = 2");
    nodes.all[0].ended().await;
    let said = nodes.all[0].log();
    assert!(said.contains("the cluster is at version 2 now"), "{said}");
    nodes.all[0].launch();
    wait_until("the node ends", || !nodes.all[0].is_alive());
    let said = nodes.all[0].log();
    assert!(said.contains("it was finalized for newer builds"), "{said}");
}
