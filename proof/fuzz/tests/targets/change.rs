//! Changes of inputs: bits, numbers, parts that are left out, repeated, put in or taken from another input.
//!
//! Why by hand: libFuzzer's changes are led by the code that they reach, and need its build. These are for the build of
//! all other tests.

use gesta_kit::faulty::Random;

/// The most bytes of a changed input.
pub(crate) const BYTES_MAX: usize = 8 * 1_024;
/// The most changes of one input.
const CHANGES_MAX: usize = 8;
/// Numbers at whose edges mistakes are made.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX.cast_unsigned() - 1,
    i64::MAX.cast_unsigned(),
    u64::MAX,
];
/// Words that mean something somewhere.
const WORDS: [&str; 44] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "\\",
    "\\u0000",
    "\\ud800",
    "\\n",
    "null",
    "true",
    "-0",
    "1e999",
    "1.5",
    "-1",
    "9223372036854775806",
    "9223372036854775807",
    "18446744073709551615",
    "%00",
    "%ff",
    "%2F",
    "%",
    "&",
    "=",
    "+",
    "/",
    "..",
    "$",
    "$$",
    "$all",
    "$ce-",
    "$et-",
    "(?=",
    "(?!",
    "(?<",
    "){9}",
    "\\1",
    "|",
    "@",
    "\n",
    "\r\n\r\n",
    "\u{202e}",
];

/// Makes an input of others.
pub(crate) fn changed(random: &mut Random, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut input = random.pick(inputs).clone();
    for _ in 0..=random.below(CHANGES_MAX) {
        change(random, &mut input, inputs);
        input.truncate(BYTES_MAX);
    }
    input
}

fn change(random: &mut Random, input: &mut Vec<u8>, inputs: &[Vec<u8>]) {
    let at = random.below(input.len() + 1);
    let length_max = match random.below(4) {
        0 => 64,
        _ => 8,
    };
    let length = random.below(length_max);
    let end = (at + length).min(input.len());
    match random.below(9) {
        0 => flip(random, input),
        1 => put(input, at, &[random.number().to_le_bytes()[0]]),
        2 => number(random, input, at),
        3 => drop(input.drain(at..end)),
        4 => {
            let part = input[at..end].to_vec();
            let times = random.below(20);
            insert(input, at, &part.repeat(times));
        }
        5 => {
            let bytes: Vec<u8> = (0..length)
                .map(|_| random.number().to_le_bytes()[0])
                .collect();
            insert(input, at, &bytes);
        }
        6 => insert(input, at, random.pick(&WORDS).as_bytes()),
        7 => {
            let word = random.pick(&WORDS).as_bytes();
            put(input, at, word);
        }
        _ => {
            let other = random.pick(inputs);
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
}

fn flip(random: &mut Random, input: &mut [u8]) {
    if let Some(byte) = pick(random, input) {
        *byte ^= 1 << random.below(8);
    }
}

fn pick<'a>(random: &mut Random, input: &'a mut [u8]) -> Option<&'a mut u8> {
    let at = random.below(input.len());
    input.get_mut(at)
}

/// Writes a number of one, two, four or eight bytes, in either order, or as text.
fn number(random: &mut Random, input: &mut Vec<u8>, at: usize) {
    let number = random
        .pick(&NUMBERS)
        .wrapping_add(random.number() % 3)
        .wrapping_sub(1);
    let bytes = number.to_be_bytes();
    match random.below(9) {
        kind @ 0..4 => put(input, at, &bytes[8 - (1 << kind)..]),
        kind @ 4..8 => put(input, at, &number.to_le_bytes()[..1 << (kind - 4)]),
        _ => insert(input, at, number.to_string().as_bytes()),
    }
}

/// Writes bytes over others, as far as there are some.
fn put(input: &mut [u8], at: usize, bytes: &[u8]) {
    let end = (at + bytes.len()).min(input.len());
    input[at..end].copy_from_slice(&bytes[..end - at]);
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    drop(input.splice(at..at, bytes.iter().copied()));
}
