//! Random values of every kind that calls carry, most of them of an odd size or form.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What makes values at random, within a number of bytes.
pub(crate) struct Maker {
    pub(crate) rng: StdRng,
    /// Bytes that the call may still take.
    pub(crate) left: usize,
    /// Whether values may be what a server refuses. Half of the calls have none, or few would get far.
    pub(crate) is_odd: bool,
}

/// Parts of expressions: those that look around, repeat, name large classes, refer back, call each other. An N stands
/// for a number.
const EXPRESSIONS: [&str; 24] = [
    r"(?=\w{N}N)",
    r"(?<!N)\w{N}(?!N)",
    r"(?:\w{N}N|(?=N))",
    r"(?=[\p{L}\d]{N}N)",
    r"(?=a)",
    r"\w",
    r"(?i)\p{L}",
    r"(?<=\w{1,N})",
    "(",
    ")",
    r"(a|a)*",
    r"(\w+)*\1",
    ".*",
    r"[\w&&\p{L}]",
    "{N}",
    "a",
    "|",
    r"(?>a*)",
    "^",
    "$",
    r"(?!x)",
    r"(\w*)*",
    r"(?:(?:.{0,N}){0,N}){0,N}",
    r"^(?!\$)",
];

const JSON: [&str; 14] = [
    "[",
    "]",
    "{\"a\":",
    "}",
    "\"\\u0041\"",
    "\"\\u0000\\ud83e\\udd80\"",
    "1e9",
    "1e400",
    ",",
    "{\"\":0}",
    "[[]]",
    "null",
    "-0",
    "18446744073709551616",
];

/// Texts of which names, types, tags and reasons are made.
const TEXTS: [&str; 10] = [
    "a",
    "\u{1f980}",
    "$",
    "-",
    "caf\u{e9}",
    "\u{0}",
    "\"",
    "/",
    "::",
    "\u{202e}",
];

/// Names of streams that there are, that are made by the store, or that mean something.
pub(crate) const STREAMS: [&str; 18] = [
    "big",
    "big",
    "links",
    "links",
    "tiny",
    "tiny",
    "cart-1",
    "cart-2",
    "$$cart-1",
    "$all",
    "$ce-tiny",
    "$ce-many",
    "$et-T",
    "$streams",
    "$user-root",
    "$access",
    "$$$$x",
    "none",
];

const NUMBERS: [i128; 20] = [
    0,
    1,
    2,
    3,
    10,
    32,
    100,
    999,
    1_000,
    4_096,
    10_000,
    10_001,
    65_536,
    (1 << 31) - 1,
    (1 << 32) - 1,
    (1 << 63) - 2,
    (1 << 63) - 1,
    (1 << 64) - 1,
    -1,
    -2,
];

impl Maker {
    pub(crate) fn new(seed: u64, left: usize) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let is_odd = rng.random();
        Self { rng, left, is_odd }
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.rng.random_range(0..bound)
    }

    /// True so many times of a hundred.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// How often something of so many bytes is repeated: mostly a few times, sometimes as often as there is room.
    pub(crate) fn times(&mut self, bytes: usize) -> usize {
        let room = self.left / bytes.max(1);
        match self.below(10) {
            0 => room,
            1 => room / 15,
            2 => 101.min(room),
            3 => 0,
            _ => self.rng.random_range(1..5).min(room),
        }
    }

    pub(crate) fn taken(&mut self, text: String) -> String {
        self.left = self.left.saturating_sub(text.len());
        text
    }

    /// A text of these parts, often the same part again and again.
    pub(crate) fn text_of(&mut self, parts: &[&str]) -> String {
        let bytes_max = match self.below(20) {
            0 => self.left,
            1 => self.left / 15,
            2 => 1_100.min(self.left),
            _ => self.rng.random_range(1..60).min(self.left),
        };
        let fixed = self.chance(50).then(|| self.pick(parts));
        let mut text = String::new();
        loop {
            let part = fixed.unwrap_or_else(|| self.pick(parts));
            let part = part.replace('N', &self.rng.random_range(1..90).to_string());
            if text.len() + part.len() > bytes_max {
                return self.taken(text);
            }
            text.push_str(&part);
        }
    }

    pub(crate) fn text(&mut self) -> String {
        match self.below(3) {
            _ if !self.is_odd => {
                let times = self.rng.random_range(1..20);
                let part = self.pick(&["a", "b-", "\u{1f980}", "\u{e9}"]);
                self.taken(part.repeat(times))
            }
            0 => self.text_of(&TEXTS),
            _ => self.text_of(&["a", "b", "-", "0"]),
        }
    }

    pub(crate) fn expression(&mut self) -> String {
        self.text_of(&EXPRESSIONS)
    }

    pub(crate) fn stream(&mut self) -> String {
        match self.below(10) {
            _ if !self.is_odd && self.chance(60) => {
                let number = self.below(1_000);
                format!("cart-{number}")
            }
            0 => self.text(),
            1 => {
                let number = self.below(3_000);
                format!("many-{number}")
            }
            _ => self.pick(&STREAMS).to_owned(),
        }
    }

    pub(crate) fn group(&mut self) -> String {
        match self.below(8) {
            0 => self.text(),
            _ => self.pick(&["g", "h", "i"]).to_owned(),
        }
    }

    /// The type of an event, or a tag.
    pub(crate) fn label(&mut self) -> String {
        match self.below(3) {
            0 => self.text(),
            1 => self
                .pick(&["T", "U", "$>", "t:1", "t:2", "$metadata"])
                .to_owned(),
            _ => {
                let number = self.below(100_000);
                format!("v{number}")
            }
        }
    }

    pub(crate) fn number(&mut self) -> i128 {
        match self.below(4) {
            _ if !self.is_odd => self.pick(&NUMBERS[1..11]),
            0 => i128::from(self.rng.random::<u64>()),
            _ => self.pick(&NUMBERS),
        }
    }

    pub(crate) fn uuid(&mut self) -> String {
        match self.below(12) {
            0 if self.is_odd => self.text(),
            _ => uuid::Uuid::from_u128(self.rng.random()).to_string(),
        }
    }

    /// JSON, mostly well formed.
    pub(crate) fn json(&mut self) -> String {
        let text = match self.below(8) {
            0 if self.is_odd => self.text_of(&JSON),
            1 => {
                let depth = self
                    .rng
                    .random_range(1..if self.is_odd { 140 } else { 100 });
                format!("{}{}", "[".repeat(depth), "]".repeat(depth))
            }
            2 => {
                let count = self.times(8);
                let fields: Vec<_> = (0..count).map(|n| format!("\"{n}\":{n}")).collect();
                format!("{{{}}}", fields.join(","))
            }
            3 => format!("[{}]", vec!["{}"; self.times(3)].join(",")),
            4 => serde_json::Value::from(self.text()).to_string(),
            5 => format!("[{}]", vec!["1e9"; self.times(4)].join(",")),
            _ => self
                .pick(&["1", "{}", "null", "{\"a\":[1,\"x\"]}"])
                .to_owned(),
        };
        self.taken(text)
    }

    pub(crate) fn base64(&mut self) -> String {
        self.text_of(&["AAAA"])
    }
}
