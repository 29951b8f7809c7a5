//! What users ask, and in which order.

use std::collections::BTreeSet;
use std::time::Duration;

use gesta_load::figures::Outcome;
use gesta_load::schedule::Drive;

use crate::service::{Load, Service};

/// Goal: a user goes through its steps in order, with repeats, feeders, captured values and headers.
#[test]
fn a_user_goes_through_its_flow() {
    let service = Service::start(None);
    let text = r#"
headers = { authorization = "Bearer {{token}}", x-from = "file" }
[feeders]
cart = { sequence = 7 }
item = { values = ["a/b", 2], each = "request" }
[setup]
steps = [{ request = "POST /login", capture = { token = "json:id" } }]
[[flows]]
name = "buy"
[[flows.steps]]
request = "POST /carts/{{cart|pad 3}}"
json = { cart = "{{cart}}", note = "n{{cart}}", user = "{{user}}" }
capture = { made = "header:location", number = "json:id" }
[[flows.steps]]
request = "PUT /carts/{{cart}}/{{item}}?n={{number}}"
repeat = 2
body = "{{item}}"
check = { json = { id = "x{{number}}" }, status = [200, 404] }
[[flows.steps]]
request = "GET {{made|raw}}"
"#;
    // The check of the second step cannot be right, so a pass ends there.
    let mut load = Load::of(text, &service.url(), Drive::Closed(1));
    load.limits
        .headers
        .insert("x-from", "command".parse().unwrap());
    let figures = load.until(&service, 20).unwrap();
    let seen = service.seen.lock().unwrap();
    let wanted = [
        "POST /login",
        r#"POST /carts/007 {"cart":7,"note":"n7","user":0}"#,
        "PUT /carts/7/a%2Fb?n=2 a/b",
        r#"POST /carts/008 {"cart":8,"note":"n8","user":0}"#,
        "PUT /carts/8/2?n=4 2",
    ];
    assert_eq!(seen.requests[..5], wanted);
    assert!(!seen.headers[0].contains_key("authorization"));
    let (first, second) = (&seen.headers[1], &seen.headers[2]);
    assert_eq!(first["authorization"], "Bearer 1");
    assert_eq!(
        (&first["x-from"], &first["content-type"]),
        (
            &"command".parse().unwrap(),
            &"application/json".parse().unwrap()
        )
    );
    assert!(!second.contains_key("content-type"));
    assert_eq!(figures.passes, 0);
    let trouble = &figures.troubles[&(1, "json id is not as it must be".to_owned())];
    assert_eq!(trouble.example, "3 and not \"x2\"");
    assert!(
        figures.ended[Outcome::Wrong as usize] > 0 && figures.over(|call, _| call == 2).count == 0
    );
}

/// Goal: a pass that goes well repeats what it must, and uses what an answer said for the path of the next request.
#[test]
fn a_pass_ends_well() {
    let service = Service::start(None);
    let text = r#"
steps = [
  { request = "POST /carts", capture = { made = "header:location" } },
  { request = "PUT /items", repeat = 3 },
  { request = "GET {{made|raw}}/{{pass}}", check = { contains = "/made", json = { path = "{{made}}/{{pass}}" } } },
]"#;
    let load = Load::of(text, &service.url(), Drive::Closed(1));
    let figures = load.until(&service, 20).unwrap();
    let seen = service.seen.lock().unwrap();
    assert_eq!(
        seen.requests[..6],
        [
            "POST /carts",
            "PUT /items",
            "PUT /items",
            "PUT /items",
            "GET /made/1/1",
            "POST /carts"
        ]
    );
    assert_eq!(
        figures.ended[Outcome::Wrong as usize],
        0,
        "{:?}",
        figures.troubles
    );
    assert!(figures.passes > 0);
    assert_eq!(seen.open_max, 1);
}

/// Goal: what was refused as overloaded is asked again as it was, so that overload does not change the mix.
#[test]
fn what_is_refused_is_asked_again() {
    let service = Service::start(None);
    let text = "steps = [{ request = \"PUT /busy/{{n}}\" }]\n[feeders]\nn = { sequence = 0 }";
    let load = Load::of(text, &service.url(), Drive::Closed(1));
    let figures = load.until(&service, 20).unwrap();
    let seen = service.seen.lock().unwrap();
    assert_eq!(
        seen.requests[..5],
        [
            "PUT /busy/0",
            "PUT /busy/0",
            "PUT /busy/1",
            "PUT /busy/1",
            "PUT /busy/2"
        ]
    );
    assert!(figures.ended[Outcome::Refused as usize] > 0);
    assert_eq!(figures.ended[Outcome::Wrong as usize], 0);
}

/// Goal: rows of a shuffled feeder come once each, among all users or for each user, and flows come by weight.
#[test]
fn feeders_and_flows_are_shared_as_the_file_says() {
    let service = Service::start(None);
    let text = r#"
[feeders]
seat = { ranges = { show = [0, 4], seat = [0, 9] }, order = "shuffle" }
own = { range = [0, 4], order = "shuffle", per = "user" }
part = { range = [0, 4], order = "shuffle", per = "pass", each = "request" }
[[flows]]
name = "often"
weight = 9
steps = [{ request = "PUT /seats/{{seat.show}}/{{seat.seat}}" }, { request = "PUT /own/{{user}}/{{own}}" },
  { request = "PUT /part/{{pass}}/{{part}}", repeat = 3 }]
[[flows]]
name = "seldom"
steps = [{ request = "GET /seldom" }]
"#;
    let load = Load::of(text, &service.url(), Drive::Closed(2));
    load.until(&service, 500).unwrap();
    let seen = service.seen.lock().unwrap();
    let of = |prefix: &str| -> Vec<&String> {
        seen.requests
            .iter()
            .filter(|it| it.starts_with(prefix))
            .collect()
    };
    let seats = of("PUT /seats/");
    for round in seats.chunks_exact(50) {
        assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), 50, "{round:?}");
    }
    for user in 0..2 {
        for round in of(&format!("PUT /own/{user}/")).chunks_exact(5) {
            assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), 5, "{round:?}");
        }
    }
    // Three of five rows in each pass, none of them twice.
    let parts = of("PUT /part/");
    assert_eq!(parts.iter().collect::<BTreeSet<_>>().len(), parts.len());
    let (often, seldom) = (seats.len() as f64, of("GET /seldom").len() as f64);
    assert!((0.02..0.3).contains(&(seldom / often)), "{often} {seldom}");
}

/// Goal: a user thinks before it asks, and in the open loop others take its place.
#[test]
fn users_think() {
    let service = Service::start(None);
    let text =
        "steps = [{ request = \"GET /x\" }, { request = \"GET /y\", think = [\"10m\", \"20m\"] }]";
    let mut load = Load::of(text, &service.url(), Drive::Closed(3));
    load.duration = Duration::from_secs(1);
    load.run().unwrap();
    assert_eq!(service.seen.lock().unwrap().requests, ["GET /x"; 3]);
    let drive = Drive::Open {
        rate: 100.0,
        users: 20,
    };
    let mut load = Load::of(text, &service.url(), drive);
    load.duration = Duration::from_millis(500);
    let figures = load.run().unwrap();
    // 50 places and 20 users who ask once; for the rest nobody was free.
    assert_eq!(figures.over(|_, _| true).count, 20);
    assert_eq!(figures.unsent.percentiles().count, 30);
    assert_eq!(figures.overall().count, 50);
}
