//! Addresses and methods of the API, for the router, the metrics and the test of the OpenAPI document.

use hyper::Method;

/// An address of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Route {
    Root,
    Append,
    Streams,
    Stream,
    Event,
    Metadata,
    StreamSubscribe,
    All,
    AllSubscribe,
    Info,
    Live,
    Ready,
    Metrics,
    OpenApi,
    /// The nodes, as clients of EventStoreDB ask for them.
    Gossip,
    Backup,
    Verify,
    Scavenge,
    VirtualStreams,
    /// A call of gRPC.
    Grpc,
    /// All consumer groups.
    Groups,
    GroupsRestart,
    /// The consumer groups of a stream.
    StreamGroups,
    /// The consumer groups of all events.
    AllGroups,
    StreamGroup(OfGroup),
    AllGroup(OfGroup),
    /// A path that is no address of the API.
    Unknown,
}

/// The addresses of one consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum OfGroup {
    Itself,
    Consume,
    Ack,
    Nack,
    ReplayParked,
    Reset,
}

impl Route {
    /// All addresses, for the test of the OpenAPI document.
    #[cfg(test)]
    pub(crate) const ALL: [Route; 36] = [
        Route::Root,
        Route::Append,
        Route::Streams,
        Route::Stream,
        Route::Event,
        Route::Metadata,
        Route::StreamSubscribe,
        Route::All,
        Route::AllSubscribe,
        Route::Info,
        Route::Live,
        Route::Ready,
        Route::Metrics,
        Route::OpenApi,
        Route::Gossip,
        Route::Backup,
        Route::Verify,
        Route::Scavenge,
        Route::VirtualStreams,
        Route::Groups,
        Route::GroupsRestart,
        Route::StreamGroups,
        Route::AllGroups,
        Route::StreamGroup(OfGroup::Itself),
        Route::StreamGroup(OfGroup::Consume),
        Route::StreamGroup(OfGroup::Ack),
        Route::StreamGroup(OfGroup::Nack),
        Route::StreamGroup(OfGroup::ReplayParked),
        Route::StreamGroup(OfGroup::Reset),
        Route::AllGroup(OfGroup::Itself),
        Route::AllGroup(OfGroup::Consume),
        Route::AllGroup(OfGroup::Ack),
        Route::AllGroup(OfGroup::Nack),
        Route::AllGroup(OfGroup::ReplayParked),
        Route::AllGroup(OfGroup::Reset),
        Route::Unknown,
    ];

    /// Returns true if an answer that is no problem proves that the store has answered.
    pub(crate) fn asks_store(self) -> bool {
        matches!(
            self,
            Route::Append
                | Route::Streams
                | Route::Stream
                | Route::Event
                | Route::Metadata
                | Route::All
                | Route::Info
        )
    }

