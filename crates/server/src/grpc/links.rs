//! Events as clients see them: translated, with the targets of links beside them if they asked for that.

use bytes::BytesMut;
use futures::stream::{self, StreamExt};
use gesta_core::{ErrorKind, EventStore, EventStoreExt, RecordedEvent};
use gesta_grpc::event::{self, Resolved};
use gesta_grpc::ids::UuidForm;
use gesta_grpc::link::{self, Target};
use gesta_grpc::stored;

use super::Result;

/// Targets that are read at once.
const TARGETS_AT_ONCE: usize = 16;

/// How a client wants events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) form: UuidForm,
    pub(crate) resolve_links: bool,
}

/// What a link leads to.
enum Lead {
    /// The event is no link, or links are not followed.
    None,
    /// It can be read.
    To(Box<RecordedEvent>),
    /// It cannot be read: it was deleted or truncated, or never was.
    Nowhere,
}

impl View {
    /// Appends events as messages.
    pub(crate) async fn write(
        self,
        store: &dyn EventStore,
        out: &mut BytesMut,
        events: &[RecordedEvent],
    ) -> Result<()> {
        if !self.resolve_links {
            for event in events {
                self.write_one(out, event, &Lead::None, None);
            }
            return Ok(());
        }
        let targets: Vec<Option<Target>> = events.iter().map(link::target).collect();
        let leads = stream::iter(targets).map(|target| lead(store, target));
        let mut leads = std::pin::pin!(leads.buffered(TARGETS_AT_ONCE));
        for event in events {
            let lead = match leads.next().await {
                Some(lead) => lead?,
                None => Lead::None,
            };
            self.write_one(out, event, &lead, None);
        }
        Ok(())
    }

    /// Appends an event that a group delivers; false, and nothing, if it is a link that leads nowhere.
    pub(crate) async fn write_delivery(
        self,
        store: &dyn EventStore,
        out: &mut BytesMut,
        event: &RecordedEvent,
        retries: u32,
    ) -> Result<bool> {
        let lead = if self.resolve_links {
            lead(store, link::target(event)).await?
        } else {
            Lead::None
        };
        let leads_somewhere = !matches!(lead, Lead::Nowhere);
        if leads_somewhere {
            self.write_one(out, event, &lead, Some(retries));
        }
        Ok(leads_somewhere)
    }

    fn write_one(
        self,
        out: &mut BytesMut,
        read: &RecordedEvent,
        lead: &Lead,
        retries: Option<u32>,
    ) {
        let read = stored::translated(read);
        let target = match lead {
            Lead::To(target) => Some(stored::translated(target)),
            Lead::None | Lead::Nowhere => None,
        };
        let resolved = match lead {
            Lead::None => Resolved {
                retries,
                ..Resolved::plain(&read)
            },
            Lead::To(_) | Lead::Nowhere => Resolved {
                event: target.as_deref(),
                link: Some(&read),
                retries,
            },
        };
        event::write(out, resolved, self.form);
    }
}

async fn lead(store: &dyn EventStore, target: Option<Target>) -> Result<Lead> {
    let Some(target) = target else {
        return Ok(Lead::None);
    };
    match store.read_event(target.stream, target.revision).await {
        Ok(target) => Ok(Lead::To(Box::new(target))),
        Err(error) => match error.kind() {
            ErrorKind::EventNotFound { .. }
            | ErrorKind::StreamNotFound(_)
            | ErrorKind::StreamTombstoned(_)
            | ErrorKind::InvalidArgument { .. } => Ok(Lead::Nowhere),
            _ => Err(error.into()),
        },
    }
}
