//! The address of a node: which texts may be one, and whether another process has it.
//!
//! Why: the address is the key of a node in the registry, and a process that joins with it replaces the process that
//! had it. That makes a restart immediate, but it would also make a mistyped address the end of a healthy node.
//! Invariant: a process joins with an address that the registry knows as alive only if the address leads to that
//! process, if nobody listens there, or if the beat of the node that has it has stopped.
//! Not here: what happens if two processes have one address all the same (`gesta_cluster`: the older one stops).

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use gesta_cluster::Config;
use gesta_core::registry::{Look, NodeRow, Registry};
use gesta_core::{Error, HostPort, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Duration;
use uuid::Uuid;

/// The time within which a process that calls itself must notice the call.
const CALL_WITHIN: Duration = Duration::from_secs(1);
/// So many looks, a quarter of a beat apart, must see no beat of a node that is taken for dead.
const LOOKS: usize = 8;
/// The greatest number of connections that are read at once meanwhile, because others may be calling as well.
const CALLERS_MAX: usize = 64;

type Mark = [u8; 16];

/// Refuses an address that no other node can dial.
///
/// # Errors
/// `InvalidArgument` if the address breaks a rule.
pub(crate) fn check(address: &str) -> Result<()> {
    let wrong = |why: &str| {
        let rule = format!(
            "must be HOST:PORT at which the other nodes reach this one, such as 10.0.0.5:2114: {why}, found {address:?}"
        );
        Error::invalid("the address of the node", rule)
    };
    HostPort::parse(address).map(drop).map_err(wrong)
}

/// Refuses an address that another process has, as far as that can be told. In a restart at the same address this
/// returns at once. If it cannot be told who listens there, this takes two beats at least.
///
/// # Errors
/// `InvalidArgument` if a node with this address is alive; the errors of the registry.
pub(crate) async fn ensure_free(
    registry: &dyn Registry,
    listener: &TcpListener,
    address: &str,
    leases: &Config,
) -> Result<()> {
    ensure_free_within(registry, listener, address, leases, CALL_WITHIN).await
}

async fn ensure_free_within(
    registry: &dyn Registry,
    listener: &TcpListener,
    address: &str,
    leases: &Config,
    call_within: Duration,
) -> Result<()> {
    let look = registry.look().await?;
    let Some(before) = row(&look, address).map(life) else {
        return Ok(());
    };
    match tokio::time::timeout(call_within, who_answers(listener, address)).await {
        Ok(Answers::Here | Answers::Nobody) => return Ok(()),
        Ok(Answers::Elsewhere) | Err(_) => {}
    }
    let beat = leases.beat(look.nodes.len());
    // Looks are counted, not seconds: while both processes stand still, seconds pass and no node beats.
    for _ in 0..LOOKS {
        tokio::time::sleep(beat / 4).await;
        match row(&registry.look().await?, address) {
            None => return Ok(()),
            Some(row) if life(row) != before => return Err(taken(row)),
            Some(_) => {}
        }
    }
    Ok(())
}

/// Returns the row of the node with this address.
pub(crate) fn row<'a>(look: &'a Look, address: &str) -> Option<&'a NodeRow> {
    let mut nodes = look.nodes.iter();
    nodes.find(|node| *node.info.address == *address)
}

/// Returns what changes with each beat.
pub(crate) fn life(row: &NodeRow) -> (i64, i64) {
    (row.generation.0, row.beat)
}

fn taken(row: &NodeRow) -> Error {
    let rule = format!(
        "must be its own: {} is that of node {}, which is alive",
        row.info.address, row.id
    );
    Error::invalid("the address of the node", rule)
}

/// Who answers at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answers {
    /// This process answers.
    Here,
    /// The connection was refused, so nobody answers.
    Nobody,
    /// Another process answers, or it cannot be told who does.
    Elsewhere,
}

