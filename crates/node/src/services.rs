//! Calls of what lives beside the store, such as the entity runtime, to the node that owns a stream.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use gesta_core::StreamId;
use gesta_core::peers::{PeerAnswer, PeerCall, PeerService, Peers, Unanswered, UnansweredReason};
use gesta_link::{Call, ForwardError, Reply, ReturnReason};
use prost::Message;
use tokio::time::Instant;

use crate::Node;
use crate::calls::SERVICE;

/// The services of this node, by name.
#[derive(Default)]
pub(crate) struct Services(RwLock<HashMap<String, Arc<dyn PeerService>>>);

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
    /// `None`: the node does not have the service.
    #[prost(bytes = "bytes", optional, tag = "1")]
    body: Option<Bytes>,
}

impl Services {
    fn register(&self, service: &str, handler: Arc<dyn PeerService>) {
        let mut services = self.0.write().unwrap_or_else(PoisonError::into_inner);
        services.insert(service.to_owned(), handler);
    }

    /// Hands a call to its service. A call that cannot be read, or whose service is not here, is answered so.
    pub(crate) fn take(&self, call: Call) -> BoxFuture<'static, Bytes> {
        let (remaining, is_in_doubt) = (call.remaining, call.is_in_doubt);
        let begun = ServiceCall::decode(call.body).ok().and_then(|call| {
            let stream = StreamId::new(&*call.stream).ok()?;
            let services = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let handler = Arc::clone(services.get(&call.service)?);
            drop(services);
            Some(handler.call(PeerCall {
                stream,
                body: call.body,
                remaining,
                is_in_doubt,
            }))
        });
        let answer = |body| Bytes::from(ServiceAnswer { body }.encode_to_vec());
        match begun {
            Some(begun) => begun.map(move |body| answer(Some(body))).boxed(),
            None => ready(answer(None)).boxed(),
        }
    }
}

impl Peers for Node {
    fn is_here(&self, stream: &StreamId) -> bool {
        self.is_mine(self.store.log_of(stream))
    }

    fn forward(
        &self,
        service: &str,
        stream: &StreamId,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'static, Result<PeerAnswer, Unanswered>> {
        let call = ServiceCall {
            service: service.to_owned(),
            stream: stream.as_str().to_owned(),
            body,
        };
        let log = self.store.log_of(stream);
        let body = call.encode_to_vec().into();
        let sent = self
            .forwarder
            .call(log, SERVICE, body, Instant::now() + within);
        let counts = Arc::clone(&self.counts);
        sent.inspect(move |outcome| counts.forwarded(outcome))
            .map(read)
            .boxed()
    }

    fn register(&self, service: &str, handler: Arc<dyn PeerService>) {
        self.services.register(service, handler);
    }
}

fn read(answer: Result<Reply, ForwardError>) -> Result<PeerAnswer, Unanswered> {
    let unanswered = |reason, was_written| {
        Err(Unanswered {
            reason,
            was_written,
        })
    };
    match answer {
        Ok(Reply { body, is_in_doubt }) => {
            let answer = ServiceAnswer::decode(body).ok();
            match answer.and_then(|answer| answer.body) {
                Some(body) => Ok(PeerAnswer { body, is_in_doubt }),
                None => unanswered(UnansweredReason::NotServed, is_in_doubt),
            }
        }
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
