//! The promises that judges know, each with the sentence by which a broken one is told.

/// Which promise is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Accepted reservations of a seat that was held.
    HeldTwice,
    /// Accepted cancellations of a seat that was free.
    CancelledTwice,
    /// Answers that show a state which had passed, or had not come yet.
    Stale,
    /// Answers that came before what they rest on was stored, or asked for.
    Early,
    /// What was handed over later to the same runtime rests on an earlier state.
    Overtaken,
    /// What was last seen is not what was acknowledged.
    Lost,
    /// Too much at once to decide.
    Undecided,
    /// Answers that no request of the run deserves.
    Answer,
    /// Commands without an answer although nothing is in the way of one.
    Unanswered,
    /// What could not be read in the end.
    Unread,
    /// Stored more than once.
    StoredTwice,
    /// Acknowledged, but not stored.
    NotStored,
    /// Stored, though nobody asked for so many.
    Uninvited,
    /// Stored, though it was refused.
    RefusedStored,
    /// Refused, though it had been acknowledged before.
    RefusedAfterAcknowledged,
    /// Stored in part.
    PartlyStored,
    /// Stored elsewhere than was answered.
    WrongPlace,
    /// Answers that say what was never so.
    Untrue,
    /// Two commands were answered by one and the same change.
    SharedChange,
    /// Events that were decided upon a state that never was.
    WrongBasis,
    /// Retries that got another answer than the command that is stored.
    OtherReply,
    /// Commands that got the answer of another one with their key, or retries that were taken for another command.
    WrongKey,
    /// Revisions that are missing, doubled or out of order.
    RevisionGap,
    /// Positions that do not grow.
    PositionOrder,
    /// Positions that are missing although nothing was removed.
    PositionGap,
    /// Times of events that decrease.
    CreatedDecreased,
    /// Events that stand in another stream than the one that they were appended to.
    WrongName,
    /// Events with other contents than were sent.
    Altered,
    /// Events that cannot be understood.
    Unreadable,
    /// Events that are other ones, or are not there, when all is read again.
    ReadOtherwise,
    /// Answers that name a history which never was.
    UnknownHistory,
    /// Outcomes that were unknown although nothing stood in the way of an answer.
    UnknownWithoutNeed,
    /// Tailers that got an event at or before one that they had seen.
    TailerOrder,
    /// Events that appeared at or before what a tailer had passed.
    AppearedBelowPassed,
    /// Events that a tailer got and that are not stored there.
    Vanished,
    /// Tailers that have not all that is stored, or something else.
    TailerDiffers,
    /// Tailers that went on in another history without being told.
    WentOnSilently,
    /// Tailers that were not told that the history is another one.
    NotToldOfLoss,
    /// Events that no consumer of a group has finished, and that are not parked.
    NeverSettled,
    /// Events that were parked more often than they may be.
    ParkedTooOften,
    /// Deliveries of a group that came out of order.
    DeliveryOrder,
    /// Deliveries of what the group must not deliver.
    DeliveredUninvited,
    /// Seats that a timer has given back twice, or that were free.
    GivenBackTwice,
    /// Seats that were given back before their time.
    GivenBackEarly,
    /// Seats that were given back by no timer, or by that of another reservation.
    GivenBackWrongly,
    /// Seats that were given back although they were paid.
    PaidGivenBack,
    /// Seats whose time to pay is over, and that are held all the same.
    NotGivenBack,
    /// Reservations for which no timer was set.
    NotWatched,
    /// Timers whose time is over, and that have neither fired nor were cancelled.
    TimerPending,
    /// Timers that are not those of a reservation.
    FalseTimer,
}

impl Kind {
    /// What is so, of several.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::HeldTwice => "seats were held twice",
            Self::CancelledTwice => "free seats were cancelled",
            Self::Stale => "answers were stale",
            Self::Early => "answers came before what they rest on",
            Self::Overtaken => "answers rest on less than the one before",
            Self::Lost => "seats are not as was acknowledged",
            Self::Undecided => "seats cannot be decided",
            Self::Answer => "answers were wrong",
            Self::Unanswered => "commands stayed without an answer",
            Self::Unread => "shows could not be read at the end",
            Self::StoredTwice => "events are stored twice",
            Self::NotStored => "acknowledged events are not stored",
            Self::Uninvited => "events are stored that nobody asked for",
            Self::RefusedStored => "refused appends are stored",
            Self::RefusedAfterAcknowledged => "appends were refused after they were acknowledged",
            Self::PartlyStored => "appends are stored in part",
            Self::WrongPlace => "appends are stored elsewhere than answered",
            Self::Untrue => "answers were never true",
            Self::SharedChange => "commands were answered by the change of another one",
            Self::WrongBasis => "events were decided upon a state that never was",
            Self::OtherReply => "retries got another answer than the first",
            Self::WrongKey => "keys were taken for those of other commands",
            Self::RevisionGap => "revisions are missing, doubled or out of order",
            Self::PositionOrder => "positions do not grow",
            Self::PositionGap => "positions are missing",
            Self::CreatedDecreased => "events were created before the one before",
            Self::WrongName => "events stand in a stream of another name",
            Self::Altered => "events have other contents",
            Self::Unreadable => "events cannot be understood",
            Self::ReadOtherwise => "events are other ones when all is read again",
            Self::UnknownHistory => "answers name a history that never was",
            Self::UnknownWithoutNeed => "outcomes were unknown without need",
            Self::TailerOrder => "events came to a tailer out of order",
            Self::AppearedBelowPassed => "events appeared behind a tailer",
            Self::Vanished => "events that a tailer got are not stored there",
            Self::TailerDiffers => "tailers got something else than is stored",
            Self::WentOnSilently => "tailers went on in another history without a word",
            Self::NotToldOfLoss => "tailers were not told that the history is another one",
            Self::NeverSettled => "events were neither finished nor parked",
            Self::ParkedTooOften => "events were parked too often",
            Self::DeliveryOrder => "events were delivered out of order",
            Self::DeliveredUninvited => "events were delivered that are not the group's",
            Self::GivenBackTwice => "seats were given back twice",
            Self::GivenBackEarly => "seats were given back too early",
            Self::GivenBackWrongly => "seats were given back that were not to be",
            Self::PaidGivenBack => "paid seats were given back",
            Self::NotGivenBack => "seats were never given back",
            Self::NotWatched => "reservations are not watched",
            Self::TimerPending => "timers are pending past their time",
            Self::FalseTimer => "timers are not those of a reservation",
        }
    }
}
