//! Accepts connections, serves them, and stops.
//!
//! Invariants: when [`Handle::shutdown`] returns, no connection is served any more.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Once};
use std::time::Duration;

use gesta_access::Access;
use gesta_core::EventStore;
use gesta_core::shares::Holder;
use gesta_groups::Groups;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::Answer;
use crate::config::{self, Config, Trusted};
use crate::edge::{Edge, Watch, WatchVerdict};
use crate::http::groups;
use crate::router;
use crate::shared::activity::{Activity, CROWDED_BY_STRANGERS_MAX, CROWDED_MAX};
use crate::shared::appends::APPEND_TURN_MAX;
use crate::shared::gate::{GaveWay, Ticket};
use crate::shared::lasting::Lasting;
use crate::shared::maintainer::Maintenance;
use crate::shared::placement::Cluster;
use crate::shared::problem::Problem;
use crate::state::{BackupSource, Beside, State};
use crate::tls::{Tls, TlsError};

/// Largest head of a request, in bytes, and size of the parts in which bodies are read.
const READ_BUFFER_BYTES_MAX: usize = 128 * 1_024;
/// Fewest calls at once that one HTTP/2 connection may have. It may have as many as there may be subscriptions: clients
/// keep further calls to themselves, without a word.
const HTTP2_STREAMS_MIN: usize = 256;
const HTTP2_STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// A client is asked so often whether it is there, and is taken to be gone if it does not answer within so long. That
/// something can be written tells nothing: for many minutes the system keeps what it cannot send.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(10);
const HTTP2_PING_ANSWER_MAX: Duration = Duration::from_secs(10);
/// The same for the connection below: how long it may be silent before the system asks, how often it asks then, and how
/// long what was sent may go without acknowledgement, or may wait because the client takes nothing.
const TCP_SILENCE_MAX: Duration = Duration::from_secs(5);
const TCP_ASK_EVERY: Duration = Duration::from_secs(5);
const TCP_ANSWER_MAX: Duration = Duration::from_secs(20);
const CLOSE: HeaderValue = HeaderValue::from_static("close");
/// Pause after a failed accept. Mostly file descriptors are missing then.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A client that has an idle connection when the server stops, and sends its next request within this time, is
/// answered, and told that the connection ends. One that was closed at once might meet that request on its way.
const LAST_ANSWER_MAX: Duration = Duration::from_millis(500);
/// Most connections that are still accepted when the server stops. The system keeps at most so many waiting.
const LAST_CONNECTIONS_MAX: usize = 4_096;
/// How long a connection beyond the maximum may say nothing. [`RESERVE_MAX`] is how long such a connection may last.
const RESERVE_SILENCE_MAX: Duration = Duration::from_secs(1);
const RESERVE_MAX: Duration = Duration::from_secs(10);
/// How long what is in flight on a connection that gives up its place may last: an append that waits for its turn is
/// answered before.
const GIVING_WAY_MAX: Duration = Duration::from_secs(APPEND_TURN_MAX.as_secs() + 5);

/// The reason why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Other machines could reach the address, so that anybody could read and write, or read the passwords.
    #[error(
        "refusing to listen on {0}: other machines could reach it: speak TLS (--tls-certificate, or --tls-self-signed to try it out) with users \
         (GESTA_ADMIN_PASSWORD makes the first one), say --behind-proxy if a proxy in front speaks TLS, or --insecure to let \
         everybody who reaches it read and write"
    )]
    NotLoopback(SocketAddr),
    /// The application cannot listen on the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address that was configured.
        address: SocketAddr,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The files of TLS cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// A value of the configuration breaks a rule: its key, the rule and the value.
    #[error("{0}")]
    Config(String),
}

