//! Whether a password is the right one: known from before, or compared now.
//!
//! Why they are remembered: programs show the same password with each call, the right one or an old one. Invariant:
//! what is remembered is a keyed hash of user, password and the hash that it was compared with; so a new password of
//! the user is compared, and nobody outside of this process can tell which passwords were shown. Not here: which user
//! it is (`shared`), in which order passwords are compared (`comparisons`).

use std::net::IpAddr;
use std::sync::Arc;

use gesta_core::{Error, ErrorKind, Result};
use quick_cache::sync::Cache;
use sha2::{Digest, Sha256};

use crate::comparisons::{Comparisons, Full, Key};
use crate::guessing::Asker;
use crate::password::{Hashed, Password};

/// The most passwords that are remembered as right, and the most that are remembered as wrong. They need not be
/// compared again.
const REMEMBERED_MAX: usize = 10_000;

/// Tells right passwords from wrong ones.
pub(crate) struct Logins {
    comparisons: Arc<Comparisons>,
    verified: Cache<Key, ()>,
    /// The passwords that were found wrong. They are apart from the others, so that a guesser does not make anybody's
    /// password be compared again. Programs with an old password repeat it for ever.
    refused: Cache<Key, ()>,
    /// Keeps what is remembered, and the classes of names, from everybody outside of this process.
    key: [u8; 32],
    nobody: Hashed,
}

impl Logins {
    /// Begins with nothing known. So many passwords are compared at once.
    pub(crate) fn new(comparisons_max: usize) -> Self {
        Self {
            comparisons: Comparisons::new(comparisons_max),
            verified: Cache::new(REMEMBERED_MAX),
            refused: Cache::new(REMEMBERED_MAX),
            key: rand::random(),
            nobody: Hashed::of_nobody(),
        }
    }

    /// Returns the hash that stands for that of a user who does not exist: comparing takes as long.
    pub(crate) fn nobody(&self) -> Hashed {
        self.nobody.clone()
    }

    /// Tells whether a password that comes from this address is that of a hash, which is that of the user of this name.
    ///
    /// # Errors
    /// `Overloaded` if too many passwords are being compared.
    pub(crate) async fn is_right(
        &self,
        name: &str,
        password: Password,
        hash: Hashed,
        from: IpAddr,
    ) -> Result<bool> {
        let key = self.key_of(name, &password, &hash);
        if self.verified.get(&key).is_some() {
            return Ok(true);
        }
        if self.refused.get(&key).is_some() {
            return Ok(false);
        }
        let asker = Asker {
            from,
            names: self.class_of(name),
        };
        let compared = self.comparisons.compare(asker, key, password, hash).await;
        let is_right = compared.map_err(|Full| {
            Error::new(ErrorKind::Overloaded(
                "too many passwords are being compared: try again, or use a token".into(),
            ))
        })?;
        // This includes the password of a disabled user, since each call checks whether the user is disabled.
        let known = if is_right {
            &self.verified
        } else {
            &self.refused
        };
        known.insert(key, ());
        Ok(is_right)
    }

    /// Counts the passwords that need not be compared again.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.verified.len() + self.refused.len()
    }

    /// Sorts a name into a class: see [`Asker`].
    fn class_of(&self, name: &str) -> u8 {
        let digest = Sha256::new_with_prefix(self.key)
            .chain_update(name)
            .finalize();
        digest[0]
    }

    /// Makes a key that stands for a user, a password and the hash that it was compared with. Nobody outside this
    /// process can tell these from the key.
    fn key_of(&self, name: &str, password: &Password, hash: &Hashed) -> Key {
        let mut key = Sha256::new_with_prefix(self.key);
        for part in [name, &password.0, hash.text()] {
            key.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            key.update(part);
        }
        key.finalize().into()
    }
}
