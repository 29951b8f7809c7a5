//! One connection from another node: its hello, then its streams, each with a task of its own.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use gesta_core::newcomers::Newcomer;
use tokio::net::TcpStream;

use super::freshness::Freshness;
use super::{Caller, ServerShared, lane};
use crate::demand::Demand;
use crate::hello;
use crate::peer::keep_alive;
use crate::pipe::{CONNECTION_WINDOW, Pipe, STREAM_WINDOW};

/// The greatest number of streams of one connection: a lane for each log, lanes that are just being replaced, and
/// questions.
const STREAMS_MAX: u32 = 2 * 65_536;

pub(super) async fn run(
    mut socket: TcpStream,
    from: SocketAddr,
    mut stranger: Newcomer,
    shared: Arc<ServerShared>,
) {
    // A socket without it is only slower.
    let _ = socket.set_nodelay(true);
    let within = shared.config.times.connect_within;
    let hello = hello::listen(&mut socket, &shared.config.secret, &shared.introduction);
    let refused = |why: &dyn std::fmt::Display| shared.unproven.refused(from, why);
    let hello = tokio::select! {
        hello = tokio::time::timeout(within, hello) => hello,
        () = stranger.displaced() => {
            return refused(&"too many others came before its hello had ended");
        }
    };
    let other = match hello {
        Ok(Ok(other)) => other,
        Ok(Err(error)) => return refused(&error),
        Err(_) => return refused(&format!("no hello came within {within:?}")),
    };
    drop(stranger);
    let caller = Caller {
        process: other.process,
        lanes: shared.newest.of(other.process),
        freshness: Arc::new(Freshness::new(
            shared.clock.now(),
            shared.config.times.dead_after,
        )),
    };
    if let Err(error) = serve(socket, &caller, &shared).await {
        tracing::debug!(%from, %error, "a link broke");
    }
}

async fn serve(
    socket: TcpStream,
    caller: &Caller,
    shared: &Arc<ServerShared>,
) -> Result<(), h2::Error> {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX)
        // Limits against strangers; a forwarder that knows the secret may give up as many lanes as there are logs.
        .max_pending_accept_reset_streams(usize::try_from(STREAMS_MAX).unwrap_or(usize::MAX))
        .max_local_error_reset_streams(None)
        .handshake(socket)
        .await?;
    // Nothing waits for the answers of a forwarder.
    let demand = Demand::default();
    let mut pings = std::pin::pin!(keep_alive(
        connection.ping_pong(),
        shared.config.times,
        &demand,
        |_| {}
    ));
    let mut is_ending = false;
    loop {
        tokio::select! {
            accepted = poll_fn(|context| match caller.freshness.look(shared.clock.now()) {
                true => connection.poll_accept(context).map(Some),
                false => Poll::Ready(None),
            }) => match accepted {
                Some(Some(stream)) => accept(stream?, caller, shared),
                Some(None) => return Ok(()),
                None => {
                    tracing::warn!(forwarder = %caller.process, "this process stood still: a link is closed unread");
                    return Ok(());
                }
            },
            trouble = &mut pings => {
                tracing::debug!(forwarder = %caller.process, trouble, "a link is dead");
                return Ok(());
            }
            () = shared.ending.cancelled(), if !is_ending => {
                is_ending = true;
                connection.graceful_shutdown();
            }
        }
    }
}

type Accepted = (
    http::Request<h2::RecvStream>,
    h2::server::SendResponse<Bytes>,
);

fn accept((request, respond): Accepted, caller: &Caller, shared: &Arc<ServerShared>) {
    // A stream that is reset already has no lane.
    if let Ok(pipe) = Pipe::accept(request, respond, shared.config.bounds.body_bytes_max) {
        let stream = lane::run(pipe, caller.clone(), Arc::clone(shared));
        let closed = shared.closed.clone();
        shared
            .tasks
            .spawn(async move { closed.run_until_cancelled(stream).await });
    }
}
