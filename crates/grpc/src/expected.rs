//! What a client claims about a stream, in the forms in which answers show it.

use gesta_core::{ExpectedRevision, Revision};

use crate::messages::shared::wrong_expected_version as wrong;
use crate::messages::shared::{Empty, WrongExpectedVersion};
use crate::messages::streams::append_resp;
use crate::messages::streams::append_resp::wrong_expected_version as in_append;

/// A claim about a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// The client claims nothing.
    Any,
    /// The stream does not exist.
    NoStream,
    /// The stream exists.
    StreamExists,
    /// The stream has this last revision. The revision may be greater than any stream can have; then the claim is
    /// wrong.
    Exact(Revision),
}

impl From<ExpectedRevision> for Expected {
    fn from(expected: ExpectedRevision) -> Self {
        match expected {
            ExpectedRevision::Any => Expected::Any,
            ExpectedRevision::NoStream => Expected::NoStream,
            ExpectedRevision::StreamExists => Expected::StreamExists,
            ExpectedRevision::Exact(revision) => Expected::Exact(revision),
        }
    }
}

impl Expected {
    /// Returns the claim as a store takes it; `None` if no stream can be so.
    #[must_use]
    pub fn revision(self) -> Option<ExpectedRevision> {
        match self {
            Expected::Any => Some(ExpectedRevision::Any),
            Expected::NoStream => Some(ExpectedRevision::NoStream),
            Expected::StreamExists => Some(ExpectedRevision::StreamExists),
            Expected::Exact(revision) => {
                (revision <= Revision::MAX).then_some(ExpectedRevision::Exact(revision))
            }
        }
    }

    /// Returns the claim as a decimal number: a revision, −1 no stream, −2 any, −4 stream exists.
    #[must_use]
    pub fn number(self) -> String {
        match self {
            Expected::Any => "-2".into(),
            Expected::NoStream => "-1".into(),
            Expected::StreamExists => "-4".into(),
            Expected::Exact(revision) => revision.to_string(),
        }
    }

    /// Returns the claim as the second version of the protocol shows it: the same number, with a sign.
    #[must_use]
    pub fn signed(self) -> i64 {
        match self {
            Expected::Any => -2,
            Expected::NoStream => -1,
            Expected::StreamExists => -4,
            Expected::Exact(revision) => i64::try_from(revision.0).unwrap_or(i64::MAX),
        }
    }

    /// Makes the answer to an append whose claim is wrong. `actual` is the last revision of the stream.
    #[must_use]
    pub fn wrong_in_append(self, actual: Option<Revision>) -> append_resp::WrongExpectedVersion {
        use in_append::{
            CurrentRevisionOption as Current, CurrentRevisionOption2060 as OldCurrent,
            ExpectedRevisionOption as Claim, ExpectedRevisionOption2060 as OldClaim,
        };
        let (current, old_current) = match actual {
            Some(Revision(n)) => (
                Current::CurrentRevision(n),
                OldCurrent::CurrentRevision2060(n),
            ),
            None => (
                Current::CurrentNoStream(Empty {}),
                OldCurrent::NoStream2060(Empty {}),
            ),
        };
        let (claim, old_claim) = match self {
            Expected::Any => (Claim::ExpectedAny(Empty {}), OldClaim::Any2060(Empty {})),
            Expected::StreamExists => (
                Claim::ExpectedStreamExists(Empty {}),
                OldClaim::StreamExists2060(Empty {}),
            ),
            Expected::NoStream => (
                Claim::ExpectedNoStream(Empty {}),
                OldClaim::ExpectedRevision2060(u64::MAX),
            ),
            Expected::Exact(Revision(n)) => (
                Claim::ExpectedRevision(n),
                OldClaim::ExpectedRevision2060(n),
            ),
        };
        append_resp::WrongExpectedVersion {
            current_revision_option_20_6_0: Some(old_current),
            expected_revision_option_20_6_0: Some(old_claim),
            current_revision_option: Some(current),
            expected_revision_option: Some(claim),
        }
    }

    /// Makes the detail of the answer to a batch whose claim is wrong. `actual` is the last revision of the stream.
    #[must_use]
    pub fn wrong_in_batch(self, actual: Option<Revision>) -> WrongExpectedVersion {
        use wrong::{
            CurrentStreamRevisionOption as Current, ExpectedStreamPositionOption as Claim,
        };
        let claim = match self {
            Expected::Any => Claim::ExpectedAny(()),
            Expected::StreamExists => Claim::ExpectedStreamExists(()),
            Expected::NoStream => Claim::ExpectedNoStream(()),
            Expected::Exact(Revision(n)) => Claim::ExpectedStreamPosition(n),
        };
        let current = match actual {
            Some(Revision(n)) => Current::CurrentStreamRevision(n),
            None => Current::CurrentNoStream(()),
        };
        WrongExpectedVersion {
            current_stream_revision_option: Some(current),
            expected_stream_position_option: Some(claim),
        }
    }
}
