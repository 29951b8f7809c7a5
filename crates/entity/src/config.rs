//! Bounds and times of a runtime.

use std::time::Duration;

/// Bounds and times of a runtime.
#[derive(Debug, Clone)]
pub struct Config {
    /// Tasks that own entities; each entity belongs to one. `0`: one per core.
    pub shards: usize,
    /// Most commands that may wait or be in flight, over all entities; beyond, they are refused as overloaded.
    /// Keep it below the events that the store's queue takes (100,000 by default), times the events of a command.
    pub commands_max: usize,
    /// Most commands of one entity that may wait or be in flight.
    pub entity_commands_max: usize,
    /// Most reads that may wait, over all entities. They have a bound of their own, so they go on when commands are
    /// refused.
    pub reads_max: usize,
    /// Entities kept in memory. Beyond, those used least leave; one with anything in flight stays.
    pub active_max: usize,
    /// An entity that was not used for this long leaves memory, up to a quarter of the time later.
    pub idle_after: Duration,
    /// Statements that load entities at once.
    pub loads_max: usize,
    /// Entities loaded by one statement (1 to 1,000).
    pub load_batch_max: usize,
    /// How long an idempotency key is remembered after its command was stored, unless its entity has more than the two
    /// bounds below allow: then the oldest are forgotten earlier, which [`Stats`](crate::Stats) tell.
    pub keys_kept_for: Duration,
    /// Idempotency keys that one entity remembers; at least `entity_commands_max`.
    pub entity_keys_max: usize,
    /// Bytes of keys and replies that one entity remembers, with 128 bytes for each of them. The last one is remembered
    /// in any case. Snapshots hold them too, so keep it well below 16 MiB.
    pub entity_key_bytes_max: usize,
    /// How often a command is decided, or a read looks, again because another process has changed the entity, before it
    /// is given up as unavailable.
    pub conflicts_max: u32,
    /// How long a command or a read may wait for the node that owns its stream, and for the answer of that node
    /// ([`Builder::peers`](crate::Builder::peers)).
    pub forward_within: Duration,
    /// Snapshots that may wait to be written; beyond, they are left out until the next is due.
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
