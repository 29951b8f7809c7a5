//! The reference store keeps the contract.

mod one_log {
    gesta_kit::conformance_tests!(gesta_kit::MemoryFactory::new(1));
}

mod four_logs {
    gesta_kit::conformance_tests!(gesta_kit::MemoryFactory::new(4));
}

mod revived {
    gesta_kit::conformance_tests!(gesta_kit::RevivedFactory::new(1));
}

mod revived_with_four_logs {
    gesta_kit::conformance_tests!(gesta_kit::RevivedFactory::new(4));
}
