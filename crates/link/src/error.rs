//! What can go wrong with a call, a question or a start.

/// The result of a forwarded call.
pub type Result<T> = std::result::Result<T, ForwardError>;

/// The reason why a forwarded call has no reply of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// The call comes back, and the caller decides what becomes of it. The calls of one log come back in the order of
    /// their invocation.
    #[error("the call came back: {reason}, was written: {was_written}")]
    Returned {
        /// The reason why the call came back.
        reason: ReturnReason,
        /// Whether an owner may have done the call, or may do it later. If false, no owner has done it or will do it.
        was_written: bool,
    },
    /// Too many calls or bytes wait for owners, of this log or of all logs together. Nothing was sent.
    #[error("too many calls wait for the owners of logs")]
    Overloaded,
    /// The body is larger than links carry. Nothing was sent.
    #[error("the body is too large for a link")]
    TooLarge,
}

/// The reason why a call came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReturnReason {
    /// This node owns the log: the call must be done here.
    #[error("this node owns the log")]
    Local,
    /// The owner cannot be reached from this node.
    #[error("the owner is unreachable")]
    Unreachable,
    /// The owner has not been heard for a moment. Only calls with
    /// [`Patience::UntilSilent`](crate::Patience::UntilSilent) come back for this reason.
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

/// The reason why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// There is no link to the node. The node has not been asked.
    #[error("the node is unreachable")]
    Unreachable,
    /// The link broke, or the deadline was over, before the answer came. The node may have done what was asked.
    #[error("the answer did not come")]
    Unknown,
}

/// The reason why a link server or a forwarder does not start.
#[derive(Debug, thiserror::Error)]
pub enum LinkStartError {
    /// It is not possible to listen on the address.
    #[error("cannot listen for links on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A value of the configuration is out of range.
    #[error("links: {0}")]
    Config(String),
}
