//! Texts that people read, such as errors: what they name comes from callers.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns a text in which every character shows: one that is not seen, or that changes how those after it are shown,
/// as U+202E (right-to-left override) and U+2028 (line separator) do, stands as `\u{…}`. Line breaks and tabs of ASCII
/// stay.
///
/// Names may contain such characters. In an error text they would make one name look like another.
///
/// ```
/// assert_eq!(gesta_core::printable("größe-1 ☃"), "größe-1 ☃");
/// assert_eq!(gesta_core::printable("a\u{202e}b"), "a\\u{202e}b");
/// ```
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(shows) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if shows(c) {
            shown.push(c);
        } else {
            // Writing to memory does not fail.
            let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
        }
    }
    Cow::Owned(shown)
}

fn shows(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control() || c == '\n' || c == '\t';
    }
    // After another character, a mark that belongs to it shows.
    let mut pair = String::from("a");
    pair.push(c);
    pair.escape_debug().nth(1) == Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_show_is_escaped() {
        for plain in ["", "cart-1", "größe \"x\" \\ \n\t", "e\u{301}", "日本", "☃"] {
            assert!(
                matches!(printable(plain), Cow::Borrowed(same) if same == plain),
                "{plain}"
            );
        }
        for hidden in [
            '\u{202e}', '\u{2028}', '\u{200b}', '\u{2066}', '\u{feff}', '\u{1b}', '\u{85}',
        ] {
            let text = format!("a{hidden}b");
            let escaped = format!("a\\u{{{:x}}}b", u32::from(hidden));
            assert_eq!(printable(&text), escaped);
        }
    }
}
