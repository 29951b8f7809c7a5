//! `cluster cinema`: the same load on one cinema and on several that are nodes of one database, by turns: through one
//! of them, through all, to the node that owns the show (what a client that follows hints does), and never to that
//! node. So what a request costs at the owner, by a hop and by a hint stands in one table, with the processor time of
//! the application and of the database. `--steps` is the published ladder on both instead.
//!
//! A load begins only when no node owns more than its share of the logs and none moves, and is repeated if one has
//! moved by its end, twice at most; then the report says so. A ladder in which logs moved is no result; its report says
//! so before it is kept. Everything that was acknowledged is compared with the store after each load, and every answer
//! must fit one order of all requests.
//! Not here: the users (`reservation`), what happens when nodes die (`chaos`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gesta_chaos::world::{Ownership, World};
use gesta_core::{AllFrom, WAY_POINTS, uptime};
use gesta_load::cinema::{
    self, Arrival, CinemaChecks, Drive, Generator, Ledger, Phase, Routes, Scenario, Script, Shows,
    To,
};
use gesta_load::counters;
use gesta_load::event_ids::Run;
use gesta_load::machine::child::Program;
use gesta_load::machine::processes::Tree;
use gesta_load::machine::store;
use gesta_report::cells;
use gesta_report::failure::{Result, fail};
use gesta_report::histogram::{Percentiles, median, noise};
use gesta_report::name_of;
use gesta_report::units::{self, seconds};
use gesta_report::{Cell, Report, ReportArgs, Table, Unit};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::SizeArgs;
use super::trace::Trace;
use crate::reservation::{
    self, CONNECTIONS, Ladder, ReservationArgs, SEATS, STOP_P99, Step, users_for,
};
use crate::workload::ladder::Steps;
use crate::workload::watch::Watched;

/// So often a load is measured if logs move meanwhile.
const TRIES: u32 = 3;

/// One cinema against several nodes, by turns.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct CinemaArgs {
    /// The cinema's program.
    #[arg(long, value_name = "PROGRAM")]
    #[serde(skip)]
    cinema: PathBuf,
    /// Nodes beside the single one.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=20))]
    nodes: u16,
    /// Logs of each store.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=1_024))]
    logs: u16,
    /// Who meets whom.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "serial,concurrent"
    )]
    scenarios: Vec<Scenario>,
    /// Requests a second, on a schedule; 0 is a closed loop.
    #[arg(long, value_delimiter = ',', default_value = "0,1000,3000")]
    rates: Vec<u32>,
    /// Users of the closed loop, with a connection each to every node that they ask.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    closed: u32,
    /// Shows of the concurrent scenario, created before the clock starts.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    shows: u32,
    /// First part of each load, kept apart from the figures.
    #[arg(long, default_value = "3s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    warm_up: Duration,
    /// Measured part of each load.
    #[arg(long, default_value = "15s", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    duration: Duration,
    /// How often everything is measured, by turns; medians count.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Climbs a ladder on one cinema, then one through all nodes, FROM:STEP:TO requests a second, in place of rounds.
    #[arg(long, value_name = "FROM:STEP:TO", value_parser = Steps::parse)]
    steps: Option<Steps>,
    /// Length of a step of the ladder; --warm-up is its first part.
    #[arg(long, default_value = "1m", requires = "steps", value_parser = units::duration)]
    #[serde(serialize_with = "seconds")]
    step_duration: Duration,
    /// Tells where the time of a request goes, at this rate, from the trace of the nodes, in place of rounds.
    #[arg(long, value_name = "RATE", conflicts_with_all = ["steps", "rates", "scenarios", "rounds"], value_parser = clap::value_parser!(u32).range(1..=1_000))]
    trace: Option<u32>,
    /// Seed of the order of seats.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// A load that is measured again and again.
struct Case {
    name: String,
    /// Which of the benches.
    bench: usize,
    /// The nodes that are asked.
    asked: Vec<usize>,
    to: To,
    scenario: Scenario,
    /// Requests per second; 0 is a closed loop.
    rate: u32,
    rounds: Vec<Round>,
}

/// What was measured of a case in one round.
struct Round {
    accepted_per_second: f64,
    all: Percentiles,
    /// Requests to the owner of the show, and those that went on to it.
    owner: Percentiles,
    hop: Percentiles,
    /// Processor time per request that was carried out; none if the processes are not known.
    application_micros: f64,
    database_micros: f64,
    /// Of the database, per request: counts, which other work on the machine changes least.
    statements: f64,
    transactions: f64,
    machine_cores: f64,
    late_ms: f64,
}

