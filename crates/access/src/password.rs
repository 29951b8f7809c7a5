//! Hashes of passwords: argon2id with the parameters that RFC 9106's successors recommend as the least (19 MiB, two
//! passes).
//!
//! Invariants: a stored hash that would cost more than [`MEMORY_KIB_MAX`] or [`PASSES_MAX`] is refused, so that
//! nobody's hash can take the memory of the server; a hash is never shown by `Debug`.

use std::fmt;
use std::sync::Arc;

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Argon2, Params};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use gesta_core::{Error, ErrorKind, Result};

/// The shortest password, in bytes.
pub const PASSWORD_BYTES_MIN: usize = 8;
/// The longest password, in bytes.
pub const PASSWORD_BYTES_MAX: usize = 1_024;
/// The most memory that a stored hash may ask for, in KiB.
const MEMORY_KIB_MAX: u32 = 64 * 1_024;
const PASSES_MAX: u32 = 8;
const LANES_MAX: u32 = 4;

/// A password, while it is being checked.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(pub(crate) String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// The hash of a password, in the form of the password hashing competition.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hashed(Arc<str>);

impl fmt::Debug for Hashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashed")
    }
}

impl Hashed {
    /// Hashes a password with a random salt. This takes some 20 ms of a processor.
    pub(crate) fn new(password: &str) -> Result<Self> {
        check_password(password)?;
        let hash: std::result::Result<PasswordHash, _> =
            Argon2::default().hash_password(password.as_bytes());
        let hash = hash.map_err(|error| {
            Error::new(ErrorKind::Unsupported(format!(
                "the password cannot be hashed: {error}"
            )))
        })?;
        Ok(Self(hash.to_string().into()))
    }

    /// Returns a hash of no password that anybody knows. The password of a user who does not exist is compared with it,
    /// so that this takes as long as for a user who exists.
    pub(crate) fn of_nobody() -> Self {
        let (salt, hash): ([u8; 16], [u8; 32]) = (rand::random(), rand::random());
        let (salt, hash) = (STANDARD_NO_PAD.encode(salt), STANDARD_NO_PAD.encode(hash));
        let params = Params::DEFAULT;
        let (memory, passes, lanes) = (params.m_cost(), params.t_cost(), params.p_cost());
        Self(format!("$argon2id$v=19$m={memory},t={passes},p={lanes}${salt}${hash}").into())
    }

    /// Reads a hash that the store has kept.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        let odd = |why: String| format!("the hash of the password cannot be used: {why}");
        let hash = PasswordHash::new(text).map_err(|error| odd(error.to_string()))?;
        if hash.algorithm.as_str() != "argon2id" {
            return Err(odd("it is not of argon2id".into()));
        }
        let params = Params::try_from(&hash).map_err(|error| odd(error.to_string()))?;
        let fits = params.m_cost() <= MEMORY_KIB_MAX
            && params.t_cost() <= PASSES_MAX
            && params.p_cost() <= LANES_MAX;
        if !fits || hash.hash.is_none() || hash.salt.is_none() {
            return Err(odd("it costs too much, or is incomplete".into()));
        }
        Ok(Self(text.into()))
    }

    /// The text that the store keeps.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Tells whether this is the hash of the password. Compares in constant time, and takes as long as [`Hashed::new`].
    pub(crate) fn is_of(&self, password: &str) -> bool {
        PasswordHash::new(&self.0).is_ok_and(|hash| {
            Argon2::default()
                .verify_password(password.as_bytes(), &hash)
                .is_ok()
        })
    }
}

/// Looks whether a new password keeps the rule of its length.
///
/// # Errors
/// `InvalidArgument` if it is shorter than [`PASSWORD_BYTES_MIN`] or longer than [`PASSWORD_BYTES_MAX`].
pub fn check_password(password: &str) -> Result<()> {
    let length = password.len();
    if (PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&length) {
        return Ok(());
    }
    // The password itself is not repeated in the error.
    let rule =
        format!("must be {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes, found {length}");
    Err(Error::invalid("password", rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_knows_its_password() {
        let hash = Hashed::new("correct horse").expect("hashed");
        let stored = Hashed::parse(hash.text()).expect("readable");
        assert!(stored.is_of("correct horse"));
        assert!(!stored.is_of("correct hors") && !stored.is_of(""));
        assert!(hash.text().starts_with("$argon2id$v=19$m=19456,t=2,p=1$"));
        assert_eq!(
            format!("{hash:?} {:?}", Password("x".into())),
            "Hashed Password"
        );
        assert!(Hashed::new("short").is_err() && Hashed::new(&"x".repeat(1_025)).is_err());
    }

    #[test]
    fn the_hash_of_nobody_costs_what_others_cost() {
        let nobody = Hashed::of_nobody();
        let of = |hash: &Hashed| hash.text().split('$').take(4).collect::<Vec<_>>().join("$");
        assert_eq!(
            of(&nobody),
            of(&Hashed::new("correct horse").expect("hashed"))
        );
        assert!(Hashed::parse(nobody.text()).is_ok() && !nobody.is_of("correct horse"));
        assert_eq!(
            nobody.text().len(),
            Hashed::new("correct horse").expect("hashed").text().len()
        );
    }

    #[test]
    fn stored_hashes_that_cost_too_much_are_refused() {
        let hash = Hashed::new("correct horse").expect("hashed");
        for (from, to) in [
            ("m=19456", "m=4194304"),
            ("t=2", "t=1000000"),
            ("p=1", "p=64"),
            ("argon2id", "argon2i"),
            ("$m=", "$"),
        ] {
            let changed = hash.text().replacen(from, to, 1);
            assert!(Hashed::parse(&changed).is_err(), "{changed}");
        }
        assert!(Hashed::parse("").is_err() && Hashed::parse("secret").is_err());
    }
}
