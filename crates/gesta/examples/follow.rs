//! Follows the events of all carts. Started again, it goes on where it was.

use gesta::{Checkpoint, EventData, ExpectedRevision::Any, Filter};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct ItemAdded {
    item: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = gesta::open("sqlite:shop.db").create().await?;
    let item = "pen".to_owned();
    let added = EventData::new("item-added", &ItemAdded { item })?;
    let last = store.append_to("cart-2", Any, [added]).await?.position;

    // None at first: then it begins with the first event.
    let kept = std::fs::read_to_string("carts.checkpoint").ok();
    let kept: Option<Checkpoint> = kept.map(|text| text.parse()).transpose()?;
    let carts = store.follow(Filter::category("cart"));
    let mut carts = carts.from_checkpoint(kept).await?;
    while let Some(next) = carts.next().await {
        let (event, checkpoint) = next?;
        let added: ItemAdded = event.json()?;
        println!("{} {} {}", event.stream, event.event_type, added.item);
        std::fs::write("carts.checkpoint", checkpoint.to_string())?;
        // A program that goes on waits for what comes next. This one ends.
        if event.position == last {
            break;
        }
    }
    Ok(store.shutdown().await?)
}
