//! The list of the calls that this server offers. Clients ask for it before their first call.

use crate::messages::server_features::{SupportedMethod, SupportedMethods};

/// The version of the protocol that this server speaks. Clients compare it to learn which calls there are. It is not
/// the version of Gesta.
pub const PROTOCOL_VERSION: &str = "26.1.0";

/// A method and its features.
type Method = (&'static str, &'static [&'static str]);

/// Features of the methods of groups: what groups may be on.
const OF_GROUPS: &[&str] = &["stream", "all"];

/// Services and their methods. Clients do not ask for calls that are not listed here.
const SERVICES: &[(&str, &[Method])] = &[
    (
        "event_store.client.streams.streams",
        &[
            ("read", &["position", "events"]),
            ("append", &[]),
            ("delete", &[]),
            ("tombstone", &[]),
            ("batchappend", &["deadline_duration"]),
        ],
    ),
    (
        "event_store.client.persistent_subscriptions.persistentsubscriptions",
        &[
            ("create", OF_GROUPS),
            ("update", OF_GROUPS),
            ("delete", OF_GROUPS),
            ("read", OF_GROUPS),
            ("getinfo", OF_GROUPS),
            ("replayparked", OF_GROUPS),
            ("list", OF_GROUPS),
            ("restartsubsystem", OF_GROUPS),
        ],
    ),
    (
        "event_store.client.users.users",
        &[
            ("create", &[]),
            ("update", &[]),
            ("delete", &[]),
            ("disable", &[]),
            ("enable", &[]),
            ("details", &[]),
            ("changepassword", &[]),
            ("resetpassword", &[]),
        ],
    ),
    (
        "event_store.client.operations.operations",
        &[
            ("startscavenge", &[]),
            ("stopscavenge", &[]),
            ("mergeindexes", &[]),
            ("resignnode", &[]),
            ("setnodepriority", &[]),
            ("restartpersistentsubscriptions", &[]),
        ],
    ),
    (
        "event_store.client.projections.projections",
        &[("statistics", &[]), ("enable", &[]), ("disable", &[])],
    ),
    ("event_store.client.gossip.gossip", &[("read", &[])]),
    (
        "event_store.client.server_features.serverfeatures",
        &[("getsupportedmethods", &[])],
    ),
    (
        "event_store.client.monitoring.monitoring",
        &[("stats", &[])],
    ),
    (
        "kurrentdb.protocol.v2.streams.streamsservice",
        &[("appendsession", &[]), ("appendrecords", &[])],
    ),
];

/// Returns true if this server offers a service of this name. Letters count as small ones, as in the list.
#[must_use]
pub fn has_service(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SERVICES.iter().any(|(service, _)| *service == name)
}

/// Makes the answer that lists all methods.
#[must_use]
pub fn supported() -> SupportedMethods {
    let methods = SERVICES.iter().flat_map(|(service, methods)| {
        methods.iter().map(|(method, features)| SupportedMethod {
            method_name: (*method).to_owned(),
            service_name: (*service).to_owned(),
            features: features.iter().map(|&feature| feature.to_owned()).collect(),
        })
    });
    SupportedMethods {
        methods: methods.collect(),
        event_store_server_version: PROTOCOL_VERSION.to_owned(),
    }
}
