//! One world under one load, round by round: a fault, its end, the load that goes on, and a verdict.
//!
//! A round is over when everybody at work has got something done that was begun after the fault had healed, and all
//! logs of nodes have owners that live. When a stretch of rounds is over, the load ends and everything is judged. At
//! the end, left alone, nodes must come to equal shares of the logs, and the store must pass `gesta verify`.

mod outcome;

use std::path::Path;
use std::time::{Duration, Instant};

use gesta_load::random::{Bag, Random};
use gesta_report::failure::{Failure, Result};
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub(crate) use self::outcome::Outcome;
use crate::args::ChaosArgs;
use crate::fail_over::FailOvers;
use crate::fault::{Fault, Scene, Victim};
use crate::history_file::HistoryFile;
use crate::inflict::{Field, Strength};
use crate::load::appends::{Appends, Through};
use crate::load::groups::Groups;
use crate::load::payments::Payments;
use crate::load::seats::Seats;
use crate::load::{Excuse, FaultEffects, Load, LoadKind, StretchReport};
use crate::lossy_fail_over::LossyRound;
use crate::world::{Owners, World};

/// The logs of a node that was killed are without an owner for no longer.
const WITHOUT_OWNER_MAX: Duration = Duration::from_secs(10);
/// The longest append through a node that is not hurt.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Nodes that are left alone have equal shares within this time.
const BALANCED_WITHIN: Duration = Duration::from_secs(180);
/// A database that is away for longer excuses unknown outcomes.
const DATABASE_AWAY_MAX: Duration = Duration::from_secs(10);
/// Pause of a writer that gives work to groups, which are read from the beginning after each stretch.
const PAUSE_OF_GROUPS: Duration = Duration::from_millis(100);

/// What is counted of each kind of fault.
const COUNTS: [&str; 5] = ["acknowledged", "lost", "doubled", "stale", "unknown"];
/// Which times are told.
const TIMES: [&str; 4] = [
    "longest append elsewhere",
    "longest through any node",
    "a log without owner",
    "all go on after",
];

/// How far a world is hurt.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// For so many rounds.
    Rounds(u32),
    /// For so long, once it has started.
    Passed(Duration),
}

/// A world, its load, and what was found so far.
pub(crate) struct Chaos<'a> {
    args: &'a ChaosArgs,
    scene: Scene,
    load: Box<dyn Load + 'a>,
    world: World,
    owners: Option<Owners>,
    fail_overs: FailOvers,
    random: Random,
    stop: &'a CancellationToken,
    /// The stretch under way, its rounds so far, and what was done in it.
    stretch: u32,
    rounds_of_stretch: u32,
    hurt: FaultEffects,
    outcome: Outcome,
}

/// What a fault has done, before its round is over.
struct Inflicted {
    fault: Fault,
    name: String,
    /// The members that were hurt.
    hurt: Vec<usize>,
    /// From its beginning until it was healed.
    lasted: Duration,
    /// How many logs the nodes had that were hurt.
    owned: u64,
    /// The last moves before it.
    moved: Vec<i64>,
    back_after: Duration,
}

/// Hurts one world under a load until it is over or something is found.
pub(crate) async fn run(
    args: &ChaosArgs,
    scene: Scene,
    until: Until,
    load: Box<dyn Load + '_>,
    program: &Path,
    stop: &CancellationToken,
) -> Result<Outcome> {
    let faults = Fault::wanted(&args.faults, &scene)?;
    let plan = args.plan(&scene, &faults, program);
    let world = World::start(&plan).await?;
    let owners = scene.are_nodes.then(|| Owners::watch(&world));
    let mut chaos = Chaos {
        args,
        scene,
        load,
        world,
        owners,
        fail_overs: FailOvers::new(args.within),
        random: Random::fork(args.seed, 2),
        stop,
        stretch: 0,
        rounds_of_stretch: 0,
        hurt: FaultEffects::default(),
        outcome: Outcome::new(
            json!({ "parts": plan.parts, "logs": plan.logs, "members": plan.members }),
        ),
    };
    chaos.rounds(faults, until).await;
    let is_interrupted = stop.is_cancelled();
    if chaos.outcome.problems.is_empty() && !is_interrupted {
        chaos.end(program).await;
    }
    let mut outcome = chaos.outcome;
    if !is_interrupted {
        outcome.problems.extend(outcome.nothing_judged());
    }
    outcome.is_complete = !is_interrupted;
    if scene.world == crate::fault::WorldKind::Patroni && !scene.is_lossy {
        outcome.fail_overs = Some(chaos.fail_overs.table());
    }
    Ok(outcome)
}