/// What is told of a case.
const COLUMNS: [(&str, Unit); 16] = [
    ("scenario", Unit::Words),
    ("requests/s wanted", Unit::Count),
    ("through", Unit::Words),
    ("accepted/s", Unit::Count),
    ("±", Unit::Share),
    ("of one node", Unit::Share),
    ("p50", Unit::Millis),
    ("p99", Unit::Millis),
    ("p99.9", Unit::Millis),
    ("application, µs per request", Unit::Count),
    ("database, µs per request", Unit::Count),
    ("both, of one node", Unit::Times),
    ("statements per request", Unit::Count),
    ("transactions per request", Unit::Count),
    ("cores busy", Unit::Cores),
    ("generator late (p99)", Unit::Millis),
];

/// What is told of each kind of request.
const KINDS: [(&str, Unit); 8] = [
    ("scenario", Unit::Words),
    ("requests/s wanted", Unit::Count),
    ("through", Unit::Words),
    ("kind", Unit::Words),
    ("of all requests", Unit::Share),
    ("p50", Unit::Millis),
    ("p99", Unit::Millis),
    ("p99.9", Unit::Millis),
];

impl Case {
    fn middle(&self, value: impl Fn(&Round) -> f64) -> f64 {
        median(&self.rounds.iter().map(value).collect::<Vec<_>>())
    }

    fn rate(&self) -> f64 {
        self.middle(|round| round.accepted_per_second)
    }

    fn micros(&self) -> f64 {
        self.middle(|round| round.application_micros + round.database_micros)
    }

    fn wanted(&self) -> Option<u32> {
        (self.rate > 0).then_some(self.rate)
    }

    /// `one`: the same load on the single node.
    fn cells(&self, one: &Self) -> Vec<Cell> {
        let rates: Vec<f64> = self
            .rounds
            .iter()
            .map(|one| one.accepted_per_second)
            .collect();
        cells![
            name_of(self.scenario),
            self.wanted(),
            &self.name,
            self.rate(),
            (rates.len() > 1).then(|| noise(&rates)),
            (self.rate == 0).then(|| self.rate() / one.rate()),
            self.middle(|one| one.all.p50),
            self.middle(|one| one.all.p99),
            self.middle(|one| one.all.p999),
            self.middle(|one| one.application_micros),
            self.middle(|one| one.database_micros),
            self.micros() / one.micros(),
            self.middle(|one| one.statements),
            self.middle(|one| one.transactions),
            self.middle(|one| one.machine_cores),
            self.middle(|one| one.late_ms),
        ]
    }

    /// A row for each kind of request that this case has.
    fn kinds(&self) -> Vec<Vec<Cell>> {
        let at_owner = match self.to {
            To::Owner => "hint",
            _ => "owner",
        };
        let all = |round: &Round| (round.owner.count + round.hop.count).max(1) as f64;
        let kinds = [(at_owner, Arrival::Owner), ("hop", Arrival::Hop)];
        let kinds = kinds.iter().filter_map(|(kind, arrival)| {
            let of =
                |round: &Round, figure: fn(&Percentiles) -> f64| figure(round.of_arrival(*arrival));
            let share = self.middle(|one| of(one, |p| p.count as f64) / all(one));
            let row = cells![
                name_of(self.scenario),
                self.wanted(),
                &self.name,
                *kind,
                share,
                self.middle(|one| of(one, |p| p.p50)),
                self.middle(|one| of(one, |p| p.p99)),
                self.middle(|one| of(one, |p| p.p999)),
            ];
            (share > 0.0).then_some(row)
        });
        kinds.collect()
    }
}

/// Cinemas under measurement.
struct Bench<'a> {
    nodes: &'a World,
    watched: Watched,
}

impl<'a> Bench<'a> {
    async fn new(nodes: &'a World) -> Result<Self> {
        let database = nodes.databases[0].address()?;
        let application = (nodes.members.iter())
            .filter_map(|node| Tree::listening_on("application", node.server.address()));
        let trees = application.chain(database.and_then(|at| Tree::listening_on("database", at)));
        Ok(Self {
            watched: Watched {
                trees: trees.collect(),
                database: counters::watch(&nodes.url()).await?.map(Arc::new),
            },
            nodes,
        })
    }