/// A running server. The handle is cheap to clone; dropping it does not stop the server.
#[derive(Clone)]
pub struct Handle {
    address: SocketAddr,
    state: Arc<State>,
    connections: TaskTracker,
    aborting: CancellationToken,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A server that listens on its address already, though it answers nothing yet.
pub struct Bound {
    config: Config,
    trusted: Trusted,
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
    /// Source of copies of the store.
    backups: Option<Arc<dyn BackupSource>>,
    /// Who checks and scavenges the store.
    maintenance: Option<Arc<dyn Maintenance>>,
    /// Cluster of which the server is a node.
    cluster: Option<Arc<dyn Cluster>>,
    /// Accounts of the callers, and what they may do.
    access: Option<Access>,
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Takes the address, so that an error of it is known before a store is opened. Clients that connect wait until
/// [`Bound::serve`].
///
/// # Errors
/// [`StartError`] if a value of the configuration breaks a rule, the address is not allowed, the server cannot listen
/// on it, or the files of TLS cannot be used.
///
/// # Cancel safety
/// If the future is dropped, the address is free.
pub async fn bind(config: Config) -> Result<Bound, StartError> {
    let trusted = Trusted::of(&config).map_err(StartError::Config)?;
    let address = config.listen;
    let is_safe = config.requires_access && (config.tls.is_some() || config.behind_proxy);
    if !address.ip().is_loopback() && !config.insecure && !is_safe {
        return Err(StartError::NotLoopback(address));
    }
    let tls = config.tls.clone().map(Tls::read).transpose()?.map(Arc::new);
    let refused = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    Ok(Bound {
        address: listener.local_addr().map_err(refused)?,
        listener,
        config,
        trusted,
        tls,
        backups: None,
        maintenance: None,
        cluster: None,
        access: None,
    })
}

impl Bound {
    /// Returns the address on which the server listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Lets the server give copies of its store, at `POST /admin/backup`.
    #[must_use]
    pub fn with_backups(mut self, source: Arc<dyn BackupSource>) -> Self {
        self.backups = Some(source);
        self
    }

    /// Lets administrators check and scavenge the store through the server, and switch its virtual streams, below
    /// `/admin`.
    #[must_use]
    pub fn with_maintenance(mut self, maintenance: Arc<dyn Maintenance>) -> Self {
        self.maintenance = Some(maintenance);
        self
    }

    /// Lets the server tell who owns which log: in `/info`, and beside answers to appends.
    #[must_use]
    pub fn with_cluster(mut self, cluster: Arc<dyn Cluster>) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Makes the server ask who calls, and check what they may do.
    #[must_use]
    pub fn with_access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Starts the server for `store`. It must be called within a tokio runtime.
    ///
    /// `registry` may hold metrics of the caller, which `/metrics` shows beside the metrics of the server.
    pub fn serve(self, store: Arc<dyn EventStore>, registry: Registry) -> Handle {
        let groups = groups::start(&self.config, &store, self.cluster.clone());
        let handle = Handle {
            address: self.address,
            state: State::new(
                self.config,
                self.trusted,
                self.tls,
                store,
                registry,
                groups,
                Beside {
                    backups: self.backups,
                    maintenance: self.maintenance,
                    cluster: self.cluster,
                    access: self.access,
                },
            ),
            connections: TaskTracker::new(),
            aborting: CancellationToken::new(),
        };
        tracing::debug!(address = %handle.address, "listening");
        if let Some(tls) = &handle.state.tls {
            let following = Arc::clone(tls).follow(handle.state.stopping.clone());
            handle.connections.spawn(following);
        }
        handle
            .connections
            .spawn(accept(self.listener, handle.clone()));
        handle
    }
}

/// Starts a server with [`bind`] and [`Bound::serve`].
///
/// # Errors
/// The errors of [`bind`].
///
/// # Cancel safety
/// If the future is dropped, no server is started.
pub async fn start(
    config: Config,
    store: Arc<dyn EventStore>,
    registry: Registry,
) -> Result<Handle, StartError> {
    Ok(bind(config).await?.serve(store, registry))
}

impl Handle {
    /// Returns the address on which the server listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the consumer groups that the server runs.
    #[must_use]
    pub fn groups(&self) -> Groups {
        self.state.groups.clone()
    }

