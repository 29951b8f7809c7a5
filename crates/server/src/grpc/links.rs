//! Writes events as clients see them: translated, with the targets of links beside them if the client asked for that.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use gesta_core::{Error, EventStore, LinkTarget, Resolved, SharedEvent};
use gesta_grpc::event::{self, Shown};
use gesta_grpc::ids::UuidForm;
use gesta_grpc::{Positions, stored};

use super::Result;
use crate::call::deliveries;

/// The form in which a client wants events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) form: UuidForm,
    pub(crate) resolve_links: bool,
    /// Positions of the history in which the events are read, or of an earlier one: those are refused once they come
    /// back.
    pub(crate) positions: Positions,
}

/// How many bytes are reserved for the fields of an event beside its payload and its names.
const FIELDS_BYTES: usize = 256;

impl View {
    /// Appends events from the front as messages, and removes them from `events`: all of them, or as many as the store
    /// follows links of at once.
    pub(crate) async fn write(
        self,
        store: &dyn EventStore,
        out: &mut BytesMut,
        events: &mut VecDeque<SharedEvent>,
    ) -> Result<()> {
        let is_link = |event: &SharedEvent| LinkTarget::of(event).is_some();
        if !self.resolve_links || !events.iter().any(is_link) {
            // Else what is written is moved again and again, and held twice meanwhile.
            let bytes = |event: &SharedEvent| event.cost_bytes() + FIELDS_BYTES;
            out.reserve(events.iter().map(bytes).sum());
            for event in events.drain(..) {
                self.write_one(out, &Resolved::itself(event));
            }
            return Ok(());
        }
        let asked = events.iter().map(Arc::clone).collect();
        let resolved = store.resolve(asked).await?;
        if resolved.is_empty() {
            return Err(Error::corrupt("the store gave no answer about links").into());
        }
        events.drain(..resolved.len().min(events.len()));
        let bytes = |found: &Resolved| found.cost_bytes() + 2 * FIELDS_BYTES;
        out.reserve(resolved.iter().map(bytes).sum());
        for resolved in resolved {
            self.write_one(out, &resolved);
        }
        Ok(())
    }

    fn write_one(self, out: &mut BytesMut, resolved: &Resolved) {
        let event = stored::translated(&resolved.event);
        let link = resolved.link.as_deref().map(stored::translated);
        let leads_nowhere =
            self.resolve_links && link.is_none() && LinkTarget::of(&resolved.event).is_some();
        let (shown, link) = match leads_nowhere {
            true => (None, Some(&*event)),
            false => (Some(&*event), link.as_deref()),
        };
        let shown = Shown {
            event: shown,
            link,
            retries: None,
            positions: self.positions,
        };
        event::write(out, shown, self.form);
    }
}

/// Appends an event that a group delivers.
pub(crate) fn write_delivery(
    out: &mut BytesMut,
    delivery: &deliveries::Shown,
    form: UuidForm,
    positions: Positions,
) {
    let event = stored::translated(&delivery.resolved.event);
    let link = delivery.resolved.link.as_deref().map(stored::translated);
    let shown = Shown {
        event: Some(&*event),
        link: link.as_deref(),
        retries: Some(delivery.retries),
        positions,
    };
    event::write(out, shown, form);
}
