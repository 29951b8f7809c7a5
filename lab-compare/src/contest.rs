//! A run: Gesta, then each peer after a short control of Gesta, then Gesta again.

use std::path::PathBuf;

use gesta_report::failure::{Result, fail};
use gesta_report::histogram::median;
use gesta_report::{Report, ReportArgs};
use tokio_util::sync::CancellationToken;

use crate::peer::{Measured, Peer, Round};
use crate::peers;
use crate::table::{PeerResult, grouped, tell};
use crate::workload::{Cell, Workload};
use crate::world::World;

/// The control before each peer: so many workers with single events, at most so many seconds.
const CONTROL: (u32, u64) = (16, 2);

/// A noise above which the peers did not have the same machine.
const NOISE_MAX: f64 = 0.1;

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Peers, by their names or the beginnings of them; all that are installed if none is named. Gesta is always
    /// measured.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    #[command(flatten)]
    workload: Workload,
    /// Seed of the events' contents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program `gesta`, for Gesta behind HTTP.
    #[arg(long, env = "GESTA_BIN")]
    gesta: Option<PathBuf>,
    /// The folder that `./install` fills.
    #[arg(long, env = "GESTA_PEERS")]
    installed: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
}

/// Runs; true if it is a result.
pub(crate) async fn run(args: &RunArgs, stop: &CancellationToken) -> Result<bool> {
    args.report.results.check()?;
    let mut chosen = peers::chosen(&args.peers)?;
    chosen.push(peers::last());
    let workload = &args.workload;
    let world = World::new(
        args.installed.as_deref(),
        args.gesta.as_deref(),
        workload.connections(),
    )?;
    let mut report = Report::begin("compare-peers", "Beside other systems", args.seed);
    report.workload = serde_json::to_value(workload)?;
    let mut contest = Contest {
        workload,
        seed: args.seed,
        stop,
        world,
        results: Vec::new(),
        controls: Vec::new(),
    };
    contest.run(chosen).await;
    contest.fill(&mut report);
    report.finish(&args.report, !stop.is_cancelled())
}

struct Contest<'a> {
    workload: &'a Workload,
    seed: u64,
    stop: &'a CancellationToken,
    world: World,
    results: Vec<PeerResult>,
    /// Events per second of Gesta before each peer but the first and last.
    controls: Vec<f64>,
}

impl Contest<'_> {
    /// Everything; what there is stays there if it is interrupted.
    async fn run(&mut self, peers: Vec<Box<dyn Peer>>) {
        let last = peers.len() - 1;
        for (index, mut peer) in peers.into_iter().enumerate() {
            if index > 0 && index < last && !self.stop.is_cancelled() {
                self.control().await;
            }
            let mut result = PeerResult::new(peer.name(), peer.title());
            if self.stop.is_cancelled() {
                result.skipped = Some("interrupted".into());
            } else {
                eprintln!("{} of {}: {}", index + 1, last + 1, peer.title());
                self.one(peer.as_mut(), &mut result).await;
            }
            if let Some(why) = &result.skipped {
                eprintln!("*** {} is not measured: {why} ***", result.title);
            }
            self.results.push(result);
        }
        if let Some(gesta) = self.results.first() {
            let durability = gesta.about.durability.clone();
            for result in &mut self.results {
                let said = &result.about.durability;
                result.comparable = said.is_empty() || durability.is_empty() || *said == durability;
            }
        }
    }

    async fn one(&mut self, peer: &mut dyn Peer, result: &mut PeerResult) {
        if let Err(why) = self.cells(peer, result).await {
            result.skipped = Some(why.0);
        }
        let ended = peer.end(&mut self.world).await;
        if let Err(why) = ended.and_then(|()| self.world.clear()) {
            eprintln!("*** ending {}: {why} ***", result.title);
        }
    }

    async fn cells(&mut self, peer: &mut dyn Peer, result: &mut PeerResult) -> Result<()> {
        result.about = peer.start(&mut self.world).await?;
        for cell in self.workload.cells() {
            if self.stop.is_cancelled() {
                return fail("interrupted");
            }
            let measured = self.measure(peer, cell, self.workload).await?;
            eprintln!(
                "  {} workers × {}: {} events/s",
                cell.workers,
                cell.events,
                grouped(measured.phase.events_per_second)
            );
            // An interrupted warm-up is no measurement.
            if measured.phase.seconds > 0.0 || !measured.read_back.is_clean() {
                result.add(cell, measured);
            }
        }
        Ok(())
    }

    async fn measure(
        &self,
        peer: &mut dyn Peer,
        cell: Cell,
        workload: &Workload,
    ) -> Result<Measured> {
        let round = Round {
            workload,
            cell,
            seed: self.seed,
            stop: self.stop,
        };
        peer.measure(&round).await
    }

    /// Measures Gesta shortly, so that a change of the machine shows.
    async fn control(&mut self) {
        let mut gesta = peers::control();
        let mut workload = self.workload.clone();
        workload.seconds = workload.seconds.min(CONTROL.1);
        let rate = match gesta.start(&mut self.world).await {
            Ok(_) => {
                self.measure(gesta.as_mut(), Cell::new(CONTROL.0, 1), &workload)
                    .await
            }
            Err(why) => Err(why),
        };
        match rate {
            Ok(measured) if measured.phase.complete => {
                self.controls.push(measured.phase.events_per_second)
            }
            Ok(_) => {}
            Err(why) => eprintln!("*** the control of Gesta: {why} ***"),
        }
        if let Err(why) = gesta.end(&mut self.world).await {
            eprintln!("*** ending the control: {why} ***");
        }
    }

    /// Half the range of the controls over their median; none of fewer than two.
    fn noise(&self) -> Option<f64> {
        if self.controls.len() < 2 {
            return None;
        }
        let least = self.controls.iter().copied().reduce(f64::min)?;
        let most = self.controls.iter().copied().reduce(f64::max)?;
        let middle = median(&self.controls);
        (middle > 0.0).then(|| ((most - least) / 2.0 / middle * 1_000.0).round() / 1_000.0)
    }

    /// What a reader must know, in sentences.
    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> =
            self.results.iter().flat_map(PeerResult::problems).collect();
        if let Some(noise) = self.noise().filter(|noise| *noise > NOISE_MAX) {
            problems.push(format!(
                "the machine changed during the run: Gesta's control by ±{:.0} %; smaller differences say nothing",
                noise * 100.0
            ));
        }
        problems
    }

    fn fill(&self, report: &mut Report) {
        tell(report, &self.workload.cells(), &self.results);
        for peer in self
            .results
            .iter()
            .filter(|peer| peer.name.starts_with("gesta"))
        {
            for cell in &peer.cells {
                let what = format!("{}, {} workers × {}", peer.title, cell.workers, cell.events);
                report.check(what, &cell.read_back);
            }
        }
        if !self.results.iter().any(PeerResult::is_result) {
            report.problem("no system has a result");
        }
        report.cautions = self.problems();
        if let Some(noise) = self.noise() {
            let told: Vec<String> = self.controls.iter().map(|rate| grouped(*rate)).collect();
            report.text(format!(
                "Gesta was measured again before each of the others, to watch the machine: {} events/s with {} workers, ±{:.1} %.",
                told.join(", "),
                CONTROL.0,
                noise * 100.0
            ));
        }
    }
}
