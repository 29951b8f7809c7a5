use std::collections::HashMap;
use std::path::Path;

use bytes::Bytes;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FileDescriptorSet};

use super::*;
use crate::frame;
use crate::messages::streams::batch_append_req::ProposedMessage;
use crate::messages::streams::{BatchAppendReq, ReadReq};
use crate::messages::v2::AppendRecordsRequest;

/// All messages of the schema by their full names.
struct Schema(HashMap<String, DescriptorProto>);

impl Schema {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
        let files = std::fs::read_dir(&root).expect("a directory");
        let files = files.map(|file| file.expect("a file").file_name());
        let compiled = protox::compile(files, [root]).expect("a schema without errors");
        let files = FileDescriptorSet::decode(compiled.encode_to_vec().as_slice()).expect("files");
        let mut schema = Self(HashMap::new());
        for file in files.file {
            let package = format!(".{}", file.package());
            for message in file.message_type {
                schema.add(&package, message);
            }
        }
        schema
    }

    fn add(&mut self, scope: &str, message: DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        for nested in &message.nested_type {
            self.add(&name, nested.clone());
        }
        self.0.insert(name, message);
    }

    /// Returns the fields of a message that count or lead to such fields: each number, whether the field itself
    /// counts, and the name of the message inside if something in that counts.
    fn counting(&self, name: &str, above: &[&str]) -> Vec<(u64, bool, Option<String>)> {
        let mut found = Vec::new();
        for field in &self.0[name].field {
            let many = field.label() == Label::Repeated;
            assert!(
                !many || matches!(field.r#type(), Type::Message | Type::String | Type::Bytes),
                "{name}: numbers of a list lie in one field and are not counted"
            );
            let inside = (field.r#type() == Type::Message).then(|| field.type_name().to_owned());
            let above = [above, &[name]].concat();
            // A message that lies in itself counts because of another of its fields.
            let counts = |inside: &String| {
                !above.contains(&inside.as_str()) && !self.counting(inside, &above).is_empty()
            };
            let inside = inside.filter(counts);
            if many || inside.is_some() {
                found.push((
                    u64::try_from(field.number()).expect("a number"),
                    many,
                    inside,
                ));
            }
        }
        found
    }

    fn compare(&self, name: &str, shape: &Shape, seen: &mut Vec<String>) {
        if seen.contains(&name.to_owned()) {
            return;
        }
        seen.push(name.to_owned());
        let counting = self.counting(name, &[]);
        let wanted: Vec<_> = counting
            .iter()
            .map(|(number, many, inside)| (*number, *many, inside.is_some()))
            .collect();
        let mut written: Vec<_> = shape
            .0
            .iter()
            .map(|field| {
                (
                    field.number,
                    field.times == Times::Many,
                    field.inside.is_some(),
                )
            })
            .collect();
        written.sort_unstable();
        let mut sorted = wanted.clone();
        sorted.sort_unstable();
        assert_eq!(written, sorted, "{name}");
        for (number, _, inside) in counting {
            let field = shape.0.iter().find(|field| field.number == number);
            if let (Some(name), Some(shape)) = (inside, field.and_then(|field| field.inside)) {
                self.compare(&name, shape, seen);
            }
        }
    }
}

/// Goal: a list that comes into the schema is counted.
#[test]
fn the_shapes_are_those_of_the_schema() {
    let schema = Schema::read();
    for (name, shape) in SHAPES {
        schema.compare(&format!(".{name}"), shape, &mut Vec::new());
    }
}

/// Makes a message of `count` times the same bytes.
fn many(count: usize, element: &[u8]) -> Bytes {
    element.repeat(count).into()
}

/// A message of two bytes for each element was decoded whole before any of its elements were counted, which took some
/// gigabytes. Goal: such messages are refused before they are decoded, wherever the elements lie.
#[test]
fn elements_that_are_nearly_empty_are_counted_before_they_are_decoded() {
    let most = EVENTS.elements_max;
    let allowed = frame::read::<BatchAppendReq>(many(most, &[0x1a, 0])).expect("at the limit");
    assert_eq!(allowed.proposed_messages.len(), most);
    let refused = frame::read::<BatchAppendReq>(many(most + 1, &[0x1a, 0])).expect_err("above");
    assert_eq!(refused.code, Code::InvalidArgument);
    assert!(refused.message.contains("500000"), "{}", refused.message);
    // Records whose one property is a list: each value is an element.
    let values = [&[0x32, 2 * 60][..], &[0x0a, 0].repeat(60)].concat();
    let mut property = vec![0x12];
    prost::encoding::encode_varint(values.len() as u64, &mut property);
    property.extend(values);
    let mut record = vec![0x12];
    prost::encoding::encode_varint(property.len() as u64, &mut record);
    record.extend(property);
    let mut element = vec![0x0a];
    prost::encoding::encode_varint(record.len() as u64, &mut element);
    element.extend(record);
    let refused = frame::read::<AppendRecordsRequest>(many(most / 60, &element));
    assert_eq!(refused.expect_err("many").code, Code::Aborted);
    let refused = frame::read::<ReadReq>(many(10, &[0x0a, 0])).expect("options that come often");
    assert!(refused.options.is_some());
}

/// Goal: the largest batch that is allowed passes, also if its data look like fields of the message around them.
#[test]
fn the_largest_batch_passes_whatever_its_data_are() {
    let event = ProposedMessage {
        metadata: (0..40)
            .map(|key| (format!("key-{key}"), String::new()))
            .collect(),
        data: many(3_000, &[0x1a, 0]),
        custom_metadata: many(100, &[0x12, 0]),
        ..ProposedMessage::default()
    };
    let batch = BatchAppendReq {
        proposed_messages: vec![event; limits::APPEND_EVENTS_MAX],
        ..BatchAppendReq::default()
    };
    BatchAppendReq::check(&batch.encode_to_vec()).expect("few elements");
}

/// Goal: what cannot be counted is refused, and nothing panics or recurses without end.
#[test]
fn what_cannot_be_counted_is_refused() {
    // A group, in which the decoder would find nothing and go on behind it.
    let group = Bytes::from_static(&[0x23, 0x24]);
    let refused = frame::read::<BatchAppendReq>(group).expect_err("a group");
    assert_eq!(refused.code, Code::InvalidArgument);
    for cut in [
        &[0x1a][..],
        &[0x1a, 5, 0],
        &[0x19, 0],
        &[0x1d, 0],
        &[0xff; 11],
    ] {
        assert!(BatchAppendReq::check(cut).is_err(), "{cut:?}");
    }
    let mut value = Vec::new();
    for _ in 0..2 * DEPTH_MAX {
        let mut outer = vec![0x0a];
        prost::encoding::encode_varint(value.len() as u64, &mut outer);
        outer.extend(value);
        value = vec![0x32];
        prost::encoding::encode_varint(outer.len() as u64, &mut value);
        value.extend(outer);
    }
    assert!(matches!(
        walk(&value, &VALUE, 0, &mut 1_000),
        Err(Stop::Unreadable(_))
    ));
}
