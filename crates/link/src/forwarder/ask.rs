//! Questions: each has a stream of its own, they have no order, and none is sent twice.

use std::future::poll_fn;

use bytes::Bytes;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::error::AskError;
use crate::frame::Frame;
use crate::peer::{LinkHandle, PeerState, Peers};
use crate::pipe::PipeEvent;
use crate::reach::Reach;
use crate::route::Address;

pub(super) async fn ask(
    peers: &Peers,
    node: &Address,
    kind: u8,
    body: Bytes,
    deadline: Instant,
) -> Result<Bytes, AskError> {
    // Held until the answer is there: the node is dialled only as long as somebody holds it.
    let peer = peers.get(node);
    let mut state = peer.watch();
    let is_decided = |state: &PeerState| state.link.is_some() || state.reach == Reach::Unreachable;
    let decided = tokio::time::timeout_at(deadline, state.wait_for(is_decided)).await;
    let Ok(Ok(link)) = decided.map(|decided| decided.map(|state| state.link.clone())) else {
        return Err(AskError::Unreachable);
    };
    let link = link.ok_or(AskError::Unreachable)?;
    let answer = exchange(&link, kind, body, deadline);
    match tokio::time::timeout_at(deadline, answer).await {
        Ok(result) => result,
        Err(_) => Err(AskError::Unknown),
    }
}

async fn exchange(
    link: &LinkHandle,
    kind: u8,
    body: Bytes,
    deadline: Instant,
) -> Result<Bytes, AskError> {
    let Ok(mut pipe) = link.open() else {
        return Err(AskError::Unreachable);
    };
    pipe.push(Frame::Ask {
        kind,
        remaining: deadline.saturating_duration_since(Instant::now()),
        body,
    });
    loop {
        match poll_fn(|context| pipe.poll(context)).await {
            PipeEvent::Room => {}
            PipeEvent::Ended => return Err(AskError::Unknown),
            PipeEvent::Data => match pipe.next_frame(Clock::MACHINE.now()) {
                Ok(None) => {}
                Ok(Some((Frame::Answer { body }, _))) => return Ok(body),
                Ok(Some(_)) | Err(_) => return Err(AskError::Unknown),
            },
        }
    }
}
