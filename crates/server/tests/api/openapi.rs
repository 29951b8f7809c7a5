//! Tests that the OpenAPI document and the server agree, where a property-based tester found that they did not.

use serde_json::{Value, json};

use crate::client::Server;

async fn document(server: &Server) -> Value {
    server.get("/openapi.json").await.json()
}

/// Returns the member of the document at this place.
fn at<'a>(document: &'a Value, pointer: &str) -> &'a Value {
    let found = document.pointer(pointer);
    found.unwrap_or_else(|| panic!("{pointer} is missing"))
}

/// What happened: the document knew no shortest name, no control characters, and no largest revision; the server
/// refuses what breaks these rules.
#[tokio::test]
async fn names_and_revisions_have_the_bounds_that_the_document_says() {
    let server = Server::start().await;
    let document = document(&server).await;
    for (schema, bytes_max) in [("StreamName", 1_024), ("EventType", 512), ("Tag", 256)] {
        let name = at(&document, &format!("/components/schemas/{schema}"));
        assert_eq!(
            (&name["minLength"], &name["maxLength"]),
            (&json!(1), &json!(bytes_max))
        );
        assert_eq!(name["pattern"], r"^[^\u0000-\u001f\u007f-\u009f]+$");
    }
    let revision_max = at(&document, "/components/schemas/Revision/maximum");
    assert_eq!(revision_max.as_u64(), Some(9_223_372_036_854_775_806));
    let long = "x".repeat(1_024);
    for (target, status) in [
        ("/streams/a%7F", 400),
        ("/streams/a%C2%85", 400),
        ("/streams/", 400),
        (&*format!("/streams/{long}"), 404),
        (&*format!("/streams/{long}x"), 400),
        ("/streams/a/9223372036854775806", 404),
        ("/streams/a/9223372036854775807", 400),
        ("/streams/a?from=9223372036854775806", 404),
        ("/streams/a?from=9223372036854775807", 400),
        ("/streams/a?from=middle", 400),
        ("/all?from=7", 400),
        ("/all?from=end", 200),
        ("/streams?prefix=", 200),
        ("/streams?after=", 400),
        ("/streams?limit=10000", 200),
        ("/streams?limit=10001", 400),
    ] {
        assert_eq!(server.get(target).await.status, status, "{target}");
    }
    for part in ["type", "tag"] {
        assert_eq!(server.get(&format!("/all?{part}=")).await.status, 400);
    }
    for part in ["category", "stream_prefix"] {
        assert_eq!(server.get(&format!("/all?{part}=")).await.status, 200);
    }
}

