//! Deciders of your own while a world is hurt: accounts that take deposits, and a read model of their balances.
//!
//! Each caller deposits one unit after the other, each with an idempotency key, until it is told that the deposit is
//! done. In the end three must say the same of every account: the callers, who counted; the entity, as a new process
//! loads it; and the read model, folded from all events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta::entity::{Context, Decider, Entities, EntityType, JsonEvents, Request};
use gesta_chaos::load::{FaultEffects, Load, StretchReport};
use gesta_chaos::world::World;
use gesta_chaos::{Chaos, Fault, WorldKind};
use gesta_core::{AllFrom, Filter, ReadAll};
use gesta_report::failure::{Result, fail};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// Accounts, each with a caller.
const ACCOUNTS: usize = 8;
/// Deposits that all callers together must have done before the load counts as going on.
const DEPOSITS: u64 = 40;

#[derive(Default)]
struct Account {
    balance: u64,
}

#[derive(Serialize, Deserialize)]
enum Event {
    #[serde(rename = "deposited")]
    Deposited(Deposited),
}

#[derive(Serialize, Deserialize)]
struct Deposited {
    amount: u64,
}

impl Decider for Account {
    type Command = u64;
    type Event = Event;
    type Reply = u64;
    type Rejection = std::convert::Infallible;
    fn decide(
        &self,
        amount: &u64,
        _: &Context<'_>,
    ) -> std::result::Result<Vec<Event>, std::convert::Infallible> {
        Ok(vec![Event::Deposited(Deposited { amount: *amount })])
    }
    fn evolve(&mut self, Event::Deposited(deposited): &Event) {
        self.balance += deposited.amount;
    }
    fn reply(&self, _: &u64) -> u64 {
        self.balance
    }
}

/// The load: accounts in this process, and their callers.
#[derive(Default)]
struct Deposits {
    store: Option<gesta::Store>,
    accounts: Option<Entities<Account>>,
    callers: JoinSet<()>,
    stop: Arc<AtomicBool>,
    /// What the callers were told is done, by account.
    done: Arc<[AtomicU64; ACCOUNTS]>,
}

impl Deposits {
    fn told(&self) -> u64 {
        self.done
            .iter()
            .map(|done| done.load(Ordering::SeqCst))
            .sum()
    }
}

fn entity_type() -> gesta::Result<EntityType<Account>> {
    let accounts = EntityType::new("account", JsonEvents::<Event>::new())?;
    Ok(accounts.idempotent_replies())
}

/// Deposits one unit after the other, each as often as it takes.
async fn deposit(
    accounts: Entities<Account>,
    account: usize,
    (stop, done): (Arc<AtomicBool>, Arc<[AtomicU64; ACCOUNTS]>),
) {
    for number in done[account].load(Ordering::SeqCst).. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        // What was begun is finished: else it would not be known whether it is done.
        let key = format!("{account}-{number}");
        loop {
            let request = Request::new(1).key(key.clone());
            match accounts.submit(&account.to_string(), request).await {
                Ok(_) => break,
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => panic!("account {account}: {error}"),
            }
        }
        done[account].fetch_add(1, Ordering::SeqCst);
    }
}

#[async_trait(?Send)]
impl Load for Deposits {
    async fn begin(&mut self, world: &World, _: u32) -> Result<()> {
        if self.store.is_none() {
            let store = gesta::open(&world.url()).create().await?;
            self.accounts = Some(store.entities(entity_type()?)?);
            self.store = Some(store);
        }
        let Some(accounts) = &self.accounts else {
            return fail("no accounts");
        };
        self.stop.store(false, Ordering::SeqCst);
        for account in 0..ACCOUNTS {
            let shared = (Arc::clone(&self.stop), Arc::clone(&self.done));
            self.callers
                .spawn(deposit(accounts.clone(), account, shared));
        }
        Ok(())
    }

    async fn goes_on(&mut self, within: Duration) -> Result<Duration> {
        let (begun, before) = (Instant::now(), self.told());
        while self.told() < before + DEPOSITS {
            if begun.elapsed() > within {
                return fail(format!("deposits stand still after {within:?}"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(begun.elapsed())
    }

    async fn end(&mut self, world: &World, _: &FaultEffects) -> Result<StretchReport> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.callers.join_next().await {
            ended?;
        }
        // A process that has seen nothing of all this.
        let store = gesta::open(&world.url()).await?;
        let accounts = store.entities(entity_type()?)?;
        let mut balances = BTreeMap::<String, u64>::new();
        let mut request = ReadAll::forwards().filter(Filter::category("account"));
        loop {
            let page = store.event_store().read_all(request.clone()).await?;
            for event in &page.events {
                let deposited: Deposited = event.json()?;
                *balances.entry(event.stream.to_string()).or_default() += deposited.amount;
            }
            if page.end {
                break;
            }
            request = request.from(AllFrom::Checkpoint(page.next));
        }
        let mut problems = Vec::new();
        for (account, done) in self.done.iter().enumerate() {
            let told = done.load(Ordering::SeqCst);
            let loaded = accounts
                .read(&account.to_string(), |account| account.balance)
                .await?;
            let folded = balances
                .get(&format!("account-{account}"))
                .copied()
                .unwrap_or_default();
            if [loaded, folded] != [told, told] {
                problems.push(format!(
                    "account {account}: {told} deposits were acknowledged, the entity has {loaded}, the events {folded}"
                ));
            }
        }
        accounts.shutdown().await;
        store.shutdown().await?;
        Ok(StretchReport {
            acknowledged: self.told(),
            problems,
            ..StretchReport::default()
        })
    }

    async fn finish(&mut self, _: &World, is_stopped: bool) -> Result<StretchReport> {
        if let Some(store) = self.store.take().filter(|_| !is_stopped) {
            if let Some(accounts) = self.accounts.take() {
                accounts.shutdown().await;
            }
            store.shutdown().await?;
        }
        Ok(StretchReport::default())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let faults = [
        Fault::DatabaseKill,
        Fault::DatabaseRestart,
        Fault::BackendKill,
    ];
    let chaos = Chaos::on(WorldKind::Postgres).faults(faults).rounds(3);
    let verdict = chaos.run(Deposits::default()).await?;
    println!(
        "{} rounds, {} deposits",
        verdict.rounds, verdict.acknowledged
    );
    for problem in &verdict.problems {
        println!("WRONG: {problem}");
    }
    match verdict.problems.is_empty() {
        true => Ok(()),
        false => fail("a promise was broken"),
    }
}
