//! Where the line of a run goes: a file on this machine, and beside it, if asked, an object store.
//!
//! A file is appended to. Objects are not: each run becomes one of its own, named by its kind and its beginning, so
//! that processes and hosts can share a folder of a bucket. If one object is named, it gets all lines of the process,
//! again with each. The line goes to the file first, and then to the object store, whatever became of the file: what
//! has taken hours must depend neither on a network nor on a disk alone. Built with the feature `upload`; without it
//! only files are known.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::failure::{Context as _, Result, fail};

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
#[derive(Clone)]
struct Place {
    url: String,
    /// The lines of this process, by the URL of their object; the same for all copies of the place, so that of several
    /// reports none replaces another.
    lines: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&shown(&self.url)).finish()
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.url == other.url
    }
}

impl Eq for Place {}

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
        if text.contains(['?', '#']) {
            return Err(format!(
                "{:?} has a query, which no object store is sent, so a signed URL cannot be used",
                shown(text)
            ));
        }
        store::check(text)?;
        Ok(Self {
            file: FILE.into(),
            upload: Some(Place::at(text)),
        })
    }

    /// Looks whether the line of a run can be kept, before hours of measuring. It makes no file that was not there
    /// before.
    ///
    /// # Errors
    /// The file cannot be written. Where an object store is named it need not be.
    pub fn check(&self) -> Result<()> {
        let is_special = |file: std::fs::Metadata| !file.is_file() && !file.is_dir();
        // Whoever reads a pipe would take the end of the check for the end of the results.
        if self.upload.is_some() || std::fs::metadata(&self.file).is_ok_and(is_special) {
            return Ok(());
        }
        let is_new = std::fs::symlink_metadata(&self.file).is_err();
        append(&self.file, b"").context("--results")?;
        if is_new {
            std::fs::remove_file(&self.file).context(self.file.display())?;
        }
        Ok(())
    }

    /// Keeps the line of a run.
    ///
    /// # Errors
    /// It is not where it was to go: in the file, or, if another place is named, there.
    pub fn keep(&self, line: &[u8], kind: &str, started: &str) -> Result<()> {
        self.keep_by(store::put, line, kind, started)
    }

    /// The same, with objects put by `put`.
    fn keep_by(
        &self,
        put: impl FnOnce(&str, &[u8]) -> Result<()>,
        line: &[u8],
        kind: &str,
        started: &str,
    ) -> Result<()> {
        let written = append(&self.file, line);
        let Some(place) = &self.upload else {
            return written;
        };
        let url = place.object(kind, started);
        let (to, file) = (shown(&url), self.file.display());
        match (put(&url, &place.with(&url, line)), written) {
            (Ok(()), Ok(())) => eprintln!("uploaded to {to}"),
            (Ok(()), Err(why)) => eprintln!("uploaded to {to}, and in no file besides: {why}"),
            (Err(why), Ok(())) => {
                let told = format!("the line is in {file}, but was not uploaded to {to}");
                return Err(why).context(told);
            }
            (Err(why), Err(unwritten)) => {
                return fail(format!(
                    "the line was neither uploaded to {to}: {why}; nor written to a file: {unwritten}"
                ));
            }
        }
        Ok(())
    }
}

/// The same check for the command that was typed, if it keeps results.
///
/// # Errors
/// As [`Results::check`].
pub fn check_of(typed: &clap::ArgMatches) -> Result<()> {
    let mut command = typed;
    while let Some((_, below)) = command.subcommand() {
        command = below;
    }
    match command.try_get_one::<Results>("results") {
        Ok(Some(results)) => results.check(),
        _ => Ok(()),
    }
}

impl Place {
    fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            lines: Arc::default(),
        }
    }

    /// What an object holds with one more line.
    fn with(&self, object: &str, line: &[u8]) -> Vec<u8> {
        let mut lines = self.lines.lock().unwrap();
        let all = lines.entry(object.to_owned()).or_default();
        all.extend_from_slice(line);
        all.clone()
    }

    /// The URL of the object of a run.
    fn object(&self, kind: &str, started: &str) -> String {
        let url = &self.url;
        if !url.ends_with('/') {
            return url.clone();
        }
        let plain =
            |text: &str| text.replace(|c: char| !(c.is_ascii_alphanumeric() || c == '-'), "");
        let (kind, started, process) = (plain(kind), plain(started), std::process::id());
        format!("{url}{kind}-{started}-{process}.jsonl")
    }
}

