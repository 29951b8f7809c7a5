//! Whether a node takes part in its cluster, and what it has done for the changes that came to it.
//!
//! Not here: whether its store can append (`gesta_store`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gesta_cluster::{Status, Stop, is_about_to_claim};
use gesta_core::durations::{DurationCounts, Durations};
use gesta_core::registry::{Look, NodeId};
use gesta_core::{Error, Result};
use gesta_link::{ForwardError, ForwarderStats, Reply, ReturnReason};
use tokio::time::Instant;

/// Checks that the node is registered and that its last look is younger than `dead_after`. The error says the reason if
/// this is not so.
///
/// A node that has not looked for so long does not know whether the others take it for dead: what it says about owners
/// is outdated.
pub(crate) fn check(status: &Status, me: Option<NodeId>, dead_after: Duration) -> Result<()> {
    let reason = match status.stopped {
        Some(stop) => why_stopped(stop),
        None => match status.look_age {
            None => "this node has not joined the cluster yet".to_owned(),
            Some(age) if age >= dead_after => {
                let trouble = status.trouble.as_deref().unwrap_or("it does not answer");
                let age = age.as_secs_f64();
                format!("this node has not seen the registry of nodes for {age:.1} s: {trouble}")
            }
            Some(_) if me.is_none() => {
                "this node is not registered in the cluster: it joins again".to_owned()
            }
            Some(_) => return Ok(()),
        },
    };
    Err(Error::unavailable(reason))
}

/// The time since joining after which a node is ready without the logs that it is about to take.
const FIRST_LOGS_WITHIN: Duration = Duration::from_secs(10);

/// Refuses a node that has just joined while it is about to take logs that nobody has: they are served slowly until
/// then. Logs that others have and will give it later are no reason to wait.
pub(crate) fn check_first_logs(
    look: Option<&Look>,
    me: Option<NodeId>,
    joined: Duration,
) -> Result<()> {
    let (Some(look), Some(me)) = (look, me) else {
        return Ok(());
    };
    if joined >= FIRST_LOGS_WITHIN || !is_about_to_claim(look, me) {
        return Ok(());
    }
    let text = "this node is about to take over logs that no node has";
    Err(Error::unavailable(text))
}

/// Returns why a node no longer takes part.
pub(crate) fn why_stopped(stop: Stop) -> String {
    match stop {
        Stop::Left => "this node has left the cluster".to_owned(),
        Stop::Replaced => {
            "another process has joined the cluster with the address of this node".to_owned()
        }
        Stop::Unreadable(version) => {
            format!("this build cannot take part in version {version} of the cluster")
        }
        Stop::Failed => {
            "the membership of this node has failed: it must be started again".to_owned()
        }
    }
}

/// Why a process whose node is at this address must end when its membership has ended so; `None` if it has ended
/// because the process does.
pub(crate) fn reason_to_end(stop: Stop, address: &str) -> Option<String> {
    match stop {
        Stop::Left => None,
        Stop::Replaced => Some(format!(
            "another process is the node at {address} of this cluster now, so this one has stopped: \
             each node needs an address of its own"
        )),
        Stop::Unreadable(version) => Some(format!(
            "the cluster is at version {version} now, in which this build cannot take part, so the node at {address} has \
             stopped: start it with a newer build"
        )),
        Stop::Failed => Some(format!(
            "the membership of the node at {address} has failed, so this process has stopped: \
             start it again, and report the error above"
        )),
    }
}

/// The names of the ways in which forwarded calls end.
const RESULTS: [&str; 9] = [
    "answered",
    "overloaded",
    "too_large",
    "owned_here",
    "unreachable",
    "silent",
    "no_owner",
    "late",
    "closed",
];

/// What a node has done since it was started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeStats {
    /// The calls that were forwarded to owners, changes and calls of services, by how they ended. Calls are `answered`
    /// whatever the owner has said; otherwise they came back.
    pub forwarded: Vec<(&'static str, u64)>,
    /// The changes that were appended here although the log is another node's or nobody's, because its owner could not
    /// be reached.
    pub direct: u64,
    /// The changes that came to this node and were made here at once, because this node owned their log.
    pub made_here: u64,
    /// The changes that came to this node and were to be forwarded. Those whose callers gave up meanwhile are not among
    /// [`forwarded`](Self::forwarded).
    pub made_elsewhere: u64,
    /// How long forwarded calls took until they were answered or came back.
    pub forwarding: DurationCounts,
    /// What has hindered forwarded calls.
    pub hindered: ForwarderStats,
}

/// The counts behind [`NodeStats`].
#[derive(Debug, Default)]
pub(crate) struct Counts {
    forwarded: [AtomicU64; RESULTS.len()],
    direct: AtomicU64,
    made_here: AtomicU64,
    made_elsewhere: AtomicU64,
    forwarding: Durations,
}