    /// One measurement of a case, while no log moves; none if it was interrupted before.
    async fn load(
        &self,
        case: &Case,
        args: &CinemaArgs,
        report: &mut Report,
        stop: &CancellationToken,
    ) -> Result<Option<Round>> {
        let name = format!("{}, {}/s, {}", name_of(case.scenario), case.rate, case.name);
        let settle = async || self.nodes.settled(stop).await;
        let look = async || self.nodes.ownership().await;
        let measured = calm(stop, settle, look, async |found: &Ownership| {
            self.load_once(case, &name, found, args, report, stop).await
        });
        let Some((round, is_calm)) = measured.await? else {
            return Ok(None);
        };
        if !is_calm {
            report.caution(format!("{name}: logs have moved meanwhile."));
        }
        Ok(Some(round))
    }

    async fn load_once(
        &self,
        case: &Case,
        name: &str,
        found: &Ownership,
        args: &CinemaArgs,
        report: &mut Report,
        stop: &CancellationToken,
    ) -> Result<Round> {
        let owners: Vec<usize> = found.owners.iter().copied().flatten().collect();
        // Not open while the load runs: it would be one more process that listens to the messages of the others.
        let opened = store::open_url(&self.nodes.url(), Duration::ZERO, 1).await?;
        let from = AllFrom::Checkpoint(store::end_of(opened.store.as_ref()).await?);
        opened.store.shutdown().await?;
        let asked = case.asked.iter().map(|node| &self.nodes.members[*node]);
        let users = Users {
            targets: asked.map(|node| node.server.address()).collect(),
            routes: Routes::new(&owners, &case.asked, case.to)?,
            case: case.name.clone(),
            scenario: case.scenario,
            existing: match case.scenario {
                Scenario::Serial => 0,
                Scenario::Concurrent => args.shows,
            },
            phase: args.phase(case.rate),
            seed: args.seed,
        };
        let (watched, own_stop) = (self.watched.clone(), stop.clone());
        let (ledger, step, mut checks) =
            cinema::alone(move || users.run(watched, own_stop)).await?;
        let opened = store::open_url(&self.nodes.url(), Duration::ZERO, 1).await?;
        checks.add_events(&opened.store, from, &ledger).await?;
        report.store = Some(opened.facts.clone());
        opened.store.shutdown().await?;
        checks.tell_in_brief(report, name);
        step.tell_of_trouble(report);
        step.object(report);
        let round = Round::of(&step);
        let (rate, all, micros) = (
            round.accepted_per_second,
            &round.all,
            [round.application_micros, round.database_micros],
        );
        eprintln!(
            "{name}: {rate:.0}/s, p50 {:.1} ms, p99 {:.1}, p99.9 {:.1}, {:.0} + {:.0} µs, {:.2} statements",
            all.p50, all.p99, all.p999, micros[0], micros[1], round.statements
        );
        Ok(round)
    }
}

/// Measures when nothing moves, and again if something has moved by the end. Gives the last measurement, and whether
/// nothing has moved; none if it was interrupted before the first.
async fn calm<S: PartialEq, T>(
    stop: &CancellationToken,
    settle: impl AsyncFn() -> Result<S>,
    look: impl AsyncFn() -> Result<S>,
    mut measure: impl AsyncFnMut(&S) -> Result<T>,
) -> Result<Option<(T, bool)>> {
    let (mut tries, mut last) = (TRIES, None);
    loop {
        let before = settle().await?;
        if stop.is_cancelled() {
            return Ok(last);
        }
        let measured = measure(&before).await?;
        let is_calm = look().await? == before;
        tries -= 1;
        last = Some((measured, is_calm));
        if is_calm || tries == 0 {
            return Ok(last);
        }
        eprintln!("logs have moved meanwhile: once more");
    }
}

/// Climbs a ladder when nothing moves. Its report says, before anybody keeps it, if something has moved by the end.
/// Gives the report, and whether everything was run; none if it was interrupted before.
async fn unmoved<S: PartialEq>(
    stop: &CancellationToken,
    settle: impl AsyncFn() -> Result<S>,
    look: impl AsyncFn() -> Result<S>,
    climb: impl AsyncFnOnce() -> Result<(Report, bool)>,
) -> Result<Option<(Report, bool)>> {
    let before = settle().await?;
    if stop.is_cancelled() {
        return Ok(None);
    }
    let (mut report, complete) = climb().await?;
    match look().await {
        Ok(after) if after == before => {}
        Ok(_) => report.problem("logs have moved meanwhile"),
        Err(why) => report.problem(format!("nobody knows whether logs have moved: {why}")),
    }
    Ok(Some((report, complete)))
}

