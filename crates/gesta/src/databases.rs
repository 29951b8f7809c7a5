//! The databases of a store: adds one, and moves a log from one to another while the store is in use.
//!
//! How a move goes, and why it may be stopped at any point: `docs/internals/moving-logs.md`. Not here: the order of the
//! steps (`gesta_several::moving`), what a step does in a database (`gesta_postgres::Relocation`).

use futures::future::{join_all, try_join_all};
use gesta_core::{
    DatabaseId, Error, ErrorKind, LogId, LogMap, MapCopy, NamedDatabase, Position, Result,
};
use gesta_postgres::{Config, CopyState, Relocation, schema};
use gesta_several::arrange;
use gesta_several::moving::{Fact, Goal, next_step};

pub use gesta_several::moving::Step;

use crate::schema::postgres_configs;

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
}

/// Adds the empty database at `new` to the store in the databases at `urls`. It holds no log until one is moved there.
/// Every process of the store must be given its URL before that. If this is interrupted, calling it again finishes it.
///
/// # Errors
/// `Schema` if there is another store at `new`; `Unsupported` while nodes are registered, or if the rights are missing;
/// `InvalidArgument` if a URL cannot be used or a database of the store is missing; `Unavailable` if a database does
/// not answer.
///
/// # Cancel safety
/// If the future is dropped, the database may have been added in part. Calling it again finishes it.
pub async fn add(urls: &str, new: &str) -> Result<LogMap> {
    let added = add_to(urls, new).await;
    added.map_err(|error| error.during("add a database"))
}

