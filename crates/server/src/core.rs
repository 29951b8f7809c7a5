//! What only fuzzing and benchmarks use: the pure parts of the way of a call, which read requests, with the documents
//! that callers get as errors.

use bytes::Bytes;
use gesta_core::{Append, Checkpoint, Direction, ExpectedRevision, Filter, StreamId};
use gesta_wire::problem::Document;
use hyper::Request;

use crate::call::host;
use crate::http::{decode, document, read};
use crate::route;
use crate::shared::body::Payload;
use crate::shared::problem::{Problem, Result};
use crate::shared::queries::{FilterBody, filter_of};
use crate::shared::uri::{self, Parameters};

/// What a query string says, of the parameters that several calls have.
#[derive(Debug)]
pub struct Query {
    /// What `type`, `stream_prefix`, `category` and `tag` or `filter` say.
    pub filter: Filter,
    /// What `from` says, if it is a checkpoint.
    pub from: Option<Checkpoint>,
    /// What `direction` says.
    pub direction: Direction,
    /// What `limit` says.
    pub limit: Option<usize>,
    /// What `expected` says.
    pub expected: ExpectedRevision,
}

/// Reads the body of an append to one stream. Its memory is shared with nothing if it is `owned`.
///
/// # Errors
/// The answer to the caller.
pub fn append_to(
    stream: StreamId,
    bytes: Bytes,
    owned: bool,
) -> std::result::Result<Append, Document> {
    decode::append_to(stream, &Payload { bytes, owned }).map_err(Problem::into_document)
}

/// Reads the body of an append to several streams. Its memory is shared with nothing if it is `owned`.
///
/// # Errors
/// The answer to the caller.
pub fn append_several(bytes: Bytes, owned: bool) -> std::result::Result<Append, Document> {
    decode::append_several(&Payload { bytes, owned }).map_err(Problem::into_document)
}

/// Reads a filter as documents hold it.
///
/// # Errors
/// The answer to the caller.
pub fn filter(text: &str) -> std::result::Result<Filter, Document> {
    let read = || -> Result<Filter> {
        let queries: FilterBody = document::parse_owned(text, "filter")?;
        let filter = filter_of("filter", queries)?;
        filter.validate()?;
        Ok(filter)
    };
    read().map_err(Problem::into_document)
}

/// Finds the call that a path means, by its template, and reads the stream that the path names, if the template has
/// one.
///
/// # Errors
/// The answer to the caller.
pub fn path(path: &str) -> std::result::Result<(&'static str, Option<StreamId>), Document> {
    let matched = route::matched(path);
    let template = matched.route.template();
    let stream = template.contains("{stream}").then_some(matched.stream);
    let stream = stream.map(uri::stream).transpose();
    Ok((template, stream.map_err(Problem::into_document)?))
}

/// Reads a query string.
///
/// # Errors
/// The answer to the caller.
pub fn query(text: &str) -> std::result::Result<Query, Document> {
    let read = || -> Result<Query> {
        let known = read::with_filter!("from", "direction", "limit", "expected");
        let parameters = Parameters::parse(Some(text), known)?;
        let from = match parameters.one("from")?.as_deref() {
            None | Some("start" | "end") => None,
            Some(text) => Some(read::checkpoint("from", text)?),
        };
        Ok(Query {
            filter: read::filter(&parameters)?,
            from,
            direction: read::direction(&parameters)?,
            limit: read::limit(&parameters)?,
            expected: parameters.expected()?,
        })
    };
    read().map_err(Problem::into_document)
}

/// Tells whether a `Host` calls this server by a name that every machine has for itself. `None` if it is no header.
///
/// # Errors
/// The answer to the caller.
#[must_use]
pub fn host(value: &[u8]) -> Option<std::result::Result<bool, Document>> {
    let request = Request::builder().header(hyper::header::HOST, value);
    let (parts, ()) = request.body(()).ok()?.into_parts();
    let checked = host::check(&parts).map(|()| host::is_local(&parts, None));
    Some(checked.map_err(Problem::into_document))
}