impl Round {
    fn of_arrival(&self, arrival: Arrival) -> &Percentiles {
        match arrival {
            Arrival::Owner => &self.owner,
            Arrival::Hop => &self.hop,
        }
    }

    fn of(step: &Step) -> Self {
        let done = step.result.decided_per_second().max(f64::MIN_POSITIVE);
        let micros = |name| {
            step.cores(name)
                .map_or(f64::NAN, |cores| cores * 1e6 / done)
        };
        let requests = done * step.result.seconds;
        let each = |count: Option<u64>| count.map_or(f64::NAN, |count| count as f64 / requests);
        Self {
            accepted_per_second: step.result.accepted_per_second(),
            all: step.result.served(),
            owner: step.result.over_arrival(Arrival::Owner),
            hop: step.result.over_arrival(Arrival::Hop),
            application_micros: micros("application"),
            database_micros: micros("database"),
            statements: each(
                step.database()
                    .and_then(|it| Some(it.statements.as_ref()?.calls)),
            ),
            transactions: each(step.database().map(|it| it.transactions)),
            machine_cores: step.machine_cores(),
            late_ms: step.result.lag.percentiles().p99,
        }
    }
}

/// The users of one load.
struct Users {
    targets: Vec<SocketAddr>,
    routes: Routes,
    case: String,
    scenario: Scenario,
    existing: u32,
    phase: Phase,
    seed: u64,
}

impl Users {
    async fn run(
        self,
        watched: Watched,
        stop: CancellationToken,
    ) -> Result<(Ledger, Step, CinemaChecks)> {
        let shows = Shows {
            run: Run::random().number(),
            seats: SEATS,
        };
        let script = Script::new(self.scenario, shows, self.existing, self.seed);
        let connections = match self.phase.drive {
            Drive::Closed(users) => users * self.targets.len(),
            Drive::Open { .. } => CONNECTIONS as usize,
        };
        let generator =
            Generator::begin_routed(&self.targets, connections, self.seed, script, self.routes);
        let generator = generator.await?;
        let phases = [(self.case, self.phase)];
        let mut steps = reservation::run_steps(&generator, &phases, &watched, &stop).await;
        let checks = CinemaChecks::of_answers(&generator).await;
        let step = steps.pop().expect("a step for each phase");
        Ok((generator.into_ledger(), step, checks))
    }
}

impl CinemaArgs {
    fn phase(&self, rate: u32) -> Phase {
        let rate = f64::from(rate);
        let drive = match rate > 0.0 {
            true => Drive::Open {
                rate,
                users: users_for(rate),
            },
            false => Drive::Closed(self.closed as usize),
        };
        Phase {
            drive,
            reads: 0.0,
            warm_up: self.warm_up,
            duration: self.duration,
            slow: STOP_P99,
        }
    }

    /// What is measured by turns: each load in all its ways, of which the first is the single node.
    fn loads(&self) -> Vec<Vec<Case>> {
        let all: Vec<usize> = (0..self.nodes.into()).collect();
        let through = [
            ("one node".to_owned(), 0, vec![0], To::Own),
            (format!("one of {}", self.nodes), 1, vec![0], To::Own),
            (format!("all {}", self.nodes), 1, all.clone(), To::Own),
            ("the owner (hints)".to_owned(), 1, all.clone(), To::Owner),
            ("never the owner (hops)".to_owned(), 1, all, To::Another),
        ];
        let mut loads = Vec::new();
        for scenario in &self.scenarios {
            for rate in &self.rates {
                let cases = through
                    .iter()
                    .cloned()
                    .map(|(name, bench, asked, to)| Case {
                        name,
                        bench,
                        asked,
                        to,
                        scenario: *scenario,
                        rate: *rate,
                        rounds: Vec::new(),
                    });
                loads.push(cases.collect());
            }
        }
        loads
    }
}

