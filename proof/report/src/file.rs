//! Files that somebody names: regular ones alone, and never more of one than a stated bound.
//!
//! What a file says of its length is no bound: `/dev/zero` has none, a pipe waits for somebody who writes, and a file
//! may grow while it is read.

use std::fs::File;
use std::io::{Error, Read};
use std::path::Path;

/// Reads a file of at most so many bytes.
///
/// # Errors
/// A sentence: it cannot be read, it is no regular file, or it is longer.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let unread = |error: Error| format!("the file cannot be read: {error}");
    // Looked at before it is opened: opening a pipe may wait for ever.
    if !std::fs::metadata(path).map_err(unread)?.is_file() {
        return Err("it is not a regular file".into());
    }
    up_to(File::open(path).map_err(unread)?, bytes_max)
}

/// Reads at most so many bytes, also out of a pipe.
///
/// # Errors
/// A sentence: it cannot be read, or there are more.
pub fn up_to(from: impl Read, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut bounded = from.take(bytes_max.saturating_add(1));
    let read = bounded.read_to_end(&mut bytes);
    read.map_err(|error| format!("the file cannot be read: {error}"))?;
    match bytes.len() as u64 > bytes_max {
        true => Err(format!("the file has more than {bytes_max} bytes")),
        false => Ok(bytes),
    }
}

/// The text of a file.
///
/// # Errors
/// The line, from 1, that is not UTF-8, and this rule.
pub fn text(bytes: Vec<u8>) -> Result<String, (usize, String)> {
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let lines = before.split(|byte| *byte == b'\n').count();
        (lines, "the line is not UTF-8".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no more is read than the bound, whatever a file says of its length, and what is no regular file is refused
    /// before it is opened.
    #[test]
    fn nothing_is_read_without_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "1234").unwrap();
        assert_eq!(read(&file, 4).unwrap(), b"1234");
        assert_eq!(
            read(&file, 3).unwrap_err(),
            "the file has more than 3 bytes"
        );
        for odd in [Path::new("/dev/zero"), folder.path()] {
            assert_eq!(read(odd, 3).unwrap_err(), "it is not a regular file");
        }
        assert!(up_to(std::io::repeat(b'a'), 3).is_err());
        let missing = read(&folder.path().join("none"), 3).unwrap_err();
        assert!(
            missing.starts_with("the file cannot be read: "),
            "{missing}"
        );
    }

    #[test]
    fn a_line_that_is_not_utf_8_is_named() {
        let (line, rule) = text(b"a\nb\xff\nc".to_vec()).unwrap_err();
        assert_eq!((line, rule.as_str()), (2, "the line is not UTF-8"));
        assert_eq!(text(b"\xff".to_vec()).unwrap_err().0, 1);
        assert_eq!(text("ü\n".into()).unwrap(), "ü\n");
    }
}
