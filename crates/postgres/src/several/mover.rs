//! The databases of a store: adds one, moves a log from one to another while the store is in use, and recovers a log
//! that its database has lost.
//!
//! How a move goes, and why it may be stopped at any point: `docs/internals/moving-logs.md`. Not here: the order of the
//! steps (`moving`), what a step does in a database ([`Relocation`]).

use std::collections::BTreeSet;

use futures::future::{join_all, try_join_all};
use gesta_core::{Error, ErrorKind, LogId, Position, Result};

use crate::config::Config;
use crate::databases::relocation::{Compared, CopiedPage, CopyState, Relocation};
use crate::log_map::{Arrival, DatabaseId, HeldRow, LogMap, MapCopy, NamedDatabase, RowMark};
use crate::schema;
use crate::several::check::arrange;
use crate::several::moving::{Fact, Goal, Loss, Step, most_complete, next_step};

/// How many pages are copied before the databases are looked at again.
const PAGES_MAX: usize = 64;
/// How often in sequence a step may be refused because another process has changed the databases meanwhile.
const REFUSALS_MAX: u32 = 20;

/// Where a log is to be moved.
#[derive(Clone, Copy, Debug)]
pub enum MoveTo<'a> {
    /// The log is to lie in the database at this URL.
    Database(&'a str),
    /// The log is to stay where it was: a move that was begun is undone.
    Back,
    /// The log was lost by its database. The copy of it in the database at the URL `from` is to be the log again; if no
    /// URL is given, the copy that has everything that is left.
    Recovered {
        /// The database with the copy.
        from: Option<&'a str>,
        /// Whether events may be given up that other copies have and this one has not.
        loss: Loss,
    },
}

/// What has come of moving a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// How many steps were done.
    pub steps: u64,
    /// The database in which the log lies now, for people.
    pub home: String,
    /// The database in which the log lay before, for people.
    pub before: String,
    /// How many rows of copies were given up.
    pub given_up: u64,
}

/// Adds the empty database at `new` to the store in the databases at `urls`. It holds no log until one is moved there.
/// Every process of the store must be given its URL before that. If this is interrupted, calling it again finishes it.
///
/// # Errors
/// `Schema` if there is another store at `new`; `Unsupported` while nodes are registered or virtual streams are
/// switched on, which a store in several databases does not keep, or if the rights are missing; `InvalidArgument` if a
/// URL cannot be used or a database of the store is missing; `Unavailable` if a database does not answer.
///
/// # Cancel safety
/// If the future is dropped, the database may have been added in part. Calling it again finishes it.
pub async fn add(urls: &str, new: &str) -> Result<LogMap> {
    let added = add_to(urls, new).await;
    added.map_err(|error| error.during("add a database"))
}

async fn add_to(urls: &str, new: &str) -> Result<LogMap> {
    let configs = Config::parse_list(urls)?;
    let [config] = Config::parse_list(new)?
        .try_into()
        .map_err(|_| Error::invalid("database", "must be one URL"))?;
    let databases = Relocations::open(&configs).await?;
    databases.lock().await?;
    let looks = databases.look(LogId(0)).await?;
    check_no_nodes(&databases, &looks)?;
    databases.check_no_virtual_streams().await?;
    let copies: Vec<&MapCopy> = looks.iter().map(|look| &look.copy).collect();
    let (map, _) = arrange(&copies)?;
    let wider = match schema::read_empty(&config).await? {
        None => {
            let here = DatabaseId::random();
            let name = config.name();
            let wider = map.extended(NamedDatabase { id: here, name })?;
            schema::create_part(&config, &MapCopy::new(here, wider.clone())).await?;
            wider
        }
        // An earlier call was interrupted.
        Some(copy) if copy.map.store() == map.store() => copy.map,
        Some(_) => {
            let text = format!("there is another store in {}", config.name());
            return Err(ErrorKind::Schema(text).into());
        }
    };
    for (database, look) in databases.0.iter().zip(&looks) {
        let found = look.copy.map.version();
        if found < wider.version() && !database.put(found, &wider, None).await? {
            return Err(changed_meanwhile());
        }
    }
    Ok(wider)
}

fn changed_meanwhile() -> Error {
    Error::unavailable("somebody else changes the databases of this store: try again")
}

fn check_no_nodes(databases: &Relocations, looks: &[CopyState]) -> Result<()> {
    for (database, look) in databases.0.iter().zip(looks) {
        let (nodes, name) = (look.nodes, database.name());
        if nodes > 0 {
            let text = format!(
                "nodes learn of a new database when they are started, found {nodes} nodes in {name}: stop them first, \
                 then start them with all databases"
            );
            return Err(ErrorKind::Unsupported(text).into());
        }
    }
    Ok(())
}

