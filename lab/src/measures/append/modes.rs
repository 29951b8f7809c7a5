//! What a load is held against.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_load::machine::postgres;
use gesta_load::target::{GestaTarget, Target as _};
use gesta_report::failure::{Context as _, Result};
use gesta_report::histogram::median;
use gesta_report::units::grouped;

use super::bare;
use super::figures::Run;
use super::{Against, Lab, ROUNDS};

/// Part of its fair share that each of several servers must have, unless --floor says otherwise.
const FAIR_SHARE_MIN: f64 = 0.2;

fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 { of / whole } else { 0.0 }
}

fn rates<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<f64> {
    runs.map(Run::rate).collect()
}

impl Lab<'_> {
    fn is_over(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// The load alone, with each number of waiters.
    pub(super) async fn plain(&mut self) -> Result<()> {
        for round in 1..=self.args.rounds.unwrap_or(1) {
            for waiters in &self.args.waiters {
                if self.is_over() {
                    break;
                }
                let name = format!("{waiters} x {}, round {round}", self.args.events);
                self.alone(&name, self.args.store.logs, *waiters).await?;
            }
        }
        let mut told = Vec::new();
        for waiters in &self.args.waiters {
            let of = |run: &&Run| run.phase.connections == *waiters;
            let rate = median(&rates(self.runs.iter().filter(of)));
            told.push(format!("{waiters} waiters: {} events/s", grouped(rate)));
        }
        self.finding = format!("Median of the rounds: {}.", told.join(", "));
        Ok(())
    }

    /// A run on a store that is made for it. Gives its index.
    async fn alone(&mut self, name: &str, logs: u16, waiters: u32) -> Result<usize> {
        let target = self.target_of(logs).await?;
        let measured = self.slice(name, &target, waiters).await;
        target.remove().await?;
        measured?;
        Ok(self.runs.len() - 1)
    }

    /// The load and something else by turns.
    pub(super) async fn alternating(&mut self, against: Against) -> Result<()> {
        let (waiters, logs) = (self.args.waiters[0], self.args.store.logs);
        let mut ratios = Vec::new();
        for round in 1..=self.args.rounds.unwrap_or(ROUNDS) {
            if self.is_over() {
                break;
            }
            let gesta = self.alone(&format!("gesta {round}"), logs, waiters).await?;
            let name = format!("against {round}");
            let other = match against {
                Against::Logs(logs) => self.alone(&name, logs, waiters).await?,
                Against::Insert => self.bare(&name, 1).await?,
                Against::Bare => {
                    let batch = rounded(self.runs[gesta].batch().unwrap_or(1.0));
                    let name = format!("{name}, batches of {batch}");
                    self.bare(&name, batch).await?
                }
            };
            ratios.push(part(self.runs[gesta].rate(), self.runs[other].rate()));
        }
        let gesta = rates(self.runs.iter().step_by(2));
        let others = rates(self.runs.iter().skip(1).step_by(2));
        self.share = Some(median(&ratios));
        self.finding = format!(
            "Median of the rounds: {} events/s against {}: {:.1} %.",
            grouped(median(&gesta)),
            grouped(median(&others)),
            median(&ratios) * 100.0
        );
        Ok(())
    }

    async fn bare(&mut self, name: &str, events: u32) -> Result<usize> {
        let plan = bare::Plan {
            url: &self.url,
            events,
            contents: &self.contents,
            warm_up: self.args.warm_up.min(Duration::from_secs(2)),
            duration: self.args.duration,
        };
        let (run, read_back) = bare::measure(&plan, self.stop).await?;
        self.runs.push(Run {
            name: name.to_owned(),
            phase: run.figures(1, true),
            pipelines: None,
            server_cores: None,
            read_back: Some(read_back),
            database: None,
        });
        Ok(self.runs.len() - 1)
    }

    /// Slices of the load before, while and after another session keeps a snapshot of the database open.
    ///
    /// Why: designs that update a row per append collapse, because dead versions of that row can not be removed as long
    /// as somebody might still look at them (`pg_dump`, an analyst's transaction).
    pub(super) async fn old_snapshot(&mut self, hold: Duration) -> Result<()> {
        let (target, waiters) = (self.target().await?, self.args.waiters[0]);
        // The first slice warms caches and makes the streams.
        self.slice("before", &target, waiters).await?;
        let session = postgres::connect(target.url()).await?;
        let open =
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current(), count(*) FROM pg_class";
        let opened = session.batch_execute(open).await;
        opened.context("opening the snapshot")?;
        let begin = Instant::now();
        while !self.is_over() && (begin.elapsed() < hold || self.runs.len() < 2) {
            let name = format!("held for {:.0} s", begin.elapsed().as_secs_f64());
            self.slice(&name, &target, waiters).await?;
        }
        let lost = session.batch_execute("COMMIT").await;
        lost.context("the snapshot was lost")?;
        if !self.is_over() {
            self.slice("after", &target, waiters).await?;
        }
        target.remove().await?;
        let is_held = |run: &&Run| run.name.starts_with("held");
        let held = rates(self.runs.iter().filter(is_held));
        let free = median(&rates(self.runs.iter().filter(|run| !is_held(run))));
        let share = part(held.last().copied().unwrap_or(0.0), free);
        self.share = Some(share);
        self.finding = format!(
            "The last slice under the snapshot has {:.0} % of the rate without it.",
            share * 100.0
        );
        Ok(())
    }

    async fn slice(&mut self, name: &str, target: &Arc<GestaTarget>, waiters: u32) -> Result<()> {
        let targets = std::slice::from_ref(target);
        let runs = self.load(name, targets, waiters).await?;
        self.runs.extend(runs);
        Ok(())
    }

    /// Several stores of their own, with their own connections and caches, on one database; to it they are different
    /// processes. First one is measured alone with all callers and with its share of them; so is the one far away.
    pub(super) async fn servers(&mut self) -> Result<()> {
        let servers = self.args.servers;
        let near = self.target().await?;
        let mut targets = vec![Arc::clone(&near)];
        for number in 1..servers {
            let is_last = number + 1 == servers;
            let far = if is_last {
                self.args.far
            } else {
                Duration::ZERO
            };
            targets.push(Arc::new(near.again(far)));
        }
        let waiters = self.args.waiters[0];
        let share = (waiters / u32::from(servers)).max(1);
        let last = targets.len() - 1;
        let mut alone = Vec::new();
        for (name, target, waiters) in [
            ("one alone, all waiters", 0, waiters),
            ("one alone, its waiters", 0, share),
            ("the far one alone", last, share),
        ] {
            if target > 0 && self.args.far.is_zero() {
                continue;
            }
            let runs = self.load(name, &targets[target..=target], waiters).await?;
            alone.push(runs[0].rate());
            self.runs.extend(runs);
        }
        let together = self.load("server", &targets, waiters).await?;
        let mut told = Vec::new();
        let mut least = f64::INFINITY;
        for (number, mut run) in together.into_iter().enumerate() {
            let alone = alone[if number == last { alone.len() - 1 } else { 1 }];
            let of_alone = part(run.rate(), alone);
            least = least.min(of_alone * f64::from(servers));
            let (rate, percent) = (grouped(run.rate()), of_alone * 100.0);
            told.push(format!("{rate} ({percent:.0} % of alone)"));
            run.name = format!("server {number} of {servers}");
            self.runs.push(run);
        }
        for target in targets.iter().skip(1) {
            target.close().await?;
        }
        near.remove().await?;
        self.share = Some(least);
        let starved = match least < self.args.floor.unwrap_or(FAIR_SHARE_MIN) {
            true => "; one has STARVED",
            false => "",
        };
        self.finding = format!("Events/s of the servers: {}{starved}.", told.join(", "));
        Ok(())
    }

    /// The floor of this mode, if there is one.
    pub(super) fn floor(&self) -> Option<f64> {
        let fair = (self.args.servers > 1).then_some(FAIR_SHARE_MIN);
        self.args.floor.or(fair)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped before"
)]
fn rounded(batch: f64) -> u32 {
    batch.round().clamp(1.0, 100_000.0) as u32
}
