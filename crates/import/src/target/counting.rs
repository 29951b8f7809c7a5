//! A target that only counts what a store would have got: that of a dry run.
//!
//! Memory: some 100 bytes for each stream, since a name that two keys would have is found only so.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{Error, ErrorKind, StreamId};

use super::Target;

/// Whose stream each name is, and which keys have no stream.
#[derive(Default)]
pub(super) struct Names {
    keys: HashMap<StreamId, Arc<str>>,
    refused: HashMap<Arc<str>, Arc<str>>,
}

impl Names {
    /// Gives a name to the stream of a key, or refuses the key if another one has the name.
    pub(super) fn give(&mut self, key: &Arc<str>, stream: &StreamId) {
        let other = self
            .keys
            .entry(stream.clone())
            .or_insert_with(|| Arc::clone(key));
        if other != key {
            self.refused.insert(Arc::clone(key), Arc::clone(other));
        }
    }

    /// Returns the number of names.
    pub(super) fn given(&self) -> usize {
        self.keys.len()
    }
}

impl Target {
    /// Makes a target that only counts.
    pub(crate) fn counting() -> Self {
        Self {
            store: None,
            names: Names::default(),
            one_stream: false,
            in_flight: 1,
            retry: Duration::ZERO,
            incarnation: None,
            is_lost: false,
            heads: Vec::new(),
            known: HashMap::new(),
            known_max: usize::MAX,
            met_before: 0,
            changed: HashSet::new(),
            fresh: true,
            forming: Vec::new(),
            forming_streams: HashSet::new(),
            forming_ids: HashSet::new(),
            forming_events: 0,
            forming_bytes: 0,
            flights: VecDeque::new(),
            ends: HashMap::new(),
            stored: 0,
            already: 0,
            displaced: 0,
        }
    }

    /// Tells whether nothing is stored.
    pub(crate) fn only_counts(&self) -> bool {
        self.store.is_none()
    }

    /// Returns why the key of an event can have no stream, as far as the target knows. A store tells it by itself.
    pub(crate) fn refused(&self, key: &str) -> Option<Error> {
        let other = self.names.refused.get(key)?;
        let stream = &self.known.get(key)?.stream;
        let text = format!(
            "{key:?} and {other:?} of the source would both be stream {stream:?}: give a rule for names (--names) that \
             tells them apart"
        );
        Some(ErrorKind::Unsupported(text).into())
    }
}