/// Connections to all databases of a store.
struct Relocations(Vec<Relocation>);

impl Relocations {
    async fn open(configs: &[Config]) -> Result<Self> {
        let opened = configs.iter().map(async |config| {
            let opened = Relocation::open(config).await;
            opened.map_err(|error| match error.kind() {
                ErrorKind::Unavailable(why) => {
                    Error::unavailable(format!("{}: {why}", config.name())).caused_by(error)
                }
                _ => error,
            })
        });
        Ok(Self(try_join_all(opened).await?))
    }

    /// Waits until no other process moves logs of the store, and keeps others from that. The order is that of the ids
    /// of the databases, the same in every process.
    async fn lock(&self) -> Result<()> {
        let copies = try_join_all(self.0.iter().map(Relocation::read_map)).await?;
        let mut order: Vec<usize> = (0..copies.len()).collect();
        order.sort_by_key(|at| copies[*at].here);
        for at in order {
            self.0[at].lock().await?;
        }
        Ok(())
    }

    async fn check_no_virtual_streams(&self) -> Result<()> {
        for database in &self.0 {
            if database.keeps_virtual_streams().await? {
                let name = database.name();
                let text = format!(
                    "virtual streams are on in {name}, and a store in several databases keeps none: if nobody reads them any \
                     more, switch them off first (`gesta virtual-streams off`)"
                );
                return Err(ErrorKind::Unsupported(text).into());
            }
        }
        Ok(())
    }

    async fn look(&self, log: LogId) -> Result<Vec<CopyState>> {
        let looks = join_all(self.0.iter().map(|database| database.look(log))).await;
        looks.into_iter().collect()
    }
}

/// What a mover is to do.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// The log is to lie in this database.
    At(DatabaseId),
    /// A move that was begun is undone.
    Back,
    /// The copy in this database is to be the log; `None` as long as nobody has chosen one.
    Recovered(Option<DatabaseId>, Loss),
}

/// Moves a log, step by step. A mover may be dropped at any moment; the next one goes on.
pub struct Mover {
    databases: Relocations,
    log: LogId,
    wanted: Wanted,
    /// The places of the databases whose copies have been compared.
    compared: BTreeSet<usize>,
    /// The position up to which the copy was compared, and how much the old database had scavenged at that time.
    compared_to: Option<(Position, u64)>,
    refusals: u32,
    given_up: u64,
}

impl std::fmt::Debug for Mover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover")
            .field("log", &self.log)
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}

/// What the databases hold of a log, in the order of the newest map.
struct Holdings {
    map: LogMap,
    /// For each database of the map its index among those given.
    order: Vec<usize>,
    states: Vec<CopyState>,
    facts: Vec<Fact>,
}