/// `cluster cinema`. True if it is a result.
pub(super) async fn run(args: &CinemaArgs, stop: &CancellationToken) -> Result<bool> {
    let program = Program::cinema(&args.cinema);
    let size = |nodes| SizeArgs::of(nodes, args.logs);
    if let Some(steps) = args.steps {
        return ladder(args, steps, &program, stop).await;
    }
    if let Some(rate) = args.trace {
        return traced(args, rate, program, stop).await;
    }
    let title = "A cinema on one node and on several";
    let mut report = Report::begin("cluster-cinema", title, args.seed);
    let mut one = World::start(&size(1).plan(&program)).await?;
    let mut several = World::start(&size(args.nodes).plan(&program)).await?;
    let benches = [Bench::new(&one).await?, Bench::new(&several).await?];
    let mut loads = args.loads();
    for _ in 0..args.rounds {
        for case in loads.iter_mut().flatten() {
            if !stop.is_cancelled() {
                let round = benches[case.bench].load(case, args, &mut report, stop);
                let round = round.await?;
                case.rounds.extend(round);
            }
        }
    }
    drop(benches);
    let mut told = Vec::new();
    let mut table = Table::new("Medians of the rounds", COLUMNS);
    let mut kinds = Table::new("Every kind of request, medians of the rounds", KINDS);
    for cases in &loads {
        for case in cases {
            table.row(case.cells(&cases[0]));
            case.kinds().into_iter().for_each(|row| kinds.row(row));
        }
        told.push(sentence(cases));
    }
    report.table(table);
    report.table(kinds);
    report.finding = format!("{}.", told.join("; "));
    report.workload = json!(args);
    one.stop().await?;
    several.stop().await?;
    report.finish(&args.report, !stop.is_cancelled())
}

/// The requests of a light load, point by point: at the owner, and by a hop.
async fn traced(
    args: &CinemaArgs,
    rate: u32,
    mut program: Program,
    stop: &CancellationToken,
) -> Result<bool> {
    let title = "Where the time of a request goes";
    let mut report = Report::begin("cluster-cinema-trace", title, args.seed);
    let filter = format!("warn,{WAY_POINTS}=trace");
    program.arguments.extend(["--log".to_owned(), filter]);
    let size = SizeArgs::of(args.nodes, args.logs);
    let mut nodes = World::start(&size.plan(&program)).await?;
    let bench = Bench::new(&nodes).await?;
    let mut found = Vec::new();
    for (name, to) in [("the owner", To::Owner), ("another node", To::Another)] {
        let case = Case {
            name: name.to_owned(),
            bench: 0,
            asked: (0..args.nodes.into()).collect(),
            to,
            scenario: Scenario::Serial,
            rate,
            rounds: Vec::new(),
        };
        let begun = uptime();
        let loaded = bench.load(&case, args, &mut report, stop).await?;
        if loaded.is_none() {
            break;
        }
        let logs = nodes.members.iter().map(|node| node.server.log());
        let trace = Trace::read(logs, begun, to == To::Another)?;
        report.table(trace.table(&format!("Requests to {name}, each leg of the way")));
        found.push(format!(
            "to {name} {} requests, {:.0} µs",
            trace.requests(),
            trace.whole()
        ));
    }
    drop(bench);
    report.finding = format!(
        "From the question to the answer, medians: {}.",
        found.join("; ")
    );
    report.workload = json!(args);
    nodes.stop().await?;
    report.finish(&args.report, !stop.is_cancelled())
}

/// One node and all nodes, in words.
fn sentence(cases: &[Case]) -> String {
    let (one, all) = (&cases[0], &cases[2]);
    let p99 = |case: &Case| case.middle(|round| round.all.p99);
    let times = all.micros() / one.micros();
    let scenario = name_of(one.scenario);
    let costs = format!(
        "p99 {:.1} ms on one node, {:.1} through {}, {times:.2} times the processor time",
        p99(one),
        p99(all),
        all.name
    );
    match one.rate {
        0 => format!(
            "{scenario}, closed loop: {:.0} requests/s on one node, {:.0} through {} ({:.0} %), {costs}",
            one.rate(),
            all.rate(),
            all.name,
            all.rate() / one.rate() * 100.0
        ),
        rate => format!("{scenario}, {rate}/s: {costs}"),
    }
}

