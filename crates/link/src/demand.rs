//! Whether calls wait for the answers of a node. If so, the node is pinged more often.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The count of those who wait for the answers of one node.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    holders: AtomicUsize,
    came: Notify,
}

/// A mark that somebody waits, until the mark is dropped.
#[derive(Debug)]
pub(crate) struct Demanded(Arc<Demand>);

impl Demand {
    /// Notes that somebody waits from now on.
    pub(crate) fn hold(self: &Arc<Self>) -> Demanded {
        if self.holders.fetch_add(1, Ordering::AcqRel) == 0 {
            self.came.notify_one();
        }
        Demanded(Arc::clone(self))
    }

    /// Waits until somebody waits for answers. This may be called by one caller at a time. This call is cancel safe.
    pub(crate) async fn is_held(&self) {
        // A notice of one who waits no more is used up by a turn of the loop.
        while self.holders.load(Ordering::Acquire) == 0 {
            self.came.notified().await;
        }
    }
}

impl Drop for Demanded {
    fn drop(&mut self) {
        self.0.holders.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn demand_lasts_as_long_as_somebody_waits() {
        let demand = Arc::<Demand>::default();
        assert!(demand.is_held().now_or_never().is_none());
        let (first, second) = (demand.hold(), demand.hold());
        drop(first);
        assert!(demand.is_held().now_or_never().is_some());
        drop(second);
        assert!(demand.is_held().now_or_never().is_none());
    }
}
