//! Random requests over HTTP: every route of the description of the API, with values that are made of its schemas.

use serde_json::Value;

use crate::values::Maker;

/// The description of the API.
pub(crate) struct Api {
    document: Value,
    /// Methods and paths.
    routes: Vec<(String, String)>,
}

/// A request.
pub(crate) struct HttpCall {
    pub(crate) route: String,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Whether the answer may last for ever.
    pub(crate) is_endless: bool,
}

/// Texts of a request stand percent-encoded.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// A JSON value as it stands in a path or a query: texts without quotes.
fn bare(json: &str) -> String {
    match serde_json::from_str(json) {
        Ok(Value::String(text)) => text,
        _ => json.to_owned(),
    }
}

/// Reads of the largest pages, which chance may not meet: as a document and as lines, with links and without.
pub(crate) fn largest_reads() -> Vec<HttpCall> {
    let targets = [
        "/streams/big",
        "/streams/big?resolve_links=true",
        "/streams/links?resolve_links=true",
        "/all?limit=10000",
    ];
    let each = targets.iter().flat_map(|target| {
        ["application/json", "application/x-ndjson"].map(|accept| HttpCall {
            route: format!("largest {target} as {accept}"),
            head: format!("GET {target} HTTP/1.1\r\nAccept: {accept}\r\n"),
            body: Vec::new(),
            is_endless: false,
        })
    });
    each.collect()
}

impl Api {
    pub(crate) fn read() -> Self {
        let text = include_str!("../../../server/src/http/openapi.json");
        let document: Value = serde_json::from_str(text).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let methods = ["get", "put", "post", "delete"];
        let routes = paths.flat_map(|(path, calls)| {
            let found = methods
                .iter()
                .filter(|method| calls.get(**method).is_some());
            found.map(|method| ((*method).to_owned(), path.clone()))
        });
        Self {
            routes: routes.collect(),
            document,
        }
    }

    fn resolved<'a>(&'a self, mut value: &'a Value) -> &'a Value {
        while let Some(at) = value.get("$ref") {
            let pointer = at.as_str().unwrap().trim_start_matches('#');
            value = self.document.pointer(pointer).unwrap();
        }
        value
    }

    pub(crate) fn call(&self, maker: &mut Maker) -> HttpCall {
        // Pages and appends, which do most of the work, come more often than one route of many.
        let (method, path) = match maker.below(10) {
            0 => &("get".to_owned(), "/all".to_owned()),
            1 => &("post".to_owned(), "/append".to_owned()),
            2 => &("get".to_owned(), "/streams/{stream}".to_owned()),
            _ => {
                let at = maker.below(self.routes.len());
                &self.routes[at]
            }
        };
        let described = &self.document["paths"][path];
        let call = &described[method];
        let mut target = String::new();
        for part in path.split_inclusive(['{', '}']) {
            match part.strip_suffix(['{', '}']) {
                Some("stream") => target += &encoded(&maker.stream()),
                Some("group") => target += &encoded(&maker.group()),
                Some("revision") => target += &maker.number().to_string(),
                Some(before) => target += before,
                None => target += part,
            }
        }
        let mut headers = String::new();
        let lists = [call.get("parameters"), described.get("parameters")];
        let parameters = lists.into_iter().flatten().filter_map(Value::as_array);
        let mut query = Vec::new();
        for parameter in parameters.flatten() {
            let parameter = self.resolved(parameter);
            let name = parameter["name"].as_str().unwrap();
            let schema = match parameter.get("schema") {
                Some(schema) => self.resolved(schema),
                None => &parameter["content"]["application/json"]["schema"],
            };
            match parameter["in"].as_str().unwrap() {
                "query" if name == "filter" && maker.chance(60) => {
                    // It is encoded, and takes up to three times the room.
                    maker.left /= 3;
                    query.push(format!(
                        "{name}={}",
                        encoded(&self.value(schema, name, maker))
                    ));
                }
                "query" if schema["type"] == "array" && maker.chance(15) => {
                    for _ in 0..maker.times(20) {
                        let value = bare(&self.value(&schema["items"], name, maker));
                        query.push(format!("{name}={}", encoded(&value)));
                    }
                }
                "query" if schema["type"] != "array" && name != "filter" && maker.chance(50) => {
                    let value = bare(&self.value(schema, name, maker));
                    query.push(format!("{name}={}", encoded(&value)));
                }
                "header" if maker.chance(20) => {
                    let value = encoded(&bare(&self.value(schema, name, maker)));
                    headers += &format!("{name}: {value}\r\n");
                }
                _ => {}
            }
        }
        if !query.is_empty() {
            target += &format!("?{}", query.join("&"));
        }
        let body = match call.get("requestBody") {
            Some(body) if !maker.is_odd || maker.chance(97) => {
                let schema = &body["content"]["application/json"]["schema"];
                self.value(schema, "", maker).into_bytes()
            }
            _ => Vec::new(),
        };
        headers += &self.headers(maker);
        let (length, body) = match maker.below(12) {
            0 => (
                "Transfer-Encoding: chunked".to_owned(),
                in_chunks(maker, &body),
            ),
            _ => (format!("Content-Length: {}", body.len()), body),
        };
        HttpCall {
            route: format!("{method} {path}"),
            head: format!(
                "{} {target} HTTP/1.1\r\n{headers}{length}\r\n",
                method.to_uppercase()
            ),
            body,
            is_endless: path.ends_with("/subscribe") || path.ends_with("/consume"),
        }
    }

