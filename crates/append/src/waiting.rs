//! Commands that cannot be decided yet, and the reads that they wait for.
//!
//! Why the reads are tasks of their own: they hold connections of the store's pool, and recovery reads as
//! well. Futures that nobody polls meanwhile would keep the connections that recovery waits for.
//! Invariant: a command never overtakes one that waits and touches the same stream.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gesta_core::backend::{LoadRequest, Loaded, Purpose};
use gesta_core::{Error, Result, StreamId};

use crate::command::Command;
use crate::lookup::{self, Found, Hits, Questions, Search, Suspected};
use crate::sequencer::Sequencer;
use crate::warm_up::WarmedUp;

/// Streams looked up in one statement.
const LOAD_STREAMS_MAX: usize = 1_000;
/// Lookups of streams under way at once.
const LOADS_MAX: usize = 2;
/// Commands whose events are sought in one statement.
const LOOKUP_COMMANDS_MAX: usize = 500;
/// Such statements under way at once.
const LOOKUPS_MAX: usize = 2;

/// A command that cannot be decided yet.
pub(crate) struct Waiting {
    pub(crate) command: Command,
    /// Its number if a lookup of stored events is under way.
    pub(crate) lookup: Option<u64>,
    /// What the lookup found.
    pub(crate) found: Option<Vec<Found>>,
}

/// Lookups of stored events.
#[derive(Default)]
pub(crate) struct Lookups {
    /// The last one's number.
    number: u64,
    /// Those that wait until they are sent together.
    due: Vec<(u64, Questions)>,
    /// Statements with several of them under way.
    together: usize,
}

/// What a read in the background has given.
pub(crate) enum ReadAnswer {
    /// Streams and types, with the generation in which they were asked for.
    Loaded(u64, LoadRequest, Result<Loaded>),
    /// Stored events, with the number of the lookup.
    LookedUp(u64, Result<Vec<Found>>),
    /// Where events of several lookups are in the window, if they are there.
    Searched(Vec<(u64, Questions)>, Result<Hits>),
    /// Hashes of all names, with the number of the listing.
    Listed(u64, Result<Option<HashSet<u32>>>),
    /// Event ids of the window of retries.
    Warm(WarmedUp),
}

impl Sequencer {
    pub(crate) fn wait(&mut self, waiting: Waiting) {
        for part in &waiting.command.parts {
            *self.held.entry(part.stream.clone()).or_insert(0) += 1;
        }
        self.waiting.push_back(waiting);
    }

    pub(crate) fn start_loads(&mut self) {
        if self.waiting.is_empty() || self.loads >= LOADS_MAX {
            return;
        }
        let mut request = LoadRequest::default();
        let mut types = HashSet::new();
        for waiting in self
            .waiting
            .iter()
            .filter(|waiting| waiting.lookup.is_none())
        {
            for part in &waiting.command.parts {
                if request.streams.len() < LOAD_STREAMS_MAX
                    && !self.heads.knows_stream(&part.stream)
                    && self.loading.insert(part.stream.clone())
                {
                    request.streams.push(part.stream.clone());
                }
                types.extend(
                    part.event_types()
                        .filter(|event_type| !self.heads.knows_type(event_type)),
                );
            }
        }
        // Types are few: looking one up twice does no harm.
        request.types = if request.streams.is_empty() && self.loads > 0 {
            Vec::new()
        } else {
            types.into_iter().collect()
        };
        if request.streams.is_empty() && request.types.is_empty() {
            return;
        }
        let (backend, log, generation) = (Arc::clone(&self.backend), self.log, self.generation);
        self.stats.loads.add(1);
        self.loads += 1;
        self.reads.spawn(async move {
            let loaded = backend.load(log, request.clone(), Purpose::Append).await;
            ReadAnswer::Loaded(generation, request, loaded)
        });
    }

    /// Begins to look up stored events; returns the lookup's number.
    pub(crate) fn start_lookup(&mut self, questions: Questions) -> u64 {
        self.lookups.number += 1;
        let number = self.lookups.number;
        let is_wide = |place: &Suspected| matches!(place, Suspected::Within(_));
        if questions.iter().flatten().any(|q| is_wide(&q.place)) {
            self.lookups.due.push((number, questions));
            return number;
        }
        self.look_up_alone(number, questions);
        number
    }

    fn look_up_alone(&mut self, number: u64, questions: Questions) {
        let (backend, log) = (Arc::clone(&self.backend), self.log);
        self.reads.spawn(async move {
            let found = lookup::look_up(&*backend, log, questions).await;
            ReadAnswer::LookedUp(number, found)
        });
    }

    /// Sends lookups that search a part of the window, many in one statement: until the ids of the window are known,
    /// every append to an old stream may need one.
    pub(crate) fn start_lookups(&mut self) {
        if self.lookups.due.is_empty() || self.lookups.together >= LOOKUPS_MAX {
            return;
        }
        let count = self.lookups.due.len().min(LOOKUP_COMMANDS_MAX);
        let due: Vec<_> = self.lookups.due.drain(..count).collect();
        self.lookups.together += 1;
        let (backend, log) = (Arc::clone(&self.backend), self.log);
        let search = Search::of(due.iter().flat_map(|(_, questions)| questions).flatten());
        self.reads.spawn(async move {
            let hits = search.run(&*backend, log).await;
            ReadAnswer::Searched(due, hits)
        });
    }

