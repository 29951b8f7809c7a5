//! Calls of what lives beside the store, such as the entity runtime, to the node that owns a stream.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use gesta_core::peers::{PeerAnswer, PeerCall, PeerService, Unanswered, UnansweredReason};
use gesta_core::{StreamId, way_point};
use gesta_link::{Call, ForwardError, Reply, ReturnReason};
use prost::Message;

/// The greatest number of bytes of the answer of a service.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// The number of bytes of a body that the form of an answer may take.
const FORM_BYTES_MAX: usize = 64;

/// The services of this node, by name.
pub(crate) struct Services {
    by_name: RwLock<HashMap<String, Arc<dyn PeerService>>>,
    answer_bytes_max: usize,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceCall {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    stream: String,
    #[prost(bytes = "bytes", tag = "3")]
    body: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceAnswer {
    /// The answer of the service; `None` if the node does not have the service.
    #[prost(bytes = "bytes", optional, tag = "1")]
    body: Option<Bytes>,
    /// Whether the service has answered more than can be sent. There is no body then.
    #[prost(bool, tag = "2")]
    is_too_large: bool,
}

impl Services {
    /// Makes an empty set of services. Links carry bodies of at most `body_bytes_max` bytes.
    pub(crate) fn new(body_bytes_max: u32) -> Self {
        let body_bytes_max = usize::try_from(body_bytes_max).unwrap_or(usize::MAX);
        Self {
            by_name: RwLock::default(),
            answer_bytes_max: ANSWER_BYTES_MAX.min(body_bytes_max.saturating_sub(FORM_BYTES_MAX)),
        }
    }

    pub(crate) fn register(&self, service: &str, handler: Arc<dyn PeerService>) {
        let mut services = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        services.insert(service.to_owned(), handler);
    }

    /// Hands a call to its service. A call that cannot be read, or whose service is not here, gets an answer that says
    /// so.
    pub(crate) fn take(&self, call: Call) -> BoxFuture<'static, Bytes> {
        let (remaining, is_in_doubt) = (call.remaining, call.is_in_doubt);
        let begun = ServiceCall::decode(call.body).ok().and_then(|call| {
            let stream = StreamId::new(&*call.stream).ok()?;
            way_point!(stream, "carried");
            let services = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
            let handler = Arc::clone(services.get(&call.service)?);
            drop(services);
            Some(handler.call(PeerCall {
                stream,
                body: call.body,
                remaining,
                is_in_doubt,
            }))
        });
        let bytes_max = self.answer_bytes_max;
        match begun {
            Some(begun) => begun.map(move |body| answer(body, bytes_max)).boxed(),
            None => ready(ServiceAnswer::default().encode_to_vec().into()).boxed(),
        }
    }
}

/// Writes an answer. If the answer is too large, the form says only that; the answer itself would end the lane, and the
/// call would be sent again.
fn answer(body: Bytes, bytes_max: usize) -> Bytes {
    let is_too_large = body.len() > bytes_max;
    if is_too_large {
        tracing::error!(
            bytes = body.len(),
            bytes_max,
            "the answer of a service to another node is too large"
        );
    }
    let body = (!is_too_large).then_some(body);
    ServiceAnswer { body, is_too_large }.encode_to_vec().into()
}

/// Writes a call of a service in the form in which it is sent.
pub(crate) fn call_of(service: &str, stream: &StreamId, body: Bytes) -> Bytes {
    let call = ServiceCall {
        service: service.to_owned(),
        stream: stream.as_str().to_owned(),
        body,
    };
    call.encode_to_vec().into()
}

/// Reads what the answer to a call says.
pub(crate) fn read(answer: Result<Reply, ForwardError>) -> Result<PeerAnswer, Unanswered> {
    let unanswered = |reason, was_written| {
        Err(Unanswered {
            reason,
            was_written,
        })
    };
    match answer {
        Ok(Reply { body, is_in_doubt }) => match ServiceAnswer::decode(body) {
            Ok(ServiceAnswer {
                body: Some(body), ..
            }) => Ok(PeerAnswer { body, is_in_doubt }),
            Ok(answer) if answer.is_too_large => unanswered(UnansweredReason::AnswerTooLarge, true),
            Ok(_) => unanswered(UnansweredReason::NotServed, is_in_doubt),
            // Whatever it says, the owner has had the call.
            Err(_) => unanswered(UnansweredReason::Unreadable, true),
        },
        Err(ForwardError::Overloaded) => unanswered(UnansweredReason::Overloaded, false),
        Err(ForwardError::TooLarge) => unanswered(UnansweredReason::TooLarge, false),
        Err(ForwardError::Returned {
            reason,
            was_written,
        }) => {
            let reason = match reason {
                ReturnReason::Local => UnansweredReason::Here,
                ReturnReason::Unreachable => UnansweredReason::Unreachable,
                ReturnReason::NoOwner => UnansweredReason::NoOwner,
                ReturnReason::DeadlineOver => UnansweredReason::Late,
                _ => UnansweredReason::Closed,
            };
            unanswered(reason, was_written)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unanswered(body: impl Into<Bytes>, is_in_doubt: bool) -> (UnansweredReason, bool) {
        let body = body.into();
        let unanswered = read(Ok(Reply { body, is_in_doubt })).expect_err("no answer");
        (unanswered.reason, unanswered.was_written)
    }

    /// What happened: an answer that could not be read was taken for *there is no such service here*, so the edge did a
    /// command a second time that the owner had done.
    #[test]
    fn an_answer_that_cannot_be_read_may_stand_for_something_done() {
        let unreadable = (UnansweredReason::Unreadable, true);
        assert_eq!(unanswered(&b"\xff\xff\xff"[..], false), unreadable);
        // Field 1 as a number.
        assert_eq!(unanswered(&b"\x08\x01"[..], false), unreadable);
        let not_served = |in_doubt| (UnansweredReason::NotServed, in_doubt);
        assert_eq!(unanswered(&b""[..], false), not_served(false));
        assert_eq!(unanswered(&b""[..], true), not_served(true));
    }

    #[test]
    fn an_answer_that_is_too_large_says_so() {
        let largest = read(Ok(Reply {
            body: answer(Bytes::from_static(b"12345"), 5),
            is_in_doubt: false,
        }));
        assert_eq!(largest.map(|answer| answer.body), Ok("12345".into()));
        let too_large = answer(Bytes::from_static(b"123456"), 5);
        assert!(too_large.len() < 5);
        let told = unanswered(too_large, false);
        assert_eq!(told, (UnansweredReason::AnswerTooLarge, true));
        assert_eq!(Services::new(1_000).answer_bytes_max, 936);
        assert_eq!(Services::new(64 << 20).answer_bytes_max, 16 << 20);
    }
}
