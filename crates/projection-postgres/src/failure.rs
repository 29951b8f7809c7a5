//! What an error of PostgreSQL means for a projection.
//!
//! By the class of its SQLSTATE (PostgreSQL's manual, appendix A). The rule: what is not the fault of an event may not
//! be
//! taken for one, else a database that fails as a whole would park every key.

use gesta_projection::{TargetError, TargetErrorKind};

/// An error of a driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The SQLSTATE, if the server has answered.
    pub code: Option<String>,
    /// What happened, for people. Of an answer of the server it is the message alone: its details show values of rows.
    pub text: String,
}

impl Failure {
    /// Makes the failure of a connection: the server has not answered.
    #[must_use]
    pub fn without_answer(text: impl Into<String>) -> Self {
        Self {
            code: None,
            text: text.into(),
        }
    }

    /// Makes the failure of a value that the driver cannot send or read: the same fails again.
    #[must_use]
    pub fn of_value(text: impl Into<String>) -> Self {
        Self {
            code: Some("22000".to_owned()),
            text: text.into(),
        }
    }

    /// Tells what the failure means.
    #[must_use]
    pub fn kind(&self) -> TargetErrorKind {
        let Some(code) = self.code.as_deref() else {
            return TargetErrorKind::Away;
        };
        match code {
            // Locks, a database or table that is in use, a session that was ended because its transaction stood still.
            "55P03" | "55006" | "25P03" | "25P04" => TargetErrorKind::Away,
            // A statement of this name that another user of a pooled session has prepared.
            "42P05" => TargetErrorKind::Away,
            // Read-only: a standby, or an administrator who has set it on purpose.
            "25006" => TargetErrorKind::Away,
            // Rights, tables and schemas that are missing: no event is to blame.
            "42501" | "42P01" | "3F000" => TargetErrorKind::Unusable,
            _ => match code.get(..2).unwrap_or_default() {
                // Connections; a prepared statement that another session has; user or database refused; lost to another
                // transaction; out of
                // resources; an operator or a time limit has intervened; the system; a fault of the server.
                "08" | "26" | "28" | "3D" | "40" | "53" | "57" | "58" | "XX" => {
                    TargetErrorKind::Away
                }
                _ => TargetErrorKind::Refused,
            },
        }
    }

    pub(crate) fn is_lock_timeout(&self) -> bool {
        self.code.as_deref() == Some("55P03")
    }

    /// A view cannot get these columns, or columns of these types.
    pub(crate) fn is_other_shape(&self) -> bool {
        matches!(self.code.as_deref(), Some("42P16" | "42611"))
    }
}

impl From<Failure> for TargetError {
    fn from(failure: Failure) -> Self {
        let kind = failure.kind();
        let text = match &failure.code {
            Some(code) => format!("PostgreSQL: {} ({code})", failure.text),
            None => format!("PostgreSQL does not answer: {}", failure.text),
        };
        TargetError::new(kind, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_of_errors_has_its_meaning() {
        let kind = |code: &str| {
            let code = Some(code.to_owned());
            let text = String::new();
            Failure { code, text }.kind()
        };
        for code in [
            "08006", "28P01", "3D000", "40001", "40P01", "53100", "53300", "55P03", "57014",
            "57P01", "57P03", "42P05", "58030", "25006", "25P03", "XX000",
        ] {
            assert_eq!(kind(code), TargetErrorKind::Away, "{code}");
        }
        for code in ["42501", "42P01", "3F000"] {
            assert_eq!(kind(code), TargetErrorKind::Unusable, "{code}");
        }
        for code in [
            "22001", "22021", "22P02", "23502", "23505", "23514", "25P02", "42601", "42703",
            "P0001",
        ] {
            assert_eq!(kind(code), TargetErrorKind::Refused, "{code}");
        }
        assert_eq!(Failure::without_answer("x").kind(), TargetErrorKind::Away);
    }
}
