//! A registry in memory, the simplest correct one, with the faults that a real one has.
//!
//! Invariants: those of [`Registry`]; each statement reads only the row that it changes. `Tables` are the rows and what
//! the statements do; [`MemoryRegistry`] serves them to several nodes of one process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use gesta_core::registry::{
    Beat, Claim, ClusterVersion, Generation, HandOver, Join, LeaseEpoch, LeaseRow, Look, MOVES_MAX,
    Move, MoveReason, NodeId, NodeRow, NodeState, Registry, Suspect, Tenure, UNREACHABLE_MAX,
};
use gesta_core::{Error, Incarnation, LogId, Result, Timestamp};

/// The rows of a registry.
#[derive(Clone, Debug)]
pub struct Tables {
    nodes: Vec<NodeRow>,
    leases: Vec<LeaseRow>,
    moves: Vec<Move>,
    last_id: u32,
    incarnation: Incarnation,
    version: ClusterVersion,
    /// The time that the database's clock shows.
    pub now: Timestamp,
}

impl Tables {
    /// Makes the registry of a new store with `logs` logs.
    #[must_use]
    pub fn new(logs: u16, incarnation: Incarnation) -> Self {
        let lease = |log| LeaseRow {
            log: LogId(log),
            owner: None,
            generation: Generation::NONE,
            epoch: LeaseEpoch(0),
            next_owner: None,
            pinned: None,
            frozen: false,
            since: Timestamp::default(),
        };
        Self {
            nodes: Vec::new(),
            leases: (0..logs).map(lease).collect(),
            moves: Vec::new(),
            last_id: 0,
            incarnation,
            version: ClusterVersion::FIRST,
            now: Timestamp::default(),
        }
    }

    /// Returns the rows, as a look finds them.
    #[must_use]
    pub fn look(&self) -> Look {
        let is_live = |node: &&NodeRow| node.state != NodeState::Left;
        Look {
            is_registered: false,
            incarnation: self.incarnation,
            version: self.version,
            nodes: self.nodes.iter().filter(is_live).cloned().collect(),
            leases: self.leases.clone(),
        }
    }

    /// Does [`Registry::join`].
    pub fn join(&mut self, join: &Join) -> NodeId {
        let known = self
            .nodes
            .iter_mut()
            .find(|node| node.info.address == join.info.address);
        let id = known
            .as_ref()
            .map_or(NodeId(self.last_id + 1), |node| node.id);
        let held = known.as_ref().is_some_and(|node| node.held);
        let row = NodeRow {
            id,
            info: join.info.clone(),
            generation: join.generation,
            beat: join.beat,
            state: match held {
                true => NodeState::Draining,
                false => NodeState::Up,
            },
            held,
            unreachable: Vec::new(),
            started: self.now,
            beat_at: self.now,
        };
        if let Some(known) = known {
            *known = row;
        } else {
            self.last_id += 1;
            self.nodes.push(row);
        }
        id
    }

    /// Does [`Registry::beat`].
    pub fn beat(&mut self, beat: &Beat) -> Look {
        let now = self.now;
        let me = self.node(beat.node, beat.generation);
        let is_registered = me.is_some();
        if let Some(me) = me {
            me.beat = beat.beat;
            me.beat_at = now;
            me.unreachable.clone_from(&beat.unreachable);
        }
        Look {
            is_registered,
            ..self.look()
        }
    }

    /// Does [`Registry::set_state`].
    pub fn set_state(&mut self, node: NodeId, generation: Generation, state: NodeState) -> bool {
        let Some(row) = self.node(node, generation) else {
            return false;
        };
        row.state = state;
        if state == NodeState::Left {
            row.generation = Generation::NONE;
        }
        true
    }

    /// Does [`Registry::declare_dead`].
    pub fn declare_dead(&mut self, suspect: Suspect) -> bool {
        let row = self.node(suspect.node, suspect.generation);
        if row.is_none_or(|row| row.beat != suspect.beat) {
            return false;
        }
        self.set_state(suspect.node, suspect.generation, NodeState::Left)
    }

