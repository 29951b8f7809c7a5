//! The messages of `proto/cinema.proto` (package `gesta.cinema.v1`), which describes each field.
//!
//! Why they are not generated: six small structs are no reason for a compiler in every build; golden bytes are tested
//! in `events`.
//! Not here: what the messages mean, and whether what was read makes sense (`events`).

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ShowCreated {
    #[prost(string, tag = "1")]
    pub(crate) show_id: String,
    #[prost(string, tag = "2")]
    pub(crate) title: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) seats: Vec<Seat>,
    #[prost(int64, tag = "4")]
    pub(crate) created_at: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Seat {
    #[prost(uint32, tag = "1")]
    pub(crate) number: u32,
    #[prost(enumeration = "SeatStatus", tag = "2")]
    pub(crate) status: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) price: Option<Money>,
    #[prost(int64, tag = "4")]
    pub(crate) reserved_at: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum SeatStatus {
    Unspecified = 0,
    Available = 1,
    Reserved = 2,
    Paid = 3,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Money {
    #[prost(string, tag = "1")]
    pub(crate) amount: String,
    #[prost(string, tag = "2")]
    pub(crate) currency: String,
}

/// `SeatReserved`, `SeatReservationCancelled` and `SeatPaid`, which have the same form.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SeatChanged {
    #[prost(string, tag = "1")]
    pub(crate) show_id: String,
    #[prost(uint32, tag = "2")]
    pub(crate) seat_number: u32,
    #[prost(int64, tag = "3")]
    pub(crate) changed_at: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ShowSnapshot {
    #[prost(string, tag = "1")]
    pub(crate) show_id: String,
    #[prost(string, tag = "2")]
    pub(crate) title: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) seats: Vec<Seat>,
}
