//! Sizes of events: classes with counts and ranges, from a file, and sizes drawn from them.
//!
//! A class is drawn by its share of the counts. Within a class the smallest, largest and average size are known, and no
//! more; the draw is the simplest that keeps all three: uniform below the average or uniform above it, the two in the
//! proportion that makes the mean the average.

use std::path::Path;

use gesta_report::failure::{Context, Failure, Result, fail};
use gesta_report::file;
use serde::Serialize;

use crate::random::Random;

/// Fewest bytes of an event: all that must be in it (`target::Events`).
pub const SMALLEST_BYTES: usize = 53;
/// Largest event that a file may ask for: 16 MiB.
const LARGEST_BYTES: usize = 16 << 20;
/// Largest file of classes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The distribution of a production system that was published in 2024: its mean, by its own table, is 21.7 kB.
const PUBLISHED: &str = include_str!("../sizes/published-2024.csv");

/// Some events of similar sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Class {
    /// How many there were; only the proportion counts.
    pub count: u64,
    /// Bytes of the smallest.
    pub smallest: usize,
    /// Bytes of the largest.
    pub largest: usize,
    /// Their mean.
    pub average: f64,
}

impl Class {
    /// One event of this size.
    fn of(bytes: usize) -> Self {
        Self {
            count: 1,
            smallest: bytes,
            largest: bytes,
            average: bytes as f64,
        }
    }
}

/// A distribution of sizes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sizes {
    /// Where it is from.
    pub name: String,
    /// At least one.
    pub classes: Vec<Class>,
    #[serde(skip)]
    total: u64,
}

impl Sizes {
    /// All events of one size.
    ///
    /// # Errors
    /// The size is out of range.
    pub fn fixed(bytes: usize) -> Result<Self> {
        Self::of(format!("{bytes} bytes"), vec![Class::of(bytes)])
    }

    /// The same, also if the events have no room for their mark.
    ///
    /// # Errors
    /// The size is above 16 MiB.
    pub fn exactly(bytes: usize) -> Result<Self> {
        let mut sizes = Self::fixed(bytes.max(SMALLEST_BYTES))?;
        (sizes.name, sizes.classes) = (format!("{bytes} bytes"), vec![Class::of(bytes)]);
        Ok(sizes)
    }

    /// The published distribution.
    ///
    /// # Panics
    /// Never: the file is part of the program, and a test reads it.
    #[must_use]
    pub fn published() -> Self {
        Self::parse("published 2024, mean 21.7 kB", PUBLISHED).expect("the file of the program")
    }

    /// Reads `published`, a number of bytes, or the name of a file (see [`Sizes::parse`]).
    ///
    /// # Errors
    /// The file cannot be read or says nothing sensible.
    pub fn named(text: &str) -> Result<Self> {
        if text == "published" {
            return Ok(Self::published());
        }
        if let Ok(bytes) = text.parse() {
            return Self::fixed(bytes);
        }
        let path = Path::new(text);
        let bytes = file::read(path, FILE_BYTES_MAX).map_err(Failure);
        let bytes = bytes.context(format!("sizes {text:?}"))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let lines = file::text(bytes);
        let lines =
            lines.map_err(|(line, rule)| Failure(format!("{name}, line {line}: {rule}")))?;
        Self::parse(&name, &lines)
    }