/// The load of a scene.
pub(crate) fn load(
    args: &ChaosArgs,
    scene: &Scene,
    program: &Path,
    history: &HistoryFile,
) -> Box<dyn Load> {
    let (writers, seed, history) = (args.writers, args.seed, history.clone());
    match scene.load {
        LoadKind::Seats => Box::new(Seats::new(writers, seed, history)),
        LoadKind::Payments => {
            let (within, any_time) = (args.pay_within, args.any_time);
            Box::new(Payments::new(writers, seed, within, any_time, history))
        }
        LoadKind::Groups => {
            // Where commits are lost a stretch is short, and the new history must outgrow the lost one.
            let pause = match scene.is_lossy {
                true => args.pause,
                false => args.pause.max(PAUSE_OF_GROUPS),
            };
            let through = match args.idle {
                true => Through::TheFirst,
                false => Through::EachServer,
            };
            Box::new(Groups::new(through, (writers, pause), seed, program))
        }
        LoadKind::Appends | LoadKind::Steady | LoadKind::Own => {
            let through = match scene.world {
                _ if scene.are_nodes => Through::AnyNode,
                crate::fault::WorldKind::Patroni => Through::TheFirst,
                _ => Through::EachServer,
            };
            let pace = (writers, args.pause);
            Box::new(Appends::new(
                through,
                pace,
                seed,
                args.probe_patience(),
                history,
            ))
        }
    }
}

