//! Rights that are taken away through one node are gone at all of them.

use std::time::{Duration, Instant};

use gesta_access::{Accounts, Scope};

use crate::connection::{Connection, Open};
use crate::raw::{Raw, soon};
use crate::requests::{GROUPS, READ, bytes_of, consuming, following, reading};
use crate::world::{World, basic};

/// Every node follows a change within this time (`docs/operating/security.md`).
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);
/// How often rights are taken away until it is done in time.
const ATTEMPTS: usize = 3;
/// The rights of the stream `plan`.
const OF_TEAM: &str = r#"{"$acl":{"$r":"team"}}"#;

/// What runs under somebody's rights, at nodes of which none is the one through which they are taken away.
struct Running {
    http: Vec<Raw>,
    grpc: Vec<Open>,
}

impl Running {
    /// Subscribes to the stream `plan` at two nodes, and joins its group at the one that runs it.
    async fn begin(world: &World, authorization: &str) -> Self {
        let headers = [("authorization", authorization)];
        let (mut http, mut grpc) = (Vec::new(), Vec::new());
        for node in [world.owner, world.forwarder] {
            let address = world.address(node);
            let call = ("GET", "/streams/plan/subscribe");
            let mut subscribed = Raw::call(address, call, authorization, "").await;
            subscribed.until("event: caught_up").await;
            http.push(subscribed);
            let connection = Connection::to(address).await;
            let mut subscribed = connection.open(READ, &headers).await;
            let request = bytes_of(&reading(following("plan")));
            subscribed.send_bytes(request).await;
            subscribed.close();
            grpc.push(subscribed);
        }
        let connection = Connection::to(world.address(world.owner)).await;
        let mut consumer = connection.open(&format!("{GROUPS}/Read"), &headers).await;
        consumer.send_bytes(consuming("plan")).await;
        grpc.push(consumer);
        // Each has the confirmation and the event.
        for open in &mut grpc {
            for _ in 0..2 {
                open.next().await.expect("a message");
            }
        }
        Self { http, grpc }
    }

    /// All of it ends with these problems.
    async fn ends(self, problem: &str, code: i32) {
        for raw in self.http {
            let text = soon(raw.rest()).await;
            assert!(
                text.contains(&format!("urn:gesta:problem:{problem}")),
                "{text}"
            );
        }
        for open in self.grpc {
            let ended = open.end().await;
            assert_eq!(ended.code, code, "{}", ended.message());
        }
    }
}

/// Takes rights away up to three times, until it is done in time: on a busy machine everything may stand still for a
/// while. `once` takes them away, sees to it that all ends as it must, and gives the time that this took.
async fn in_time(what: &str, once: impl AsyncFn() -> Duration) {
    let mut took = Vec::new();
    for _ in 0..ATTEMPTS {
        took.push(once().await);
        println!("{what}: {took:?}");
        if took.iter().any(|took| *took <= FOLLOWED_WITHIN) {
            return;
        }
    }
    panic!("{what}: {took:?}");
}

/// Goal: what runs at a node ends within a second when rights are taken away through another one, and new calls are
/// refused at all nodes: by another group of the user, by other rights of the stream, by the end of a token, and by the
/// end of the user.
#[tokio::test(flavor = "multi_thread")]
async fn rights_that_are_taken_away_through_one_node_are_gone_at_all() {
    let Some(world) = World::start().await else {
        return;
    };
    world.seed("plan").await;
    world.set_metadata("plan", OF_TEAM).await;
    world.group("plan").await;
    let accounts = world.accounts(world.third());
    in_time("another group", async || {
        another_group(&world, &accounts).await
    })
    .await;
    in_time("other rights of the stream", async || {
        other_rights(&world).await
    })
    .await;
    in_time("a revoked token", async || {
        a_revoked_token(&world, &accounts).await
    })
    .await;
    in_time("a disabled user", async || {
        a_disabled_user(&world, &accounts).await
    })
    .await;
}

async fn another_group(world: &World, accounts: &Accounts) -> Duration {
    let running = Running::begin(world, &basic("mate")).await;
    let begun = Instant::now();
    let others = vec!["others".to_owned()];
    accounts.set_groups("mate", others).await.unwrap();
    running.ends("forbidden", 7).await;
    let took = begun.elapsed();
    let team = vec!["team".to_owned()];
    accounts.set_groups("mate", team).await.unwrap();
    until_all_read(world, &basic("mate")).await;
    took
}

async fn other_rights(world: &World) -> Duration {
    let running = Running::begin(world, &basic("mate")).await;
    let begun = Instant::now();
    world.set_metadata("plan", r#"{"$acl":{"$r":[]}}"#).await;
    running.ends("forbidden", 7).await;
    let took = begun.elapsed();
    world.set_metadata("plan", OF_TEAM).await;
    until_all_read(world, &basic("mate")).await;
    took
}

async fn a_revoked_token(world: &World, accounts: &Accounts) -> Duration {
    let token = world.token("mate", &[Scope::Read], &[]).await;
    let running = Running::begin(world, &token).await;
    let begun = Instant::now();
    // `Bearer gesta_ID_SECRET`
    let id = token.split('_').nth(1).unwrap();
    accounts.revoke_token(id).await.unwrap();
    running.ends("unauthenticated", 16).await;
    world.until_all_answer(&token, 401).await;
    begun.elapsed()
}

async fn a_disabled_user(world: &World, accounts: &Accounts) -> Duration {
    let running = Running::begin(world, &basic("mate")).await;
    let begun = Instant::now();
    accounts.disable("mate").await.unwrap();
    running.ends("unauthenticated", 16).await;
    world.until_all_answer(&basic("mate"), 401).await;
    let took = begun.elapsed();
    accounts.enable("mate").await.unwrap();
    until_all_read(world, &basic("mate")).await;
    took
}

/// Waits until every node lets somebody read the stream `plan`.
async fn until_all_read(world: &World, authorization: &str) {
    for node in [world.owner, world.forwarder, world.third()] {
        let call = ("GET", "/streams/plan");
        soon(async { while world.status(node, call, authorization, "").await != 200 {} }).await;
    }
}
