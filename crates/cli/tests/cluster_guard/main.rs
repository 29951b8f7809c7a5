//! Three nodes of one store as strangers meet them: who may call what through each node, what takes rights away at all
//! of them, and bad calls of every sort.
//!
//! The calls, and what they must be answered, are those of the tests of a server alone (`crates/server/tests`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../../../server/tests/grpc/attacks.rs"]
mod attacks;
#[path = "../../../server/tests/hostile/check.rs"]
mod check;
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../../../server/tests/grpc/connection.rs"]
mod connection;
#[path = "../../../server/tests/hostile/generate.rs"]
mod generate;
#[path = "../../../server/tests/grpc/access/rows.rs"]
mod grpc_rows;
mod hostile;
#[path = "../../../server/tests/api/access/rows.rs"]
mod http_rows;
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../cluster/nodes.rs"]
mod nodes;
#[path = "../../../server/tests/hostile/parameters.rs"]
mod parameters;
#[path = "../../../server/tests/hostile/protocol.rs"]
mod protocol;
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../../../server/tests/api/raw.rs"]
mod raw;
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../../../server/tests/grpc/requests.rs"]
mod requests;
mod rights;
#[path = "../support/mod.rs"]
mod support;
mod table;
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../../../server/tests/hostile/wire.rs"]
mod wire;
mod world;
