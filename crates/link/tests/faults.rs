//! Nodes on a network that a test hurts: links that break, freeze, flap, and lose one direction.

#![allow(clippy::expect_used, reason = "in tests")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use gesta_core::LogId;
use gesta_link::{Answer, ForwardError, Forwarder, Patience, Reach, ReturnReason, Times};
use gesta_rig::FaultProxy;
use support::{
    Behaviour, LONG, Node, body, config, forwarder, forwarder_with, later, node,
    node_behind_a_network, patient, quick, route, until, within,
};
use tokio::time::Instant;

const LOG: LogId = LogId(0);

/// A forwarder with these times, whose log 0 is owned by a patient node behind a network.
async fn through_a_network(times: Times) -> (Node, FaultProxy, Forwarder) {
    let (owner, network) = node_behind_a_network(config()).await;
    let sender = forwarder_with(times);
    within(sender.set_route(LOG, route(network.addr(), 1))).await;
    // Else the call may come back before there is a link.
    until(&sender, network.addr(), Reach::Reachable).await;
    assert_eq!(within(call(&sender, "first")).await, Ok(body("first")));
    (owner, network, sender)
}

fn call(
    sender: &Forwarder,
    text: &str,
) -> impl Future<Output = Result<Bytes, ForwardError>> + use<> {
    support::call(sender, LOG, 1, body(text), later())
}

fn unreachable(was_written: bool) -> Result<Bytes, ForwardError> {
    Err(ForwardError::Returned {
        reason: ReturnReason::Unreachable,
        was_written,
    })
}

/// Goal: the link dies between a call and its reply. The call is sent again on a new link, and has one outcome.
#[tokio::test]
async fn a_call_whose_link_dies_is_sent_again() {
    let (owner, network, sender) = through_a_network(patient()).await;
    owner.owned.behave(0, Behaviour::Hold);
    let calls = ["a", "b"].map(|text| call(&sender, text));
    owner.owned.seen(3).await;
    let lost = owner.owned.take_held();
    owner.owned.behave(0, Behaviour::Echo);
    assert_eq!(network.cut_all(), 1);
    let replies = within(join_all(calls)).await;
    assert_eq!(replies, [Ok(body("a")), Ok(body("b"))]);
    assert_eq!(owner.owned.texts(0), ["first", "a", "b", "a", "b"]);
    let calls = owner.owned.calls();
    let doubts: Vec<bool> = calls.iter().map(|(_, call)| call.is_in_doubt).collect();
    assert_eq!(
        doubts,
        [false, false, false, true, true],
        "the owner knows what it may have done before"
    );
    drop(lost);
}

/// Goal: the same, but the owner cannot be reached again: the caller hears that the call may have been done.
#[tokio::test]
async fn a_call_whose_link_dies_for_good_comes_back_in_doubt() {
    let (owner, network, sender) = through_a_network(quick()).await;
    owner.owned.behave(0, Behaviour::Hold);
    let written = call(&sender, "written");
    owner.owned.seen(2).await;
    network.refuse_connections(true);
    network.cut_all();
    let is_noticed = async {
        while sender.nodes()[0].reach == Reach::Reachable {
            tokio::task::yield_now().await;
        }
    };
    within(is_noticed).await;
    let waiting = call(&sender, "waiting");
    assert_eq!(within(written).await, unreachable(true));
    assert_eq!(within(waiting).await, unreachable(false));
    assert_eq!(
        within(call(&sender, "later")).await,
        unreachable(false),
        "at once"
    );
    assert_eq!(sender.unreachable(), [network.addr().into()]);
}

/// Goal: a new owner gets what the old one left unanswered when its link died, in order.
#[tokio::test]
async fn a_new_owner_gets_what_a_dead_one_left() {
    let (owner, network, sender) = through_a_network(patient()).await;
    let next = node(config()).await;
    owner.owned.behave(0, Behaviour::Hold);
    let calls = ["a", "b", "c"].map(|text| call(&sender, text));
    owner.owned.seen(4).await;
    network.freeze(true);
    within(sender.set_route(LOG, route(next.address, 2))).await;
    for (reply, text) in within(join_all(calls))
        .await
        .into_iter()
        .zip(["a", "b", "c"])
    {
        assert_eq!(reply, Ok(body(text)));
    }
    assert_eq!(next.owned.texts(0), ["a", "b", "c"]);
}

/// Goal: one direction is dead. Calls come back, the node is told as unreachable, and is used again only after its link
/// has held for a while.
#[tokio::test]
async fn a_cut_in_one_direction_makes_the_owner_unreachable() {
    join_all([true, false].map(cut_in_one_direction)).await;
}

async fn cut_in_one_direction(replies_are_lost: bool) {
    let (owner, network, sender) = through_a_network(quick()).await;
    match replies_are_lost {
        true => network.swallow_replies(true),
        false => network.hold_requests(true),
    }
    let lost = within(call(&sender, "lost")).await;
    assert_eq!(lost, unreachable(true));
    assert_eq!(sender.unreachable(), [network.addr().into()]);
    assert_eq!(owner.owned.calls().len(), 1 + usize::from(replies_are_lost));
    network.swallow_replies(false);
    network.hold_requests(false);
    network.cut_all();
    // The link comes again, but is not trusted yet.
    let accepted = network.connections();
    until(&sender, network.addr(), Reach::Reachable).await;
    assert!(network.connections() >= accepted);
    assert_eq!(within(call(&sender, "healed")).await, Ok(body("healed")));
    // What was held back has arrived at last, on a link that was given up: it may be done, but not after newer calls.
    let texts = owner.owned.texts(0);
    assert_eq!(
        texts.last().map(String::as_str),
        Some("healed"),
        "{texts:?}"
    );
}

