//! The contract of `EventStore`, on stores in several databases that operators have changed: a store of one log that
//! has moved to its second database, a store that was given a second database, and one of which a log was recovered
//! after a database had been set back.
#![cfg(feature = "postgres")]
#![expect(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::sync::Arc;

use async_trait::async_trait;
use gesta::databases::{self, Loss, MoveTo};
use gesta::{Clock, LogId, SystemClock, schema};
use gesta_kit::{StoreFactory, TestStore};
use gesta_rig::{fresh_schema, shared};

/// What was done to a store before it is used.
#[derive(Clone, Copy)]
enum Changed {
    /// Its only log has moved to the database that was added.
    OneLogMoved,
    /// It got a second database, which has no log.
    DatabaseAdded,
    /// A database was set back to a moment before a log came to it, and the log was recovered.
    LogRecovered,
}

/// Makes stores in schemas of their own, and changes them.
struct ChangedFactory {
    changed: Changed,
}

impl ChangedFactory {
    /// `None`, said aloud, if PostgreSQL is not installed.
    fn new(changed: Changed) -> Option<Self> {
        shared().map(|_| Self { changed })
    }

    async fn made(&self, clock: Arc<dyn Clock>) -> TestStore {
        let server = shared().expect("found before");
        let schemas = [fresh_schema(), fresh_schema()];
        let url = |schema: &String| {
            let server = server.url();
            format!("{server}?schema={schema}&readers=1&answer_timeout=60&connect_timeout=60")
        };
        let [first, second] = [url(&schemas[0]), url(&schemas[1])];
        schema::create(&first, self.logs()).await.expect("made");
        databases::add(&first, &second).await.expect("added");
        let urls = format!("{first} {second}");
        let change = async |goal| {
            let moved = databases::move_log(&urls, LogId(0), goal, |_| {}).await;
            moved.expect("moved");
        };
        match self.changed {
            Changed::DatabaseAdded => {}
            Changed::OneLogMoved => change(MoveTo::Database(&second)).await,
            Changed::LogRecovered => {
                change(MoveTo::Database(&second)).await;
                let schema = &schemas[1];
                let set_back = format!("UPDATE {schema}.homes SET arrived = 0 WHERE log = 0");
                server.execute(&set_back).expect("set back");
                change(MoveTo::Recovered {
                    from: Some(&first),
                    loss: Loss::Refused,
                })
                .await;
            }
        }
        open(Arc::new(urls), clock).await
    }
}

async fn open(urls: Arc<String>, clock: Arc<dyn Clock>) -> TestStore {
    let store = gesta::open(&urls).clock(clock).database().await;
    let store = store.expect("opens");
    TestStore::owned(store, urls)
}

#[async_trait]
impl StoreFactory for ChangedFactory {
    fn name(&self) -> String {
        let what = match self.changed {
            Changed::OneLogMoved => "1 log, moved to a second database",
            Changed::DatabaseAdded => "4 logs, a database added",
            Changed::LogRecovered => "4 logs, one recovered",
        };
        format!("postgres ({what})")
    }

    fn logs(&self) -> u16 {
        match self.changed {
            Changed::OneLogMoved => 1,
            Changed::DatabaseAdded | Changed::LogRecovered => 4,
        }
    }

    async fn create(&self) -> TestStore {
        self.made(Arc::new(SystemClock)).await
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(self.made(clock).await)
    }

    async fn reopen(&self, store: &TestStore) -> Option<TestStore> {
        store.shutdown().await.expect("shuts down");
        self.second(store).await
    }

    async fn second(&self, store: &TestStore) -> Option<TestStore> {
        Some(open(store.home(), Arc::new(SystemClock)).await)
    }
}

mod one_log_moved {
    use super::*;
    gesta_kit::conformance_tests!(match ChangedFactory::new(Changed::OneLogMoved) {
        Some(factory) => factory,
        None => return,
    });
}

mod database_added {
    use super::*;
    gesta_kit::conformance_tests!(match ChangedFactory::new(Changed::DatabaseAdded) {
        Some(factory) => factory,
        None => return,
    });
}

mod log_recovered {
    use super::*;
    gesta_kit::conformance_tests!(match ChangedFactory::new(Changed::LogRecovered) {
        Some(factory) => factory,
        None => return,
    });
}
