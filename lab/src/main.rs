//! The benchmark of Gesta.

fn main() {}
