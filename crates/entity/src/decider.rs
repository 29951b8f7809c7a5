//! [`Decider`]: what a user writes.

use gesta_core::Timestamp;

/// The state of an entity, and the pure functions around it.
///
/// The type that implements it *is* the state; its [`Default`] is the state before the first event.
/// None of the functions may have effects, read a clock or draw random numbers: they may run again after a conflict.
pub trait Decider: Default + Send + 'static {
    /// What is asked of the entity.
    type Command: Send + 'static;
    /// What has happened to it.
    type Event: Send + 'static;
    /// What a caller gets when its command was accepted.
    type Reply: Send + 'static;
    /// Why a command was not accepted.
    type Rejection: Send + 'static;

    /// What a command leads to: events, which may be none, or a rejection.
    ///
    /// # Errors
    /// The rejection; nothing is stored.
    fn decide(
        &self,
        command: &Self::Command,
        context: &Context<'_>,
    ) -> Result<Vec<Self::Event>, Self::Rejection>;

    /// The state after an event. It has happened: it cannot be refused here.
    fn evolve(&mut self, event: &Self::Event);

    /// The reply to an accepted command, from the state after its events.
    fn reply(&self, command: &Self::Command) -> Self::Reply;
}

/// What a decision may know beside state and command.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    id: &'a str,
    now: Timestamp,
}

impl<'a> Context<'a> {
    /// For entity `id` at a moment.
    #[must_use]
    pub fn new(id: &'a str, now: Timestamp) -> Self {
        Self { id, now }
    }

    /// The entity.
    #[must_use]
    pub fn id(&self) -> &'a str {
        self.id
    }

    /// When the decision is made, by the clock of the runtime. After a conflict it is made again, later.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }
}
