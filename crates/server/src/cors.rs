//! Pages of other sites that may call the server from a browser (Fetch standard, section 3.2, "CORS protocol").
//!
//! Why by name only: a page may do whatever the browser's user lets it, so nobody is allowed by `*`. Without cookies:
//! a page sends `Authorization` by itself. Invariants: a page whose origin is not named gets no header that would let it
//! read an answer; answers say that they depend on the origin, so that no cache gives one to another page.

use std::fmt;
use std::str::FromStr;

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode, Uri};

use crate::api::Answer;
use crate::body::AnswerBody;
use crate::route::Route;

const ALLOWED_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, last-event-id");
const EXPOSED_HEADERS: HeaderValue =
    HeaderValue::from_static("etag, gesta-log-owner, retry-after, www-authenticate");
/// Whose page has made a browser send a request.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// How long a browser may remember what it may send, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const VARY_ORIGIN: HeaderValue = HeaderValue::from_static("origin");

/// The origin of a page: scheme, host, and port if it has one, as browsers send it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(HeaderValue);

/// Why a text is no origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be an origin such as https://app.example.org or http://localhost:3000, found {0:?}")]
pub struct NoOrigin(String);

impl FromStr for Origin {
    type Err = NoOrigin;

    fn from_str(text: &str) -> Result<Self, NoOrigin> {
        let wrong = || NoOrigin(text.chars().take(200).collect());
        let rest = text
            .strip_prefix("https://")
            .or_else(|| text.strip_prefix("http://"))
            .ok_or_else(wrong)?;
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:[]".contains(c);
        let port = rest.rsplit(']').next().and_then(|end| end.split_once(':'));
        let has_port = port.is_none_or(|(_, port)| port.parse::<u16>().is_ok());
        let is_uri = text.parse::<Uri>().is_ok();
        if rest.is_empty() || !rest.chars().all(fits) || !has_port || !is_uri {
            return Err(wrong());
        }
        HeaderValue::try_from(text).map(Self).map_err(|_| wrong())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

/// The origin of the page that calls, if it is one of these. A request has one at most.
fn allowed<'a>(origins: &'a [Origin], headers: &HeaderMap) -> Option<&'a Origin> {
    let mut found = headers.get_all(ORIGIN).iter();
    let one = found.next().filter(|_| found.next().is_none())?;
    origins.iter().find(|origin| origin.0 == *one)
}

/// The answer to a browser that asks what a page may send; `None` if it does not ask, or the page may send nothing.
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

/// True if a page of a site that may not call has made a browser send this (Fetch Metadata Request Headers, section
/// 2.1).
/// Such a page cannot read the answer; this is for calls that do something though they are reads to HTTP.
pub(crate) fn is_of_other_site(origins: &[Origin], headers: &HeaderMap) -> bool {
    let mut found = headers.get_all(SEC_FETCH_SITE).iter();
    let own = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
    !found.all(own) && allowed(origins, headers).is_none()
}

/// Lets the page that called read the answer, if it may.
pub(crate) fn allow(origins: &[Origin], request: &HeaderMap, answer: &mut Answer) {
    if origins.is_empty() {
        return;
    }
    answer.headers_mut().append(VARY, VARY_ORIGIN);
    if let Some(origin) = allowed(origins, request) {
        let headers = answer.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.0.clone());
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        for good in [
            "https://app.example.org",
            "http://localhost:3000",
            "http://[::1]:80",
        ] {
            let origin: Origin = good.parse().expect("an origin");
            assert_eq!(origin.to_string(), good);
        }
        for bad in [
            "",
            "*",
            "null",
            "https://",
            "app.example.org",
            "https://app.example.org/",
            "https://App.example.org",
            "https://u@app.example.org",
            "ftp://app.example.org",
            "https://a b",
            "https://a:x",
            "https://a\r\nx: y",
        ] {
            assert!(bad.parse::<Origin>().is_err(), "{bad:?}");
        }
    }
}
