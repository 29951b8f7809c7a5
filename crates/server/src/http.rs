//! The calls over HTTP: documents, lines, server-sent events.

pub(crate) mod backup;
pub(crate) mod cors;
pub(crate) mod decode;
pub(crate) mod document;
pub(crate) mod groups;
pub(crate) mod lines;
pub(crate) mod maintenance;
pub(crate) mod read;
pub(crate) mod sse;
pub(crate) mod subscribe;
pub(crate) mod system;
pub(crate) mod write;
