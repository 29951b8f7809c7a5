//! `gesta cluster …`: reads the registry of a database, and asks its nodes to do something.
//!
//! Why by the database and not by a server: the nodes agree by the registry, which is there even when the nodes are
//! not. Invariants: only the owner of a log gives it away; what is written here is a request, conditional on the tenure
//! or the generation that was seen. Not here: what the nodes do about it (`gesta-cluster`), tables for people (`show`).

mod databases;
mod several;
mod show;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta::Database;
use gesta_core::LogId;
use gesta_core::registry::{ClusterVersion, LeaseRow, Look, NodeRow, NodeState, Registry};
use gesta_core::units::Span;
use serde_json::json;

use self::show::{name, named};
use super::database::on_database;
use super::interrupts;
use crate::args::{ClusterCommand, ClusterDrain, ClusterMove, ClusterPin};
use crate::config::Config;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{Output, ProgressLine, count, counted};

/// The pause between two looks at something that is waited for.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// Runs one command on the database at `url`.
pub(super) async fn run(url: &str, command: ClusterCommand, output: &mut Output) -> Outcome {
    if url.starts_with("sqlite:") {
        let text = format!(
            "--store (GESTA_STORE) must be postgres://… for this command, found {url}: a SQLite store belongs to one process; several \
             nodes need PostgreSQL"
        );
        return Err(Failure::usage(text));
    }
    let mut interrupts = interrupts()?;
    let command = match command {
        ClusterCommand::AddDatabase { database } => {
            return databases::add(url, &database, output).await;
        }
        ClusterCommand::MoveLog(request) => {
            return tokio::select! {
                outcome = databases::move_log(url, &request, output) => outcome,
                _ = interrupts.recv() => Err(Failure::interrupted(
                    "stopped; the same command goes on with the move, and --undo takes it back",
                )),
            };
        }
        ClusterCommand::RecoverLog(request) => {
            return tokio::select! {
                outcome = databases::recover_log(url, &request, output) => outcome,
                _ = interrupts.recv() => Err(Failure::interrupted("stopped; the same command goes on")),
            };
        }
        ClusterCommand::Drain(drain) if drain.this_node => ClusterCommand::Drain(ClusterDrain {
            node: Some(this_node()?),
            ..drain
        }),
        other => other,
    };
    let linger = match &command {
        ClusterCommand::Drain(drain) => drain.linger,
        _ => None,
    };
    on_database(url, None, async |database| {
        tokio::select! {
            outcome = perform_and_linger(database, command, linger, output) => outcome,
            _ = interrupts.recv() => Err(Failure::interrupted("stopped; what was asked of the nodes stays asked")),
        }
    })
    .await
}

/// Runs a command, and returns only so long after that, however it has ended: calls may still be on their way to a node
/// that is about to stop.
async fn perform_and_linger(
    database: &Database,
    command: ClusterCommand,
    linger: Option<Span>,
    output: &mut Output,
) -> Outcome {
    let outcome = perform(database, command, output).await;
    if let Some(linger) = linger {
        output.flush()?;
        tokio::time::sleep(linger.0).await;
    }
    outcome
}

async fn perform(database: &Database, command: ClusterCommand, output: &mut Output) -> Outcome {
    let registries = database.registries()?;
    if let [registry] = registries.as_slice() {
        return perform_in(registry, command, output).await;
    }
    several::perform(&registries, &database.open_copies(), command, output).await
}

/// Runs a command in the registry of one database.
async fn perform_in(
    registry: &Arc<dyn Registry>,
    command: ClusterCommand,
    output: &mut Output,
) -> Outcome {
    match command {
        ClusterCommand::Status => {
            let (id, look) = (registry.store_id().await?, registry.look().await?);
            show::status(id, &look, None, output)
        }
        ClusterCommand::Drain(drain) => set_drain(registry, &drain, output).await,
        ClusterCommand::Move(request) => move_log(registry, &request, output).await,
        // These commands need no nodes, and were done before.
        ClusterCommand::AddDatabase { .. }
        | ClusterCommand::MoveLog(_)
        | ClusterCommand::RecoverLog(_) => Ok(()),
        ClusterCommand::Pin(pin) => set_pin(registry, &pin, output).await,
        ClusterCommand::Unpin { log } => {
            let look = registry.look().await?;
            let log = lease_of(&look, log)?.log;
            registry.pin(log, None).await?;
            let record = json!({"log": log.0, "pinned": null});
            output.record(&record, |_| format!("log {log} is pinned to no node"))
        }
        ClusterCommand::Freeze => set_frozen(registry, true, output).await,
        ClusterCommand::Thaw => set_frozen(registry, false, output).await,
        ClusterCommand::Finalize => finalize(registry, output).await,
        ClusterCommand::Balance { dry_run: _ } => show::plan(&registry.look().await?, output),
        ClusterCommand::History { limit } => {
            let (look, moves) = (registry.look().await?, registry.moves().await?);
            let limit = limit.map_or(usize::MAX, usize::from);
            show::history(&look, &moves, limit, output)
        }
    }
}

