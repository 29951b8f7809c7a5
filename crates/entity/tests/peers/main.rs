//! Entities whose streams other nodes own, with nodes that the test plays: what travels, what is said when an answer is
//! lost, and that nobody answers from an outdated state.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]
#![allow(dead_code, reason = "the account can do more than is asked of it here")]

mod once;
mod others;
#[path = "../support/mod.rs"]
mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::ready;
use gesta_core::StreamId;
use gesta_core::peers::{PeerAnswer, PeerCall, Unanswered, UnansweredReason};
use gesta_entity::{Config, Entities, EntityType, Error, JsonEvents, Request};
use gesta_kit::faulty::World;
use others::{Others, call_of, pair, start, start_type};
use support::{Account, Command, Event, Insufficient, config};

async fn balance(accounts: &Entities<Account>) -> u64 {
    accounts.read("1", |account| account.balance).await.unwrap()
}

/// Goal: replies, rejections, key reuse and reads are the same wherever they are asked for, and the entity is in the
/// memory of its owner only.
#[tokio::test(start_paused = true)]
async fn any_node_carries_out_any_command() {
    let pair = pair();
    let edge = &pair.edge;
    assert_eq!(edge.execute("1", Command::Deposit(5)).await.unwrap(), 5);
    assert_eq!(
        pair.owner.execute("1", Command::Deposit(1)).await.unwrap(),
        6
    );
    let rejected = edge.execute("1", Command::Withdraw(9)).await;
    assert!(matches!(
        rejected,
        Err(Error::Rejected(Insufficient { balance: 6 }))
    ));
    assert_eq!(edge.execute("1", Command::Look).await.unwrap(), 6);
    assert_eq!(balance(edge).await, 6);
    let stale = edge.read_stale("1", |account| account.changes).await;
    assert_eq!(stale.unwrap(), 2);
    let keyed = |command| edge.submit("1", Request::new(command).key("k"));
    let done = keyed(Command::Deposit(1)).await.unwrap();
    assert_eq!(
        (done.revision.map(|r| r.0), done.repeated),
        (Some(2), false)
    );
    assert!(done.checkpoint.is_some());
    assert!(keyed(Command::Deposit(1)).await.unwrap().repeated);
    let reused = keyed(Command::Deposit(2)).await;
    assert!(matches!(reused, Err(Error::KeyReused(key)) if key == "k"));
    let long = edge.submit("1", Request::new(Command::Look).key("k".repeat(300)));
    assert!(matches!(long.await, Err(Error::Failed(_))));
    let (at_edge, at_owner) = (edge.stats(), pair.owner.stats());
    assert_eq!((at_edge.loads, at_edge.forwarded), (0, 9));
    assert_eq!((at_owner.active, at_owner.from_nodes), (1, 9));
}

/// Goal: commands that are handed over without waiting are decided in their order.
#[tokio::test(start_paused = true)]
async fn forwarded_commands_keep_their_order() {
    let pair = pair();
    let all: Vec<_> = (1..=50)
        .map(|_| pair.edge.submit("1", Request::new(Command::Deposit(1))))
        .collect();
    for (number, pending) in (1..).zip(all) {
        assert_eq!(pending.await.unwrap().reply, number);
    }
}

/// Goal: a command without a key whose answer is lost after its event was stored has one event and one reply, whatever
/// becomes of the stream's ownership (schedules 15 and 16 of the cluster).
#[tokio::test(start_paused = true)]
async fn a_command_whose_answer_is_lost_takes_effect_once() {
    for reason in [
        UnansweredReason::Unreachable,
        UnansweredReason::NoOwner,
        UnansweredReason::Here,
        UnansweredReason::NotServed,
    ] {
        let pair = pair();
        pair.edges_view.plan_lost(reason);
        let done = pair.edge.submit("1", Request::new(Command::Deposit(5)));
        let done = done.await.unwrap();
        assert_eq!((done.reply, done.repeated), (5, false), "{reason:?}");
        assert_eq!(pair.world.stored().len(), 1, "{reason:?}");
    }
}

/// Goal: once another node may have the command, nothing that it could still make untrue is said.
#[tokio::test(start_paused = true)]
async fn what_is_in_doubt_is_not_denied() {
    let pair = pair();
    let (view, edge) = (&pair.edges_view, &pair.edge);
    for reason in [
        UnansweredReason::Late,
        UnansweredReason::Closed,
        UnansweredReason::Overloaded,
        UnansweredReason::Here,
        UnansweredReason::NotServed,
        UnansweredReason::NoOwner,
        UnansweredReason::Unreachable,
        UnansweredReason::Unreadable,
        UnansweredReason::AnswerTooLarge,
    ] {
        for command in [Command::Withdraw(1), Command::Look] {
            view.plan_unanswered(reason, true);
            let told = edge.execute("1", command).await;
            assert!(
                matches!(told, Err(Error::OutcomeUnknown(_))),
                "{reason:?}: {told:?}"
            );
        }
    }
    // A key that was used for another command is used, whatever became of this one.
    let keyed = |command| edge.submit("1", Request::new(command).key("k"));
    keyed(Command::Deposit(1)).await.unwrap();
    view.plan_unanswered(UnansweredReason::NoOwner, true);
    let reused = keyed(Command::Deposit(2)).await;
    assert!(matches!(reused, Err(Error::KeyReused(_))), "{reused:?}");
    // Reads change nothing.
    view.plan_unanswered(UnansweredReason::Late, true);
    let late = edge.read("1", |account| account.balance).await;
    assert!(matches!(late, Err(Error::Unavailable(_))));
}

