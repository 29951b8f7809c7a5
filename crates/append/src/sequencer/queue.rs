//! The commands that are to be decided: those that have arrived, and those that wait until something was looked up.
//!
//! Invariant: a command never overtakes a waiting command that touches the same stream.

use std::collections::{HashMap, VecDeque};

use gesta_core::StreamId;

use super::lookup::Found;
use crate::command::Command;

/// A command that cannot be decided yet.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) command: Command<T>,
    /// The number of the lookup of stored events that the command waits for.
    pub(crate) lookup: Option<u64>,
    /// What the lookup found.
    pub(crate) found: Option<Vec<Found>>,
}

/// The commands that are to be decided.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// The commands that have arrived and were not looked at yet, oldest first.
    pub(crate) inbox: VecDeque<Command<T>>,
    pub(crate) waiting: VecDeque<Waiting<T>>,
    /// The streams that waiting commands touch, each with the number of such commands.
    held: HashMap<StreamId, usize>,
    /// Whether some of the waiting commands may be ready.
    pub(crate) some_are_ready: bool,
    /// Whether some of the waiting commands wait for the commits of batches that touch their streams.
    some_rest_on_commits: bool,
    /// Whether commands were taken out that waited for lookups.
    pub(crate) some_lookups_are_unawaited: bool,
    arrivals: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            inbox: VecDeque::new(),
            waiting: VecDeque::new(),
            held: HashMap::new(),
            some_are_ready: false,
            some_rest_on_commits: false,
            some_lookups_are_unawaited: false,
            arrivals: 0,
        }
    }
}

