//! [`Decider`]: what a user writes.

use gesta_core::Timestamp;

/// The state of an entity, and the pure functions around it.
///
/// The type that implements this trait *is* the state; its [`Default`] is the state before the first event. None of the
/// functions may have effects, read a clock or draw random numbers: they may run again after a conflict.
pub trait Decider: Default + Send + 'static {
    /// What is asked of the entity.
    type Command: Send + 'static;
    /// What has happened to the entity.
    type Event: Send + 'static;
    /// What a caller gets when its command was accepted.
    type Reply: Send + 'static;
    /// Why a command was not accepted.
    type Rejection: Send + 'static;

    /// Decides what a command leads to: events, which may be none, or a rejection.
    ///
    /// # Errors
    /// The rejection; nothing is stored then.
    fn decide(
        &self,
        command: &Self::Command,
        context: &Context<'_>,
    ) -> Result<Vec<Self::Event>, Self::Rejection>;

    /// Changes the state by an event. The event has happened: it cannot be refused here.
    fn evolve(&mut self, event: &Self::Event);

    /// Makes the reply to an accepted command, from the state after its events.
    fn reply(&self, command: &Self::Command) -> Self::Reply;
}

/// What a decision may know beside the state and the command.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    id: &'a str,
    now: Timestamp,
}

impl<'a> Context<'a> {
    /// Makes the context for the entity `id` at a moment.
    #[must_use]
    pub fn new(id: &'a str, now: Timestamp) -> Self {
        Self { id, now }
    }

    /// Returns the id of the entity.
    #[must_use]
    pub fn id(&self) -> &'a str {
        self.id
    }

    /// Returns the time at which the decision is made, by the clock of the runtime. After a conflict the decision is
    /// made again, at a later time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }
}
