//! What the sequencer is told of a connection.

use gesta_core::backend::WriterEpoch;

/// A connection on which batches can be sent.
#[derive(Clone, Copy, Debug)]
pub struct Connected {
    /// Stored with the rows that are written on it.
    pub epoch: WriterEpoch,
    /// Batches gather there with those of other logs ([`gesta_core::backend::LogWriter::is_gathered`]).
    pub is_gathered: bool,
}
