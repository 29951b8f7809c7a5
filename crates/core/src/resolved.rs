//! An event that a link may have led to.

use crate::request::SharedEvent;

/// An event, and the link that led to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The event; the link itself if it leads to nothing that can be read.
    pub event: SharedEvent,
    /// The link that led to the event; `None` if none did.
    pub link: Option<SharedEvent>,
}

impl Resolved {
    /// An event to which no link led.
    #[must_use]
    pub fn itself(event: SharedEvent) -> Self {
        Self { event, link: None }
    }

    /// The event at this place of the stream that was read: the link if there is one.
    #[must_use]
    pub fn original(&self) -> &SharedEvent {
        self.link.as_ref().unwrap_or(&self.event)
    }

    /// Memory that it holds, roughly, in bytes.
    #[must_use]
    pub fn cost_bytes(&self) -> usize {
        let link = self.link.as_ref().map_or(0, |link| link.cost_bytes());
        self.event.cost_bytes() + link
    }
}
