//! Has a server check or scavenge its store, and switch its virtual streams.

use bytes::{Bytes, BytesMut};
use gesta_core::{Error, Result};
use gesta_wire::answer;
use gesta_wire::maintenance::{
    Line, Progress, Scavenged, SwitchVirtualStreams, Verified, VirtualStreams, error_of,
};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use crate::address::Path;
use crate::store::HttpStore;
use crate::transport::{Call, Effect};

/// The longest line of an answer, in bytes: a result with all findings that it lists.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

impl HttpStore {
    /// Has the server read its whole store and check every promise that data can show. `progress` is told about once a
    /// second how far it is.
    ///
    /// # Errors
    /// `Unsupported` if the server does not do that; `Overloaded` while another check or scavenge runs; `Unavailable`
    /// if the server does not answer, or falls silent.
    ///
    /// # Cancel safety
    /// If the future is dropped, the server ends the check.
    pub async fn verify(&self, progress: impl FnMut(Progress)) -> Result<Verified> {
        let path = Path::of("/admin/verify");
        self.lasting(path, progress).await
    }

    /// Has the server count what deletes, tombstones and metadata hide in its store. It tells the same as
    /// [`scavenge`](Self::scavenge), and removes nothing.
    ///
    /// # Errors
    /// Those of [`verify`](Self::verify).
    ///
    /// # Cancel safety
    /// If the future is dropped, the server ends the count.
    pub async fn count_hidden(&self, progress: impl FnMut(Progress)) -> Result<Scavenged> {
        let path = Path::of("/admin/scavenge").with("dry_run", "true");
        self.lasting(path, progress).await
    }

    /// Has the server remove for ever what deletes, tombstones and metadata hide in its store. `progress` is told about
    /// once a second how far it is.
    ///
    /// # Errors
    /// Those of [`verify`](Self::verify). What was removed before an error stays removed; another scavenge goes on.
    ///
    /// # Cancel safety
    /// If the future is dropped, the server ends the scavenge. What was removed stays removed.
    pub async fn scavenge(&self, progress: impl FnMut(Progress)) -> Result<Scavenged> {
        let path = Path::of("/admin/scavenge");
        self.lasting(path, progress).await
    }

    /// Asks whether the store of the server keeps virtual streams, and how far their entries are written.
    ///
    /// # Errors
    /// `Unsupported` if the store can have none; `Unavailable` if the server does not answer.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn virtual_streams(&self) -> Result<VirtualStreams> {
        answer::read(&self.get(Path::of("/admin/virtual-streams")).await?)
    }

    /// Switches the virtual streams of the server's store on or off. Entries of events that are stored already are
    /// written afterwards.
    ///
    /// # Errors
    /// Those of [`virtual_streams`](Self::virtual_streams); `OutcomeUnknown` if no answer came.
    ///
    /// # Cancel safety
    /// If the future is dropped, they may have been switched or not.
    pub async fn switch_virtual_streams(
        &self,
        switch: SwitchVirtualStreams,
    ) -> Result<VirtualStreams> {
        let path = Path::of("/admin/virtual-streams");
        let call = Call::write(Method::PUT, path, answer::write(&switch));
        answer::read(&self.send(call).await?)
    }

    /// Asks for work that lasts, and reads its lines to the last one.
    async fn lasting<T: DeserializeOwned>(
        &self,
        path: Path,
        mut progress: impl FnMut(Progress),
    ) -> Result<T> {
        let call = Call {
            method: Method::POST,
            path,
            body: Bytes::new(),
            // What was removed before an error stays removed, and another scavenge goes on.
            effect: Effect::Reads,
            stream: None,
            is_anonymous: false,
        };
        let mut body = self.open(call).await?.into_body();
        let mut buffer = BytesMut::new();
        loop {
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                match Line::read(&buffer.split_to(end + 1))? {
                    Line::Progress(now) => progress(now),
                    Line::Done(done) => return Ok(done),
                    Line::Problem(problem) => return Err(error_of(*problem)),
                }
            }
            if buffer.len() > LINE_BYTES_MAX {
                let rule = format!("a line of the answer is larger than {LINE_BYTES_MAX} bytes");
                return Err(Error::corrupt(rule));
            }
            let silence_max = self.silence_max();
            match tokio::time::timeout(silence_max, next(&mut body)).await {
                Ok(part) => buffer.extend_from_slice(&part?),
                Err(_) => {
                    let seconds = silence_max.as_secs();
                    let text = format!("the server said nothing for {seconds} s");
                    return Err(Error::unavailable(text));
                }
            }
        }
    }
}

/// Returns the next part of an answer whose last line has not come.
async fn next(body: &mut Incoming) -> Result<Bytes> {
    let broke = || Error::unavailable("the connection broke before the result came");
    loop {
        let frame = body.frame().await.ok_or_else(broke)?;
        let frame = frame.map_err(|error| broke().caused_by(error))?;
        if let Ok(data) = frame.into_data() {
            return Ok(data);
        }
    }
}
