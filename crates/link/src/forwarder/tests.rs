//! A forwarder on a machine that is suspended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::TcpListener;

use tokio::sync::watch;

use super::*;
use crate::config::{Protocols, Secret, StoreIdentity, Times};
use crate::serve::{Answer, Call, Question, Serve, Served};
use crate::server::LinkServer;

/// Answers the calls of log 1 alone, and counts all.
struct SomeOwner(watch::Sender<usize>);

impl Serve for SomeOwner {
    fn call(&self, log: LogId, call: Call) -> Served {
        self.0.send_modify(|count| *count += 1);
        Served::Taken(match log.0 {
            1 => std::future::ready(Answer::Reply(call.body)).boxed(),
            _ => std::future::pending().boxed(),
        })
    }

    fn ask(&self, question: Question) -> BoxFuture<'static, Bytes> {
        std::future::ready(question.body).boxed()
    }
}

/// For how long the machine of the test was suspended, in seconds.
static SUSPENDED: AtomicU64 = AtomicU64::new(0);

/// Goal: after the machine was suspended, the calls of before are over: neither sent again nor waited for. What
/// happened: their deadlines stood still, so they were sent again when their owners no longer knew their ids, and
/// stored twice.
#[tokio::test]
async fn calls_are_over_after_a_suspension() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let config = LinkConfig {
        store: StoreIdentity {
            id: Uuid::nil(),
            logs: 3,
        },
        secret: Secret::new(&[7; 32]).expect("long enough"),
        address: listener.local_addr().expect("an address").into(),
        build: String::new(),
        protocols: Protocols::THIS,
        times: Times {
            // Nothing but the clock ends a call here.
            return_after: Duration::from_secs(3_600),
            ..Times::default()
        },
        bounds: Bounds::default(),
    };
    let address = config.address.clone();
    let (count, mut counted) = watch::channel(0);
    let owner = Arc::new(SomeOwner(count));
    let _owner = LinkServer::start(listener, config.clone(), owner).expect("started");
    let clock = Clock::new(|| Duration::from_secs(SUSPENDED.load(Ordering::Relaxed)));
    let config = LinkConfig {
        address: Address::new("own:1"),
        ..config
    };
    let sender = Forwarder::start_with(config, Arc::new(|_, _| {}), clock).expect("started");
    let epoch = Epoch {
        incarnation: Incarnation(Uuid::nil()),
        number: 1,
    };
    for log in [0, 1] {
        let owner = RouteOwner::Node(address.clone());
        sender.set_route(LogId(log), Route { owner, epoch }).await;
    }
    let within = |seconds| Instant::now() + Duration::from_secs(seconds);
    let written = sender.call(LogId(0), 1, Bytes::from("written"), within(600));
    // Nobody owns log 2.
    let waiting = sender.call(LogId(2), 1, Bytes::from("waiting"), within(600));
    let patience = Duration::from_secs(60);
    let counted = tokio::time::timeout(patience, counted.wait_for(|count| *count > 0)).await;
    drop(counted.expect("the call never came").expect("alive"));
    SUSPENDED.store(1_000, Ordering::Relaxed);
    let over = |was_written| {
        Err(ForwardError::Returned {
            reason: ReturnReason::DeadlineOver,
            was_written,
        })
    };
    // By itself.
    let written = tokio::time::timeout(patience, written);
    assert_eq!(written.await.expect("over"), over(true));
    let waiting = tokio::time::timeout(patience, waiting);
    assert_eq!(waiting.await.expect("over"), over(false));
    let reply = sender.call(LogId(1), 1, Bytes::from("after"), within(60));
    assert_eq!(reply.await.expect("answered").body, "after");
}
