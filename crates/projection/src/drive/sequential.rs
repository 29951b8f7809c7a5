//! Applies events one batch after the other, to find the one that cannot be applied: nothing is read ahead or folded
//! ahead.

use crate::drive::ahead::fold;
use crate::drive::poison_search::{Failed, PoisonSearch};
use crate::drive::run::{Run, Step, Stop};
use crate::fault::Fault;
use crate::reader::Reader;
use crate::target::Target;
use crate::work::Work;

impl<T: Target> Run<'_, T> {
    /// Applies events in this way until none of those that failed is left and the target comes to the end of batches of
    /// any size, or something else is to be done.
    pub(super) async fn sequentially<W: Work<T>>(
        &mut self,
        mut work: W,
        search: &mut PoisonSearch,
    ) -> Stop {
        let writer = work.writer();
        let config = &self.context.config;
        let mut reader = Reader::new(
            self.context.store.clone(),
            self.context.filter.clone(),
            self.reached.clone(),
            config.live_events_max,
        );
        let mut rest = None;
        while search.is_on() {
            let mut batch = match rest.take() {
                Some(batch) => batch,
                None => {
                    let limit = search.limit(config.batch_events_max);
                    let read = tokio::select! {
                        stop = self.interrupted() => return stop,
                        read = reader.next(limit) => read,
                    };
                    match read {
                        Ok(batch) => batch,
                        Err(error) => return Stop::End(self.of_store(&error).await),
                    }
                }
            };
            if batch.is_empty() {
                self.reached = batch.to.clone();
                if batch.caught_up {
                    search.over();
                }
                continue;
            }
            rest = search.cut(&mut batch);
            let (events, first) = (batch.len(), batch.first());
            if let Some(failed) = search.fatal_in_order(&batch) {
                return self.narrow_down(failed, search).await;
            }
            if search.announces
                && let Some(first) = first
                && let Err(end) = self.announce(search.attempt(events, first, false)).await
            {
                return Stop::End(end);
            }
            let (same, folded) = fold::<T, W>(work, batch, search.verdicts.clone()).await;
            let failed = match folded {
                Ok(folded) => match self.write(writer.clone(), folded).await {
                    Step::Done => None,
                    Step::Failed(event, error) => Some((event, error)),
                    Step::Unwritten(end) => {
                        search.unwritten(events);
                        return Stop::End(end);
                    }
                    Step::End(end) => return Stop::End(end),
                },
                Err(Fault::Author(event, error)) => Some((event, error)),
                Err(fault) => {
                    if matches!(fault, Fault::Target(_)) {
                        search.unwritten(events);
                    }
                    return Stop::End(self.of_fault(fault).await);
                }
            };
            if let Some((event, error)) = failed {
                let event = event.or_else(|| first.filter(|_| events == 1));
                let failed = Failed {
                    events,
                    event,
                    error,
                };
                return self.narrow_down(failed, search).await;
            }
            search.passed(events);
            match same {
                Some(same) => work = same,
                None => return Stop::Failed,
            }
        }
        Stop::Failed
    }
}
