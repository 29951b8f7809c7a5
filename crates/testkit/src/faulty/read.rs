//! The reads that a process can make, and how often it has made each.

use gesta_core::backend::{EventLookup, LoadRequest, LogSlice, StreamSlice};

use super::gate::Answers;

/// How often a process has made each kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    /// The end of a log.
    pub log_end: u64,
    /// Streams and types looked up.
    pub load: u64,
    /// Events or ids looked up.
    pub lookup: u64,
    /// Parts of one stream.
    pub read_stream: u64,
    /// Parts of several streams.
    pub read_streams: u64,
    /// Parts of a log.
    pub read_log: u64,
}

impl Calls {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        let streams = self.read_stream + self.read_streams;
        self.log_end + self.load + self.lookup + streams + self.read_log
    }

    pub(super) fn count(&mut self, read: Read<'_>) {
        let count = match read {
            Read::LogEnd => &mut self.log_end,
            Read::Load(_) => &mut self.load,
            Read::Lookup(_) | Read::Ids => &mut self.lookup,
            Read::Stream(_) => &mut self.read_stream,
            Read::Streams(_) => &mut self.read_streams,
            Read::Log(_) => &mut self.read_log,
            Read::Connect | Read::Names | Read::Hidden => return,
        };
        *count += 1;
    }
}

/// A read of the database, or an attempt to connect.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Read<'a> {
    /// A writer is opened.
    Connect,
    /// The end of a log.
    LogEnd,
    /// Streams and types.
    Load(&'a LoadRequest),
    /// Events without their payload.
    Lookup(&'a EventLookup),
    /// The ids of all events of a part of a log.
    Ids,
    /// A part of one stream.
    Stream(&'a StreamSlice),
    /// Parts of several streams.
    Streams(&'a [StreamSlice]),
    /// A part of a log.
    Log(&'a LogSlice),
    /// Names of streams.
    Names,
    /// Events that scavenging removes.
    Hidden,
}

impl Read<'_> {
    pub(super) fn answers(self) -> Option<Answers> {
        match self {
            Self::Load(_) => Some(Answers::Loads),
            Self::Ids => Some(Answers::Ids),
            Self::Names => Some(Answers::Names),
            _ => None,
        }
    }
}