/// Finds the node of this number or address.
fn node_of<'a>(look: &'a Look, text: &str) -> Outcome<&'a NodeRow> {
    let is_meant = |node: &&NodeRow| match text.parse::<u32>() {
        Ok(number) => node.id.0 == number,
        Err(_) => &*node.info.address == text,
    };
    look.nodes.iter().find(is_meant).ok_or_else(|| {
        let mut nodes: Vec<_> = look.nodes.iter().collect();
        nodes.sort_by_key(|node| node.id);
        let nodes: Vec<String> = nodes.into_iter().map(named).collect();
        let there = match nodes.as_slice() {
            [] => "there is none".to_owned(),
            nodes => nodes.join(", "),
        };
        Failure::usage(format!(
            "NODE must be the number or the address of a node that has not left ({there}), found {text:?}"
        ))
    })
}

/// Finds the lease of the log of this number.
fn lease_of(look: &Look, log: u16) -> Outcome<&LeaseRow> {
    look.lease(LogId(log)).ok_or_else(|| {
        let logs = look.leases.len();
        Failure::usage(format!(
            "LOG must be from 0 to {}: the store has {}, found {log}",
            logs.saturating_sub(1),
            count(logs as u64, "log")
        ))
    })
}

/// Counts the logs that a node owns.
fn logs_of(look: &Look, node: &NodeRow) -> usize {
    let holds = |lease: &&LeaseRow| {
        look.holder(lease)
            .is_some_and(|holder| holder.id == node.id)
    };
    look.leases.iter().filter(holds).count()
}

async fn set_frozen(registry: &Arc<dyn Registry>, frozen: bool, output: &mut Output) -> Outcome {
    registry.freeze(frozen).await?;
    output.record(&json!({"frozen": frozen}), |_| {
        let text = match frozen {
            true => "frozen: logs move only for deaths, drains and requests",
            false => "thawed: logs move for the sake of pins and balance too",
        };
        text.to_owned()
    })
}

async fn set_pin(registry: &Arc<dyn Registry>, pin: &ClusterPin, output: &mut Output) -> Outcome {
    let look = registry.look().await?;
    let (log, to) = (lease_of(&look, pin.log)?.log, node_of(&look, &pin.to)?);
    registry.pin(log, Some(to.id)).await?;
    let record = json!({"log": log.0, "pinned": to.id.0, "address": *to.info.address});
    output.record(&record, |_| format!("log {log} is pinned to {}", named(to)))
}

async fn set_drain(
    registry: &Arc<dyn Registry>,
    drain: &ClusterDrain,
    output: &mut Output,
) -> Outcome {
    let look = registry.look().await?;
    let node = match node_of(&look, drain.name()) {
        Ok(node) => node,
        Err(absent) => return hold_absent(registry, drain, absent, output).await,
    };
    let mut others = look.nodes.iter().filter(|other| other.id != node.id);
    let state = match drain.undo {
        true => NodeState::Up,
        false => NodeState::Draining,
    };
    if !drain.undo && !others.any(|other| other.state == NodeState::Up) {
        let text = format!(
            "{} cannot be drained: no other node is up that could take its logs; start one first",
            named(node)
        );
        return Err(Failure::other(text));
    }
    if drain.hold || drain.undo {
        registry.hold(&node.info.address, drain.hold).await?;
    }
    if !registry.set_state(node.id, node.generation, state).await? {
        return Err(try_again(&format!(
            "{} has just started again or left",
            named(node)
        )));
    }
    let logs = match drain.undo {
        true => logs_of(&look, node),
        false => {
            let line =
                ProgressLine::begin(output, format!("waiting until {} has no logs", named(node)));
            let drained = drained(registry, node, drain.wait.0, &line).await;
            drop(line);
            drained?
        }
    };
    let is_held = drain.hold || node.held && !drain.undo;
    let record = json!({"node": node.id.0, "address": *node.info.address, "state": state.name(), "held": is_held, "logs": logs});
    output.record(&record, |_| {
        let state = show::state_of(state, is_held);
        let logs = count(logs as u64, "log");
        format!("{} is {state} and has {logs}", named(node))
    })
}

