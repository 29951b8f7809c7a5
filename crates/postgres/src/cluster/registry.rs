//! The registry of nodes and leases (`gesta_core::registry`) in the tables `nodes`, `leases` and `moves`.
//!
//! There are two connections: one for beats, whose commits wait for no standby, so that a standby that hangs stops
//! appends but not membership; and one for everything else. Of that, deaths and states of nodes do not wait for
//! standbys either, for they change the rows of beats; the rest waits as appends do. Invariants: a connection is used
//! for one statement at a time and discarded if the answer is not waited for; an answer counts only if it belongs to
//! the present history; opening a connection goes on when the caller gives up, so that a slow one succeeds in the end.

use std::fmt::Display;
use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::registry::{
    Beat, Claim, ClusterVersion, Generation, HandOver, Join, LeaseEpoch, LeaseRow, Look, Move,
    MoveReason, NodeId, NodeInfo, NodeRow, NodeState, Registry, Suspect, Tenure, UNREACHABLE_MAX,
};
use gesta_core::{Error, Incarnation, LogId, Result};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connect::connection::{Connection, Connector, Role};
use crate::connect::history::Ledger;
use crate::error;
use crate::moment::Moment;

const BEAT: &str = include_str!("../../sql/beat.sql");
const LOOK: &str = include_str!("../../sql/look.sql");
const JOIN: &str = include_str!("../../sql/join_nodes.sql");
const DECLARE_DEAD: &str = include_str!("../../sql/declare_dead.sql");
const UPDATE_NODE_STATE: &str = include_str!("../../sql/update_node_state.sql");
const CLAIM_LEASES: &str = include_str!("../../sql/claim_leases.sql");
const MOVE_LEASE: &str = include_str!("../../sql/move_lease.sql");
const UPDATE_NEXT_OWNER: &str = include_str!("../../sql/update_next_owner.sql");
const UPDATE_PINNED: &str = include_str!("../../sql/update_pinned.sql");
const UPDATE_HELD: &str = include_str!("../../sql/update_held.sql");
const FINALIZE_CLUSTER: &str = include_str!("../../sql/finalize_cluster.sql");
const UPDATE_FROZEN: &str = include_str!("../../sql/update_frozen.sql");
const READ_CLUSTER: &str = include_str!("../../sql/read_cluster.sql");
const READ_MOVES: &str = include_str!("../../sql/read_moves.sql");

type TypedBinds<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// The registry of one store.
#[derive(Debug)]
pub(crate) struct PostgresRegistry {
    beats: Line,
    changes: Line,
    ledger: Arc<Ledger>,
}

impl PostgresRegistry {
    pub(crate) fn new(
        connector: &Arc<Connector>,
        ledger: &Arc<Ledger>,
        closed: &CancellationToken,
    ) -> Self {
        let line = |role| Line {
            role,
            connector: Arc::clone(connector),
            ledger: Arc::clone(ledger),
            closed: closed.clone(),
            slot: Mutex::default(),
        };
        Self {
            beats: line(Role::Beats),
            changes: line(Role::Leases),
            ledger: Arc::clone(ledger),
        }
    }

    /// Closes the connections. The store has been closed, so no new ones are made.
    pub(crate) async fn close(&self) {
        self.beats.forget().await;
        self.changes.forget().await;
    }

    async fn changes_one(&self, sql: &str, binds: &TypedBinds<'_>) -> Result<bool> {
        Ok(!self.changes.run(sql, binds).await?.is_empty())
    }

    fn look_of(&self, rows: &[Row]) -> Result<Look> {
        let row = rows
            .first()
            .ok_or_else(|| Error::corrupt("the table store is empty"))?;
        let look = look_from_row(row)?;
        if look.incarnation == self.ledger.history().incarnation {
            return Ok(look);
        }
        Err(Error::unavailable(
            "another incarnation of the store has begun",
        ))
    }
}

