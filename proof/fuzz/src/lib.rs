//! Targets for fuzzing: whatever Gesta reads that others have written, tried with bytes of any kind.
//!
//! Why a library: each target is one function that takes bytes, and two drivers call it. libFuzzer searches for hours,
//! led by the code that an input reaches (`fuzz/`, `scripts/fuzz`). The tests of this crate replay the seeds and what
//! was found, and try some thousand changed seeds, in the same build as all other tests.
//! Invariants: a target is a pure function of its input, so an input that fails once fails always; it asserts more than
//! that nothing panics (what is read is written and read again as the same, refusals name the field, sizes have
//! bounds); the seeds are written by the product itself, so that they change with it.
//! Not here: hostile calls to a whole server (`crates/server/tests/hostile`), random histories (`gesta-sim`).
//!
//! * `link`: frames and hellos of nodes; `http`: bodies, addresses and filters of requests; `credentials`: who calls,
//!   and rights; `grpc`: messages and their frames;
//! * `pattern`: regular expressions and prefixes; `events`: what servers answer; `records`: what the store keeps;
//!   `checkpoint`: texts of checkpoints.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code: a panic is how a test fails"
)]

mod checkpoint;
mod credentials;
mod events;
mod grpc;
mod http;
mod link;
mod pattern;
mod records;
mod sample;

/// A small input that the product itself has written, with a name.
pub type Seed = (&'static str, Vec<u8>);

/// What is tried.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the target, which is also that of its program for libFuzzer and of its folder of seeds.
    pub name: &'static str,
    /// Tries one input. It panics if something does not hold.
    pub run: fn(&[u8]),
    /// Makes the seeds.
    pub seeds: fn() -> Vec<Seed>,
    /// How many random inputs the quick form of the tests tries: what takes a few seconds without optimisation.
    pub inputs: usize,
}

/// Makes the list of targets.
macro_rules! targets {
    ($($name:ident: $run:path, $seeds:path, $inputs:literal;)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            run: $run,
            seeds: $seeds,
            inputs: $inputs,
        }),*];
    };
}

targets! {
    frame: link::frame, link::frame_seeds, 20_000;
    hello: link::hello, link::hello_seeds, 20_000;
    http_body: http::body, http::body_seeds, 10_000;
    http_address: http::address, http::address_seeds, 10_000;
    filter: http::filter, http::filter_seeds, 5_000;
    credentials: credentials::credentials, credentials::seeds, 20_000;
    grpc: grpc::grpc, grpc::seeds, 10_000;
    pattern: pattern::pattern, pattern::seeds, 300;
    events: events::events, events::seeds, 10_000;
    records: records::records, records::seeds, 20_000;
    checkpoint: checkpoint::checkpoint, checkpoint::seeds, 20_000;
}

/// Tries one input on the target with this name.
///
/// # Panics
/// If there is no such target, or if something does not hold.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target").run)(input);
}