impl Mover {
    /// Connects to the databases at `urls`, which must be all databases of the store, and waits until no other process
    /// moves logs of the store, whether it lives or has died. The database of the goal may be left out.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer, or another process moves logs and does not end within 10 s;
    /// `InvalidArgument` if a database is missing; `Schema` if there is no store.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn open(urls: &str, log: LogId, goal: MoveTo<'_>) -> Result<Self> {
        let mut configs = Config::parse_list(urls)?;
        let mut target = None;
        let named = match goal {
            MoveTo::Database(url) => Some(("to", url)),
            MoveTo::Recovered { from, .. } => from.map(|url| ("from", url)),
            MoveTo::Back => None,
        };
        if let Some((argument, url)) = named {
            let [config] = Config::parse_list(url)?
                .try_into()
                .map_err(|_| Error::invalid(argument, "must be one URL"))?;
            let name = config.name();
            let at = configs.iter().position(|config| config.name() == name);
            target = Some(at.unwrap_or(configs.len()));
            if at.is_none() {
                configs.push(config);
            }
        }
        let databases = Relocations::open(&configs).await?;
        databases.lock().await?;
        let looks = databases.look(log).await?;
        let copies: Vec<&MapCopy> = looks.iter().map(|look| &look.copy).collect();
        arrange(&copies)?;
        let target = target.map(|at| looks[at].copy.here);
        Ok(Self {
            log,
            wanted: match (goal, target) {
                (MoveTo::Recovered { loss, .. }, target) => Wanted::Recovered(target, loss),
                (_, Some(target)) => Wanted::At(target),
                (_, None) => Wanted::Back,
            },
            databases,
            compared: BTreeSet::new(),
            compared_to: None,
            refusals: 0,
            given_up: 0,
        })
    }

    /// Looks at all databases: first at what each of them holds, then whether each has the last rows of the others.
    async fn look(&self) -> Result<Holdings> {
        let looks = self.databases.look(self.log).await?;
        let copies: Vec<&MapCopy> = looks.iter().map(|look| &look.copy).collect();
        let (map, order) = arrange(&copies)?;
        let map = map.clone();
        let states: Vec<CopyState> = order.iter().map(|at| looks[*at].clone()).collect();
        let arrival = map.arrival(self.log).unwrap_or(Arrival::NEVER);
        let rows: Vec<(usize, HeldRow)> = states
            .iter()
            .enumerate()
            .filter_map(|(place, state)| Some((place, state.held.last?)))
            .collect();
        let asked: Vec<HeldRow> = rows.iter().map(|(_, row)| *row).collect();
        let shown = order
            .iter()
            .map(|at| self.databases.0[*at].shows(self.log, &asked, arrival.last));
        let shown = try_join_all(shown).await?;
        let facts = states.iter().zip(shown);
        let facts = facts.map(|(state, (shown, shows_arrival))| {
            let mut shows = vec![true; states.len()];
            let mut continues: Vec<bool> = states.iter().map(|other| !other.later_names).collect();
            for ((place, _), shown) in rows.iter().zip(shown) {
                shows[*place] = shown.shows;
                continues[*place] &= shown.has;
            }
            Fact {
                map: state.copy.map.clone(),
                arrived: state.copy.arrived(self.log),
                closed: state.held.closed,
                last: state.held.last.map_or(RowMark::NONE, |row| row.mark),
                shows,
                continues,
                shows_arrival,
                scavenged: state.scavenged,
            }
        });
        Ok(Holdings {
            facts: facts.collect(),
            map,
            order,
            states,
        })
    }

    /// Looks at all databases and does the next step. Returns the step, which is [`Step::Done`] if there is nothing to
    /// do.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer; `Unsupported` if another log is being moved, or this one to another
    /// database; `Corrupt` if the log is lost or a copy differs, so that the log must be recovered; `InvalidArgument`
    /// if recovering would give up what must not be given up.
    ///
    /// # Cancel safety
    /// If the future is dropped, the step is done or not, and this mover must be dropped as well, since a connection
    /// may be inside of a transaction. Another mover waits for what this one has begun, looks at the databases again
    /// and goes on.
    pub async fn step(&mut self) -> Result<Step> {
        let holdings = self.look().await?;
        let goal = self.goal(&holdings)?;
        let step = next_step(self.log, goal, &holdings.facts, &self.compared)?;
        if !matches!(goal, Goal::Recover { .. }) {
            self.compared.clear();
        }
        let done = self.perform(goal, &step, &holdings).await?;
        self.refusals = if done { 0 } else { self.refusals + 1 };
        if self.refusals > REFUSALS_MAX {
            return Err(changed_meanwhile());
        }
        Ok(step)
    }

    fn goal(&mut self, holdings: &Holdings) -> Result<Goal> {
        let place = |id| holdings.map.place_of(id).ok_or_else(changed_meanwhile);
        Ok(match self.wanted {
            Wanted::Back => Goal::Undo,
            Wanted::At(id) => Goal::Move(place(id)?),
            Wanted::Recovered(Some(id), loss) => {
                let from = place(id)?;
                Goal::Recover { from, loss }
            }
            Wanted::Recovered(None, loss) => {
                let from = most_complete(self.log, &holdings.facts)?;
                let from = from.ok_or_else(|| {
                    let rule = format!(
                        "must be given, since no copy has all that is left: {}",
                        held(holdings)
                    );
                    Error::invalid("from", rule)
                })?;
                self.wanted = Wanted::Recovered(Some(holdings.map.databases()[from].id), loss);
                Goal::Recover { from, loss }
            }
        })
    }

    /// Describes for people the database in which the log lies.
    async fn home(&self) -> Result<String> {
        let looks = self.databases.look(self.log).await?;
        let copies: Vec<&MapCopy> = looks.iter().map(|look| &look.copy).collect();
        let (map, _) = arrange(&copies)?;
        Ok(map
            .home(self.log)
            .map_or_else(String::new, |home| map.describe(home)))
    }

    /// Does a step. Returns false if another process has changed the databases meanwhile.
    async fn perform(&mut self, goal: Goal, step: &Step, holdings: &Holdings) -> Result<bool> {
        let (order, looks) = (&holdings.order, &holdings.states);
        let at = |place: usize| &self.databases.0[order[place]];
        match step {
            Step::Put {
                place,
                expected,
                map,
                arriving,
            } => {
                if arriving.is_some() && matches!(goal, Goal::Recover { .. }) {
                    // Positions that consumers remember may be used again.
                    schema::new_incarnation(at(*place).config()).await?;
                }
                at(*place).put(*expected, map, *arriving).await
            }
            Step::Close { place, expected } => at(*place).close(self.log, *expected).await,
            Step::Open { place, expected } => at(*place).reopen(self.log, *expected).await,
            Step::Copy {
                from,
                to,
                after,
                expected,
            } => {
                let (from, to) = (at(*from), at(*to));
                let mut after = *after;
                for _ in 0..PAGES_MAX {
                    match from.copy_page(to, self.log, after, *expected).await? {
                        CopiedPage::UpTo(last) => after = last,
                        CopiedPage::None => break,
                        CopiedPage::Refused => return Ok(false),
                    }
                }
                Ok(true)
            }
            Step::Compare { from, to, expected } => {
                let (up_to, scavenged) = (last_of(&looks[*to]), looks[*from].scavenged);
                let after = match self.compared_to {
                    Some((compared, then)) if then == scavenged && compared <= up_to => compared,
                    _ => Position::START,
                };
                let (home, copy) = (at(*from), at(*to));
                let log = self.log;
                match home.compare(copy, log, after, up_to, *expected).await? {
                    Compared::Refused => return Ok(false),
                    Compared::Differs(differs) => {
                        let (home, copy) = (home.name(), copy.name());
                        return Err(Error::corrupt(format!(
                            "the copy of log {log} in {copy} differs from the log in {home} from position {differs} on: \
                             `gesta cluster recover-log {log} --from URL --accept-loss` with the URL of {home} gives that \
                             part of the copy up"
                        )));
                    }
                    Compared::Same => {}
                }
                self.compared_to = Some((up_to, scavenged));
                self.compared.insert(*to);
                Ok(true)
            }
            Step::GiveUp {
                from,
                at: copy,
                expected,
            } => {
                let (up_to, log) = (last_of(&looks[*copy]), self.log);
                let (home, there) = (at(*from), at(*copy));
                let start = Position::START;
                match home.compare(there, log, start, up_to, *expected).await? {
                    Compared::Refused => return Ok(false),
                    Compared::Differs(differs) => {
                        match there.remove_from(log, differs, *expected).await? {
                            Some(removed) => self.given_up += removed,
                            None => return Ok(false),
                        }
                        let kept = Position(differs.0.saturating_sub(1));
                        home.compare(there, log, start, kept, *expected).await?;
                    }
                    Compared::Same => {}
                }
                self.compared.insert(*copy);
                Ok(true)
            }
            Step::Done => Ok(true),
        }
    }
}

