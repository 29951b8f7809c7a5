//! The links between nodes, each by a proxy of its own, so that one can be hurt while all others go on.
//!
//! A node has one address for all others. What arrives there is told apart by the process that calls: the operating
//! system knows which one has the other end of the connection, and its command line says which node it is. A caller
//! that is no node any more is turned away, as its end is gone.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use gesta_rig::{FaultProxy, procfs};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use gesta_report::failure::{Context, Result};

/// The links to a node. Dropping it cuts all of them.
pub(crate) struct Links {
    /// Where the other nodes reach it.
    pub(crate) address: SocketAddr,
    /// From each node to it, by the number of the node.
    pub(crate) from: Vec<FaultProxy>,
    _over: DropGuard,
}

impl Links {
    /// Links to the node that listens at `own`, one of all nodes, which listen at `nodes`.
    pub(crate) async fn start(own: SocketAddr, nodes: &[SocketAddr]) -> Result<Self> {
        let to = |target: &SocketAddr| FaultProxy::start(*target).context("starting a proxy");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let over = CancellationToken::new();
        let links = Self {
            address: listener.local_addr()?,
            from: nodes.iter().map(|_| to(&own)).collect::<Result<_>>()?,
            _over: over.clone().drop_guard(),
        };
        let proxies = links.from.iter().map(FaultProxy::addr).collect();
        let callers = Callers::new(nodes);
        tokio::spawn(over.run_until_cancelled_owned(lead(listener, proxies, callers)));
        Ok(links)
    }
}

/// Leads each connection to the proxy of the node that calls.
async fn lead(listener: TcpListener, proxies: Arc<[SocketAddr]>, callers: Callers) {
    let callers = Arc::new(callers);
    let Ok(own) = listener.local_addr() else {
        return;
    };
    while let Ok((mut socket, from)) = listener.accept().await {
        let (proxies, callers) = (Arc::clone(&proxies), Arc::clone(&callers));
        tokio::spawn(async move {
            let found =
                tokio::task::spawn_blocking(move || callers.find(from.port(), own.port())).await;
            let Ok(Some(caller)) = found else { return };
            if let Ok(mut onwards) = TcpStream::connect(proxies[caller]).await {
                let _ = socket.set_nodelay(true).and(onwards.set_nodelay(true));
                let _ = tokio::io::copy_bidirectional(&mut socket, &mut onwards).await;
            }
        });
    }
}

/// Finds out which node a connection comes from.
struct Callers {
    /// What only the command line of the node of each number says.
    words: Vec<String>,
    /// The process that each node was when it called last.
    known: Mutex<Vec<Option<u32>>>,
}

impl Callers {
    fn new(nodes: &[SocketAddr]) -> Self {
        Self {
            words: nodes.iter().map(ToString::to_string).collect(),
            known: Mutex::new(vec![None; nodes.len()]),
        }
    }

    /// The node whose process is connected from this port to that one, if there is one. Its own port is not enough:
    /// the system gives the same one to connections with different ends.
    fn find(&self, from: u16, to: u16) -> Option<usize> {
        let sockets = procfs::sockets(procfs::TCP);
        let socket = (sockets.iter()).find(|it| it.port == from && it.peer_port == to)?;
        let inodes = HashSet::from([socket.inode]);
        let mut known = self.known.lock().unwrap();
        let is_holder = |pid: &Option<u32>| pid.is_some_and(|pid| procfs::holds(pid, &inodes));
        let holder = known.iter().position(is_holder);
        if holder.is_some() {
            return holder;
        }
        for pid in procfs::pids() {
            let Some(words) = procfs::command_line(pid) else {
                continue;
            };
            let node = self.words.iter().position(|word| words.contains(word));
            if let Some(node) = node.filter(|_| procfs::holds(pid, &inodes)) {
                known[node] = Some(pid);
                return Some(node);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;

    /// A connection from a port of its own choice, which others may have as well.
    async fn connect(from: SocketAddr, to: &TcpListener) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(from).unwrap();
        socket.connect(to.local_addr().unwrap()).await.unwrap()
    }

    /// Goal: a connection is known by the process that has its other end, also where a connection to another place
    /// comes from the same port. The one that is asked about is left open by this process, the other is ended, so that
    /// no process holds it any more.
    #[tokio::test]
    async fn the_caller_of_a_connection_is_found() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (listener, other) = (TcpListener::bind(any).await, TcpListener::bind(any).await);
        let (listener, other) = (listener.unwrap(), other.unwrap());
        let ended = connect(any, &other).await;
        let from = ended.local_addr().unwrap();
        let caller = connect(from, &listener).await;
        drop(ended);
        let own = std::env::args().next().unwrap();
        let callers = Callers {
            words: vec!["no such word".into(), own],
            known: Mutex::new(vec![None; 2]),
        };
        let to = listener.local_addr().unwrap().port();
        assert_eq!(callers.find(from.port(), to), Some(1));
        assert_eq!(callers.find(from.port(), to), Some(1), "known now");
        let elsewhere = other.local_addr().unwrap().port();
        assert_eq!(callers.find(from.port(), elsewhere), None, "ended");
        drop(caller);
    }
}
