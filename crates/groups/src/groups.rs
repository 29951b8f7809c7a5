//! The groups of a process: lists them, and runs those that consumers join.
//!
//! A group runs from its first consumer on until it has had none for a while. Nothing is lost in between, because what
//! the group has done is in the store. Invariants: one task runs a group in this process; how many groups run, and the
//! bytes that they hold together, have a maximum; a group that another node owns is refused with the address of that
//! node.
//! Not here: creating, changing and deleting groups (`changes`), what a group decides (`machine`), its task (`run`).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gesta_core::shares::{self, Holder};
use gesta_core::{Clock, EventStore, ListStreams, SystemClock};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::begin;
use crate::commands::{Answerer, Command, Commands, JoinGroup, Stop};
use crate::config::{Alone, Config, GroupPlacement};
use crate::consumer::Consumer;
use crate::error::{Error, Result};
use crate::history::Standing;
use crate::info::GroupInfo;
use crate::machine::{Action, ConsumerId, Counts, Which};
use crate::names::{GroupId, Source};
use crate::run::{Shared, Task};
use crate::storage::Storage;

/// How many times a call is tried that has met a group just as it stopped, or that another caller was faster to change.
pub(crate) const TRIES: usize = 5;

struct Entry {
    number: u64,
    commands: Commands,
}

struct Inner {
    store: Arc<dyn EventStore>,
    shared: Arc<Shared>,
    running: Mutex<HashMap<GroupId, Entry>>,
    /// Groups that could not begin to run, because their place is not of the present history.
    halted: Mutex<HashSet<GroupId>>,
    next_number: AtomicU64,
    tasks: TaskTracker,
}

/// The groups of a process. It is cheap to clone, and dropping it stops no group.
#[derive(Clone)]
pub struct Groups {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Groups")
    }
}

impl Groups {
    /// Starts the groups of this store, which this process runs alone. Must be used within a tokio runtime.
    ///
    /// Programs use them through [`ConsumerGroups`](crate::ConsumerGroups), whose page has an example.
    #[must_use]
    pub fn start(store: Arc<dyn EventStore>, config: Config) -> Self {
        Self::start_as(store, config, Arc::new(Alone), Arc::new(SystemClock))
    }

    /// Starts the groups of this store of which `placement` says that this process is to run them. `clock` gives the
    /// time at which events are parked. Must be used within a tokio runtime.
    #[must_use]
    pub fn start_as(
        store: Arc<dyn EventStore>,
        config: Config,
        placement: Arc<dyn GroupPlacement>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let shared = Shared {
            config,
            clock,
            placement,
            held_bytes: AtomicUsize::new(0),
            totals: Mutex::default(),
            stopping: CancellationToken::new(),
        };
        let inner = Inner {
            store,
            shared: Arc::new(shared),
            running: Mutex::default(),
            halted: Mutex::default(),
            next_number: AtomicU64::new(0),
            tasks: TaskTracker::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns what a group is and does now.
    ///
    /// # Errors
    /// `NotFound` if the group does not exist; `NotHere`; `Stopping`; `Store`; the error with which the group ends
    /// meanwhile.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn info(&self, group: &GroupId) -> Result<GroupInfo> {
        let storage = self.storage(group)?;
        if let Some(commands) = self.running(group)
            && let Some(info) = commands.ask(Command::Info).await
        {
            return info;
        }
        stored_info(&storage).await
    }

    /// Returns what is stored of a group, whichever node runs it, without what the group does while it runs.
    ///
    /// # Errors
    /// `NotFound` if the group does not exist; `Store`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn stored(&self, group: &GroupId) -> Result<GroupInfo> {
        let store = Arc::clone(&self.inner.store);
        stored_info(&Storage::of_call(store, group.clone())).await
    }

