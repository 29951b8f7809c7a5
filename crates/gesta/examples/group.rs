//! Takes work from a consumer group: each event goes to one of its consumers, until one has finished it.

use gesta::groups::Action;
use gesta::{EventData, ExpectedRevision::Any};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Ordered {
    book: u64,
}

#[tokio::main]
async fn main() -> gesta::Result<()> {
    let store = gesta::open("sqlite:shop.db").create().await?;
    let orders = [EventData::new("ordered", &Ordered { book: 7 })?];
    let last = store.append_to("orders", Any, orders).await?.position;

    // The group is created if there is none. On a server the same call joins a group of the server.
    let mut mails = store.join("orders", "mail").await?;
    while let Some(delivery) = mails.next().await {
        let delivery = delivery?;
        let ordered: Ordered = delivery.event.json()?;
        if ordered.book == 0 {
            mails.nack(&delivery, Action::Park, "no such book").await?;
        } else {
            println!("a mail about book {}", ordered.book);
            mails.ack(&delivery).await?;
        }
        // A program that goes on waits for what comes next. This one ends.
        if delivery.event.position == last {
            break;
        }
    }
    store.shutdown().await
}
