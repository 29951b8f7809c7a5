//! Two and three nodes on real sockets, without faults of the network.

#![allow(clippy::expect_used, reason = "in tests")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use gesta_core::LogId;
use gesta_link::{
    Address, Answer, AskError, ForwardError, Outgoing, Patience, Reach, Reply, ReturnReason, Route,
    RouteOwner, Times,
};
use support::{
    Behaviour, LONG, body, config, epoch, forwarder, forwarder_with, hint, later, node,
    node_behind_a_network, patient, route, trouble, until, within,
};
use tokio::sync::watch;
use tokio::time::Instant;

/// Times of a forwarder that waits a second for a link, and for an owner.
fn gives_up_after_a_second() -> Times {
    Times {
        return_after: Duration::from_secs(1),
        ..patient()
    }
}

fn returned(reason: ReturnReason, was_written: bool) -> Result<Bytes, ForwardError> {
    Err(ForwardError::Returned {
        reason,
        was_written,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_of_sixteen_logs_arrive_in_order() {
    let (owner, sender) = (node(config()).await, forwarder(config()));
    for log in 0..16 {
        drop(sender.set_route(LogId(log), route(owner.address, 1)));
    }
    let call = |n: u16| {
        let text = body(n);
        let reply = support::call(&sender, LogId(n % 16), 1, text.clone(), later());
        async move { assert_eq!(reply.await, Ok(text)) }
    };
    within(join_all((0..10_000).map(call))).await;
    for log in 0..16 {
        let expected: Vec<_> = (0..10_000)
            .filter(|n| n % 16 == log)
            .map(|n| n.to_string())
            .collect();
        assert_eq!(owner.owned.texts(log), expected);
    }
}

/// Goal: an owner that does not answer on one lane gets no more calls there than its credit, and the other lanes go on.
#[tokio::test]
async fn a_slow_lane_holds_up_only_itself() {
    let mut bounded = config();
    bounded.bounds.lane_calls_max = 8;
    let (owner, sender) = (node(bounded).await, forwarder(config()));
    owner.owned.behave(0, Behaviour::Hold);
    for log in 0..2 {
        drop(sender.set_route(LogId(log), route(owner.address, 1)));
    }
    let slow: Vec<_> = (0..100)
        .map(|n| support::call(&sender, LogId(0), 1, body(n), later()))
        .collect();
    let quick = (0..1_000).map(|n| support::call(&sender, LogId(1), 1, body(n), later()));
    let quick = within(join_all(quick)).await;
    assert!(quick.iter().all(Result::is_ok));
    owner.owned.seen(1_008).await;
    assert_eq!(owner.owned.texts(0).len(), 8, "the credit");
    owner.owned.behave(0, Behaviour::Echo);
    for held in owner.owned.take_held() {
        held.send(Answer::Reply(Bytes::new())).expect("awaited");
    }
    assert!(within(join_all(slow)).await.iter().all(Result::is_ok));
    let expected: Vec<_> = (0..100).map(|n| n.to_string()).collect();
    assert_eq!(owner.owned.texts(0), expected);
    let waited = sender.stats().credit_wait;
    assert!(waited > Duration::ZERO, "it is told");
}

/// Goal: bodies of 16 MiB are on their way while small calls of another log come and go.
#[tokio::test]
async fn large_bodies_hold_up_only_their_lane() {
    let ((owner, network), sender) = (node_behind_a_network(config()).await, forwarder(config()));
    network.set_round_trip(Duration::from_millis(20));
    for log in 0..2 {
        drop(sender.set_route(LogId(log), route(network.addr(), 1)));
    }
    let small = || support::call(&sender, LogId(1), 1, body("small"), later());
    assert!(within(small()).await.is_ok(), "the link is up");
    let large = Bytes::from(vec![7; 16 << 20]);
    let calls: Vec<_> = (0..4)
        .map(|_| support::call(&sender, LogId(0), 1, large.clone(), later()))
        .collect();
    assert!(within(small()).await.is_ok());
    let logs = owner.owned.calls().into_iter().map(|(log, _)| log.0);
    let large_ones = logs.filter(|log| *log == 0).count();
    assert!(
        large_ones < 2,
        "{large_ones}: the small call waited for the large ones"
    );
    for reply in within(join_all(calls)).await {
        assert!(reply == Ok(large.clone()), "another body came back");
    }
}

/// Goal: three calls on a lane, *not here* for the second while the first is under way; the second and the third reach
/// the new owner in order, after the first was answered.
#[tokio::test]
async fn refused_calls_follow_the_hint_in_order() {
    let (first, second) = (node(config()).await, node(config()).await);
    let (hints, mut told) = watch::channel(None);
    let on_hint = Arc::new(move |log, hint: &gesta_link::Hint| {
        hints.send_replace(Some((log, hint.clone())));
    });
    let sender = gesta_link::Forwarder::start(config(), on_hint).expect("started");
    let log = LogId(3);
    first.owned.behave(3, Behaviour::Hold);
    drop(sender.set_route(log, route(first.address, 1)));
    let one = support::call(&sender, log, 1, body("one"), later());
    first.owned.seen(1).await;
    first
        .owned
        .behave(3, Behaviour::NotHere(hint(second.address, 2)));
    let two = support::call(&sender, log, 1, body("two"), later());
    let three = support::call(&sender, log, 1, body("three"), later());
    within(told.wait_for(Option::is_some)).await.expect("told");
    assert_eq!(*told.borrow(), Some((log, hint(second.address, 2))));
    assert!(
        second.owned.calls().is_empty(),
        "the first call is under way"
    );
    let held = first.owned.take_held().pop().expect("the first call");
    held.send(Answer::Reply(body("done"))).expect("awaited");
    assert_eq!(within(one).await, Ok(body("done")));
    assert_eq!(within(two).await, Ok(body("two")));
    assert_eq!(within(three).await, Ok(body("three")));
    assert_eq!(second.owned.texts(3), ["two", "three"]);
    assert_eq!(second.owned.calls()[0].1.epoch, epoch(2));
    let stats = sender.stats();
    assert_eq!(stats.moved, 1);
    assert_eq!((stats.without_owner, stats.outdated_hints), (0, 0));
    assert_eq!(stats.credit_wait, Duration::ZERO);
}

/// Goal: a call that was taken and then sent back goes to the new owner, with all later ones.
#[tokio::test]
async fn calls_that_were_taken_and_sent_back_move_on_in_order() {
    let (first, second) = (node(config()).await, node(config()).await);
    let sender = forwarder(config());
    let log = LogId(0);
    first.owned.behave(0, Behaviour::Hold);
    drop(sender.set_route(log, route(first.address, 1)));
    let calls: Vec<_> = (0..5)
        .map(|n| support::call(&sender, log, 1, body(n), later()))
        .collect();
    first.owned.seen(5).await;
    for (n, held) in first.owned.take_held().into_iter().enumerate() {
        let answer = match n {
            0 | 1 => Answer::Reply(body(n)),
            _ => Answer::NotHere(hint(second.address, 2)),
        };
        held.send(answer).expect("awaited");
    }
    for (n, reply) in within(join_all(calls)).await.into_iter().enumerate() {
        assert_eq!(reply, Ok(body(n)));
    }
    assert_eq!(second.owned.texts(0), ["2", "3", "4"]);
    let calls = second.owned.calls();
    let doubts: Vec<bool> = calls.iter().map(|(_, call)| call.is_in_doubt).collect();
    assert_eq!(doubts, [false, true, true], "the first owner had taken all");
}

#[tokio::test]
async fn calls_of_a_log_that_becomes_local_come_back_in_order() {
    let (owner, sender) = (node(config()).await, forwarder(config()));
    let log = LogId(0);
    owner.owned.behave(0, Behaviour::Hold);
    within(sender.set_route(log, route(owner.address, 1))).await;
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let submit = |n: usize| {
        let outcomes = Arc::clone(&outcomes);
        let on_reply = Box::new(move |result: Result<Reply, ForwardError>| {
            let result = result.map(|reply| reply.body);
            outcomes.lock().expect("no panics").push((n, result));
        });
        sender.submit(
            log,
            Outgoing {
                kind: 1,
                body: body(n),
                deadline: later(),
                patience: Patience::default(),
                on_reply,
            },
        );
    };
    (0..100).for_each(submit);
    owner.owned.seen(100).await;
    let local = Route {
        owner: RouteOwner::Local,
        epoch: epoch(2),
    };
    within(sender.set_route(log, local)).await;
    let came_back = std::mem::take(&mut *outcomes.lock().expect("no panics"));
    let expected: Vec<_> = (0..100)
        .map(|n| (n, returned(ReturnReason::Local, true)))
        .collect();
    assert_eq!(
        came_back, expected,
        "all were back when the route was in force"
    );
    let call = support::call(&sender, log, 1, body("later"), later());
    assert_eq!(within(call).await, returned(ReturnReason::Local, false));
}

#[tokio::test]
async fn deadlines_tell_whether_the_call_was_written() {
    let mut bounded = config();
    bounded.bounds.lane_calls_max = 1;
    let (owner, sender) = (node(bounded).await, forwarder(config()));
    drop(sender.set_route(LogId(0), route(owner.address, 1)));
    assert!(
        within(support::call(&sender, LogId(0), 1, body("first"), later()))
            .await
            .is_ok()
    );
    owner.owned.behave(0, Behaviour::Hold);
    let soon = Instant::now() + LONG;
    let written = support::call(&sender, LogId(0), 1, body("written"), soon);
    let waiting = support::call(&sender, LogId(0), 1, body("waiting"), soon);
    assert_eq!(
        within(written).await,
        returned(ReturnReason::DeadlineOver, true)
    );
    assert_eq!(
        within(waiting).await,
        returned(ReturnReason::DeadlineOver, false)
    );
    let (_, call) = owner.owned.calls().remove(1);
    assert!(call.remaining <= LONG);
    // The owner drops it, which makes room for a call that is not late.
    let dropped = owner.owned.take_held().pop().expect("held");
    owner.owned.behave(0, Behaviour::Echo);
    let next = support::call(&sender, LogId(0), 1, body("next"), later());
    // Nobody awaits it if this machine has stood still for so long that the lane was given up.
    let _ = dropped.send(Answer::DeadlineOver);
    assert_eq!(within(next).await, Ok(body("next")));
    assert_eq!(owner.owned.texts(0), ["first", "written", "next"]);
}

#[tokio::test]
async fn a_call_that_the_owner_drops_was_not_done() {
    let (owner, sender) = (node(config()).await, forwarder(config()));
    owner.owned.behave(0, Behaviour::Hold);
    drop(sender.set_route(LogId(0), route(owner.address, 1)));
    let call = support::call(&sender, LogId(0), 1, body("dropped"), later());
    owner.owned.seen(1).await;
    let held = owner.owned.take_held().pop().expect("held");
    held.send(Answer::DeadlineOver).expect("awaited");
    assert_eq!(
        within(call).await,
        returned(ReturnReason::DeadlineOver, false)
    );
}

#[tokio::test]
async fn calls_without_an_owner_or_a_link_come_back_after_a_second() {
    let sender = forwarder_with(gives_up_after_a_second());
    let start = Instant::now();
    let nobody = support::call(&sender, LogId(0), 1, body("a"), later());
    // Nobody listens on port 1.
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    drop(sender.set_route(LogId(1), route(address, 1)));
    let unreachable = support::call(&sender, LogId(1), 1, body("b"), later());
    assert_eq!(within(nobody).await, returned(ReturnReason::NoOwner, false));
    assert_eq!(
        within(unreachable).await,
        returned(ReturnReason::Unreachable, false)
    );
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert_eq!(sender.unreachable(), [Address::from(address)]);
    let trouble = trouble(&sender).await;
    assert!(trouble.contains("cannot connect"), "{trouble}");
}

/// Goal: what waits for the owners of many logs has one bound. What happened: each log had a bound of its own, and with
/// 1,024 logs they came to 128 GiB.
#[tokio::test]
async fn calls_of_all_logs_have_one_bound() {
    for of_bytes in [false, true] {
        let mut bounded = config();
        match of_bytes {
            true => bounded.bounds.all_waiting_bytes_max = 30,
            false => bounded.bounds.all_waiting_calls_max = 3,
        }
        let (owner, sender) = (node(config()).await, forwarder(bounded));
        let call = |log| support::call(&sender, LogId(log), 1, body("0123456789"), later());
        for log in 0..4 {
            owner.owned.behave(log, Behaviour::Hold);
            drop(sender.set_route(LogId(log), route(owner.address, 1)));
        }
        let held = [0, 1, 2].map(call);
        assert_eq!(within(call(3)).await, Err(ForwardError::Overloaded));
        owner.owned.seen(3).await;
        for answer in owner.owned.take_held() {
            answer.send(Answer::Reply(Bytes::new())).expect("awaited");
        }
        assert!(within(join_all(held)).await.iter().all(Result::is_ok));
        owner.owned.behave(3, Behaviour::Echo);
        assert!(within(call(3)).await.is_ok(), "there is room again");
    }
}

#[tokio::test]
async fn too_many_and_too_large_calls_are_refused_at_once() {
    let mut bounded = config();
    bounded.bounds.waiting_calls_max = 3;
    bounded.bounds.body_bytes_max = 100;
    let (owner, sender) = (node(bounded.clone()).await, forwarder(bounded));
    owner.owned.behave(0, Behaviour::Hold);
    drop(sender.set_route(LogId(0), route(owner.address, 1)));
    let large = support::call(&sender, LogId(0), 1, Bytes::from(vec![0; 101]), later());
    assert_eq!(within(large).await, Err(ForwardError::TooLarge));
    let held: Vec<_> = (0..3)
        .map(|n| support::call(&sender, LogId(0), 1, body(n), later()))
        .collect();
    let over = support::call(&sender, LogId(0), 1, body("over"), later());
    assert_eq!(within(over).await, Err(ForwardError::Overloaded));
    owner.owned.seen(3).await;
    for answer in owner.owned.take_held() {
        answer.send(Answer::Reply(Bytes::new())).expect("awaited");
    }
    assert!(within(join_all(held)).await.iter().all(Result::is_ok));
    owner.owned.behave(0, Behaviour::Echo);
    let again = support::call(&sender, LogId(0), 1, body("again"), later());
    assert_eq!(within(again).await, Ok(body("again")));
}

#[tokio::test]
async fn questions_go_to_a_node_and_not_to_a_log() {
    let (other, sender) = (node(config()).await, forwarder(config()));
    let address = Address::from(other.address);
    let answer = sender.ask(&address, 1, body("prepare"), later());
    assert_eq!(within(answer).await, Ok(body("prepare")));
    let nobody = Address::new("127.0.0.1:1");
    let sender = forwarder_with(gives_up_after_a_second());
    let answer = within(sender.ask(&nobody, 1, body("prepare"), later())).await;
    assert_eq!(answer, Err(AskError::Unreachable));
}

#[tokio::test]
async fn nodes_without_logs_are_connected_too() {
    let (other, sender) = (node(config()).await, forwarder(config()));
    sender.set_nodes(&[other.address.into()]);
    let is_reachable = async {
        while sender
            .nodes()
            .iter()
            .any(|node| node.reach != Reach::Reachable)
        {
            tokio::task::yield_now().await;
        }
    };
    within(is_reachable).await;
    sender.set_nodes(&[]);
    assert!(sender.nodes().is_empty());
}

/// Goal: calls that were taken are answered before the links of a node that stops are closed.
#[tokio::test]
async fn a_server_that_stops_answers_what_it_has_taken() {
    let owner = node(config()).await;
    let sender = forwarder_with(gives_up_after_a_second());
    owner.owned.behave(0, Behaviour::Hold);
    drop(sender.set_route(LogId(0), route(owner.address, 1)));
    // Else the calls may come back before there is a link.
    until(&sender, owner.address, Reach::Reachable).await;
    let calls: Vec<_> = (0..3)
        .map(|n| support::call(&sender, LogId(0), 1, body(n), later()))
        .collect();
    owner.owned.seen(3).await;
    let server = owner.server.clone();
    let stopped = tokio::spawn(async move { server.shutdown(support::PATIENCE).await });
    for (n, held) in owner.owned.take_held().into_iter().enumerate() {
        held.send(Answer::Reply(body(n))).expect("awaited");
    }
    for (n, reply) in within(join_all(calls)).await.into_iter().enumerate() {
        assert_eq!(reply, Ok(body(n)));
    }
    within(stopped).await.expect("stopped");
    // Else the forwarder may not have noticed yet, and would write the call.
    until(&sender, owner.address, Reach::Unreachable).await;
    let call = support::call(&sender, LogId(0), 1, body("later"), later());
    assert_eq!(
        within(call).await,
        returned(ReturnReason::Unreachable, false)
    );
}

/// Goal: a forwarder that stops, and one that is just dropped, leave no call without an outcome.
#[tokio::test]
async fn a_forwarder_that_stops_gives_all_calls_back() {
    for shuts_down in [true, false] {
        let (owner, sender) = (node(config()).await, forwarder(config()));
        owner.owned.behave(0, Behaviour::Hold);
        drop(sender.set_route(LogId(0), route(owner.address, 1)));
        let written = support::call(&sender, LogId(0), 1, body("written"), later());
        owner.owned.seen(1).await;
        let waiting = support::call(&sender, LogId(1), 1, body("waiting"), later());
        if shuts_down {
            within(sender.shutdown()).await;
            let late = support::call(&sender, LogId(1), 1, body("late"), later());
            assert_eq!(within(late).await, returned(ReturnReason::Closed, false));
        }
        drop(sender);
        assert_eq!(within(written).await, returned(ReturnReason::Closed, true));
        assert_eq!(within(waiting).await, returned(ReturnReason::Closed, false));
    }
}

/// Goal: a caller that panics when it is told its outcome harms no other call.
#[tokio::test]
async fn a_caller_that_panics_harms_no_other() {
    let (owner, sender) = (node(config()).await, forwarder(config()));
    drop(sender.set_route(LogId(0), route(owner.address, 1)));
    sender.submit(
        LogId(0),
        Outgoing {
            kind: 1,
            body: body("panics"),
            deadline: later(),
            patience: Patience::default(),
            on_reply: Box::new(|_| panic!("as the test wants")),
        },
    );
    let call = support::call(&sender, LogId(0), 1, body("other"), later());
    assert_eq!(within(call).await, Ok(body("other")));
}