    /// Returns the groups of a source, or all groups, in the order of their names: those after `after`, at most
    /// `limit`.
    ///
    /// # Errors
    /// `Store`: `InvalidArgument` if `limit` is out of range.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn list(
        &self,
        source: Option<&Source>,
        after: Option<&GroupId>,
        limit: usize,
    ) -> Result<Vec<GroupId>> {
        let mut request = ListStreams {
            prefix: GroupId::configuration_prefix(source),
            after: after.map(GroupId::configuration_stream),
            limit,
        };
        let mut found = Vec::new();
        loop {
            let page = self.inner.store.list_streams(request.clone()).await?;
            let streams = page.streams.iter();
            let groups = streams.filter_map(|info| GroupId::of_configuration_stream(&info.stream));
            // `a::` is also what the groups of a stream `a::b` begin with.
            let wanted = |group: &GroupId| source.is_none_or(|source| group.source() == source);
            found.extend(groups.filter(wanted).take(limit - found.len()));
            match page.next {
                Some(next) if found.len() < limit => request.after = Some(next),
                _ => return Ok(found),
            }
        }
    }

    /// Joins a group: its events are shared out among this consumer and the others. The group begins to run if it does
    /// not.
    ///
    /// # Errors
    /// `NotFound` if the group does not exist; `Refused` if the group has no room for the consumer; `Halted` if its
    /// place is not of the present history of the store; `NotHere`; `TakenOver`; `Overloaded`; `Stopping`; `Store`.
    ///
    /// # Cancel safety
    /// If the future is dropped after the consumer has joined, the consumer leaves again.
    pub async fn join(&self, group: &GroupId, join: JoinGroup) -> Result<Consumer> {
        let (commands, membership) = self
            .asked(group, |reply| Command::Join(join.clone(), reply))
            .await?;
        Ok(Consumer::new(membership, commands))
    }

    /// Acknowledges these events for the consumer that has this number. Returns for how many the answer came in time.
    ///
    /// # Errors
    /// `NoConsumer` if there is no such consumer in this process; `NotHere`; `Stopping`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer is given or not.
    pub async fn ack(
        &self,
        group: &GroupId,
        consumer: ConsumerId,
        events: Vec<Which>,
    ) -> Result<usize> {
        let commands = self.of_consumer(group, consumer)?;
        commands.ack(group, consumer.into(), events).await
    }

    /// Acknowledges these events as [`Groups::ack`] does, if the consumer has joined as this user.
    ///
    /// # Errors
    /// The errors of [`Groups::ack`]; `NoConsumer` too if the consumer has joined as somebody else.
    ///
    /// # Cancel safety
    /// That of [`Groups::ack`].
    pub async fn ack_as(
        &self,
        user: &str,
        group: &GroupId,
        consumer: ConsumerId,
        events: Vec<Which>,
    ) -> Result<usize> {
        let commands = self.of_consumer(group, consumer)?;
        let user = Some(user.to_owned());
        let by = Answerer { consumer, user };
        commands.ack(group, by, events).await
    }

    /// Refuses these events for the consumer that has this number. Returns for how many the answer came in time.
    ///
    /// # Errors
    /// The errors of [`Groups::ack`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the answer is given or not.
    pub async fn nack(
        &self,
        group: &GroupId,
        consumer: ConsumerId,
        events: Vec<Which>,
        action: Action,
        reason: &str,
    ) -> Result<usize> {
        let commands = self.of_consumer(group, consumer)?;
        let (by, reason) = (consumer.into(), reason.to_owned());
        commands.nack(group, by, events, action, reason).await
    }

    /// Refuses these events as [`Groups::nack`] does, if the consumer has joined as this user.
    ///
    /// # Errors
    /// The errors of [`Groups::ack_as`].
    ///
    /// # Cancel safety
    /// That of [`Groups::nack`].
    pub async fn nack_as(
        &self,
        user: &str,
        group: &GroupId,
        consumer: ConsumerId,
        events: Vec<Which>,
        (action, reason): (Action, &str),
    ) -> Result<usize> {
        let commands = self.of_consumer(group, consumer)?;
        let user = Some(user.to_owned());
        let by = Answerer { consumer, user };
        let reason = reason.to_owned();
        commands.nack(group, by, events, action, reason).await
    }

    /// Delivers parked events again: those before revision `stop_at` of the parked stream, or all of them. Returns when
    /// the replay has begun.
    ///
    /// # Errors
    /// `NotFound` if the group does not exist; `ReplayRunning` if another replay is not finished; `NotHere`;
    /// `TakenOver`; `Overloaded`; `Stopping`; `Store`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the replay begins or not.
    pub async fn replay_parked(&self, group: &GroupId, stop_at: Option<u64>) -> Result<()> {
        // What a process has parked that the group was taken from is not known to the one that runs it.
        let end = self.storage(group)?.parked_end().await?;
        let replay = |reply| Command::Replay {
            stop_at,
            end,
            reply,
        };
        self.asked(group, replay).await.map(|(_, ())| ())
    }

    /// Stops all groups that run in this process. Their consumers are told to join again.
    ///
    /// # Errors
    /// None at present.
    ///
    /// # Cancel safety
    /// If the future is dropped, some of the groups are stopped and the others run on.
    pub async fn restart_all(&self) -> Result<()> {
        let running: Vec<GroupId> = self.lock().keys().cloned().collect();
        for group in running {
            self.stop_running(&group, Stop::Dropped).await;
        }
        Ok(())
    }

    /// Stops all groups. Their consumers are told, and what is finished is stored. Later calls get `Stopping`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the groups stop all the same.
    pub async fn shutdown(&self) {
        self.inner.shared.stopping.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    /// Returns how many groups run in this process, and how many bytes of events they hold together.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        let held = self.inner.shared.held_bytes.load(Ordering::Relaxed);
        (self.lock().len(), held)
    }

    /// Returns how many groups this process has found to be halted, and nobody has reset since.
    #[must_use]
    pub fn halted(&self) -> usize {
        let halted = &self.inner.halted;
        let halted = halted.lock().unwrap_or_else(PoisonError::into_inner);
        halted.len()
    }

    /// Returns the store whose groups these are.
    pub(crate) fn store(&self) -> Arc<dyn EventStore> {
        Arc::clone(&self.inner.store)
    }

    /// Notes whether a group is halted.
    pub(crate) fn set_halted(&self, group: &GroupId, halted: bool) {
        let known = &self.inner.halted;
        // Nothing can panic while it is held.
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        match halted {
            true => drop(known.insert(group.clone())),
            false => drop(known.remove(group)),
        }
    }

    /// Returns the sum of what all groups of this process have done, including groups that do not run any more.
    #[must_use]
    pub fn totals(&self) -> Counts {
        let totals = self.inner.shared.totals.lock();
        *totals.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<GroupId, Entry>> {
        // Nothing can panic while it is held.
        let running = &self.inner.running;
        running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the streams of a group if this process may run it.
    ///
    /// # Errors
    /// `Stopping`, or `NotHere` with the node that is to run it.
    pub(crate) fn storage(&self, group: &GroupId) -> Result<Storage> {
        let shared = &self.inner.shared;
        if shared.stopping.is_cancelled() {
            return Err(Error::Stopping);
        }
        if let Some(elsewhere) = shared.placement.elsewhere(&group.checkpoint_stream()) {
            return Err(Error::NotHere {
                group: group.clone(),
                elsewhere,
            });
        }
        let store = Arc::clone(&self.inner.store);
        Ok(Storage::of_call(store, group.clone()))
    }

    fn running(&self, group: &GroupId) -> Option<Commands> {
        self.lock().get(group).map(|entry| entry.commands.clone())
    }

    fn of_consumer(&self, group: &GroupId, consumer: ConsumerId) -> Result<Commands> {
        if let Some(running) = self.running(group) {
            return Ok(running);
        }
        self.storage(group)?;
        Err(crate::commands::no_consumer(group, consumer))
    }

    pub(crate) async fn stop_running(&self, group: &GroupId, how: Stop) {
        if let Some(commands) = self.running(group) {
            commands.stop(how).await;
        }
    }

    /// Asks the task of a group and starts the task if the group does not run. Returns the answer and the handle of the
    /// task.
    async fn asked<T>(
        &self,
        group: &GroupId,
        command: impl Fn(oneshot::Sender<Result<T>>) -> Command,
    ) -> Result<(Commands, T)> {
        for _ in 0..TRIES {
            let storage = self.storage(group)?;
            let (commands, first) = self.running_or_started(storage, &command)?;
            let answer = match first {
                Some(answer) => answer.await.ok(),
                None => commands.ask(&command).await,
            };
            match answer {
                // It has stopped before it came to this.
                None | Some(Err(Error::Dropped(_) | Error::HistoryChanged(_))) => {}
                Some(answer) => return answer.map(|answer| (commands, answer)),
            }
        }
        Err(changed_too_often(group))
    }

    /// Returns the handle of the task of a group. If it must be started, it has this request from the beginning, so
    /// that it can tell why it ends, and the answer is returned too.
    fn running_or_started<T>(
        &self,
        storage: Storage,
        command: impl Fn(oneshot::Sender<Result<T>>) -> Command,
    ) -> Result<(Commands, Option<oneshot::Receiver<Result<T>>>)> {
        let mut running = self.lock();
        if let Some(entry) = running.get(&storage.group) {
            return Ok((entry.commands.clone(), None));
        }
        let max = self.inner.shared.config.running_max;
        if running.len() >= max {
            let text = format!("{max} groups run, as many as may");
            return Err(Error::Overloaded(text));
        }
        let (reply, answer) = oneshot::channel();
        let (commands, requests) = Commands::begun_with(command(reply));
        let number = self.inner.next_number.fetch_add(1, Ordering::Relaxed);
        let entry = Entry {
            number,
            commands: commands.clone(),
        };
        running.insert(storage.group.clone(), entry);
        // A runtime that shuts down drops the task at once, which takes the entry out.
        drop(running);
        let leave = Leave {
            groups: self.clone(),
            group: storage.group.clone(),
            number,
        };
        let shared = Arc::clone(&self.inner.shared);
        let task = run(storage, shared, requests, leave);
        self.inner
            .tasks
            .spawn(shares::act_as(Holder::Part("consumer groups"), task));
        Ok((commands, Some(answer)))
    }
}

/// Removes a group from the groups that run when it is dropped, however the task of the group ends.
struct Leave {
    groups: Groups,
    group: GroupId,
    number: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut running = self.groups.lock();
        if running
            .get(&self.group)
            .is_some_and(|entry| entry.number == self.number)
        {
            running.remove(&self.group);
        }
    }
}

