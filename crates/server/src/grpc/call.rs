//! One call: its messages, and the memory that it may hold.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gesta_access::OwnedOperation;
use gesta_core::EventStore;
use gesta_grpc::frame::{self, Frames};
use gesta_grpc::request::Bounds;
use gesta_grpc::{Code, Refusal, Request, timeout};
use hyper::body::{Body, Incoming};
use hyper::http::request::Parts;
use tokio::time::Instant;

use super::claim::Backing;
use super::{Result, refusal_of};
use crate::call::{Admitted, AuditLine};
use crate::shared::activity::Activity;
use crate::shared::body::Reservation;
use crate::shared::gate::{GaveWay, Ticket};
use crate::state::State;

/// One call of gRPC.
pub(crate) struct GrpcCall {
    pub(crate) state: Arc<State>,
    /// The caller, and the store as the caller may use it.
    pub(crate) admitted: Admitted,
    pub(crate) requests: Requests,
    /// What happens on the connection of the call.
    activity: Arc<Activity>,
    /// Address from which the call came.
    from: IpAddr,
    /// The server's address as the client wrote it.
    authority: String,
    /// Name that the client gives its connection.
    connection_name: String,
    deadline: Option<Instant>,
}

impl GrpcCall {
    pub(crate) fn new(
        state: Arc<State>,
        activity: &Arc<Activity>,
        admitted: Admitted,
        from: IpAddr,
        parts: &Parts,
        body: Incoming,
    ) -> Self {
        let timeout = parts.headers.get("grpc-timeout");
        let timeout = timeout.and_then(|value| timeout::parse(value.to_str().ok()?));
        let authority = parts.uri.authority().map(|name| name.as_str().to_owned());
        let connection_name = parts.headers.get("connection-name");
        let connection_name = connection_name.and_then(|name| name.to_str().ok());
        Self {
            connection_name: connection_name.unwrap_or_default().to_owned(),
            requests: Requests::new(body, admitted.reservation(&state), &state),
            state,
            activity: Arc::clone(activity),
            admitted,
            from,
            authority: authority.unwrap_or_default(),
            deadline: timeout.and_then(|time| Instant::now().checked_add(time)),
        }
    }

    /// Makes the line of the audit log about an operation that begins now.
    pub(crate) fn audit(&self, operation: OwnedOperation, subject: impl Into<String>) -> AuditLine {
        AuditLine::new(&self.admitted, &self.state, operation, subject)
    }

    /// Returns the address from which the call came.
    pub(crate) fn from(&self) -> IpAddr {
        self.from
    }

    /// Returns the server's address as the client wrote it.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the name that the client gives its connection; it is empty if the client gives none.
    pub(crate) fn connection_name(&self) -> &str {
        &self.connection_name
    }

    /// Returns the time after which the client does not wait any longer; `None` if the client named none.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the store as the caller may use it.
    pub(crate) fn store(&self) -> Arc<dyn EventStore> {
        Arc::clone(&self.admitted.store)
    }

    /// Waits for the caller's turn to read.
    pub(crate) async fn turn_to_read(&self) -> Ticket {
        self.state.turn_to_read(self.admitted.holder()).await
    }

    /// Returns what a call that writes needs of the server.
    pub(crate) fn backing(&self) -> Backing {
        Backing {
            state: Arc::clone(&self.state),
            admitted: self.admitted.clone(),
        }
    }

    /// Waits until the connection of the call gives up its place.
    pub(crate) fn connection_gave_way(&self) -> GaveWay {
        self.activity.gave_way()
    }

    /// Takes a place among the calls that may last for ever.
    pub(crate) fn enter_subscriptions(&self) -> Result<Ticket> {
        let ticket = self
            .state
            .bounds
            .subscriptions
            .enter(self.admitted.holder());
        ticket.map_err(|problem| refusal_of(&problem))
    }

    /// Reads the message of a call that has exactly one.
    pub(crate) async fn message<M: Request>(&mut self) -> Result<M> {
        let requests = &mut self.requests;
        let message = in_read_time(&self.state, async {
            let Some(message) = requests.next_whole::<M>(Duration::ZERO).await? else {
                return Err(Refusal::invalid("the call has no message"));
            };
            if requests.next_whole::<M>(Duration::ZERO).await?.is_some() {
                return Err(Refusal::invalid("the call must have one message only"));
            }
            Ok(message)
        });
        // A message that is decoded may be much larger. None of them waits here for the end of its call.
        frame::read(message.await?)
    }

    /// Reads the next of several messages; returns `None` after the last one.
    pub(crate) async fn next<M: Request>(&mut self) -> Result<Option<M>> {
        self.requests.next().await
    }
}

/// Waits for messages no longer than for the body of a request.
pub(crate) async fn in_read_time<T>(
    state: &State,
    read: impl Future<Output = Result<T>>,
) -> Result<T> {
    let time_max = state.config.body_read_max;
    tokio::time::timeout(time_max, read)
        .await
        .unwrap_or_else(|_| {
            Err(Refusal::new(
                Code::DeadlineExceeded,
                format!(
                    "the messages did not arrive within {} s",
                    time_max.as_secs()
                ),
            ))
        })
}

