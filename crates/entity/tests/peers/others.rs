//! The other nodes, as the test plays them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use gesta_core::peers::{PeerAnswer, PeerCall, PeerService, Peers, Unanswered, UnansweredReason};
use gesta_core::{OwnerStore, StreamId};
use gesta_entity::{Builder, Config, Entities, EntityType};
use gesta_kit::faulty::{FaultyStore, World};

use crate::support::{Account, account_type, config};

type Answer = Result<PeerAnswer, Unanswered>;
/// What becomes of a call: the test decides.
type Plan = Box<dyn FnOnce(Bytes, Duration) -> BoxFuture<'static, Answer> + Send>;

/// The other nodes as one of them sees them. What is planned becomes of the next calls; the rest goes to `owner`.
#[derive(Default)]
pub(crate) struct Others {
    pub(crate) is_here: AtomicBool,
    pub(crate) owner: Mutex<Option<Arc<Others>>>,
    service: Mutex<Option<Arc<dyn PeerService>>>,
    plans: Mutex<VecDeque<Plan>>,
}

impl Others {
    /// A node that believes to own everything.
    pub(crate) fn owner() -> Arc<Self> {
        let others = Self::default();
        others.is_here.store(true, Ordering::SeqCst);
        Arc::new(others)
    }

    /// A node that believes this one to own everything.
    pub(crate) fn of(owner: &Arc<Others>) -> Arc<Self> {
        let others = Self::default();
        *others.owner.lock().unwrap() = Some(Arc::clone(owner));
        Arc::new(others)
    }

    pub(crate) fn plan(
        &self,
        plan: impl FnOnce(Bytes, Duration) -> BoxFuture<'static, Answer> + Send + 'static,
    ) {
        self.plans.lock().unwrap().push_back(Box::new(plan));
    }

    /// The next call has no answer.
    pub(crate) fn plan_unanswered(&self, reason: UnansweredReason, was_written: bool) {
        let unanswered = Unanswered {
            reason,
            was_written,
        };
        self.plan(move |_, _| ready(Err(unanswered)).boxed());
    }

    /// The next call is done by its owner, and its answer is lost.
    pub(crate) fn plan_lost(&self, reason: UnansweredReason) {
        let service = self.service_of_owner();
        self.plan(move |body, within| {
            let done = service.call(call_of(body, within));
            let unanswered = Unanswered {
                reason,
                was_written: true,
            };
            done.map(move |_| Err(unanswered)).boxed()
        });
    }

    pub(crate) fn service_of_owner(&self) -> Arc<dyn PeerService> {
        let owner = self.owner.lock().unwrap().clone().expect("an owner");
        let service = owner.service.lock().unwrap().clone();
        service.expect("registered")
    }
}

impl Peers for Others {
    fn is_here(&self, _: &StreamId) -> bool {
        self.is_here.load(Ordering::SeqCst)
    }

    fn forward(
        &self,
        service: &str,
        stream: &StreamId,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'static, Answer> {
        assert_eq!(service, "entity:account");
        let plan = self.plans.lock().unwrap().pop_front();
        if let Some(plan) = plan {
            return plan(body, within);
        }
        let answered = self.service_of_owner().call(PeerCall {
            stream: stream.clone(),
            ..call_of(body, within)
        });
        let answer = |body| {
            Ok(PeerAnswer {
                body,
                is_in_doubt: false,
            })
        };
        answered.map(answer).boxed()
    }

    fn register(&self, _: &str, handler: Arc<dyn PeerService>) {
        *self.service.lock().unwrap() = Some(handler);
    }
}

pub(crate) fn stream() -> StreamId {
    StreamId::new("account-1").unwrap()
}

/// A call as it is sent for the first time.
pub(crate) fn call_of(body: Bytes, remaining: Duration) -> PeerCall {
    PeerCall {
        stream: stream(),
        body,
        remaining,
        is_in_doubt: false,
    }
}

/// Two nodes on one database: the owner, and the node that is asked.
pub(crate) struct Pair {
    pub(crate) world: Arc<World>,
    pub(crate) owner: Entities<Account>,
    pub(crate) edge: Entities<Account>,
    pub(crate) edge_store: FaultyStore,
    pub(crate) owners_view: Arc<Others>,
    pub(crate) edges_view: Arc<Others>,
}

pub(crate) fn start(
    world: &Arc<World>,
    view: &Arc<Others>,
    config: Config,
) -> (FaultyStore, Entities<Account>) {
    start_type(world, view, config, account_type())
}

pub(crate) fn start_type(
    world: &Arc<World>,
    view: &Arc<Others>,
    config: Config,
    accounts: EntityType<Account>,
) -> (FaultyStore, Entities<Account>) {
    let store = world.store();
    let runtime = Builder::new()
        .config(config)
        .clock(world.clock())
        .peers(Arc::clone(view) as Arc<dyn Peers>)
        .start(store.share() as Arc<dyn OwnerStore>, accounts.forwarded());
    (store, runtime)
}

pub(crate) fn pair() -> Pair {
    pair_of(config())
}

pub(crate) fn pair_of(config: Config) -> Pair {
    let world = World::new(1);
    let owners_view = Others::owner();
    let edges_view = Others::of(&owners_view);
    let (_, owner) = start(&world, &owners_view, config.clone());
    let (edge_store, edge) = start(&world, &edges_view, config);
    Pair {
        world,
        owner,
        edge,
        edge_store,
        owners_view,
        edges_view,
    }
}