/// The published ladder on one node, then through all: a report for each.
async fn ladder(
    args: &CinemaArgs,
    steps: Steps,
    program: &Program,
    stop: &CancellationToken,
) -> Result<bool> {
    let mut results = Vec::new();
    for count in [1, args.nodes] {
        // Nobody who interrupts is to wait until more nodes have started and their logs are shared.
        if stop.is_cancelled() {
            break;
        }
        let size = SizeArgs::of(count, args.logs);
        let mut nodes = World::start(&size.plan(program)).await?;
        for scenario in &args.scenarios {
            let ladder = Ladder {
                urls: nodes.members.iter().map(|node| node.server.url()).collect(),
                store: nodes.url(),
                scenario: *scenario,
                shows: args.shows,
                seed: args.seed,
                steps,
                step_duration: args.step_duration,
                warm_up: args.warm_up,
                report: args.report.clone(),
            };
            let ladder = ReservationArgs::from(ladder);
            let settle = async || nodes.settled(stop).await;
            let look = async || nodes.ownership().await;
            let climb = async || reservation::drive(&ladder, stop).await;
            let climbed = unmoved(stop, settle, look, climb).await?;
            let Some((mut report, complete)) = climbed else {
                break;
            };
            results.push(report.finish(&args.report, complete)?);
        }
        nodes.stop().await?;
    }
    match results.as_slice() {
        [] => fail("interrupted before a ladder was climbed"),
        results => Ok(results.iter().all(|is_result| *is_result)),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use clap::Parser;

    use super::*;
    use gesta_report::results::Results;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        cinema: CinemaArgs,
    }

    /// Goal: what a trace does not heed is refused beside it.
    #[test]
    fn a_trace_has_a_rate_and_a_scenario_of_its_own() {
        let parsed = |more: &str| {
            let line = format!("lab --cinema cinema --trace 100{more}");
            Line::try_parse_from(line.split(' ')).map(|line| line.cinema.trace)
        };
        assert_eq!(parsed("").unwrap(), Some(100));
        for more in [
            " --rates 5",
            " --scenarios serial",
            " --rounds 2",
            " --steps 1:1:2",
        ] {
            assert!(parsed(more).is_err(), "{more}");
        }
    }

    /// Goal: a load during which something moved is measured again from where things are then, and not for ever.
    #[tokio::test]
    async fn a_load_is_repeated_while_something_moves() {
        for (moves, begun_at, is_calm) in [
            (0, vec![0], true),
            (1, vec![0, 1], true),
            (9, vec![0, 1, 2], false),
        ] {
            let (now, left) = (Cell::new(0), Cell::new(moves));
            let begun = RefCell::new(Vec::new());
            let look = async || -> Result<i32> { Ok(now.get()) };
            let stop = CancellationToken::new();
            let measured = calm(&stop, &look, &look, async |found: &i32| {
                begun.borrow_mut().push(*found);
                if left.get() > 0 {
                    left.set(left.get() - 1);
                    now.set(now.get() + 1);
                }
                Ok(*found)
            });
            let measured = measured.await.unwrap();
            assert_eq!(measured, Some((*begun_at.last().unwrap(), is_calm)));
            assert_eq!(*begun.borrow(), begun_at);
        }
    }

    /// Goal: who interrupts gets what there is, and nothing is measured any more.
    #[tokio::test]
    async fn nothing_is_measured_after_an_interruption() {
        let (now, stop) = (Cell::new(0), CancellationToken::new());
        let look = async || -> Result<i32> { Ok(now.get()) };
        for wanted in [Some((0, false)), None] {
            let measured = calm(&stop, &look, &look, async |found: &i32| {
                now.set(now.get() + 1);
                stop.cancel();
                Ok(*found)
            });
            assert_eq!(measured.await.unwrap(), wanted);
            assert_eq!(now.get(), 1);
        }
        let climbed = unmoved(&stop, &look, &look, async || {
            Ok((Report::begin("reservation", "Seats", 7), true))
        });
        assert!(climbed.await.unwrap().is_none());
    }

    /// What happened: the line of a ladder was written before anybody looked whether logs had moved meanwhile, and said
    /// that it was a result.
    #[tokio::test]
    async fn a_ladder_in_which_logs_have_moved_says_so_in_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let kept = ReportArgs {
            results: Results::file(folder.path().join("results.jsonl")),
        };
        let stop = CancellationToken::new();
        for (moves, problem) in [
            (Ok(0), None),
            (Ok(1), Some("logs have moved meanwhile")),
            (
                Err("away"),
                Some("nobody knows whether logs have moved: away"),
            ),
        ] {
            let settle = async || -> Result<i32> { Ok(0) };
            let look = async || -> Result<i32> { moves.or_else(fail) };
            let climbed = unmoved(&stop, settle, look, async || {
                Ok((Report::begin("reservation", "Seats", 7), true))
            });
            let (mut report, complete) = climbed.await.unwrap().unwrap();
            assert_eq!(report.finish(&kept, complete).unwrap(), problem.is_none());
            let lines = std::fs::read_to_string(&kept.results.file).unwrap();
            let line: Report = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
            assert_eq!(line.valid, problem.is_none());
            assert_eq!(line.problems, Vec::from_iter(problem));
        }
    }
}
