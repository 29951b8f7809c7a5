//! The reads that commands wait for: which reads are begun, and what becomes of their answers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use gesta_core::backend::{LoadRequest, Loaded};
use gesta_core::{Error, EventType, Moment, Position, Result, StreamId};

use super::job::{Answer, Gave, JobId};
use super::knowledge::{Hashes, OlderIds};
use super::lookup::{self, Found, Hits, Questions};
use super::queue::Waiting;
use super::reads::{LOAD_STREAMS_MAX, Purpose, SoughtMatch};
use super::trouble::is_passing;
use super::{Now, Output, Sequencer};
use crate::command::{Command, Compared, KnownOfMatch};

impl<T> Sequencer<T> {
    pub(super) fn start_reads(&mut self, now: Now) {
        self.start_loads(now.moment);
        if let Some((id, job)) = self.reads.search() {
            self.outputs.push(Output::Read(id, job));
        }
        self.start_matches(now.moment);
        if let Some(listing) = self.knowledge.begin_listing() {
            let (id, job) = self.reads.list(listing);
            self.outputs.push(Output::Read(id, job));
        }
        if self.knowledge.begins_backfill() {
            self.reads.backfill();
        }
        let (knowledge, window) = (&self.knowledge, self.setting.config.idempotency());
        let time = (now.moment, knowledge.time_of_window(now.moment));
        let end = knowledge.ids_known_after();
        let older = |start| knowledge.older_ids(start);
        if let Some((id, job)) = self.reads.next_of_window(window, time, end, older) {
            self.outputs.push(Output::Read(id, job));
        }
    }

    fn start_loads(&mut self, now: Moment) {
        if self.queue.waiting.is_empty() {
            self.reads.need_nothing();
            return;
        }
        if !self.reads.may_load(now) {
            return;
        }
        let mut request = LoadRequest::default();
        let mut types = HashSet::new();
        let waiting = self.queue.waiting.iter();
        for waiting in waiting.filter(|waiting| waiting.lookup.is_none()) {
            let streams = &mut request.streams;
            let reads = &mut self.reads;
            let stream = |stream: &StreamId| {
                if streams.len() < LOAD_STREAMS_MAX && reads.claim(stream) {
                    streams.push(stream.clone());
                }
            };
            self.knowledge
                .missing(&waiting.command, stream, |event_type| {
                    types.insert(event_type);
                });
        }
        // Types are few: looking one up twice does no harm.
        if !request.streams.is_empty() || !self.reads.has_loads() {
            request.types = types.into_iter().collect();
        }
        if request.streams.is_empty() && request.types.is_empty() {
            return;
        }
        self.stats.loads.add(1);
        let (id, job) = self.reads.load(request);
        self.outputs.push(Output::Read(id, job));
    }

    fn start_matches(&mut self, now: Moment) {
        if std::mem::take(&mut self.queue.some_lookups_are_unawaited) {
            let awaited: HashSet<u64> = self.awaited().collect();
            self.reads.keep_matches(|number| awaited.contains(&number));
        }
        while let Some((id, job)) = self.reads.next_match(now) {
            self.stats.condition_lookups.add(1);
            self.outputs.push(Output::Read(id, job));
        }
    }

