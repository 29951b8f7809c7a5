//! What owners push, on real sockets.

#![allow(clippy::expect_used, reason = "in tests")]

mod support;

use bytes::Bytes;
use gesta_core::LogId;
use gesta_link::{Pushed, Pushes};
use support::{body, config, forwarder, node, node_behind_a_network, route, within};

const LOG: LogId = LogId(5);

async fn next(pushes: &mut Pushes) -> Pushed {
    within(pushes.next()).await.expect("not closed")
}

/// Takes what comes until this body; returns whether a gap was among it.
async fn until(pushes: &mut Pushes, body: Bytes) -> bool {
    let mut has_gap = false;
    loop {
        match next(pushes).await {
            Pushed::Gap => has_gap = true,
            Pushed::Body(got) if got == body => return has_gap,
            Pushed::Body(_) => {}
        }
    }
}

#[tokio::test]
async fn pushes_follow_the_owner_with_a_gap_first() {
    let (first, second) = (node(config()).await, node(config()).await);
    let sender = forwarder(config());
    assert!(sender.subscribe(LogId(16)).is_none(), "no such log");
    let mut pushes = sender.subscribe(LOG).expect("a log");
    within(sender.set_route(LOG, route(first.address, 1))).await;
    assert_eq!(next(&mut pushes).await, Pushed::Gap);
    first.server.push(LogId(4), &body("of another log"));
    for n in 0..1_000 {
        first.server.push(LOG, &body(n));
    }
    for n in 0..1_000 {
        assert_eq!(next(&mut pushes).await, Pushed::Body(body(n)));
    }
    within(sender.set_route(LOG, route(second.address, 2))).await;
    assert_eq!(next(&mut pushes).await, Pushed::Gap);
    second.server.push(LOG, &body("second"));
    assert_eq!(next(&mut pushes).await, Pushed::Body(body("second")));
    within(sender.shutdown()).await;
    assert_eq!(within(pushes.next()).await, None);
}

#[tokio::test]
async fn a_broken_link_makes_a_gap() {
    let (owner, network) = node_behind_a_network(config()).await;
    let sender = forwarder(config());
    let mut pushes = sender.subscribe(LOG).expect("a log");
    within(sender.set_route(LOG, route(network.addr(), 1))).await;
    assert_eq!(next(&mut pushes).await, Pushed::Gap);
    owner.server.push(LOG, &body("before"));
    assert_eq!(next(&mut pushes).await, Pushed::Body(body("before")));
    network.cut_all();
    owner.server.push(LOG, &body("lost"));
    assert_eq!(next(&mut pushes).await, Pushed::Gap);
    owner.server.push(LOG, &body("after"));
    assert_eq!(next(&mut pushes).await, Pushed::Body(body("after")));
}

/// Goal: a subscriber that does not read loses pushes and is told so; neither the owner nor calls wait for it.
#[tokio::test]
async fn a_slow_subscriber_gets_a_gap_and_holds_nobody_up() {
    let mut bounded = config();
    bounded.bounds.push_bytes_max = 10_000;
    let (owner, sender) = (node(bounded.clone()).await, forwarder(bounded));
    let mut pushes = sender.subscribe(LOG).expect("a log");
    within(sender.set_route(LOG, route(owner.address, 1))).await;
    assert_eq!(next(&mut pushes).await, Pushed::Gap);
    for _ in 0..1_000 {
        owner.server.push(LOG, &Bytes::from(vec![7; 1_000]));
        let call = support::call(&sender, LOG, 1, body("call"), support::later());
        assert!(within(call).await.is_ok());
    }
    owner.server.push(LOG, &body("last"));
    assert!(until(&mut pushes, body("last")).await);
}
