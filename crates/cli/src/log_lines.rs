//! Writes the lines of the log to standard error, so that a name in one cannot make it look like another.
//!
//! Why here and not where names are logged: names of streams, groups and types may hold any character that is no
//! control character, and every line would have to remember it. Control characters are escaped by the subscriber.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

use gesta_core::printable;

use crate::args::LogFormat;
use crate::output::escaped;

/// A writer of whole lines in one format.
pub(crate) struct LogLines<W> {
    pub(crate) to: W,
    pub(crate) format: LogFormat,
}

impl<W: Write> Write for LogLines<W> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(lines);
        let shown = match self.format {
            LogFormat::Text => with_escapes(&text),
            LogFormat::Json => escaped(&text),
        };
        self.to.write_all(shown.as_bytes())?;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Returns the text with escapes for the characters beyond ASCII that do not show, or that change how others are shown.
/// The subscriber itself writes escape sequences, for colours.
fn with_escapes(text: &str) -> Cow<'_, str> {
    let hides =
        |c: char| !c.is_ascii() && matches!(printable(c.encode_utf8(&mut [0; 4])), Cow::Owned(_));
    if !text.chars().any(hides) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match hides(c) {
            true => drop(write!(shown, "\\u{{{:x}}}", u32::from(c))),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: LogFormat, line: &str) -> String {
        let mut lines = LogLines {
            to: Vec::new(),
            format,
        };
        lines.write_all(line.as_bytes()).expect("memory");
        String::from_utf8(lines.to).expect("text")
    }

    /// What happened: the name of a group turned the rest of a line of the log around, or began another one.
    #[test]
    fn names_in_the_log_do_not_change_its_lines() {
        let line = "\u{1b}[32mINFO\u{1b}[0m group=größe-\u{202e}1\u{2028}::g ☃\n";
        let shown = "\u{1b}[32mINFO\u{1b}[0m group=größe-\\u{202e}1\\u{2028}::g ☃\n";
        assert_eq!(written(LogFormat::Text, line), shown);
        let line = "{\"group\":\"größe-\u{202e}1\u{2028}::g\"}\n";
        let shown = "{\"group\":\"größe-\\u202e1\\u2028::g\"}\n";
        assert_eq!(written(LogFormat::Json, line), shown);
        let plain = "INFO stream=日本 e\u{301}\n";
        assert_eq!(written(LogFormat::Text, plain), plain);
    }
}