    /// Returns the address with its variable parts in braces.
    pub(crate) fn template(self) -> &'static str {
        match self {
            Route::Root => "/",
            Route::Append => "/append",
            Route::Streams => "/streams",
            Route::Stream => "/streams/{stream}",
            Route::Event => "/streams/{stream}/{revision}",
            Route::Metadata => "/streams/{stream}/metadata",
            Route::StreamSubscribe => "/streams/{stream}/subscribe",
            Route::All => "/all",
            Route::AllSubscribe => "/all/subscribe",
            Route::Info => "/info",
            Route::Live => "/health/live",
            Route::Ready => "/health/ready",
            Route::Metrics => "/metrics",
            Route::OpenApi => "/openapi.json",
            Route::Gossip => "/gossip",
            Route::Backup => "/admin/backup",
            Route::Verify => "/admin/verify",
            Route::Scavenge => "/admin/scavenge",
            Route::VirtualStreams => "/admin/virtual-streams",
            Route::Grpc => "grpc",
            Route::Groups => "/groups",
            Route::GroupsRestart => "/groups/restart",
            Route::StreamGroups => "/streams/{stream}/groups",
            Route::AllGroups => "/all/groups",
            Route::StreamGroup(of) => match of {
                OfGroup::Itself => "/streams/{stream}/groups/{group}",
                OfGroup::Consume => "/streams/{stream}/groups/{group}/consume",
                OfGroup::Ack => "/streams/{stream}/groups/{group}/ack",
                OfGroup::Nack => "/streams/{stream}/groups/{group}/nack",
                OfGroup::ReplayParked => "/streams/{stream}/groups/{group}/replay-parked",
                OfGroup::Reset => "/streams/{stream}/groups/{group}/reset",
            },
            Route::AllGroup(of) => match of {
                OfGroup::Itself => "/all/groups/{group}",
                OfGroup::Consume => "/all/groups/{group}/consume",
                OfGroup::Ack => "/all/groups/{group}/ack",
                OfGroup::Nack => "/all/groups/{group}/nack",
                OfGroup::ReplayParked => "/all/groups/{group}/replay-parked",
                OfGroup::Reset => "/all/groups/{group}/reset",
            },
            Route::Unknown => "unknown",
        }
    }

    /// Returns true for the addresses that operators ask, which are answered even when the server is full.
    pub(crate) fn is_probe(self) -> bool {
        matches!(self, Route::Live | Route::Ready | Route::Metrics)
    }

    /// Returns true for calls that tell nothing of a store, so that anybody may make them.
    pub(crate) fn is_public(self) -> bool {
        matches!(
            self,
            Route::Root
                | Route::OpenApi
                | Route::Gossip
                | Route::Live
                | Route::Ready
                | Route::Unknown
        )
    }

    /// Returns the methods of the address as an `Allow` header lists them.
    pub(crate) fn allow(self) -> &'static str {
        match self {
            Route::Append
            | Route::Backup
            | Route::Verify
            | Route::Scavenge
            | Route::GroupsRestart => "POST",
            Route::StreamGroup(of) | Route::AllGroup(of) => match of {
                OfGroup::Itself => "GET, HEAD, PUT, POST, DELETE",
                OfGroup::Consume => "GET, HEAD",
                OfGroup::Ack | OfGroup::Nack | OfGroup::ReplayParked | OfGroup::Reset => "POST",
            },
            Route::Stream => "GET, HEAD, POST, DELETE",
            Route::Metadata | Route::VirtualStreams => "GET, HEAD, PUT",
            Route::Grpc | Route::Unknown => "",
            _ => "GET, HEAD",
        }
    }

    /// Returns the method as the address takes it: `HEAD` is `GET` without a body. Returns `None` if the address has no
    /// such method.
    pub(crate) fn method(self, method: &Method) -> Option<Verb> {
        let verb = match *method {
            Method::GET | Method::HEAD => Verb::Get,
            Method::POST => Verb::Post,
            Method::PUT => Verb::Put,
            Method::DELETE => Verb::Delete,
            _ => return None,
        };
        self.allow()
            .split(", ")
            .any(|allowed| allowed == verb.name())
            .then_some(verb)
    }
}

/// The method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

impl Verb {
    /// Returns the name of the method.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
        }
    }
}

/// The parts of a path. The variable parts are still percent-encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matched<'a> {
    pub(crate) route: Route,
    pub(crate) stream: &'a str,
    pub(crate) revision: &'a str,
    pub(crate) group: &'a str,
}

/// Finds the address that a path means.
pub(crate) fn matched(path: &str) -> Matched<'_> {
    let at = |route| Matched {
        route,
        stream: "",
        revision: "",
        group: "",
    };
    let Some(path) = path.strip_prefix('/') else {
        return at(Route::Unknown);
    };
    if let Some(rest) = path.strip_prefix("streams/") {
        return in_streams(rest);
    }
    if let Some((group, of)) = path.strip_prefix("all/groups/").and_then(in_groups) {
        return Matched {
            group,
            ..at(Route::AllGroup(of))
        };
    }
    at(match path {
        "" => Route::Root,
        "append" => Route::Append,
        "streams" => Route::Streams,
        "all" => Route::All,
        "all/subscribe" => Route::AllSubscribe,
        "info" => Route::Info,
        "health/live" => Route::Live,
        "health/ready" => Route::Ready,
        "metrics" => Route::Metrics,
        "openapi.json" => Route::OpenApi,
        "gossip" => Route::Gossip,
        "admin/backup" => Route::Backup,
        "admin/verify" => Route::Verify,
        "admin/scavenge" => Route::Scavenge,
        "admin/virtual-streams" => Route::VirtualStreams,
        "groups" => Route::Groups,
        "groups/restart" => Route::GroupsRestart,
        "all/groups" => Route::AllGroups,
        _ => Route::Unknown,
    })
}

fn in_streams(rest: &str) -> Matched<'_> {
    let (stream, tail) = match rest.split_once('/') {
        None => (rest, None),
        Some((stream, tail)) => (stream, Some(tail)),
    };
    if let Some((group, of)) = tail.and_then(|tail| in_groups(tail.strip_prefix("groups/")?)) {
        return Matched {
            route: Route::StreamGroup(of),
            stream,
            revision: "",
            group,
        };
    }
    let (route, revision) = match tail {
        None => (Route::Stream, ""),
        Some("metadata") => (Route::Metadata, ""),
        Some("subscribe") => (Route::StreamSubscribe, ""),
        Some("groups") => (Route::StreamGroups, ""),
        Some(tail) if tail.contains('/') => (Route::Unknown, ""),
        Some(tail) => (Route::Event, tail),
    };
    Matched {
        route,
        stream,
        revision,
        group: "",
    }
}

