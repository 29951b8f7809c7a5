//! What can go wrong with a call, a question or a start.

/// Result of a forwarded call.
pub type Result<T> = std::result::Result<T, ForwardError>;

/// Why a forwarded call has no reply of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// The call comes back, and the caller decides what becomes of it. The calls of one log come back in the order of
    /// their invocation.
    #[error("the call came back: {reason}, was written: {was_written}")]
    Returned {
        /// Why.
        reason: ReturnReason,
        /// True if an owner may have done the call, or may still do it. False if no owner has done or will do it.
        was_written: bool,
    },
    /// Too many calls or bytes wait for owners, of this log or of all logs together. Nothing was sent.
    #[error("too many calls wait for the owners of logs")]
    Overloaded,
    /// The body is larger than links carry. Nothing was sent.
    #[error("the body is too large for a link")]
    TooLarge,
}

/// Why a call came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReturnReason {
    /// This node owns the log: do the call here.
    #[error("this node owns the log")]
    Local,
    /// The owner cannot be reached from this node.
    #[error("the owner is unreachable")]
    Unreachable,
    /// The owner has not been heard for a moment. Only calls with the patience for that come back so.
    #[error("the owner is silent")]
    Silent,
    /// The log has had no owner for a while.
    #[error("the log has no owner")]
    NoOwner,
    /// The deadline is over.
    #[error("the deadline is over")]
    DeadlineOver,
    /// The forwarder has been shut down.
    #[error("the forwarder is closed")]
    Closed,
}

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// There is no link to the node. It has not been asked.
    #[error("the node is unreachable")]
    Unreachable,
    /// The link broke, or the deadline was over, before the answer came. The node may have done what was asked.
    #[error("the answer did not come")]
    Unknown,
}

/// Why a link server or a forwarder does not start.
#[derive(Debug, thiserror::Error)]
pub enum LinkStartError {
    /// The address cannot be listened on.
    #[error("cannot listen for links on {address}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// A value of the configuration is out of range.
    #[error("links: {0}")]
    Config(String),
}
