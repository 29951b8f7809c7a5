//! What a runtime has done since it was started, in counters that only grow, and a few gauges.

use std::sync::atomic::{AtomicU64, Ordering};

/// The name of a number, what the number means, and its value.
pub type Stat = (&'static str, &'static str, u64);

macro_rules! stats {
    (counters: $(#[doc = $help:literal] $counter:ident,)* gauges: $(#[doc = $meaning:literal] $gauge:ident,)*) => {
        /// What a runtime has done since it was started, and what it holds now.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Stats {
            $(#[doc = $help] pub $counter: u64,)*
            $(#[doc = $meaning] pub $gauge: u64,)*
        }

        impl Stats {
            /// Returns what was done since the start: these numbers only grow.
            pub fn counters(&self) -> impl Iterator<Item = Stat> {
                [$((stringify!($counter), help($help), self.$counter),)*].into_iter()
            }

            /// Returns what is held now.
            pub fn gauges(&self) -> impl Iterator<Item = Stat> {
                [$((stringify!($gauge), help($meaning), self.$gauge),)*].into_iter()
            }
        }

        /// The numbers of [`Stats`] while they are counted.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $counter: Counter,)*
            $(pub(crate) $gauge: Counter,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats {
                    $($counter: self.$counter.get(),)*
                    $($gauge: self.$gauge.get(),)*
                }
            }
        }
    };
}

/// Returns a doc comment without the blank before it and its full stop.
fn help(doc: &'static str) -> &'static str {
    doc.trim().trim_end_matches('.')
}

stats! {
    counters:
    /// Commands that were accepted and whose events are durable.
    commands,
    /// Commands rejected by their entity.
    rejected,
    /// Commands and reads refused because a bound was reached.
    overloaded,
    /// Commands that failed otherwise: no answer of the database, unknown outcome, or entity not loadable.
    failed,
    /// Commands answered from a remembered idempotency key.
    repeated,
    /// Commands refused because their idempotency key was used for another command.
    keys_reused,
    /// Idempotency keys forgotten before their time, because their entity had too many.
    keys_forgotten_early,
    /// Idempotency keys left out of snapshots that would have been too large: a restart forgets them.
    keys_left_out,
    /// Reads answered.
    reads,
    /// Questions to the store whether an entity is up to date.
    confirmations,
    /// Decisions made again because another process had changed the entity, or an append had failed.
    decided_again,
    /// Times an entity was forgotten and loaded again, because its state had become unusable.
    reloads,
    /// Entities loaded.
    loads,
    /// Events read to load entities.
    loaded_events,
    /// Loads that failed.
    loads_failed,
    /// Entities that left memory because nobody used them.
    passivated_idle,
    /// Entities that left memory for others.
    passivated_for_room,
    /// Entities that left memory because another node owns their stream.
    passivated_moved,
    /// Commands and reads sent to the node that owns their stream, each time that they were sent.
    forwarded,
    /// Commands and reads that other nodes have forwarded to this one.
    from_nodes,
    /// Snapshots written.
    snapshots_written,
    /// Snapshots that were not written, because too many waited or the store failed.
    snapshots_left_out,
    /// Snapshots that could not be used: they have another version, cannot be read, or are of another history.
    snapshots_ignored,
    gauges:
    /// Entities in memory now.
    active,
    /// Entities being loaded now.
    loading,
    /// Idempotency keys remembered now.
    keys,
    /// Bytes that the remembered idempotency keys are counted for: key, reply and 128 bytes each.
    key_bytes,
    /// Commands that wait or are in flight now.
    commands_waiting,
    /// Reads that wait now.
    reads_waiting,
}

/// A single number that is counted.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
