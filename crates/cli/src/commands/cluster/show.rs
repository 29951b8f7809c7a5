//! Shows what `gesta cluster` found: tables for people, one JSON object for each row.
//!
//! Not here: what is shown (`gesta_core::registry`).

use std::time::Duration;

use gesta_cluster::{Config, planned_moves};
use gesta_core::registry::{LeaseEpoch, LeaseRow, Look, Move, NodeId, NodeRow, NodeState};
use gesta_core::{Clock, SystemClock, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use super::logs_of;
use crate::exit::Outcome;
use crate::output::{Output, count, visible};

/// Names a node in a sentence.
pub(super) fn named(node: &NodeRow) -> String {
    format!("node {} at {}", node.id, visible(&node.info.address))
}

/// Names the node of this number in a sentence. A node that has left has no address.
pub(super) fn name(look: &Look, id: NodeId) -> String {
    look.node(id)
        .map_or_else(|| format!("node {id}, which has left,"), named)
}

/// A row in both forms: the cells of the table, and the JSON object.
struct Row {
    cells: Vec<String>,
    record: Value,
}

/// Shows rows as JSON objects, or as a table under a heading.
fn rows(heading: &[&str], rows: &[Row], output: &mut Output) -> Outcome {
    let mut widths: Vec<usize> = heading.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(&row.cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    output.heading(&line(&mut heading.iter().copied()))?;
    for row in rows {
        output.record(&row.record, |_| {
            line(&mut row.cells.iter().map(String::as_str))
        })?;
    }
    Ok(())
}

/// Shows the state of a cluster. In a store of several databases it is the cluster of database number `database`,
/// counted from 1.
pub(super) fn status(
    id: Uuid,
    look: &Look,
    database: Option<usize>,
    output: &mut Output,
) -> Outcome {
    let now = SystemClock.now();
    let (logs, incarnation) = (look.leases.len(), look.incarnation);
    let here = database.map_or_else(String::new, |number| format!(" in database {number}"));
    let version = look.version;
    output.heading(&format!(
        "store {id}, incarnation {incarnation}, {}{here}, version {version}\n",
        count(logs as u64, "log")
    ))?;
    let is_new = |lease: &LeaseRow| lease.epoch == LeaseEpoch(0);
    let never_joined = look.nodes.is_empty() && look.leases.iter().all(is_new);
    if never_joined {
        output.heading("no nodes; plain servers need none")?;
    }
    let mark = |mut row: Row| {
        if let Some(number) = database {
            row.record["database"] = json!(number);
        }
        row
    };
    let mut nodes: Vec<&NodeRow> = look.nodes.iter().collect();
    nodes.sort_by_key(|node| node.id);
    let nodes: Vec<Row> = nodes
        .into_iter()
        .map(|node| mark(node_row(look, node, now)))
        .collect();
    let heading = [
        "node",
        "address",
        "build",
        "state",
        "beat",
        "logs",
        "cannot call",
    ];
    rows(&heading, &nodes, output)?;
    output.heading("")?;
    let leases: Vec<Row> = look
        .leases
        .iter()
        .map(|lease| mark(lease_row(look, lease)))
        .collect();
    let heading = ["log", "owner", "epoch", "since", "next", "pinned", "frozen"];
    rows(&heading, &leases, output)?;
    let free = look
        .leases
        .iter()
        .filter(|lease| look.holder(lease).is_none());
    let free: Vec<String> = free.map(|lease| lease.log.to_string()).collect();
    if free.is_empty() || never_joined {
        return Ok(());
    }
    let free = free.join(", ");
    output.heading(&format!(
        "\nWITHOUT OWNER: log {free}. Appends to it are slow until a node claims it."
    ))
}

/// How long a node may be silent. After that it is dead, or no other node is there to say so.
fn silent_after(look: &Look) -> Duration {
    Config::default().dead(look.nodes.len())
}

/// Shows the state of a node in words.
pub(super) fn state_of(state: NodeState, is_held: bool) -> String {
    let held = if is_held { ", held" } else { "" };
    format!("{}{held}", state.name())
}

fn node_row(look: &Look, node: &NodeRow, now: Timestamp) -> Row {
    let micros = now.as_micros().saturating_sub(node.beat_at.as_micros());
    let age = Duration::from_micros(u64::try_from(micros).unwrap_or_default());
    let is_silent = age > silent_after(look);
    let state = state_of(node.state, node.held);
    let unreachable: Vec<u32> = node.unreachable.iter().map(|other| other.0).collect();
    let cells = vec![
        node.id.to_string(),
        visible(&node.info.address),
        visible(&node.info.build),
        match is_silent {
            true => format!("{state}, SILENT"),
            false => state.clone(),
        },
        format!("{:.1} s ago", age.as_secs_f64()),
        logs_of(look, node).to_string(),
        list(&unreachable),
    ];
    let record = json!({
        "kind": "node",
        "node": node.id.0,
        "address": *node.info.address,
        "build": *node.info.build,
        "protocol": [node.info.protocol_min, node.info.protocol_max],
        "cluster_version": look.version.0,
        "weight": node.info.weight,
        "state": node.state.name(),
        "held": node.held,
        "started": node.started.to_string(),
        "beat_at": node.beat_at.to_string(),
        "beat_age_seconds": age.as_secs_f64(),
        "silent": is_silent,
        "logs": logs_of(look, node),
        "cannot_call": unreachable,
    });
    Row { cells, record }
}

fn lease_row(look: &Look, lease: &LeaseRow) -> Row {
    let holder = look.holder(lease);
    let number = |node: Option<NodeId>| node.map_or("-".to_owned(), |node| node.to_string());
    let owner = holder.map(|node| format!("{} {}", node.id, visible(&node.info.address)));
    let cells = vec![
        lease.log.to_string(),
        owner.unwrap_or_else(|| "NONE".to_owned()),
        lease.epoch.in_database().to_string(),
        lease.since.to_string(),
        number(lease.next_owner),
        number(lease.pinned),
        if lease.frozen { "frozen" } else { "-" }.to_owned(),
    ];
    let record = json!({
        "kind": "log",
        "log": lease.log.0,
        "owner": holder.map(|node| node.id.0),
        "address": holder.map(|node| &*node.info.address),
        "epoch": lease.epoch.in_database().0,
        "since": lease.since.to_string(),
        "next_owner": lease.next_owner.map(|node| node.0),
        "pinned": lease.pinned.map(|node| node.0),
        "frozen": lease.frozen,
    });
    Row { cells, record }
}

fn list(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    match numbers.as_slice() {
        [] => "-".to_owned(),
        numbers => numbers.join(", "),
    }
}

/// Shows the moves that would bring all logs to where they should be.
pub(super) fn plan(look: &Look, output: &mut Output) -> Outcome {
    let moves = planned_moves(look);
    if moves.is_empty() {
        return output.heading("no log would move");
    }
    let planned: Vec<Row> = moves.iter().map(|planned| Row {
        cells: vec![
            planned.log.to_string(),
            name(look, planned.from),
            name(look, planned.to),
            planned.reason.name().to_owned(),
        ],
        record: json!({"log": planned.log.0, "from": planned.from.0, "to": planned.to.0, "reason": planned.reason.name()}),
    }).collect();
    rows(&["log", "from", "to", "reason"], &planned, output)
}

/// Shows the newest `limit` of the moves that were made, newest first.
pub(super) fn history(look: &Look, moves: &[Move], limit: usize, output: &mut Output) -> Outcome {
    let shown: Vec<Row> = (0..moves.len().min(limit))
        .map(|n| move_row(look, &moves[n], &moves[n + 1..]))
        .collect();
    rows(
        &["at", "log", "from", "to", "epoch", "reason"],
        &shown,
        output,
    )
}

/// Makes the row of a move. `older` are the moves before it that are kept.
fn move_row(look: &Look, done: &Move, older: &[Move]) -> Row {
    let place = |node: Option<NodeId>| match node {
        None => "nobody".to_owned(),
        Some(id) => match look.node(id) {
            Some(node) => format!("{id} {}", visible(&node.info.address)),
            None => format!("{id} (left)"),
        },
    };
    let mut record = json!({
        "at": done.at.to_string(),
        "log": done.log.0,
        "to": done.to.map(|node| node.0),
        "epoch": done.epoch.0,
        "reason": done.reason.name(),
    });
    let is_from_kept = is_from_kept(done, older);
    if is_from_kept {
        record["from"] = json!(done.from.map(|node| node.0));
    }
    let from = match is_from_kept {
        true => place(done.from),
        false => "not kept".to_owned(),
    };
    let cells = vec![
        done.at.to_string(),
        done.log.to_string(),
        from,
        place(done.to),
        done.epoch.to_string(),
        done.reason.name().to_owned(),
    ];
    Row { cells, record }
}

/// Tells whether it is known who owned the log before this move: the move says it, or is the first one of the log, or
/// an older move of the log is kept.
pub(super) fn is_from_kept(done: &Move, older: &[Move]) -> bool {
    let is_first = done.epoch <= LeaseEpoch::default().next();
    done.from.is_some() || is_first || older.iter().any(|other| other.log == done.log)
}
