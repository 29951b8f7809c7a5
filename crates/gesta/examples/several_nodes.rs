//! Appends through several servers of one store: where one is gone, another one is asked.
//!
//! `several_nodes 'https://one:2113 https://two:2113' TOKEN AUTHORITY.pem`

use std::time::Duration;

use gesta::{EventData, ExpectedRevision::Any};

#[tokio::main]
async fn main() -> gesta::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let local = "http://127.0.0.1:2113".to_owned();
    let servers = arguments.next().unwrap_or(local);
    let mut open = gesta::open(&servers);
    // For a server with users, and with a certificate of an own authority.
    if let (Some(token), Some(authority)) = (arguments.next(), arguments.next()) {
        open = open.token(token).ca_file(authority);
    }
    let store = open.await?;

    let added = EventData::new("item-added", "book")?;
    let appended = loop {
        // Each attempt is the same event, so it is stored once.
        match store.append_to("cart-1", Any, [added.clone()]).await {
            Err(error) if error.is_retryable() => println!("again: {error}"),
            done => break done?,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let [cart] = appended.streams.as_slice() else {
        return Ok(());
    };
    let event = store.read_event(&cart.stream, cart.last_revision).await?;
    println!("{} {} {}", event.stream, event.event_type, event.id);
    store.shutdown().await
}