/// Holds a node that does not run, or ends that.
async fn hold_absent(
    registry: &Arc<dyn Registry>,
    drain: &ClusterDrain,
    absent: Failure,
    output: &mut Output,
) -> Outcome {
    let (is_asked, address) = (drain.hold || drain.undo, drain.name());
    if !is_asked || !registry.hold(address, drain.hold).await? {
        return Err(absent);
    }
    let record =
        json!({"address": address, "state": NodeState::Left.name(), "held": drain.hold, "logs": 0});
    output.record(&record, |_| match drain.hold {
        true => {
            format!("the node at {address} has left, and receives no logs when it joins again")
        }
        false => format!("the node at {address} has left, and takes part when it joins again"),
    })
}

/// Returns the address of the node that the environment configures.
fn this_node() -> Outcome<String> {
    let cluster = Config::of_environment()?.cluster;
    let addresses = [cluster.advertise, cluster.node];
    let address = addresses.into_iter().find(|address| !address.is_empty());
    address.ok_or_else(|| {
        Failure::usage(
            "--this-node is the node that the environment configures, but neither GESTA_CLUSTER_ADVERTISE nor \
             GESTA_CLUSTER_NODE is set, nor does a file that GESTA_CONFIG names have them",
        )
    })
}

/// Raises the version of the cluster to the newest that all nodes can read.
async fn finalize(registry: &Arc<dyn Registry>, output: &mut Output) -> Outcome {
    let look = registry.look().await?;
    let Some(oldest) = look.nodes.iter().min_by_key(|node| node.info.protocol_max) else {
        let text =
            "no node is up, so nobody can tell which version all nodes can read: start them first";
        return Err(Failure::other(text));
    };
    let (before, after) = (look.version, ClusterVersion(oldest.info.protocol_max));
    let is_raised = after > before;
    if is_raised && !registry.finalize(before, after).await? {
        return Err(try_again(
            "a node has just joined, or the version was raised",
        ));
    }
    let version = before.max(after);
    let newest = look.nodes.iter().map(|node| node.info.protocol_max).max();
    let newest = newest.unwrap_or_default();
    let record = json!({"version": version.0, "raised": is_raised});
    output.record(&record, |_| match is_raised {
        true => format!("the cluster is at version {version} now: no node can go back to a build that cannot read it"),
        false if newest == version.0 => format!("nothing to do: the cluster is at version {version}, the newest that its nodes know"),
        false => format!(
            "the cluster stays at version {version}: {} of build {} can read no newer one",
            named(oldest),
            oldest.info.build
        ),
    })
}

