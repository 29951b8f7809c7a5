//! What calls over HTTP and gRPC have in common: their frame, their bounds, their errors, and what they measure.

pub(crate) mod api;
pub(crate) mod appends;
pub(crate) mod body;
pub(crate) mod deliveries;
pub(crate) mod fanout;
pub(crate) mod gate;
pub(crate) mod gossip;
pub(crate) mod host;
pub(crate) mod maintainer;
pub(crate) mod metrics;
pub(crate) mod pace;
pub(crate) mod pages;
pub(crate) mod patterns;
pub(crate) mod placement;
pub(crate) mod problem;
pub(crate) mod queries;
pub(crate) mod readiness;
pub(crate) mod request_log;
pub(crate) mod scavenges;
pub(crate) mod uri;