/// What happened: the document let `data` stand beside `data_base64` and with a content type that it cannot have; the
/// server took a `null` that the document did not know.
#[tokio::test]
async fn events_are_what_the_document_says() {
    let server = Server::start().await;
    let event = at(&document(&server).await, "/components/schemas/NewEvent").clone();
    let either = event["oneOf"].as_array().expect("two forms");
    assert_eq!(either[0]["not"], json!({"required": ["data_base64"]}));
    assert_eq!(either[1]["not"], json!({"required": ["data"]}));
    assert_eq!(
        either[0]["properties"]["content_type"]["enum"],
        json!(["application/json", null])
    );
    for (event, status) in [
        (r#"{"type":"T","data":null}"#, 201),
        (r#"{"type":"T","data":null,"data_base64":""}"#, 400),
        (r#"{"type":"T","data":1,"data_base64":null}"#, 400),
        (r#"{"type":"T","data_base64":null}"#, 400),
        (r#"{"type":"T","data_base64":"AA=="}"#, 201),
        (r#"{"type":"T","data_base64":"AB=="}"#, 400),
        (r#"{"type":"T","data_base64":"AA"}"#, 400),
        (
            r#"{"type":"T","data":1,"content_type":"application/octet-stream"}"#,
            400,
        ),
        (
            r#"{"type":"T","data":1,"content_type":null,"id":null,"tags":null}"#,
            201,
        ),
        (
            r#"{"type":"T","data":1,"metadata":null,"metadata_base64":"AA=="}"#,
            201,
        ),
        (
            r#"{"type":"T","data":1,"metadata":1,"metadata_base64":"AA=="}"#,
            400,
        ),
        (
            r#"{"type":"T","data":1,"id":"01890dd5ea3f7a4e8e3a5b1f0e7b9c11"}"#,
            201,
        ),
        (
            r#"{"type":"T","data":1,"id":"{01890dd5-ea3f-7a4e-8e3a-5b1f0e7b9c11}"}"#,
            400,
        ),
    ] {
        let body = format!(r#"{{"events":[{event}]}}"#);
        let answer = server.json("POST", "/streams/a", &body).await;
        assert_eq!(answer.status, status, "{event}: {answer:?}");
    }
}

/// What happened: the document refused `null` in stream metadata, which the server takes, and allowed metadata of
/// metadata streams.
#[tokio::test]
async fn metadata_are_what_the_document_says() {
    let server = Server::start().await;
    let document = document(&server).await;
    for key in ["$maxAge", "$maxCount", "$tb"] {
        let types = at(
            &document,
            &format!("/components/schemas/StreamMetadata/properties/{key}/type"),
        );
        assert_eq!(types, &json!(["integer", "null"]));
    }
    for (target, body, status) in [
        (
            "/streams/a/metadata",
            r#"{"$maxAge":null,"$maxCount":null,"$tb":null}"#,
            200,
        ),
        (
            "/streams/a/metadata",
            r#"{"$maxAge":1.0,"$maxCount":1e3,"$tb":0.0}"#,
            200,
        ),
        ("/streams/a/metadata", r#"{"$maxAge":1.5}"#, 400),
        ("/streams/a/metadata", r#"{"$tb":9223372036854775806}"#, 200),
        ("/streams/a/metadata", r#"{"$tb":9223372036854775807}"#, 400),
        ("/streams/a/metadata", r#"[]"#, 400),
        ("/streams/$$a/metadata", "{}", 400),
    ] {
        let answer = server.json("PUT", target, body).await;
        assert_eq!(answer.status, status, "{body}: {answer:?}");
    }
    let wrong = server
        .json("PUT", "/streams/a/metadata", r#"{"$maxAge":"x"}"#)
        .await;
    assert_eq!(wrong.problem().1, "metadata.$maxAge");
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(128), "]".repeat(128));
    let refused = server.json("PUT", "/streams/a/metadata", &deep).await;
    assert_eq!(
        (refused.status, refused.problem().1),
        (400, json!("metadata"))
    );
    let writable = at(&document, "/components/schemas/WritableStreamName/pattern");
    assert!(writable.as_str().expect("a text").starts_with(r"^(?!\$\$|"));
    for (path, method) in [
        ("/streams/{stream}", "post"),
        ("/streams/{stream}", "delete"),
        ("/streams/{stream}/metadata", "put"),
    ] {
        let own = &document["paths"][path][method]["parameters"][0]["$ref"];
        assert_eq!(own, "#/components/parameters/writableStream");
    }
}

/// What happened: an address that is too long is answered with 414, which no call documented.
#[tokio::test]
async fn every_call_with_parameters_may_be_too_long() {
    let server = Server::start().await;
    let document = document(&server).await;
    for (path, calls) in document["paths"].as_object().expect("paths") {
        for (method, call) in calls.as_object().expect("calls") {
            let has = method != "parameters"
                && (call["parameters"].is_array() || calls["parameters"].is_array());
            assert!(
                !has || call["responses"]["414"].is_object(),
                "{method} {path}"
            );
        }
    }
}

/// What happened: clients could not read a page with an event that is nested too deep. Such an event now comes in
/// base64.
#[tokio::test]
async fn deep_json_comes_back_in_base64() {
    let server = Server::start().await;
    let deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
    let body = format!(r#"{{"events":[{{"type":"T","data":{deep}}}]}}"#);
    let refused = server.json("POST", "/streams/a", &body).await;
    assert_eq!(refused.problem().1, "events[0].data");
    assert!(
        refused.body.contains("send it as data_base64"),
        "{refused:?}"
    );
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(&deep);
    let body = format!(
        r#"{{"events":[{{"type":"T","data_base64":"{text}","content_type":"application/json"}}]}}"#
    );
    assert_eq!(server.json("POST", "/streams/a", &body).await.status, 201);
    let page = server.get("/streams/a").await.json();
    assert_eq!(page["events"][0]["data_base64"], text);
}

/// What happened: every stream took a checkpoint of another stream, and silently began at the wrong event.
#[tokio::test]
async fn a_checkpoint_of_another_stream_is_refused() {
    let server = Server::start().await;
    for stream in ["a", "b"] {
        server.append(stream, &["1", "2", "3"]).await;
    }
    let subscribe = |stream: &str, after: &str| {
        format!("GET /streams/{stream}/subscribe?after={after} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    };
    let mut events = server.raw(&subscribe("a", "start")).await;
    events.until("caught_up").await;
    let mut ids = events
        .received
        .lines()
        .filter_map(|line| line.strip_prefix("id: "));
    let checkpoint = ids.nth(1).expect("two events").to_owned();
    let mut own = server.raw(&subscribe("a", &checkpoint)).await;
    own.until("\"data\":3").await;
    let refused = server
        .get(&format!("/streams/b/subscribe?after={checkpoint}"))
        .await;
    assert_eq!(
        (refused.status, refused.problem().0.as_str()),
        (409, "invalid_checkpoint")
    );
}
