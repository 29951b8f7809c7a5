//! A request out of its step and the values of a user.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};

use super::Engine;
use super::user::Using;
use crate::step::{Body, Step};
use crate::template::{Place, Slot, Template};

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
        let shared = self.scenario.headers.iter();
        // What the setup captures is not known in the setup.
        let shared = shared.filter(|(_, value)| !is_setup || !has_captured(value));
        for (name, value) in shared.chain(&step.headers) {
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