fn stalled(time_max: Duration) -> Refusal {
    let seconds = time_max.as_secs();
    let text = format!("a message has begun, and the rest of it did not come within {seconds} s");
    Refusal::new(Code::DeadlineExceeded, text)
}

/// The messages that a client sends.
pub(crate) struct Requests {
    incoming: Incoming,
    /// Bytes that have arrived and are not read as messages yet.
    data: Bytes,
    frames: Frames,
    /// Reservation of the bytes that have arrived since they were last given back.
    held: Reservation,
    /// Bytes of the last message.
    last_bytes: usize,
    /// Number of bytes of `data` for which there was no room yet, and the time since which they wait.
    uncounted: usize,
    waiting_since: Option<Instant>,
    /// Longest time that is waited for the rest of a message that has begun, and how long that was so far.
    rest_max: Duration,
    waited: Duration,
}

/// Time between two tries to get room.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Requests {
    fn new(incoming: Incoming, held: Reservation, state: &State) -> Self {
        Self {
            incoming,
            data: Bytes::new(),
            // The message that is asked for sets its own.
            frames: Frames::new(Bounds::OTHERS),
            held,
            last_bytes: 0,
            uncounted: 0,
            waiting_since: None,
            rest_max: state.config.body_read_max,
            waited: Duration::ZERO,
        }
    }

    /// Counts from now on against the share of subscriptions.
    pub(crate) fn count_as_subscription(&mut self, held: Reservation) -> Result<()> {
        self.held = held;
        self.hold(0)
    }

    /// Reads the next message; returns `None` after the last one.
    pub(crate) async fn next<M: Request>(&mut self) -> Result<Option<M>> {
        self.next_within(Duration::ZERO).await
    }

    /// The next message, for which room is awaited for so long: meanwhile the client can send no more than its
    /// connection takes. May be dropped and called again.
    pub(crate) async fn next_within<M: Request>(
        &mut self,
        wait_max: Duration,
    ) -> Result<Option<M>> {
        let message = self.next_whole::<M>(wait_max).await?;
        message.map(frame::read).transpose()
    }

    /// Returns the bytes of the next message of type `M`, as [`Self::next_within`] does.
    async fn next_whole<M: Request>(&mut self, wait_max: Duration) -> Result<Option<Bytes>> {
        self.frames.set_bounds(M::BOUNDS);
        loop {
            self.count(wait_max).await?;
            if let Some(message) = self.frames.next(&mut self.data)? {
                self.last_bytes = message.len();
                self.waited = Duration::ZERO;
                return Ok(Some(message));
            }
            match self.receive_in_time().await? {
                Some(data) => {
                    self.uncounted = data.len();
                    self.data = data;
                }
                None if self.frames.is_between() => return Ok(None),
                None => return Err(Refusal::invalid("the last message is cut")),
            }
        }
    }

    /// Counts the bytes that have arrived.
    async fn count(&mut self, wait_max: Duration) -> Result<()> {
        while self.uncounted > 0 {
            let Err(problem) = self.held.grow(self.uncounted) else {
                self.uncounted = 0;
                self.waiting_since = None;
                break;
            };
            let since = *self.waiting_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= wait_max {
                return Err(refusal_of(&problem));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Returns the bytes of the last message.
    pub(crate) fn last_bytes(&self) -> usize {
        self.last_bytes
    }

    /// Holds this number of bytes beside those that wait here to be read as messages.
    pub(crate) fn hold(&mut self, bytes: usize) -> Result<()> {
        let waiting = self.frames.kept_bytes() + self.data.len();
        let held = self.held.set(bytes + waiting);
        held.map_err(|problem| refusal_of(&problem))
    }

    /// Waits for more bytes. A message that has begun holds the server's memory, so it must become whole in time. The
    /// time in which the server does not read does not count.
    async fn receive_in_time(&mut self) -> Result<Option<Bytes>> {
        if self.frames.is_between() {
            return receive(&mut self.incoming).await;
        }
        let left = self.rest_max.saturating_sub(self.waited);
        let _counts = Stopwatch {
            begun: Instant::now(),
            total: &mut self.waited,
        };
        // What has come already is taken, however little time is left.
        tokio::time::timeout(left, receive(&mut self.incoming))
            .await
            .unwrap_or_else(|_| Err(stalled(self.rest_max)))
    }
}

/// Adds the time until it is dropped to a total.
struct Stopwatch<'a> {
    begun: Instant,
    total: &'a mut Duration,
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        *self.total += self.begun.elapsed();
    }
}

async fn receive(incoming: &mut Incoming) -> Result<Option<Bytes>> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx)).await;
        match frame {
            None => return Ok(None),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Ok(Some(data)),
                // Trailers of a request mean nothing.
                Err(_) => {}
            },
            Some(Err(error)) => {
                return Err(Refusal::new(
                    Code::Cancelled,
                    format!("the messages cannot be read: {error}"),
                ));
            }
        }
    }
}
