//! Messages of other processes on their way to the listeners of this one: from the driver of a connection to the task
//! that passes them on ([`Inbox`]), and from there to the listeners ([`Received`]).
//!
//! Invariant: on either way a message may be lost if there are too many, but then whoever waits for them is told so.
//! Why a channel for each topic: a message wakes all listeners of its channel, and a store has a listener for each log.
//! Messages about appends come with almost every commit of another process; on one channel, a commit on one node woke
//! the pipelines of all logs on all others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{BoxStream, StreamExt};
use gesta_core::LogId;
use gesta_core::backend::{Signal, Topic};
use tokio::sync::broadcast::{Receiver, Sender, error::RecvError};
use tokio::sync::mpsc;

/// The most messages that are kept for a slow listener.
const QUEUE_MAX: usize = 1_024;

/// Makes the way of messages from a driver, which must not wait, to the task that takes them. At most so many wait.
pub(crate) fn inbox<T>(messages_max: usize) -> (Inlet<T>, Inbox<T>) {
    let (sender, receiver) = mpsc::channel(messages_max);
    let has_lost = Arc::new(AtomicBool::new(false));
    let inlet = Inlet {
        sender,
        has_lost: Arc::clone(&has_lost),
    };
    (inlet, Inbox { receiver, has_lost })
}

/// Where the driver puts messages.
#[derive(Debug)]
pub(crate) struct Inlet<T> {
    sender: mpsc::Sender<T>,
    has_lost: Arc<AtomicBool>,
}

impl<T> Inlet<T> {
    /// Puts a message in. If there is no room for it, it is lost.
    pub(crate) fn put(&self, message: T) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(message) {
            self.has_lost.store(true, Ordering::Release);
        }
    }
}

/// The messages that a driver has put in.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    receiver: mpsc::Receiver<T>,
    has_lost: Arc<AtomicBool>,
}

/// What comes out of an [`Inbox`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival<T> {
    Message(T),
    /// Messages were lost, because too many waited.
    Lost,
}

impl<T> Inbox<T> {
    /// Waits for what comes next; `None` if the driver has ended.
    pub(crate) async fn next(&mut self) -> Option<Arrival<T>> {
        // When a message is lost, others wait, so that this is called once more at least.
        if self.has_lost.swap(false, Ordering::Acquire) {
            return Some(Arrival::Lost);
        }
        self.receiver.recv().await.map(Arrival::Message)
    }
}

/// The listeners of this process.
#[derive(Debug)]
pub(crate) struct Received {
    appends: Sender<Signal>,
    requests: Sender<Signal>,
}

impl Default for Received {
    fn default() -> Self {
        let (appends, requests) = (Sender::new(QUEUE_MAX), Sender::new(QUEUE_MAX));
        Self { appends, requests }
    }
}

impl Received {
    /// Passes a message on to those whom it concerns.
    pub(crate) fn publish(&self, signal: Signal) {
        // What is for all pipelines is for that of any log.
        let log = match signal {
            Signal::GiveWay { log, .. } => log,
            _ => LogId(0),
        };
        // Sending fails only if nobody listens.
        if Topic::Appends.includes(signal) {
            let _ = self.appends.send(signal);
        }
        if Topic::Requests(log).includes(signal) {
            let _ = self.requests.send(signal);
        }
    }

    /// Returns the messages of a topic from now on. A listener that is too slow gets [`Signal::Interrupted`].
    pub(crate) fn subscribe(&self, topic: Topic) -> BoxStream<'static, Signal> {
        let receiver = match topic {
            Topic::Appends => self.appends.subscribe(),
            Topic::Requests(_) => self.requests.subscribe(),
        };
        futures::stream::unfold(receiver, move |mut receiver| async move {
            Some((next(&mut receiver, topic).await, receiver))
        })
        .boxed()
    }
}

async fn next(receiver: &mut Receiver<Signal>, topic: Topic) -> Signal {
    loop {
        match receiver.recv().await {
            Ok(signal) if topic.includes(signal) => return signal,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return Signal::Interrupted,
            // The channel is closed, so no message comes any more.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

    use gesta_core::Position;
    use uuid::Uuid;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A listener that waits, and how often it was woken.
    struct Listener {
        stream: BoxStream<'static, Signal>,
        wakes: Arc<Wakes>,
    }

    impl Listener {
        fn new(received: &Received, topic: Topic) -> Self {
            let (stream, wakes) = (received.subscribe(topic), Arc::default());
            let mut listener = Self { stream, wakes };
            assert_eq!(listener.poll(), None);
            listener
        }

        fn poll(&mut self) -> Option<Signal> {
            let waker = Waker::from(Arc::clone(&self.wakes));
            match self
                .stream
                .poll_next_unpin(&mut Context::from_waker(&waker))
            {
                Poll::Ready(signal) => signal,
                Poll::Pending => None,
            }
        }

        fn wakes(&self) -> usize {
            self.wakes.0.load(Ordering::SeqCst)
        }
    }

    fn give_way(log: u16) -> Signal {
        Signal::GiveWay {
            log: LogId(log),
            by: Uuid::from_u128(1),
            needed: Duration::ZERO,
            waited: Duration::ZERO,
        }
    }

    /// What happened: each message about an append woke the pipelines of all logs, 16 turns for each commit of another
    /// node.
    #[test]
    fn a_message_about_an_append_wakes_no_pipeline() {
        let received = Received::default();
        let mut hub = Listener::new(&received, Topic::Appends);
        let mut pipelines = [0, 1].map(|log| Listener::new(&received, Topic::Requests(LogId(log))));
        let appended = Signal::Appended {
            log: LogId(0),
            position: Position(9),
        };
        received.publish(appended);
        assert_eq!(hub.poll(), Some(appended));
        assert_eq!(pipelines.each_ref().map(Listener::wakes), [0, 0]);
        received.publish(give_way(1));
        assert_eq!(
            pipelines.each_mut().map(Listener::poll),
            [None, Some(give_way(1))]
        );
        assert_eq!(hub.poll(), None);
        for signal in [Signal::Interrupted, Signal::HistoryChanged] {
            received.publish(signal);
            assert_eq!(pipelines.each_mut().map(Listener::poll), [Some(signal); 2]);
            assert_eq!(hub.poll(), Some(signal));
        }
    }

    /// What happened: a message for which the task that passes them on had no room was lost, and nobody was told.
    #[tokio::test]
    async fn messages_that_do_not_fit_are_told_as_lost() {
        let (inlet, mut inbox) = inbox(2);
        (1..=4).for_each(|message| inlet.put(message));
        assert_eq!(inbox.next().await, Some(Arrival::Lost));
        assert_eq!(inbox.next().await, Some(Arrival::Message(1)));
        inlet.put(5);
        inlet.put(6);
        let all = [Arrival::Lost, Arrival::Message(2), Arrival::Message(5)];
        for expected in all {
            assert_eq!(inbox.next().await, Some(expected));
        }
        drop(inlet);
        assert_eq!(inbox.next().await, None);
    }

    #[test]
    fn a_listener_that_is_too_slow_is_told() {
        let received = Received::default();
        let mut slow = Listener::new(&received, Topic::Requests(LogId(0)));
        (0..=QUEUE_MAX).for_each(|_| received.publish(give_way(0)));
        assert_eq!(slow.poll(), Some(Signal::Interrupted));
        assert_eq!(slow.poll(), Some(give_way(0)));
    }
}
