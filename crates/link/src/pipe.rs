//! One HTTP/2 stream of a link, as frames in both directions.
//!
//! Invariants: bytes that come are taken at once and their window is given back, so HTTP/2 windows never fill and no
//! stream delays another; frames that go wait in a bounded outbox, whose owner asks [`Pipe::is_full`] before it pushes
//! more.
//!
//! Writes are combined: frames gather in the outbox while a task handles what has come, and leave together.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use gesta_core::Moment;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};

use crate::clock::Clock;
use crate::frame::{Frame, Frames, Outbox};
use crate::sending::Violation;

/// The number of bytes from which on an outbox is full.
const OUTBOX_BYTES_MAX: usize = 256 << 10;
/// The greatest number of bytes that are given to HTTP/2 at once.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// The window of one stream, in bytes.
pub(crate) const STREAM_WINDOW: u32 = 4 << 20;
/// The window of a connection, in bytes. This window is the largest possible, so that nobody ever waits for it.
pub(crate) const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// What has happened on a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PipeEvent {
    /// Bytes have come: all frames must be taken by [`Pipe::next_frame`].
    Data,
    /// The outbox was full and no longer is.
    Room,
    /// The stream has ended or broken.
    Ended,
}

/// The incoming half of a stream.
enum Incoming {
    /// The other node has not answered the request yet.
    Awaited(ResponseFuture),
    Open(RecvStream),
}

/// One stream.
pub(crate) struct Pipe {
    outgoing: SendStream<Bytes>,
    incoming: Incoming,
    outbox: Outbox,
    frames: Frames,
    is_waiting_for_room: bool,
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipe").finish_non_exhaustive()
    }
}

impl Pipe {
    /// Opens a stream on a link. Frames may be pushed at once.
    pub(crate) fn open(link: &SendRequest<Bytes>, body_bytes_max: u32) -> Result<Self, h2::Error> {
        let mut request = http::Request::new(());
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = http::Uri::from_static("http://gesta/");
        let (response, outgoing) = link.clone().send_request(request, false)?;
        Ok(Self::new(
            outgoing,
            Incoming::Awaited(response),
            body_bytes_max,
        ))
    }

    /// Takes a stream that the other node has opened.
    pub(crate) fn accept(
        request: http::Request<RecvStream>,
        mut respond: h2::server::SendResponse<Bytes>,
        body_bytes_max: u32,
    ) -> Result<Self, h2::Error> {
        let outgoing = respond.send_response(http::Response::new(()), false)?;
        let incoming = Incoming::Open(request.into_body());
        Ok(Self::new(outgoing, incoming, body_bytes_max))
    }

    fn new(outgoing: SendStream<Bytes>, incoming: Incoming, body_bytes_max: u32) -> Self {
        Self {
            outgoing,
            incoming,
            outbox: Outbox::default(),
            frames: Frames::new(body_bytes_max),
            is_waiting_for_room: false,
        }
    }

    pub(crate) fn push(&mut self, frame: Frame) {
        self.outbox.push(frame);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.outbox.bytes() >= OUTBOX_BYTES_MAX
    }

    /// Returns the next frame of the bytes that have come, and the moment at which its first byte had come.
    pub(crate) fn next_frame(&mut self, now: Moment) -> Result<Option<(Frame, Moment)>, Violation> {
        self.frames.next(now)
    }

    /// Writes as much as is possible, and tells what has happened. This call is cancel safe.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<PipeEvent> {
        let Ok(()) = self.write(context) else {
            return Poll::Ready(PipeEvent::Ended);
        };
        self.is_waiting_for_room |= self.is_full();
        if self.is_waiting_for_room && !self.is_full() {
            self.is_waiting_for_room = false;
            return Poll::Ready(PipeEvent::Room);
        }
        self.read(context)
    }

    fn write(&mut self, context: &mut Context<'_>) -> Result<(), h2::Error> {
        self.is_waiting_for_room |= self.is_full();
        while let Some(piece) = self.outbox.next() {
            self.outgoing
                .reserve_capacity(piece.len().min(CHUNK_BYTES_MAX));
            if self.outgoing.capacity() == 0 {
                match self.outgoing.poll_capacity(context) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Some(Ok(_))) => continue,
                    Poll::Ready(Some(Err(error))) => return Err(error),
                    Poll::Ready(None) => return Err(h2::Reason::STREAM_CLOSED.into()),
                }
            }
            let bytes = self.outgoing.capacity().min(piece.len());
            self.outgoing.send_data(piece.split_to(bytes), false)?;
            self.outbox.written(bytes);
        }
        Ok(())
    }

    fn read(&mut self, context: &mut Context<'_>) -> Poll<PipeEvent> {
        loop {
            match &mut self.incoming {
                Incoming::Awaited(response) => match Pin::new(response).poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(response)) => {
                        self.incoming = Incoming::Open(response.into_body());
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(PipeEvent::Ended),
                },
                Incoming::Open(stream) => {
                    let chunk = match stream.poll_data(context) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Some(Ok(chunk))) => chunk,
                        Poll::Ready(_) => return Poll::Ready(PipeEvent::Ended),
                    };
                    let released = stream.flow_control().release_capacity(chunk.len());
                    if released.is_err() {
                        return Poll::Ready(PipeEvent::Ended);
                    }
                    self.frames.feed(Clock::MACHINE.now(), chunk);
                    return Poll::Ready(PipeEvent::Data);
                }
            }
        }
    }

    /// Writes the rest of the outbox and ends this direction.
    pub(crate) async fn finish(mut self) {
        let written = std::future::poll_fn(|context| match self.write(context) {
            Ok(()) if self.outbox.bytes() > 0 => Poll::Pending,
            result => Poll::Ready(result),
        });
        if written.await.is_ok() {
            // The stream may have been reset meanwhile: then nobody waits for its end.
            let _ = self.outgoing.send_data(Bytes::new(), true);
        }
    }
}
