//! Names of streams that accounts live in, and names of users and groups.
//!
//! Invariant: names are compared as bytes. A name that differs from a reserved one in a single byte is another stream,
//! and since it begins with `$` it is one of the system's.

use gesta_core::{Error, Result, StreamId};

/// Says that access is on, and which accounts count.
pub(crate) const MARKER: &str = "$access";
/// Rights of streams that have none of their own, as clients of EventStoreDB write them.
pub(crate) const SETTINGS: &str = "$settings";
pub(crate) const USER_PREFIX: &str = "$user-";
pub(crate) const TOKEN_PREFIX: &str = "$token-";
/// What the name of a metadata stream starts with.
pub(crate) const METADATA_PREFIX: &str = "$$";

/// The group that may do everything.
pub(crate) const ADMINS: &str = "$admins";
/// The group that may look after a server.
pub(crate) const OPERATORS: &str = "$ops";
/// Everybody who has proved who they are.
pub(crate) const EVERYBODY: &str = "$all";

/// Longest name of a user or a group, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Whose a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of the users.
    User,
    /// Its name begins with `$`.
    System,
    /// It holds accounts.
    Account,
}

/// Whose the stream of this name is; metadata streams are their stream's.
pub(crate) fn kind(name: &str) -> Kind {
    let mut rest = name;
    while let Some(described) = rest.strip_prefix(METADATA_PREFIX) {
        rest = described;
    }
    if is_account(rest) || is_account(name) {
        return Kind::Account;
    }
    match described(name).unwrap_or(name) {
        system if system.starts_with('$') => Kind::System,
        // `$$` alone is no metadata stream of anything.
        "" => Kind::System,
        _ => Kind::User,
    }
}

fn is_account(name: &str) -> bool {
    name == MARKER
        || name == SETTINGS
        || name.starts_with(USER_PREFIX)
        || name.starts_with(TOKEN_PREFIX)
}

/// The name that a metadata stream describes.
pub(crate) fn described(name: &str) -> Option<&str> {
    name.strip_prefix(METADATA_PREFIX)
}

/// The stream of a user.
pub(crate) fn user_stream(name: &str) -> Result<StreamId> {
    check_user("user", name)?;
    StreamId::new(format!("{USER_PREFIX}{name}"))
}

/// Checks the name of a user.
///
/// A colon would end the name in HTTP's Basic scheme, and names that begin with `$` are those of the system.
pub(crate) fn check_user(field: &str, name: &str) -> Result<()> {
    let rule = if name.is_empty() {
        "must not be empty".to_owned()
    } else if name.len() > NAME_BYTES_MAX {
        format!(
            "must be at most {NAME_BYTES_MAX} bytes, found {}",
            name.len()
        )
    } else if name.starts_with('$') {
        format!("must not begin with $, found {name:?}")
    } else if let Some(c) = name
        .chars()
        .find(|c| c.is_control() || c.is_whitespace() || *c == ':')
    {
        format!("must not contain spaces, colons and control characters, found {c:?}")
    } else {
        return Ok(());
    };
    Err(Error::invalid(field, rule))
}

/// Checks the name of a group: that of the administrators, of the operators, or one as users have.
pub(crate) fn check_group(name: &str) -> Result<()> {
    match name {
        ADMINS | OPERATORS => Ok(()),
        _ => check_user("group", name),
    }
}

/// Most bytes of a full name.
const FULL_NAME_BYTES_MAX: usize = 512;

/// Checks what a user is called besides; it may be empty.
pub(crate) fn check_full_name(name: &str) -> Result<()> {
    if name.len() <= FULL_NAME_BYTES_MAX && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let shown: String = name.chars().take(60).collect();
    let rule = format!(
        "must be at most {FULL_NAME_BYTES_MAX} bytes without control characters, found {} bytes, {shown:?}",
        name.len()
    );
    Err(Error::invalid("full name", rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_streams_are_known_in_every_form() {
        for name in [
            "$access",
            "$settings",
            "$user-",
            "$user-a",
            "$token-1",
            "$$$user-a",
            "$$$settings",
            "$$$$$user-a",
            "$$$$$$$access",
        ] {
            assert_eq!(kind(name), Kind::Account, "{name}");
        }
        for name in [
            "$User-a",
            "$SETTINGS",
            "$stats-cart",
            "$$$stats-cart",
            "$",
            "$$",
            "$$$",
            "$settings2",
            "$$$$a",
        ] {
            assert_eq!(kind(name), Kind::System, "{name}");
        }
        for name in ["a", "user-a", "$$a", "$$user-a", "$$settings", "ſettings"] {
            assert_eq!(kind(name), Kind::User, "{name}");
        }
    }

    #[test]
    fn names_of_users_and_groups_are_checked() {
        for good in ["a", "größe", "x.y@z", &"x".repeat(128)] {
            assert!(check_user("user", good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "$a",
            "$all",
            "a:b",
            "a b",
            "a\n",
            "\u{85}",
            &"x".repeat(129),
        ] {
            assert!(check_user("user", bad).is_err(), "{bad:?}");
        }
        assert!(check_group("$admins").is_ok() && check_group("$ops").is_ok());
        assert!(check_group("$all").is_err());
    }
}
