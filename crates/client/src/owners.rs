//! Remembers which server owns which log, as the servers of a cluster have told, so that changes go straight to the
//! owner.
//!
//! Why: a change that comes to another node is forwarded, which costs a hop. What is known here is advice: every server
//! answers every call, so an outdated note costs a hop or a second try, and nothing else.
//! Invariants: addresses come from `/info` of a server that the client was given, never from the head of an answer; of
//! two notes about a log the one with the greater epoch counts, within one incarnation of the store; a server that
//! could not be reached is left alone for a while.
//! Not here: sending (`transport`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gesta_core::{LogId, StreamId, log_of};
use hyper::header::HeaderMap;
use hyper::http::uri::Authority;
use serde::Deserialize;
use tokio::time::Instant;

/// The header that names the owner of the log that a change went to.
const LOG_OWNER: &str = "gesta-log-owner";
/// How long a server that could not be reached is left alone.
const AVOID_FOR: Duration = Duration::from_secs(10);
/// The least time between two requests for `/info`.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// What a server tells about the owner of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hint {
    /// The name of the owner, which is the address at which the other nodes reach it.
    node: String,
    log: LogId,
    epoch: u64,
}

impl Hint {
    /// Reads a hint such as `10.0.0.1:2114; log=3; epoch=17`; `None` if there is none, or it cannot be read.
    pub(crate) fn of(head: &HeaderMap) -> Option<Self> {
        let mut parts = head.get(LOG_OWNER)?.to_str().ok()?.split(';');
        let node = parts.next()?.trim().to_owned();
        let (mut log, mut epoch) = (None, None);
        for part in parts {
            match part.trim().split_once('=')? {
                ("log", number) => log = Some(LogId(number.parse().ok()?)),
                ("epoch", number) => epoch = Some(number.parse().ok()?),
                // A later version may tell more.
                _ => {}
            }
        }
        Some(Self {
            node,
            log: log?,
            epoch: epoch?,
        })
    }
}

/// What is known about the owner of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Note {
    node: String,
    epoch: u64,
}

/// The part of `/info` that this module reads.
#[derive(Debug, Deserialize)]
pub(crate) struct Info {
    incarnation: String,
    logs: u16,
    cluster: Option<Cluster>,
}

#[derive(Debug, Deserialize)]
struct Cluster {
    nodes: Vec<Node>,
    logs: Vec<Owner>,
}

#[derive(Debug, Deserialize)]
struct Node {
    address: String,
    api: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Owner {
    log: u16,
    address: Option<String>,
    epoch: u64,
}

#[derive(Debug, Default)]
struct State {
    incarnation: String,
    /// How many logs the store has; 0 if this is not known yet.
    logs: u16,
    /// The address at which clients reach each node, by the name of the node.
    apis: HashMap<String, Authority>,
    owners: HashMap<LogId, Note>,
    /// The servers that could not be reached, each with the moment until which it is left alone.
    avoided: HashMap<Authority, Instant>,
    /// The moment at which `/info` was last asked for.
    asked: Option<Instant>,
}

/// The owners of the logs, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Owners(Mutex<State>);

impl Owners {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the log of a stream and the server that owns it, if that server is known and need not be left alone.
    pub(crate) fn of(&self, stream: &StreamId, now: Instant) -> Option<(LogId, Authority)> {
        let state = self.state();
        let log = (state.logs > 0).then(|| log_of(stream, state.logs))?;
        let api = state.apis.get(&state.owners.get(&log)?.node)?;
        let is_avoided = state.avoided.get(api).is_some_and(|until| now < *until);
        (!is_avoided).then(|| (log, api.clone()))
    }

    /// Takes over what an answer says about the owner of a log. `direct` is the log whose supposed owner has answered.
    /// Returns whether `/info` must be asked for the address of the owner.
    pub(crate) fn heard(&self, hint: Option<Hint>, direct: Option<LogId>, now: Instant) -> bool {
        let mut state = self.state();
        let Some(hint) = hint else { return false };
        let is_newer = |note: &Note| hint.epoch > note.epoch;
        if state.owners.get(&hint.log).is_none_or(is_newer) {
            let Hint { node, log, epoch } = hint.clone();
            state.owners.insert(log, Note { node, epoch });
        } else if direct == Some(hint.log) {
            // The server that was taken for the owner is not the owner, and knows nothing newer.
            state.owners.remove(&hint.log);
        }
        let is_known = state.logs > 0 && state.apis.contains_key(&hint.node);
        let rests = state.asked.is_some_and(|at| now - at < ASK_EVERY);
        let asks = !is_known && !rests;
        if asks {
            state.asked = Some(now);
        }
        asks
    }

    /// Takes over what a server that the client was given says about the cluster.
    pub(crate) fn learn(&self, info: Info) {
        let mut state = self.state();
        if state.incarnation != info.incarnation {
            // Epochs of different incarnations cannot be compared. What was heard before anything was known is of this
            // one.
            if !state.incarnation.is_empty() {
                state.owners.clear();
            }
            state.incarnation = info.incarnation;
        }
        let cluster = info.cluster.unwrap_or(Cluster {
            nodes: Vec::new(),
            logs: Vec::new(),
        });
        state.logs = info.logs;
        let api = |node: Node| Some((node.address, node.api?.parse().ok()?));
        state.apis = cluster.nodes.into_iter().filter_map(api).collect();
        for owner in cluster.logs {
            let (log, epoch) = (LogId(owner.log), owner.epoch);
            let is_older = |note: &Note| epoch < note.epoch;
            if let Some(node) = owner.address
                && !state.owners.get(&log).is_some_and(is_older)
            {
                state.owners.insert(log, Note { node, epoch });
            }
        }
    }