    /// Does [`Registry::claim`].
    pub fn claim(&mut self, claims: &[Claim]) -> Vec<LogId> {
        let mut got = Vec::new();
        for Claim { seen, tenure } in claims {
            let lease = self.lease(tenure.log).filter(|lease| lease.epoch == *seen);
            if let Some(lease) = lease {
                let from = lease.owner;
                (lease.owner, lease.generation) = (Some(tenure.owner), tenure.generation);
                (lease.epoch, lease.next_owner) = (tenure.epoch, None);
                self.record(tenure.log, from, MoveReason::Claim);
                got.push(tenure.log);
            }
        }
        got
    }

    /// Does [`Registry::set_next_owner`].
    pub fn set_next_owner(&mut self, log: LogId, epoch: LeaseEpoch, to: Option<NodeId>) -> bool {
        let lease = self.lease(log).filter(|lease| lease.epoch == epoch);
        lease.map(|lease| lease.next_owner = to).is_some()
    }

    /// Does [`Registry::hand_over`].
    pub fn hand_over(&mut self, hand_over: HandOver) -> bool {
        let Some(lease) = self.tenure(hand_over.from) else {
            return false;
        };
        (lease.owner, lease.generation) = (Some(hand_over.to), hand_over.to_generation);
        (lease.epoch, lease.next_owner) = (lease.epoch.next(), None);
        self.record(
            hand_over.from.log,
            Some(hand_over.from.owner),
            hand_over.reason,
        );
        true
    }

    /// Does [`Registry::release`].
    pub fn release(&mut self, tenure: Tenure) -> bool {
        let Some(lease) = self.tenure(tenure) else {
            return false;
        };
        (lease.owner, lease.generation) = (None, Generation::NONE);
        (lease.epoch, lease.next_owner) = (lease.epoch.next(), None);
        self.record(tenure.log, Some(tenure.owner), MoveReason::Stuck);
        true
    }

    /// Does [`Registry::pin`].
    pub fn pin(&mut self, log: LogId, to: Option<NodeId>) {
        if let Some(lease) = self.lease(log) {
            lease.pinned = to;
        }
    }

    /// Does [`Registry::freeze`].
    pub fn freeze(&mut self, frozen: bool) {
        for lease in &mut self.leases {
            lease.frozen = frozen;
        }
    }

    /// Does [`Registry::hold`].
    pub fn hold(&mut self, address: &str, held: bool) -> bool {
        let mut nodes = self.nodes.iter_mut();
        let node = nodes.find(|node| *node.info.address == *address);
        node.map(|node| node.held = held).is_some()
    }

    /// Does [`Registry::finalize`].
    pub fn finalize(&mut self, from: ClusterVersion, to: ClusterVersion) -> bool {
        let mut live = self
            .nodes
            .iter()
            .filter(|node| node.state != NodeState::Left);
        let is_done = self.version == from && to > from && live.all(|node| node.info.reads(to));
        if is_done {
            self.version = to;
        }
        is_done
    }

    /// Fails over to an earlier state: what was written since is lost.
    pub fn fail_over(&mut self, before: &Tables, incarnation: Incarnation) {
        let now = self.now;
        *self = Tables {
            incarnation,
            now,
            ..before.clone()
        };
    }

    fn node(&mut self, id: NodeId, generation: Generation) -> Option<&mut NodeRow> {
        let mut nodes = self.nodes.iter_mut();
        nodes.find(|node| {
            node.id == id && node.generation == generation && node.state != NodeState::Left
        })
    }

    fn lease(&mut self, log: LogId) -> Option<&mut LeaseRow> {
        self.leases.get_mut(usize::from(log.0))
    }

    fn tenure(&mut self, tenure: Tenure) -> Option<&mut LeaseRow> {
        self.lease(tenure.log).filter(|lease| {
            lease.owner == Some(tenure.owner)
                && lease.generation == tenure.generation
                && lease.epoch == tenure.epoch
        })
    }