/// Goal: what certainly was not done says so, and by which error.
#[tokio::test(start_paused = true)]
async fn what_was_not_sent_is_refused() {
    let pair = pair();
    let (view, edge) = (&pair.edges_view, &pair.edge);
    for (reason, is_overloaded) in [
        (UnansweredReason::Late, false),
        (UnansweredReason::Closed, false),
        (UnansweredReason::Overloaded, true),
    ] {
        view.plan_unanswered(reason, false);
        match edge.execute("1", Command::Deposit(1)).await {
            Err(Error::Overloaded(_)) => assert!(is_overloaded, "{reason:?}"),
            Err(Error::Unavailable(_)) => assert!(!is_overloaded, "{reason:?}"),
            other => panic!("{reason:?}: {other:?}"),
        }
    }
    for reason in [
        UnansweredReason::Here,
        UnansweredReason::NotServed,
        UnansweredReason::NoOwner,
        UnansweredReason::TooLarge,
    ] {
        view.plan_unanswered(reason, false);
        edge.execute("1", Command::Deposit(1)).await.unwrap();
    }
    let stored = pair.world.stored();
    assert_eq!(stored.len(), 4);
    let has_key = stored
        .iter()
        .any(|stored| !stored.event.metadata.is_empty());
    assert!(!has_key, "what no other node knows needs no key");
}

/// Goal: a command waits for an owner that cannot be reached as long as it may, and then is unavailable.
#[tokio::test(start_paused = true)]
async fn a_command_waits_for_an_owner_that_cannot_be_reached() {
    let pair = pair();
    for _ in 0..10 {
        let view = &pair.edges_view;
        view.plan_unanswered(UnansweredReason::Unreachable, false);
    }
    assert_eq!(
        pair.edge.execute("1", Command::Deposit(1)).await.unwrap(),
        1
    );
    let began = tokio::time::Instant::now();
    for _ in 0..1_000 {
        let view = &pair.edges_view;
        view.plan_unanswered(UnansweredReason::Unreachable, false);
    }
    let refused = pair.edge.execute("1", Command::Deposit(1)).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert_eq!(began.elapsed(), Config::default().forward_within);
    assert_eq!(pair.world.stored().len(), 1);
}

/// Goal: a command that arrives when nobody waits for it any more is not decided; the same call in time is, once.
#[tokio::test(start_paused = true)]
async fn a_command_whose_time_is_over_is_not_decided() {
    let pair = pair();
    let (sender, sent) = std::sync::mpsc::channel();
    pair.edges_view.plan(move |body, _| {
        sender.send(body).unwrap();
        let unanswered = Unanswered {
            reason: UnansweredReason::Late,
            was_written: true,
        };
        ready(Err(unanswered)).boxed()
    });
    let unknown = pair.edge.execute("1", Command::Deposit(1)).await;
    assert!(matches!(unknown, Err(Error::OutcomeUnknown(_))));
    let body = sent.recv().unwrap();
    let service = pair.edges_view.service_of_owner();
    let call = |within| service.call(call_of(body.clone(), within));
    call(Duration::ZERO).await;
    assert!(pair.world.stored().is_empty());
    call(Duration::from_secs(1)).await;
    call(Duration::from_secs(1)).await;
    assert_eq!(pair.world.stored().len(), 1);
    assert_eq!(pair.owner.stats().repeated, 1);
}

