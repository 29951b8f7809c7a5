//! Subscriptions: a task for each follows the owner of its log and moves what the owner pushes into a bounded queue.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::LogId;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::frame::Frame;
use crate::peer::Peers;
use crate::pipe::{Pipe, PipeEvent};
use crate::pushes::{PushQueue, Pushes};
use crate::route::Address;

/// The pause before a subscription that has ended is opened again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

type OwnerAddress = watch::Receiver<Option<Address>>;

pub(super) fn start(
    peers: &Arc<Peers>,
    log: LogId,
    node: OwnerAddress,
    bytes_max: usize,
) -> Pushes {
    let queue = Arc::new(PushQueue::new(bytes_max));
    let ends = peers.closed.child_token();
    let task = {
        let (peers, queue, ends) = (Arc::clone(peers), Arc::clone(&queue), ends.clone());
        async move {
            ends.run_until_cancelled(follow(&peers, log, node, &queue))
                .await;
            queue.close();
        }
    };
    peers.tasks.spawn(task);
    Pushes {
        queue,
        _ends: ends.drop_guard(),
    }
}

/// Follows the owner until the forwarder is gone.
async fn follow(peers: &Peers, log: LogId, mut node: OwnerAddress, queue: &PushQueue) {
    loop {
        let Ok(owner) = node
            .wait_for(Option::is_some)
            .await
            .map(|node| node.clone())
        else {
            return;
        };
        let Some(owner) = owner else {
            continue;
        };
        let subscribed = async {
            subscribe(peers, log, &owner, queue).await;
            tokio::time::sleep(AGAIN_AFTER).await;
        };
        let moved = async {
            node.wait_for(|node| node.as_ref() != Some(&owner))
                .await
                .is_ok()
        };
        tokio::select! {
            () = subscribed => {}
            is_alive = moved => if !is_alive {
                return;
            },
        }
    }
}

/// Takes what one node pushes until its stream ends.
async fn subscribe(peers: &Peers, log: LogId, node: &Address, queue: &PushQueue) {
    let peer = peers.get(node);
    let mut state = peer.watch();
    let Ok(link) = state
        .wait_for(|state| state.link.is_some())
        .await
        .map(|state| state.link.clone())
    else {
        return;
    };
    let Some(Ok(mut pipe)) = link.map(|link| link.open()) else {
        return;
    };
    pipe.push(Frame::Subscribe { log });
    while poll_fn(|context| pipe.poll(context)).await != PipeEvent::Ended {
        if !take(&mut pipe, queue) {
            return;
        }
    }
}

/// Takes the frames that have come. Returns false if the stream must be given up.
fn take(pipe: &mut Pipe, queue: &PushQueue) -> bool {
    loop {
        match pipe.next_frame(Instant::now()) {
            Ok(None) => return true,
            Ok(Some((Frame::Push { body }, _))) => queue.push(body),
            Ok(Some((Frame::Gap, _))) => queue.push_gap(),
            Ok(Some(_)) | Err(_) => return false,
        }
    }
}
