//! Opening a store: what fits together, and what does not.

use gesta::ErrorKind;

/// Opens, which must fail because of this field, and returns what is said.
async fn refused(open: gesta::Open, field: &str) -> String {
    let error = open.await.map(drop).expect_err("refused");
    let ErrorKind::InvalidArgument { field: found, .. } = error.kind() else {
        panic!("{error:?}");
    };
    assert_eq!(found, field, "{error}");
    error.to_string()
}

#[tokio::test]
async fn what_does_not_fit_a_url_is_refused() {
    let memory = || gesta::open("sqlite::memory:");
    let text = refused(memory().token("t"), "token").await;
    assert!(text.contains("is for servers"), "{text}");
    refused(memory().credentials("u", "p"), "credentials").await;
    refused(memory().ca_file("ca.pem"), "ca_file").await;

    let server = || gesta::open("https://localhost:2113");
    let text = refused(server().ca_file("/nowhere/ca.pem"), "ca_file").await;
    assert!(text.contains("/nowhere/ca.pem cannot be read"), "{text}");
    refused(server().ca_pem("no PEM"), "tls").await;
    let text = refused(gesta::open("https://one:2113 two:2113"), "store").await;
    assert!(text.contains("number 2"), "{text}");
    // A token does not travel in plain text to another machine, unless that is said.
    let plain = || gesta::open("http://gesta.example:2113").token("t");
    refused(plain(), "url").await;
    assert!(plain().credentials_in_plain_text().await.is_ok());
}

#[tokio::test]
async fn a_store_is_created_only_if_that_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("shop.db").display());
    for open in [gesta::open(&url), gesta::open(&url).create().existing()] {
        let error = open.await.map(drop).expect_err("there is none");
        assert!(matches!(error.kind(), ErrorKind::Schema(_)), "{error:?}");
    }
    let store = gesta::open(&url).create().await.expect("created");
    store.shutdown().await.expect("shut down");
    for open in [gesta::open(&url), gesta::open(&url).create()] {
        let store = open.await.expect("there");
        store.shutdown().await.expect("shut down");
    }
}
