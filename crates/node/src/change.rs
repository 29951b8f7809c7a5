//! A change that a caller asks of this node: it is done here if this node owns the log, and forwarded otherwise.

use gesta_core::{Append, Attempt, KnownEnd, LogId, Result};
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
            return begin(&self.store, Attempt::Only, Change::Append(request)).await;
        }
        self.forward(log, Change::append(request)).await
    }

    /// Makes a change that has its id.
    pub(crate) async fn change_anywhere(&self, log: LogId, change: Change) -> Result<Changed> {
        let is_mine = self.is_mine(log);
        self.counts.change(is_mine);
        match is_mine {
            true => begin(&self.store, Attempt::Only, change).await,
            false => self.forward(log, change).await,
        }
    }

    async fn forward(&self, log: LogId, change: Change) -> Result<Changed> {
        change.check()?;
        let deadline = Deadline::after(self.give_up_after);
        let mut known = self.store.known_end_of(log);
        let here = loop {
            match self.send(log, &change, known, &deadline).await {
                Next::Answer(answer) => return answer.inspect(|changed| self.prompt(changed)),
                Next::Here(here) => break here,
                Next::Afresh(end) => known = end,
            }
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
        let done = begin(&self.store, here.attempt(known), change);
        match tokio::time::timeout_at(deadline.instant(), done).await {
            Ok(done) => here.answer(done),
            Err(_) => Err(edge::late(true)),
        }
    }

    /// Sends a change to the owner of its log. All attempts come after `known`.
    async fn send(
        &self,
        log: LogId,
        change: &Change,
        known: KnownEnd,
        deadline: &Deadline,
    ) -> Next {
        let (kind, body) = (change.kind(), change.encode(known));
        let until = deadline.instant();
        let call = self
            .forwarder
            .call_with(log, kind, body, until, Patience::UntilSilent);
        let begun = Instant::now();
        let outcome = call.await;
        self.counts.forwarded(begun, &outcome);
        edge::next(known, outcome)
    }

    /// Tells the store of this node that the owner has stored something that was asked of this node. So subscribers of
    /// this node get it at once, and not only when the owner's message has come by way of the database. The position is
    /// only a reason to read the log.
    fn prompt(&self, Changed(stored): &Changed) {
        self.store.heard(stored.log, stored.position);
        let end = KnownEnd {
            incarnation: stored.checkpoint.incarnation,
            position: stored.position,
        };
        self.store.hear_of_end(stored.log, end);
    }
}
