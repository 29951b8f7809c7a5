//! Lets pages of other sites call the server from a browser (Fetch standard, section 3.2, "CORS protocol").
//!
//! Why origins are allowed by name only: a page may do whatever the browser's user lets it, so nobody is allowed by
//! `*`. Why no cookies are allowed: a page sends `Authorization` by itself. Invariants: a page whose origin is not
//! named gets no header that would let it read an answer; answers say that they depend on the origin, so that no cache
//! gives one to another page.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HOST,
    HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use crate::call::Answer;
use crate::config::Origin;
use crate::route::Route;
use crate::shared::body::AnswerBody;

const ALLOWED_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, last-event-id");
const EXPOSED_HEADERS: HeaderValue =
    HeaderValue::from_static("etag, gesta-log-owner, retry-after, www-authenticate");
/// Header that tells which site's page has made a browser send a request.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// How long a browser may remember what it may send, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const VARY_ORIGIN: HeaderValue = HeaderValue::from_static("origin");

/// Returns the origin of the page that calls if it is one of `origins`. A request has one origin at most.
fn allowed<'a>(origins: &'a [Origin], headers: &HeaderMap) -> Option<&'a Origin> {
    let mut found = headers.get_all(ORIGIN).iter();
    let one = found.next().filter(|_| found.next().is_none())?;
    origins.iter().find(|origin| origin.header() == one)
}

/// Makes the answer to a browser that asks what a page may send. Returns `None` if the browser does not ask, or if the
/// page may send nothing.
pub(crate) fn preflight(origins: &[Origin], route: Route, request: &Parts) -> Option<Answer> {
    let asks = request.method == Method::OPTIONS
        && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !asks || route == Route::Unknown {
        return None;
    }
    allowed(origins, &request.headers)?;
    let mut answer = Response::new(AnswerBody::whole(&b""[..]));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let headers = answer.headers_mut();
    headers.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static(route.allow()),
    );
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    Some(answer)
}

/// Returns true if a page of a site that may not call has made a browser send this request. Such a page cannot read the
/// answer; this check is for calls that change something though they are reads to HTTP.
///
/// A browser says so in `Sec-Fetch-Site` (Fetch Metadata Request Headers, section 2.1), but not to a server that it
/// reaches by plain HTTP under an address that is not loopback. There `Origin` tells it, which scripts send across
/// sites. An image, or a script with `no-cors`, sends neither of them there.
pub(crate) fn is_of_other_site(origins: &[Origin], request: &Parts) -> bool {
    let headers = &request.headers;
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    let own = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
    let is_own = match headers.contains_key(SEC_FETCH_SITE) {
        true => sites.all(own),
        false => headers
            .get_all(ORIGIN)
            .iter()
            .all(|origin| is_own_origin(origin.as_bytes(), request)),
    };
    !is_own && allowed(origins, headers).is_none()
}

/// Tells whether an origin is that under which the request has reached the server. Which of the two schemes it was, a
/// proxy that speaks TLS keeps to itself.
fn is_own_origin(origin: &[u8], request: &Parts) -> bool {
    let authority = match request.headers.get(HOST) {
        Some(host) => host.as_bytes(),
        None => request
            .uri
            .authority()
            .map_or(&b""[..], |it| it.as_str().as_bytes()),
    };
    let of_site = origin
        .strip_prefix(b"http://")
        .or_else(|| origin.strip_prefix(b"https://"));
    of_site.is_some_and(|of_site| !authority.is_empty() && of_site.eq_ignore_ascii_case(authority))
}

/// Lets the page that called read the answer, if its origin is allowed.
pub(crate) fn allow(origins: &[Origin], request: &HeaderMap, answer: &mut Answer) {
    if origins.is_empty() {
        return;
    }
    answer.headers_mut().append(VARY, VARY_ORIGIN);
    if let Some(origin) = allowed(origins, request) {
        let headers = answer.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.header().clone());
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    }
}
