//! Random calls over gRPC: every method, with messages that are made of the definitions of the protocol.

use std::collections::HashMap;

use crate::values::Maker;

const FILES: [&str; 8] = [
    include_str!("../../../grpc/proto/shared.proto"),
    include_str!("../../../grpc/proto/streams.proto"),
    include_str!("../../../grpc/proto/streams_v2.proto"),
    include_str!("../../../grpc/proto/persistent.proto"),
    include_str!("../../../grpc/proto/users.proto"),
    include_str!("../../../grpc/proto/operations.proto"),
    include_str!("../../../grpc/proto/projections.proto"),
    include_str!("../../../grpc/proto/monitoring.proto"),
];

/// What the definitions name and do not hold.
const OTHERS: &str = "package google.protobuf; message Empty {} \
    message Duration { int64 seconds = 1; int32 nanos = 2; } \
    message Timestamp { int64 seconds = 1; int32 nanos = 2; } \
    message Struct { map<string, Value> fields = 1; } message ListValue { repeated Value values = 1; } \
    message Value { oneof kind { uint32 null_value = 1; double number_value = 2; string string_value = 3; \
    bool bool_value = 4; Struct struct_value = 5; ListValue list_value = 6; } }";

const STREAMS: &str = "event_store.client.streams.Streams";
const GROUPS: &str = "event_store.client.persistent_subscriptions.PersistentSubscriptions";
const USERS: &str = "event_store.client.users.Users";
const OPERATIONS: &str = "event_store.client.operations.Operations";
const PROJECTIONS: &str = "event_store.client.projections.Projections";
const V2: &str = "kurrentdb.protocol.v2.streams.StreamsService";
const EMPTY: &str = "";

/// Services, methods and the messages that are sent. A message without a name is empty.
const METHODS: [(&str, &str, &str); 36] = [
    (STREAMS, "Read", "ReadReq"),
    (STREAMS, "Append", "AppendReq"),
    (STREAMS, "BatchAppend", "BatchAppendReq"),
    (STREAMS, "Delete", "DeleteReq"),
    (STREAMS, "Tombstone", "TombstoneReq"),
    (V2, "AppendSession", "AppendRequest"),
    (V2, "AppendRecords", "AppendRecordsRequest"),
    (GROUPS, "Create", "CreateReq"),
    (GROUPS, "Update", "UpdateReq"),
    (GROUPS, "Delete", "DeleteReq"),
    (GROUPS, "Read", "ReadReq"),
    (GROUPS, "GetInfo", "GetInfoReq"),
    (GROUPS, "ReplayParked", "ReplayParkedReq"),
    (GROUPS, "List", "ListReq"),
    (GROUPS, "RestartSubsystem", EMPTY),
    (USERS, "Create", "CreateReq"),
    (USERS, "Update", "UpdateReq"),
    (USERS, "Delete", "DeleteReq"),
    (USERS, "Disable", "DisableReq"),
    (USERS, "Enable", "EnableReq"),
    (USERS, "Details", "DetailsReq"),
    (USERS, "ChangePassword", "ChangePasswordReq"),
    (USERS, "ResetPassword", "ResetPasswordReq"),
    (OPERATIONS, "StartScavenge", "StartScavengeReq"),
    (OPERATIONS, "StopScavenge", "StopScavengeReq"),
    (OPERATIONS, "MergeIndexes", EMPTY),
    (OPERATIONS, "ResignNode", EMPTY),
    (OPERATIONS, "SetNodePriority", "SetNodePriorityReq"),
    (PROJECTIONS, "Statistics", "StatisticsReq"),
    (PROJECTIONS, "Enable", "EnableReq"),
    (PROJECTIONS, "Disable", "DisableReq"),
    (
        "event_store.client.server_features.ServerFeatures",
        "GetSupportedMethods",
        EMPTY,
    ),
    ("event_store.client.gossip.Gossip", "Read", EMPTY),
    (
        "event_store.client.monitoring.Monitoring",
        "Stats",
        "StatsReq",
    ),
    ("grpc.health.v1.Health", "Check", EMPTY),
    ("grpc.health.v1.Health", "Watch", EMPTY),
];

#[derive(Debug)]
struct Field {
    name: String,
    kind: String,
    number: u64,
    is_repeated: bool,
    /// The type of the keys of a map.
    of_map: Option<String>,
    /// Of the fields of a message with the same number here, one is set.
    choice: Option<usize>,
}

/// The messages of the protocol by their full names.
#[derive(Debug, Default)]
pub(crate) struct Protocol {
    messages: HashMap<String, Vec<Field>>,
}