fn last_of(state: &CopyState) -> Position {
    let last = state.held.last;
    last.map_or(Position::START, |row| row.mark.position)
}

/// Describes for people what each database holds of a log.
fn held(holdings: &Holdings) -> String {
    let of_each = holdings.states.iter().enumerate().map(|(place, state)| {
        let (at, last) = (holdings.map.describe(place), last_of(state));
        format!("{at} has events up to position {last}")
    });
    of_each.collect::<Vec<_>>().join(", ")
}

/// Moves a log to another database of the store, undoes a move that was begun, or recovers a log that its database has
/// lost. `progress` is called for each step when it is done. Appends to a log that is moved wait only while its last
/// rows are copied.
///
/// # Errors
/// The errors of [`Mover::open`] and [`Mover::step`].
///
/// # Cancel safety
/// If the future is dropped, the next call finishes the move, or undoes it. Until then the log may be closed.
pub async fn move_log(
    urls: &str,
    log: LogId,
    goal: MoveTo<'_>,
    mut progress: impl FnMut(&Step) + Send,
) -> Result<Moved> {
    let run = async {
        let mut mover = Mover::open(urls, log, goal).await?;
        let before = mover.home().await?;
        let mut steps = 0;
        loop {
            let step = mover.step().await?;
            progress(&step);
            if step == Step::Done {
                return Ok(Moved {
                    steps,
                    home: mover.home().await?,
                    before,
                    given_up: mover.given_up,
                });
            }
            steps += 1;
        }
    };
    run.await.map_err(|error: Error| {
        error.during(match goal {
            MoveTo::Recovered { .. } => "recover a log",
            _ => "move a log",
        })
    })
}