/// Waits until a node has no logs. Returns how many it has when there is nothing more to wait for.
async fn drained(
    registry: &Arc<dyn Registry>,
    node: &NodeRow,
    wait: Duration,
    line: &ProgressLine,
) -> Outcome<usize> {
    let deadline = Instant::now() + wait;
    loop {
        let look = registry.look().await?;
        let logs = match look.node(node.id) {
            Some(now) if now.generation == node.generation => logs_of(&look, now),
            Some(_) => {
                let text = format!("{} was started again, and takes part", named(node));
                return Err(try_again(&text));
            }
            // The node has left.
            None => 0,
        };
        if logs == 0 || wait.is_zero() {
            return Ok(logs);
        }
        line.tell(|_| {
            let left = counted(logs as u64, "log is", "logs are");
            format!("{} is draining: {left} left", named(node))
        });
        if Instant::now() >= deadline {
            let logs = count(logs as u64, "log");
            let text = format!("{} is draining, but still has {logs}", named(node));
            return Err(Failure::Message(Code::Unavailable, text));
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

async fn move_log(
    registry: &Arc<dyn Registry>,
    request: &ClusterMove,
    output: &mut Output,
) -> Outcome {
    let look = registry.look().await?;
    let (lease, to) = (lease_of(&look, request.log)?, node_of(&look, &request.to)?);
    let step = step_to(&look, lease, to)?;
    let next = (step == Step::Ask).then_some(to.id);
    if step != Step::Nothing
        && !registry
            .set_next_owner(lease.log, lease.epoch, next)
            .await?
    {
        return Err(try_again(&format!("log {} has just moved", lease.log)));
    }
    let line = ProgressLine::begin(
        output,
        format!("waiting until log {} is at {}", lease.log, named(to)),
    );
    let moved = match step {
        Step::Ask => moved(registry, lease, to, request.wait.0).await,
        Step::Nothing | Step::Withdraw => Ok(true),
    };
    drop(line);
    let is_there = moved?;
    let record = json!({"log": lease.log.0, "node": to.id.0, "address": *to.info.address, "moved": is_there});
    output.record(&record, |_| match is_there {
        true => format!("log {} is at {}", lease.log, named(to)),
        false => format!(
            "the owner of log {} is asked to hand it over to {}",
            lease.log,
            named(to)
        ),
    })
}

/// What must be done so that a log moves to a node.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Nothing must be done: the node owns the log.
    Nothing,
    /// The node owns the log, but was asked to hand it over; this request is withdrawn.
    Withdraw,
    /// The owner of the log is asked to hand it over.
    Ask,
}

fn step_to(look: &Look, lease: &LeaseRow, to: &NodeRow) -> Outcome<Step> {
    let log = lease.log;
    let Some(holder) = look.holder(lease) else {
        return Err(try_again(&format!(
            "log {log} has no owner that could hand it over; a node claims it within seconds"
        )));
    };
    if let Some(pinned) = lease.pinned.filter(|pinned| *pinned != to.id) {
        return Err(Failure::usage(format!(
            "log {log} is pinned to {}: `gesta cluster unpin {log}` first",
            name(look, pinned)
        )));
    }
    if holder.id == to.id {
        return Ok(match lease.next_owner {
            Some(_) => Step::Withdraw,
            None => Step::Nothing,
        });
    }
    if to.state != NodeState::Up {
        return Err(Failure::usage(format!(
            "{} is {} and receives no logs: `gesta cluster drain {} --undo` first",
            named(to),
            to.state.name(),
            to.id
        )));
    }
    Ok(Step::Ask)
}

/// Waits until a log has moved. Returns false if it has not moved and there is no time to wait.
async fn moved(
    registry: &Arc<dyn Registry>,
    from: &LeaseRow,
    to: &NodeRow,
    wait: Duration,
) -> Outcome<bool> {
    let deadline = Instant::now() + wait;
    loop {
        let look = registry.look().await?;
        match progress(&look, from, to)? {
            Progress::Moved => return Ok(true),
            Progress::Asked if wait.is_zero() => return Ok(false),
            Progress::Asked if Instant::now() >= deadline => {
                let text = format!("log {} has not moved yet; its owner stays asked", from.log);
                return Err(Failure::Message(Code::Unavailable, text));
            }
            Progress::Asked => tokio::time::sleep(LOOK_PAUSE).await,
        }
    }
}

/// How far the move of a log has come.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Asked,
    Moved,
}

fn progress(look: &Look, from: &LeaseRow, to: &NodeRow) -> Outcome<Progress> {
    let lease = lease_of(look, from.log.0)?;
    let holder = look.holder(lease);
    if holder.is_some_and(|holder| holder.id == to.id) {
        return Ok(Progress::Moved);
    }
    let is_asked = lease.epoch == from.epoch && lease.next_owner == Some(to.id);
    if is_asked {
        // If the owner has died, the log is claimed first by the node that it was meant for.
        return Ok(Progress::Asked);
    }
    let LogId(log) = from.log;
    Err(Failure::other(match holder {
        None => format!("log {log} has lost its owner before it could be handed over"),
        Some(holder) if lease.epoch == from.epoch => {
            format!(
                "{} keeps log {log}: {} does not take it",
                named(holder),
                named(to)
            )
        }
        Some(holder) => format!("log {log} went to {} instead", named(holder)),
    }))
}

fn try_again(what: &str) -> Failure {
    Failure::Message(Code::Unavailable, format!("{what}: try again"))
}

#[cfg(test)]
mod tests;
