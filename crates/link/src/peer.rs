//! The links that this node dials: one task for each node connects, keeps the link alive and tells its state.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use gesta_core::{BackOff, Moment};
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::config::{LinkConfig, Times};
use crate::demand::Demand;
use crate::hello::{self, HelloError, Introduction};
use crate::pipe::{CONNECTION_WINDOW, Pipe, STREAM_WINDOW};
use crate::reach::{History, Reach};
use crate::route::Address;
use crate::sending::Credit;

/// The pauses between tries to connect.
const RECONNECT: BackOff = BackOff::new(Duration::from_millis(50), Duration::from_millis(500));

/// A link that is up.
#[derive(Clone)]
pub(crate) struct LinkHandle {
    request: SendRequest<Bytes>,
    body_bytes_max: u32,
    /// What the other node takes on each lane.
    pub(crate) credit: Credit,
}

impl fmt::Debug for LinkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkHandle").finish_non_exhaustive()
    }
}

impl LinkHandle {
    /// Opens a stream.
    pub(crate) fn open(&self) -> Result<Pipe, h2::Error> {
        Pipe::open(&self.request, self.body_bytes_max)
    }
}

/// The state of a node's link.
#[derive(Debug, Clone)]
pub(crate) struct PeerState {
    pub(crate) reach: Reach,
    pub(crate) link: Option<LinkHandle>,
    /// Whether the node has not answered a ping in time, and has not been heard since.
    pub(crate) is_silent: bool,
    pub(crate) trouble: Option<Trouble>,
}

/// The reason why there is no link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// A sentence for people.
    pub(crate) text: String,
    /// Whether the machine has answered that nobody listens there.
    pub(crate) is_refused: bool,
    /// Whether the node has answered that the secrets differ.
    pub(crate) has_other_secret: bool,
}

impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Self {
            text,
            is_refused: false,
            has_other_secret: false,
        }
    }
}

/// A node that is dialled as long as somebody holds this.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: Address,
    state: watch::Receiver<PeerState>,
    /// The count of those who wait for answers of this node.
    pub(crate) demand: Arc<Demand>,
    _ends: DropGuard,
}

impl Peer {
    pub(crate) fn watch(&self) -> watch::Receiver<PeerState> {
        self.state.clone()
    }
}

/// The nodes that are dialled.
#[derive(Debug)]
pub(crate) struct Peers {
    config: LinkConfig,
    process: Uuid,
    known: Mutex<BTreeMap<Address, Weak<Peer>>>,
    pub(crate) tasks: TaskTracker,
    pub(crate) closed: CancellationToken,
}

