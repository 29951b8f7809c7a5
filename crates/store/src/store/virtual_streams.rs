//! What a store says and does about its virtual streams.

use std::sync::Arc;

use gesta_core::backend::{IndexState, Purpose};
use gesta_core::{ReadStream, Result, StreamId, StreamPage, SubscribeFrom, Subscription};

use super::Store;
use crate::virtual_streams::indexer::LOG;
use crate::virtual_streams::{VirtualStreams, VirtualStreamsStatus, none, off, subscribe};

/// Events between two reports of progress.
const PROGRESS_EVENTS: u64 = 10_000;

impl Store {
    fn virtual_streams(&self) -> Result<&Arc<VirtualStreams>> {
        let none = || none(self.backend_info().logs);
        self.virtual_streams.as_ref().ok_or_else(none)
    }

    pub(crate) async fn virtual_page(&self, request: &ReadStream) -> Result<StreamPage> {
        self.check_open()?;
        self.virtual_streams()?.page(request).await
    }

    pub(crate) async fn subscribe_virtual(
        &self,
        stream: StreamId,
        from: SubscribeFrom,
    ) -> Result<Subscription> {
        let streams = self.virtual_streams()?;
        subscribe::subscribe(streams, &self.hub, stream, from).await
    }

    /// Whether virtual streams are on, and how far their entries are written.
    ///
    /// # Errors
    /// `Unavailable`; `Unsupported` if the store can have none.
    pub async fn virtual_streams_status(&self) -> Result<VirtualStreamsStatus> {
        self.check_open()?;
        let state = self.virtual_streams()?.indexer.index.state().await?;
        self.status_of(state).await
    }

    /// Switches virtual streams on or off. Entries that were written stay: when they are switched on again, revisions go
    /// on where they ended. Entries of events that are stored already are written after this returned, see
    /// [`index_virtual_streams`](Self::index_virtual_streams).
    ///
    /// # Errors
    /// `Unavailable`; `Unsupported` if the store can have none, or without the rights.
    ///
    /// # Cancel safety
    /// They are switched or not.
    pub async fn switch_virtual_streams(&self, on: bool) -> Result<VirtualStreamsStatus> {
        self.check_open()?;
        let indexer = &self.virtual_streams()?.indexer;
        let state = indexer.index.switch(on).await?;
        indexer.learn(state);
        self.status_of(state).await
    }

    /// Waits until the entries of all events that are stored now are written, and tells how far they are.
    ///
    /// # Errors
    /// `Unavailable` if it does not get on; `Unsupported` if virtual streams are off.
    ///
    /// # Cancel safety
    /// Safe: the entries go on being written.
    pub async fn index_virtual_streams(
        &self,
        mut progress: impl FnMut(VirtualStreamsStatus) + Send,
    ) -> Result<VirtualStreamsStatus> {
        let indexer = &self.virtual_streams()?.indexer;
        let end = self.virtual_streams_status().await?.end;
        loop {
            let state = indexer.index.state().await?;
            let status = VirtualStreamsStatus {
                on: state.on,
                position: state.position,
                end,
            };
            if !state.on {
                return Err(off());
            }
            if state.position >= end {
                return Ok(status);
            }
            progress(status);
            indexer.learn(state);
            let wanted = state.position.plus(PROGRESS_EVENTS).min(end);
            indexer.reach(wanted).await?;
        }
    }

    async fn status_of(&self, state: IndexState) -> Result<VirtualStreamsStatus> {
        let end = self.backend.log_end(LOG, Purpose::Read).await?.position;
        Ok(VirtualStreamsStatus {
            on: state.on,
            position: state.position,
            end,
        })
    }
}
