//! Where the line of a run goes: a file on this machine, and beside it, if asked, an object store.
//!
//! A file is appended to. Objects are not: each run becomes one of its own, named by its kind and its beginning, so
//! that processes and hosts can share a folder of a bucket. The line is written to the file first: what has taken hours
//! must not depend on a network. Built with the feature `upload`; without it only files are known.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::failure::{Context as _, Result};

/// The file that gets the line in any case, if another place is named.
const FILE: &str = "gesta-lab.jsonl";

/// Where results go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Results {
    /// A file of lines.
    pub file: PathBuf,
    /// A place in an object store or behind HTTP.
    upload: Option<Place>,
}

/// A folder of an object store (its URL ends with `/`), or one object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place(String);

impl Results {
    /// A file.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            file: path.into(),
            upload: None,
        }
    }

    /// Reads `--results`: a file, or `https://…`, `s3://…`, `gs://…`.
    ///
    /// # Errors
    /// The URL is no place that can be written to.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let is_url = |scheme: &&str| text.starts_with(*scheme);
        if !["https://", "http://", "s3://", "gs://"].iter().any(is_url) {
            return match text {
                "" => Err("a file or a URL must be named".into()),
                file => Ok(Self::file(file)),
            };
        }
        store::check(text)?;
        Ok(Self {
            file: FILE.into(),
            upload: Some(Place(text.to_owned())),
        })
    }

    /// Keeps the line of a run.
    ///
    /// # Errors
    /// It cannot be written, or not be uploaded; then it is in the file.
    pub fn keep(&self, line: &[u8], kind: &str, started: &str) -> Result<()> {
        append(&self.file, line)?;
        let Some(place) = &self.upload else {
            return Ok(());
        };
        let (url, file) = (place.object(kind, started), self.file.display());
        let put = store::put(&url, line);
        put.context(format!(
            "the line is in {file}, but was not uploaded to {}",
            shown(&url)
        ))?;
        eprintln!("uploaded to {}", shown(&url));
        Ok(())
    }
}

impl Place {
    /// The URL of the object of a run.
    fn object(&self, kind: &str, started: &str) -> String {
        let Self(url) = self;
        if !url.ends_with('/') {
            return url.clone();
        }
        let plain =
            |text: &str| text.replace(|c: char| !(c.is_ascii_alphanumeric() || c == '-'), "");
        let (kind, started, process) = (plain(kind), plain(started), std::process::id());
        format!("{url}{kind}-{started}-{process}.jsonl")
    }
}

/// A URL without what stands after `?`, which may be a key.
fn shown(url: &str) -> String {
    let url = crate::endpoint::redacted(url);
    url.split('?').next().unwrap_or_default().to_owned()
}

/// Appends a line to a file, in one write.
pub fn append(file: &Path, line: &[u8]) -> Result<()> {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    opened
        .and_then(|mut file| file.write_all(line))
        .context(file.display())
}

#[cfg(not(feature = "upload"))]
mod store {
    use crate::failure::{Result, fail};

    const WITHOUT: &str = "this gesta-lab was built without uploads; cargo build -p gesta-lab --features upload brings them";

    pub(crate) fn check(url: &str) -> std::result::Result<(), String> {
        Err(format!("{:?}: {WITHOUT}", super::shown(url)))
    }

    pub(crate) fn put(_: &str, _: &[u8]) -> Result<()> {
        fail(WITHOUT)
    }
}

