//! What a connection is: encryption, what happens on it, and what ends it.

pub(crate) mod activity;
pub(crate) mod certificate;
pub(crate) mod edge;
pub(crate) mod lasting;
pub(crate) mod tls;
