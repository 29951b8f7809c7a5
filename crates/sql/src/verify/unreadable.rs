//! The audit reads on here, after a part of a table that cannot be read.
//!
//! How: a page that cannot be read is asked for again in smaller parts, down to one row. If that fails too, the reading
//! goes on after it, at twice the distance each time, and the report says which positions were not checked. One gap
//! costs at most 63 such attempts.

use gesta_core::{Error, ErrorKind, LogId, Result};

use super::{AuditRow, AuditSource};

/// Numbers of rows that are asked for, one after the other, when a larger page cannot be read.
const SMALLER: [usize; 3] = [256, 16, 1];

/// A page of rows that can be read.
pub(super) struct Read {
    pub(super) page: Vec<AuditRow>,
    /// Text for the report about rows before the page that cannot be read; `None` if all could be read.
    pub(super) skipped: Option<String>,
}

/// Returns true if the stored data are at fault, not the connection to them.
pub(super) fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt(_))
}

/// Reads the next rows that can be read.
///
/// # Errors
/// `Unavailable` if the source fails.
pub(super) async fn rows(
    source: &mut dyn AuditSource,
    log: LogId,
    after: i64,
    limit: usize,
) -> Result<Read> {
    let mut cause = None;
    for limit in std::iter::once(limit).chain(SMALLER) {
        match source.rows(log, after, limit).await {
            Ok(page) => {
                return Ok(Read {
                    page,
                    skipped: None,
                });
            }
            Err(error) if is_damage(&error) => cause = Some(error),
            Err(error) => return Err(error),
        }
    }
    let cause = cause.map_or_else(String::new, |error| error.to_string());
    // Positions begin at 1, and 0 is before all of them.
    let begin = after.max(0);
    for shift in 0..63 {
        let Some(beyond) = begin.checked_add(1_i64 << shift) else {
            break;
        };
        match source.rows(log, beyond, 1).await {
            Ok(page) => {
                let text = match page.first() {
                    Some(row) => format!(
                        "positions {} to {} cannot be read and were not checked, nor what follows from them: {cause}",
                        begin + 1,
                        row.position - 1
                    ),
                    None => format!("what comes after position {begin} cannot be read: {cause}"),
                };
                return Ok(Read {
                    page,
                    skipped: Some(text),
                });
            }
            Err(error) if is_damage(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Read {
        page: Vec::new(),
        skipped: Some(format!(
            "no event after position {begin} can be read: {cause}"
        )),
    })
}
