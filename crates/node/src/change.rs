//! A change that a caller asks of this node: it is done here if this node owns the log, and forwarded otherwise.

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
    /// Appends to a log. If this node owns the log, it appends itself, and events without ids get none here.
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
    /// Tells the store of this node that the owner has stored something that was asked of this node. So subscribers of
    /// this node get it at once, and not only when the owner's message has come by way of the database. The position is
    /// only a reason to read the log.
    fn prompt(&self, Changed(stored): &Changed) {
        self.store.heard(stored.log, stored.position);
    }
}
