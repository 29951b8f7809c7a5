//! The reads under way, and the purpose of each.
//!
//! Bounds: few reads are under way at once, each for many commands. An answer is dropped if it is outdated because
//! everything was undone meanwhile.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gesta_core::backend::LoadRequest;
use gesta_core::{
    BackOff, Error, IdempotencyWindow, LastingFault, LogId, Moment, Position, StreamId, Timestamp,
    warn_once,
};

use super::job::{Job, JobId, MatchSearch, What};
use super::knowledge::{Listing, OlderIds};
use super::lookup::{Hits, Questions, Search, Suspected};
use super::trouble::{Pause, Trouble, pauses};

/// The greatest number of streams that one statement looks up.
pub(crate) const LOAD_STREAMS_MAX: usize = 1_000;
/// The greatest number of such statements under way at once.
const LOADS_MAX: usize = 2;
/// The greatest number of commands whose events one statement seeks.
const SEARCH_COMMANDS_MAX: usize = 500;
/// The greatest number of such statements under way at once.
const SEARCHES_MAX: usize = 2;
/// The greatest number of searches for conditions under way at once.
const MATCHES_MAX: usize = 8;
/// The time before ids of the window that could not be read are tried again.
const BACKFILL_PAUSE: Duration = Duration::from_secs(1);

/// The purpose of a read.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// The recovery under way waits for the read.
    Recovery,
    /// Commands wait for these streams and types.
    Load(LoadRequest),
    /// The load was asked for before everything was undone: its answer does not count.
    OutdatedLoad,
    /// The events of several commands are sought, by the numbers of their lookups.
    Search(Vec<(u64, Questions)>),
    /// The events of one command are looked up, by the number of its lookup.
    LookUp(u64),
    /// The names of all streams are listed, by the number of the listing.
    List(u64),
    /// The beginning of the deduplication window is sought.
    WindowStart,
    /// Ids of the window, which begins after this position, are read.
    Ids(Position),
    /// An event is sought that passes the filter of a condition.
    Match(SoughtMatch),
}

/// A search for an event that passes the filter of a condition.
#[derive(Debug)]
pub(crate) struct SoughtMatch {
    /// The number of the lookup.
    pub(crate) number: u64,
    /// The number of the history that is searched.
    pub(crate) history: u64,
    pub(crate) search: MatchSearch,
    /// The number of the state of the newest events, if it is asked which of them are still there.
    pub(crate) confirms: Option<u64>,
    /// The pauses after its failures. Each search has its own, so that one which always fails holds up no other.
    pauses: BackOff,
    /// The time before which it is not tried again, if it has failed.
    not_before: Option<Moment>,
}

/// The backfill: it reads the ids of the deduplication window, newest first, in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backfill {
    /// The backfill is not begun, or done, or a read of it is under way.
    Nothing,
    /// The start of the window must be found, but not before this time.
    FindStart(Option<Moment>),
    /// The next range must be read of the window that begins after this position, but not before this time.
    Read(Position, Option<Moment>),
}

/// The reads under way, and those that are due.
#[derive(Debug)]
pub(crate) struct Reads {
    jobs: u64,
    lookups: u64,
    pending: HashMap<JobId, Purpose>,
    loading: HashSet<StreamId>,
    loads: usize,
    loads_pause: Pause,
    /// The lookups that will be sent together with others.
    due: Vec<(u64, Questions)>,
    searches: usize,
    /// The searches for conditions that wait for their turn.
    matches_due: VecDeque<SoughtMatch>,
    matches: usize,
    matches_trouble: Trouble,
    backfill: Backfill,
    backfill_told: LastingFault,
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            jobs: 0,
            lookups: 0,
            pending: HashMap::new(),
            loading: HashSet::new(),
            loads: 0,
            loads_pause: Pause::default(),
            due: Vec::new(),
            searches: 0,
            matches_due: VecDeque::new(),
            matches: 0,
            matches_trouble: Trouble::default(),
            backfill: Backfill::Nothing,
            backfill_told: LastingFault::default(),
        }
    }
}

impl Reads {
    /// Begins a read.
    pub(crate) fn begin(&mut self, what: What, purpose: Purpose) -> (JobId, Job) {
        self.jobs += 1;
        let id = JobId(self.jobs);
        self.pending.insert(id, purpose);
        (id, Job(what))
    }

