//! The names of streams that hold accounts, and the names of users and groups.
//!
//! Invariant: names are compared as bytes. A name that differs from a reserved one in a single byte is another stream,
//! and since it begins with `$` it is one of the system's.

use gesta_core::{Error, Result, StreamId};

/// The stream of the marker, which says that access is on and which accounts count.
pub(crate) const MARKER: &str = "$access";
/// The stream of the rights of streams that have no rights of their own, as clients of EventStoreDB write them.
pub(crate) const SETTINGS: &str = "$settings";
/// The stream that lists the names of all users, for programs that were written for EventStoreDB. No account rests on
/// it.
pub(crate) const USERS: &str = "$users";
pub(crate) const USER_PREFIX: &str = "$user-";
pub(crate) const TOKEN_PREFIX: &str = "$token-";
/// The beginning of the names of metadata streams.
pub(crate) const METADATA_PREFIX: &str = "$$";

/// The group whose users may do everything.
pub(crate) const ADMINS: &str = "$admins";
/// The group whose users may look after a server.
pub(crate) const OPERATORS: &str = "$ops";
/// The role of everybody who has proved who they are.
pub(crate) const EVERYBODY: &str = "$all";

/// The longest name of a user or a group, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// To whom a stream belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The stream belongs to the users.
    User,
    /// The stream belongs to the system: its name begins with `$`.
    System,
    /// The stream holds accounts.
    Account,
}

/// Tells to whom the stream of this name belongs. A metadata stream belongs to whom its stream belongs.
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
        // The stream `$$` describes no stream.
        "" => Kind::System,
        _ => Kind::User,
    }
}

fn is_account(name: &str) -> bool {
    name == MARKER
        || name == SETTINGS
        || name == USERS
        || name.starts_with(USER_PREFIX)
        || name.starts_with(TOKEN_PREFIX)
}

/// Returns the name of the stream that a metadata stream describes.
pub(crate) fn described(name: &str) -> Option<&str> {
    name.strip_prefix(METADATA_PREFIX)
}

/// Returns the account stream of a user.
pub(crate) fn user_stream(name: &str) -> Result<StreamId> {
    check_user("user", name)?;
    StreamId::new(format!("{USER_PREFIX}{name}"))
}

/// Checks the name of a user.
///
/// A colon would end the name in HTTP's Basic scheme, and names that begin with `$` belong to the system.
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

/// Checks the name of a group, which is that of the administrators, that of the operators, or a name that a user may
/// have.
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
            "$users",
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
