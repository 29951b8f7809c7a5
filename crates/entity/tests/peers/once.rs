//! A command takes effect once: what an owner says that has forgotten what it did, and what clocks have to do with it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use gesta_core::peers::{PeerAnswer, Peers, Unanswered, UnansweredReason};
use gesta_core::{DeleteKind, DeleteStream, ExpectedRevision, OwnerStore};
use gesta_entity::{Builder, Config, Entities, Error, Request, Snapshots};
use gesta_kit::faulty::{Fault, World};
use gesta_kit::support::OffsetClock;

use crate::others::{Others, Pair, call_of, pair, pair_of, start, stream};
use crate::support::{Account, Command, account_type, config};

/// Keys that an entity remembers here.
const FEW: usize = 10;

fn few_keys() -> Config {
    Config {
        entity_keys_max: FEW,
        entity_commands_max: FEW,
        ..config()
    }
}

/// Another edge carries so many commands out that the owner forgets those before.
async fn others_are_busy(world: &Arc<World>, owners_view: &Arc<Others>) {
    let view = Others::of(owners_view);
    let (_, other) = start(world, &view, config());
    for _ in 0..=FEW {
        other.execute("1", Command::Deposit(1)).await.unwrap();
    }
}

/// How a command comes to be decided a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// The link sends it to the owner again.
    ByTheLink,
    /// The link is gone for a while, and the edge sends it again.
    ByTheEdge,
    /// The edge owns the stream meanwhile.
    Here,
}

/// What happened: a command without a key was stored, its answer lost, and 10,000 other forwarded commands came before
/// it was sent again; its key was forgotten, so it was carried out twice. Now nobody decides it who may have forgotten
/// it.
#[tokio::test(start_paused = true)]
async fn a_command_that_may_be_forgotten_is_not_decided_again() {
    for key in [None, Some("of the caller")] {
        for again in [Again::ByTheLink, Again::ByTheEdge, Again::Here] {
            let pair = pair_of(few_keys());
            plan_again(&pair, again);
            let request = Request {
                command: Command::Deposit(5),
                idempotency_key: key.map(str::to_owned),
            };
            let told = pair.edge.submit("1", request).await;
            let stored = pair.world.stored();
            let stored = stored
                .iter()
                .filter(|one| one.event.stream.category() == "account");
            // A caller's key is pushed out by others of callers only.
            if key.is_some() {
                assert!(told.unwrap().repeated, "{again:?}");
            } else {
                let is_unknown = matches!(told, Err(Error::OutcomeUnknown(_)));
                assert!(is_unknown, "{again:?}: {told:?}");
            }
            assert_eq!(stored.count(), FEW + 2, "{again:?}");
        }
    }
}

/// The next command of the edge is carried out, then many others are, then it comes again.
fn plan_again(pair: &Pair, again: Again) {
    let (world, view) = (Arc::clone(&pair.world), Arc::clone(&pair.owners_view));
    let service = pair.edges_view.service_of_owner();
    pair.edges_view.plan(move |body: Bytes, within| {
        let answer = async move {
            service.call(call_of(body.clone(), within)).await;
            others_are_busy(&world, &view).await;
            let reason = match again {
                Again::ByTheLink => {
                    let mut call = call_of(body, within);
                    call.is_in_doubt = true;
                    let body = service.call(call).await;
                    let is_in_doubt = true;
                    return Ok(PeerAnswer { body, is_in_doubt });
                }
                Again::ByTheEdge => UnansweredReason::Unreachable,
                Again::Here => UnansweredReason::Here,
            };
            Err(Unanswered {
                reason,
                was_written: true,
            })
        };
        answer.boxed()
    });
}