/// Calls the address with a mark, and checks whether the mark arrives at this process. The mark arrives also through a
/// proxy or a translated address.
async fn who_answers(listener: &TcpListener, address: &str) -> Answers {
    let mark: Mark = Uuid::new_v4().into_bytes();
    let mut calling = std::pin::pin!(call(address, mark));
    let mut called = None;
    let mut heard = FuturesUnordered::new();
    loop {
        tokio::select! {
            outcome = &mut calling, if called.is_none() => match outcome {
                // It stays open until the mark has arrived.
                Ok(socket) => called = Some(socket),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => return Answers::Nobody,
                Err(_) => return Answers::Elsewhere,
            },
            accepted = listener.accept(), if heard.len() < CALLERS_MAX => match accepted {
                Ok((socket, _)) => heard.push(read_mark(socket)),
                Err(_) => return Answers::Elsewhere,
            },
            Some(found) = heard.next() => if found == Some(mark) {
                return Answers::Here;
            },
        }
    }
}

async fn call(address: &str, mark: Mark) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(&mark).await?;
    Ok(socket)
}

async fn read_mark(mut socket: TcpStream) -> Option<Mark> {
    let mut mark = Mark::default();
    socket.read_exact(&mut mark).await.ok()?;
    Some(mark)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use gesta_core::registry::{Beat, Generation, Join, NodeId, NodeInfo};
    use gesta_kit::registry::MemoryRegistry;

    use super::*;

    /// With this, whoever waits for beats waits for the whole test.
    const SLOW: Duration = Duration::from_secs(1_000);
    /// A quarter of this passes until a node that lives is seen to live.
    const BRISK: Duration = Duration::from_secs(10);
    const QUICK: Duration = Duration::from_millis(200);
    const LIMIT: Duration = Duration::from_secs(120);
    /// With this, whoever answers the call is waited for.
    const CALL_ANSWERED: Duration = Duration::from_secs(60);

    async fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("bound").to_string();
        (listener, address)
    }

    async fn joined(registry: &MemoryRegistry, address: &str) -> NodeId {
        let join = Join {
            info: NodeInfo {
                address: address.into(),
                weight: 100,
                build: "1".into(),
                protocol_min: 1,
                protocol_max: 1,
            },
            generation: Generation(7),
            beat: 1,
        };
        registry.join(&join).await.expect("joins")
    }

    /// Lets the node that has joined beat.
    async fn beats(registry: &MemoryRegistry, node: NodeId, beat: i64) {
        let beat = Beat {
            node,
            generation: Generation(7),
            beat,
            unreachable: Vec::new(),
        };
        registry.beat(&beat).await.expect("answers");
    }

    async fn try_address(
        registry: &MemoryRegistry,
        own: &TcpListener,
        address: &str,
        beat_min: Duration,
        call_within: Duration,
    ) -> Result<()> {
        let leases = Config {
            beat_min,
            ..Config::default()
        };
        let free = ensure_free_within(registry, own, address, &leases, call_within);
        tokio::time::timeout(LIMIT, free).await.expect("in time")
    }

    #[test]
    fn what_others_can_dial_is_an_address() {
        for good in [
            "127.0.0.1:2114",
            "[::1]:1",
            "node-1.example.org:65535",
            "localhost:80",
            "my_node:7",
        ] {
            assert!(check(good).is_ok(), "{good}");
        }
        let long = format!("{}:1", "a".repeat(254));
        for wrong in [
            "",
            "foo",
            ":2114",
            "foo:",
            "foo:0",
            "foo:65536",
            "foo:+80",
            "0.0.0.0:2114",
            "[::]:2114",
            "::1:2114",
            "[foo]:1",
            "http://foo:2114",
            "http://foo",
            "foo:2114/",
            "a b:1",
            &long,
        ] {
            let error = check(wrong).expect_err(wrong).to_string();
            assert!(
                error.contains("HOST:PORT") && error.contains(wrong),
                "{error}"
            );
        }
        assert!(check(&format!("{}:1", "a".repeat(253))).is_ok());
    }

    /// Goal: a restart at the same address is at once, whether the address leads here or to nobody; so is a new
    /// address.
    #[tokio::test]
    async fn an_address_that_leads_here_or_to_nobody_is_free_at_once() {
        let registry = MemoryRegistry::new(1);
        let (own, here) = listener().await;
        // Bound, so that nobody else gets the port, but it takes no connections.
        let gone = tokio::net::TcpSocket::new_v4().expect("a socket");
        gone.bind("127.0.0.1:0".parse().expect("an address"))
            .expect("binds");
        let nobody = gone.local_addr().expect("bound").to_string();
        let free = try_address(&registry, &own, &here, SLOW, CALL_ANSWERED).await;
        assert!(free.is_ok(), "{free:?}");
        for address in [&here, &nobody] {
            joined(&registry, address).await;
            let free = try_address(&registry, &own, address, SLOW, CALL_ANSWERED).await;
            assert!(free.is_ok(), "{free:?}");
        }
    }

    /// Goal: others that call meanwhile, and say nothing, are not waited for.
    #[tokio::test]
    async fn callers_that_are_silent_hold_nothing_up() {
        let registry = MemoryRegistry::new(1);
        let (own, here) = listener().await;
        joined(&registry, &here).await;
        let mut silent = Vec::new();
        for _ in 0..CALLERS_MAX / 2 {
            silent.push(TcpStream::connect(&here).await.expect("connects"));
        }
        let free = try_address(&registry, &own, &here, SLOW, CALL_ANSWERED).await;
        assert!(free.is_ok(), "{free:?}");
    }

    /// What happened: a mistyped --advertise was the address of a healthy node, which was replaced and stopped.
    #[tokio::test]
    async fn the_address_of_a_node_that_lives_is_refused() {
        let registry = Arc::new(MemoryRegistry::new(1));
        let ((own, _), (_other, there)) = (listener().await, listener().await);
        let node = joined(&registry, &there).await;
        let is_over = Arc::new(AtomicBool::new(false));
        let (beating, ends) = (Arc::clone(&registry), Arc::clone(&is_over));
        let lives = tokio::spawn(async move {
            for beat in 2.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                beats(&beating, node, beat).await;
                tokio::time::sleep(QUICK / 10).await;
            }
        });
        let error = try_address(&registry, &own, &there, BRISK, CALL_WITHIN).await;
        let error = error.expect_err("taken").to_string();
        assert!(error.contains("node 1, which is alive"), "{error}");
        is_over.store(true, Ordering::Relaxed);
        lives.await.expect("ends");
        // It was killed, and something else listens there: a proxy, for example.
        let free = try_address(&registry, &own, &there, QUICK, CALL_WITHIN).await;
        assert!(free.is_ok(), "{free:?}");
    }

    /// What happened: two beats of time were waited for. Both processes stood still for so long (a machine that
    /// sleeps), the node had not beaten yet when they went on, and it was taken for dead.
    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_can_beat_does_not_count() {
        let registry = MemoryRegistry::new(1);
        let ((own, _), (_other, there)) = (listener().await, listener().await);
        let node = joined(&registry, &there).await;
        let trying = try_address(&registry, &own, &there, BRISK, CALL_WITHIN);
        let stands_still = async {
            // The call is over, and the first look for a beat is waited for.
            tokio::time::sleep(CALL_WITHIN + BRISK / 8).await;
            tokio::time::advance(BRISK * 3).await;
            // That look finds no beat. The node beats before the second one.
            tokio::time::sleep(BRISK / 8).await;
            beats(&registry, node, 2).await;
        };
        let (free, ()) = tokio::join!(trying, stands_still);
        let error = free.expect_err("taken").to_string();
        assert!(error.contains("node 1, which is alive"), "{error}");
    }
}