    fn record(&mut self, log: LogId, from: Option<NodeId>, reason: MoveReason) {
        let at = self.now;
        if let Some(lease) = self.lease(log) {
            lease.since = at;
            let moved = Move {
                log,
                from,
                to: lease.owner,
                epoch: lease.epoch,
                reason,
                at,
            };
            self.moves.insert(0, moved);
            self.moves.truncate(MOVES_MAX);
        }
    }

    /// Returns the moves of leases, newest first.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }
}

#[derive(Debug)]
struct State {
    tables: Tables,
    is_down: bool,
}

/// A registry that several nodes of a process share: each node has a clone of it.
#[derive(Clone, Debug)]
pub struct MemoryRegistry {
    state: Arc<Mutex<State>>,
}

impl MemoryRegistry {
    /// Makes the registry of a new store with `logs` logs.
    #[must_use]
    pub fn new(logs: u16) -> Self {
        let state = State {
            tables: Tables::new(logs, Incarnation::random()),
            is_down: false,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Returns a copy of the rows.
    #[must_use]
    pub fn tables(&self) -> Tables {
        self.state().tables.clone()
    }

    /// Sets whether the database does not answer any node.
    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// Sets the version of the cluster, as somebody does who has overlooked a node that cannot read it.
    pub fn set_version(&self, version: ClusterVersion) {
        self.state().tables.version = version;
    }

    /// Fails over to an earlier state.
    pub fn fail_over(&self, before: &Tables) {
        self.state().tables.fail_over(before, Incarnation::random());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reach(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.is_down {
            return Err(Error::unavailable("the database is away"));
        }
        Ok(state)
    }
}

#[async_trait]
impl Registry for MemoryRegistry {
    async fn join(&self, join: &Join) -> Result<NodeId> {
        Ok(self.reach()?.tables.join(join))
    }

    async fn beat(&self, beat: &Beat) -> Result<Look> {
        if beat.unreachable.len() > UNREACHABLE_MAX {
            let rule = format!("must be at most {UNREACHABLE_MAX} nodes");
            return Err(Error::invalid("unreachable", rule));
        }
        Ok(self.reach()?.tables.beat(beat))
    }

    async fn look(&self) -> Result<Look> {
        Ok(self.reach()?.tables.look())
    }

    async fn declare_dead(&self, suspect: Suspect) -> Result<bool> {
        Ok(self.reach()?.tables.declare_dead(suspect))
    }

    async fn set_state(
        &self,
        node: NodeId,
        generation: Generation,
        state: NodeState,
    ) -> Result<bool> {
        Ok(self.reach()?.tables.set_state(node, generation, state))
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<LogId>> {
        Ok(self.reach()?.tables.claim(claims))
    }

    async fn set_next_owner(
        &self,
        log: LogId,
        epoch: LeaseEpoch,
        to: Option<NodeId>,
    ) -> Result<bool> {
        Ok(self.reach()?.tables.set_next_owner(log, epoch, to))
    }

    async fn hand_over(&self, hand_over: HandOver) -> Result<bool> {
        Ok(self.reach()?.tables.hand_over(hand_over))
    }

    async fn release(&self, tenure: Tenure) -> Result<bool> {
        Ok(self.reach()?.tables.release(tenure))
    }

    async fn pin(&self, log: LogId, to: Option<NodeId>) -> Result<()> {
        self.reach()?.tables.pin(log, to);
        Ok(())
    }

    async fn freeze(&self, frozen: bool) -> Result<()> {
        self.reach()?.tables.freeze(frozen);
        Ok(())
    }

    async fn hold(&self, address: &str, held: bool) -> Result<bool> {
        Ok(self.reach()?.tables.hold(address, held))
    }

    async fn finalize(&self, from: ClusterVersion, to: ClusterVersion) -> Result<bool> {
        Ok(self.reach()?.tables.finalize(from, to))
    }

    async fn store_id(&self) -> Result<uuid::Uuid> {
        drop(self.reach()?);
        Ok(uuid::Uuid::from_u128(1))
    }

    async fn moves(&self) -> Result<Vec<Move>> {
        Ok(self.reach()?.tables.moves.clone())
    }
}