impl Chaos<'_> {
    /// Until all rounds are over or something was found.
    async fn rounds(&mut self, faults: Vec<Fault>, until: Until) {
        let mut bag = Bag::new(faults, Random::fork(self.args.seed, 1));
        let begun = Instant::now();
        loop {
            let is_over = match until {
                Until::Rounds(rounds) => self.outcome.rounds >= rounds,
                Until::Passed(time) => begun.elapsed() >= time,
            };
            if is_over || self.stop.is_cancelled() {
                break;
            }
            let Some(fault) = bag.draw() else { break };
            self.outcome.rounds += 1;
            let found = self.outcome.problems.len();
            if let Err(failure) = self.round(fault).await {
                self.wrong(fault, failure.to_string());
            }
            if self.outcome.problems.len() > found {
                eprintln!("{}", self.world.last_words());
                return;
            }
        }
        if self.rounds_of_stretch > 0
            && let Err(failure) = self.end_stretch(None).await
        {
            self.outcome.problems.push(format!("at the end: {failure}"));
        }
    }

    fn name(&self, fault: Fault) -> String {
        format!("round {} ({})", self.outcome.rounds, fault.name())
    }

    fn wrong(&mut self, fault: Fault, what: impl std::fmt::Display) {
        let text = format!("{}: {what}", self.name(fault));
        eprintln!("  WRONG: {text}");
        self.outcome.problems.push(text);
    }

    /// A round, and what it has shown.
    async fn round(&mut self, fault: Fault) -> Result<()> {
        if fault.loses_commits(&self.scene) {
            return self.lose(fault).await;
        }
        if fault.victim() == Victim::Patroni {
            return self.fail_over(fault).await;
        }
        self.begin_stretch().await?;
        if self.owners.is_none() {
            let before = Duration::from_millis(50 + self.random.next() % 300);
            tokio::time::sleep(before).await;
        }
        let begun = Instant::now();
        let inflicted = self.inflict(fault).await?;
        self.load.let_go();
        self.rounds_of_stretch += 1;
        let went_on = Instant::now();
        self.quiet().await?;
        self.excuse(&inflicted, begun, went_on);
        let shown = match self.rounds_of_stretch >= self.args.stretch_of(&self.scene) {
            true => self.end_stretch(Some(fault)).await?,
            false => StretchReport::default(),
        };
        self.settle(&inflicted, &shown).await
    }

    /// Notes who is not to blame for outcomes that were unknown since a fault began.
    fn excuse(&mut self, inflicted: &Inflicted, from: Instant, went_on: Instant) {
        let fault = inflicted.fault;
        let (members, to) = match &self.owners {
            // An answer may be lost anywhere on its way between nodes, until all logs have owners.
            Some(_) => (None, Instant::now()),
            None if inflicted.lasted > DATABASE_AWAY_MAX => (None, went_on),
            None if !fault.excuses_unknown() => return,
            None => match fault.victim() {
                Victim::Servers | Victim::Clients => (Some(inflicted.hurt.clone()), went_on),
                _ => (None, went_on),
            },
        };
        self.hurt.excused.push(Excuse { members, from, to });
    }

    /// The load begins, unless it works already.
    async fn begin_stretch(&mut self) -> Result<()> {
        let within = self.args.progress_within();
        if self.rounds_of_stretch > 0 {
            return Ok(());
        }
        self.stretch += 1;
        self.hurt = FaultEffects::default();
        self.load.begin(&self.world, self.stretch).await?;
        if let Some(groups) = self.load.groups() {
            groups.settled();
        }
        if let Some(owners) = &self.owners {
            owners.complete(BALANCED_WITHIN).await?;
        }
        self.load.goes_on(within).await.map(drop)
    }

    /// The load ends and is judged.
    async fn end_stretch(&mut self, last: Option<Fault>) -> Result<StretchReport> {
        self.rounds_of_stretch = 0;
        let shown = self.load.end(&self.world, &self.hurt).await?;
        self.add(last, &shown);
        Ok(shown)
    }

    /// Adds what a stretch has come to.
    fn add(&mut self, last: Option<Fault>, shown: &StretchReport) {
        self.outcome.acknowledged += shown.acknowledged;
        self.outcome.events += shown.events;
        let name = last.map_or_else(|| "at the end".to_owned(), |fault| self.name(fault));
        for problem in &shown.problems {
            eprintln!("  WRONG: {name}: {problem}");
        }
        let problems = shown.problems.iter();
        let problems = problems.map(|problem| format!("{name}: {problem}"));
        self.outcome.problems.extend(problems);
    }

    /// Makes the fault of this round and heals it; the load goes on.
    async fn inflict(&mut self, fault: Fault) -> Result<Inflicted> {
        let (moved, owned) = match &self.owners {
            Some(owners) => (owners.begin_round().await?, owners.owned().await?),
            None => Default::default(),
        };
        let time = Duration::from_millis(200 + self.random.next() % 1_300);
        let over = self.stop.child_token();
        let mut field = Field {
            world: &mut self.world,
            owners: self.owners.as_ref(),
            prober: self.load.prober(),
            strength: Strength::of(time),
            owned_within: self.args.owned_within(),
            over: &over,
        };
        let begun = Instant::now();
        let hurt = field.inflict(fault, &mut self.random).await?;
        let lasted = begun.elapsed();
        let of_hurt = hurt
            .iter()
            .map(|member| &self.world.members[*member].address);
        let owned = of_hurt.filter_map(|address| owned.get(address)).sum();
        self.hurt.members.extend(&hurt);
        let back_after = self.load.goes_on(self.args.progress_within()).await?;
        Ok(Inflicted {
            fault,
            name: self.name(fault),
            hurt,
            lasted,
            owned,
            moved,
            back_after,
        })
    }

    /// Waits until all logs have owners, and a little while.
    async fn quiet(&mut self) -> Result<()> {
        if let Some(owners) = &self.owners {
            owners.complete(self.args.owned_within()).await?;
            let after = Duration::from_millis(self.random.next() % 1_000);
            tokio::time::sleep(after).await;
        }
        Ok(())
    }

    /// Adds up what a round has shown, and what has become of the logs.
    async fn settle(&mut self, inflicted: &Inflicted, shown: &StretchReport) -> Result<()> {
        let Inflicted {
            fault,
            name,
            back_after,
            ..
        } = inflicted;
        // What a stretch has shown is not of its last round alone.
        let is_own = self.args.stretch_of(&self.scene) == 1;
        let counts = is_own.then(|| counts_of(shown));
        let counts = counts.as_ref().map(<[u64; COUNTS.len()]>::as_slice);
        let Some(owners) = &self.owners else {
            let times = [None, None, None, Some(*back_after)];
            self.outcome.per_fault.add(*fault, counts, &times);
            eprintln!("{name}: back after {back_after:.1?}{}", told(shown));
            return Ok(());
        };
        let without_owner = owners.longest();
        let moves = owners.moves_since(&inflicted.moved).await?;
        let (elsewhere, anywhere) = (shown.longest_elsewhere, shown.longest);
        let times = [elsewhere, anywhere, Some(without_owner), Some(*back_after)];
        self.outcome.per_fault.add(*fault, counts, &times);
        let all = self.outcome.moves.entry(*fault).or_default();
        for (reason, count) in &moves {
            *all.entry(reason.clone()).or_default() += count;
        }
        let is_too_long = |time: Duration, max: Duration| !self.args.any_time && time > max;
        let mut wrong = Vec::new();
        let elsewhere_too_long = elsewhere.filter(|pause| is_too_long(*pause, PAUSE_MAX));
        if let Some(pause) = elsewhere_too_long.filter(|_| fault.leaves_others()) {
            wrong.push(format!(
                "an append through a node that lives took {pause:.1?}"
            ));
        }
        // For balance logs may move at any time.
        let needed = moves.iter().filter(|(reason, _)| *reason != "balance");
        let needed: u64 = needed.map(|(_, count)| count).sum();
        if needed > fault.moves_max(inflicted.owned) {
            wrong.push(format!("logs moved without need: {moves:?}"));
        }
        if fault.kills() && is_too_long(without_owner, WITHOUT_OWNER_MAX) {
            wrong.push(format!(
                "a log was without an owner for {without_owner:.1?}"
            ));
        }
        let longest = match anywhere.zip(elsewhere) {
            Some((anywhere, elsewhere)) => {
                format!("longest append {anywhere:.1?}, elsewhere {elsewhere:.1?}, ")
            }
            None => String::new(),
        };
        let moved = match moves.is_empty() {
            true => "no log moved".to_owned(),
            false => format!("moved {moves:?}"),
        };
        eprintln!(
            "{name}: {longest}without owner {without_owner:.1?}, {moved}, back after {back_after:.1?}{}",
            told(shown)
        );
        for text in wrong {
            self.wrong(*fault, text);
        }
        Ok(())
    }

    /// A round in which a synchronous standby takes over.
    async fn fail_over(&mut self, fault: Fault) -> Result<()> {
        self.fail_overs.prepare(&self.world).await?;
        self.begin_stretch().await?;
        let begun = Instant::now();
        let round = (self.outcome.rounds, fault);
        let run = self
            .fail_overs
            .run(&mut self.world, self.load.as_mut(), round);
        let (times, wrong) = run.await?;
        self.hurt.excused.push(Excuse {
            members: None,
            from: begun,
            to: Instant::now(),
        });
        for text in wrong {
            self.wrong(fault, text);
        }
        let shown = self.end_stretch(Some(fault)).await?;
        let counts = counts_of(&shown);
        let times_told = [None, None, None, Some(times.later)];
        self.outcome
            .per_fault
            .add(fault, Some(&counts), &times_told);
        eprintln!(
            "{}: a primary after {:.1?}; without writes the database {:.1?}, Gesta {:.1?}, which is {:.1?} later{}",
            self.name(fault),
            times.database_after,
            times.database_away,
            times.gesta_away,
            times.later,
            told(&shown)
        );
        Ok(())
    }

    /// A round that loses commits.
    async fn lose(&mut self, fault: Fault) -> Result<()> {
        self.stretch += 1;
        self.load.begin(&self.world, self.stretch).await?;
        let name = self.name(fault);
        let Some(groups) = self.load.groups() else {
            return Err(Failure("this load cannot tell what may be lost".into()));
        };
        let round = LossyRound {
            world: &mut self.world,
            groups,
            random: &mut self.random,
            fault,
            number: self.outcome.rounds,
            kills_servers: !self.args.idle,
        };
        let report = round.run().await?;
        self.add(Some(fault), &report.shown);
        let counts = [report.shown.acknowledged, 0, 0, 0, 0];
        let times = [None, None, None, Some(report.known_after)];
        self.outcome.per_fault.add(fault, Some(&counts), &times);
        eprintln!(
            "{name}: known everywhere after {:.1?}{}",
            report.known_after,
            told(&report.shown)
        );
        Ok(())
    }

    /// Equal shares after a while, what only the end can show, and the store is healthy.
    async fn end(&mut self, program: &Path) {
        if let Err(failure) = self.ended(program).await {
            self.outcome.problems.push(failure.to_string());
        }
    }

    async fn ended(&mut self, program: &Path) -> Result<()> {
        if let Some(owners) = &self.owners {
            let balanced = owners.balanced(&self.world, BALANCED_WITHIN).await;
            self.outcome.balanced_after = Some(balanced?);
        }
        let shown = self.load.finish(&self.world, false).await?;
        self.finish(shown);
        self.world.stop().await?;
        let shown = self.load.finish(&self.world, true).await?;
        self.finish(shown);
        self.world.verify(program).await
    }

    fn finish(&mut self, shown: StretchReport) {
        self.add(None, &shown);
        if !shown.told.is_empty() {
            self.outcome.told.push(shown.told);
        }
    }
}

/// In the order of [`COUNTS`].
fn counts_of(shown: &StretchReport) -> [u64; COUNTS.len()] {
    [
        shown.acknowledged,
        shown.lost,
        shown.doubled,
        shown.stale,
        shown.unknown,
    ]
}

fn told(shown: &StretchReport) -> String {
    match shown.told.is_empty() {
        true => String::new(),
        false => format!("; {}", shown.told),
    }
}