impl Counts {
    /// Counts a call that was forwarded at `begun` and has ended.
    pub(crate) fn forwarded(
        &self,
        begun: Instant,
        outcome: &std::result::Result<Reply, ForwardError>,
    ) {
        self.forwarding.add(begun.elapsed());
        let place = match outcome {
            Ok(_) => 0,
            Err(ForwardError::Overloaded) => 1,
            Err(ForwardError::TooLarge) => 2,
            Err(ForwardError::Returned { reason, .. }) => match reason {
                ReturnReason::Local => 3,
                ReturnReason::Unreachable => 4,
                ReturnReason::Silent => 5,
                ReturnReason::NoOwner => 6,
                ReturnReason::DeadlineOver => 7,
                _ => 8,
            },
        };
        self.forwarded[place].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn direct(&self) {
        self.direct.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a change that has come to this node. `is_mine` says whether this node owns its log.
    pub(crate) fn change(&self, is_mine: bool) {
        let count = match is_mine {
            true => &self.made_here,
            false => &self.made_elsewhere,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts, with those of the forwarder.
    pub(crate) fn read(&self, hindered: ForwarderStats) -> NodeStats {
        let counts = self.forwarded.iter();
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        NodeStats {
            forwarded: RESULTS.into_iter().zip(counts).collect(),
            direct: self.direct.load(Ordering::Relaxed),
            made_here: self.made_here.load(Ordering::Relaxed),
            made_elsewhere: self.made_elsewhere.load(Ordering::Relaxed),
            forwarding: self.forwarding.read(),
            hindered,
        }
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::registry::{
        Claim, ClusterVersion, Generation, Join, NodeInfo, NodeState, Registry, Tenure,
    };
    use gesta_kit::registry::MemoryRegistry;

    use super::*;

    const DEAD_AFTER: Duration = Duration::from_secs(6);

    fn refusal(status: &Status, me: Option<NodeId>) -> String {
        check(status, me, DEAD_AFTER)
            .expect_err("not ready")
            .to_string()
    }

    /// Goal: a node is ready only while it is registered and sees the registry, and says what is missing.
    #[test]
    fn a_node_is_ready_while_it_is_registered_and_looks() {
        let me = Some(NodeId(1));
        let looked = |seconds| Status {
            look_age: Some(Duration::from_secs(seconds)),
            ..Status::default()
        };
        assert!(check(&looked(5), me, DEAD_AFTER).is_ok());
        assert!(refusal(&looked(5), None).contains("joins again"));
        assert!(refusal(&Status::default(), None).contains("not joined"));
        let away = Status {
            trouble: Some("the database is away".to_owned()),
            ..looked(6)
        };
        let said = refusal(&away, me);
        assert!(
            said.contains("for 6.0 s") && said.contains("is away"),
            "{said}"
        );
        for (stop, text) in [
            (Stop::Left, "has left"),
            (Stop::Replaced, "another process"),
            (
                Stop::Unreadable(ClusterVersion(2)),
                "version 2 of the cluster",
            ),
            (Stop::Failed, "has failed"),
        ] {
            let stopped = Status {
                stopped: Some(stop),
                ..looked(0)
            };
            assert!(refusal(&stopped, me).contains(text));
        }
    }

    /// Goal: who starts a cluster is ready once it has its logs, or after ten seconds; who joins one whose logs all
    /// have owners is ready at once.
    #[tokio::test]
    async fn a_node_is_ready_when_it_has_its_first_logs() {
        let registry = MemoryRegistry::new(4);
        let join = |number: u32| Join {
            info: NodeInfo {
                address: format!("node-{number}:1").into(),
                weight: 100,
                build: "1".into(),
                protocol_min: 1,
                protocol_max: 1,
            },
            generation: Generation(number.into()),
            beat: 1,
        };
        let me = registry.join(&join(1)).await.expect("joined");
        let check = |me, seconds| {
            let look = registry.tables().look();
            check_first_logs(Some(&look), Some(me), Duration::from_secs(seconds))
        };
        let refused = check(me, 0).expect_err("it has none");
        assert!(refused.to_string().contains("about to take"), "{refused}");
        assert!(check(me, 10).is_ok());
        for lease in registry.tables().look().leases {
            let tenure = Tenure {
                log: lease.log,
                owner: me,
                generation: Generation(1),
                epoch: lease.epoch.next(),
            };
            let seen = lease.epoch;
            registry
                .claim(&[Claim { seen, tenure }])
                .await
                .expect("claimed");
        }
        assert!(check(me, 0).is_ok());
        let second = registry.join(&join(2)).await.expect("joined");
        assert!(check(second, 0).is_ok(), "all logs have an owner");
        let left = registry.set_state(me, Generation(1), NodeState::Left).await;
        assert!(left.expect("left"));
        assert!(check(second, 0).is_err(), "it is about to claim all");
    }

    /// What happened: a server whose membership had failed went on, owned no log and was never ready again.
    #[test]
    fn a_process_ends_when_its_membership_has_ended_by_itself() {
        assert_eq!(reason_to_end(Stop::Left, "host:7"), None);
        for (stop, says) in [
            (Stop::Replaced, "another process"),
            (Stop::Unreadable(ClusterVersion(2)), "a newer build"),
            (Stop::Failed, "has failed"),
        ] {
            let text = reason_to_end(stop, "host:7").expect("ends");
            assert!(text.contains(says) && text.contains("host:7"), "{text}");
        }
    }

    #[test]
    fn each_end_of_a_forwarded_call_is_counted_by_its_name() {
        let counts = Counts::default();
        let returned = |reason| {
            Err(ForwardError::Returned {
                reason,
                was_written: false,
            })
        };
        let begun = Instant::now();
        counts.forwarded(begun, &returned(ReturnReason::NoOwner));
        counts.forwarded(begun, &returned(ReturnReason::NoOwner));
        counts.forwarded(begun, &Err(ForwardError::TooLarge));
        counts.direct();
        for is_mine in [true, true, false] {
            counts.change(is_mine);
        }
        let stats = counts.read(ForwarderStats::default());
        assert_eq!(stats.forwarding.count(), 3);
        assert_eq!((stats.made_here, stats.made_elsewhere), (2, 1));
        let some: Vec<_> = stats
            .forwarded
            .iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(some, [&("too_large", 1), &("no_owner", 2)]);
        assert_eq!(stats.direct, 1);
    }
}