    /// Stops the server: takes no new connections, ends subscriptions, and lets running requests finish, for
    /// [`Config::shutdown_grace`] at most. A connection without a running request is closed after its next request, or
    /// after half a second without one. The store stays open.
    ///
    /// # Cancel safety
    /// If the future is dropped, the server goes on to stop, without a limit to the time that it takes.
    pub async fn shutdown(&self) {
        self.state.stopping.cancel();
        self.connections.close();
        let grace = self.state.config.shutdown_grace;
        // Consumers of groups are told, and what they have finished is stored.
        let groups = tokio::time::timeout(grace, self.state.groups.shutdown());
        let connections = tokio::time::timeout(grace, self.connections.wait());
        let (_, connections) = tokio::join!(groups, connections);
        if connections.is_err() {
            let left = self.state.bounds.connections.inside();
            tracing::warn!(
                connections = left,
                "closing connections that did not finish"
            );
            self.aborting.cancel();
            self.connections.wait().await;
        }
    }
}

async fn accept(listener: TcpListener, handle: Handle) {
    let builder = Arc::new(builder(&handle.state.config));
    let mut failures = Lasting::default();
    loop {
        let accepted = tokio::select! {
            () = handle.state.stopping.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) if is_of_one_client(&error) => continue,
            Err(error) => {
                if failures.fails() {
                    tracing::warn!(%error, "cannot accept connections; trying again");
                }
                tokio::select! {
                    () = handle.state.stopping.cancelled() => break,
                    () = tokio::time::sleep(ACCEPT_RETRY) => continue,
                }
            }
        };
        if failures.succeeds() {
            tracing::info!("accepting connections again");
        }
        admit(socket, &handle, &builder);
    }
    // Who has connected already may have sent a request. The runtime might not have heard of it yet, so the system is
    // asked.
    let Ok(listener) = listener.into_std() else {
        return;
    };
    for _ in 0..LAST_CONNECTIONS_MAX {
        let Ok((socket, _)) = listener.accept() else {
            return;
        };
        if socket.set_nonblocking(true).is_ok()
            && let Ok(socket) = TcpStream::from_std(socket)
        {
            admit(socket, &handle, &builder);
        }
    }
}

/// Serves a connection that was accepted, or tells the client why not.
fn admit(socket: TcpStream, handle: &Handle, builder: &Arc<auto::Builder<TokioExecutor>>) {
    let (own, builder) = (handle.clone(), Arc::clone(builder));
    // Whose connection was closed already is counted nowhere.
    let Ok(from) = socket.peer_addr() else { return };
    let holder = handle.state.stranger(from.ip());
    match handle.state.bounds.connections.enter(&holder) {
        Ok(ticket) => {
            let serving = serve(socket, own, builder, None, ticket);
            handle.connections.spawn(serving);
        }
        Err(full) => match handle.state.bounds.reserve.enter(&holder) {
            Ok(ticket) => {
                let serving = serve_beyond(socket, own, builder, full, ticket);
                handle.connections.spawn(serving);
            }
            Err(_) => turn_away(&handle.state, &socket, &full),
        },
    }
}

/// Returns true if only the connection that was to be accepted has failed.
fn is_of_one_client(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

fn http2_streams_max(config: &Config) -> usize {
    config.subscriptions_max.max(HTTP2_STREAMS_MIN)
}

fn builder(config: &Config) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Without a timer: `Watch` looks after slow heads at less cost. Without `pipeline_flush`: it
    // loses answers to what comes before a request that cannot be read. Without `writev`: copying a
    // small answer after its head costs less than sending the two from two places (1 to 2 µs).
    builder
        .http1()
        .writev(false)
        .max_buf_size(READ_BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HTTP2_PING_EVERY)
        .keep_alive_timeout(HTTP2_PING_ANSWER_MAX)
        .max_concurrent_streams(u32::try_from(http2_streams_max(config)).unwrap_or(u32::MAX))
        .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES);
    builder
}

/// Tells a client that there are too many connections, if its socket takes that at once.
fn turn_away(state: &State, socket: &TcpStream, problem: &Problem) {
    // Without a handshake, a client that speaks TLS understands nothing.
    if state.tls.is_some() {
        return;
    }
    let document = problem.to_body();
    let mut answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n",
        document.len()
    )
    .into_bytes();
    answer.extend_from_slice(&document);
    if let Err(error) = socket.try_write(&answer) {
        tracing::debug!(%error, "a client was turned away without an answer");
    }
}

/// Number of unsent bytes from which on the kernel takes no more for a socket.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 32 * 1024;

