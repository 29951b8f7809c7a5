//! Which call a path means.

/// A path of the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route<'a> {
    /// `/shows`
    Shows,
    /// `/shows/{showId}`
    Show {
        /// As it stands in the path.
        show_id: &'a str,
    },
    /// `/shows/{showId}/seats/{seatNum}`
    Seat {
        /// As it stands in the path.
        show_id: &'a str,
        /// As it stands in the path.
        seat: &'a str,
    },
    /// `/available-seats`
    AvailableSeats,
    /// `/health`
    Health,
    /// `/metrics`
    Metrics,
    /// Any other.
    Unknown,
}

/// The route of a path. No id or number has a character that would be percent-encoded.
pub(super) fn route(path: &str) -> Route<'_> {
    let mut parts = path.strip_prefix('/').unwrap_or("").split('/');
    let parts = [(); 5].map(|()| parts.next());
    match parts {
        [Some("shows"), None, ..] => Route::Shows,
        [Some("shows"), Some(show_id), None, ..] if !show_id.is_empty() => Route::Show { show_id },
        [
            Some("shows"),
            Some(show_id),
            Some("seats"),
            Some(seat),
            None,
        ] => Route::Seat { show_id, seat },
        [Some("available-seats"), None, ..] => Route::AvailableSeats,
        [Some("health"), None, ..] => Route::Health,
        [Some("metrics"), None, ..] => Route::Metrics,
        _ => Route::Unknown,
    }
}

impl Route<'_> {
    /// Its methods, as the header `allow` lists them.
    pub(super) fn allow(self) -> &'static str {
        match self {
            Route::Shows => "POST",
            Route::Seat { .. } => "PATCH",
            _ => "GET, HEAD",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_routes_or_unknown() {
        assert_eq!(route("/shows"), Route::Shows);
        assert_eq!(route("/shows/a"), Route::Show { show_id: "a" });
        let (show_id, seat) = ("a", "7");
        assert_eq!(route("/shows/a/seats/7"), Route::Seat { show_id, seat });
        assert_eq!(route("/available-seats"), Route::AvailableSeats);
        for unknown in [
            "",
            "/",
            "/shows/",
            "/shows/a/",
            "/shows/a/seats",
            "/shows/a/seats/7/8",
            "/x",
            "*",
            "//shows",
        ] {
            assert_eq!(route(unknown), Route::Unknown, "{unknown}");
        }
    }
}