    /// Ends a read. Returns its purpose; `None` if nobody waits for the read any more.
    pub(crate) fn end(&mut self, id: JobId) -> Option<Purpose> {
        let purpose = self.pending.remove(&id)?;
        match &purpose {
            Purpose::Load(request) => {
                self.loads -= 1;
                for stream in &request.streams {
                    self.loading.remove(stream);
                }
            }
            Purpose::OutdatedLoad => self.loads -= 1,
            Purpose::Search(_) => self.searches -= 1,
            Purpose::Match(_) => self.matches -= 1,
            _ => {}
        }
        Some(purpose)
    }

    /// Drops the read that recovery waited for, because recovery goes another way.
    pub(crate) fn abandon_recovery(&mut self) {
        self.pending
            .retain(|_, purpose| !matches!(purpose, Purpose::Recovery));
    }

    /// Marks the loads under way as outdated, because everything was undone. Their answers may lack what others have
    /// appended.
    ///
    /// The streams of an outdated load may be asked for again before that load ends. These streams are no longer
    /// counted as being loaded. Otherwise a third load could overtake the second, and the outdated answer of the second
    /// would be taken as new.
    pub(crate) fn outdate(&mut self) {
        for purpose in self.pending.values_mut() {
            if matches!(purpose, Purpose::Load(_)) {
                *purpose = Purpose::OutdatedLoad;
            }
        }
        self.loading.clear();
        self.due.clear();
        self.matches_due.clear();
    }

    /// Drops the reads of ids and names, because everything was forgotten: the answers would not join what will be
    /// known.
    pub(crate) fn forget(&mut self) {
        self.pending.retain(|_, purpose| {
            !matches!(
                purpose,
                Purpose::WindowStart | Purpose::Ids(_) | Purpose::List(_)
            )
        });
        self.backfill = Backfill::Nothing;
    }

    pub(crate) fn is_loading(&self, stream: &StreamId) -> bool {
        self.loading.contains(stream)
    }

    // ---- conditions ----

    /// Notes a search for the filter of a condition. Returns its number.
    pub(crate) fn seek_match(
        &mut self,
        search: MatchSearch,
        history: u64,
        confirms: Option<u64>,
    ) -> u64 {
        self.lookups += 1;
        self.matches_due.push_back(SoughtMatch {
            number: self.lookups,
            history,
            search,
            confirms,
            pauses: pauses(),
            not_before: None,
        });
        self.lookups
    }

    /// Begins the next search for a condition, unless enough are under way. One that has failed a moment ago lets
    /// others go first.
    pub(crate) fn next_match(&mut self, now: Moment) -> Option<(JobId, Job)> {
        if self.matches >= MATCHES_MAX {
            return None;
        }
        let is_due = |sought: &SoughtMatch| sought.not_before.is_none_or(|at| at <= now);
        let next = self.matches_due.iter().position(is_due)?;
        let sought = self.matches_due.remove(next)?;
        self.matches += 1;
        let what = What::Match(sought.search.clone());
        Some(self.begin(what, Purpose::Match(sought)))
    }

    /// Drops the searches that wait for their turn, and for which no command waits any more.
    pub(crate) fn keep_matches(&mut self, is_awaited: impl Fn(u64) -> bool) {
        self.matches_due.retain(|sought| is_awaited(sought.number));
    }

    /// Puts back a search that has failed for a passing reason. It is tried again after a pause, which is longer each
    /// time, and behind those that wait: searches that always exceed the time would else take all the places again and
    /// again.
    pub(crate) fn retry_match(
        &mut self,
        log: LogId,
        mut sought: SoughtMatch,
        error: &Error,
        now: Moment,
    ) {
        let what = "cannot look for events that conditions exclude, trying again";
        self.matches_trouble.note(error, now);
        self.matches_trouble.warn(log, error, what);
        sought.not_before = Some(now + sought.pauses.pause());
        self.matches_due.push_back(sought);
    }

    /// Forgets the faults, because a search has succeeded. Returns whether one was logged.
    pub(crate) fn resume_matches(&mut self) -> bool {
        self.matches_trouble.clear()
    }

    // ---- streams and types ----

