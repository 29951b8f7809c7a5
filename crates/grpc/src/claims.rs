//! Reads what a client claims about a stream from the messages of requests.
//!
//! A revision may be the greatest number of 64 bits. It is how clients write *no stream* that know a revision only as a
//! number without a sign: one less than the first revision. Answers show it so too (`expected_revision_20_6_0`).

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
            OfAppend::Revision(revision) => at(revision),
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
            OfBatch::StreamPosition(revision) => at(revision),
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
            OfDelete::Revision(revision) => at(revision),
            OfDelete::NoStream(_) => Expected::NoStream,
            OfDelete::Any(_) => Expected::Any,
            OfDelete::StreamExists(_) => Expected::StreamExists,
        })
    }
}

fn at(revision: u64) -> Expected {
    match revision {
        u64::MAX => Expected::NoStream,
        revision => Expected::Exact(Revision(revision)),
    }
}

fn missing() -> Refusal {
    Refusal::invalid(
        "the expected revision must be given: a revision, no stream, any, or stream exists",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened: the greatest number, by which clients write *no stream* in the field of a revision, was taken for
    /// a revision that no stream has. Goal: it claims that there is no stream, in each of the calls.
    #[test]
    fn the_greatest_number_means_no_stream() {
        for (number, expected) in [
            (u64::MAX, Expected::NoStream),
            (u64::MAX - 1, Expected::Exact(Revision(u64::MAX - 1))),
            (0, Expected::Exact(Revision(0))),
        ] {
            let read = [
                Expected::of_append(Some(OfAppend::Revision(number))),
                Expected::of_batch(Some(OfBatch::StreamPosition(number))),
                Expected::of_delete(Some(OfDelete::Revision(number))),
            ];
            assert_eq!(read.map(|claim| claim.expect("a claim")), [expected; 3]);
        }
    }
}
