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
    Backup,
    /// No address of the API.
    Unknown,
}

impl Route {
    /// Every address, for the test of the OpenAPI document.
    #[cfg(test)]
    pub(crate) const ALL: [Route; 16] = [
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
        Route::Backup,
        Route::Unknown,
    ];

    /// The address with its variable parts in braces.
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
            Route::Backup => "/admin/backup",
            Route::Unknown => "unknown",
        }
    }

    /// True for what is asked by who looks after the server, and answered even when it is full.
    pub(crate) fn is_probe(self) -> bool {
        matches!(self, Route::Live | Route::Ready | Route::Metrics)
    }

    /// True for what tells nothing of a store: anybody may ask.
    pub(crate) fn is_public(self) -> bool {
        matches!(
            self,
            Route::Root | Route::OpenApi | Route::Live | Route::Ready | Route::Unknown
        )
    }

    /// The methods of the address as an `Allow` header lists them.
    pub(crate) fn allow(self) -> &'static str {
        match self {
            Route::Append | Route::Backup => "POST",
            Route::Stream => "GET, HEAD, POST, DELETE",
            Route::Metadata => "GET, HEAD, PUT",
            Route::Unknown => "",
            _ => "GET, HEAD",
        }
    }

    /// The method as the address takes it, `HEAD` being `GET` without its body; `None` if the address has no such
    /// method.
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

/// What a request does at its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

impl Verb {
    /// The name of the method.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
        }
    }
}

/// A path, taken apart; its variable parts are still percent-encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matched<'a> {
    pub(crate) route: Route,
    pub(crate) stream: &'a str,
    pub(crate) revision: &'a str,
}

/// Finds the address that a path means.
pub(crate) fn matched(path: &str) -> Matched<'_> {
    let at = |route| Matched {
        route,
        stream: "",
        revision: "",
    };
    let Some(path) = path.strip_prefix('/') else {
        return at(Route::Unknown);
    };
    if let Some(rest) = path.strip_prefix("streams/") {
        return in_streams(rest);
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
        "admin/backup" => Route::Backup,
        _ => Route::Unknown,
    })
}

fn in_streams(rest: &str) -> Matched<'_> {
    let (stream, tail) = match rest.split_once('/') {
        None => (rest, None),
        Some((stream, tail)) => (stream, Some(tail)),
    };
    let (route, revision) = match tail {
        None => (Route::Stream, ""),
        Some("metadata") => (Route::Metadata, ""),
        Some("subscribe") => (Route::StreamSubscribe, ""),
        Some(tail) if tail.contains('/') => (Route::Unknown, ""),
        Some(tail) => (Route::Event, tail),
    };
    Matched {
        route,
        stream,
        revision,
    }
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

    /// Goal: the OpenAPI document lists the addresses and methods of the router, all and no others.
    #[test]
    fn the_openapi_document_has_every_route_and_method() {
        let document: serde_json::Value =
            serde_json::from_str(include_str!("openapi.json")).expect("JSON");
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
        let text = include_str!("openapi.json");
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
