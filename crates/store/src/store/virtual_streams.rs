//! What a store says and does about its virtual streams.

use std::sync::Arc;

use gesta_core::backend::{IndexState, Purpose};
use gesta_core::{ReadStream, Result, StreamId, StreamPage, SubscribeFrom, Subscription};

use super::Store;
use crate::virtual_streams::indexer::LOG;
use crate::virtual_streams::{VirtualStreams, VirtualStreamsStatus, none, off, subscribe};

/// Number of events between two reports of progress.
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

    /// Tells whether virtual streams are on, and up to where their entries are written.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Unsupported` if the store can have no virtual streams.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn virtual_streams_status(&self) -> Result<VirtualStreamsStatus> {
        self.check_open()?;
        let state = self.virtual_streams()?.indexer.index.state().await?;
        self.status_of(state).await
    }

    /// Switches virtual streams on or off. Entries that were written stay: when virtual streams are switched on again,
    /// revisions go on where they ended. Entries of events that are stored already are written after this method has
    /// returned; [`index_virtual_streams`](Self::index_virtual_streams) waits for them.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Unsupported` if the store can have no virtual streams, or if the
    /// rights do not suffice.
    ///
    /// # Cancel safety
    /// If the future is dropped, virtual streams are switched or not.
    pub async fn switch_virtual_streams(&self, on: bool) -> Result<VirtualStreamsStatus> {
        self.check_open()?;
        let indexer = &self.virtual_streams()?.indexer;
        let state = indexer.index.switch(on).await?;
        indexer.learn(state);
        self.status_of(state).await
    }

    /// Waits until the entries of all events that are stored now are written. It calls `progress` meanwhile.
    ///
    /// # Errors
    /// `Unavailable` if the entries are not written in time; `Unsupported` if virtual streams are off, or if the store
    /// can have none.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the writing of entries.
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