    /// Returns the numbers of the lookups that commands wait for.
    fn awaited(&self) -> impl Iterator<Item = u64> + '_ {
        let waiting = self.queue.waiting.iter();
        waiting.filter_map(|waiting| waiting.lookup)
    }

    pub(super) fn on_read(&mut self, id: JobId, answer: Answer, now: Now) {
        let Some(purpose) = self.reads.end(id) else {
            return;
        };
        match (purpose, answer.0) {
            (Purpose::Recovery, gave) => self.on_recovery_read(gave, now),
            (Purpose::Load(request), Gave::Loaded(loaded)) => self.on_loaded(request, loaded, now),
            (Purpose::Search(asked), Gave::Searched(hits)) => self.on_searched(asked, hits),
            (Purpose::LookUp(number), Gave::LookedUp(found)) => {
                self.on_looked_up(HashMap::from([(number, found)]));
            }
            (Purpose::List(number), Gave::Listed(names)) => self.on_listed(number, names),
            (Purpose::Match(sought), Gave::Matched(first)) => self.on_matched(sought, first, now),
            (Purpose::WindowStart, Gave::WindowStart(Ok(start))) => {
                self.go_on_with_window(start);
            }
            (Purpose::WindowStart, Gave::WindowStart(Err(error))) => {
                self.retry_backfill(None, &error, now);
            }
            (Purpose::Ids(start), Gave::Ids(Ok(ids))) => self.on_ids(start, ids),
            (Purpose::Ids(start), Gave::Ids(Err(error))) => {
                self.retry_backfill(Some(start), &error, now);
            }
            // The purposes that no longer count, and answers of another kind than was asked for.
            _ => {}
        }
        self.queue.some_are_ready = true;
    }

    fn on_ids(&mut self, window_start: Position, ids: OlderIds) {
        if self.knowledge.take_older_ids(ids) {
            self.go_on_with_window(window_start);
        }
    }

    fn go_on_with_window(&mut self, start: Position) {
        if self.reads.go_on_with_window(start) {
            tracing::info!(
                log = self.setting.log.0,
                "the event ids of the deduplication window are read again"
            );
        }
    }

    fn retry_backfill(&mut self, start: Option<Position>, error: &Error, now: Now) {
        let log = self.setting.log;
        self.reads.retry_backfill(log, start, error, now.moment);
    }

    fn on_loaded(&mut self, request: LoadRequest, loaded: Result<Loaded>, now: Now) {
        let error = match loaded {
            Ok(loaded) => {
                if self.reads.resume_loads() {
                    tracing::info!(log = self.setting.log.0, "streams are looked up again");
                }
                for (stream, error) in self.knowledge.learn(request, &loaded) {
                    self.fail_waiting_for(&stream, &error);
                }
                return;
            }
            Err(error) => error,
        };
        if is_passing(&error) {
            // Nothing is lost: it is asked for again. Who has waited for too long is given up.
            let log = self.setting.log;
            self.reads.pause_loads(log, &error, now.moment);
        } else {
            // Callers are told, each by the answer; what only an administrator can change stays as it is for long.
            match error.is_for_administrator() {
                true => {
                    tracing::debug!(log = self.setting.log.0, %error, "cannot look up streams");
                }
                false => tracing::warn!(log = self.setting.log.0, %error, "cannot look up streams"),
            }
            let streams: HashSet<StreamId> = request.streams.into_iter().collect();
            let types: HashSet<EventType> = request.types.into_iter().collect();
            // Commands that wait for a type alone too: they would ask for it again at once, and for ever.
            let knowledge = &mut self.knowledge;
            let failed = self.queue.extract_waiting(|waiting| {
                let (mut stream_failed, mut type_failed) = (false, false);
                knowledge.missing(
                    &waiting.command,
                    |stream| stream_failed |= streams.contains(stream),
                    |event_type| type_failed |= types.contains(&event_type),
                );
                stream_failed || type_failed
            });
            self.answer_failed(failed, &error);
        }
    }

    /// Answers the commands that wait for a stream whose stored state cannot be read with the error.
    fn fail_waiting_for(&mut self, of: &StreamId, error: &Error) {
        let failed = self.queue.extract_waiting(|waiting| {
            let mut parts = waiting.command.parts.iter();
            parts.any(|part| part.stream == *of)
        });
        self.answer_failed(failed, error);
    }

    /// Answers commands for which nothing was written with the error.
    fn answer_failed(&mut self, failed: Vec<Command<T>>, error: &Error) {
        for command in failed {
            self.answer(command, Err(error.clone()));
        }
    }

    fn on_listed(&mut self, number: u64, names: Result<Option<Hashes>>) {
        match names {
            Ok(names) => self.knowledge.listed(number, names),
            Err(error) => {
                tracing::info!(log = self.setting.log.0, %error, "cannot list the streams, new ones are looked up");
                self.knowledge.not_listed(number);
            }
        }
    }

    /// Takes the answer to a search. Commands of which nothing was found go on. If something was found, each command
    /// compares it for itself. If the search failed, each command is searched for by itself, because one long stream is
    /// enough to make the search fail.
    fn on_searched(&mut self, asked: Vec<(u64, Questions)>, hits: Result<Hits>) {
        let awaited: HashSet<u64> = self.awaited().collect();
        let is_alone = asked.len() == 1;
        let hits = hits.map(Arc::new);
        let mut answers = HashMap::new();
        for (number, questions) in asked {
            let (id, job) = match &hits {
                _ if !awaited.contains(&number) => continue,
                Ok(hits) if lookup::found_nothing(&questions, hits) => {
                    answers.insert(number, Ok(vec![Found::Nothing; questions.len()]));
                    continue;
                }
                Ok(hits) => self.reads.look_up_with(number, questions, Arc::clone(hits)),
                Err(error) if is_alone => {
                    answers.insert(number, Err(error.clone()));
                    continue;
                }
                Err(_) => self.reads.search_for(vec![(number, questions)]),
            };
            self.outputs.push(Output::Read(id, job));
        }
        self.on_looked_up(answers);
    }

    /// Takes the answer to a search for the filter of a condition. What the database has said is kept with the command,
    /// which is judged again. A search that has failed for a passing reason is tried again, as long as the command
    /// waits.
    fn on_matched(&mut self, sought: SoughtMatch, first: Result<Option<Position>>, now: Now) {
        let number = sought.number;
        let is_it = |waiting: &Waiting<T>| waiting.lookup == Some(number);
        let first = match first {
            Ok(first) => first,
            Err(error) if is_passing(&error) => {
                if self.awaited().any(|of| of == number) {
                    let log = self.setting.log;
                    self.reads.retry_match(log, sought, &error, now.moment);
                }
                return;
            }
            Err(error) => {
                for command in self.queue.extract_waiting(is_it) {
                    self.answer(command, Err(error.clone()));
                }
                return;
            }
        };
        if self.reads.resume_matches() {
            tracing::info!(
                log = self.setting.log.0,
                "events that conditions exclude are looked for again"
            );
        }
        for waiting in self
            .queue
            .waiting
            .iter_mut()
            .filter(|waiting| is_it(waiting))
        {
            waiting.lookup = None;
            let Some(condition) = &mut waiting.command.no_match else {
                continue;
            };
            if let (Some(revision), None) = (sought.confirms, first) {
                // What is in memory up to here is gone, or does not pass.
                condition.compared = Some(Compared {
                    revision,
                    none_until: sought.search.until,
                });
            } else {
                condition.known = Some(KnownOfMatch {
                    history: sought.history,
                    none_until: first.map_or(sought.search.until, |_| Position::START),
                    first,
                });
            }
        }
    }

    fn on_looked_up(&mut self, mut answers: HashMap<u64, Result<Vec<Found>>>) {
        let mut failed = HashMap::new();
        for waiting in &mut self.queue.waiting {
            match waiting.lookup.and_then(|number| answers.remove(&number)) {
                Some(Ok(found)) => {
                    waiting.lookup = None;
                    waiting.found = Some(found);
                }
                Some(Err(error)) => {
                    failed.insert(waiting.command.sequence, error);
                }
                None => {}
            }
        }
        if failed.is_empty() {
            return;
        }
        let commands = self
            .queue
            .extract_waiting(|waiting| failed.contains_key(&waiting.command.sequence));
        for command in commands {
            if let Some(error) = failed.remove(&command.sequence) {
                self.answer(command, Err(error));
            }
        }
    }
}