impl<T> Queue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.inbox.is_empty() && self.waiting.is_empty()
    }

    /// Takes a command that has arrived.
    pub(crate) fn arrive(&mut self, mut command: Command<T>) {
        self.arrivals += 1;
        command.sequence = self.arrivals;
        self.inbox.push_back(command);
    }

    /// Returns whether the command must stay after a waiting command.
    pub(crate) fn is_held(&self, command: &Command<T>) -> bool {
        !self.held.is_empty()
            && command
                .parts
                .iter()
                .any(|part| self.held.contains_key(&part.stream))
    }

    /// Lets a command wait, for the lookup of that number or until its streams are known.
    pub(crate) fn wait(&mut self, command: Command<T>, lookup: Option<u64>) {
        self.wait_with(command, lookup, None);
    }

    /// Lets a command wait of which is known already what is stored of it.
    pub(crate) fn wait_with(
        &mut self,
        command: Command<T>,
        lookup: Option<u64>,
        found: Option<Vec<Found>>,
    ) {
        for part in &command.parts {
            *self.held.entry(part.stream.clone()).or_insert(0) += 1;
        }
        self.waiting.push_back(Waiting {
            command,
            lookup,
            found,
        });
    }

    /// Lets a command wait until the batches have committed that touch its streams. Meanwhile it holds the commands
    /// that come after it to these streams, so that no other batch touches them.
    pub(crate) fn wait_for_commits(&mut self, command: Command<T>) {
        self.some_rest_on_commits = true;
        self.wait(command, None);
    }

    /// Notes that a batch has committed.
    pub(crate) fn committed(&mut self) {
        self.some_are_ready |= std::mem::take(&mut self.some_rest_on_commits);
    }

    /// Notes that a command, which was taken out of the waiting commands, waits no longer.
    pub(crate) fn release(&mut self, command: &Command<T>) {
        for part in &command.parts {
            if let Some(count) = self.held.get_mut(&part.stream) {
                *count -= 1;
                if *count == 0 {
                    self.held.remove(&part.stream);
                }
            }
        }
    }

    /// Takes out the waiting commands that `select` chooses.
    pub(crate) fn extract_waiting(
        &mut self,
        mut select: impl FnMut(&Waiting<T>) -> bool,
    ) -> Vec<Command<T>> {
        let (chosen, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| select(waiting));
        self.waiting = rest.into();
        self.some_lookups_are_unawaited |= chosen.iter().any(|one| one.lookup.is_some());
        let commands: Vec<Command<T>> = chosen.into_iter().map(|one| one.command).collect();
        commands.iter().for_each(|command| self.release(command));
        commands
    }

    /// Puts all waiting commands back into the inbox, with these commands, in the order of arrival.
    pub(crate) fn start_over(&mut self, commands: impl IntoIterator<Item = Command<T>>) {
        self.held.clear();
        let waiting = self.waiting.drain(..).map(|waiting| waiting.command);
        self.inbox.extend(waiting);
        self.inbox.extend(commands);
        self.inbox
            .make_contiguous()
            .sort_by_key(|command| command.sequence);
    }

    /// Takes out all commands that `select` chooses, waiting or in the inbox.
    pub(crate) fn extract(
        &mut self,
        mut select: impl FnMut(&Command<T>) -> bool,
    ) -> Vec<Command<T>> {
        let mut chosen = self.extract_waiting(|waiting| select(&waiting.command));
        if self.inbox.iter().any(&mut select) {
            let (taken, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.inbox)
                .into_iter()
                .partition(|command| select(command));
            self.inbox = rest.into();
            chosen.extend(taken);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::{Append, EventData, EventType, ExpectedRevision, Moment};

    use super::*;

    fn arrives(queue: &mut Queue<&'static str>, ticket: &'static str, stream: &str) {
        let stream = StreamId::new(stream).expect("valid");
        let event = EventData::json(EventType::new("e").expect("valid"), "{}").without_id();
        let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
        queue.arrive(Command::append(ticket, append, Moment::START).expect("valid"));
    }

    fn waits(queue: &mut Queue<&'static str>) {
        let command = queue.inbox.pop_front().expect("has arrived");
        queue.wait(command, None);
    }

    /// Goal: a command is held until the last one that waits for its stream waits no longer.
    #[test]
    fn a_command_is_held_by_all_that_wait_for_its_stream() {
        let mut queue = Queue::default();
        for (ticket, stream) in [("a", "s"), ("b", "s"), ("c", "s"), ("d", "t")] {
            arrives(&mut queue, ticket, stream);
        }
        waits(&mut queue);
        waits(&mut queue);
        assert!(queue.is_held(&queue.inbox[0]));
        assert!(!queue.is_held(&queue.inbox[1]), "of another stream");
        let first = queue.extract_waiting(|waiting| waiting.command.ticket == "a");
        assert_eq!(first.len(), 1);
        assert!(queue.is_held(&queue.inbox[0]), "one still waits");
        assert_eq!(queue.extract_waiting(|_| true).len(), 1);
        assert!(!queue.is_held(&queue.inbox[0]));
    }

    /// Goal: when everything is decided again, it is in the order of arrival, and nothing is held.
    #[test]
    fn starting_over_restores_the_order_of_arrival() {
        let mut queue = Queue::default();
        for ticket in ["a", "b", "c", "d"] {
            arrives(&mut queue, ticket, "s");
        }
        let decided = queue.inbox.pop_front();
        waits(&mut queue);
        queue.start_over(decided);
        let tickets: Vec<&str> = queue.inbox.iter().map(|command| command.ticket).collect();
        assert_eq!(tickets, ["a", "b", "c", "d"]);
        assert!(queue.waiting.is_empty() && !queue.is_held(&queue.inbox[0]));
    }

    #[test]
    fn commands_are_taken_out_wherever_they_are() {
        let mut queue = Queue::default();
        for ticket in ["a", "b", "c", "d"] {
            arrives(&mut queue, ticket, "s");
        }
        waits(&mut queue);
        waits(&mut queue);
        let chosen = queue.extract(|command| ["b", "d"].contains(&command.ticket));
        let tickets: Vec<&str> = chosen.iter().map(|command| command.ticket).collect();
        assert_eq!(tickets, ["b", "d"]);
        assert_eq!((queue.waiting.len(), queue.inbox.len()), (1, 1));
        assert!(!queue.is_empty());
        assert_eq!(queue.extract(|_| true).len(), 2);
        assert!(queue.is_empty());
    }
}