/// A URL without its secrets, and without what stands after `?`, which may be a key.
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
        let folder = Place::at("s3://bucket/runs/");
        let object = folder.object("schemas", "2026-11-27T06:10:59.1Z");
        let process = std::process::id();
        assert_eq!(
            object,
            format!("s3://bucket/runs/schemas-2026-11-27T0610591Z-{process}.jsonl")
        );
        let one = Place::at("https://host/a.jsonl");
        assert_eq!(one.object("schemas", "now"), "https://host/a.jsonl");
        assert_eq!(shown("https://host/a.jsonl?key=7"), "https://host/a.jsonl");
        assert_eq!(
            shown("https://u:p@host/a.jsonl"),
            "https://***@host/a.jsonl"
        );
    }

    /// What happened: a signed URL was taken, and sent after hours of measuring without its signature.
    #[test]
    fn a_place_with_a_query_is_refused_without_showing_it() {
        for url in [
            "https://host/a.jsonl?sig=secret",
            "https://host/runs/#secret",
            "s3://bucket/?secret",
        ] {
            let why = Results::parse(url).unwrap_err();
            assert!(
                why.contains("has a query") && !why.contains("secret"),
                "{why}"
            );
        }
    }

    /// Where a line goes, with a file that can or cannot be written, and what was put where.
    fn kept(
        file: &Path,
        place: &Place,
        line: &str,
        put: Result<()>,
    ) -> (Result<()>, Vec<(String, String)>) {
        let results = Results {
            file: file.to_owned(),
            upload: Some(place.clone()),
        };
        let mut all = Vec::new();
        let put = |url: &str, lines: &[u8]| {
            let lines = String::from_utf8(lines.to_vec()).unwrap();
            all.push((url.to_owned(), lines));
            put
        };
        let kept = results.keep_by(put, line.as_bytes(), "append", "now");
        (kept, all)
    }

    /// What happened: a file in a folder that is not there was found out when all was measured.
    #[test]
    fn a_file_that_cannot_be_written_is_refused_before() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = Results::file(folder.path().join("no/a.jsonl"));
        let why = nowhere.check().unwrap_err().to_string();
        assert!(
            why.starts_with("--results: ") && why.contains("no/a.jsonl"),
            "{why}"
        );
        assert!(Results::file(folder.path()).check().is_err());
        let there = Results::file(folder.path().join("a.jsonl"));
        there.check().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        std::fs::write(&there.file, "1\n").unwrap();
        there.check().unwrap();
        assert_eq!(std::fs::read_to_string(&there.file).unwrap(), "1\n");
    }

    /// What happened: where the file could not be written, nothing was uploaded either.
    #[test]
    fn a_line_is_uploaded_whatever_becomes_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (there, nowhere) = (folder.path().join("a"), folder.path().join("no/folder"));
        let place = || Place::at("https://host/a.jsonl");
        let (kept_in, put) = kept(&nowhere, &place(), "1\n", Ok(()));
        kept_in.unwrap();
        assert_eq!(put, [("https://host/a.jsonl".to_owned(), "1\n".to_owned())]);
        for (file, told) in [(&there, "the line is in"), (&nowhere, "neither uploaded")] {
            let (kept, _) = kept(file, &place(), "1\n", fail("no way"));
            let why = kept.unwrap_err().to_string();
            assert!(why.starts_with(told) || why.contains(told), "{why}");
            assert!(why.contains("no way"), "{why}");
        }
        assert_eq!(std::fs::read_to_string(there).unwrap(), "1\n");
    }

    /// What happened: of several reports of a command to one object each replaced the one before.
    #[test]
    fn one_object_keeps_all_lines_of_a_command() {
        let folder = tempfile::tempdir().unwrap();
        let (file, place) = (folder.path().join("a"), Place::at("https://host/a.jsonl"));
        kept(&file, &place, "1\n", Ok(())).0.unwrap();
        let (_, put) = kept(&file, &place.clone(), "2\n", Ok(()));
        assert_eq!(put[0].1, "1\n2\n");
        let folder = Place::at("https://host/runs/");
        let started = |started| folder.object("append", started);
        assert_ne!(started("1"), started("2"));
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
