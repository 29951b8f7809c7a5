//! What was published about the schemas, and whether it is so here.
//!
//! Schemas are found by their names; a run without one of them has fewer rows and no wrong ones.

use super::ranking::{Ranking, Row};
use crate::cells;
use crate::report::numbers::{percent, times};
use crate::report::{Table, Unit, Whose};

/// From so many connections on Gesta should be ahead.
const AHEAD_FROM: u32 = 8;
/// Leads told, the smallest ones.
const LEADS_TOLD: usize = 3;
/// Schemas are close if the lowest has this share of the highest.
const CLOSE: f64 = 0.6;
/// A schema has collapsed if it has at most this share of the best of the others.
const COLLAPSED: f64 = 0.25;

const TITLE: &str = "What was published [B], and here";
/// What [B] is.
pub(super) const SOURCE: &str = "[B] is VirtusLab, Migrating event sourced Akka application from CockroachDB to AlloyDB, 2024: about 4,500 to \
    5,100 events/s for the good ones on 8 vCPU, SwissBorg plain slightly ahead with the worst p99 among them; partitioned 600 to 1,500 fewer; \
    nested about 100, dropped at 30 connections. Compare the order of the schemas and what becomes of nested partitions, not the rates.";

/// The relations as a table.
pub(super) fn table(ranking: &Ranking<'_>) -> Table {
    let mut table = Table::new(
        TITLE,
        ["statement", "here", "is it so?"].map(|head| (head, Unit::Words)),
    );
    let find = |name: &str| ranking.rows.iter().find(|row| row.name == name);
    let noise = 2.0 * ranking.noise;
    let good: Vec<&Row<'_>> = ["jdbc", "r2dbc", "plain"]
        .into_iter()
        .filter_map(find)
        .collect();
    let best = good.iter().map(|row| row.rate()).fold(0.0, f64::max);
    if let Some(nested) = find("nested").filter(|_| best > 0.0) {
        let share = nested.rate() / best;
        let here = format!(
            "{} of the best of jdbc, plain and r2dbc; ended by: {}",
            percent(share),
            nested.ended()
        );
        table.row(cells![
            "nested partitions collapse",
            here,
            verdict(share <= COLLAPSED, false)
        ]);
    }
    if let (Some(plain), Some(partitioned)) = (
        find("plain").filter(|plain| plain.rate() > 0.0),
        find("partitioned"),
    ) {
        let share = partitioned.rate() / plain.rate();
        let here = format!("{} of plain", percent(share));
        let is_noise = share < 1.0 && 1.0 - share <= noise;
        table.row(cells![
            "partitioned trails plain",
            here,
            verdict(share < 1.0, is_noise)
        ]);
    }
    if good.len() == 3 && best > 0.0 {
        let share = good.iter().map(|row| row.rate()).fold(f64::MAX, f64::min) / best;
        let here = format!("the lowest has {} of the highest", percent(share));
        table.row(cells![
            "jdbc, plain and r2dbc are close",
            here,
            verdict(share >= CLOSE, false)
        ]);
    }
    for ours in ranking.rows.iter().filter(|row| row.whose() == Whose::Ours) {
        if let Some((closest, here)) = ahead(ranking, ours) {
            let statement = format!(
                "(not published) {} is ahead of all from {AHEAD_FROM} connections on",
                ours.title
            );
            table.row(cells![
                statement,
                here,
                verdict(closest > 1.0, (closest - 1.0).abs() <= noise)
            ]);
        }
    }
    table
}

fn verdict(holds: bool, is_noise: bool) -> &'static str {
    match (holds, is_noise) {
        (true, false) => "yes",
        (false, false) => "no",
        (true, true) => "yes, by less than the noise",
        (false, true) => "no, by less than the noise",
    }
}

/// A form of Gesta against the best of the others, at each number of connections: the smallest ratio, and all in words.
fn ahead(ranking: &Ranking<'_>, ours: &Row<'_>) -> Option<(f64, String)> {
    let rivals = || {
        ranking
            .rows
            .iter()
            .filter(|row| row.whose() == Whose::Other)
    };
    let rate_at = |row: &Row<'_>, connections: u32| {
        let steps = row.steps();
        let step = steps.iter().find(|step| step.connections == connections)?;
        Some(step.rate()).filter(|rate| *rate > 0.0)
    };
    let steps = ours.steps();
    let mut leads: Vec<(f64, u32, &str)> = steps
        .iter()
        .filter(|step| step.connections >= AHEAD_FROM)
        .filter_map(|step| {
            let rates =
                rivals().filter_map(|rival| Some((rate_at(rival, step.connections)?, rival.title)));
            let (best, rival) = rates.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
            Some((step.rate() / best, step.connections, rival))
        })
        .collect();
    leads.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    let (closest, ..) = *leads.first()?;
    let ahead = leads.iter().filter(|(ratio, ..)| *ratio > 1.0).count();
    let of = leads.len();
    leads.truncate(LEADS_TOLD);
    leads.sort_by_key(|(_, connections, _)| *connections);
    let told = leads.iter().map(|(ratio, connections, rival)| {
        let lead = match *ratio {
            behind if behind < 1.0 => format!("{} behind", percent(1.0 - behind)),
            twice if twice >= 2.0 => times(twice),
            ahead => format!("{} ahead of", percent(ahead - 1.0)),
        };
        format!("; with {connections}: {lead} {rival}")
    });
    let which = if of > LEADS_TOLD {
        ", the smallest leads"
    } else {
        ""
    };
    let told = told.collect::<String>();
    Some((
        closest,
        format!("ahead at {ahead} of {of} numbers of connections{which}{told}"),
    ))
}
