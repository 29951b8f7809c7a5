//! The command line of Gesta.

fn main() {}
