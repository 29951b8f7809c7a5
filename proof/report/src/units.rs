//! Units of parameters and of figures: durations, counts, rates and shares, as JSON has them.

use std::time::Duration;

pub use crate::duration::parse as duration;

/// Writes a duration as a number of seconds.
pub fn seconds<S: serde::Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

/// Writes a duration, if there is one, as a number of seconds.
pub fn maybe_seconds<S: serde::Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let seconds = duration.map(|duration| duration.as_secs_f64());
    serde::Serialize::serialize(&seconds, serializer)
}

/// Reads a count: a number, in thousands with `k`, in millions with `m`, such as `500k` or `1.5m`.
pub fn count(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        _ => (text, 1.0),
    };
    let count = number
        .parse::<f64>()
        .map_err(|_| format!("{text:?} is not a number, such as 500k or 50m"))?
        * factor;
    if !(1.0..=1e15).contains(&count) {
        return Err(format!("{text:?} is not between 1 and 10^15"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "just checked"
    )]
    Ok(count.round() as u64)
}

/// Reads a rate per second, above 0.
pub fn rate(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e9 => Ok(rate),
        _ => Err(format!("{text:?} is not a rate above 0")),
    }
}

/// Reads a share above 0, up to 1.
pub fn share(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err(format!("{text:?} is not a share between 0 and 1")),
    }
}

/// A large number with commas between thousands.
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}
