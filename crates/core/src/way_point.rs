//! The trace of commands: where the time of one goes, on one node or on two.
//!
//! Why not spans: a command passes tasks, shards, batches and nodes, and what is compared are moments, not nesting. A
//! moment is one of the clock of the machine ([`uptime`](crate::uptime)), so those of two nodes on one machine are
//! comparable. What a point costs if nobody traces is a look at one number.
//! Not here: who reads them (`gesta-lab cluster cinema --trace`).

/// Target of the events of the trace, at the level *trace*.
pub const WAY_POINTS: &str = "gesta_way";

/// Tells the trace that a command for the stream has come to a point of its way.
#[macro_export]
macro_rules! way_point {
    ($stream:expr, $point:literal) => {
        tracing::trace!(
            target: $crate::WAY_POINTS,
            at = %$crate::uptime().as_nanos(),
            stream = %$stream,
            $point
        )
    };
}
