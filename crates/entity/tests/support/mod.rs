//! An account, and a runtime for it on an embedded store.

use std::sync::Arc;

use gesta_core::OwnerStore;
use gesta_entity::{
    Builder, Config, Context, Decider, Entities, EntityType, JsonEvents, Snapshots,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) balance: u64,
    pub(crate) changes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Command {
    Deposit(u64),
    /// Two events.
    DepositTwice(u64),
    Withdraw(u64),
    /// No event.
    Look,
    /// A mistake in the user's code.
    Panic,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Event {
    #[serde(rename = "deposited")]
    Deposited { amount: u64 },
    #[serde(rename = "withdrawn")]
    Withdrawn { amount: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Insufficient {
    pub(crate) balance: u64,
}

impl Decider for Account {
    type Command = Command;
    type Event = Event;
    type Reply = u64;
    type Rejection = Insufficient;

    fn decide(&self, command: &Command, _: &Context<'_>) -> Result<Vec<Event>, Insufficient> {
        match *command {
            Command::Deposit(amount) => Ok(vec![Event::Deposited { amount }]),
            Command::DepositTwice(amount) => Ok(vec![Event::Deposited { amount }; 2]),
            Command::Withdraw(amount) if amount > self.balance => Err(Insufficient {
                balance: self.balance,
            }),
            Command::Withdraw(amount) => Ok(vec![Event::Withdrawn { amount }]),
            Command::Look => Ok(vec![]),
            Command::Panic => panic!("planted"),
        }
    }

    fn evolve(&mut self, event: &Event) {
        self.changes += 1;
        match event {
            Event::Deposited { amount } => self.balance += amount,
            Event::Withdrawn { amount } => self.balance -= amount,
        }
    }

    fn reply(&self, _: &Command) -> u64 {
        self.balance
    }
}

pub(crate) async fn store() -> Arc<gesta::DatabaseStore> {
    gesta::open_database("sqlite::memory:")
        .await
        .expect("opens")
}

pub(crate) fn account_type() -> EntityType<Account> {
    EntityType::new("account", JsonEvents::<Event>::new())
        .expect("valid")
        .idempotent_replies()
        .snapshots(Snapshots::json(1).every(10))
}

pub(crate) fn config() -> Config {
    Config {
        shards: 2,
        ..Config::default()
    }
}

pub(crate) fn start(store: &Arc<gesta::DatabaseStore>, config: Config) -> Entities<Account> {
    let store = Arc::clone(store) as Arc<dyn OwnerStore>;
    Builder::new().config(config).start(store, account_type())
}