#[async_trait]
impl Registry for PostgresRegistry {
    async fn join(&self, join: &Join) -> Result<NodeId> {
        let info = &join.info;
        let (address, build) = (info.address.as_ref(), info.build.as_ref());
        let numbers = [info.weight, info.protocol_min, info.protocol_max].map(i32::from);
        let binds: [(&(dyn ToSql + Sync), Type); 7] = [
            (&address, Type::TEXT),
            (&numbers[0], Type::INT4),
            (&build, Type::TEXT),
            (&numbers[1], Type::INT4),
            (&numbers[2], Type::INT4),
            (&join.generation.0, Type::INT8),
            (&join.beat, Type::INT8),
        ];
        let rows = self.changes.run(JOIN, &binds).await?;
        let row = rows.first();
        let row = row.ok_or_else(|| Error::corrupt("a joining gave no row"))?;
        node_from_sql(get(row, 0)?)
    }

    async fn beat(&self, beat: &Beat) -> Result<Look> {
        if beat.unreachable.len() > UNREACHABLE_MAX {
            let rule = format!("must be at most {UNREACHABLE_MAX} nodes");
            return Err(Error::invalid("unreachable", rule));
        }
        let node = node_to_sql(beat.node)?;
        let unreachable: Result<Vec<i32>> = beat
            .unreachable
            .iter()
            .map(|node| node_to_sql(*node))
            .collect();
        let unreachable = unreachable?;
        let binds: [(&(dyn ToSql + Sync), Type); 4] = [
            (&node, Type::INT4),
            (&beat.generation.0, Type::INT8),
            (&beat.beat, Type::INT8),
            (&unreachable, Type::INT4_ARRAY),
        ];
        let look = self.look_of(&self.beats.run(BEAT, &binds).await?);
        if look.is_err() {
            self.beats.forget().await;
        }
        look
    }

    async fn look(&self) -> Result<Look> {
        let look = self.look_of(&self.changes.run(LOOK, &[]).await?);
        if look.is_err() {
            self.changes.forget().await;
        }
        look
    }

    async fn declare_dead(&self, suspect: Suspect) -> Result<bool> {
        let node = node_to_sql(suspect.node)?;
        let binds: [(&(dyn ToSql + Sync), Type); 3] = [
            (&node, Type::INT4),
            (&suspect.generation.0, Type::INT8),
            (&suspect.beat, Type::INT8),
        ];
        self.changes_one(DECLARE_DEAD, &binds).await
    }

