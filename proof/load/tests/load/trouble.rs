//! Services that stand still, say nothing, say too much, or are not there.

use std::sync::Arc;
use std::time::Duration;

use gesta_load::figures::{Figures, Outcome};
use gesta_load::schedule::Drive;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use crate::service::{Load, Service};

fn step(request: &str) -> String {
    format!("steps = [{{ request = \"{request}\" }}]")
}

fn causes(figures: &Figures) -> Vec<&str> {
    figures
        .troubles
        .keys()
        .map(|(_, cause)| cause.as_str())
        .collect()
}

/// Goal: while a service stands still, requests go on to be intended, and their latency counts from there. With four
/// users and four connections, no more than four are under way; a generator that waited for answers would show four
/// slow requests of 200.
#[test]
fn requests_that_were_not_sent_in_time_are_slow_too() {
    let service = Service::start(None);
    let drive = Drive::Open {
        rate: 200.0,
        users: 4,
    };
    let mut load = Load::of(&step("GET /stall"), &service.url(), drive);
    load.duration = Duration::from_secs(1);
    load.limits.connections = 4;
    let figures = load.run().unwrap();
    let overall = figures.overall();
    assert_eq!(overall.count, 200);
    // Those of 600 ms had to wait, evenly spread over that time.
    assert!(overall.p90 >= 400.0, "{overall:?}");
    let waited = figures.user_wait.percentiles();
    assert!(waited.p90 >= 300.0, "{waited:?}");
}

/// Goal: there are never more connections than allowed, however many users ask.
#[test]
fn connections_are_bounded() {
    let service = Service::start(None);
    let mut load = Load::of(&step("GET /drip"), &service.url(), Drive::Closed(40));
    load.limits.connections = 5;
    let figures = load.run().unwrap();
    let seen = service.seen.lock().unwrap();
    assert_eq!((seen.open_max, seen.opened), (5, 5));
    assert!(figures.connection_wait.percentiles().max > 20.0);
    assert_eq!(causes(&figures), [""; 0]);
}

#[test]
fn a_connection_that_the_service_closes_is_opened_again() {
    let service = Service::start(None);
    let figures = Load::of(&step("GET /close"), &service.url(), Drive::Closed(2))
        .run()
        .unwrap();
    assert_eq!(causes(&figures), [""; 0]);
    let seen = service.seen.lock().unwrap();
    assert!(
        seen.opened >= seen.requests.len().saturating_sub(2),
        "{} {}",
        seen.opened,
        seen.requests.len()
    );
}

/// Goal: what is not an answer ends in the figures with its cause, and the load ends.
#[test]
fn what_is_no_answer_is_told_with_its_cause() {
    for (path, cause, outcome) in [
        ("/silent", "no answer within 200ms", Outcome::Failed),
        (
            "/reset",
            "connection closed before message completed",
            Outcome::Failed,
        ),
        (
            "/endless",
            "an answer of more than 100000 bytes",
            Outcome::Failed,
        ),
        ("/broken", "status 500", Outcome::Wrong),
    ] {
        for drive in [
            Drive::Closed(2),
            Drive::Open {
                rate: 50.0,
                users: 10,
            },
        ] {
            let service = Service::start(None);
            let mut load = Load::of(&step(&format!("GET {path}")), &service.url(), drive);
            if path == "/silent" {
                load.limits.timeout = Duration::from_millis(200);
            }
            let figures = load.run().unwrap();
            let count = figures.over(|_, found| found == outcome).count;
            assert!(count > 0, "{path} {drive:?}");
            assert_eq!(figures.over(|_, _| true).count, count, "{path} {drive:?}");
            assert_eq!(causes(&figures), [cause], "{path} {drive:?}");
        }
    }
    // No port that the system gives to others.
    let load = Load::of(&step("GET /"), "http://127.0.0.1:1", Drive::Closed(1));
    let why = load.run().unwrap_err();
    assert!(
        why.starts_with("http://127.0.0.1:1 takes no connection: ") && why.contains("refused"),
        "{why}"
    );
    let service = Service::start(None);
    let url = service.url().replace("http://", "https://");
    let why = Load::of(&step("GET /"), &url, Drive::Closed(1)).run();
    let told = "takes no connection: it does not speak TLS: is its URL http:// and not https://?";
    assert_eq!(why.unwrap_err(), format!("{url} {told}"));
}

/// What happened: refusals, which come at once, stood among the latencies of the answers, and a user who was refused
/// asked again without a pause. So the fewer a service served, the faster it looked.
#[test]
fn refusals_do_not_make_a_service_look_fast() {
    let service = Service::start(None);
    let load = Load::of(&step("GET /crowded"), &service.url(), Drive::Closed(1));
    let figures = load.until(&service, 20).unwrap();
    let count = |wanted| figures.over(|_, outcome| outcome == wanted).count;
    let served = figures.served();
    assert!(count(Outcome::Refused) > 5, "{figures:?}");
    assert_eq!(served.count, count(Outcome::Passed));
    // The service takes that long for each answer that is no refusal.
    assert!(served.p50 >= 20.0, "{served:?}");

    let service = Service::start(None);
    let load = Load::of(&step("GET /full"), &service.url(), Drive::Closed(2));
    let figures = load.run().unwrap();
    assert!(figures.is_mostly_refused() && figures.served().count == 0);
    // Of 300 ms each user has slept at least 50 after each refusal.
    assert!(service.seen.lock().unwrap().requests.len() <= 2 * 7);
}

