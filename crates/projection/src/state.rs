//! The states of a projection, as they are stored.

use std::fmt;
use std::str::FromStr;

/// Whether a projection applies events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Whoever owns it applies events.
    Running,
    /// Somebody has paused it.
    Paused,
    /// It cannot go on: an event that it cannot apply, or a store that was restored. The reason is stored with it.
    Stopped,
}

/// What a version of a projection is to readers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It is being built beside the active version; nobody reads it.
    Building,
    /// Readers see this one.
    Active,
    /// It was active before; it is still fed, so that readers can be switched back.
    Previous,
    /// Its rows are gone.
    Retired,
}

/// A word that is not one of those that are stored.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no state of a projection")]
pub struct UnknownWord(String);

macro_rules! words {
    ($type:ident: $($variant:ident $word:literal),+) => {
        impl $type {
            /// Returns the word that is stored and shown.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = UnknownWord;

            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                match word {
                    $($word => Ok($type::$variant),)+
                    other => Err(UnknownWord(other.to_owned())),
                }
            }
        }
    };
}

words!(State: Running "running", Paused "paused", Stopped "stopped");
words!(Life: Building "building", Active "active", Previous "previous", Retired "retired");
