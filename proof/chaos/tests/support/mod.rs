//! What several tests of chaos need.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod histories;
pub(crate) mod planted;