/// Goal: a frozen owner is given up after `dead_after`, and its connection with it.
#[tokio::test]
async fn a_frozen_link_is_given_up() {
    let (_owner, network, sender) = through_a_network(quick()).await;
    network.freeze(true);
    assert_eq!(within(call(&sender, "frozen")).await, unreachable(true));
    let trouble = sender.nodes().remove(0).trouble.expect("a sentence");
    assert!(
        trouble.contains("no answer") || trouble.contains("no link within"),
        "{trouble}"
    );
}

fn impatient(
    sender: &Forwarder,
    text: &str,
) -> impl Future<Output = Result<Bytes, ForwardError>> + use<> {
    let replied = sender.call_with(LOG, 1, body(text), later(), Patience::UntilSilent);
    async move { replied.await.map(|reply| reply.body) }
}

/// Goal: calls that need not wait for a silent owner come back long before its link is given up, those that were
/// written and those that come later; the others wait, and are answered when it was a false alarm.
#[tokio::test]
async fn a_silent_owner_keeps_only_the_calls_that_need_it() {
    let times = Times {
        silent_after: LONG,
        ..patient()
    };
    let (owner, network, sender) = through_a_network(times).await;
    owner.owned.behave(0, Behaviour::Hold);
    let (first, command) = (impatient(&sender, "first"), call(&sender, "command"));
    owner.owned.seen(3).await;
    network.freeze(true);
    let silent = |was_written| {
        Err(ForwardError::Returned {
            reason: ReturnReason::Silent,
            was_written,
        })
    };
    assert_eq!(within(first).await, silent(true));
    assert_eq!(within(impatient(&sender, "second")).await, silent(false));
    assert_eq!(sender.nodes()[0].reach, Reach::Reachable, "not given up");
    network.freeze(false);
    owner.owned.behave(0, Behaviour::Echo);
    for answer in owner.owned.take_held() {
        answer.send(Answer::Reply(body("late"))).expect("awaited");
    }
    assert_eq!(within(command).await, Ok(body("late")));
    let heard = async {
        while impatient(&sender, "heard").await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within(heard).await;
}

/// Goal: between the silence of an owner and its being unreachable there is no time in which calls that need not wait
/// do wait.
#[tokio::test]
async fn a_silent_owner_that_is_given_up_is_silent_still() {
    let times = Times {
        silent_after: Duration::from_millis(300),
        dead_after: Duration::from_secs(1),
        // A call that waits, waits for so long.
        return_after: LONG,
        ..quick()
    };
    let (owner, network, sender) = through_a_network(times).await;
    owner.owned.behave(0, Behaviour::Hold);
    let command = call(&sender, "command");
    let is_taken = async {
        while !owner.owned.texts(0).contains(&"command".to_owned()) {
            tokio::task::yield_now().await;
        }
    };
    within(is_taken).await;
    network.freeze(true);
    let reach = || sender.nodes()[0].reach;
    let mut returned_between = 0;
    let end = later();
    while reach() != Reach::Unreachable {
        assert!(Instant::now() < end, "the owner is never unreachable");
        let before = reach();
        let reply = within(impatient(&sender, "more")).await;
        let is_silent = matches!(
            reply,
            Err(ForwardError::Returned {
                reason: ReturnReason::Silent,
                ..
            })
        );
        assert!(
            is_silent || reply.is_err() && reach() == Reach::Unreachable,
            "{reply:?}"
        );
        if is_silent && before == Reach::Connecting {
            returned_between += 1;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(returned_between > 0, "all calls have waited");
    assert_eq!(within(command).await, unreachable(true));
}

/// Goal: a link that flaps under load reorders nothing and loses nothing. Calls may be done twice: their ids tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_flaps_keeps_the_order() {
    let (owner, network, sender) = through_a_network(patient()).await;
    let mut calls = Vec::new();
    for round in 0..20 {
        let texts = (0..100).map(|n| (round * 100 + n).to_string());
        calls.extend(texts.map(|text| call(&sender, &text)));
        owner.owned.seen(1 + round * 50).await;
        network.cut_all();
    }
    for (n, reply) in within(join_all(calls)).await.into_iter().enumerate() {
        assert_eq!(reply, Ok(body(n)));
    }
    let mut newest = -1;
    for text in owner.owned.texts(0).iter().skip(1) {
        let number: i64 = text.parse().expect("a number");
        assert!(number <= newest + 1, "{number} overtook after {newest}");
        newest = newest.max(number);
    }
    assert_eq!(newest, 1_999);
}

/// Goal: an owner that stops serving a lane without a word (it broke its own rules) is asked again, not for ever and
/// not in a loop without pauses.
#[tokio::test]
async fn a_reply_that_is_too_large_ends_as_a_deadline() {
    let mut small = config();
    small.bounds.body_bytes_max = 1_000;
    let (owner, sender) = (node(small.clone()).await, forwarder(small));
    within(sender.set_route(LOG, route(owner.address, 1))).await;
    until(&sender, owner.address, Reach::Reachable).await;
    owner.owned.behave(0, Behaviour::Hold);
    let deadline = Instant::now() + LONG;
    let reply = support::call(&sender, LOG, 1, body("large"), deadline);
    owner.owned.seen(1).await;
    let held = owner.owned.take_held().pop().expect("held");
    held.send(Answer::Reply(Bytes::from(vec![0; 1_001])))
        .expect("awaited");
    let over = ForwardError::Returned {
        reason: ReturnReason::DeadlineOver,
        was_written: true,
    };
    assert_eq!(within(reply).await, Err(over));
    assert!(owner.owned.calls().len() < 50);
}
