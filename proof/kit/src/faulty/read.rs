//! The reads that a process can make, and how often it has made each.

use gesta_core::LogId;
use gesta_core::backend::{EventLookup, LoadRequest, LogSlice, StreamSlice};

use super::gate::Answers;

/// How often a process has made each kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    /// How often the end of a log was read.
    pub log_end: u64,
    /// How often streams and types were looked up.
    pub load: u64,
    /// How often events or ids were looked up.
    pub lookup: u64,
    /// How often a part of one stream was read.
    pub read_stream: u64,
    /// How often parts of several streams were read.
    pub read_streams: u64,
    /// How often a part of a log was read.
    pub read_log: u64,
}

impl Calls {
    /// Returns the sum of all calls.
    #[must_use]
    pub fn total(&self) -> u64 {
        let streams = self.read_stream + self.read_streams;
        self.log_end + self.load + self.lookup + streams + self.read_log
    }

    pub(super) fn count(&mut self, read: Read<'_>) {
        let count = match read {
            Read::LogEnd(_) => &mut self.log_end,
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
    /// An attempt to open a writer.
    Connect,
    /// A read of the end of a log.
    LogEnd(LogId),
    /// A look-up of streams and types.
    Load(&'a LoadRequest),
    /// A look-up of events without their payload.
    Lookup(&'a EventLookup),
    /// A read of the ids of all events of a part of a log.
    Ids,
    /// A read of a part of one stream.
    Stream(&'a StreamSlice),
    /// A read of parts of several streams.
    Streams(&'a [StreamSlice]),
    /// A read of a part of a log.
    Log(&'a LogSlice),
    /// A read of the names of streams.
    Names,
    /// A read of the events that scavenging removes.
    Hidden,
}

impl Read<'_> {
    pub(super) fn answers(self) -> Option<Answers> {
        match self {
            Self::Load(_) => Some(Answers::Loads),
            Self::Ids => Some(Answers::Ids),
            Self::Names => Some(Answers::Names),
            Self::Log(_) => Some(Answers::Logs),
            Self::LogEnd(LogId(0)) => Some(Answers::EndsOfFirstLog),
            _ => None,
        }
    }
}
