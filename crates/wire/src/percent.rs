//! Percent-encoding (RFC 3986, section 2.1): writes any name so that it can be part of an address, and reads it back.

use std::borrow::Cow;

/// What `+` stands for: a plus in paths, a space in query strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plus {
    /// `+` stands for a plus.
    Itself,
    /// `+` stands for a space.
    Space,
}

/// Appends a text to `out` so that it is one segment of a path, or one value of a query string, whatever it contains.
pub fn encode(out: &mut String, text: &str) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    // A path segment of dots alone would mean another path.
    let only_dots = text.bytes().all(|b| b == b'.');
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            b'.' if !only_dots => out.push('.'),
            byte => {
                out.push('%');
                out.push(char::from(HEX[usize::from(byte >> 4)]));
                out.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
}

/// Reads a percent-encoded text strictly.
///
/// # Errors
/// The rule that the text breaks. It continues a sentence that begins with the name of the field.
pub fn decode(raw: &str, plus: Plus) -> Result<Cow<'_, str>, &'static str> {
    let special = |b: &u8| *b == b'%' || (*b == b'+' && plus == Plus::Space);
    if !raw.as_bytes().iter().any(special) {
        return Ok(Cow::Borrowed(raw));
    }
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = (bytes.next().and_then(hex), bytes.next().and_then(hex));
                let (Some(high), Some(low)) = digits else {
                    return Err("must be percent-encoded: two hexadecimal digits follow each %");
                };
                high << 4 | low
            }
            b'+' if plus == Plus::Space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded)
        .map(Cow::Owned)
        .map_err(|_| "must be UTF-8 once it is percent-decoded")
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_is_read_strictly() {
        let read = |raw| decode(raw, Plus::Itself);
        assert_eq!(read("cart-1").as_deref(), Ok("cart-1"));
        assert_eq!(read("a%2Fb+%C3%BC%e2%98%83").as_deref(), Ok("a/b+ü☃"));
        for bad in ["%", "a%2", "%zz", "%+1", "%ff", "%C3%28", "%ed%a0%80"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert_eq!(decode("a+b%2B", Plus::Space).as_deref(), Ok("a b+"));
    }

    #[test]
    fn every_text_is_read_as_it_was_written() {
        for text in ["cart-1.x", "a/b?c#d%", "..", ".", "ü +☃\0&="] {
            let mut raw = String::new();
            encode(&mut raw, text);
            for plus in [Plus::Itself, Plus::Space] {
                assert_eq!(decode(&raw, plus).as_deref(), Ok(text));
            }
        }
    }
}