/// Goal: what is never sent counts for those who are to be served.
#[test]
fn what_is_not_sent_is_not_served_in_time() {
    let service = Service::start(None);
    let drive = Drive::Open {
        rate: 100.0,
        users: 1,
    };
    let mut load = Load::of(&step("GET /silent"), &service.url(), drive);
    load.limits.timeout = Duration::from_secs(2);
    let figures = load.run().unwrap();
    assert_eq!(figures.overall().count, 30);
    assert_eq!(figures.served(), figures.unsent.percentiles());
}

/// Goal: an answer that repeats what the request said of who asks does not bring it into results: neither what the
/// command was given nor what an answer gave.
#[test]
fn an_answer_that_repeats_a_secret_does_not_show_it() {
    let service = Service::start(None);
    let text = r#"
headers = { authorization = "Bearer {{token}}" }
setup = { steps = [{ request = "POST /login", capture = { token = "header:location" } }] }
steps = [{ request = "GET /echo" }]"#;
    let mut load = Load::of(text, &service.url(), Drive::Closed(1));
    let key = "a-secret-key".parse().unwrap();
    load.limits.headers.insert("x-key", key);
    let figures = load.until(&service, 3).unwrap();
    let trouble = &figures.troubles[&(0, "status 500".to_owned())];
    assert_eq!(trouble.example, r#"Some("***") Some("***")"#);
}

/// What happened: the answer to a login that failed its check was shown with its token. What an answer gives under the
/// name of a secret is not shown, whatever was wrong with it; the rest is.
#[test]
fn the_answer_to_a_login_shows_no_token() {
    let capture = "capture = { session = \"json:value\" }";
    for (more, cause, shown) in [
        (
            format!("check = {{ contains = \"nothing\" }}, {capture}"),
            "the body does not contain what it must",
            "author",
        ),
        (
            format!("check = {{ json = {{ \"user.author\" = \"you\" }} }}, {capture}"),
            "json user.author is not as it must be",
            "\"me\" and not \"you\"",
        ),
        (
            "capture = { key = \"json:user.token\", session = \"json:value\" }".to_owned(),
            "there is no \"key\" in the answer",
            "author",
        ),
        (
            format!("check = {{ headers = {{ set-cookie = \"x\" }} }}, {capture}"),
            "header set-cookie is not as it must be",
            "\"***",
        ),
    ] {
        let service = Service::start(None);
        let text = format!("steps = [{{ request = \"POST /session\", {more} }}]");
        let load = Load::of(&text, &service.url(), Drive::Closed(1));
        let figures = load.until(&service, 3).unwrap();
        let example = &figures.troubles[&(0, cause.to_owned())].example;
        assert!(!example.contains("to-ken"), "{cause}: {example}");
        assert!(example.contains(shown), "{cause}: {example}");
    }
}

/// Goal: a target that is refused is told without what may be its password.
#[test]
fn a_target_that_is_refused_shows_no_password() {
    for (url, told) in [
        ("http://u:secret@127.0.0.1:1", "\"http://***@127.0.0.1:1\""),
        ("http://u:secret", "\"http://***\""),
        ("u:secret@127.0.0.1:1", "\"***\""),
        ("https://h/x?key=secret", "\"https://h/x?key=***\""),
    ] {
        let load = Load::of(&step("GET /"), url, Drive::Closed(1));
        let why = load.run().unwrap_err();
        assert!(why.starts_with(told) && !why.contains("secret"), "{why}");
    }
}

/// Goal: a setup that does not go well ends the run before it begins, with the request and the cause.
#[test]
fn a_setup_that_fails_ends_the_run() {
    let service = Service::start(None);
    let text = "[setup]\npasses = 3\nsteps = [{ request = \"GET /broken\" }]\n[[flows]]\nname = \"f\"\nsteps = [{ request = \"GET /\" }]";
    let why = Load::of(text, &service.url(), Drive::Closed(1))
        .run()
        .unwrap_err();
    assert!(why.starts_with("setup, GET /broken: status 500"), "{why}");
    assert!(
        !service
            .seen
            .lock()
            .unwrap()
            .requests
            .contains(&"GET /".to_owned())
    );
}

/// Goal: an interrupted load ends at once, whatever the service does.
#[test]
fn an_interrupted_load_ends() {
    let service = Service::start(None);
    let load = Load::of(&step("GET /silent"), &service.url(), Drive::Closed(3));
    let figures = load.until(&service, 3).unwrap();
    assert!(!figures.complete);
    assert_eq!(
        causes(&figures),
        ["given up, because the run was interrupted"]
    );
}

/// Goal: a service with TLS is asked if its authority is believed, and only then.
#[test]
fn tls_is_spoken_with_a_known_authority_alone() {
    let issuer_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&issuer_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = own
        .signed_by(&key, &Issuer::new(params, issuer_key))
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = config
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], der)
        .unwrap();
    let service = Service::start(Some(TlsAcceptor::from(Arc::new(config))));
    let url = format!("https://localhost:{}", service.address.port());
    let load = || Load::of(&step("GET /x"), &url, Drive::Closed(2));
    let mut known = load();
    known.options.ca_pem = Some(authority.pem().into_bytes());
    let figures = known.run().unwrap();
    assert_eq!(causes(&figures), [""; 0]);
    assert!(figures.ended[Outcome::Passed as usize] > 0);
    let why = load().run().unwrap_err();
    assert!(why.contains("TLS") && why.contains("certificate"), "{why}");
}
