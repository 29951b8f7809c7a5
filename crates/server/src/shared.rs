//! What calls over HTTP and gRPC have in common: their bodies, their bounds, their errors, and what is measured of
//! them.

pub(crate) mod activity;
pub(crate) mod appends;
pub(crate) mod body;
pub(crate) mod fanout;
pub(crate) mod gate;
pub(crate) mod lasting;
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
