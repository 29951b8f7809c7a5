//! Who calls, and what is said of rights: `Authorization`, `$acl`, `$settings`, events of accounts.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use gesta_access::check_account_event;
use gesta_access::core::{self as access, Proof};
use gesta_core::{EventData, StreamMetadata};
use serde_json::Value;

use crate::Seed;
use crate::sample::{after, byte, event_type, id, nested, stream};

/// The longest rule that is told, in bytes, whatever was read.
const RULE_BYTES_MAX: usize = 1_024;
/// The streams of accounts, and the types of their events.
const ACCOUNTS: [(&str, &str); 4] = [
    ("$user-alice", "$user"),
    ("$token-00000000000000000000000000000001", "$token"),
    ("$settings", "$settings"),
    ("$users", "$User"),
];

/// What callers show, and what administrators say of rights.
pub(crate) fn credentials(mut input: &[u8]) {
    match byte(&mut input) {
        0 => proof(input),
        1 => assert!(access::proof(&[input, input]).is_err(), "two headers"),
        2 => rights(input),
        3 => {
            if let Err(problem) = access::default_rights(input) {
                check_rule(&problem, "settings");
            }
        }
        kind => account(input, kind),
    }
}

/// A login is what its base64 says, and a token is read as it was written.
fn proof(value: &[u8]) {
    match access::proof(&[value]) {
        Err(rule) => assert!(!rule.is_empty()),
        Ok(Proof::Nothing) => panic!("a header is something"),
        Ok(Proof::Token(is_same)) => assert!(is_same),
        Ok(Proof::Login(user, password_bytes)) => {
            let text = std::str::from_utf8(value).expect("a header is text").trim();
            let (scheme, encoded) = text.split_once(' ').expect("two words");
            assert!(scheme.eq_ignore_ascii_case("basic"));
            let decoded = STANDARD.decode(encoded.trim_start()).expect("base64");
            let colon = decoded
                .iter()
                .position(|byte| *byte == b':')
                .expect("a colon");
            assert_eq!(&decoded[..colon], user.as_bytes());
            assert_eq!(decoded.len() - colon - 1, password_bytes);
        }
    }
}

/// What cannot be read is never taken for nothing said.
fn rights(json: &[u8]) {
    match access::rights(json) {
        Err(problem) => check_rule(&problem, "metadata"),
        Ok(Some(bytes)) => assert!(bytes <= 1_024 + 64 * json.len(), "{bytes} bytes"),
        Ok(None) => {
            let document: Value = serde_json::from_slice(json).expect("it was read");
            assert!(
                document.get("$acl").is_none_or(Value::is_null),
                "{document}"
            );
        }
    }
    // The same document, as readers see it.
    if let Ok(metadata) = StreamMetadata::parse(json.to_vec()) {
        assert_eq!(metadata.json(), json);
    }
}

fn check_rule((field, rule): &(String, String), of: &str) {
    assert!(field.starts_with(of), "{field}: {rule}");
    assert!(
        (1..=RULE_BYTES_MAX).contains(&rule.len()),
        "{field}: {rule}"
    );
}

/// Events of account streams, as callers append them.
fn account(data: &[u8], kind: u8) {
    let (name, type_name) = ACCOUNTS[usize::from(kind) % ACCOUNTS.len()];
    let event = EventData::json(event_type(type_name), data.to_vec());
    if check_account_event(&stream(name), &event).is_ok() {
        assert!(serde_json::from_slice::<Value>(data).is_ok(), "it was read");
        let metadata = stream(name).metadata_stream();
        assert!(check_account_event(&metadata, &event).is_err());
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let login = format!("Basic {}", STANDARD.encode("alice:pass:word"));
    let (token, secret) = (id(5).simple(), URL_SAFE_NO_PAD.encode([7; 32]));
    let bearer = format!("Bearer gesta_{token}_{secret}");
    let acl = r#"{"owner":1,"$acl":{"$r":"a","$w":["b","$admins"],"$d":[],"$mr":null}}"#;
    let settings = r#"{"$userStreamAcl":{"$r":"readers"},"$systemStreamAcl":{"$r":["$ops"]}}"#;
    let groups = format!(
        r#"{{"kind":"groups","id":"{}","groups":["$admins"]}}"#,
        id(3)
    );
    let disabled = format!(r#"{{"kind":"disabled","id":"{}"}}"#, id(3));
    let deep = format!(r#"{{"kind":"revoked","from":{}}}"#, nested(200));
    vec![
        ("login", after(&[0], login)),
        ("token", after(&[0], bearer)),
        ("twice", after(&[1], "Basic YTpi")),
        ("acl", after(&[2], acl)),
        ("no_acl", after(&[2], r#"{"$maxCount":3}"#)),
        ("settings", after(&[3], settings)),
        ("groups", after(&[4], groups)),
        ("disabled", after(&[4], disabled)),
        ("revoked", after(&[5], r#"{"kind":"revoked"}"#)),
        ("deep", after(&[5], deep)),
        ("user_settings", after(&[6], settings)),
        ("listed", after(&[7], r#""alice""#)),
    ]
}