/// Keeps the bytes that wait for a client in its socket few, where the system can. Megabytes for a client that does not
/// read would be memory that no bound counts, and would hide that the client does not read. The bytes that are being
/// sent to the client are not bounded.
fn hold_little_unsent(socket: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(socket).set_tcp_notsent_lowat(UNSENT_BYTES) {
        tracing::debug!(%error, "TCP_NOTSENT_LOWAT cannot be set");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Lets the system end a connection whose client has vanished without closing it, within some twenty seconds. Otherwise
/// a client that is only written to seems to be there for a quarter of an hour.
fn find_out_when_it_is_gone(socket: &TcpStream) {
    let socket = socket2::SockRef::from(socket);
    let asking = socket2::TcpKeepalive::new()
        .with_time(TCP_SILENCE_MAX)
        .with_interval(TCP_ASK_EVERY);
    if let Err(error) = socket.set_tcp_keepalive(&asking) {
        tracing::debug!(%error, "TCP keep-alive cannot be set");
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = socket.set_tcp_user_timeout(Some(TCP_ANSWER_MAX)) {
        tracing::debug!(%error, "TCP_USER_TIMEOUT cannot be set");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = TCP_ANSWER_MAX;
}

/// Serves a connection beyond the maximum for a short time: probes get an answer, other requests are told that the
/// server is full.
async fn serve_beyond(
    socket: TcpStream,
    handle: Handle,
    builder: Arc<auto::Builder<TokioExecutor>>,
    full: Problem,
    ticket: Ticket,
) {
    let mut first = [0];
    let speaks = tokio::time::timeout(RESERVE_SILENCE_MAX, socket.peek(&mut first)).await;
    if speaks.is_err() {
        return turn_away(&handle.state, &socket, &full);
    }
    let serving = serve(socket, handle, builder, Some(Arc::new(full)), ticket);
    if tokio::time::timeout(RESERVE_MAX, serving).await.is_err() {
        tracing::debug!("a connection beyond the maximum lasted too long");
    }
}

/// Serves a connection. If the connection is beyond the maximum, `full` is the answer to all requests but probes.
async fn serve(
    socket: TcpStream,
    handle: Handle,
    builder: Arc<auto::Builder<TokioExecutor>>,
    full: Option<Arc<Problem>>,
    ticket: Ticket,
) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY cannot be set");
    }
    hold_little_unsent(&socket);
    find_out_when_it_is_gone(&socket);
    let Ok(from) = socket.peer_addr() else {
        // It was closed already.
        return;
    };
    let from = from.ip();
    let state = &handle.state;
    match &state.tls {
        None => converse(socket, &handle, &builder, from, full, ticket).await,
        Some(tls) => {
            let shaken = tokio::select! {
                shaken = shake_hands(tls, state, from, socket) => shaken,
                problem = ticket.gave_way() => {
                    tracing::debug!(%from, problem.detail, "a TLS handshake gives up its place");
                    None
                }
            };
            if let Some(stream) = shaken {
                converse(stream, &handle, &builder, from, full, ticket).await;
            }
        }
    }
}

/// Speaks TLS on a connection. Returns `None` if that fails, takes too long, or gives way to later handshakes.
async fn shake_hands(
    tls: &Tls,
    state: &State,
    from: IpAddr,
    socket: TcpStream,
) -> Option<TlsStream<TcpStream>> {
    let mut newcomer = state.bounds.handshakes.admit(from);
    tokio::select! {
        stream = tokio::time::timeout(state.config.handshake_max, tls.accept(socket)) => stream.ok()?,
        () = newcomer.displaced() => {
            tracing::debug!(%from, "a TLS handshake gives way to later ones");
            None
        }
        () = state.stopping.cancelled() => None,
    }
}

/// Ends when the server stops, or the connection gives up its place, and the connection may be told so. HTTP/2 tells it
/// without harm to a request that is on its way. In HTTP/1.1 only an answer can: so a connection without a running
/// request gets a last chance of one.
async fn time_to_end(state: &State, activity: &Activity, from: IpAddr, gave_way: GaveWay) {
    tokio::select! {
        () = state.stopping.cancelled() => {}
        problem = gave_way => {
            tracing::debug!(%from, problem.detail, "a connection gives up its place");
            activity.give_way();
        }
    }
    activity.set_ending();
    if !activity.is_http2() && !activity.is_running() {
        tokio::time::sleep(LAST_ANSWER_MAX).await;
    }
}

/// Answers a request. If the connection is ending, the answer says so; HTTP/2 does that by other means.
async fn answer(
    state: Arc<State>,
    activity: &Arc<Activity>,
    from: IpAddr,
    request: Request<Incoming>,
    full: Option<&Problem>,
) -> Answer {
    let shared = Arc::clone(&state);
    let strangers = &shared.bounds.strangers;
    let mut answer = match full {
        None => router::answer(state, activity, from, request).await,
        Some(full) => router::answer_beyond(state, activity, from, request, full).await,
    };
    // What was refused, and what anybody may ask, is kept until the client takes it. A client that asks and asks and
    // takes nothing gets no more.
    if activity.is_http2() && answer.body().is_without_place() {
        let stranger = shared.stranger(from);
        let is_known = answer.body_mut().guards().holder.is_some();
        let in_flight_max = match is_known || stranger == Holder::Everybody {
            true => CROWDED_MAX,
            false => CROWDED_BY_STRANGERS_MAX,
        };
        match strangers.enter(&stranger) {
            Ok(place) => answer.body_mut().guards().request = Some(place),
            Err(_) if activity.abandon_beyond(in_flight_max) => {
                tracing::debug!(%from, "closing a connection that takes no answers");
            }
            Err(_) => {}
        }
    }
    if activity.is_ending() && !activity.is_http2() {
        answer.headers_mut().insert(CONNECTION, CLOSE);
    }
    answer
}

/// Answers the requests of a connection until it ends.
async fn converse<S>(
    socket: S,
    handle: &Handle,
    builder: &auto::Builder<TokioExecutor>,
    from: IpAddr,
    full: Option<Arc<Problem>>,
    ticket: Ticket,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let state = &handle.state;
    let gave_way = ticket.gave_way();
    let activity = Arc::new(Activity::bounded(
        http2_streams_max(&state.config),
        Arc::clone(&state.bounds.full_connections),
        ticket,
    ));
    let told = Once::new();
    let service = service_fn(|request| {
        let (state, activity) = (state.clone(), activity.clone());
        let (running, full) = (activity.request(), full.clone());
        if activity.is_full() {
            told.call_once(|| {
                let calls = http2_streams_max(&state.config);
                tracing::warn!(%from, calls, "a connection has as many calls in flight as it may have: the client keeps further ones to itself");
            });
        }
        async move {
            let from = config::client(&state.trusted.proxies, from, request.headers());
            let mut answer = answer(state, &activity, from, request, full.as_deref()).await;
            answer.body_mut().guards().running = Some(running);
            Ok::<_, Infallible>(answer)
        }
    });
    let heads = state
        .bounds
        .budget_of_strangers
        .reservation(&state.stranger(from));
    let io = TokioIo::new(Edge::new(socket, activity.clone()).counting(heads));
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    let mut watch = Watch::new(activity.clone(), Instant::now());
    let mut ticks = tokio::time::interval(Watch::interval(&state.config));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draining = false;
    let mut time_to_end = std::pin::pin!(time_to_end(state, &activity, from, gave_way));
    let mut gave_way_long_ago = std::pin::pin!(async {
        activity.giving_way().cancelled().await;
        tokio::time::sleep(GIVING_WAY_MAX).await;
    });
    loop {
        tokio::select! {
            biased;
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::debug!(%error, "connection failed");
                }
                return;
            }
            () = &mut time_to_end, if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
            () = handle.aborting.cancelled() => return,
            () = activity.abandoned() => return,
            () = &mut gave_way_long_ago => return,
            now = ticks.tick() => match watch.look(&state.config, now) {
                WatchVerdict::Keep => {}
                WatchVerdict::Drain if draining => {}
                WatchVerdict::Drain => {
                    draining = true;
                    connection.as_mut().graceful_shutdown();
                }
                WatchVerdict::Close => {
                    tracing::debug!("closing a connection that stalls");
                    return;
                }
            }
        }
    }
}
