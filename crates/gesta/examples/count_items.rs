//! Counts how often each item was put into a cart. The counts and the checkpoint are one file, which is replaced as a
//! whole: so whenever this is stopped or killed, nothing is missed or counted twice.

use std::{collections::BTreeMap, fs, path::Path};

use gesta::{Checkpoint, ErrorKind, Filter, Store, SubscriptionMessage};
use serde::{Deserialize, Serialize};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Default, Serialize, Deserialize)]
struct Counts {
    checkpoint: Option<String>,
    times: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct ItemAdded {
    item: String,
}

/// Puts a new file in the place of the old one: a reader sees one of the two.
fn save(path: &Path, counts: &Counts) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(counts)?)?;
    fs::File::open(&new)?.sync_all()?;
    Ok(fs::rename(new, path)?)
}

/// Counts until the subscription ends.
async fn count(store: &Store, path: &Path) -> Result<()> {
    let kept = fs::read(path).ok();
    let kept: Option<Counts> = kept.map(|json| serde_json::from_slice(&json)).transpose()?;
    let mut counts = kept.unwrap_or_default();
    let checkpoint = counts.checkpoint.as_deref().map(str::parse);
    let checkpoint: Option<Checkpoint> = checkpoint.transpose()?;
    let carts = store.follow(Filter::category("cart"));
    let mut carts = match carts.from_checkpoint(checkpoint).await {
        // The store was restored: count again from the start.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)) => {
            return save(path, &Counts::default());
        }
        carts => carts?,
    };
    while let Some(next) = carts.next_message().await {
        let checkpoint = match next?.message {
            SubscriptionMessage::Event { event, checkpoint } => {
                if event.event_type.as_str() == "item-added" {
                    let added: ItemAdded = event.json()?;
                    *counts.times.entry(added.item).or_default() += 1;
                }
                checkpoint
            }
            SubscriptionMessage::CaughtUp(checkpoint) => {
                println!("{:?}", counts.times);
                checkpoint
            }
            SubscriptionMessage::Checkpoint(checkpoint)
            | SubscriptionMessage::FellBehind(checkpoint) => checkpoint,
        };
        counts.checkpoint = Some(checkpoint.to_string());
        save(path, &counts)?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or("sqlite:shop.db".into());
    let store = gesta::open(&url).await?;
    loop {
        if let Err(error) = count(&store, Path::new("counts.json")).await {
            eprintln!("goes on soon: {error}");
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}
