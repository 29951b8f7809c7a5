//! An event that a link may have led to.

use crate::request::SharedEvent;

/// An event, and the link that led to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// The event to which the link leads; the link itself if it leads to nothing that can be read.
    pub event: SharedEvent,
    /// The link that led to the event; `None` if no link did.
    pub link: Option<SharedEvent>,
}

impl Resolved {
    /// Makes the answer for an event to which no link led.
    #[must_use]
    pub fn itself(event: SharedEvent) -> Self {
        Self { event, link: None }
    }

    /// Returns the event that stands at this place of the stream that was read: the link if there is one.
    #[must_use]
    pub fn original(&self) -> &SharedEvent {
        self.link.as_ref().unwrap_or(&self.event)
    }

    /// Returns the memory that the event and its link hold, roughly, in bytes.
    #[must_use]
    pub fn cost_bytes(&self) -> usize {
        let link = self.link.as_ref().map_or(0, |link| link.cost_bytes());
        self.event.cost_bytes() + link
    }
}