    async fn set_state(
        &self,
        node: NodeId,
        generation: Generation,
        state: NodeState,
    ) -> Result<bool> {
        let (node, state) = (node_to_sql(node)?, state.name());
        let binds: [(&(dyn ToSql + Sync), Type); 3] = [
            (&node, Type::INT4),
            (&generation.0, Type::INT8),
            (&state, Type::TEXT),
        ];
        self.changes_one(UPDATE_NODE_STATE, &binds).await
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<LogId>> {
        let Some(first) = claims.first().map(|claim| claim.tenure) else {
            return Ok(Vec::new());
        };
        if claims.iter().any(|claim| {
            (claim.tenure.owner, claim.tenure.generation) != (first.owner, first.generation)
        }) {
            return Err(Error::invalid("claims", "must all be of one node"));
        }
        let owner = node_to_sql(first.owner)?;
        let logs: Result<Vec<i16>> = claims
            .iter()
            .map(|claim| log_to_sql(claim.tenure.log))
            .collect();
        let seen: Result<Vec<i64>> = claims
            .iter()
            .map(|claim| epoch_to_sql(claim.seen))
            .collect();
        let new: Result<Vec<i64>> = claims
            .iter()
            .map(|claim| epoch_to_sql(claim.tenure.epoch))
            .collect();
        let (logs, seen, new) = (logs?, seen?, new?);
        let binds: [(&(dyn ToSql + Sync), Type); 5] = [
            (&owner, Type::INT4),
            (&first.generation.0, Type::INT8),
            (&logs, Type::INT2_ARRAY),
            (&seen, Type::INT8_ARRAY),
            (&new, Type::INT8_ARRAY),
        ];
        let rows = self.changes.run(CLAIM_LEASES, &binds).await?;
        rows.iter().map(|row| log_from_sql(get(row, 0)?)).collect()
    }

    async fn set_next_owner(
        &self,
        log: LogId,
        epoch: LeaseEpoch,
        to: Option<NodeId>,
    ) -> Result<bool> {
        let (log, epoch) = (log_to_sql(log)?, epoch_to_sql(epoch)?);
        let to = to.map(node_to_sql).transpose()?;
        let binds: [(&(dyn ToSql + Sync), Type); 3] =
            [(&log, Type::INT2), (&epoch, Type::INT8), (&to, Type::INT4)];
        self.changes_one(UPDATE_NEXT_OWNER, &binds).await
    }

    async fn hand_over(&self, hand_over: HandOver) -> Result<bool> {
        let HandOver {
            from,
            to,
            to_generation,
            reason,
        } = hand_over;
        self.move_lease(from, Some(to), to_generation, reason).await
    }

    async fn release(&self, tenure: Tenure) -> Result<bool> {
        self.move_lease(tenure, None, Generation::NONE, MoveReason::Stuck)
            .await
    }

    async fn pin(&self, log: LogId, to: Option<NodeId>) -> Result<()> {
        let log = log_to_sql(log)?;
        let to = to.map(node_to_sql).transpose()?;
        let binds: [(&(dyn ToSql + Sync), Type); 2] = [(&log, Type::INT2), (&to, Type::INT4)];
        self.changes.run(UPDATE_PINNED, &binds).await.map(|_| ())
    }

    async fn freeze(&self, frozen: bool) -> Result<()> {
        let binds: [(&(dyn ToSql + Sync), Type); 1] = [(&frozen, Type::BOOL)];
        self.changes.run(UPDATE_FROZEN, &binds).await.map(|_| ())
    }

    async fn hold(&self, address: &str, held: bool) -> Result<bool> {
        let binds: [(&(dyn ToSql + Sync), Type); 2] = [(&address, Type::TEXT), (&held, Type::BOOL)];
        self.changes_one(UPDATE_HELD, &binds).await
    }

    async fn finalize(&self, from: ClusterVersion, to: ClusterVersion) -> Result<bool> {
        let [from, to] = [from, to].map(|version| i32::from(version.0));
        let binds: [(&(dyn ToSql + Sync), Type); 2] = [(&from, Type::INT4), (&to, Type::INT4)];
        self.changes_one(FINALIZE_CLUSTER, &binds).await
    }

    async fn store_id(&self) -> Result<Uuid> {
        let rows = self.changes.run(READ_CLUSTER, &[]).await?;
        let row = rows.first();
        get(
            row.ok_or_else(|| Error::corrupt("the table clusters is empty"))?,
            0,
        )
    }

    async fn moves(&self) -> Result<Vec<Move>> {
        let rows = self.changes.run(READ_MOVES, &[]).await?;
        rows.iter().map(move_from_row).collect()
    }
}

impl PostgresRegistry {
    async fn move_lease(
        &self,
        from: Tenure,
        to: Option<NodeId>,
        generation: Generation,
        reason: MoveReason,
    ) -> Result<bool> {
        let (log, owner) = (log_to_sql(from.log)?, node_to_sql(from.owner)?);
        let epoch = epoch_to_sql(from.epoch)?;
        let to = to.map(node_to_sql).transpose()?;
        let reason = reason.name();
        let binds: [(&(dyn ToSql + Sync), Type); 7] = [
            (&log, Type::INT2),
            (&owner, Type::INT4),
            (&from.generation.0, Type::INT8),
            (&epoch, Type::INT8),
            (&to, Type::INT4),
            (&generation.0, Type::INT8),
            (&reason, Type::TEXT),
        ];
        self.changes_one(MOVE_LEASE, &binds).await
    }
}

/// One connection, which is opened when it is needed.
#[derive(Debug)]
struct Line {
    role: Role,
    connector: Arc<Connector>,
    ledger: Arc<Ledger>,
    closed: CancellationToken,
    slot: Mutex<Slot>,
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Empty,
    Opening(JoinHandle<Result<Connection>>),
    Open(Box<Connection>),
}

impl Line {
    /// Runs one statement. If the answer is not waited for, or the store is closed, the connection is closed.
    async fn run(&self, sql: &str, binds: &TypedBinds<'_>) -> Result<Vec<Row>> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(Error::unavailable("the store is closed")),
            outcome = self.run_to_end(sql, binds) => outcome,
        }
    }

