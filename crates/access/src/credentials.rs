//! What a caller shows to prove who they are: the value of an `Authorization` header (RFC 9110, section 11.6.2).
//!
//! Two schemes: `Basic` with a user and a password, `Bearer` with an API token.
//! Invariant: nothing of a secret is repeated in an error.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::password::{PASSWORD_BYTES_MAX, Password};
use crate::token::Secret;

/// What a caller has shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Nothing,
    Token(Secret),
    Login { user: String, password: Password },
}

/// Why the headers of a caller prove nothing.
pub(crate) type Refusal = &'static str;

/// Reads the values of all `Authorization` headers of a call.
pub(crate) fn read<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Result<Shown, Refusal> {
    let mut values = values.into_iter();
    let Some(value) = values.next() else {
        return Ok(Shown::Nothing);
    };
    if values.next().is_some() {
        return Err("Authorization must stand only once");
    }
    let value = std::str::from_utf8(value).map_err(|_| "Authorization must be text")?;
    let (scheme, rest) = value.trim().split_once(' ').unwrap_or((value, ""));
    let rest = rest.trim_start();
    if scheme.eq_ignore_ascii_case("bearer") {
        let token = Secret::parse(rest).ok_or("the token is not one of this server")?;
        return Ok(Shown::Token(token));
    }
    if scheme.eq_ignore_ascii_case("basic") {
        return login(rest).ok_or("Authorization must be Basic and user:password in base64");
    }
    Err("Authorization must be Basic or Bearer")
}

fn login(encoded: &str) -> Option<Shown> {
    let text = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    (password.len() <= PASSWORD_BYTES_MAX).then(|| Shown::Login {
        user: user.to_owned(),
        password: Password(password.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(value: &str) -> Result<Shown, Refusal> {
        read([value.as_bytes()])
    }

    #[test]
    fn both_schemes_are_read() {
        let login = |user: &str, password: &str| Shown::Login {
            user: user.into(),
            password: Password(password.into()),
        };
        assert_eq!(read([]), Ok(Shown::Nothing));
        assert_eq!(one("Basic YTpiOmM="), Ok(login("a", "b:c")));
        assert_eq!(one("bAsIc  Og=="), Ok(login("", "")));
        let secret = Secret::random();
        assert_eq!(
            one(&format!("Bearer {}", secret.reveal())),
            Ok(Shown::Token(secret))
        );
    }

    #[test]
    fn everything_else_proves_nothing() {
        let long = format!(
            "Basic {}",
            STANDARD.encode(format!("a:{}", "x".repeat(1_025)))
        );
        for bad in [
            "",
            " ",
            "Basic",
            "Basic ",
            "Basic YQ==",
            "Basic YTpi!",
            "Basic /w==",
            "Bearer",
            "Bearer x",
            "Digest a",
            "YTpi",
            &long,
        ] {
            assert!(one(bad).is_err(), "{bad}");
        }
        assert!(read([&b"Basic YTpi"[..], b"Basic YTpi"]).is_err());
        assert!(read([&b"Basic \xff"[..]]).is_err());
    }
}
