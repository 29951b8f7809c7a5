//! The facade on a server: the URL alone decides.

use gesta::{EventData, EventStoreExt, EventType, ExpectedRevision};

#[tokio::test]
async fn the_url_of_a_server_is_a_store() {
    let store = gesta::open("sqlite::memory:").await.expect("opened");
    let config = gesta_server::Config {
        listen: "127.0.0.1:0".parse().expect("an address"),
        ..gesta_server::Config::default()
    };
    let server = gesta_server::start(config, store.clone(), gesta_server::Registry::default());
    let server = server.await.expect("started");
    let url = format!("http://{}", server.local_addr());
    let opened = gesta::open(&url).await;
    if cfg!(feature = "client") {
        let remote = opened.expect("opened");
        let event = EventData::json(EventType::new("tested").expect("valid"), "{}");
        let appended = remote.append_to("a", ExpectedRevision::NoStream, vec![event]);
        appended.await.expect("appended");
        remote.shutdown().await.expect("shut down");
        let events = store.read_whole_stream("a").await.expect("read");
        assert_eq!(events.len(), 1);
    } else {
        let error = opened.map(drop).expect_err("left out");
        assert!(error.to_string().contains("feature `client`"), "{error}");
    }
    assert!(gesta::open_database(&url).await.is_err());
    server.shutdown().await;
    store.shutdown().await.expect("shut down");
}