    async fn run_to_end(&self, sql: &str, binds: &TypedBinds<'_>) -> Result<Vec<Row>> {
        let mut slot = self.slot.lock().await;
        let connection = self.take(&mut slot).await?;
        let host_lost = connection.host_lost();
        let outcome = tokio::select! {
            biased;
            outcome = connection.client.query_typed(sql, binds) => outcome,
            reason = host_lost => return Err(Error::unavailable(reason)),
        };
        if !self.ledger.observe(connection.generation, None) {
            return Err(Error::unavailable("the database has changed over"));
        }
        let is_usable = outcome
            .as_ref()
            .err()
            .is_none_or(|error| !error::is_lost(error));
        if is_usable && !connection.is_lost() {
            *slot = Slot::Open(Box::new(connection));
        }
        outcome.map_err(|error| error::general(&error))
    }

    /// Takes the connection out of its slot. It is put back when the statement has been answered.
    async fn take(&self, slot: &mut Slot) -> Result<Connection> {
        match std::mem::take(slot) {
            Slot::Open(connection)
                if !connection.is_lost() && self.ledger.is_current(connection.generation) =>
            {
                return Ok(*connection);
            }
            Slot::Opening(opening) => *slot = Slot::Opening(opening),
            Slot::Open(_) | Slot::Empty => {
                let (connector, role) = (Arc::clone(&self.connector), self.role);
                let opening = tokio::spawn(async move { connector.connect(role).await });
                *slot = Slot::Opening(opening);
            }
        }
        let Slot::Opening(opening) = slot else {
            return Err(Error::unavailable("no connection is being opened"));
        };
        let opened = opening.await;
        *slot = Slot::Empty;
        opened.map_err(|_| Error::unavailable("opening a connection was broken off"))?
    }

    async fn forget(&self) {
        let slot = std::mem::take(&mut *self.slot.lock().await);
        if let Slot::Opening(opening) = slot {
            opening.abort();
        }
    }
}

// ---- rows ----

fn get<'a, T: FromSql<'a>>(row: &'a Row, column: impl RowIndex + Display) -> Result<T> {
    row.try_get(column).map_err(|error| error::general(&error))
}

fn out_of_range(what: &str) -> Error {
    Error::corrupt(format!("the registry holds a {what} that is out of range"))
}

fn node_to_sql(node: NodeId) -> Result<i32> {
    i32::try_from(node.0).map_err(|_| Error::invalid("node", "is out of range"))
}

fn log_to_sql(log: LogId) -> Result<i16> {
    i16::try_from(log.0).map_err(|_| Error::invalid("log", "is out of range"))
}

fn epoch_to_sql(epoch: LeaseEpoch) -> Result<i64> {
    i64::try_from(epoch.0).map_err(|_| Error::invalid("epoch", "is out of range"))
}

fn node_from_sql(node: i32) -> Result<NodeId> {
    u32::try_from(node)
        .map(NodeId)
        .map_err(|_| out_of_range("node"))
}

fn optional_node(node: Option<i32>) -> Result<Option<NodeId>> {
    node.map(node_from_sql).transpose()
}

fn log_from_sql(log: i16) -> Result<LogId> {
    u16::try_from(log)
        .map(LogId)
        .map_err(|_| out_of_range("log"))
}

fn epoch_from_sql(epoch: i64) -> Result<LeaseEpoch> {
    u64::try_from(epoch)
        .map(LeaseEpoch)
        .map_err(|_| out_of_range("epoch"))
}

fn small_from_sql(number: i32) -> Result<u16> {
    u16::try_from(number).map_err(|_| out_of_range("weight, protocol or version"))
}

fn state_from_sql(name: &str) -> Result<NodeState> {
    let states = [NodeState::Up, NodeState::Draining, NodeState::Left];
    let found = states.into_iter().find(|state| state.name() == name);
    found.ok_or_else(|| out_of_range("state"))
}

/// Reads a column that is an array, which must be as long as the others.
fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str, length: usize) -> Result<Vec<T>> {
    let values: Vec<T> = get(row, name)?;
    if values.len() == length {
        return Ok(values);
    }
    Err(Error::corrupt(format!(
        "the registry's {name} are incomplete"
    )))
}

fn look_from_row(row: &Row) -> Result<Look> {
    Ok(Look {
        is_registered: get(row, "is_registered")?,
        incarnation: Incarnation(get(row, "incarnation")?),
        version: ClusterVersion(small_from_sql(get(row, "version")?)?),
        nodes: nodes_from_row(row)?,
        leases: leases_from_row(row)?,
    })
}