    /// Returns whether another load may be sent. A pause that is over ends.
    pub(crate) fn may_load(&mut self, now: Moment) -> bool {
        self.loads_pause.is_over(now) && self.loads < LOADS_MAX
    }

    /// Pauses loads after one has failed for a passing reason.
    pub(crate) fn pause_loads(&mut self, log: LogId, error: &Error, now: Moment) {
        let what = "cannot look up streams, trying again";
        self.loads_pause.begin(log, error, what, now);
    }

    /// Ends the pauses, because no command waits for a look any more.
    pub(crate) fn need_nothing(&mut self) {
        self.loads_pause.forget();
        self.matches_trouble.forget();
    }

    /// Ends the pause, because a load has succeeded. Returns whether the fault was logged.
    pub(crate) fn resume_loads(&mut self) -> bool {
        self.loads_pause.end()
    }

    /// Returns the last error of the reads that commands wait for, if they are failing and tried again.
    pub(crate) fn failing(&self) -> Option<&Error> {
        let of_loads = self.loads_pause.last_error();
        of_loads.or_else(|| self.matches_trouble.last_error())
    }

    pub(crate) fn has_loads(&self) -> bool {
        self.loads > 0
    }

    /// Claims a stream for a load. Returns false if the stream is being loaded.
    pub(crate) fn claim(&mut self, stream: &StreamId) -> bool {
        self.loading.insert(stream.clone())
    }

    pub(crate) fn load(&mut self, request: LoadRequest) -> (JobId, Job) {
        self.loads += 1;
        self.begin(What::Load(request.clone()), Purpose::Load(request))
    }

    // ---- stored events ----

    /// Numbers a lookup of stored events. A lookup that searches a part of the window is sent later, together with
    /// others; another one is returned as a read.
    pub(crate) fn look_up(&mut self, questions: Questions) -> (u64, Option<(JobId, Job)>) {
        self.lookups += 1;
        let number = self.lookups;
        let is_wide = |place: &Suspected| matches!(place, Suspected::Within(_));
        let mut asked = questions.iter().flatten();
        if asked.any(|one| one.places.iter().any(is_wide)) {
            self.due.push((number, questions));
            return (number, None);
        }
        let job = self.look_up_with(number, questions, Arc::default());
        (number, Some(job))
    }

    /// Looks up the events of one command, for which a search has found these hits.
    pub(crate) fn look_up_with(
        &mut self,
        number: u64,
        questions: Questions,
        hits: Arc<Hits>,
    ) -> (JobId, Job) {
        self.begin(What::LookUp(questions, hits), Purpose::LookUp(number))
    }

    /// Begins the next search for the events of many commands, if one is due. Until the ids of the window are known,
    /// every append to an old stream may need a search.
    pub(crate) fn search(&mut self) -> Option<(JobId, Job)> {
        if self.due.is_empty() || self.searches >= SEARCHES_MAX {
            return None;
        }
        let count = self.due.len().min(SEARCH_COMMANDS_MAX);
        let asked: Vec<_> = self.due.drain(..count).collect();
        Some(self.search_for(asked))
    }

    /// Searches for the events of these commands.
    pub(crate) fn search_for(&mut self, asked: Vec<(u64, Questions)>) -> (JobId, Job) {
        self.searches += 1;
        let search = Search::of(asked.iter().flat_map(|(_, questions)| questions).flatten());
        self.begin(What::Search(search), Purpose::Search(asked))
    }

    // ---- names and ids, in the background ----

    pub(crate) fn list(&mut self, listing: Listing) -> (JobId, Job) {
        let number = listing.number;
        self.begin(What::List(listing), Purpose::List(number))
    }

    /// Begins the backfill of the ids of the window.
    pub(crate) fn backfill(&mut self) {
        self.backfill = Backfill::FindStart(None);
    }

    /// Goes on with the window that begins after `start`. Returns whether this ends a fault that was logged.
    pub(crate) fn go_on_with_window(&mut self, start: Position) -> bool {
        self.backfill = Backfill::Read(start, None);
        self.backfill_told.ends()
    }

