//! The ids of the last scavenges that clients have begun, for those who stop them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

/// Most ids of scavenges that are kept.
const IDS_MAX: usize = 1_000;

/// The ids of the last scavenges of this server.
#[derive(Debug, Default)]
pub(crate) struct Scavenges(Mutex<VecDeque<String>>);

impl Scavenges {
    /// Returns the id of a scavenge that begins.
    pub(crate) fn begin(&self) -> String {
        let id = Uuid::new_v4().to_string();
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() >= IDS_MAX {
            ids.pop_front();
        }
        ids.push_back(id.clone());
        id
    }

    /// Returns true if one of the last scavenges had this id.
    pub(crate) fn has(&self, id: &str) -> bool {
        let ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ids.iter().any(|known| known == id)
    }
}