async fn run(
    storage: Storage,
    shared: Arc<Shared>,
    mut requests: mpsc::Receiver<Command>,
    leave: Leave,
) {
    let group = storage.group.clone();
    let begun = tokio::select! {
        begun = begin::begin(storage) => begun.map_err(|error| error.or_history_changed(&group)),
        () = shared.stopping.cancelled() => Err(Error::Stopping),
    };
    match &begun {
        Err(Error::Halted { .. }) => leave.groups.set_halted(&group, true),
        Err(_) => {}
        Ok(_) => leave.groups.set_halted(&group, false),
    }
    let why = match begun {
        Err(why) => why,
        Ok(begun) => {
            tracing::debug!(%group, "a consumer group begins");
            let mut task = Task::new(begun, shared);
            let why = task.run(&mut requests).await;
            task.stop(&why).await;
            why
        }
    };
    match &why {
        Error::Halted { .. } => tracing::error!(%group, error = %why, "a consumer group is halted"),
        Error::HistoryChanged(_) => {
            tracing::warn!(%group, "a consumer group has ended, for the store has another history now");
        }
        Error::Store(error) => tracing::warn!(%group, %error, "a consumer group has ended"),
        why => tracing::debug!(%group, %why, "a consumer group has ended"),
    }
    // From here on callers find no task and start a new one; those who asked this one get the reason.
    drop(leave);
    requests.close();
    while let Ok(command) = requests.try_recv() {
        command.refuse(why.clone());
    }
}

