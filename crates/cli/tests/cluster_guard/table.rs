//! Every kind of call with every kind of caller, through the node that owns the log and through one that forwards.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gesta_access::Scope;

use crate::connection::Connection;
use crate::grpc_rows::{self, status};
use crate::http_rows;
use crate::requests::GROUPS;
use crate::support::Tries;
use crate::world::{World, basic};

/// What has no end is ended by this deadline; other calls have time.
const ENDLESS: &str = "300m";
const TIMEOUT: &str = "60S";
/// The code of an answer that nothing can be done, as after the machine has stood still.
const UNAVAILABLE: i32 = 14;
/// The calls of consumer groups that the node carries out that runs the group.
const OF_ONE_GROUP: [&str; 6] = [
    "Read",
    "GetInfo",
    "Update",
    "ReplayParked",
    "Create",
    "Delete",
];

/// The callers of the tables, and what they say who they are.
async fn callers(world: &World, streams: &[&str]) -> [(&'static str, String); 10] {
    let read = world.token("user", &[Scope::Read], &[]).await;
    let append = world.token("user", &[Scope::Append], &[]).await;
    let admin = world.token("root", &[Scope::Admin], &[]).await;
    let of_both = [Scope::Read, Scope::Append];
    let narrow = world.token("root", &of_both, streams).await;
    [
        ("anonymous", String::new()),
        ("wrong", format!("Basic {}", STANDARD.encode("root:x"))),
        ("user", basic("user")),
        ("in the group", basic("mate")),
        ("ops", basic("ops")),
        ("admin", basic("root")),
        ("token read", read),
        ("token append", append),
        ("token admin", admin),
        ("token of some streams", narrow),
    ]
}

/// Goal: over gRPC every node answers every caller alike. A group is run by one node alone: others send there whom that
/// node would let in, and refuse the others as it would.
#[tokio::test(flavor = "multi_thread")]
async fn every_caller_over_grpc_through_every_node() {
    let Some(world) = World::start().await else {
        return;
    };
    for name in ["open", "team", "$x"] {
        world.seed(name).await;
    }
    world.set_metadata("open", "{}").await;
    world.set_metadata("team", grpc_rows::OF_TEAM).await;
    for name in ["open", "team"] {
        world.group(name).await;
    }
    let callers = callers(&world, &["open"]).await;
    for node in [world.owner, world.forwarder] {
        let connection = Connection::to(world.address(node)).await;
        for (path, sent, expected) in grpc_rows::rows() {
            let of_one_group = path
                .strip_prefix(GROUPS)
                .is_some_and(|method| OF_ONE_GROUP.contains(&&method[1..]));
            for (n, ((name, authorization), expected)) in callers.iter().zip(expected).enumerate() {
                let expected = match expected {
                    0 if of_one_group && node != world.owner => 5,
                    expected => expected,
                };
                let timeout = if expected == 4 { ENDLESS } else { TIMEOUT };
                let bytes = sent(node * callers.len() + n);
                let by = (authorization.as_str(), timeout);
                let tries = Tries::of(format!("{path} by {name} through {node}"));
                let code = loop {
                    let code = status(&connection, &path, by, bytes.clone()).await;
                    if code != UNAVAILABLE {
                        break code;
                    }
                    tokio::time::sleep(tries.pause_after(code)).await;
                };
                assert_eq!(code, expected, "{name} through {node}: {path} {bytes:?}");
            }
        }
    }
}

/// True for a call that the node carries out that runs the group.
fn is_of_one_group((method, target): (&str, &str)) -> bool {
    target.contains("/groups/") && !(method == "POST" && target == "/groups/restart")
}

/// Goal: the same over HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn every_caller_over_http_through_every_node() {
    let Some(world) = World::start().await else {
        return;
    };
    for name in ["team", "$x"] {
        world.seed(name).await;
    }
    world.set_metadata("team", http_rows::OF_TEAM).await;
    for source in ["open-1", "team", "$all"] {
        world.group(source).await;
    }
    let callers = callers(&world, &["open-", "several", "other"]).await;
    for node in [world.owner, world.forwarder] {
        for n in 0..callers.len() {
            world.seed(&format!("open-{node}-{n}")).await;
        }
        // The table is of a store in memory, which has no virtual streams; here they could be switched on and stay so.
        let rows = http_rows::rows();
        let rows = rows
            .into_iter()
            .filter(|row| row.1 != "/admin/virtual-streams");
        for (method, target, body, expected) in rows {
            for (n, ((name, authorization), expected)) in callers.iter().zip(expected).enumerate() {
                let target = target.replace("{n}", &format!("{node}-{n}"));
                let call = (method, target.as_str());
                let expected = match expected {
                    // 404: there is no such consumer at the node that runs the group.
                    200 | 201 | 404 if is_of_one_group(call) && node != world.owner => 421,
                    expected => expected,
                };
                let status = world.status(node, call, authorization, body).await;
                assert_eq!(status, expected, "{name} through {node}: {method} {target}");
            }
        }
    }
}