    fn headers(&self, maker: &mut Maker) -> String {
        let accept = match maker.below(8) {
            0..3 => "application/x-ndjson",
            3 => "text/event-stream",
            _ => "application/json",
        };
        let mut headers = format!("Accept: {accept}\r\nContent-Type: application/json\r\n");
        match maker.below(20) {
            _ if !maker.is_odd => {}
            0 => headers += "Content-Encoding: gzip\r\n",
            1 => headers += "Expect: 100-continue\r\n",
            2 => {
                for n in 0..maker.times(20) {
                    headers += &format!("X-{n}: {n}\r\n");
                }
            }
            3 => {
                let value = "x".repeat(maker.times(1));
                headers += &format!("Cookie: {value}\r\n");
            }
            4 => headers += &format!("Accept: {}*/*\r\n", "a/b;q=0.5,".repeat(maker.times(10))),
            5 => headers += &format!("Traceparent: {}\r\n", "00-".repeat(maker.times(3))),
            6 => headers += "Accept-Encoding: gzip\r\n",
            _ => {}
        }
        headers
    }

    /// A value of a schema as JSON, sometimes another one.
    fn value(&self, schema: &Value, name: &str, maker: &mut Maker) -> String {
        let schema = self.resolved(schema);
        if maker.is_odd && maker.chance(1) {
            return maker.json();
        }
        if let Some(values) = schema.get("enum") {
            let values = values.as_array().unwrap();
            return values[maker.below(values.len())].to_string();
        }
        if schema.get("properties").is_some() {
            return self.object(schema, maker);
        }
        for of in ["oneOf", "anyOf"] {
            if let Some(Value::Array(schemas)) = schema.get(of) {
                return self.value(&schemas[maker.below(schemas.len())], name, maker);
            }
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => &kinds[0],
            kind => kind,
        };
        match kind.as_str() {
            Some("array") => {
                let count = match name {
                    // Each has much in it.
                    "filter" => maker.times(40),
                    _ => maker.times(15),
                };
                let most = schema["maxItems"].as_u64().filter(|_| !maker.is_odd);
                let count = count.min(most.map_or(count, |most| most as usize));
                let mut values = Vec::new();
                for _ in 0..count {
                    if maker.left > 0 {
                        values.push(self.value(&schema["items"], name, maker));
                    }
                }
                format!("[{}]", values.join(","))
            }
            Some("integer") => maker.number().to_string(),
            Some("boolean") => maker.pick(&["true", "false"]).to_owned(),
            Some("string") => {
                let text = text(name, schema, maker);
                maker.taken(Value::from(text).to_string())
            }
            Some("object") => "{}".to_owned(),
            _ => maker.json(),
        }
    }

    fn object(&self, schema: &Value, maker: &mut Maker) -> String {
        let required = schema["required"].as_array();
        let is_required =
            |name: &str| required.is_some_and(|names| names.iter().any(|it| it == name));
        let as_base64 = maker.chance(10);
        let mut fields = Vec::new();
        for (name, schema) in schema["properties"].as_object().unwrap() {
            let is_there = match name.as_str() {
                "data" => !as_base64,
                "data_base64" => as_base64,
                "metadata_base64" => false,
                name => is_required(name) || maker.chance(30),
            };
            if is_there {
                fields.push(format!("\"{name}\":{}", self.value(schema, name, maker)));
            }
        }
        if maker.is_odd && maker.chance(2) {
            for n in 0..maker.times(8) {
                fields.push(format!("\"{n}\":{n}"));
            }
        }
        maker.taken(format!("{{{}}}", fields.join(",")))
    }
}

fn text(name: &str, schema: &Value, maker: &mut Maker) -> String {
    let is_uuid = schema["format"] == "uuid" || name == "id";
    match name {
        _ if is_uuid => maker.uuid(),
        "stream" | "prefix" | "stream_prefix" | "stream_prefixes" => maker.stream(),
        "category" | "categories" => maker.pick(&["many", "tiny", "", "cart"]).to_owned(),
        "data_base64" => maker.base64(),
        "type" | "types" | "tag" | "tags" => maker.label(),
        "after" | "from" | "Last-Event-ID" => match maker.below(3) {
            0 => maker.text_of(&["A", "0", "1-", "ffff", "."]),
            1 => maker.stream(),
            _ => "start".to_owned(),
        },
        _ => maker.text(),
    }
}

fn in_chunks(maker: &mut Maker, body: &[u8]) -> Vec<u8> {
    let bytes = maker.pick(&[1, 7, 1_000]);
    // A chunk of one byte takes six.
    let most = if bytes == 1 { 8_000 } else { body.len() };
    let mut out = Vec::new();
    for chunk in body[..body.len().min(most)].chunks(bytes) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}
