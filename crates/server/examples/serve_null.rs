//! Serves a store that keeps nothing and answers at once. Use it to measure what HTTP itself costs.
//!
//! `cargo run --release -p gesta-server --example serve_null -- 127.0.0.1:2113`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use gesta_core::{
    AllPage, Append, Appended, AppendedStream, Checkpoint, DeleteStream, Deleted, Error,
    EventStore, Incarnation, ListStreams, LogId, MetadataSet, Position, ReadAll, ReadStream,
    Resolved, Result, Revision, SetStreamMetadata, SharedEvent, StoreInfo, StreamId,
    StreamMetadataRecord, StreamPage, StreamsPage, Subscribe, Subscription,
};
use gesta_server::{Config, Registry};

struct NullStore {
    incarnation: Incarnation,
    position: AtomicU64,
}

fn nothing<T>() -> Result<T> {
    Err(Error::unavailable("this store only takes appends"))
}

#[async_trait]
impl EventStore for NullStore {
    async fn incarnation(&self) -> Result<Incarnation> {
        Ok(self.incarnation)
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        request.validate()?;
        let count = u64::try_from(request.events()).unwrap_or(0);
        let position = Position(self.position.fetch_add(count, Ordering::Relaxed) + count);
        // As a batch that was committed by another task would answer.
        tokio::task::yield_now().await;
        let stored = |part: gesta_core::StreamAppend| AppendedStream {
            stream: part.stream,
            first_revision: Revision(0),
            last_revision: Revision(0),
            position,
        };
        Ok(Appended {
            streams: request.streams.into_iter().map(stored).collect(),
            log: LogId(0),
            position,
            checkpoint: Checkpoint::logs(self.incarnation, vec![position]),
        })
    }
    async fn info(&self) -> Result<StoreInfo> {
        nothing()
    }
    async fn ready(&self) -> Result<()> {
        Ok(())
    }
    async fn read_stream(&self, _: ReadStream) -> Result<StreamPage> {
        nothing()
    }
    async fn read_all(&self, _: ReadAll) -> Result<AllPage> {
        nothing()
    }
    async fn list_streams(&self, _: ListStreams) -> Result<StreamsPage> {
        nothing()
    }
    async fn delete_stream(&self, _: DeleteStream) -> Result<Deleted> {
        nothing()
    }
    async fn stream_metadata(&self, _: StreamId) -> Result<StreamMetadataRecord> {
        nothing()
    }
    async fn set_stream_metadata(&self, _: SetStreamMetadata) -> Result<MetadataSet> {
        nothing()
    }
    async fn subscribe(&self, _: Subscribe) -> Result<Subscription> {
        nothing()
    }
    async fn resolve(&self, _: Vec<SharedEvent>) -> Result<Vec<Resolved>> {
        nothing()
    }
    async fn shutdown(&self) -> Result<()> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let listen = std::env::args()
        .nth(1)
        .map_or(Ok(Config::default().listen), |text| text.parse())?;
    let config = Config {
        listen,
        ..Config::default()
    };
    let store = Arc::new(NullStore {
        incarnation: Incarnation::random(),
        position: AtomicU64::new(0),
    });
    let server = gesta_server::start(config, store, Registry::default()).await?;
    println!("http://{}", server.local_addr());
    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}