/// Returns the name of a group, and the address of that group.
fn in_groups(rest: &str) -> Option<(&str, OfGroup)> {
    let (group, of) = match rest.split_once('/') {
        None => (rest, OfGroup::Itself),
        Some((group, "consume")) => (group, OfGroup::Consume),
        Some((group, "ack")) => (group, OfGroup::Ack),
        Some((group, "nack")) => (group, OfGroup::Nack),
        Some((group, "replay-parked")) => (group, OfGroup::ReplayParked),
        Some((group, "reset")) => (group, OfGroup::Reset),
        Some(_) => return None,
    };
    Some((group, of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn paths_find_their_routes() {
        let cases = [
            ("/", Route::Root, "", ""),
            ("/streams", Route::Streams, "", ""),
            ("/streams/", Route::Stream, "", ""),
            ("/streams/a%2Fb", Route::Stream, "a%2Fb", ""),
            ("/streams/metadata", Route::Stream, "metadata", ""),
            ("/streams/a/metadata", Route::Metadata, "a", ""),
            ("/streams/a/subscribe", Route::StreamSubscribe, "a", ""),
            ("/streams/a/7", Route::Event, "a", "7"),
            ("/streams/a/7/8", Route::Unknown, "a", ""),
            ("/all/", Route::Unknown, "", ""),
            ("*", Route::Unknown, "", ""),
            ("", Route::Unknown, "", ""),
        ];
        for (path, route, stream, revision) in cases {
            let found = matched(path);
            assert_eq!(
                (found.route, found.stream, found.revision),
                (route, stream, revision),
                "{path}"
            );
        }
    }

    #[test]
    fn paths_of_groups_find_their_routes() {
        let cases = [
            ("/groups", Route::Groups, "", ""),
            ("/groups/restart", Route::GroupsRestart, "", ""),
            ("/groups/x", Route::Unknown, "", ""),
            ("/all/groups", Route::AllGroups, "", ""),
            ("/streams/a/groups", Route::StreamGroups, "a", ""),
            (
                "/streams/a/groups/g",
                Route::StreamGroup(OfGroup::Itself),
                "a",
                "g",
            ),
            (
                "/streams/a/groups/g%2Fh/ack",
                Route::StreamGroup(OfGroup::Ack),
                "a",
                "g%2Fh",
            ),
            ("/streams/a/groups/g/x", Route::Unknown, "a", ""),
            (
                "/all/groups/g/consume",
                Route::AllGroup(OfGroup::Consume),
                "",
                "g",
            ),
            (
                "/all/groups/g/nack",
                Route::AllGroup(OfGroup::Nack),
                "",
                "g",
            ),
            (
                "/all/groups/g/replay-parked",
                Route::AllGroup(OfGroup::ReplayParked),
                "",
                "g",
            ),
            (
                "/streams/a/groups/g/reset",
                Route::StreamGroup(OfGroup::Reset),
                "a",
                "g",
            ),
            ("/all/groups/g/ack/", Route::Unknown, "", ""),
        ];
        for (path, route, stream, group) in cases {
            let found = matched(path);
            let found = (found.route, found.stream, found.group);
            assert_eq!(found, (route, stream, group), "{path}");
        }
    }

    /// Goal: the OpenAPI document lists the addresses and methods of the router, all and no others.
    #[test]
    fn the_openapi_document_has_every_route_and_method() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("http/openapi.json")).expect("JSON");
        assert_eq!(document["openapi"], "3.1.0");
        let documented: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .expect("paths")
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().expect("methods").keys();
                methods
                    .filter(|m| *m != "parameters")
                    .map(|m| (path.clone(), m.to_uppercase()))
            })
            .collect();
        let routed: BTreeSet<(String, String)> = Route::ALL
            .into_iter()
            .filter(|route| *route != Route::Unknown)
            .flat_map(|route| {
                let methods = route.allow().split(", ").filter(|m| *m != "HEAD");
                methods.map(move |m| (route.template().to_owned(), m.to_owned()))
            })
            .collect();
        assert_eq!(documented, routed);
    }

    /// Goal: every `$ref` of the OpenAPI document leads somewhere.
    #[test]
    fn the_openapi_document_refers_to_what_it_has() {
        let text = include_str!("http/openapi.json");
        let document: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let references: Vec<&str> = text
            .split("\"$ref\": \"#")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        assert!(references.len() > 20, "{references:?}");
        for reference in references {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }
}
