//! UmaDB: its server as a process of its own, its own Rust client in this process, one connection per worker.
//!
//! UmaDB has no streams; a stream is a tag. The claim of a revision becomes its append condition: no event with this
//! tag after the position of the last one that the worker appended, which guards exactly what an expected revision
//! does.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use gesta_report::failure::{Context, Result};
use gesta_load::target::{Append, AppendError, Events, Session, Stored, Target, TargetFacts};
use umadb_client::{AsyncUmaDbClient, UmaDbClient};
use umadb_dcb::{
    DcbAppendCondition, DcbError, DcbEvent, DcbEventStoreAsync as _, DcbQuery, DcbQueryItem,
};

use crate::child::{Child, until_ready};
use crate::peer::{About, Categories, Measured, Peer, Round, measure_target, started};
use crate::world::World;

const EVENT_TYPE: &str = "lab-event";

/// Every append with a condition.
pub(super) fn conditional() -> Box<dyn Peer> {
    peer(
        "umadb",
        "UmaDB, each append with its condition",
        Condition::Revision,
    )
}

/// No append with one.
pub(super) fn unconditional() -> Box<dyn Peer> {
    peer(
        "umadb-unconditional",
        "UmaDB, appends without a condition",
        Condition::None,
    )
}

fn peer(name: &'static str, title: &'static str, condition: Condition) -> Box<dyn Peer> {
    Box::new(UmaDb {
        name,
        title,
        condition,
        target: None,
        server: None,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Revision,
    None,
}

struct UmaDb {
    name: &'static str,
    title: &'static str,
    condition: Condition,
    target: Option<Arc<dyn Target>>,
    server: Option<Child>,
}

#[async_trait]
impl Peer for UmaDb {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    async fn start(&mut self, world: &mut World) -> Result<About> {
        let program = world.installed("umadb", "bin/umadb")?;
        let version = world.python_version("umadb", "umadb")?;
        let address = gesta_rig::free_address()?;
        let (data, log) = (world.scratch("uma.db"), world.scratch("umadb.log"));
        let listen = address.to_string();
        let data = data.to_string_lossy();
        let arguments = ["--listen", &listen, "--db-path", &data];
        let server = self
            .server
            .insert(Child::start(&program, arguments, None, &log).await?);
        until_ready(server, || connect(address)).await?;
        let target = UmaDbTarget {
            name: self.name,
            title: self.title,
            address,
            condition: self.condition,
        };
        self.target = Some(Arc::new(target));
        Ok(About {
            engine: format!("UmaDB {version}"),
            version,
            note: match self.condition {
                Condition::Revision => "a stream is a tag; the condition: no later event has it",
                Condition::None => "nothing is checked: not what the others do",
            }
            .into(),
            durability: "full".into(),
            durability_detail: "fdatasync before the answer, one for all that wait".into(),
        })
    }

    async fn measure(&mut self, round: &Round<'_>) -> Result<Measured> {
        measure_target(started(self.target.as_ref())?, Categories::One, round).await
    }

    async fn end(&mut self, _: &mut World) -> Result<()> {
        self.target = None;
        match self.server.take() {
            Some(server) => server.end().await,
            None => Ok(()),
        }
    }
}

async fn connect(address: SocketAddr) -> Result<AsyncUmaDbClient> {
    let client = UmaDbClient::new(format!("http://{address}"));
    client.connect_async().await.context("UmaDB")
}

#[derive(Debug)]
struct UmaDbTarget {
    name: &'static str,
    title: &'static str,
    address: SocketAddr,
    condition: Condition,
}

#[async_trait]
impl Target for UmaDbTarget {
    fn name(&self) -> &str {
        self.name
    }

    fn title(&self) -> &str {
        self.title
    }

    async fn prepare(&self) -> Result<()> {
        Ok(())
    }

    async fn facts(&self) -> Result<TargetFacts> {
        gesta_report::failure::fail("the peer tells the facts")
    }

    async fn connect(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(UmaDbSession {
            client: connect(self.address).await?,
            condition: self.condition,
            last: HashMap::new(),
        }))
    }

    async fn read_back(&self, prefix: &str, see: &mut (dyn FnMut(Stored) + Send)) -> Result<()> {
        let client = connect(self.address).await?;
        let mut answer = client
            .read(None, None, false, None)
            .await
            .context("read-back")?;
        let mut revisions: HashMap<String, u64> = HashMap::new();
        loop {
            let batch = answer.next_batch().await.context("read-back")?;
            if batch.is_empty() {
                return Ok(());
            }
            for stored in batch {
                let Some(stream) = stored.event.tags.into_iter().next() else {
                    continue;
                };
                if !stream.starts_with(prefix) {
                    continue;
                }
                // UmaDB numbers no streams: the order is the revision.
                let next = revisions.entry(stream.clone()).or_default();
                let revision = *next;
                *next += 1;
                see(Stored {
                    stream,
                    revision,
                    mark: Events::mark_in(&stored.event.data),
                    bytes: Some(stored.event.data.len() as u64),
                    whole: None,
                });
            }
        }
    }

    async fn disk_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    async fn remove(&self) -> Result<()> {
        Ok(())
    }
}

struct UmaDbSession {
    client: AsyncUmaDbClient,
    condition: Condition,
    /// Position of the last event of each stream.
    last: HashMap<String, u64>,
}

#[async_trait]
impl Session for UmaDbSession {
    async fn append(&mut self, append: &Append<'_>) -> std::result::Result<(), AppendError> {
        let tag = || vec![append.stream.to_owned()];
        let events = append.events.iter().map(|event| DcbEvent {
            event_type: EVENT_TYPE.into(),
            tags: tag(),
            data: event.data.to_vec(),
            uuid: Some(event.id),
            metadata: Vec::new(),
        });
        let condition = (self.condition == Condition::Revision).then(|| DcbAppendCondition {
            fail_if_events_match: DcbQuery::with_items([DcbQueryItem::new().tags(tag())]),
            after: self.last.get(append.stream).copied(),
        });
        match self.client.append(events.collect(), condition, None).await {
            Ok(position) => {
                self.last.insert(append.stream.to_owned(), position);
                Ok(())
            }
            Err(error @ (DcbError::IntegrityError(_) | DcbError::InvalidArgument(_))) => {
                Err(AppendError::Failed(error.to_string()))
            }
            Err(error) => Err(AppendError::Unknown(error.to_string())),
        }
    }
}
