//! Requests of callers.
//!
//! Tests of other crates include this file. It names nothing of the tests of this crate.

use bytes::{Bytes, BytesMut};
use gesta_core::StreamId;
use gesta_grpc::frame;
use gesta_grpc::ids::{self, UuidForm};
use gesta_grpc::messages::groups;
use gesta_grpc::messages::shared::{Empty, StreamIdentifier};
use gesta_grpc::messages::streams::append_req::options::ExpectedStreamRevision;
use gesta_grpc::messages::streams::append_req::{Content, Options, ProposedMessage};
use gesta_grpc::messages::streams::read_req::options::uuid_option::Content as Form;
use gesta_grpc::messages::streams::read_req::options::{
    CountOption, FilterOption, StreamOption, StreamOptions, SubscriptionOptions, UuidOption,
    stream_options,
};
use gesta_grpc::messages::streams::read_req::{self};
use gesta_grpc::messages::streams::{AppendReq, ReadReq};
use prost::Message;
use uuid::Uuid;

pub(crate) const READ: &str = "/event_store.client.streams.Streams/Read";
pub(crate) const APPEND: &str = "/event_store.client.streams.Streams/Append";
pub(crate) const GROUPS: &str =
    "/event_store.client.persistent_subscriptions.PersistentSubscriptions";

/// Makes the name of a stream as calls give it.
pub(crate) fn identifier(stream: &str) -> StreamIdentifier {
    ids::identifier(&StreamId::new(stream).unwrap())
}

/// Makes the options of a read of a whole stream.
pub(crate) fn read_of(stream: &str) -> read_req::Options {
    read_req::Options {
        stream_option: Some(StreamOption::Stream(StreamOptions {
            stream_identifier: Some(identifier(stream)),
            revision_option: Some(stream_options::RevisionOption::Start(Empty {})),
        })),
        count_option: Some(CountOption::Count(u64::MAX)),
        filter_option: Some(FilterOption::NoFilter(Empty {})),
        uuid_option: Some(UuidOption {
            content: Some(Form::Structured(Empty {})),
        }),
        ..read_req::Options::default()
    }
}

pub(crate) fn reading(options: read_req::Options) -> [ReadReq; 1] {
    [ReadReq {
        options: Some(options),
    }]
}

/// Makes the options of a subscription to a stream.
pub(crate) fn following(stream: &str) -> read_req::Options {
    read_req::Options {
        count_option: Some(CountOption::Subscription(SubscriptionOptions {})),
        ..read_of(stream)
    }
}

/// Makes an append of one event of `bytes` bytes to a stream.
pub(crate) fn appending(stream: &str, bytes: usize) -> [AppendReq; 2] {
    let options = Options {
        stream_identifier: Some(identifier(stream)),
        expected_stream_revision: Some(ExpectedStreamRevision::Any(Empty {})),
    };
    let event = ProposedMessage {
        id: Some(ids::uuid(Uuid::new_v4(), UuidForm::Structured)),
        metadata: [("type", "added"), ("content-type", "application/json")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        data: vec![b'x'; bytes].into(),
        ..ProposedMessage::default()
    };
    [
        AppendReq {
            content: Some(Content::Options(options)),
        },
        AppendReq {
            content: Some(Content::ProposedMessage(event)),
        },
    ]
}

/// Writes messages one after the other.
pub(crate) fn bytes_of<M: Message>(messages: &[M]) -> Bytes {
    let mut out = BytesMut::new();
    for message in messages {
        frame::write(&mut out, message);
    }
    out.freeze()
}

/// Makes the request of a consumer of the group `g` of a stream.
pub(crate) fn consuming(stream: &str) -> Bytes {
    use groups::read_req::options::uuid_option::Content as Form;
    use groups::read_req::options::{StreamOption, UuidOption};
    bytes_of(&[groups::ReadReq {
        content: Some(groups::read_req::Content::Options(
            groups::read_req::Options {
                stream_option: Some(StreamOption::StreamIdentifier(identifier(stream))),
                group_name: "g".into(),
                buffer_size: 1,
                uuid_option: Some(UuidOption {
                    content: Some(Form::String(Empty {})),
                }),
            },
        )),
    }])
}