    /// Notes that a server could not be reached or has not answered: what it owns is forgotten, and it is left alone
    /// for a while.
    pub(crate) fn lost(&self, api: &Authority, now: Instant) {
        let mut state = self.state();
        let State { apis, owners, .. } = &mut *state;
        owners.retain(|_, note| apis.get(&note.node) != Some(api));
        state.avoided.retain(|_, until| now < *until);
        state.avoided.insert(api.clone(), now + AVOID_FOR);
    }

    /// Forgets the owner of a log, which does not serve it at present.
    pub(crate) fn forget(&self, log: LogId) {
        self.state().owners.remove(&log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = r#"{"name":"gesta","incarnation":"one","logs":4,"cluster":{"node":1,
        "nodes":[{"node":1,"address":"a:1","api":"a:2"},{"node":2,"address":"b:1","api":"b:2"},{"node":3,"address":"c:1","api":null}],
        "logs":[{"log":0,"node":1,"address":"a:1","epoch":5},{"log":1,"node":2,"address":"b:1","epoch":5},
                {"log":2,"node":3,"address":"c:1","epoch":5},{"log":3,"node":null,"address":null,"epoch":5}]}}"#;

    fn info(text: &str) -> Info {
        serde_json::from_str(text).expect("can be read")
    }

    fn stream_of(log: u16) -> StreamId {
        let mut streams = (0..).map(|number| StreamId::from_stored(format!("s-{number}").into()));
        let stream = streams.find(|stream| log_of(stream, 4) == LogId(log));
        stream.expect("one of each log")
    }

    fn hint(text: &str) -> Option<Hint> {
        let mut head = HeaderMap::new();
        head.insert(LOG_OWNER, text.parse().expect("a header"));
        Hint::of(&head)
    }

    fn of(owners: &Owners, log: u16, now: Instant) -> Option<String> {
        let owner = owners.of(&stream_of(log), now);
        owner.map(|(_, api)| api.to_string())
    }

    #[test]
    fn hints_are_read_as_servers_write_them() {
        let read = hint("10.0.0.1:2114; log=3; epoch=17; more=x").expect("a hint");
        assert_eq!(
            (read.node.as_str(), read.log.0, read.epoch),
            ("10.0.0.1:2114", 3, 17)
        );
        for wrong in [
            "",
            "a:1",
            "a:1; log=3",
            "a:1; epoch=3",
            "a:1; log=x; epoch=1",
            "a:1; log",
        ] {
            assert_eq!(hint(wrong), None, "{wrong}");
        }
    }

    /// Goal: only a server of whom `/info` tells the address is gone to, and of two notes the newer counts.
    #[test]
    fn owners_are_known_by_info_and_followed_by_epoch() {
        let (owners, now) = (Owners::default(), Instant::now());
        let to_b = || hint("b:1; log=0; epoch=6");
        assert!(owners.heard(to_b(), None, now), "its address is not known");
        assert!(!owners.heard(to_b(), None, now), "asked just now");
        assert_eq!(of(&owners, 0, now), None);
        owners.learn(info(INFO));
        assert_eq!(of(&owners, 0, now), Some("b:2".into()), "the hint is newer");
        assert_eq!(of(&owners, 1, now), Some("b:2".into()));
        assert_eq!(of(&owners, 2, now), None, "it has not told where it is");
        assert_eq!(of(&owners, 3, now), None, "nobody owns it");
        // A stranger is never gone to.
        owners.heard(hint("evil:1; log=1; epoch=9"), None, now);
        assert_eq!(of(&owners, 1, now), None);
        // The supposed owner points to an older one: nothing is known.
        assert!(!owners.heard(hint("a:1; log=0; epoch=4"), Some(LogId(0)), now));
        assert_eq!(of(&owners, 0, now), None);
        owners.heard(hint("a:1; log=0; epoch=7"), None, now);
        assert_eq!(of(&owners, 0, now), Some("a:2".into()));
        // Another incarnation voids all notes.
        owners.learn(info(&INFO.replace("\"one\"", "\"two\"")));
        assert_eq!(of(&owners, 0, now), Some("a:2".into()));
        assert_eq!(of(&owners, 1, now), Some("b:2".into()));
    }

    #[test]
    fn a_server_that_is_lost_is_left_alone_for_a_while() {
        let (owners, now) = (Owners::default(), Instant::now());
        owners.learn(info(INFO));
        owners.lost(&"b:2".parse().expect("an authority"), now);
        assert_eq!(of(&owners, 1, now), None);
        owners.learn(info(INFO));
        assert_eq!(of(&owners, 1, now), None, "known again, but left alone");
        assert_eq!(of(&owners, 0, now), Some("a:2".into()));
        assert_eq!(of(&owners, 1, now + AVOID_FOR), Some("b:2".into()));
        owners.forget(LogId(1));
        assert_eq!(of(&owners, 1, now + AVOID_FOR), None);
    }

    #[test]
    fn a_server_alone_has_no_owners() {
        let owners = Owners::default();
        owners.learn(info(r#"{"incarnation":"one","logs":4}"#));
        assert_eq!(of(&owners, 0, Instant::now()), None);
    }
}
