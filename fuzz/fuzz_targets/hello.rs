//! Lets libFuzzer call the target `hello` of `gesta-fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| gesta_fuzz::run("hello", data));