    /// Reads lines `count,smallest,largest,average`; `#` begins a remark; the head line is optional.
    ///
    /// # Errors
    /// A line is not of this form, or its numbers do not fit each other; names the line.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut classes = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() && !line.starts_with("count") {
                classes.push(class(line).context(format!("{name}, line {number}"))?);
            }
        }
        Self::of(name.to_owned(), classes)
    }

    fn of(name: String, classes: Vec<Class>) -> Result<Self> {
        let total = classes.iter().map(|class| class.count).sum();
        if total == 0 {
            return fail(format!("{name}: no class of sizes"));
        }
        for class in &classes {
            let (smallest, largest, average) = (class.smallest, class.largest, class.average);
            if smallest < SMALLEST_BYTES || largest > LARGEST_BYTES {
                return fail(format!(
                    "{name}: sizes from {smallest} to {largest} bytes; events of loads have {SMALLEST_BYTES} to {LARGEST_BYTES}"
                ));
            }
            if !(smallest as f64..=largest as f64).contains(&average) {
                return fail(format!(
                    "{name}: the average {average} is not between {smallest} and {largest}"
                ));
            }
        }
        Ok(Self {
            name,
            classes,
            total,
        })
    }

    /// Draws a size.
    pub fn draw(&self, random: &mut Random) -> usize {
        self.draw_class(random).1
    }

    /// Draws a class, by its index, and a size in it.
    fn draw_class(&self, random: &mut Random) -> (usize, usize) {
        let total = usize::try_from(self.total).unwrap_or(usize::MAX);
        let mut left = random.below(total) as u64;
        for (index, class) in self.classes.iter().enumerate() {
            if left < class.count {
                return (index, class.draw(random));
            }
            left -= class.count;
        }
        unreachable!("a number below the total belongs to a class")
    }

    /// Mean size in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let classes = self.classes.iter();
        let sum: f64 = classes
            .map(|class| class.count as f64 * class.average)
            .sum();
        sum / self.total as f64
    }

    /// Largest size in bytes.
    #[must_use]
    pub fn largest(&self) -> usize {
        let largest = self.classes.iter().map(|class| class.largest);
        largest.max().unwrap_or(0)
    }
}

impl Class {
    fn draw(&self, random: &mut Random) -> usize {
        let (smallest, largest) = (self.smallest, self.largest);
        if smallest == largest {
            return smallest;
        }
        let (low, high) = (smallest as f64, largest as f64);
        let below = (high - self.average) / (high - low);
        let (from, to) = match random.fraction() < below {
            true => (low, self.average),
            false => (self.average, high),
        };
        let drawn = (from + (to - from) * random.fraction()).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between two sizes"
        )]
        let bytes = drawn as usize;
        bytes.clamp(smallest, largest)
    }
}

fn class(line: &str) -> Result<Class> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [count, smallest, largest, average] = fields.as_slice() else {
        return fail(format!("{line:?} is not count,smallest,largest,average"));
    };
    let whole = |text: &str| text.parse().context(format!("{text:?}"));
    let average: f64 = average.parse().context(format!("{average:?}"))?;
    Ok(Class {
        count: whole(count)?,
        smallest: usize::try_from(whole(smallest)?)?,
        largest: usize::try_from(whole(largest)?)?,
        average,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file has a bound, and what is wrong with it is told with its line.
    #[test]
    fn a_file_that_cannot_be_meant_is_refused() {
        let why = Sizes::named("/dev/zero").unwrap_err().to_string();
        assert!(why.ends_with("it is not a regular file"), "{why}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own.csv");
        std::fs::write(&file, b"count\n1,\xff").unwrap();
        let why = Sizes::named(file.to_str().unwrap())
            .unwrap_err()
            .to_string();
        assert_eq!(why, "own.csv, line 2: the line is not UTF-8");
    }

    /// Goal: classes come in their proportions, and each keeps its range and its average.
    #[test]
    fn draws_keep_shares_ranges_and_averages() {
        const DRAWS: u32 = 200_000;
        let sizes = Sizes::published();
        let mut random = Random::new(7);
        let mut drawn: Vec<Vec<f64>> = vec![Vec::new(); sizes.classes.len()];
        for _ in 0..DRAWS {
            let (class, bytes) = sizes.draw_class(&mut random);
            let range = sizes.classes[class].smallest..=sizes.classes[class].largest;
            assert!(range.contains(&bytes), "{bytes} in class {class}");
            drawn[class].push(bytes as f64);
        }
        for (class, drawn) in sizes.classes.iter().zip(&drawn) {
            let n = drawn.len() as f64;
            let share = class.count as f64 / sizes.total as f64;
            // Four standard errors each.
            let spread = (f64::from(DRAWS) * share * (1.0 - share)).sqrt();
            let off = (n - f64::from(DRAWS) * share).abs();
            assert!(off < 4.0 * spread, "{class:?}: {n}");
            let mean = drawn.iter().sum::<f64>() / n;
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
            let error = (mean - class.average).abs() / (variance / n).sqrt();
            assert!(
                error < 4.0,
                "{class:?}: mean {mean}, {error} standard errors"
            );
        }
        let mean = sizes.mean();
        assert!((21_600.0..21_700.0).contains(&mean), "{mean}");
    }
}
