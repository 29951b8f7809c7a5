//! Serves an in-memory store. Use it to try the API, and to measure what the server itself costs.
//!
//! `cargo run --release -p gesta-server --example serve_memory -- 127.0.0.1:2113`

use std::sync::Arc;

use gesta_memory::MemoryStore;
use gesta_server::{Config, Registry};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
    let listen = std::env::args()
        .nth(1)
        .map_or(Ok(Config::default().listen), |text| text.parse())?;
    let config = Config {
        listen,
        ..Config::default()
    };
    let store = Arc::new(MemoryStore::new());
    let server = gesta_server::start(config, store, Registry::default()).await?;
    println!("http://{}", server.local_addr());
    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}
