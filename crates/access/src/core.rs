//! What only fuzzing uses: what reads the words of strangers and of other versions. No secret comes out of it.

use crate::acl::{Acl, Defaults};
use crate::credentials::{self, Shown};

/// What a caller shows in `Authorization`.
#[derive(Debug, PartialEq, Eq)]
pub enum Proof {
    /// There is no such header.
    Nothing,
    /// A user, and a password of so many bytes.
    Login(String, usize),
    /// A token, and whether its text is read back as the same.
    Token(bool),
}

/// Reads the values of all `Authorization` headers of a call.
///
/// # Errors
/// The rule that is broken.
pub fn proof(values: &[&[u8]]) -> Result<Proof, &'static str> {
    Ok(match credentials::read(values.iter().copied())? {
        Shown::Nothing => Proof::Nothing,
        Shown::Login { user, password } => Proof::Login(user, password.0.len()),
        Shown::Token(secret) => {
            let text = format!("Bearer {}", secret.reveal());
            let again = credentials::read([text.as_bytes()]);
            Proof::Token(again == Ok(Shown::Token(secret)))
        }
    })
}

/// Reads the rights in the metadata of a stream. Returns the memory that they take, in bytes; `None` if there are none.
///
/// # Errors
/// The field and the rule that it breaks.
pub fn rights(json: &[u8]) -> Result<Option<usize>, (String, String)> {
    let read = Acl::of_metadata(json).map_err(|odd| (odd.field, odd.rule))?;
    Ok(read.map(|acl| acl.cost_bytes()))
}

/// Reads the default rights of streams.
///
/// # Errors
/// The field and the rule that it breaks.
pub fn default_rights(json: &[u8]) -> Result<(), (String, String)> {
    Defaults::read(json)
        .map(drop)
        .map_err(|odd| (odd.field, odd.rule))
}
