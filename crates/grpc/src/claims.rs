//! Reads what a client claims about a stream from the messages of requests.

use gesta_core::Revision;

use crate::Result;
use crate::expected::Expected;
use crate::messages::streams::append_req::options::ExpectedStreamRevision as OfAppend;
use crate::messages::streams::batch_append_req::options::ExpectedStreamPosition as OfBatch;
use crate::messages::streams::delete_req::options::ExpectedStreamRevision as OfDelete;
use crate::refusal::Refusal;

impl Expected {
    /// Reads the claim of an append.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no claim.
    pub fn of_append(claim: Option<OfAppend>) -> Result<Self> {
        Ok(match claim.ok_or_else(missing)? {
            OfAppend::Revision(revision) => Expected::Exact(Revision(revision)),
            OfAppend::NoStream(_) => Expected::NoStream,
            OfAppend::Any(_) => Expected::Any,
            OfAppend::StreamExists(_) => Expected::StreamExists,
        })
    }

    /// Reads the claim of a batch.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no claim.
    pub fn of_batch(claim: Option<OfBatch>) -> Result<Self> {
        Ok(match claim.ok_or_else(missing)? {
            OfBatch::StreamPosition(revision) => Expected::Exact(Revision(revision)),
            OfBatch::NoStream(()) => Expected::NoStream,
            OfBatch::Any(()) => Expected::Any,
            OfBatch::StreamExists(()) => Expected::StreamExists,
        })
    }

    /// Reads the claim of a delete or a tombstone.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no claim.
    pub fn of_delete(claim: Option<OfDelete>) -> Result<Self> {
        Ok(match claim.ok_or_else(missing)? {
            OfDelete::Revision(revision) => Expected::Exact(Revision(revision)),
            OfDelete::NoStream(_) => Expected::NoStream,
            OfDelete::Any(_) => Expected::Any,
            OfDelete::StreamExists(_) => Expected::StreamExists,
        })
    }
}

fn missing() -> Refusal {
    Refusal::invalid(
        "the expected revision must be given: a revision, no stream, any, or stream exists",
    )
}
