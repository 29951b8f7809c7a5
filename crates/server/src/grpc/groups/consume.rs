//! `Read` of a group: a consumer, its deliveries, and its answers for them, on one call.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, stream};
use gesta_core::EventId;
use gesta_groups::{
    Action, Consumer, ConsumerId, Delivery, Error, GroupId, Identity, JoinGroup, Which,
};
use gesta_grpc::ids::{self, UuidForm};
use gesta_grpc::messages::groups::read_req::options::uuid_option::Content as Form;
use gesta_grpc::messages::groups::read_req::{self, Content, nack};
use gesta_grpc::messages::groups::read_resp::{Content as Answer, SubscriptionConfirmation};
use gesta_grpc::messages::groups::{ReadReq, ReadResp};
use gesta_grpc::messages::shared::Uuid as Id;
use gesta_grpc::{Positions, Refusal, frame};
use tokio::sync::{Mutex, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::call::{GrpcCall, Requests, in_read_time};
use super::super::links;
use super::super::reply::{self, Reply};
use super::super::{Result, refusal_of};
use super::refused;
use super::requests::{asks, count};
use crate::call::deliveries::Deliveries;
use crate::http::groups::NAME_CHARS_MAX;
use crate::shared::body::Reservation;
use crate::state::State;

/// Number of bytes after which deliveries that wait are sent without looking for more.
const WRITE_BYTES: usize = 64 * 1_024;

/// How long a group waits at least for an answer of these clients. They hold answers back, up to a fifth of a second,
/// to send many at once, and expect that times are looked at once a second.
const PATIENCE: Duration = Duration::from_secs(1);

/// The deliveries of a consumer.
struct Consuming {
    state: Arc<State>,
    /// What the caller may see of the group.
    deliveries: Deliveries,
    /// Ends with an error when the caller may not read any more.
    forbidden: BoxFuture<'static, gesta_core::Error>,
    /// The consumer, shared with the task that takes the client's answers. It leaves its group when both have ended.
    consumer: Arc<Mutex<Consumer>>,
    group: GroupId,
    /// Tells how the client's answers ended.
    answered: oneshot::Receiver<Result<()>>,
    form: UuidForm,
    positions: Positions,
    out: BytesMut,
    /// Refusal with which the deliveries end once the bytes in `out` are handed out.
    ending: Option<Refusal>,
    held: Reservation,
    /// True if the client has said that it sends no more answers.
    closed: bool,
    _ended: DropGuard,
}

/// The answers of a client for what was delivered to it.
///
/// A task of its own takes them. A client that leaves cancels its call. Then the answer to the call is dropped, but not
/// what the client has sent before: an acknowledgement that has arrived counts, and the consumer leaves after it.
struct Answers {
    state: Arc<State>,
    requests: Requests,
    deliveries: Deliveries,
    group: GroupId,
    id: ConsumerId,
    /// Keeps the consumer in its group.
    _consumer: Arc<Mutex<Consumer>>,
}

/// Carries out `Read`.
pub(crate) async fn consume(mut call: GrpcCall) -> Result<Reply> {
    let state = call.state.clone();
    let options = options(&mut call).await?;
    let form = form(&options)?;
    let buffer = count("buffer_size", options.buffer_size)?;
    let asks = asks!(
        options.stream_option,
        read_req::options::StreamOption,
        StreamIdentifier
    )?;
    let group = asks.group(&options.group_name)?;
    let following = crate::http::groups::following(group.source());
    let forbidden = call.admitted.until_forbidden(following).await?;
    let ticket = call.enter_subscriptions()?;
    // From here on the call is one that may last for ever.
    call.requests
        .count_as_subscription(call.admitted.reservation_of_subscriptions(&state))?;
    let positions = Positions::from(call.admitted.store.incarnation().await?);
    let identity = Identity {
        // It is kept as long as the consumer stays, and shown.
        name: call
            .connection_name()
            .chars()
            .take(NAME_CHARS_MAX)
            .collect(),
        address: call.from().to_string(),
        user: call.admitted.user(&state),
    };
    let info = state
        .groups
        .info(&group)
        .await
        .map_err(|error| refused(&state, error))?;
    let consuming = crate::http::groups::following(group.source());
    let line = call.audit(consuming, format!("{group}, join"));
    let joined = state
        .groups
        .join(
            &group,
            JoinGroup {
                buffer,
                identity,
                patience: PATIENCE,
            },
        )
        .await;
    let joined = joined.map_err(|error| refused(&state, error));
    line.ended(&joined.as_ref().map_err(|refusal| &refusal.message));
    let consumer = joined?;
    let id = consumer.id();
    let mut out = BytesMut::new();
    confirm(&mut out, &consumer);
    let consumer = Arc::new(Mutex::new(consumer));
    let (tell, answered) = oneshot::channel();
    let ended = CancellationToken::new();
    let deliveries = Deliveries::new(&state, &call.admitted, &info);
    let answers = Answers {
        state: state.clone(),
        requests: call.requests,
        deliveries: deliveries.clone(),
        group: group.clone(),
        id,
        _consumer: Arc::clone(&consumer),
    };
    tokio::spawn(answers.take_all(ended.clone(), tell));
    let consuming = Consuming {
        held: call.admitted.reservation_of_subscriptions(&state),
        form,
        positions,
        deliveries,
        forbidden,
        state,
        consumer,
        group,
        answered,
        out,
        ending: None,
        closed: false,
        _ended: ended.drop_guard(),
    };
    Ok(Reply::Endless(reply::made(consuming.parts()), Some(ticket)))
}

/// Reads the first message of the call.
async fn options(call: &mut GrpcCall) -> Result<read_req::Options> {
    let state = call.state.clone();
    match in_read_time(&state, call.next::<ReadReq>()).await? {
        Some(ReadReq {
            content: Some(Content::Options(options)),
        }) => Ok(options),
        _ => Err(Refusal::invalid("the first message must be the options")),
    }
}

impl Answers {
    /// Takes the answers until the client sends no more, or until the deliveries have ended and no answer is left.
    async fn take_all(mut self, ended: CancellationToken, tell: oneshot::Sender<Result<()>>) {
        let outcome = loop {
            tokio::select! {
                biased;
                request = self.requests.next::<ReadReq>() => match request {
                    Ok(Some(request)) => {
                        if let Err(refusal) = self.take(request).await {
                            break Err(refusal);
                        }
                    }
                    Ok(None) => break Ok(()),
                    Err(refusal) => break Err(refusal),
                },
                () = ended.cancelled() => return,
            }
        };
        // Nobody hears of it if the deliveries have ended.
        let _ = tell.send(outcome);
        // What was delivered may still be answered for until then.
        ended.cancelled().await;
    }

    /// Takes an answer. Events that the consumer does not hold any more are passed over.
    async fn take(&mut self, request: ReadReq) -> Result<()> {
        let groups = &self.state.groups;
        match request.content {
            Some(Content::Ack(ack)) => {
                let ids = which(&ack.ids)?;
                let acked = groups.ack(&self.group, self.id, ids).await;
                self.heard(acked)?;
            }
            Some(Content::Nack(nack)) => {
                let ids = which(&nack.ids)?;
                let action = action(nack.action)?;
                let nacked = groups.nack(&self.group, self.id, ids, action, &nack.reason);
                self.heard(nacked.await)?;
            }
            Some(Content::Options(_)) => {
                return Err(Refusal::invalid("the options must come once"));
            }
            None => return Err(Refusal::invalid("a message must have content")),
        }
        self.requests.hold(0)
    }

    /// Takes the outcome of an answer. That the consumer has left its group is no error here: the deliveries tell it.
    fn heard(&self, answered: gesta_groups::Result<usize>) -> Result<()> {
        match answered {
            Ok(_) | Err(Error::NoConsumer { .. }) => Ok(()),
            Err(error) => Err(refused(&self.state, self.deliveries.ended(error))),
        }
    }
}

fn form(options: &read_req::Options) -> Result<UuidForm> {
    match options.uuid_option.and_then(|option| option.content) {
        Some(Form::Structured(_)) => Ok(UuidForm::Structured),
        Some(Form::String(_)) => Ok(UuidForm::Text),
        None => Err(Refusal::invalid("uuid_option must be given")),
    }
}

fn confirm(out: &mut BytesMut, consumer: &Consumer) {
    let message = ReadResp {
        content: Some(Answer::SubscriptionConfirmation(SubscriptionConfirmation {
            // One client checks that it is this.
            subscription_id: consumer.group().to_string(),
        })),
    };
    frame::write(out, &message);
}

impl Consuming {
    /// Returns all deliveries, until the client closes or a refusal ends them.
    fn parts(self) -> impl Stream<Item = Result<Bytes>> + Send + 'static {
        stream::unfold(Some(self), |consuming| async {
            let mut consuming = consuming?;
            match consuming.next().await {
                Ok(Some(part)) => Some((Ok(part), Some(consuming))),
                Ok(None) => None,
                Err(refusal) => Some((Err(refusal), None)),
            }
        })
    }

    /// Returns the next deliveries; `None` once the client has closed.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        // The part before has left.
        self.held.shrink_to(0);
        while self.out.is_empty() && self.ending.is_none() && !self.closed {
            if let Err(refusal) = self.step().await {
                self.ending = Some(refusal);
            }
        }
        self.gather().await;
        if self.out.is_empty() {
            return match self.ending.take() {
                Some(refusal) => Err(refusal),
                None => Ok(None),
            };
        }
        let part = self.out.split().freeze();
        let held = self.held.set(part.len());
        held.map_err(|problem| refusal_of(&problem))?;
        Ok(Some(part))
    }

    /// Waits for a delivery, or for the end of the client's answers.
    async fn step(&mut self) -> Result<()> {
        let consumer = Arc::clone(&self.consumer);
        let mut consumer = consumer.lock().await;
        let wait = self.deliveries.wait();
        tokio::select! {
            biased;
            error = &mut self.forbidden => Err(error.into()),
            answered = &mut self.answered => {
                self.closed = true;
                answered.unwrap_or(Ok(()))
            }
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => Ok(()),
            delivery = consumer.next(), if wait.is_none() => {
                let delivery = delivery.map_err(|error| self.ended(error))?;
                self.deliver(&consumer, &delivery).await
            }
        }
    }

    /// Takes the deliveries that are ready.
    async fn gather(&mut self) {
        let consumer = Arc::clone(&self.consumer);
        let mut consumer = consumer.lock().await;
        let has_room = |of: &Self| of.out.len() < WRITE_BYTES && of.deliveries.wait().is_none();
        while self.ending.is_none() && !self.closed && has_room(self) {
            let Some(delivery) = consumer.next().now_or_never() else {
                return;
            };
            let delivered = match delivery {
                Ok(delivery) => self.deliver(&consumer, &delivery).await,
                Err(error) => Err(self.ended(error)),
            };
            self.ending = delivered.err();
        }
    }

    fn ended(&self, error: Error) -> Refusal {
        refused(&self.state, self.deliveries.ended(error))
    }

    async fn deliver(&mut self, consumer: &Consumer, delivery: &Delivery) -> Result<()> {
        if let Some(shown) = self.deliveries.shown(delivery).await? {
            links::write_delivery(&mut self.out, &shown, self.form, self.positions);
            self.state.metrics.subscription_events(1);
            return Ok(());
        }
        let passed = self
            .deliveries
            .pass_over(&self.group, consumer, delivery.number);
        // It was made such that the caller may be told it.
        passed.await.map_err(|error| refused(&self.state, error))
    }
}

fn which(ids: &[Id]) -> Result<Vec<Which>> {
    let ids = ids.iter().map(|id| {
        let (id, _) = ids::read_uuid("the id of an event", Some(id))?;
        Ok(Which::Event(EventId(id)))
    });
    ids.collect()
}

fn action(number: i32) -> Result<Action> {
    match nack::Action::try_from(number) {
        Ok(nack::Action::Unknown) => Ok(Action::Unknown),
        Ok(nack::Action::Park) => Ok(Action::Park),
        Ok(nack::Action::Retry) => Ok(Action::Retry),
        Ok(nack::Action::Skip) => Ok(Action::Skip),
        Ok(nack::Action::Stop) => Ok(Action::Stop),
        Err(_) => Err(Refusal::invalid(format!(
            "action must be 0 to 4, found {number}"
        ))),
    }
}
