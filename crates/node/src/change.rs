//! A change that a caller asks this node for: done here if this node owns the log, else forwarded.

use gesta_core::{Append, LogId, Result};
use gesta_link::Patience;
use tokio::time::Instant;

use crate::Node;
use crate::answers::Changed;
use crate::calls::Change;
use crate::deadline::Deadline;
use crate::edge::{self, Next};
use crate::serve::begin;

impl Node {
    /// Appends: here, without ids for events that have none, if the log is this node's.
    pub(crate) async fn append_anywhere(&self, request: Append) -> Result<Changed> {
        let log = self.store.log_of_append(&request)?;
        let is_mine = self.is_mine(log);
        self.counts.change(is_mine);
        if is_mine {
            return begin(&self.store, Change::Append(request)).await;
        }
        self.forward(log, Change::append(request)).await
    }

    /// Makes a change that has its id.
    pub(crate) async fn change_anywhere(&self, log: LogId, change: Change) -> Result<Changed> {
        let is_mine = self.is_mine(log);
        self.counts.change(is_mine);
        match is_mine {
            true => begin(&self.store, change).await,
            false => self.forward(log, change).await,
        }
    }

    async fn forward(&self, log: LogId, change: Change) -> Result<Changed> {
        change.check()?;
        let deadline = Deadline::after(self.give_up_after);
        let (kind, body) = (change.kind(), change.encode());
        let until = deadline.instant();
        let call = self
            .forwarder
            .call_with(log, kind, body, until, Patience::UntilSilent);
        let begun = Instant::now();
        let outcome = call.await;
        self.counts.forwarded(begun, &outcome);
        let here = match edge::next(outcome) {
            Next::Answer(answer) => return answer.inspect(|changed| self.prompt(changed)),
            Next::Here(here) => here,
        };
        if here.is_paced {
            self.counts.direct();
            if let Some(pace) = self.direct.get(usize::from(log.0)) {
                pace.wait().await;
            }
        }
        if deadline.is_over() {
            return Err(here.late());
        }
        // The pipeline may still do later what it has begun.
        let done = begin(&self.store, change);
        match tokio::time::timeout_at(deadline.instant(), done).await {
            Ok(done) => here.answer(done),
            Err(_) => Err(edge::late(true)),
        }
    }
    /// The owner has stored something that this node was asked for: subscribers here get it at once, and not when the
    /// owner's message has come by way of the database. The position is only a reason to read the log.
    fn prompt(&self, Changed(stored): &Changed) {
        self.store.heard(stored.log, stored.position);
    }
}