/// Goal: nothing that another node sends makes this one fail; what it cannot read it leaves to the node that asks.
#[tokio::test(start_paused = true)]
async fn calls_that_cannot_be_read_change_nothing() {
    let pair = pair();
    let service = pair.edges_view.service_of_owner();
    let within = Duration::from_secs(1);
    let not_understood = service.call(call_of(Bytes::new(), within)).await;
    let head = br#"{"command":{"key":"k"}}"#;
    let mut unknown = vec![0, 0, 0, u8::try_from(head.len()).unwrap()];
    unknown.extend_from_slice(head);
    unknown.extend_from_slice(br#"{"NewCommand":1}"#);
    for body in [
        Bytes::from_static(b"\xff\xff\xff\xff"),
        Bytes::from_static(b"\0\0\0\x02{}"),
        unknown.into(),
    ] {
        assert_eq!(service.call(call_of(body, within)).await, not_understood);
    }
    let elsewhere = StreamId::new("other-1").unwrap();
    let body = Bytes::from_static(b"\0\0\0\x02{}");
    let call = PeerCall {
        stream: elsewhere,
        ..call_of(body, within)
    };
    assert_eq!(service.call(call).await, not_understood);
    pair.edges_view.plan(move |_, _| {
        let answer = PeerAnswer {
            body: Bytes::from_static(b"nonsense"),
            is_in_doubt: false,
        };
        ready(Ok(answer)).boxed()
    });
    let unknown = pair.edge.execute("1", Command::Deposit(1)).await;
    assert!(matches!(unknown, Err(Error::OutcomeUnknown(_))));
    assert!(pair.world.stored().is_empty());
}

/// Goal: a node that owned the stream, and does not know that it lost it, answers nothing from its outdated memory: its
/// answers are confirmed by the log (schedule 3 of the cluster).
#[tokio::test(start_paused = true)]
async fn a_former_owner_gives_no_outdated_answer() {
    let world = World::new(1);
    let [first, second] = [Others::owner(), Others::owner()];
    let (store, former) = start(&world, &first, config());
    let (_, owner) = start(&world, &second, config());
    store.lose_messages();
    former.execute("1", Command::Deposit(5)).await.unwrap();
    for round in 1..=5 {
        owner.execute("1", Command::Deposit(1)).await.unwrap();
        match round % 3 {
            0 => assert_eq!(balance(&former).await, 5 + round),
            1 => assert_eq!(former.execute("1", Command::Look).await.unwrap(), 5 + round),
            _ => {
                let rejected = former.execute("1", Command::Withdraw(99)).await;
                let told = Insufficient { balance: 5 + round };
                assert!(matches!(rejected, Err(Error::Rejected(i)) if i == told));
            }
        }
    }
    assert_eq!(former.execute("1", Command::Deposit(1)).await.unwrap(), 11);
}

/// Goal: an entity leaves memory at the next command once another node owns it, and commands that were still under way
/// here are not overtaken.
#[tokio::test(start_paused = true)]
async fn a_former_owner_lets_go_of_its_entities() {
    let pair = pair();
    let former = &pair.edge;
    let view = &pair.edges_view;
    view.is_here.store(true, Ordering::SeqCst);
    assert_eq!(former.execute("1", Command::Deposit(1)).await.unwrap(), 1);
    let mut pending = vec![former.submit("1", Request::new(Command::Deposit(1)))];
    tokio::task::yield_now().await;
    view.is_here.store(false, Ordering::SeqCst);
    pending.push(former.submit("1", Request::new(Command::Deposit(1))));
    pending.push(former.submit("1", Request::new(Command::Look)));
    for (pending, expected) in pending.into_iter().zip([2, 3, 3]) {
        assert_eq!(pending.await.unwrap().reply, expected);
    }
    let stats = former.stats();
    assert_eq!((stats.active, stats.passivated_moved), (0, 1));
    assert_eq!(stats.forwarded, 2);
    assert_eq!(pair.owner.stats().active, 1);
}

/// Goal: what must be decided again after a conflict goes to the node that owns the stream by then, in its order.
#[tokio::test(start_paused = true)]
async fn what_is_decided_again_goes_to_the_new_owner() {
    let pair = pair();
    let (former, view) = (&pair.edge, &pair.edges_view);
    view.is_here.store(true, Ordering::SeqCst);
    assert_eq!(former.execute("1", Command::Deposit(1)).await.unwrap(), 1);
    // The former owner does not know of this one, so its next commands miss.
    pair.owner.execute("1", Command::Deposit(10)).await.unwrap();
    let mut pending: Vec<_> = (0..3)
        .map(|_| former.submit("1", Request::new(Command::Deposit(1))))
        .collect();
    tokio::task::yield_now().await;
    view.is_here.store(false, Ordering::SeqCst);
    pending.push(former.submit("1", Request::new(Command::Look)));
    for (pending, expected) in pending.into_iter().zip([12, 13, 14, 14]) {
        assert_eq!(pending.await.unwrap().reply, expected);
    }
    let stats = former.stats();
    assert_eq!((stats.forwarded, stats.reloads, stats.active), (4, 0, 0));
}

/// What happened: a read of a type without snapshots is done where it is asked; it stayed when the command before it
/// was moved to the new owner, and overtook it.
#[tokio::test(start_paused = true)]
async fn a_read_that_is_done_here_does_not_overtake_a_moved_command() {
    let world = World::new(1);
    let accounts = || EntityType::new("account", JsonEvents::<Event>::new()).unwrap();
    let owners_view = Others::owner();
    let view = Others::of(&owners_view);
    let (_, owner) = start_type(&world, &owners_view, config(), accounts());
    let (_, former) = start_type(&world, &view, config(), accounts());
    view.is_here.store(true, Ordering::SeqCst);
    former.execute("1", Command::Deposit(1)).await.unwrap();
    owner.execute("1", Command::Deposit(10)).await.unwrap();
    let moved = former.submit("1", Request::new(Command::Deposit(1)));
    let read = {
        let former = former.clone();
        tokio::spawn(async move { balance(&former).await })
    };
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    view.is_here.store(false, Ordering::SeqCst);
    assert_eq!(moved.await.unwrap().reply, 12);
    assert_eq!(read.await.unwrap(), 12);
    assert_eq!(former.stats().forwarded, 1);
}
