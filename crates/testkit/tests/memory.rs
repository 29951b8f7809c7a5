//! The reference store keeps the contract.

mod one_log {
    gesta_testkit::conformance_tests!(gesta_testkit::MemoryFactory::new(1));
}

mod four_logs {
    gesta_testkit::conformance_tests!(gesta_testkit::MemoryFactory::new(4));
}

mod revived {
    gesta_testkit::conformance_tests!(gesta_testkit::RevivedFactory::new(1));
}

mod revived_with_four_logs {
    gesta_testkit::conformance_tests!(gesta_testkit::RevivedFactory::new(4));
}
