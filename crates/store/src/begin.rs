//! Changes that are handed over at once: the call fixes their order, and the future only waits for the answer.
//!
//! Why beside [`EventStore`](gesta_core::EventStore): a caller that passes on the changes of others in their order must
//! not let the order of polling decide. A caller that may have to retry names the id of the event that records a delete
//! or a change of metadata, so that the retry is recognised. A node also says which attempt a change is.

use std::future::ready;

use futures::future::{Either, TryFutureExt};
use gesta_core::{
    Append, Appended, Attempt, DeleteStream, Deleted, Error, EventId, LogId, MetadataSet, Result,
    SetStreamMetadata, StreamId,
};

use crate::Store;

impl Store {
    /// Appends as [`append`](gesta_core::EventStore::append) does. Changes of one log are handed over in the order of
    /// these calls.
    ///
    /// # Errors
    /// Those of [`append`](gesta_core::EventStore::append).
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the append.
    pub fn begin_append(
        &self,
        request: Append,
    ) -> impl Future<Output = Result<Appended>> + Send + use<> {
        self.begin_append_as(Attempt::Only, request)
    }

    /// Appends as [`begin_append`](Self::begin_append) does, for a node that may make several attempts.
    ///
    /// # Errors
    /// Those of [`begin_append`](Self::begin_append), and [`Error::overtaken`].
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the append.
    #[doc(hidden)]
    pub fn begin_append_as(
        &self,
        attempt: Attempt,
        request: Append,
    ) -> impl Future<Output = Result<Appended>> + Send + use<> {
        // The pipeline validates the request.
        let pipeline = self
            .log_of_append(&request)
            .and_then(|log| self.pipeline_of(log));
        or_refused(pipeline.map(|pipeline| pipeline.append_as(attempt, request)))
            .map_err(|error| error.during("append"))
    }

    /// Deletes a stream as [`delete_stream`](gesta_core::EventStore::delete_stream) does. Changes of one log are handed
    /// over in the order of these calls. The `id` names the event that records the delete; a retry with the same `id`
    /// gets the first answer.
    ///
    /// # Errors
    /// Those of [`delete_stream`](gesta_core::EventStore::delete_stream).
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the delete.
    pub fn begin_delete(
        &self,
        request: DeleteStream,
        id: Option<EventId>,
    ) -> impl Future<Output = Result<Deleted>> + Send + use<> {
        self.begin_delete_as(Attempt::Only, request, id)
    }

    /// Deletes a stream as [`begin_delete`](Self::begin_delete) does, for a node that may make several attempts.
    ///
    /// # Errors
    /// Those of [`begin_delete`](Self::begin_delete), and [`Error::overtaken`].
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the delete.
    #[doc(hidden)]
    pub fn begin_delete_as(
        &self,
        attempt: Attempt,
        request: DeleteStream,
        id: Option<EventId>,
    ) -> impl Future<Output = Result<Deleted>> + Send + use<> {
        let pipeline = refuse_kept_stream(&request.stream)
            .and_then(|()| self.pipeline_of(self.log_of(&request.stream)));
        or_refused(pipeline.map(|pipeline| pipeline.delete_as(attempt, request, id)))
            .map_err(|error| error.during("delete stream"))
    }

    /// Sets metadata as [`set_stream_metadata`](gesta_core::EventStore::set_stream_metadata) does. Changes of one log
    /// are handed over in the order of these calls. The `id` names the event that records the change; a retry with the
    /// same `id` gets the first answer.
    ///
    /// # Errors
    /// Those of [`set_stream_metadata`](gesta_core::EventStore::set_stream_metadata).
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the change.
    pub fn begin_set_metadata(
        &self,
        request: SetStreamMetadata,
        id: Option<EventId>,
    ) -> impl Future<Output = Result<MetadataSet>> + Send + use<> {
        self.begin_set_metadata_as(Attempt::Only, request, id)
    }

    /// Sets metadata as [`begin_set_metadata`](Self::begin_set_metadata) does, for a node that may make several
    /// attempts.
    ///
    /// # Errors
    /// Those of [`begin_set_metadata`](Self::begin_set_metadata), and [`Error::overtaken`].
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the change.
    #[doc(hidden)]
    pub fn begin_set_metadata_as(
        &self,
        attempt: Attempt,
        request: SetStreamMetadata,
        id: Option<EventId>,
    ) -> impl Future<Output = Result<MetadataSet>> + Send + use<> {
        let pipeline = request
            .validate()
            .and_then(|()| self.pipeline_of(self.log_of(&request.stream)));
        or_refused(pipeline.map(|pipeline| pipeline.set_metadata_as(attempt, request, id)))
            .map_err(|error| error.during("set metadata"))
    }

    /// Returns the log to which all streams of an append belong.
    ///
    /// # Errors
    /// `InvalidArgument` if the streams belong to several logs.
    pub fn log_of_append(&self, request: &Append) -> Result<LogId> {
        let mut logs = request.named_streams().map(|stream| self.log_of(stream));
        let first = logs.next().unwrap_or_default();
        if logs.all(|log| log == first) {
            return Ok(first);
        }
        Err(Error::invalid(
            "appends",
            "must name streams of one log; names that share a {…} part do",
        ))
    }
}

/// Returns the future of what was begun, or one that gives the reason why nothing was.
fn or_refused<T: Send, F: Future<Output = Result<T>> + Send>(
    begun: Result<F>,
) -> impl Future<Output = Result<T>> + Send + use<T, F> {
    match begun {
        Ok(begun) => Either::Left(begun),
        Err(error) => Either::Right(ready(Err(error))),
    }
}

/// Refuses metadata streams and virtual streams, which cannot be deleted.
fn refuse_kept_stream(stream: &StreamId) -> Result<()> {
    if stream.as_str().starts_with("$$") {
        return Err(Error::invalid(
            "stream",
            format!("{stream:?}: a metadata stream has no metadata stream"),
        ));
    }
    stream.refuse_if_virtual()
}
