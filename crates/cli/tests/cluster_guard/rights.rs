//! Rights that are taken away through one node are gone at all of them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use gesta_access::{Accounts, Scope};
use gesta_kit::depth::in_time;

use crate::connection::{Connection, Open};
use crate::raw::{Raw, soon};
use crate::requests::{GROUPS, READ, bytes_of, consuming, following, reading};
use crate::support::Tries;
use crate::world::{World, basic, served};

/// Every node follows a change within this time (`docs/operating/security.md`).
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);
/// The code of an answer that nothing can be done.
const UNAVAILABLE: i32 = 14;
/// How often rights are taken away until the nodes have news of the accounts meanwhile.
const ATTEMPTS: usize = 5;
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
            let call = ("GET", "/streams/plan/subscribe");
            let mut subscribed = world.answer(node, call, authorization, "").await;
            subscribed.until("event: caught_up").await;
            http.push(subscribed);
            let connection = Connection::to(world.address(node)).await;
            let request = bytes_of(&reading(following("plan")));
            let reads = (READ, request, Open::close as fn(&mut Open));
            grpc.push(opened(&connection, &headers, reads).await);
        }
        let connection = Connection::to(world.address(world.owner)).await;
        let path = format!("{GROUPS}/Read");
        let goes_on = |_: &mut Open| {};
        let consumes = (&*path, consuming("plan"), goes_on as fn(&mut Open));
        grpc.push(opened(&connection, &headers, consumes).await);
        Self { http, grpc }
    }

    /// All of it ends with these problems. Returns false if a node had no news of the accounts for too long, as when
    /// the machine has stood still: then what runs there ends in any case.
    async fn ends(self, problem: &str, code: i32) -> bool {
        let mut is_told = true;
        for raw in self.http {
            let text = soon(raw.rest()).await;
            let has = |problem: &str| text.contains(&format!("urn:gesta:problem:{problem}"));
            assert!(has(problem) || has("unavailable"), "{text}");
            is_told &= has(problem);
        }
        for open in self.grpc {
            let ended = open.end().await;
            let is_precise = ended.code == code || ended.code == UNAVAILABLE;
            assert!(is_precise, "{} {}", ended.code, ended.message());
            is_told &= ended.code == code;
        }
        is_told
    }
}

/// A call that is open: path, what is sent, and what is done after that. It has got the confirmation and the event.
async fn opened(
    connection: &Connection,
    headers: &[(&str, &str)],
    (path, sent, then): (&str, Bytes, fn(&mut Open)),
) -> Open {
    let tries = Tries::of(path);
    loop {
        let mut open = connection.open(path, headers).await;
        open.send_bytes(sent.clone()).await;
        then(&mut open);
        if open.next().await.is_some() && open.next().await.is_some() {
            return open;
        }
        let ended = open.end().await;
        assert_eq!(ended.code, UNAVAILABLE, "{}", ended.message());
        tokio::time::sleep(tries.pause_after(ended.message())).await;
    }
}

/// Takes rights away until the nodes have told what ended by that. Returns the time that it took.
async fn told(once: impl AsyncFn() -> Option<Duration>) -> Duration {
    for _ in 0..ATTEMPTS {
        if let Some(took) = once().await {
            return took;
        }
    }
    panic!("each time a node had no news of the accounts");
}

/// Goal: what runs at a node ends when rights are taken away through another one, and new calls are refused at all
/// nodes: by another group of the user, by other rights of the stream, by the end of a token, and by the end of the
/// user. The deep form checks that it takes no more than a second.
#[tokio::test(flavor = "multi_thread")]
async fn rights_that_are_taken_away_through_one_node_are_gone_at_all() {
    let Some(world) = World::start().await else {
        return;
    };
    world.seed("plan").await;
    world.set_metadata("plan", OF_TEAM).await;
    world.group("plan").await;
    let accounts = world.accounts(world.third());
    let took = told(async || another_group(&world, &accounts).await).await;
    in_time("another group is followed", took, FOLLOWED_WITHIN);
    let took = told(async || other_rights(&world).await).await;
    in_time("other rights are followed", took, FOLLOWED_WITHIN);
    let took = told(async || a_revoked_token(&world, &accounts).await).await;
    in_time("a revoked token is followed", took, FOLLOWED_WITHIN);
    let took = told(async || a_disabled_user(&world, &accounts).await).await;
    in_time("a disabled user is followed", took, FOLLOWED_WITHIN);
}

/// Gives the time until all has ended, as the others do; `None` if a node could not tell why.
async fn another_group(world: &World, accounts: &Accounts) -> Option<Duration> {
    let group = async |name: &str| {
        let groups = vec![name.to_owned()];
        served(async || accounts.set_groups("mate", groups.clone()).await).await;
    };
    let running = Running::begin(world, &basic("mate")).await;
    let begun = Instant::now();
    group("others").await;
    let is_told = running.ends("forbidden", 7).await;
    let took = begun.elapsed();
    group("team").await;
    until_all_read(world, &basic("mate")).await;
    is_told.then_some(took)
}

async fn other_rights(world: &World) -> Option<Duration> {
    let running = Running::begin(world, &basic("mate")).await;
    let begun = Instant::now();
    world.set_metadata("plan", r#"{"$acl":{"$r":[]}}"#).await;
    let is_told = running.ends("forbidden", 7).await;
    let took = begun.elapsed();
    world.set_metadata("plan", OF_TEAM).await;
    until_all_read(world, &basic("mate")).await;
    is_told.then_some(took)
}

async fn a_revoked_token(world: &World, accounts: &Accounts) -> Option<Duration> {
    let token = world
        .token("mate", &[Scope::Read, Scope::Consume], &[])
        .await;
    let running = Running::begin(world, &token).await;
    let begun = Instant::now();
    // `Bearer gesta_ID_SECRET`
    let id = token.split('_').nth(1).unwrap();
    served(async || accounts.revoke_token(id).await).await;
    let is_told = running.ends("unauthenticated", 16).await;
    world.until_all_answer(&token, 401).await;
    is_told.then(|| begun.elapsed())
}

async fn a_disabled_user(world: &World, accounts: &Accounts) -> Option<Duration> {
    let running = Running::begin(world, &basic("mate")).await;
    let begun = Instant::now();
    served(async || accounts.disable("mate").await).await;
    let is_told = running.ends("unauthenticated", 16).await;
    world.until_all_answer(&basic("mate"), 401).await;
    let took = begun.elapsed();
    served(async || accounts.enable("mate").await).await;
    until_all_read(world, &basic("mate")).await;
    is_told.then_some(took)
}

/// Waits until every node lets somebody read the stream `plan`.
async fn until_all_read(world: &World, authorization: &str) {
    for node in [world.owner, world.forwarder, world.third()] {
        let call = ("GET", "/streams/plan");
        soon(async { while world.status(node, call, authorization, "").await != 200 {} }).await;
    }
}