/// Goal: the same if the owner has left the entity to another one meanwhile, which has it from a snapshot.
#[tokio::test(start_paused = true)]
async fn a_snapshot_says_what_is_forgotten() {
    let pair = pair_of(few_keys());
    plan_again(&pair, Again::Here);
    let told = pair.edge.execute("1", Command::Deposit(5)).await;
    assert!(matches!(told, Err(Error::OutcomeUnknown(_))), "{told:?}");
    others_are_busy(&pair.world, &pair.owners_view).await;
    pair.owner.shutdown().await;
    // The next owner may remember more, but its snapshot does not have more.
    let view = Others::owner();
    let (_, next) = start(&pair.world, &view, config());
    next.read("1", |account| account.balance).await.unwrap();
    assert_eq!(next.stats().snapshots_ignored, 0);
    assert!(next.stats().loaded_events < FEW as u64);
    let edges_view = Others::of(&view);
    let (_, edge) = start(&pair.world, &edges_view, config());
    plan_in_doubt(&edges_view);
    let told = edge.execute("1", Command::Deposit(7)).await;
    assert!(matches!(told, Err(Error::OutcomeUnknown(_))), "{told:?}");
    // What is sent for the first time is nobody's doubt, and after a while nothing can come any more.
    assert_eq!(edge.execute("1", Command::Deposit(1)).await.unwrap(), 28);
    tokio::time::advance(config().forward_within * 3 + Duration::from_millis(2)).await;
    plan_in_doubt(&edges_view);
    assert_eq!(edge.execute("1", Command::Deposit(1)).await.unwrap(), 29);
}

fn delete_account(store: &Arc<dyn OwnerStore>) -> impl Future<Output = ()> + Send + use<> {
    let store = Arc::clone(store);
    async move {
        let request = DeleteStream {
            stream: stream(),
            expected: ExpectedRevision::Any,
            kind: DeleteKind::Soft,
        };
        store.delete_stream(request).await.unwrap();
    }
}

fn events_of_accounts(world: &World) -> usize {
    let stored = world.stored();
    let of_accounts = stored.iter();
    of_accounts
        .filter(|one| one.event.stream.category() == "account")
        .count()
}

/// What happened: the owner carried a forwarded command out, its answer was lost, the stream of the entity was deleted,
/// with the key of the command, and the command was carried out again where it came back. Now it is unknown, wherever
/// it is decided again, also if the stream has begun again meanwhile, or an entity in memory knows of neither.
#[tokio::test(start_paused = true)]
async fn a_command_is_not_done_again_after_its_stream_was_deleted() {
    for key in [None, Some("of the caller")] {
        for again in [Again::ByTheLink, Again::ByTheEdge, Again::Here] {
            for (begun_before, begun_again) in [(true, false), (true, true), (false, false)] {
                let pair = pair();
                if begun_before {
                    pair.edge.execute("1", Command::Deposit(1)).await.unwrap();
                } else {
                    // Both remember that there is nothing.
                    pair.owner
                        .read("1", |account| account.balance)
                        .await
                        .unwrap();
                    pair.edge
                        .read("1", |account| account.balance)
                        .await
                        .unwrap();
                }
                let (_, other) = start(&pair.world, &Others::of(&pair.owners_view), config());
                let mut owners = Vec::new();
                let service = match begun_before {
                    true => pair.edges_view.service_of_owner(),
                    // Another node was the owner for a moment.
                    false => {
                        let view = Others::owner();
                        let (_, owner) = start(&pair.world, &view, config());
                        owners.push(owner);
                        Others::of(&view).service_of_owner()
                    }
                };
                let last = pair.edges_view.service_of_owner();
                let store: Arc<dyn OwnerStore> = pair.edge_store.share();
                pair.edges_view.plan(move |body: Bytes, within| {
                    let answer = async move {
                        service.call(call_of(body.clone(), within)).await;
                        delete_account(&store).await;
                        if begun_again {
                            // The owner hears of the delete by it.
                            other.read("1", |account| account.balance).await.unwrap();
                            other.execute("1", Command::Deposit(2)).await.unwrap();
                        }
                        let reason = match again {
                            Again::ByTheLink => {
                                let mut call = call_of(body, within);
                                call.is_in_doubt = true;
                                let body = last.call(call).await;
                                let is_in_doubt = true;
                                return Ok(PeerAnswer { body, is_in_doubt });
                            }
                            Again::ByTheEdge => UnansweredReason::Unreachable,
                            Again::Here => UnansweredReason::Here,
                        };
                        Err(Unanswered {
                            reason,
                            was_written: true,
                        })
                    };
                    answer.boxed()
                });
                let request = Request {
                    command: Command::Deposit(5),
                    idempotency_key: key.map(str::to_owned),
                };
                let told = pair.edge.submit("1", request).await;
                let which = format!("{key:?} {again:?} {begun_before} {begun_again}");
                let is_unknown = matches!(told, Err(Error::OutcomeUnknown(_)));
                // An owner that still has the entity in memory knows its answer.
                let remembers = again != Again::Here && begun_before && !begun_again;
                match told {
                    Ok(done) if remembers => assert_eq!(done.reply, 6, "{which}"),
                    told => assert!(is_unknown, "{which}: {told:?}"),
                }
                let count = 1 + usize::from(begun_before) + usize::from(begun_again);
                assert_eq!(events_of_accounts(&pair.world), count, "{which}");
                // What is sent for the first time to an owner that knows of the delete is nobody's doubt.
                let balance = if begun_again { 2 } else { 0 };
                let seen = pair.owner.read("1", |account| account.balance).await;
                assert_eq!(seen.unwrap(), balance, "{which}");
                let told = pair.edge.execute("1", Command::Deposit(1)).await;
                assert_eq!(told.unwrap(), balance + 1, "{which}");
            }
        }
    }
}