    /// Tries the backfill again after a pause. Without `start` the start of the window could not be found; with it, a
    /// range could not be read.
    pub(crate) fn retry_backfill(
        &mut self,
        log: LogId,
        start: Option<Position>,
        error: &Error,
        now: Moment,
    ) {
        warn_once!(
            self.backfill_told,
            log = log.0,
            %error,
            "cannot read the event ids of the deduplication window, trying again"
        );
        let at = Some(now + BACKFILL_PAUSE);
        self.backfill = match start {
            None => Backfill::FindStart(at),
            Some(start) => Backfill::Read(start, at),
        };
    }

    /// Begins the next read of ids, if one is due. `older` gives the range to fill; `None` ends the backfill.
    pub(crate) fn next_of_window(
        &mut self,
        window: IdempotencyWindow,
        (now, wall): (Moment, Timestamp),
        end: Position,
        older: impl FnOnce(Position) -> Option<OlderIds>,
    ) -> Option<(JobId, Job)> {
        let is_due = |at: Option<Moment>| at.is_none_or(|at| at <= now);
        match self.backfill {
            Backfill::FindStart(at) if is_due(at) => {
                self.backfill = Backfill::Nothing;
                let what = What::WindowStart {
                    window,
                    now: wall,
                    end,
                };
                Some(self.begin(what, Purpose::WindowStart))
            }
            Backfill::Read(start, at) if is_due(at) => {
                self.backfill = Backfill::Nothing;
                let range = older(start)?;
                Some(self.begin(What::Ids(range), Purpose::Ids(start)))
            }
            _ => None,
        }
    }

