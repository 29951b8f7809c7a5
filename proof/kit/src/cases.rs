//! The cases, by theme. Each is a small function with one goal, which makes its own store.

pub mod append;
pub mod capabilities;
pub mod expected;
pub mod filters;
pub mod lifecycle;
pub mod limits;
pub mod list;
pub mod loads;
pub mod logs;
pub mod metadata;
pub mod names;
pub mod no_match;
pub mod payloads;
pub mod racing;
pub mod read_all;
pub mod read_stream;
pub mod reopen;
pub mod retries;
pub mod several_streams;
pub mod shared;
pub mod submissions;
pub mod subscribe;
pub mod subscribe_stream;
pub mod virtual_streams;