    /// Takes the answer of a read.
    pub(crate) fn on_read(&mut self, answer: ReadAnswer) {
        match answer {
            ReadAnswer::Loaded(generation, request, loaded) => {
                self.loads -= 1;
                self.on_loaded(generation, &request, loaded);
            }
            ReadAnswer::LookedUp(number, found) => {
                self.on_looked_up(HashMap::from([(number, found)]));
            }
            ReadAnswer::Searched(asked, hits) => {
                self.lookups.together -= 1;
                self.on_searched(asked, hits);
            }
            ReadAnswer::Listed(number, names) => return self.on_listed(number, names),
            ReadAnswer::Warm(ids) => return self.on_warm(ids),
        }
        self.decide_waiting();
    }

    fn on_loaded(&mut self, generation: u64, request: &LoadRequest, loaded: Result<Loaded>) {
        // The streams of an outdated lookup may be looked up again by now. If they were taken as not being looked up, a
        // third lookup could overtake the second, whose answer would then be outdated without anybody knowing.
        if generation != self.generation {
            return;
        }
        request.streams.iter().for_each(|stream| {
            self.loading.remove(stream);
        });
        let learnt = loaded.and_then(|loaded| self.heads.learn(request.clone(), &loaded));
        if let Err(error) = learnt {
            self.fail_waiting_for(request, &error);
        }
        self.start_listing();
    }

    /// Begins to list the names of all streams in the background, once that is worth it.
    fn start_listing(&mut self) {
        if let Some(listing) = self.heads.begin_listing() {
            let (backend, log) = (Arc::clone(&self.backend), self.log);
            self.reads.spawn(async move {
                let names = listing.read(&*backend, log).await;
                ReadAnswer::Listed(listing.number, names)
            });
        }
    }

    fn on_listed(&mut self, number: u64, names: Result<Option<HashSet<u32>>>) {
        match names {
            Ok(names) => self.heads.names.listed(number, names),
            Err(error) => {
                tracing::info!(log = self.log.0, %error, "cannot list the streams, new ones are looked up");
                self.heads.names.not_listed(number);
            }
        }
    }

    /// A lookup failed: those who wait for it learn why; nothing was written.
    fn fail_waiting_for(&mut self, request: &LoadRequest, error: &Error) {
        let names: HashSet<&StreamId> = request.streams.iter().collect();
        let (failed, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| {
                waiting.command.parts.iter().any(|part| {
                    names.contains(&part.stream)
                        || part
                            .event_types()
                            .any(|event_type| request.types.contains(&event_type))
                })
            });
        self.waiting = rest.into();
        for waiting in failed {
            self.release(&waiting.command);
            self.answer(waiting.command, Err(error.clone()));
        }
    }

    /// Those of whom nothing was found go on. What was found is compared by each for itself; and if the search failed,
    /// each is looked up for itself, for one long stream is enough to make it fail.
    fn on_searched(&mut self, asked: Vec<(u64, Questions)>, hits: Result<Hits>) {
        let awaited = self.waiting.iter().filter_map(|waiting| waiting.lookup);
        let awaited: HashSet<u64> = awaited.collect();
        let is_alone = asked.len() == 1;
        let hits = hits.map(Arc::new);
        let mut answers = HashMap::new();
        for (number, questions) in asked {
            match &hits {
                _ if !awaited.contains(&number) => {}
                Ok(hits) if lookup::found_nothing(&questions, hits) => {
                    answers.insert(number, Ok(vec![Found::Nothing; questions.len()]));
                }
                Ok(hits) => {
                    let (backend, log) = (Arc::clone(&self.backend), self.log);
                    let hits = Arc::clone(hits);
                    self.reads.spawn(async move {
                        let found = lookup::answer_all(&*backend, log, questions, &hits).await;
                        ReadAnswer::LookedUp(number, found)
                    });
                }
                Err(error) if is_alone => {
                    answers.insert(number, Err(error.clone()));
                }
                Err(_) => self.look_up_alone(number, questions),
            }
        }
        self.on_looked_up(answers);
    }

    fn on_looked_up(&mut self, mut answers: HashMap<u64, Result<Vec<Found>>>) {
        for mut waiting in std::mem::take(&mut self.waiting) {
            let answer = waiting.lookup.and_then(|number| answers.remove(&number));
            match answer {
                Some(Ok(found)) => {
                    waiting.lookup = None;
                    waiting.found = Some(found);
                    self.waiting.push_back(waiting);
                }
                Some(Err(error)) => {
                    self.release(&waiting.command);
                    self.answer(waiting.command, Err(error));
                }
                None => self.waiting.push_back(waiting),
            }
        }
    }

    fn release(&mut self, command: &Command) {
        for part in &command.parts {
            if let Some(count) = self.held.get_mut(&part.stream) {
                *count -= 1;
                if *count == 0 {
                    self.held.remove(&part.stream);
                }
            }
        }
    }

    /// Decides, in order, what no longer has to wait.
    pub(crate) fn decide_waiting(&mut self) {
        let now = self.clock.now();
        self.waiting_ready = false;
        let mut blocked: HashSet<StreamId> = HashSet::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let ready = waiting.lookup.is_none()
                && !waiting
                    .command
                    .parts
                    .iter()
                    .any(|part| blocked.contains(&part.stream))
                && self.knows_all(&waiting.command);
            let full = ready && self.is_full_for(&waiting.command);
            self.waiting_ready |= full;
            if ready && !full {
                self.release(&waiting.command);
                let Waiting { command, found, .. } = waiting;
                self.decide(command, found, now);
            } else {
                blocked.extend(waiting.command.parts.iter().map(|part| part.stream.clone()));
                self.waiting.push_back(waiting);
            }
        }
    }

    /// Lets go of everything that waits, for a new start. Lookups under way find nobody.
    pub(crate) fn drain_waiting(&mut self) -> Vec<Command> {
        self.held.clear();
        self.lookups.due.clear();
        self.waiting
            .drain(..)
            .map(|waiting| waiting.command)
            .collect()
    }
}