    /// Returns the time at which a read that could not be done is to be tried again.
    pub(crate) fn wake_at(&self) -> Option<Moment> {
        let backfill = match self.backfill {
            Backfill::FindStart(at) | Backfill::Read(_, at) => at,
            Backfill::Nothing => None,
        };
        // While all places are taken, a search begins when another one ends.
        let has_place = self.matches < MATCHES_MAX;
        let due = self.matches_due.iter().filter(|_| has_place);
        let matches = due.filter_map(|sought| sought.not_before).min();
        let others = [self.loads_pause.until(), matches, backfill];
        others.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::backend::RowId;
    use gesta_core::{EventId, Revision};

    use super::super::lookup::{Question, WindowPart};
    use super::*;

    fn load(stream: &StreamId) -> LoadRequest {
        LoadRequest {
            streams: vec![stream.clone()],
            types: Vec::new(),
        }
    }

    /// Goal: when everything is forgotten, ids and names that are being read no longer count; everything else does.
    #[test]
    fn what_is_forgotten_is_not_joined_by_ids_and_names_read_before() {
        let mut reads = Reads::default();
        let mut begin = |purpose| reads.begin(What::End, purpose).0;
        let forgotten = [
            begin(Purpose::WindowStart),
            begin(Purpose::Ids(Position(1))),
            begin(Purpose::List(1)),
        ];
        let kept = [begin(Purpose::LookUp(1)), begin(Purpose::OutdatedLoad)];
        reads.loads = 1;
        assert!(!reads.go_on_with_window(Position(1)));
        reads.forget();
        assert!(forgotten.into_iter().all(|id| reads.end(id).is_none()));
        assert!(kept.into_iter().all(|id| reads.end(id).is_some()));
        assert_eq!(reads.backfill, Backfill::Nothing);
        assert!(!reads.has_loads());
    }

    #[test]
    fn the_recovery_alone_gives_up_its_reads() {
        let mut reads = Reads::default();
        let (of_recovery, _) = reads.begin(What::End, Purpose::Recovery);
        let (other, _) = reads.begin(What::End, Purpose::LookUp(1));
        reads.abandon_recovery();
        assert!(reads.end(of_recovery).is_none());
        assert!(reads.end(other).is_some());
    }

    /// Goal: few loads at once, none for a stream that is being loaded; when everything was undone a stream may be
    /// asked for again, but the loads under way are still counted.
    #[test]
    fn loads_are_few_and_each_stream_is_in_one() {
        let (mut reads, now) = (Reads::default(), Moment::START);
        let [a, b] = ["a", "b"].map(|name| StreamId::new(name).expect("valid"));
        assert!(reads.claim(&a) && !reads.claim(&a));
        let (first, _) = reads.load(load(&a));
        assert!(reads.may_load(now) && reads.has_loads());
        assert!(reads.claim(&b));
        let (second, _) = reads.load(load(&b));
        assert!(!reads.may_load(now), "two are enough");
        reads.outdate();
        assert!(!reads.is_loading(&a) && reads.claim(&a));
        assert!(matches!(reads.end(first), Some(Purpose::OutdatedLoad)));
        assert!(reads.is_loading(&a), "by a later one");
        assert!(reads.may_load(now));
        assert!(reads.end(second).is_some() && reads.end(second).is_none());
        assert!(!reads.has_loads());
    }

    #[test]
    fn loads_that_fail_are_tried_again_after_a_pause() {
        let (mut reads, now) = (Reads::default(), Moment::START);
        reads.pause_loads(LogId(0), &Error::unavailable("away"), now);
        let until = reads.wake_at().expect("is tried again");
        assert!(until > now && !reads.may_load(now));
        assert!(reads.failing().is_some());
        assert!(reads.may_load(until));
        assert_eq!(reads.wake_at(), None, "the pause is over");
        reads.pause_loads(LogId(0), &Error::unavailable("away"), now);
        assert!(reads.resume_loads() && !reads.resume_loads());
        assert!(reads.may_load(now) && reads.failing().is_none());
    }

    /// Goal: what could not be read of the window is read after a pause, and goes on where it was.
    #[test]
    fn the_window_is_read_after_a_pause() {
        let (mut reads, now) = (Reads::default(), Moment::START);
        let window = IdempotencyWindow {
            time: Duration::ZERO,
            positions: 1,
        };
        let next = |reads: &mut Reads, at, ends: bool| {
            let time = (at, Timestamp(0));
            let older = |start| {
                assert_eq!(start, Position(7));
                assert!(ends);
                None
            };
            reads.next_of_window(window, time, Position(9), older)
        };
        assert!(next(&mut reads, now, false).is_none());
        reads.backfill();
        let (_, job) = next(&mut reads, now, false).expect("due");
        assert!(matches!(job.0, What::WindowStart { .. }));
        assert!(next(&mut reads, now, false).is_none(), "is under way");
        let away = Error::unavailable("away");
        reads.retry_backfill(LogId(0), None, &away, now);
        assert_eq!(reads.wake_at(), Some(now + BACKFILL_PAUSE));
        assert!(next(&mut reads, now, false).is_none());
        assert!(next(&mut reads, now + BACKFILL_PAUSE, false).is_some());
        reads.retry_backfill(LogId(0), Some(Position(7)), &away, now);
        assert!(next(&mut reads, now, false).is_none());
        assert_eq!(reads.wake_at(), Some(now + BACKFILL_PAUSE));
        assert!(next(&mut reads, now + BACKFILL_PAUSE, true).is_none());
        assert_eq!(reads.wake_at(), None, "all is covered");
        assert!(reads.go_on_with_window(Position(7)), "the fault is over");
    }

    fn question(place: Suspected) -> Questions {
        vec![Some(Question {
            stream: StreamId::new("s").expect("valid"),
            row: RowId(1),
            ids: vec![EventId::random()],
            deleted_before: gesta_core::Revision(0),
            places: vec![place],
        })]
    }

    fn within() -> Suspected {
        Suspected::Within(WindowPart {
            after: Position(1),
            created_from: Timestamp(1),
            until: Position(9),
        })
    }

    /// Goal: searches of the window are sent together, so many commands in each and two at once; a look at one place is
    /// sent at once.
    #[test]
    fn searches_are_sent_together() {
        let mut reads = Reads::default();
        let (_, at_once) = reads.look_up(question(Suspected::At(Revision(1))));
        assert!(at_once.is_some() && reads.search().is_none());
        for _ in 0..SEARCH_COMMANDS_MAX * 2 + 1 {
            assert!(reads.look_up(question(within())).1.is_none());
        }
        let mut search = || {
            let (id, job) = reads.search()?;
            let What::Search(search) = job.0 else {
                panic!("{job:?}");
            };
            Some((id, search.events.len()))
        };
        let (first, count) = search().expect("due");
        assert_eq!(count, SEARCH_COMMANDS_MAX);
        assert!(search().is_some());
        assert!(search().is_none(), "two are enough");
        reads.end(first);
        assert!(
            matches!(reads.search(), Some((_, Job(What::Search(last)))) if last.events.len() == 1)
        );
        assert!(reads.due.is_empty());
    }
}