#[cfg(feature = "upload")]
mod store {
    use object_store::path::Path;
    use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};
    // Brings TLS by rustls into the client of `object_store`.
    use reqwest as _;
    use url::Url;

    use crate::failure::{Context as _, Failure};

    /// Looks whether a place can be meant, before hours of measuring.
    pub(crate) fn check(url: &str) -> Result<(), String> {
        let told = super::shown(url);
        let (_, path) =
            opened(url, std::env::vars()).map_err(|failure| format!("{told:?}: {failure}"))?;
        match path.as_ref().is_empty() && !url.ends_with('/') {
            true => Err(format!(
                "{told:?} names no object; a folder ends with /, as in s3://bucket/"
            )),
            false => Ok(()),
        }
    }

    /// Writes an object, or replaces it.
    pub(crate) fn put(url: &str, line: &[u8]) -> crate::failure::Result<()> {
        put_with(url, line, std::env::vars())
    }

    /// The store and the path of a URL. Access is what the environment says, as for other programs of that cloud.
    fn opened(
        url: &str,
        environment: impl Iterator<Item = (String, String)>,
    ) -> crate::failure::Result<(Box<dyn ObjectStore>, Path)> {
        // The same crypto as everywhere else; if somebody has chosen before, that stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let parsed = Url::parse(url)?;
        let is_plain = parsed.scheme() == "http";
        let plain = is_plain.then(|| ("allow_http".to_owned(), "true".to_owned()));
        let options = environment.chain(plain);
        Ok(object_store::parse_url_opts(&parsed, options)?)
    }

    fn put_with(
        url: &str,
        line: &[u8],
        environment: impl Iterator<Item = (String, String)>,
    ) -> crate::failure::Result<()> {
        let (store, path) = opened(url, environment)?;
        let payload = PutPayload::from(line.to_vec());
        // The caller may be a task of a runtime, in which none may be waited for.
        let put = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime
                .block_on(store.put(&path, payload))
                .map(drop)
                .context("uploading")
        };
        let done = std::thread::spawn(put).join();
        done.unwrap_or_else(|_| Err(Failure("the upload has failed".into())))
    }

    #[cfg(test)]
    mod tests {
        use std::io::{Read as _, Write as _};
        use std::net::TcpListener;

        use super::*;

        /// A server that takes one PUT. Returns its address, and what it was sent.
        fn server() -> (String, std::thread::JoinHandle<(String, String)>) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let taken = std::thread::spawn(move || {
                let (mut socket, _) = listener.accept().unwrap();
                let mut request = String::new();
                let body = loop {
                    let mut piece = [0; 4096];
                    let count = socket.read(&mut piece).unwrap();
                    request.push_str(std::str::from_utf8(&piece[..count]).unwrap());
                    if let Some((_, body)) = request.split_once("\r\n\r\n")
                        && body.ends_with('\n')
                    {
                        break body.to_owned();
                    }
                };
                let answer = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 0\r\n\r\n";
                socket.write_all(answer.as_bytes()).unwrap();
                (request, body)
            });
            (address, taken)
        }

        /// Goal: a line arrives in each kind of store as one object, signed where the store asks for it.
        #[test]
        fn a_line_is_put_into_each_kind_of_store() {
            let keys = |address: &str| {
                let google = format!(
                    r#"{{"gcs_base_url":"http://{address}","disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}}"#
                );
                let options = [
                    ("AWS_ENDPOINT", format!("http://{address}")),
                    ("AWS_ALLOW_HTTP", "true".into()),
                    ("AWS_ACCESS_KEY_ID", "lab".into()),
                    ("AWS_SECRET_ACCESS_KEY", "secret".into()),
                    ("AWS_REGION", "eu-central-1".into()),
                    ("GOOGLE_SERVICE_ACCOUNT_KEY", google),
                    ("SOMETHING_ELSE", "7".into()),
                ];
                options.map(|(name, value)| (name.to_owned(), value))
            };
            for (url, wanted, is_signed) in [
                ("http://ADDRESS/runs/a.jsonl", "PUT /runs/a.jsonl ", false),
                (
                    "s3://bucket/runs/a.jsonl",
                    "PUT /bucket/runs/a.jsonl ",
                    true,
                ),
                ("gs://bucket/runs/a.jsonl", "PUT /bucket/runs", false),
            ] {
                let (address, taken) = server();
                let url = url.replace("ADDRESS", &address);
                let mut options = keys(&address).to_vec();
                if url.starts_with("gs") {
                    options.push(("allow_http".into(), "true".into()));
                }
                put_with(&url, b"{\"format\":2}\n", options.into_iter()).unwrap();
                let (request, body) = taken.join().unwrap();
                assert!(request.starts_with(wanted), "{request}");
                assert_eq!(body, "{\"format\":2}\n");
                let has_signature = request
                    .to_lowercase()
                    .contains("authorization: aws4-hmac-sha256");
                assert_eq!(has_signature, is_signed, "{request}");
            }
        }

        #[test]
        fn a_place_is_looked_over_before_anything_is_measured() {
            assert_eq!(check("https://host/folder/"), Ok(()));
            assert_eq!(check("s3://bucket/"), Ok(()));
            for (bad, why) in [("s3://bucket", "names no object"), ("https://", "https://")] {
                let found = check(bad).unwrap_err();
                assert!(found.contains(why), "{found}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_is_an_object_of_its_own_in_a_folder() {
        let folder = Place("s3://bucket/runs/".into());
        let object = folder.object("schemas", "2026-11-27T06:10:59.1Z");
        let process = std::process::id();
        assert_eq!(
            object,
            format!("s3://bucket/runs/schemas-2026-11-27T0610591Z-{process}.jsonl")
        );
        let one = Place("https://host/a.jsonl?key=7".into());
        assert_eq!(one.object("schemas", "now"), "https://host/a.jsonl?key=7");
        assert_eq!(shown("https://host/a.jsonl?key=7"), "https://host/a.jsonl");
    }

    #[test]
    fn a_file_is_a_file_and_a_url_needs_the_feature() {
        assert_eq!(Results::parse("a/b.jsonl"), Ok(Results::file("a/b.jsonl")));
        assert!(Results::parse("").is_err());
        let found = Results::parse("s3://bucket/runs/");
        match cfg!(feature = "upload") {
            true => assert_eq!(found.unwrap().file, PathBuf::from(FILE)),
            false => assert!(found.unwrap_err().contains("--features upload")),
        }
    }
}
