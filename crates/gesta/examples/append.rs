//! Appends an event to a stream and reads the stream.

use gesta::{EventData, ExpectedRevision::Any};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct ItemAdded {
    item: String,
}

#[tokio::main]
async fn main() -> gesta::Result<()> {
    let store = gesta::open("sqlite:shop.db").create().await?;

    let item = "book".to_owned();
    // The id is drawn here: the same value appended a second time is a retry, and stores nothing.
    let added = EventData::new("item-added", &ItemAdded { item })?;
    store.append_to("cart-1", Any, [added.clone()]).await?;
    store.append_to("cart-1", Any, [added]).await?;

    for event in store.read_whole_stream("cart-1").await? {
        let added: ItemAdded = event.json()?;
        println!("{} {} {}", event.revision, event.event_type, added.item);
    }
    store.shutdown().await
}
