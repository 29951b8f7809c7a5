//! The contract, on a store over a backend in memory that two processes can share.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::sync::Arc;

use gesta_kit::faulty::{Faulty, World, WorldFactory};

mod one_log {
    use super::WorldFactory;
    gesta_kit::conformance_tests!(WorldFactory::new(1));
}

mod four_logs {
    use super::WorldFactory;
    gesta_kit::conformance_tests!(WorldFactory::new(4));
}

/// Goal: the world keeps entries of virtual streams as databases do.
#[tokio::test]
async fn entries_of_virtual_streams_are_kept() {
    let process = Faulty::start(&World::new(1), |backend| backend);
    gesta_kit::check_virtual_index(Arc::clone(&process)).await;
}
