//! What was published about the schemas, and whether it is so here.
//!
//! Schemas are found by their names; a line without one of them has fewer rows and no wrong ones.

use super::run::{Contender, Run};
use crate::page::html::Html;
use crate::page::numbers::{by, count, millis, percent};
use crate::page::table::{Table, words};

/// From so many connections on Gesta should be ahead.
const AHEAD_FROM: f64 = 8.0;
/// Schemas are close if the lowest has this share of the highest.
const CLOSE: f64 = 0.6;
/// A schema has collapsed if it has at most this share of the best of the others.
const COLLAPSED: f64 = 0.25;

/// A published statement and what was found.
pub(in crate::page) struct Relation {
    /// What was published, or promised.
    pub(in crate::page) statement: &'static str,
    /// The same here.
    pub(in crate::page) here: String,
    /// Whether it is so.
    pub(in crate::page) holds: bool,
}

/// The published figures in one sentence.
pub(in crate::page) const fn published() -> &'static str {
    "AlloyDB, 8 vCPU: about 4,500–5,100 events/s for the good ones, SwissBorg plain slightly ahead with the worst p99 among them; \
     partitioned 600–1,500 behind; nested about 100, dropped at 30 connections"
}

/// What can be said of this run.
pub(in crate::page) fn relations(run: &Run<'_>) -> Vec<Relation> {
    let find = |name: &str| run.contenders.iter().find(|one| one.name == name);
    let (jdbc, r2dbc) = (find("jdbc"), find("r2dbc"));
    let (plain, partitioned, nested) = (find("plain"), find("partitioned"), find("nested"));
    let mut all = Vec::new();
    let good: Vec<&Contender<'_>> = [jdbc, r2dbc, plain].into_iter().flatten().collect();
    let best_good = good.iter().map(|one| one.rate()).fold(0.0, f64::max);
    if let Some(nested) = nested.filter(|_| best_good > 0.0) {
        let share = nested.rate() / best_good;
        let ended = nested.ended().join("; ");
        all.push(Relation {
            statement: "nested partitions collapse",
            here: format!(
                "{} of the best of jdbc, plain and r2dbc; ended by: {}",
                percent(share),
                if ended.is_empty() { "–" } else { &ended }
            ),
            holds: share <= COLLAPSED,
        });
    }
    let measured_plain = plain.filter(|plain| plain.rate() > 0.0);
    if let (Some(plain), Some(partitioned)) = (measured_plain, partitioned) {
        let share = partitioned.rate() / plain.rate();
        all.push(Relation {
            statement: "partitioned trails plain",
            here: format!("{} of plain", percent(share)),
            holds: share < 1.0,
        });
    }
    if good.len() == 3 && best_good > 0.0 {
        let least = good.iter().map(|one| one.rate()).fold(f64::MAX, f64::min);
        all.push(Relation {
            statement: "jdbc, plain and r2dbc are close",
            here: format!(
                "the lowest has {} of the highest",
                percent(least / best_good)
            ),
            holds: least / best_good >= CLOSE,
        });
    }
    all.extend(ahead(run));
    all
}

/// Gesta against the best of the others, at each number of connections.
fn ahead(run: &Run<'_>) -> Option<Relation> {
    let ours = run.contenders.iter().find(|one| one.name == "gesta")?;
    let mut least: Option<(f64, f64, &str)> = None;
    for step in ours
        .steps()
        .iter()
        .filter(|step| step.connections >= AHEAD_FROM)
    {
        let rate = ours.rate_at(step.connections)?;
        for rival in run.contenders.iter().filter(|one| one.name != "gesta") {
            let Some(other) = rival.rate_at(step.connections).filter(|other| *other > 0.0) else {
                continue;
            };
            if least.is_none_or(|(ratio, ..)| rate / other < ratio) {
                least = Some((rate / other, step.connections, rival.title));
            }
        }
    }
    let (ratio, connections, rival) = least?;
    Some(Relation {
        statement: "(not published) Gesta is ahead of all from 8 connections on",
        here: format!(
            "at the closest {} of {rival}, with {} connections",
            by(ratio),
            count(connections)
        ),
        holds: ratio > 1.0,
    })
}

/// The relations as a table.
pub(super) fn table(run: &Run<'_>) -> Html {
    let limit = run.line.workload().get("average_ms_max").number();
    let limit = limit.map_or_else(String::new, |limit| {
        format!(
            " (a schema is stopped when its average passes {})",
            millis(limit)
        )
    });
    let mut table = Table::new(
        format!("What was published [B], and here{limit}"),
        &["statement", "here", "is it so?"],
    );
    for relation in relations(run) {
        table.row(vec![
            words(relation.statement),
            words(relation.here),
            words(if relation.holds { "yes" } else { "no" }),
        ]);
    }
    table.draw()
}
