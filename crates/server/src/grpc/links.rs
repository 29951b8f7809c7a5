//! Events as clients see them: translated, with the targets of links beside them if they asked for that.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use gesta_core::{Error, EventStore, LinkTarget, RecordedEvent, Resolved, SharedEvent};
use gesta_grpc::event::{self, Shown};
use gesta_grpc::ids::UuidForm;
use gesta_grpc::stored;

use super::Result;

/// How a client wants events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) form: UuidForm,
    pub(crate) resolve_links: bool,
}

impl View {
    /// Appends events from the front as messages: all, or as many as the store follows links of at once. They are taken
    /// out.
    pub(crate) async fn write(
        self,
        store: &dyn EventStore,
        out: &mut BytesMut,
        events: &mut VecDeque<SharedEvent>,
    ) -> Result<()> {
        let is_link = |event: &SharedEvent| LinkTarget::of(event).is_some();
        if !self.resolve_links || !events.iter().any(is_link) {
            for event in events.drain(..) {
                self.write_one(out, &Resolved::itself(event), None);
            }
            return Ok(());
        }
        let asked = events.iter().map(Arc::clone).collect();
        let resolved = store.resolve(asked).await?;
        if resolved.is_empty() {
            return Err(Error::corrupt("the store gave no answer about links").into());
        }
        events.drain(..resolved.len().min(events.len()));
        for resolved in &resolved {
            self.write_one(out, resolved, None);
        }
        Ok(())
    }

    /// Appends an event that a group delivers; false, and nothing, if it is a link that leads nowhere.
    pub(crate) async fn write_delivery(
        self,
        store: &dyn EventStore,
        out: &mut BytesMut,
        event: &SharedEvent,
        retries: u32,
    ) -> Result<bool> {
        if !self.resolve_links || LinkTarget::of(event).is_none() {
            self.write_one(out, &Resolved::itself(Arc::clone(event)), Some(retries));
            return Ok(true);
        }
        let resolved = store.resolve(vec![Arc::clone(event)]).await?;
        match resolved.first() {
            Some(resolved) if resolved.link.is_some() => {
                self.write_one(out, resolved, Some(retries));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn write_one(self, out: &mut BytesMut, resolved: &Resolved, retries: Option<u32>) {
        let event = stored::translated(&resolved.event);
        let link = resolved.link.as_deref().map(stored::translated);
        let leads_nowhere =
            self.resolve_links && link.is_none() && LinkTarget::of(&resolved.event).is_some();
        let shown = if leads_nowhere {
            Shown {
                event: None,
                link: Some(&event),
                retries,
            }
        } else {
            Shown {
                event: Some(&*event as &RecordedEvent),
                link: link.as_deref(),
                retries,
            }
        };
        event::write(out, shown, self.form);
    }
}
