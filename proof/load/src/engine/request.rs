//! A request out of its step and the values of a user, and what of it and of its answer must not be shown.

use std::borrow::Cow;

use bytes::Bytes;
use gesta_report::secrets::Secrets;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::Engine;
use super::user::Using;
use crate::check::Answer;
use crate::json::text_of;
use crate::step::{Body, Step};
use crate::template::{Place, Slot, Template};

/// Parts of the names of headers, and of members of JSON, that say who asks.
const SECRET: [&str; 11] = [
    "api-key",
    "api_key",
    "apikey",
    "auth",
    "cookie",
    "jwt",
    "password",
    "secret",
    "session",
    "signature",
    "token",
];
/// Most bytes of the secrets of an answer that are looked for; of an answer with more nothing is shown.
const GIVEN_BYTES_MAX: usize = 16 * 1024;

impl Engine {
    /// The request of a step. `is_setup`: before the setup has captured what the headers of all requests may need.
    pub(super) fn request(
        &self,
        step: &Step,
        using: &Using<'_>,
        is_setup: bool,
    ) -> Result<Request<Full<Bytes>>, String> {
        let path = step.path.render(using, Place::Path);
        let path = self.target.path(&path, step.path.begins_raw());
        if !path.starts_with('/') {
            return Err(format!("the path {path:?} does not begin with /"));
        }
        let mut headers = HeaderMap::new();
        headers.insert(HOST, self.target.host().clone());
        let body = match &step.body {
            Body::None => Bytes::new(),
            Body::Text(text) => text.render(using, Place::Text).into_owned().into(),
            Body::Json(json) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                json.render(using).to_string().into()
            }
        };
        for (name, value) in self.headers_of(step, is_setup) {
            headers.insert(
                name.clone(),
                header_value(name, &value.render(using, Place::Text))?,
            );
        }
        for (name, value) in &self.limits.headers {
            headers.insert(name.clone(), value.clone());
        }
        let request = Request::builder().method(step.method.clone()).uri(&path);
        let request = request.body(Full::new(body));
        let mut request =
            request.map_err(|error| format!("the path {path:?} cannot be used: {error}"))?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// The headers of a step: those of all requests, then its own.
    fn headers_of<'a>(
        &'a self,
        step: &'a Step,
        is_setup: bool,
    ) -> impl Iterator<Item = (&'a HeaderName, &'a Template)> {
        let shared = self.scenario.headers.iter();
        // What the setup captures is not known in the setup.
        let shared = shared.filter(move |(_, value)| !is_setup || !has_captured(value));
        let all = shared.chain(&step.headers);
        all.map(|(name, value)| (name, value))
    }

    /// What a request says that must not be shown if its answer repeats it: the headers that the command was given, and
    /// those of the file that are secrets by their name, or that an answer gave.
    pub(super) fn secrets(&self, step: &Step, using: &Using<'_>, is_setup: bool) -> Secrets {
        let mut secrets = Secrets::default();
        for value in self.limits.headers.values() {
            secrets.add(&String::from_utf8_lossy(value.as_bytes()));
        }
        for (name, value) in self.headers_of(step, is_setup) {
            if is_secret(name.as_str()) || has_captured(value) {
                secrets.add(&value.render(using, Place::Text));
            }
        }
        secrets
    }
}

/// What is shown of a text about an answer: its beginning, without the secrets of the request, and without what the
/// answer gives under the name of a secret, as one to a login does.
pub(super) fn shown(text: &str, mut secrets: Secrets, step: &Step, answer: &Answer) -> String {
    let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let mut given = Vec::new();
    add_members(&document, false, &mut given);
    for (name, value) in &answer.headers {
        // `www-authenticate` only says how to ask.
        if is_secret(name.as_str()) && !name.as_str().ends_with("-authenticate") {
            given.push(String::from_utf8_lossy(value.as_bytes()));
        }
    }
    for capture in &step.captures {
        if is_secret_member(&capture.name)
            && let Some(value) = capture.find(&document, answer)
        {
            given.push(Cow::Owned(text_of(&value).into_owned()));
        }
    }
    if given.iter().map(|secret| secret.len()).sum::<usize>() > GIVEN_BYTES_MAX {
        return "(not shown: too much of it is secret)".into();
    }
    given.iter().for_each(|secret| secrets.add(secret));
    secrets.shown(text)
}

/// Adds the texts of a document that are in members with the name of a secret.
fn add_members<'a>(value: &'a Value, is_within: bool, given: &mut Vec<Cow<'a, str>>) {
    match value {
        Value::String(text) if is_within => given.push(Cow::Borrowed(text.as_str())),
        Value::Array(items) => {
            for item in items {
                add_members(item, is_within, given);
            }
        }
        Value::Object(all) => {
            for (name, value) in all {
                add_members(value, is_within || is_secret_member(name), given);
            }
        }
        _ => {}
    }
}

/// True for a header that says who asks, by its name.
fn is_secret(name: &str) -> bool {
    SECRET.iter().any(|part| name.contains(part))
}

/// True for a member of JSON that does; an author is no secret.
fn is_secret_member(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("authorization") || is_secret(&name.replace("author", ""))
}

fn has_captured(value: &Template) -> bool {
    let mut found = false;
    value.slots(&mut |slot| found |= matches!(slot, Slot::Captured(_)));
    found
}

fn header_value(name: &HeaderName, value: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(value)
        .map_err(|_| format!("the header {name} got a value that no header can have"))
}