async fn add_to(urls: &str, new: &str) -> Result<LogMap> {
    let configs = postgres_configs(urls, 1)?;
    let [config] = postgres_configs(new, 1)?
        .try_into()
        .map_err(|_| Error::invalid("database", "must be one URL"))?;
    let databases = Relocations::open(&configs).await?;
    let looks = databases.look(LogId(0)).await?;
    check_no_nodes(&databases, &looks)?;
    let copies: Vec<&MapCopy> = looks.iter().map(|look| &look.copy).collect();
    let (map, _) = arrange(&copies)?;
    let wider = match schema::read_empty(&config).await? {
        None => {
            let here = DatabaseId::random();
            let name = config.name();
            let wider = map.extended(NamedDatabase { id: here, name })?;
            let copy = MapCopy {
                here,
                map: wider.clone(),
            };
            schema::create_part(&config, &copy).await?;
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
        if found < wider.version() && !database.put(found, &wider).await? {
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

    async fn look(&self, log: LogId) -> Result<Vec<CopyState>> {
        let looks = join_all(self.0.iter().map(|database| database.look(log))).await;
        looks.into_iter().collect()
    }
}

/// Moves a log, step by step. A mover may be dropped at any moment; the next one goes on.
pub struct Mover {
    databases: Relocations,
    log: LogId,
    /// The database to which the log is moved; `None` if the move is undone.
    to: Option<DatabaseId>,
    /// Whether the last step was to compare.
    compared: bool,
    /// The position up to which the copy was compared, and how much the old database had scavenged at that time.
    compared_to: Option<(Position, u64)>,
    refusals: u32,
}

impl std::fmt::Debug for Mover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover")
            .field("log", &self.log)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

impl Mover {
    /// Connects to the databases at `urls`, which must be all databases of the store. The database of the goal may be
    /// left out.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer; `InvalidArgument` if a database is missing; `Schema` if there is no
    /// store.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn open(urls: &str, log: LogId, goal: MoveTo<'_>) -> Result<Self> {
        let mut configs = postgres_configs(urls, 1)?;
        let mut target = None;
        if let MoveTo::Database(url) = goal {
            let [config] = postgres_configs(url, 1)?
                .try_into()
                .map_err(|_| Error::invalid("to", "must be one URL"))?;
            let name = config.name();
            let at = configs.iter().position(|config| config.name() == name);
            target = Some(at.unwrap_or(configs.len()));
            if at.is_none() {
                configs.push(config);
            }
        }
        let databases = Relocations::open(&configs).await?;
        let looks = databases.look(log).await?;
        let copies: Vec<&MapCopy> = looks.iter().map(|look| &look.copy).collect();
        arrange(&copies)?;
        Ok(Self {
            log,
            to: target.map(|at| looks[at].copy.here),
            databases,
            compared: false,
            compared_to: None,
            refusals: 0,
        })
    }

    /// Looks at all databases and does the next step. Returns the step, which is [`Step::Done`] if there is nothing to
    /// do.
    ///
    /// # Errors
    /// `Unavailable` if a database does not answer, or another process moves logs of the store; `Unsupported` if
    /// another log is being moved, or this one to another database; `Corrupt` if the databases contradict each other.
    /// If a mover that has died still stores its last step, this may be `Refused` (once the sessions of that mover have
    /// ended, another mover goes on), or `Unsupported` because its move is announced late.
    ///
    /// # Cancel safety
    /// If the future is dropped, the step is done or not, and this mover must be dropped as well, since a connection
    /// may be inside of a transaction. Another mover looks at the databases again and goes on.
    pub async fn step(&mut self) -> Result<Step> {
        let looks = self.databases.look(self.log).await?;
        let copies: Vec<&MapCopy> = looks.iter().map(|look| &look.copy).collect();
        let (map, order) = arrange(&copies)?;
        let goal = match self.to {
            None => Goal::Undo,
            Some(id) => Goal::Move(map.place_of(id).ok_or_else(changed_meanwhile)?),
        };
        let fact = |at: &usize| Fact {
            map: looks[*at].copy.map.clone(),
            closed: looks[*at].closed,
            last: looks[*at].last,
        };
        let facts: Vec<Fact> = order.iter().map(fact).collect();
        let step = next_step(self.log, goal, &facts, self.compared)?;
        let looks: Vec<&CopyState> = order.iter().map(|at| &looks[*at]).collect();
        self.compared = false;
        let done = self.perform(&step, &order, &looks).await?;
        self.refusals = if done { 0 } else { self.refusals + 1 };
        if self.refusals > REFUSALS_MAX {
            return Err(changed_meanwhile());
        }
        Ok(step)
    }

    /// Does a step. Returns false if another process has changed the databases meanwhile.
    async fn perform(
        &mut self,
        step: &Step,
        order: &[usize],
        looks: &[&CopyState],
    ) -> Result<bool> {
        let at = |place: usize| &self.databases.0[order[place]];
        match step {
            Step::Put {
                place,
                expected,
                map,
            } => at(*place).put(*expected, map).await,
            Step::Close { place, expected } => at(*place).close(self.log, *expected).await,
            Step::Open { place, expected } => at(*place).reopen(self.log, *expected).await,
            Step::Copy { from, to, after } => {
                let (from, to) = (at(*from), at(*to));
                let mut after = *after;
                for _ in 0..PAGES_MAX {
                    match from.copy_page(to, self.log, after).await? {
                        Some(last) => after = last,
                        None => break,
                    }
                }
                Ok(true)
            }
            Step::Compare { from, to } => {
                let (up_to, scavenged) = (looks[*to].last, looks[*from].scavenged);
                let after = match self.compared_to {
                    Some((compared, then)) if then == scavenged && compared <= up_to => compared,
                    _ => Position::START,
                };
                at(*from).compare(at(*to), self.log, after, up_to).await?;
                self.compared_to = Some((up_to, scavenged));
                self.compared = true;
                Ok(true)
            }
            Step::Done => Ok(true),
        }
    }
}

/// Moves a log to another database of the store, or undoes a move that was begun. `progress` is called for each step
/// when it is done. Appends to the log wait only while its last rows are copied.
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
) -> Result<()> {
    let run = async {
        let mut mover = Mover::open(urls, log, goal).await?;
        loop {
            let step = mover.step().await?;
            progress(&step);
            if step == Step::Done {
                return Ok(());
            }
        }
    };
    run.await.map_err(|error: Error| error.during("move a log"))
}