pub(crate) fn changed_too_often(group: &GroupId) -> Error {
    Error::Overloaded(format!("group {group} changes all the time: try again"))
}

async fn stored_info(storage: &Storage) -> Result<GroupInfo> {
    for _ in 0..TRIES {
        let found = info_of_present(storage).await;
        match found.map_err(|error| error.or_history_changed(&storage.group)) {
            Err(Error::HistoryChanged(_)) => {}
            found => return found,
        }
    }
    Err(changed_too_often(&storage.group))
}

/// Fails with `InvalidCheckpoint` if the store begins another history meanwhile.
async fn info_of_present(storage: &Storage) -> Result<GroupInfo> {
    let Some(stored) = storage.configuration().await? else {
        return Err(Error::NotFound(storage.group.clone()));
    };
    let incarnation = storage.incarnation().await?;
    let last = storage.last_checkpoint(stored.configuration.life).await?;
    let checkpoint = last.place.as_ref().map(|place| place.next);
    let place = last.place.unwrap_or_else(|| stored.place());
    let halted = match place.judge(storage, incarnation).await? {
        Standing::Stands { .. } => None,
        Standing::Lost(halt) => Some(halt),
    };
    let configuration = stored.configuration;
    let parked = storage.parked(&configuration).await?;
    Ok(GroupInfo {
        group: storage.group.clone(),
        checkpoint,
        halted,
        parked: parked.end - parked.start,
        parked_stream: storage.known_parked_stream(),
        filter: configuration.filter.to_filter()?,
        pattern: configuration.pattern.clone(),
        settings: configuration.settings,
        running: None,
    })
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use super::*;
    use crate::info::Identity;

    /// Uses up what a task may do in a turn: what it waits for next lets others go first.
    fn use_up_the_turn() {
        let mut context = Context::from_waker(Waker::noop());
        while pin!(tokio::task::coop::consume_budget())
            .poll(&mut context)
            .is_ready()
        {}
    }

    /// What happened: a task that had ended before the request came to it, since there is no such group, had told
    /// nobody why. The caller started another one, and after five of them heard that the group changes all the time.
    /// What holds: a task has its first request from the beginning.
    #[tokio::test]
    async fn a_task_tells_who_started_it_why_it_ends() {
        let store = Arc::new(gesta_memory::MemoryStore::new());
        let groups = Groups::start(store, Config::default());
        let group = GroupId::new("orders", "mail").expect("a group");
        let (own, asked) = (groups.clone(), group.clone());
        let joined = tokio::spawn(async move {
            use_up_the_turn();
            let join = JoinGroup {
                buffer: 1,
                identity: Identity::default(),
                patience: Duration::ZERO,
            };
            own.join(&asked, join).await.map(|_| ())
        });
        let error = joined.await.expect("no panic").expect_err("no group");
        assert!(matches!(error, Error::NotFound(missing) if missing == group));
        assert_eq!(groups.inner.next_number.load(Ordering::Relaxed), 1);
    }
}