/// What happened: the owner stood still with a forwarded command, the edge carried it out itself, and the stream was
/// deleted; when the owner went on, it loaded an entity without events and carried the command out again. Also if it
/// had heard of the delete before it took the command.
#[tokio::test(start_paused = true)]
async fn an_owner_that_stood_still_does_not_do_again_what_was_deleted() {
    for hears_first in [false, true] {
        stands_still_over_a_delete(hears_first).await;
    }
}

async fn stands_still_over_a_delete(hears_first: bool) {
    let pair = pair();
    pair.edge.execute("1", Command::Deposit(1)).await.unwrap();
    let (sender, left_behind) = std::sync::mpsc::channel();
    pair.edges_view.plan(move |body, within| {
        sender.send((body, within)).unwrap();
        let unanswered = Unanswered {
            reason: UnansweredReason::Here,
            was_written: true,
        };
        futures::future::ready(Err(unanswered)).boxed()
    });
    let told = pair.edge.execute("1", Command::Deposit(5)).await;
    assert_eq!(told.unwrap(), 6);
    let store: Arc<dyn OwnerStore> = pair.edge_store.share();
    delete_account(&store).await;
    if hears_first {
        let seen = pair.owner.read("1", |account| account.balance).await;
        assert_eq!(seen.unwrap(), 0);
    }
    let (body, within) = left_behind.try_recv().unwrap();
    let service = pair.edges_view.service_of_owner();
    service.call(call_of(body, within)).await;
    assert_eq!(events_of_accounts(&pair.world), 2);
    // The owner knows of the delete now: what comes after it is carried out.
    let told = pair.edge.execute("1", Command::Deposit(1)).await;
    assert_eq!(told.unwrap(), 1);
}

/// The next command of an edge reaches its owner as one that was sent before.
fn plan_in_doubt(view: &Others) {
    let service = view.service_of_owner();
    view.plan(move |body, within| {
        let mut call = call_of(body, within);
        call.is_in_doubt = true;
        let answer = |body| {
            Ok(PeerAnswer {
                body,
                is_in_doubt: true,
            })
        };
        service.call(call).map(answer).boxed()
    });
}

