//! Calls of what lives beside the store, from this node to the node that owns a stream.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_core::StreamId;
use gesta_core::peers::{PeerAnswer, PeerService, Peers, Unanswered};
use tokio::time::Instant;

use super::Node;
use crate::calls::SERVICE;
use crate::services;

impl Peers for Node {
    fn is_here(&self, stream: &StreamId) -> bool {
        self.is_mine(self.store.log_of(stream))
    }

    fn forward(
        &self,
        service: &str,
        stream: &StreamId,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'static, Result<PeerAnswer, Unanswered>> {
        let log = self.store.log_of(stream);
        let body = services::call_of(service, stream, body);
        let sent = self
            .forwarder
            .call(log, SERVICE, body, Instant::now() + within);
        let counts = Arc::clone(&self.counts);
        let begun = Instant::now();
        sent.inspect(move |outcome| counts.forwarded(begun, outcome))
            .map(services::read)
            .boxed()
    }

    fn register(&self, service: &str, handler: Arc<dyn PeerService>) {
        self.services.register(service, handler);
    }
}
