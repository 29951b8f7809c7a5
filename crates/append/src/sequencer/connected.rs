//! What the sequencer is told about a connection.

use gesta_core::backend::WriterEpoch;

/// A connection on which batches can be sent.
#[derive(Clone, Copy, Debug)]
pub struct Connected {
    /// The epoch that is stored with the rows that are written on this connection.
    pub epoch: WriterEpoch,
    /// Whether batches gather there with those of other logs ([`gesta_core::backend::LogWriter::is_gathered`]).
    pub is_gathered: bool,
}
