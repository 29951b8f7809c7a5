//! The side of the owner: it takes the changes that other nodes forward.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, TryFutureExt, ready};
use gesta_cluster::Placement;
use gesta_core::{Attempt, LogId, Result};
use gesta_link::{Address, Answer, Call, Hint, Question, Serve, Served};
use gesta_store::Store;
use tokio::sync::watch;

use crate::answers::{self, Changed};
use crate::calls::{Change, SERVICE};
use crate::clients::Clients;
use crate::placements::Placements;
use crate::questions::{CLIENT_ADDRESS, LOOK_NOW, PREPARE};
use crate::routes::epoch;
use crate::services::Services;

/// Appends what other nodes forward to the logs of this node.
pub(crate) struct OwnerSide {
    pub(crate) store: Arc<Store>,
    pub(crate) placement: watch::Receiver<Arc<Placement>>,
    pub(crate) services: Arc<Services>,
    pub(crate) placements: Arc<dyn Placements>,
    pub(crate) clients: Arc<Clients>,
}

impl Serve for OwnerSide {
    fn call(&self, log: LogId, call: Call) -> Served {
        let placement = Arc::clone(&self.placement.borrow());
        if !placement.is_mine(log) {
            return Served::NotHere(hint(&placement, log));
        }
        if call.kind == SERVICE {
            let answered = self.services.take(call);
            return Served::Taken(answered.map(Answer::Reply).boxed());
        }
        let begun = match Change::decode(call.kind, call.body) {
            Ok(sent) => begin(&self.store, sent.attempt(call.is_in_doubt), sent.change),
            Err(error) => ready(Err(error)).boxed(),
        };
        let store = Arc::clone(&self.store);
        let end = move || store.known_end_of(log);
        let answered = begun.map(|result| Answer::Reply(answers::encode(&result, end)));
        Served::Taken(answered.boxed())
    }

    fn ask(&self, question: Question) -> BoxFuture<'static, Bytes> {
        let answer = match question.kind {
            LOOK_NOW => {
                self.placements.look_now();
                Bytes::new()
            }
            CLIENT_ADDRESS => self.clients.answer(),
            PREPARE => return self.prepare(&question.body),
            _ => Bytes::new(),
        };
        ready(answer).boxed()
    }
}

impl OwnerSide {
    /// Prepares for a log that another node is about to hand over to this one. A body that is no log asks for nothing.
    fn prepare(&self, body: &[u8]) -> BoxFuture<'static, Bytes> {
        match <[u8; 2]>::try_from(body) {
            Ok(log) => {
                let prepared = self.store.prepare(LogId(u16::from_be_bytes(log)));
                prepared.map(|()| Bytes::new()).boxed()
            }
            Err(_) => ready(Bytes::new()).boxed(),
        }
    }
}

/// Hands a change to the store of this node. The changes keep the order of these calls.
pub(crate) fn begin(
    store: &Store,
    attempt: Attempt,
    change: Change,
) -> BoxFuture<'static, Result<Changed>> {
    match change {
        Change::Append(request) => store
            .begin_append_as(attempt, request)
            .map_ok(Changed)
            .boxed(),
        Change::Delete(request, id) => store
            .begin_delete_as(attempt, request, Some(id))
            .map_ok(Changed::from)
            .boxed(),
        Change::SetMetadata(request, id) => store
            .begin_set_metadata_as(attempt, request, Some(id))
            .map_ok(Changed::from)
            .boxed(),
    }
}

/// Returns who owns a log, for a node that has called the wrong one.
pub fn hint(placement: &Placement, log: LogId) -> Hint {
    let place = placement.log(log);
    let owner = place.and_then(|place| place.owner.as_ref());
    // A node that is giving the log away is no help to one that was sent here.
    let others = owner.filter(|owner| Some(owner.node) != placement.me);
    Hint {
        owner: others.map(|owner| Address::new(Arc::clone(&owner.address))),
        epoch: epoch(placement, log),
    }
}
