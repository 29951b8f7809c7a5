//! Beginnings of the names of streams in which Gesta itself keeps something.
//!
//! Why here: what such a stream holds comes from other streams, so who may read it is decided by the rights of those
//! (`gesta-access`), which must know the names that other crates make.

/// Text before the name of a stream, in the name of the stream of the snapshots of its entity.
pub const SNAPSHOT_PREFIX: &str = "$snapshot-";
/// Text with which the name of the stream of a group's configuration starts. `SOURCE::GROUP` follows.
pub const GROUP_CONFIGURATION_PREFIX: &str = "$persistentsubscriptionconfig-";
/// Text with which the names of the streams of a group's checkpoints and parked events start. `SOURCE::GROUP` follows.
pub const GROUP_STATE_PREFIX: &str = "$persistentsubscription-";
/// Text between the source and the name of a group, which does not contain it.
pub const GROUP_SEPARATOR: &str = "::";
/// Text with which the names of the streams of timers start, unless the program says another.
pub const TIMERS_PREFIX: &str = "$timers-";
/// Text with which the name of the stream of an effect's state starts.
pub const EFFECT_PREFIX: &str = "$effect-";
/// Text with which the name of the stream of an import's checkpoints starts.
pub const IMPORT_PREFIX: &str = "$import-";
