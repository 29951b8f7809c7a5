//! Nothing: this crate is resolved, never compiled.