fn nodes_from_row(row: &Row) -> Result<Vec<NodeRow>> {
    let ids: Vec<i32> = get(row, "ids")?;
    let count = ids.len();
    let addresses: Vec<&str> = column(row, "addresses", count)?;
    let builds: Vec<&str> = column(row, "builds", count)?;
    let weights: Vec<i32> = column(row, "weights", count)?;
    let protocol_mins: Vec<i32> = column(row, "protocol_mins", count)?;
    let protocol_maxs: Vec<i32> = column(row, "protocol_maxs", count)?;
    let generations: Vec<i64> = column(row, "generations", count)?;
    let beats: Vec<i64> = column(row, "beats", count)?;
    let states: Vec<&str> = column(row, "states", count)?;
    let helds: Vec<bool> = column(row, "helds", count)?;
    let unreachables: Vec<&str> = column(row, "unreachables", count)?;
    let starteds: Vec<Moment> = column(row, "starteds", count)?;
    let beat_ats: Vec<Moment> = column(row, "beat_ats", count)?;
    let node = |n: usize| {
        Ok(NodeRow {
            id: node_from_sql(ids[n])?,
            info: NodeInfo {
                address: addresses[n].into(),
                weight: small_from_sql(weights[n])?,
                build: builds[n].into(),
                protocol_min: small_from_sql(protocol_mins[n])?,
                protocol_max: small_from_sql(protocol_maxs[n])?,
            },
            generation: Generation(generations[n]),
            beat: beats[n],
            state: state_from_sql(states[n])?,
            held: helds[n],
            unreachable: nodes_from_text(unreachables[n])?,
            started: starteds[n].0,
            beat_at: beat_ats[n].0,
        })
    };
    (0..count).map(node).collect()
}

/// Reads the numbers of nodes from a text, since SQL has no arrays of arrays of different lengths.
fn nodes_from_text(text: &str) -> Result<Vec<NodeId>> {
    let numbers = text.split(',').filter(|number| !number.is_empty());
    let number = |number: &str| number.parse().map(NodeId).map_err(|_| out_of_range("node"));
    numbers.map(number).collect()
}

fn leases_from_row(row: &Row) -> Result<Vec<LeaseRow>> {
    let logs: Option<Vec<i16>> = get(row, "logs")?;
    let logs = logs.ok_or_else(|| Error::corrupt("the table leases is empty"))?;
    let count = logs.len();
    let owners: Vec<Option<i32>> = column(row, "owners", count)?;
    let generations: Vec<i64> = column(row, "owner_generations", count)?;
    let epochs: Vec<i64> = column(row, "epochs", count)?;
    let next_owners: Vec<Option<i32>> = column(row, "next_owners", count)?;
    let pinneds: Vec<Option<i32>> = column(row, "pinneds", count)?;
    let frozens: Vec<bool> = column(row, "frozens", count)?;
    let sinces: Vec<Moment> = column(row, "sinces", count)?;
    let lease = |n: usize| {
        let lease = LeaseRow {
            log: log_from_sql(logs[n])?,
            owner: optional_node(owners[n])?,
            generation: Generation(generations[n]),
            epoch: epoch_from_sql(epochs[n])?,
            next_owner: optional_node(next_owners[n])?,
            pinned: optional_node(pinneds[n])?,
            frozen: frozens[n],
            since: sinces[n].0,
        };
        // The lease of a log is found by its place in the list.
        if usize::from(lease.log.0) == n {
            return Ok(lease);
        }
        Err(Error::corrupt(format!("the lease of log {n} is missing")))
    };
    (0..count).map(lease).collect()
}

fn move_from_row(row: &Row) -> Result<Move> {
    let reason: &str = get(row, "reason")?;
    let reason = MoveReason::ALL
        .into_iter()
        .find(|known| known.name() == reason);
    Ok(Move {
        log: log_from_sql(get(row, "log")?)?,
        from: optional_node(get(row, "from_node")?)?,
        to: optional_node(get(row, "to_node")?)?,
        epoch: epoch_from_sql(get(row, "epoch")?)?,
        reason: reason.ok_or_else(|| out_of_range("reason"))?,
        at: get::<Moment>(row, "at")?.0,
    })
}
