//! An entity: a basket with room for two items. Its rules are plain Rust, its events are in the store.

use gesta::entity::{Context, Decider, EntityType, JsonEvents};
use serde::{Deserialize, Serialize};

#[derive(Default)]
struct Basket(Vec<String>);

#[derive(Serialize, Deserialize)]
enum Event {
    #[serde(rename = "item-added")]
    Added { item: String },
}

impl Decider for Basket {
    type Command = String;
    type Event = Event;
    type Reply = ();
    type Rejection = &'static str;
    fn decide(&self, item: &String, _: &Context<'_>) -> Result<Vec<Event>, &'static str> {
        let added = Event::Added { item: item.clone() };
        (self.0.len() < 2).then(|| vec![added]).ok_or("it is full")
    }
    fn evolve(&mut self, Event::Added { item }: &Event) {
        self.0.push(item.clone());
    }
    fn reply(&self, _: &String) {}
}

#[tokio::main]
async fn main() -> gesta::Result<()> {
    let store = gesta::open("sqlite:shop.db").create().await?;
    let baskets = EntityType::<Basket>::new("basket", JsonEvents::<Event>::new())?;
    let baskets = store.entities(baskets)?;
    for item in ["book", "pen", "lamp"] {
        println!("{item}: {:?}", baskets.execute("7", item.into()).await);
    }
    baskets.shutdown().await;
    store.shutdown().await
}
