//! What was published about the schemas, and whether it is so here.
//!
//! Schemas are found by their names; a line without one of them has fewer rows and no wrong ones.

use super::run::{Contender, Run};
use crate::page::html::Html;
use crate::page::numbers::{count, millis, percent, times};
use crate::page::section::is_ours;
use crate::page::table::{Table, words};

/// From so many connections on Gesta should be ahead.
const AHEAD_FROM: f64 = 8.0;
/// Leads told, the smallest ones.
const LEADS_TOLD: usize = 3;
/// Schemas are close if the lowest has this share of the highest.
const CLOSE: f64 = 0.6;
/// A schema has collapsed if it has at most this share of the best of the others.
const COLLAPSED: f64 = 0.25;

/// A published statement and what was found.
pub(in crate::page) struct Relation {
    /// What was published, or promised.
    pub(in crate::page) statement: String,
    /// The same here.
    pub(in crate::page) here: String,
    /// Whether it is so.
    pub(in crate::page) holds: bool,
    /// That could be chance: the difference is less than the noise of the run.
    pub(in crate::page) within_noise: bool,
}

impl Relation {
    /// In words.
    pub(in crate::page) fn verdict(&self) -> &'static str {
        match (self.holds, self.within_noise) {
            (true, false) => "yes",
            (false, false) => "no",
            (true, true) => "yes, by less than the noise",
            (false, true) => "no, by less than the noise",
        }
    }
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
            statement: "nested partitions collapse".into(),
            here: format!(
                "{} of the best of jdbc, plain and r2dbc; ended by: {}",
                percent(share),
                if ended.is_empty() { "–" } else { &ended }
            ),
            holds: share <= COLLAPSED,
            within_noise: false,
        });
    }
    let measured_plain = plain.filter(|plain| plain.rate() > 0.0);
    if let (Some(plain), Some(partitioned)) = (measured_plain, partitioned) {
        let share = partitioned.rate() / plain.rate();
        all.push(Relation {
            statement: "partitioned trails plain".into(),
            here: format!("{} of plain", percent(share)),
            holds: share < 1.0,
            within_noise: 1.0 - share <= 2.0 * run.noise() && share < 1.0,
        });
    }
    if good.len() == 3 && best_good > 0.0 {
        let least = good.iter().map(|one| one.rate()).fold(f64::MAX, f64::min);
        all.push(Relation {
            statement: "jdbc, plain and r2dbc are close".into(),
            here: format!(
                "the lowest has {} of the highest",
                percent(least / best_good)
            ),
            holds: least / best_good >= CLOSE,
            within_noise: false,
        });
    }
    let ours = run.contenders.iter().filter(|one| is_ours(one.name));
    all.extend(ours.filter_map(|ours| ahead(run, ours)));
    all
}

/// A form of Gesta against the best of the others, at each number of connections.
fn ahead(run: &Run<'_>, ours: &Contender<'_>) -> Option<Relation> {
    let rivals = || run.contenders.iter().filter(|one| !is_ours(one.name));
    let best_at = |connections: f64| {
        rivals()
            .filter_map(|rival| Some((rival.rate_at(connections)?, rival.title)))
            .filter(|(rate, _)| *rate > 0.0)
            .max_by(|(a, _), (b, _)| a.total_cmp(b))
    };
    let steps = ours.steps();
    let measured = steps
        .iter()
        .map(|step| step.connections)
        .filter(|connections| *connections >= AHEAD_FROM);
    let mut leads: Vec<(f64, f64, &str)> = measured
        .filter_map(|connections| {
            let (best, rival) = best_at(connections)?;
            Some((ours.rate_at(connections)? / best, connections, rival))
        })
        .collect();
    leads.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    let (closest, ..) = *leads.first()?;
    let ahead = leads.iter().filter(|(ratio, ..)| *ratio > 1.0).count();
    let of = leads.len();
    leads.truncate(LEADS_TOLD);
    leads.sort_by(|(_, a, _), (_, b, _)| a.total_cmp(b));
    let told = leads.iter().map(|(ratio, connections, rival)| {
        let lead = match *ratio {
            behind if behind < 1.0 => format!("{} behind", percent(1.0 - behind)),
            twice if twice >= 2.0 => times(twice),
            ahead => format!("{} ahead of", percent(ahead - 1.0)),
        };
        format!("; with {}: {lead} {rival}", count(*connections))
    });
    let told = told.collect::<String>();
    let which = if of > LEADS_TOLD {
        ", the smallest leads"
    } else {
        ""
    };
    Some(Relation {
        statement: format!(
            "(not published) {} is ahead of all from 8 connections on",
            ours.title
        ),
        here: format!("ahead at {ahead} of {of} numbers of connections{which}{told}"),
        holds: closest > 1.0,
        within_noise: (closest - 1.0).abs() <= 2.0 * run.noise(),
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
            words(&relation.statement),
            words(&relation.here),
            words(relation.verdict()),
        ]);
    }
    table.draw()
}
