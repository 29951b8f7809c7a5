//! Every target, by its name: the seeds and what was found once (`seeds::`), and changed seeds (`random::`).
//!
//! A random input that fails is saved, and the message says where. Once the fault is mended, the input is kept in
//! `proof/fuzz/found/TARGET`.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code: a panic is how a test fails"
)]

mod targets {
    pub(crate) mod change;
    pub(crate) mod corpus;
}

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use gesta_fuzz::{TARGETS, Target};
use gesta_kit::depth;
use gesta_kit::faulty::Random;

use targets::{change, corpus};

/// How many times as many inputs the deep form tries.
const DEEP: usize = 20;

/// Makes two tests of each target.
macro_rules! each_target {
    ($($name:ident),* $(,)?) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        mod seeds {
            $(#[test]
            fn $name() {
                super::replay(super::target(stringify!($name)));
            })*
        }

        mod random {
            $(#[test]
            fn $name() {
                super::try_changed(super::target(stringify!($name)));
            })*
        }
    };
}

each_target!(
    frame,
    hello,
    http_body,
    http_address,
    filter,
    credentials,
    grpc,
    pattern,
    events,
    records,
    checkpoint,
);

fn target(name: &str) -> &'static Target {
    let target = TARGETS.iter().find(|target| target.name == name);
    target.expect("a target")
}

/// Goal: every input of the tree passes, those above all that failed once.
fn replay(target: &Target) {
    for (name, input) in corpus::inputs(target) {
        println!("{name}");
        (target.run)(&input);
    }
    for input in [&b""[..], &[0], &[255; 64]] {
        (target.run)(input);
    }
}

/// Goal: whatever becomes of a seed, everything holds.
fn try_changed(target: &Target) {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut random = Random::new(seed);
    let inputs = corpus::inputs(target).into_iter();
    let inputs: Vec<Vec<u8>> = inputs.map(|(_, input)| input).collect();
    for _ in 0..depth::count(target.inputs, target.inputs * DEEP) {
        let input = change::changed(&mut random, &inputs);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(&input))) {
            let path =
                Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.input", target.name));
            std::fs::write(&path, &input).expect("the input is saved");
            println!("the input is {}: {}", path.display(), input.escape_ascii());
            resume_unwind(panic);
        }
    }
}

/// Goal: libFuzzer has a program for each target, and the tests try each.
#[test]
fn every_target_is_tried_everywhere() {
    let all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(NAMES, all);
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(programs.join("Cargo.toml")).expect("a manifest");
    let manifest: toml::Table = toml::from_str(&manifest).expect("TOML");
    let bins = manifest["bin"].as_array().expect("programs");
    let bins: Vec<&str> = bins.iter().filter_map(|bin| bin["name"].as_str()).collect();
    assert_eq!(bins, all);
    for name in all {
        let source = programs.join(format!("fuzz_targets/{name}.rs"));
        let source = std::fs::read_to_string(source).expect("a program");
        assert!(source.contains(&format!("run(\"{name}\", data)")), "{name}");
    }
}

/// Goal: the product writes the same seeds each time, so that a seed of changes repeats a run. They are also written
/// into files, with which libFuzzer begins (`scripts/fuzz`).
#[test]
fn seeds_are_the_same_each_time() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{}", target.name);
        assert_eq!(seeds, (target.seeds)(), "{}", target.name);
        corpus::write(target.name, &seeds);
    }
}

/// Goal: the changes reach beyond the seeds, and come again with their seed.
#[test]
fn changes_are_many_and_can_be_repeated() {
    let inputs = [b"{\"a\": 1}".to_vec(), b"\0\x01\x02".to_vec()];
    let all = |seed| {
        let mut random = Random::new(seed);
        let changed = (0..1_000).map(|_| change::changed(&mut random, &inputs));
        changed.collect::<Vec<_>>()
    };
    assert_eq!(all(1), all(1));
    let mut different = all(2);
    different.sort();
    different.dedup();
    assert!(different.len() > 900, "{}", different.len());
    assert!(
        different
            .iter()
            .all(|input| input.len() <= change::BYTES_MAX)
    );
}