/// A call.
pub(crate) struct GrpcCall {
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
    /// Whether it may last for ever.
    pub(crate) is_endless: bool,
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn framed(number: u64, bytes: &[u8], out: &mut Vec<u8>) {
    varint(number << 3 | 2, out);
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

impl Protocol {
    pub(crate) fn read() -> Self {
        let mut protocol = Self::default();
        FILES.iter().for_each(|text| protocol.read_file(text));
        protocol.read_file(OTHERS);
        protocol
    }

    fn read_file(&mut self, text: &str) {
        let plain: Vec<&str> = text
            .lines()
            .map(|line| line.split("//").next().unwrap())
            .collect();
        let mut spaced = plain.join(" ");
        for mark in ["{", "}", ";", "=", "<", ">", ","] {
            spaced = spaced.replace(mark, &format!(" {mark} "));
        }
        let tokens: Vec<&str> = spaced.split_whitespace().collect();
        let (mut scope, mut choices) = (Vec::new(), 0);
        // What each open brace belongs to: the last of the scope, a choice, or something without fields.
        let mut open: Vec<&str> = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            match tokens[at] {
                "package" => scope = vec![tokens[at + 1].to_owned()],
                "message" => {
                    open.push("message");
                    scope.push(tokens[at + 1].to_owned());
                    self.messages.insert(scope.join("."), Vec::new());
                    at += 3;
                    continue;
                }
                kind @ ("enum" | "oneof") => {
                    open.push(kind);
                    choices += 1;
                    at += 3;
                    continue;
                }
                "}" => {
                    if open.pop() == Some("message") {
                        scope.pop();
                    }
                    at += 1;
                    continue;
                }
                _ => {}
            }
            let end = at + tokens[at..].iter().position(|token| *token == ";").unwrap();
            if open.last().is_some_and(|kind| *kind != "enum") && tokens[at] != "reserved" {
                let choice = (open.last() == Some(&"oneof")).then_some(choices);
                let field = field(&tokens[at..end], choice);
                self.messages.get_mut(&scope.join(".")).unwrap().push(field);
            }
            at = end + 1;
        }
    }

    /// The full name of the message that `kind` names within `scope`; `None` for an enum.
    fn named(&self, scope: &str, kind: &str) -> Option<String> {
        let mut scope = scope.to_owned();
        loop {
            let full = format!("{scope}.{kind}");
            if self.messages.contains_key(&full) {
                return Some(full);
            }
            scope.truncate(scope.rfind('.').unwrap_or(0));
            if scope.is_empty() {
                return self.messages.contains_key(kind).then(|| kind.to_owned());
            }
        }
    }

    pub(crate) fn call(&self, maker: &mut Maker) -> GrpcCall {
        let (service, method, message) = match maker.chance(30) {
            true => METHODS[maker.below(3)],
            false => maker.pick(&METHODS),
        };
        let scope = service.rsplit_once('.').unwrap().0;
        let follows = maker.chance(10);
        let of_time = if follows { "count" } else { "subscription" };
        let of_many = matches!(method, "Append" | "BatchAppend" | "AppendSession")
            || (service == GROUPS && method == "Read");
        let mut body = Vec::new();
        let count = if of_many { 1 + maker.times(30) } else { 1 };
        for n in 0..count {
            // The first message of many says what the others are for.
            let avoided: &[&str] = match n {
                0 => &[of_time, "proposed_message", "ack", "nack"],
                _ => &["options"],
            };
            let bytes = match message {
                EMPTY => Vec::new(),
                _ => self.message(maker, &format!("{scope}.{message}"), avoided, 0),
            };
            body.push(0);
            body.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
            body.extend_from_slice(&bytes);
        }
        let of_ever = ["Watch", "Stats", "AppendSession", "BatchAppend"];
        GrpcCall {
            is_endless: of_ever.contains(&method)
                || (service == GROUPS && method == "Read")
                || (service == STREAMS && method == "Read" && follows),
            path: format!("/{service}/{method}"),
            body,
        }
    }

    fn message(&self, maker: &mut Maker, full: &str, avoided: &[&str], depth: usize) -> Vec<u8> {
        let fields = &self.messages[full];
        let mut out = Vec::new();
        let mut chosen = HashMap::new();
        for choice in fields.iter().filter_map(|field| field.choice) {
            let of_it = || fields.iter().filter(|field| field.choice == Some(choice));
            let allowed: Vec<u64> = of_it()
                .filter(|field| !avoided.contains(&field.name.as_str()))
                .map(|field| field.number)
                .collect();
            chosen.entry(choice).or_insert_with(|| maker.pick(&allowed));
        }
        for field in fields {
            let is_set = match field.choice {
                Some(choice) => {
                    chosen[&choice] == field.number && (!maker.is_odd || maker.chance(97))
                }
                None => field.is_repeated || !maker.is_odd || maker.chance(80),
            };
            // What may hold itself is given up before it is deeper than readers follow, mostly.
            if !is_set || depth > 120 {
                continue;
            }
            let inner = self.named(full, &field.kind);
            let count = match (field.is_repeated, inner.is_some()) {
                (false, _) => 1,
                (true, true) if depth > 4 => maker.below(2),
                (true, true) => maker.times(maker_bytes(&field.name)),
                (true, false) => maker.times(8),
            };
            for n in 0..count {
                if maker.left == 0 {
                    break;
                }
                let before = out.len();
                if let Some(keys) = &field.of_map {
                    let mut entry = Vec::new();
                    let key = match (field.name.as_str(), n) {
                        ("metadata", 0) => "type".to_owned(),
                        ("metadata", 1) => "content-type".to_owned(),
                        _ => maker.label(),
                    };
                    assert_eq!(keys, "string");
                    framed(1, key.as_bytes(), &mut entry);
                    self.value(maker, full, field, 2, avoided, depth, &mut entry);
                    framed(field.number, &entry, &mut out);
                } else {
                    self.value(maker, full, field, field.number, avoided, depth, &mut out);
                }
                maker.left = maker.left.saturating_sub(out.len() - before);
            }
        }
        out
    }

    #[allow(clippy::too_many_arguments, reason = "what a value is made of")]
    fn value(
        &self,
        maker: &mut Maker,
        full: &str,
        field: &Field,
        number: u64,
        avoided: &[&str],
        depth: usize,
        out: &mut Vec<u8>,
    ) {
        if let Some(inner) = self.named(full, &field.kind) {
            let left = maker.left;
            let bytes = self.message(maker, &inner, avoided, depth + 1);
            maker.left = left;
            return framed(number, &bytes, out);
        }
        match field.kind.as_str() {
            "string" => framed(number, text(maker, &field.name).as_bytes(), out),
            "bytes" => {
                let bytes = match field.name.as_str() {
                    "stream_name" => maker.stream(),
                    _ => maker.json(),
                };
                framed(number, bytes.as_bytes(), out);
            }
            "double" => {
                varint(number << 3 | 1, out);
                out.extend_from_slice(&(maker.number() as f64).to_le_bytes());
            }
            "bool" => {
                varint(number << 3, out);
                varint(maker.below(2) as u64, out);
            }
            "sint64" => {
                let value = maker.number() as i64;
                varint(number << 3, out);
                varint((value << 1 ^ value >> 63) as u64, out);
            }
            kind => {
                let value = match kind {
                    "int32" | "uint32" | "int64" | "uint64" => maker.number() as u64,
                    _ => maker.below(if maker.is_odd { 5 } else { 2 }) as u64,
                };
                varint(number << 3, out);
                varint(value, out);
            }
        }
    }
}

/// About how many bytes an element of a list takes, if as many as fit are to be tried.
fn maker_bytes(name: &str) -> usize {
    match name {
        "records" | "checks" | "proposed_messages" => 30,
        _ => 4,
    }
}

fn text(maker: &mut Maker, name: &str) -> String {
    match name {
        "regex" => maker.expression(),
        "prefix" | "stream" => maker.stream(),
        "group_name" => maker.group(),
        "string" | "record_id" | "scavenge_id" | "id" => maker.uuid(),
        "login_name" => match maker.below(3) {
            0 => maker.text(),
            _ => maker.pick(&["nobody", "x"]).to_owned(),
        },
        "metadata" => maker.pick(&["T", "application/json"]).to_owned(),
        "consumer_strategy" => maker.pick(&["RoundRobin", "Pinned", ""]).to_owned(),
        _ => maker.text(),
    }
}

fn field(tokens: &[&str], choice: Option<usize>) -> Field {
    let (is_optional, is_repeated) = (tokens[0] == "optional", tokens[0] == "repeated");
    let tokens = &tokens[usize::from(is_optional || is_repeated)..];
    let number = tokens.last().unwrap().parse().unwrap();
    match tokens {
        ["map", "<", keys, ",", kind, ">", name, ..] => Field {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            number,
            is_repeated: true,
            of_map: Some((*keys).to_owned()),
            choice,
        },
        [kind, name, ..] => Field {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            number,
            is_repeated,
            of_map: None,
            choice,
        },
        _ => panic!("a field: {tokens:?}"),
    }
}