impl Peers {
    pub(crate) fn new(config: LinkConfig) -> Self {
        Self {
            config,
            process: Uuid::new_v4(),
            known: Mutex::default(),
            tasks: TaskTracker::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Returns the number of logs of the store.
    pub(crate) fn logs(&self) -> u16 {
        self.config.store.logs
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Address, Weak<Peer>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the node at this address. The node is dialled from now on if it was not dialled before.
    pub(crate) fn get(&self, address: &Address) -> Arc<Peer> {
        let mut known = self.known();
        if let Some(peer) = known.get(address).and_then(Weak::upgrade) {
            return peer;
        }
        known.retain(|_, peer| peer.strong_count() > 0);
        let state = watch::Sender::new(PeerState {
            reach: Reach::Connecting,
            link: None,
            is_silent: false,
            trouble: None,
        });
        let demand = Arc::<Demand>::default();
        let ends = self.closed.child_token();
        let peer = Arc::new(Peer {
            address: address.clone(),
            state: state.subscribe(),
            demand: Arc::clone(&demand),
            _ends: ends.clone().drop_guard(),
        });
        known.insert(address.clone(), Arc::downgrade(&peer));
        let dialler = Dialler {
            address: address.clone(),
            introduction: introduction(&self.config, self.process, address),
            config: self.config.clone(),
            history: History::new(self.config.times, now()),
            demand,
            state,
        };
        self.tasks
            .spawn(async move { ends.run_until_cancelled(dialler.run()).await });
        peer
    }

    /// Returns the nodes that are dialled now, with their states.
    pub(crate) fn states(&self) -> Vec<(Address, PeerState)> {
        let known = self.known();
        let peers = known.values().filter_map(Weak::upgrade);
        peers
            .map(|peer| (peer.address.clone(), peer.state.borrow().clone()))
            .collect()
    }
}

/// Returns the time now, by the clock of the runtime: timers end by it.
fn now() -> Moment {
    Moment::of(Instant::now().into_std())
}

/// Makes what this node says about itself on a connection to this address.
pub(crate) fn introduction(config: &LinkConfig, process: Uuid, dialled: &Address) -> Introduction {
    Introduction {
        protocols: config.protocols,
        store: config.store,
        process,
        credit: config.bounds.credit(),
        build: config.build.clone(),
        address: dialled.clone(),
    }
}

/// The task of one node.
struct Dialler {
    address: Address,
    introduction: Introduction,
    config: LinkConfig,
    history: History,
    demand: Arc<Demand>,
    state: watch::Sender<PeerState>,
}

impl Dialler {
    async fn run(mut self) {
        let mut pauses = RECONNECT;
        loop {
            let within = self.config.times.connect_within;
            let connect = connect(
                self.address.clone(),
                self.config.clone(),
                self.introduction.clone(),
            );
            let connected = self.during(tokio::time::timeout(within, connect)).await;
            let trouble = match connected {
                Ok(Ok(link)) => {
                    pauses.reset();
                    self.keep(link).await.into()
                }
                Ok(Err(trouble)) => trouble,
                Err(_) => format!("no link within {within:?}").into(),
            };
            self.report(trouble);
            self.during(tokio::time::sleep(pauses.pause())).await;
        }
    }

    /// Keeps a link until it breaks. Returns why it broke.
    async fn keep(&mut self, link: NewLink) -> String {
        self.history.up(now(), link.other.process);
        let handle = LinkHandle {
            request: link.request,
            body_bytes_max: self.config.bounds.body_bytes_max,
            credit: link.other.credit,
        };
        self.state.send_modify(|state| {
            state.link = Some(handle);
            state.is_silent = false;
            state.trouble = None;
        });
        let (state, address) = (self.state.clone(), self.address.clone());
        let tell = move |is_silent| {
            tracing::debug!(node = %address, is_silent, "a node is silent, or heard again");
            state.send_modify(|state| state.is_silent = is_silent);
        };
        let demand = Arc::clone(&self.demand);
        let pings = keep_alive(link.pings, self.config.times, &demand, tell);
        let driven = async {
            tokio::select! {
                // What has come is read before a ping counts as unanswered: this process may have been busy itself.
                biased;
                result = link.connection => match result {
                    Ok(()) => "the other node closed the link".to_owned(),
                    Err(error) => format!("the link broke: {error}"),
                },
                trouble = pings => trouble,
            }
        };
        let trouble = self.during(driven).await;
        self.history.down(now());
        trouble
    }

    fn report(&self, trouble: Trouble) {
        let is_known = self.state.borrow().trouble.as_ref() == Some(&trouble);
        if !is_known {
            tracing::warn!(node = %self.address, trouble = trouble.text, "no link to a node");
        }
        let reach = self.history.reach(now());
        self.state.send_modify(|state| {
            state.link = None;
            state.reach = reach;
            state.trouble = Some(trouble);
        });
    }

    /// Does something, and meanwhile tells when the node becomes reachable or unreachable because of time.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            let now = now();
            let reach = self.history.reach(now);
            self.state.send_if_modified(|state| {
                let is_new = state.reach != reach;
                state.reach = reach;
                is_new
            });
            let wake_at = self.history.wake_at(now);
            let wake = async {
                match wake_at {
                    Some(at) => tokio::time::sleep_until(at.instant().into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                result = &mut work => return result,
                () = wake => {}
            }
        }
    }
}

/// A link that was just made.
struct NewLink {
    request: SendRequest<Bytes>,
    connection: h2::client::Connection<TcpStream, Bytes>,
    pings: Option<PingPong>,
    other: Introduction,
}

async fn connect(
    address: Address,
    config: LinkConfig,
    own: Introduction,
) -> Result<NewLink, Trouble> {
    let connected = TcpStream::connect(address.as_str()).await;
    let mut socket = connected.map_err(|error| Trouble {
        text: format!("cannot connect: {error}"),
        is_refused: error.kind() == std::io::ErrorKind::ConnectionRefused,
        has_other_secret: false,
    })?;
    // A socket without it is only slower.
    let _ = socket.set_nodelay(true);
    let other = hello::dial(&mut socket, &config.secret, &own)
        .await
        .map_err(|error| Trouble {
            has_other_secret: matches!(error, HelloError::OtherSecret),
            ..Trouble::from(error.to_string())
        })?;
    let (request, mut connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .enable_push(false)
        .max_local_error_reset_streams(None)
        .handshake(socket)
        .await
        .map_err(|error| error.to_string())?;
    Ok(NewLink {
        request,
        pings: connection.ping_pong(),
        connection,
        other,
    })
}

/// Pings the other node. Returns, with the reason, when the node has not answered for too long. Before that it tells
/// when the node becomes silent, and when it is heard again. Only answers to pings count: if one direction is cut,
/// bytes may come that prove nothing about the other direction.
pub(crate) async fn keep_alive(
    pings: Option<PingPong>,
    times: Times,
    demand: &Demand,
    mut tell_silent: impl FnMut(bool),
) -> String {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    let mut answered = Instant::now();
    loop {
        tokio::time::sleep_until(answered + times.ping_waiting_every).await;
        let idle = tokio::time::sleep_until(answered + times.ping_every);
        tokio::select! {
            () = idle => {}
            () = demand.is_held() => {}
        }
        let dead_at = answered + times.dead_after;
        let silent_at = dead_at.min(Instant::now() + times.silent_after);
        let mut pong = std::pin::pin!(pings.ping(Ping::opaque()));
        let mut result = tokio::time::timeout_at(silent_at, &mut pong).await;
        let is_silent = result.is_err();
        if is_silent {
            tell_silent(true);
            result = tokio::time::timeout_at(dead_at, &mut pong).await;
        }
        match result {
            Ok(Ok(_)) => answered = Instant::now(),
            Ok(Err(error)) => return format!("the link broke: {error}"),
            Err(_) => return format!("no answer for {:?}", times.dead_after),
        }
        if is_silent {
            tell_silent(false);
        }
    }
}
