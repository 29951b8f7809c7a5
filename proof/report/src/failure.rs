//! What ends a command of the lab or of chaos: a sentence for the person who ran it.

/// A sentence, with the causes behind it.
#[derive(Debug)]
pub struct Failure(pub String);

/// Result with a [`Failure`].
pub type Result<T> = std::result::Result<T, Failure>;

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Anything that is an error becomes its text and those of its causes.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        Self(text)
    }
}

/// Fails with a sentence.
pub fn fail<T>(sentence: impl Into<String>) -> Result<T> {
    Err(Failure(sentence.into()))
}

/// Does something with a database of `gesta_rig`, which blocks.
pub fn blocking<T>(what: impl FnOnce() -> gesta_rig::Result<T>) -> Result<T> {
    tokio::task::block_in_place(what).map_err(|error| Failure(error.to_string()))
}

/// Adds what was being tried.
pub trait Context<T> {
    /// Puts `what` before the sentence.
    fn context(self, what: impl std::fmt::Display) -> Result<T>;
}

impl<T, E: Into<Failure>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl std::fmt::Display) -> Result<T> {
        self.map_err(|error| Failure(format!("{what}: {}", error.into())))
    }
}
