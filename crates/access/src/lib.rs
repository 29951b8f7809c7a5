//! Users, tokens and rights: who calls, and what they may do with which stream.
//!
//! Why in the store itself: every node sees the same accounts, a backup has them, and a change of rights travels like
//! any other event. Accounts are events of reserved streams (`$user-…`, `$token-…`, `$settings`, `$access`), rights of
//! a stream are the `$acl` of its metadata.
//! Why a wrapper of the store ([`Guarded`]): whatever serves a store, HTTP or another protocol, asks the same place,
//! and no call can forget to ask.
//! Invariants: until the accounts are known nothing is allowed, and nothing once they have not been followed for
//! [`CONTACT_MAX`]; account streams are written and read by administrators with the scope `admin` alone; a decision
//! looks at the accounts of this moment, never at those of when a caller came.
//! Not here: HTTP, connections, TLS; what a command asks and prints.

mod access;
mod accounts;
mod acl;
mod acls;
mod audit;
mod comparisons;
mod config;
#[doc(hidden)]
pub mod core;
mod credentials;
mod directory;
mod follow;
mod guard;
mod guessing;
mod logins;
mod names;
mod password;
mod record;
mod rights;
mod shared;
mod token;
mod usage;

pub use access::Access;
pub use accounts::{Accounts, AddUser, FirstUser, ShownToken, ShownUser};
pub use config::{Config, Mode};
pub use directory::{CONTACT_MAX, check_account_event, holds_accounts};
pub use guard::{FOR_OPERATORS, Guarded};
pub use password::{PASSWORD_BYTES_MAX, PASSWORD_BYTES_MIN, check_password};
pub use rights::{Operation, OwnedOperation};
pub use shared::Caller;
pub use token::{NewToken, Scope, Scopes};
