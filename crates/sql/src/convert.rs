//! Conversions of numbers to and from the signed 64 bits of SQL databases.
//!
//! Invariant: a stored number out of range becomes `Corrupt` and names the column; it is never wrapped or clamped.

use gesta_core::backend::RowId;
use gesta_core::{ContentType, Error, LogId, Position, Result, Revision};

/// Converts a number to the form that SQL keeps.
///
/// # Errors
/// `InvalidArgument` if the number is greater than 2^63 - 1; it names `field`.
pub fn to_sql(value: u64, field: &'static str) -> Result<i64> {
    i64::try_from(value).map_err(|_| {
        Error::invalid(
            field,
            format!("must be at most {}, found {value}", i64::MAX),
        )
    })
}

/// Converts a stored number that must not be negative.
///
/// # Errors
/// `Corrupt` if the number is negative; it names `column`.
pub fn from_sql(value: i64, column: &'static str) -> Result<u64> {
    u64::try_from(value).map_err(|_| Error::corrupt(format!("{column} is {value}, below 0")))
}

/// Converts a stored position.
///
/// # Errors
/// `Corrupt` if the number is negative.
pub fn position_from_sql(value: i64) -> Result<Position> {
    from_sql(value, "position").map(Position)
}

/// Converts a stored revision.
///
/// # Errors
/// `Corrupt` if the number is negative.
pub fn revision_from_sql(value: i64) -> Result<Revision> {
    from_sql(value, "revision").map(Revision)
}

/// Converts a stored row id of a stream or event type.
///
/// # Errors
/// `Corrupt` if the number is negative.
pub fn row_id_from_sql(value: i64) -> Result<RowId> {
    from_sql(value, "row id").map(RowId)
}

/// Converts a stored log number.
///
/// # Errors
/// `Corrupt` if the number is not between 0 and 65,535.
pub fn log_from_sql(value: i64) -> Result<LogId> {
    u16::try_from(value)
        .map(LogId)
        .map_err(|_| Error::corrupt(format!("log is {value}, not between 0 and {}", u16::MAX)))
}

/// Returns the code with which a content type is stored: 0 is JSON, 1 is anything else.
#[must_use]
pub fn content_type_code(content_type: ContentType) -> i64 {
    match content_type {
        ContentType::Json => 0,
        ContentType::Binary => 1,
    }
}

/// Returns the content type for which a stored code stands.
///
/// # Errors
/// `Corrupt` if the code is neither 0 nor 1.
pub fn content_type_from_code(code: i64) -> Result<ContentType> {
    match code {
        0 => Ok(ContentType::Json),
        1 => Ok(ContentType::Binary),
        _ => Err(Error::corrupt(format!(
            "content type is {code}, neither 0 nor 1"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::ErrorKind;

    #[test]
    fn numbers_out_of_range_are_named_not_wrapped() {
        assert_eq!(
            to_sql(i64::MAX.cast_unsigned(), "revision").ok(),
            Some(i64::MAX)
        );
        assert!(to_sql(u64::MAX, "revision").is_err());
        let error = position_from_sql(-1).expect_err("negative");
        assert!(matches!(error.kind(), ErrorKind::Corrupt(_)));
        assert!(error.to_string().contains("position is -1"), "{error}");
        assert!(log_from_sql(65_536).is_err());
        assert!(row_id_from_sql(i64::MIN).is_err());
        assert!(revision_from_sql(-1).is_err());
    }

    #[test]
    fn content_types_and_back() {
        for content_type in [ContentType::Json, ContentType::Binary] {
            assert_eq!(
                content_type_from_code(content_type_code(content_type)).ok(),
                Some(content_type)
            );
        }
        assert!(content_type_from_code(2).is_err());
    }
}
