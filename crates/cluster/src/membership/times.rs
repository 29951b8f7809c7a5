//! The times of the protocol: two are set, and the others follow from them.

use std::time::Duration;

/// The times that are set. These times must be equal in all nodes of a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The shortest time from one beat to the next. With more than 30 nodes the time is longer. This value is at least
    /// 10 ms.
    pub beat_min: Duration,
    /// The time for which no node may have come or gone before logs are moved for the sake of balance.
    pub settle: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            beat_min: Duration::from_millis(1_500),
            settle: Duration::from_secs(20),
        }
    }
}

/// The time that each further node adds to the time between beats, so that the database gets at most 20 beats a second.
const BEAT_PER_NODE: Duration = Duration::from_millis(50);
/// The number of times `settle` after which settling ends, even if nodes keep coming and going.
const SETTLE_MAX: u32 = 6;
/// *D* in beats: a node is dead when it has been silent for so many beats.
pub(crate) const SILENT: u32 = 4;
/// The number of beats for which a node must be silent if most others are silent with it. Nodes that are killed at once
/// are seen silent within a beat and its jitter; this leaves some time until ten seconds are over.
pub(crate) const SILENT_WITH_MOST: u32 = 5;
/// The number of beats for which a node must be silent if nobody listens at its address.
pub(crate) const SILENT_REFUSED: u32 = 2;
/// The number of looks that must have seen a node unchanged before it is declared dead.
pub(crate) const LOOKS_MIN: u32 = 3;
/// The step of waiting before a claim: the node of rank `k` among those that may claim a log waits `k` times this.
pub(crate) const RANK_STEP: Duration = Duration::from_millis(250);
/// The number of logs that a node hands over at once when it drains.
pub(crate) const HAND_OVERS_MAX: usize = 4;
/// The number of rounds without progress after which a log is given up as stuck.
pub(crate) const STUCK_ROUNDS: u32 = 2;

impl Config {
    /// Returns *B*: the time from one beat to the next, for so many live nodes. Real beats vary by a tenth.
    #[must_use]
    pub fn beat(&self, nodes: usize) -> Duration {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        self.beat_min.max(BEAT_PER_NODE.saturating_mul(nodes))
    }

    /// Returns *D* = 4 B: a node is dead when its beat has not changed for so long.
    #[must_use]
    pub fn dead(&self, nodes: usize) -> Duration {
        self.beat(nodes) * SILENT
    }

    /// Returns the longest time that settling takes.
    #[must_use]
    pub fn settle_max(&self) -> Duration {
        self.settle * SETTLE_MAX
    }
}
