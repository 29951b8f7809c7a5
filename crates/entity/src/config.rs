//! The bounds and times of a runtime.

use std::time::Duration;

/// The bounds and times of a runtime.
#[derive(Debug, Clone)]
pub struct Config {
    /// The number of tasks that own entities; each entity belongs to one of them. With `0` there is one task per core.
    pub shards: usize,
    /// The greatest number of commands that may wait or be in flight, over all entities. Beyond it commands are refused
    /// as overloaded. The number of events that these commands have should stay below the number that the store's queue
    /// takes (100,000 by default).
    pub commands_max: usize,
    /// The greatest number of commands of one entity that may wait or be in flight.
    pub entity_commands_max: usize,
    /// The greatest number of reads that may wait, over all entities. Reads have a bound of their own, so they go on
    /// when commands are refused.
    pub reads_max: usize,
    /// The greatest number of entities that are kept in memory. Beyond it those that are used least leave memory; an
    /// entity with anything in flight stays.
    pub active_max: usize,
    /// The time without use after which an entity leaves memory. An entity may leave up to a quarter of this time
    /// later.
    pub idle_after: Duration,
    /// The number of statements that load entities at once.
    pub loads_max: usize,
    /// The number of entities that one statement loads (1 to 1,000).
    pub load_batch_max: usize,
    /// How long an idempotency key is remembered after its command was stored. If the entity has more keys than the two
    /// bounds below allow, the oldest are forgotten earlier, which [`Stats`](crate::Stats) shows.
    pub keys_kept_for: Duration,
    /// The number of idempotency keys that one entity remembers. The number is at least `entity_commands_max`.
    pub entity_keys_max: usize,
    /// The number of bytes of keys and replies that one entity remembers, with 128 bytes more for each of them. The
    /// last one is remembered in any case. Snapshots hold them too, so this should stay well below 16 MiB.
    pub entity_key_bytes_max: usize,
    /// How often a command is decided again, or a read looks again, because another process has changed the entity.
    /// After that it is given up as unavailable.
    pub conflicts_max: u32,
    /// How long a command or a read may wait for the node that owns its stream, and for the answer of that node
    /// ([`Builder::peers`](crate::Builder::peers)).
    pub forward_within: Duration,
    /// The greatest number of snapshots that may wait to be written. Beyond it a snapshot is left out until the next is
    /// due.
    pub snapshots_waiting_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shards: 0,
            commands_max: 10_000,
            entity_commands_max: 1_000,
            reads_max: 10_000,
            active_max: 1_000_000,
            idle_after: Duration::from_secs(600),
            loads_max: 2,
            load_batch_max: 256,
            keys_kept_for: Duration::from_secs(24 * 3_600),
            entity_keys_max: 10_000,
            entity_key_bytes_max: 2 * 1024 * 1024,
            conflicts_max: 100,
            forward_within: Duration::from_secs(10),
            snapshots_waiting_max: 1_000,
        }
    }
}
