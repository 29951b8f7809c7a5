//! API tokens: their text, what the store keeps of it, and what they may do.
//!
//! The text is `gesta_`, the id in 32 hexadecimal digits, `_`, and 256 random bits in base64. The id finds the token,
//! the secret proves it. The store keeps the SHA-256 of the secret: a slow hash is not needed, for 256 random bits
//! cannot be guessed.
//! Invariant: no form of a secret but its hash is shown by `Debug` or `Display`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gesta_core::{Error, Result, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::names;

const TEXT_PREFIX: &str = "gesta_";
const SECRET_BYTES: usize = 32;
/// The most prefixes of a token.
pub(crate) const PREFIXES_MAX: usize = 64;
/// The longest label of a token, in bytes.
const LABEL_BYTES_MAX: usize = 128;

/// What a token may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Read and follow events and metadata.
    Read,
    /// Get events as a consumer of a group, and answer for them: what is answered for is not delivered to others. A
    /// token with both `read` and `append` may do this too.
    Consume,
    /// Append events.
    Append,
    /// Do everything that the user of the token may do: also delete, change metadata and, if the user is an
    /// administrator, change accounts.
    Admin,
}

/// A set of scopes, as a token has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes {
    read: bool,
    consume: bool,
    append: bool,
    admin: bool,
}

impl Scopes {
    /// All scopes, which a password gives.
    pub(crate) const ALL: Scopes = Scopes {
        read: true,
        consume: true,
        append: true,
        admin: true,
    };

    /// Tells whether the set has this scope. `admin` includes the others, and `read` with `append` includes `consume`.
    #[must_use]
    pub fn has(self, scope: Scope) -> bool {
        self.admin
            || match scope {
                Scope::Read => self.read,
                Scope::Consume => self.consume || (self.read && self.append),
                Scope::Append => self.append,
                Scope::Admin => false,
            }
    }

    /// Lists the scopes of the set.
    #[must_use]
    pub fn list(self) -> Vec<Scope> {
        let all = [
            (self.read, Scope::Read),
            (self.consume, Scope::Consume),
            (self.append, Scope::Append),
            (self.admin, Scope::Admin),
        ];
        all.into_iter()
            .filter_map(|(has, scope)| has.then_some(scope))
            .collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<T: IntoIterator<Item = Scope>>(scopes: T) -> Self {
        let mut found = Self::default();
        for scope in scopes {
            match scope {
                Scope::Read => found.read = true,
                Scope::Consume => found.consume = true,
                Scope::Append => found.append = true,
                Scope::Admin => found.admin = true,
            }
        }
        found
    }
}

/// The request to make a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// The user whose rights limit those of the token.
    pub user: String,
    /// What the token is for, in the words of whoever makes it.
    pub label: String,
    /// What the token may be used for; at least one scope.
    pub scopes: Vec<Scope>,
    /// The token is limited to streams whose names begin with one of these. If the list is empty, it is good for all
    /// streams.
    pub prefixes: Vec<String>,
    /// The moment from which on the token is not valid; `None` if it does not expire.
    pub expires: Option<Timestamp>,
}

impl NewToken {
    /// Checks what can be checked without the store.
    ///
    /// # Errors
    /// `InvalidArgument` if a part of the request breaks a rule.
    pub fn validate(&self, now: Timestamp) -> Result<()> {
        names::check_user("user", &self.user)?;
        if self.scopes.is_empty() {
            return Err(Error::invalid(
                "scope",
                "must be read, append or admin, found none",
            ));
        }
        if self.prefixes.len() > PREFIXES_MAX {
            let rule = format!(
                "must be at most {PREFIXES_MAX}, found {}",
                self.prefixes.len()
            );
            return Err(Error::invalid("prefix", rule));
        }
        for prefix in &self.prefixes {
            gesta_core::StreamId::new(prefix.as_str()).map_err(|error| match error.kind() {
                gesta_core::ErrorKind::InvalidArgument { rule, .. } => {
                    Error::invalid("prefix", rule)
                }
                _ => error,
            })?;
        }
        if self.label.len() > LABEL_BYTES_MAX || self.label.chars().any(char::is_control) {
            let rule =
                format!("must be at most {LABEL_BYTES_MAX} bytes without control characters");
            return Err(Error::invalid("label", rule));
        }
        match self.expires {
            Some(expires) if expires <= now => Err(Error::invalid(
                "expires",
                format!("must be later than now, found {expires}"),
            )),
            _ => Ok(()),
        }
    }
}

/// The secret of a token, with the id of the token.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret {
    pub(crate) id: Uuid,
    bytes: [u8; SECRET_BYTES],
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret of token {}", self.id.simple())
    }
}

impl Secret {
    /// Makes a new secret. Its randomness comes from the operating system and is not injected, since nobody may be able
    /// to choose it.
    pub(crate) fn random() -> Self {
        Self {
            id: Uuid::new_v4(),
            bytes: rand::random(),
        }
    }

    /// Reads the text of a token; `None` if it has another form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(TEXT_PREFIX)?.split_once('_')?;
        if id.len() != 32
            || id
                .bytes()
                .any(|b| !b.is_ascii_hexdigit() || b.is_ascii_uppercase())
        {
            return None;
        }
        let id = Uuid::try_parse(id).ok()?;
        let bytes = URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?;
        Some(Self { id, bytes })
    }

    /// Returns the text, for the one time that it is shown to its owner.
    pub(crate) fn reveal(&self) -> String {
        let (id, secret) = (self.id.simple(), URL_SAFE_NO_PAD.encode(self.bytes));
        format!("{TEXT_PREFIX}{id}_{secret}")
    }

    /// Returns the hash, which is what the store keeps.
    pub(crate) fn hash(&self) -> Hash {
        Hash(Sha256::digest(self.bytes).into())
    }
}

/// The hash of a secret.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash([u8; 32]);

impl Hash {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok().map(Self)
    }

    pub(crate) fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Tells whether the two are the same, in constant time.
    pub(crate) fn is(&self, other: &Hash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written_and_never_shown() {
        let secret = Secret::random();
        let text = secret.reveal();
        let read = Secret::parse(&text).expect("readable");
        assert_eq!(read, secret);
        assert!(read.hash().is(&secret.hash()));
        assert!(!read.hash().is(&Secret::random().hash()));
        assert!(
            Hash::parse(&secret.hash().text())
                .expect("a hash")
                .is(&secret.hash())
        );
        let shown = format!("{secret:?}");
        assert!(
            !shown.contains(text.splitn(3, '_').nth(2).expect("a secret")),
            "{shown}"
        );
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let text = Secret::random().reveal();
        let upper = text.replacen(
            |c: char| c.is_ascii_lowercase() && c.is_ascii_hexdigit(),
            "A",
            60,
        );
        for bad in [
            "",
            "gesta_",
            "gesta__",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}A"),
            &format!("{text}="),
            &format!(" {text}"),
            &upper,
        ] {
            assert_eq!(Secret::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn admin_has_the_other_scopes() {
        let of = |scopes: &[Scope]| scopes.iter().copied().collect::<Scopes>();
        assert!(of(&[Scope::Admin]).has(Scope::Append));
        assert!(of(&[Scope::Read]).has(Scope::Read));
        assert!(!of(&[Scope::Read]).has(Scope::Append));
        assert!(!of(&[Scope::Read, Scope::Append]).has(Scope::Admin));
        assert!(!Scopes::default().has(Scope::Read));
    }
}
