//! A store whose logs lie in several databases: the contract, what is refused, and servers that die or hang.

#![expect(clippy::expect_used, reason = "tests stop at the first surprise")]

mod conformance;
mod refusals;
mod servers;
mod support;
