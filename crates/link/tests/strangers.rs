//! Who may not call: strangers, nodes of other stores, and bytes that mean harm.

#![allow(clippy::expect_used, reason = "in tests")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use gesta_core::LogId;
use gesta_link::{
    Address, ForwardError, LinkConfig, Meeting, Protocols, ReturnReason, Secret, Times, meet,
};
use gesta_rig::FaultProxy;
use support::{
    body, config, forwarder, forwarder_with, later, node, patient, route, trouble, within,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use uuid::Uuid;

/// Times of a forwarder that waits a second for a link.
fn gives_up_after_a_second() -> Times {
    Times {
        return_after: Duration::from_secs(1),
        ..patient()
    }
}

/// Calls with another configuration; returns the sentence that tells why there is no link.
async fn refusal(change: impl FnOnce(&mut LinkConfig)) -> String {
    let owner = node(config()).await;
    let mut other = LinkConfig {
        times: gives_up_after_a_second(),
        ..config()
    };
    change(&mut other);
    let sender = forwarder(other);
    drop(sender.set_route(LogId(0), route(owner.address, 1)));
    let reply = within(support::call(&sender, LogId(0), 1, body("a"), later())).await;
    let unreachable = ForwardError::Returned {
        reason: ReturnReason::Unreachable,
        was_written: false,
    };
    assert_eq!(reply, Err(unreachable));
    assert!(owner.owned.calls().is_empty());
    trouble(&sender).await
}

#[tokio::test]
async fn another_secret_is_refused() {
    let other = Secret::new(b"a secret of another cluster").expect("long enough");
    let sentence = refusal(|config| config.secret = other).await;
    let begins = "the secrets of the two nodes differ: all nodes of a cluster need the same one";
    assert!(sentence.starts_with(begins), "{sentence}");
}

/// Goal: whoever is about to join learns by the hello alone who has another secret; from who is not there, or is of
/// another store, it learns nothing.
#[tokio::test]
async fn a_hello_alone_tells_who_has_another_secret() {
    let owner = node(config()).await;
    let there = Address::from(owner.address);
    let mut stranger = config();
    stranger.secret = Secret::new(b"a secret of another cluster").expect("long enough");
    let mut of_another_store = config();
    of_another_store.store.id = Uuid::from_u128(8);
    for (config, expected) in [
        (config(), Meeting::Welcome),
        (stranger, Meeting::OtherSecret),
        (of_another_store, Meeting::Unknown),
    ] {
        assert_eq!(within(meet(&config, &there)).await, expected);
    }
    // Bound, so that nobody else gets the port, but it takes no connections.
    let gone = TcpSocket::new_v4().expect("a socket");
    gone.bind("127.0.0.1:0".parse().expect("an address"))
        .expect("bound");
    let nobody = Address::from(gone.local_addr().expect("bound"));
    assert_eq!(within(meet(&config(), &nobody)).await, Meeting::Unknown);
    // The node takes links as before.
    let sender = forwarder(config());
    drop(sender.set_route(LogId(0), route(owner.address, 1)));
    let reply = within(support::call(&sender, LogId(0), 1, body("a"), later())).await;
    assert!(reply.is_ok(), "{reply:?}");
    assert!(!sender.nodes()[0].has_other_secret);
}

#[tokio::test]
async fn another_store_is_refused() {
    let sentence = refusal(|config| config.store.id = Uuid::from_u128(8)).await;
    assert!(sentence.contains("must serve the same store"), "{sentence}");
}

#[tokio::test]
async fn another_number_of_logs_is_refused() {
    let sentence = refusal(|config| config.store.logs = 4).await;
    assert!(sentence.contains("one knows 16, the other 4"), "{sentence}");
}

/// Goal: a node of the build after this one is called, one of the build after that is not, and says why.
#[tokio::test]
async fn neighbouring_builds_are_linked_and_builds_two_apart_say_why() {
    let owner = node(config()).await;
    let mut neighbour = config();
    (neighbour.build, neighbour.protocols) = ("next".to_owned(), Protocols { min: 1, max: 2 });
    let sender = forwarder(neighbour);
    drop(sender.set_route(LogId(0), route(owner.address, 1)));
    let reply = within(support::call(&sender, LogId(0), 1, body("a"), later())).await;
    assert!(reply.is_ok(), "{reply:?}");
    let sentence = refusal(|config| {
        config.build = "two apart".to_owned();
        config.protocols = Protocols { min: 2, max: 3 };
    });
    let sentence = sentence.await;
    assert!(
        sentence.contains("must share a version") && sentence.contains("two apart speaks 2 to 3"),
        "{sentence}"
    );
}

/// Goal: whoever took the place of one node and passes everything on to another one gets no link.
#[tokio::test]
async fn a_node_that_was_not_dialled_is_refused() {
    let owner = node(config()).await;
    let relay = FaultProxy::start(owner.address).expect("a proxy");
    let sender = forwarder_with(gives_up_after_a_second());
    drop(sender.set_route(LogId(0), route(relay.addr(), 1)));
    let reply = within(support::call(&sender, LogId(0), 1, body("a"), later())).await;
    assert!(
        reply.is_err() && owner.owned.calls().is_empty(),
        "{reply:?}"
    );
    let sentence = trouble(&sender).await;
    assert!(sentence.contains("at its own address"), "{sentence}");
}

#[test]
fn a_short_secret_is_refused() {
    let refused = Secret::new(b"0123456789abcde").expect_err("15 bytes");
    assert!(
        refused.to_string().contains("at least 16 bytes"),
        "{refused}"
    );
    let secret = Secret::new(b"0123456789abcdef").expect("16 bytes");
    assert!(!format!("{secret:?}").contains("0123"));
}

/// Sends bytes, and returns everything that comes until the node closes the connection.
async fn everything_after(address: SocketAddr, sent: &[u8]) -> Vec<u8> {
    everything_from(after(address, sent).await).await
}

/// Sends bytes.
async fn after(address: SocketAddr, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(sent).await.expect("sent");
    stream
}

/// Returns everything that comes until the node closes the connection.
async fn everything_from(mut stream: TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    // A reset after the last byte is an end as well.
    let _ = within(stream.read_to_end(&mut got)).await;
    got
}

/// Goal: a stranger gets the challenge and one byte that says no, whatever it sends; one who does not even speak the
/// protocol gets nothing; and one who is silent is not waited for.
#[tokio::test]
async fn a_stranger_gets_the_challenge_and_nothing_else() {
    let owner = node(config()).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n0123456789abcdef";
    assert_eq!(everything_after(owner.address, preface).await, b"");
    let start_of_hello = [&b"GESTALNK"[..], &[1; 32]].concat();
    let mut ended = after(owner.address, &start_of_hello).await;
    ended.shutdown().await.expect("ended");
    assert_eq!(everything_from(ended).await.len(), 32);
    let unproven = [&start_of_hello[..], &[0, 3, b'a', b'b', b'c'], &[0; 32]].concat();
    let refused = everything_after(owner.address, &unproven).await;
    assert_eq!((refused.len(), refused.last()), (33, Some(&2)));
    let too_long = [&start_of_hello[..], &[255, 255], &[0; 100]].concat();
    assert!(everything_after(owner.address, &too_long).await.len() <= 32);
    let impatient = LinkConfig {
        times: Times::default(),
        ..config()
    };
    let impatient = node(impatient).await;
    for sent in [&b"GET / HTTP/1.1\r\nhost: a.example.com\r\n\r\n"[..], b""] {
        assert_eq!(everything_after(impatient.address, sent).await, b"");
    }
    let silent = everything_after(impatient.address, &start_of_hello).await;
    // The challenge, if this machine did not stand still.
    assert!(silent.len() <= 32);
    // And nodes are served.
    let sender = forwarder(config());
    drop(sender.set_route(LogId(0), route(owner.address, 1)));
    assert!(
        within(support::call(&sender, LogId(0), 1, body("a"), later()))
            .await
            .is_ok()
    );
}

/// Goal: strangers that hold connections open take no place of nodes for longer than the hello may take.
#[tokio::test]
async fn many_strangers_do_not_keep_nodes_out() {
    let impatient = LinkConfig {
        times: Times::default(),
        ..config()
    };
    let owner = node(impatient).await;
    let mut strangers = Vec::new();
    for _ in 0..100 {
        strangers.push(TcpStream::connect(owner.address).await.expect("connected"));
    }
    let sender = forwarder(config());
    sender.set_nodes(&[owner.address.into()]);
    let is_linked = async {
        while sender.nodes()[0].trouble.is_some()
            || sender.nodes()[0].reach != gesta_link::Reach::Reachable
        {
            tokio::task::yield_now().await;
        }
    };
    within(is_linked).await;
}
