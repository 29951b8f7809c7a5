//! Servers with users, tokens and certificates of an own authority, and several of them.

use std::sync::Arc;
use std::time::Duration;

use gesta::{ErrorKind, ExpectedRevision::Any, Filter, Store};
use gesta_access::{Access, Accounts, AddUser, Config as AccessConfig, FirstUser, NewToken, Scope};
use gesta_server::{Config, Handle, Registry, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::{added, soon};

const PASSWORD: &str = "the password of root";

/// Two servers on one store, and what their callers need.
pub(crate) struct Secured {
    pub(crate) token: String,
    store: Store,
    servers: [Handle; 2],
    folder: tempfile::TempDir,
}

fn tls(folder: &tempfile::TempDir) -> TlsFiles {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    let certificate = params.signed_by(&key, &issuer).expect("signed").pem();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("authority.pem"), authority).expect("written");
    std::fs::write(path("cert.pem"), certificate).expect("written");
    std::fs::write(path("key.pem"), key.serialize_pem()).expect("written");
    TlsFiles::new(path("cert.pem"), path("key.pem"))
}

impl Secured {
    pub(crate) async fn new() -> Self {
        let store = gesta::open("sqlite::memory:").await.expect("opened");
        let accounts = Accounts::of(store.event_store());
        let root = AddUser {
            name: "root".into(),
            password: PASSWORD.into(),
            groups: vec!["$admins".into()],
            full_name: String::new(),
            first: FirstUser::RefuseRights,
        };
        accounts.add_user(root).await.expect("added");
        let token = NewToken {
            user: "root".into(),
            label: String::new(),
            scopes: vec![Scope::Admin],
            prefixes: Vec::new(),
            expires: None,
        };
        let token = accounts.create_token(token).await.expect("made");
        // News of the accounts do not grow old because the machine stands still for a while.
        let config = AccessConfig {
            uptime: || Duration::ZERO,
            ..AccessConfig::default()
        };
        let access = Access::start(store.event_store(), config);
        soon(access.loaded()).await;
        let folder = tempfile::tempdir().expect("a folder");
        let files = tls(&folder);
        let serve = async || {
            let config = Config {
                listen: ([127, 0, 0, 1], 0).into(),
                tls: Some(files.clone()),
                ..Config::default()
            };
            let bound = gesta_server::bind(config).await.expect("a free port");
            let bound = bound.with_access(access.clone());
            bound.serve(store.event_store(), Registry::default())
        };
        Self {
            token: token.to_string(),
            servers: [serve().await, serve().await],
            store,
            folder,
        }
    }

    fn url(&self, server: usize) -> String {
        format!(
            "https://localhost:{}",
            self.servers[server].local_addr().port()
        )
    }

    fn both(&self) -> gesta::Open {
        gesta::open(&format!("{} {}", self.url(0), self.url(1)))
    }

    fn authority(&self) -> std::path::PathBuf {
        self.folder.path().join("authority.pem")
    }

    pub(crate) async fn open(&self, token: &str) -> gesta::Result<Store> {
        self.both().token(token).ca_file(self.authority()).await
    }

    pub(crate) async fn shutdown(&self) {
        for server in &self.servers {
            server.shutdown().await;
        }
        self.store.shutdown().await.expect("shut down");
    }
}

/// Goal: a secured server is reached through the library, and who may not come in is told why.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_users_and_an_own_authority_is_reached() {
    let secured = Secured::new().await;
    let url = secured.url(0);
    let by_password = gesta::open(&url).credentials("root", PASSWORD);
    let store = by_password
        .ca_file(secured.authority())
        .await
        .expect("opened");
    let appended = store.append_to("cart-1", Any, [added("book")]).await;
    appended.expect("stored");
    let authority = std::fs::read(secured.authority()).expect("readable");
    let by_token = gesta::open(&url).token(secured.token.as_str());
    let store = by_token.ca_pem(authority.clone()).await.expect("opened");
    assert_eq!(
        store.read_whole_stream("cart-1").await.expect("read").len(),
        1
    );

    let nobody = gesta::open(&url)
        .ca_pem(authority.clone())
        .await
        .expect("opened");
    let wrong = gesta::open(&url).token("gst_wrong").ca_pem(authority);
    for store in [nobody, wrong.await.expect("opened")] {
        let error = store
            .read_whole_stream("cart-1")
            .await
            .expect_err("refused");
        assert!(
            matches!(error.kind(), ErrorKind::Unauthenticated(_)),
            "{error:?}"
        );
    }
    let stranger = gesta::open(&url).token(secured.token.as_str());
    let stranger = stranger.await.expect("opened");
    let error = stranger.info().await.expect_err("an unknown authority");
    assert!(
        matches!(error.kind(), ErrorKind::Unsupported(_)),
        "{error:?}"
    );
    assert!(error.to_string().contains("authority"), "{error}");
    secured.shutdown().await;
}

/// Goal: of several servers one may be gone, from the beginning or from now on; a retry of the same event is stored
/// once, and a follower goes on with its checkpoint at the other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_several_servers_goes_on_when_one_is_gone() {
    let secured = Arc::new(Secured::new().await);
    let dead = gesta_rig::free_address().expect("a port");
    let urls = format!("https://{dead} {} {}", secured.url(0), secured.url(1));
    let open = gesta::open(&urls).token(secured.token.as_str());
    let store = open.ca_file(secured.authority()).await.expect("opened");
    let book = added("book");
    let first = store.append_to("cart-1", Any, [book.clone()]).await;
    let first = first.expect("the second server answers");
    let mut carts = store.follow(Filter::category("cart")).await.expect("begun");
    let (_, checkpoint) = soon(carts.next()).await.expect("one").expect("an event");

    secured.servers[0].shutdown().await;
    // The subscription breaks with the server, and is taken up at the other one.
    let end = async {
        while let Some(next) = carts.next().await {
            if let Err(error) = next {
                return Some(error);
            }
        }
        None
    };
    let error = soon(end).await.expect("an error");
    assert!(error.is_retryable(), "{error:?}");
    let again = async {
        loop {
            match store.append_to("cart-1", Any, [book.clone()]).await {
                Err(error) if error.is_retryable() => tokio::task::yield_now().await,
                answered => break answered.expect("stored"),
            }
        }
    };
    assert_eq!(soon(again).await, first);
    let appended = store.append_to("cart-1", Any, [added("pen")]).await;
    appended.expect("stored");
    let resumed = store.follow(Filter::category("cart"));
    let mut resumed = resumed.from_checkpoint(checkpoint).await.expect("begun");
    let (event, _) = soon(resumed.next()).await.expect("one").expect("an event");
    assert_eq!(event.revision.0, 1);
    let mut mails = store.join("cart-1", "mail").await.expect("joined");
    let delivery = soon(mails.next()).await.expect("one").expect("an event");
    assert!(mails.ack(&delivery).await.expect("answered"));
    store.shutdown().await.expect("shut down");
    secured.shutdown().await;
}