/// Goal: the time of a command is one for its life, however often it goes back and forth between nodes, so it ends
/// before its key is forgotten.
#[tokio::test(start_paused = true)]
async fn a_command_that_is_moved_away_again_has_no_new_time() {
    let pair = pair();
    let view = &pair.edges_view;
    let within = config().forward_within;
    // It comes back in doubt near the end of its time. While it is stored here, the owner is faster.
    comes_back_after(view, within - Duration::from_secs(1));
    // So it goes to the owner after all.
    let (sender, sent) = std::sync::mpsc::channel();
    let service = view.service_of_owner();
    view.plan(move |body, within| {
        sender.send(within).unwrap();
        let answer = |body| {
            Ok(PeerAnswer {
                body,
                is_in_doubt: false,
            })
        };
        service.call(call_of(body, within)).map(answer).boxed()
    });
    let slow = Fault::SlowRequest(Duration::from_millis(200));
    pair.edge_store.fail_next_commit(slow);
    let pending = pair.edge.submit("1", Request::new(Command::Deposit(5)));
    tokio::time::sleep(within - Duration::from_millis(900)).await;
    pair.owner.execute("1", Command::Deposit(1)).await.unwrap();
    assert_eq!(pending.await.unwrap().reply, 6);
    let left = sent.try_recv().expect("it was moved");
    assert!(left <= Duration::from_millis(800), "{left:?}");
}

/// Goal: nor is it carried out here later, when its key may be forgotten.
#[tokio::test(start_paused = true)]
async fn a_command_in_doubt_is_not_carried_out_much_later() {
    let pair = pair();
    let within = config().forward_within;
    comes_back_after(&pair.edges_view, within - Duration::from_secs(1));
    pair.edge_store.set_round_trip(within * 2);
    let told = pair.edge.execute("1", Command::Deposit(5)).await;
    assert!(matches!(told, Err(Error::OutcomeUnknown(_))), "{told:?}");
    assert!(pair.world.stored().is_empty());
}

/// The next command of the edge comes back in doubt, to be done there.
fn comes_back_after(view: &Others, pause: Duration) {
    view.plan(move |_, _| {
        let unanswered = Unanswered {
            reason: UnansweredReason::Here,
            was_written: true,
        };
        let comes_back = tokio::time::sleep(pause).map(move |()| Err(unanswered));
        comes_back.boxed()
    });
}

/// What happened: a node whose clock was ten minutes ahead took a key that another node had made just now for an old
/// one, and carried the command out again. Clocks take no part in it any more.
#[tokio::test(start_paused = true)]
async fn clocks_that_differ_double_nothing() {
    const HOUR: i64 = 3_600 * 1_000_000;
    for shift in [-HOUR, HOUR] {
        for every in [1, 1_000] {
            let world = World::new(1);
            let node = |shift, view: &Arc<Others>| -> Entities<Account> {
                let accounts = account_type().snapshots(Snapshots::json(1).every(every));
                let clock = OffsetClock::of(world.clock());
                clock.set(shift);
                Builder::new()
                    .config(config())
                    .clock(Arc::new(clock))
                    .peers(Arc::clone(view) as Arc<dyn Peers>)
                    .start(
                        world.store().share() as Arc<dyn OwnerStore>,
                        accounts.forwarded(),
                    )
            };
            let owners_view = Others::owner();
            let edges_view = Others::of(&owners_view);
            let _owner = node(0, &owners_view);
            let edge = node(shift, &edges_view);
            for deposits in 1..=3 {
                edges_view.plan_lost(UnansweredReason::Here);
                let done = edge.submit("1", Request::new(Command::Deposit(1))).await;
                assert_eq!(done.unwrap().reply, deposits, "{shift} {every}");
            }
            let stored = world.stored();
            let deposits = stored
                .iter()
                .filter(|one| one.event.stream.category() == "account");
            assert_eq!(deposits.count(), 3, "{shift} {every}");
        }
    }
}
