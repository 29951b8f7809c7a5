//! The messages of `proto/cinema.proto` (package `gesta.cinema.v1`), written by hand after it.
//!
//! Why not generated: six small structs are no reason for a compiler in everybody's build; golden bytes are tested in `events`.
//! Not here: what they mean, and whether what was read makes sense (`events`).

/// `gesta.cinema.v1.ShowCreated`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ShowCreated {
    /// The show.
    #[prost(string, tag = "1")]
    pub show_id: String,
    /// What is shown.
    #[prost(string, tag = "2")]
    pub title: String,
    /// Its seats in order.
    #[prost(message, repeated, tag = "3")]
    pub seats: Vec<Seat>,
    /// Microseconds since 1970.
    #[prost(int64, tag = "4")]
    pub created_at: i64,
}

/// `gesta.cinema.v1.Seat`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Seat {
    /// 0, 1, 2, …
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// Whether it can be had.
    #[prost(enumeration = "SeatStatus", tag = "2")]
    pub status: i32,
    /// What it costs.
    #[prost(message, optional, tag = "3")]
    pub price: Option<Money>,
}

/// `gesta.cinema.v1.SeatStatus`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub enum SeatStatus {
    /// Never written.
    Unspecified = 0,
    /// It can be reserved.
    Available = 1,
    /// Somebody has it.
    Reserved = 2,
}

/// `gesta.cinema.v1.Money`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Money {
    /// Decimal with two places.
    #[prost(string, tag = "1")]
    pub amount: String,
    /// ISO 4217.
    #[prost(string, tag = "2")]
    pub currency: String,
}

/// `gesta.cinema.v1.SeatReserved`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SeatReserved {
    /// The show.
    #[prost(string, tag = "1")]
    pub show_id: String,
    /// The seat.
    #[prost(uint32, tag = "2")]
    pub seat_number: u32,
    /// Microseconds since 1970.
    #[prost(int64, tag = "3")]
    pub reserved_at: i64,
}

/// `gesta.cinema.v1.SeatReservationCancelled`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SeatReservationCancelled {
    /// The show.
    #[prost(string, tag = "1")]
    pub show_id: String,
    /// The seat.
    #[prost(uint32, tag = "2")]
    pub seat_number: u32,
    /// Microseconds since 1970.
    #[prost(int64, tag = "3")]
    pub cancelled_at: i64,
}

/// `gesta.cinema.v1.ShowSnapshot`: the state of a show, safe to delete.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ShowSnapshot {
    /// The show.
    #[prost(string, tag = "1")]
    pub show_id: String,
    /// What is shown.
    #[prost(string, tag = "2")]
    pub title: String,
    /// Its seats in order.
    #[prost(message, repeated, tag = "3")]
    pub seats: Vec<Seat>,
}
