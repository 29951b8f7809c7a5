//! The store that the command line names, as people are told of it: where it is, and how a hint is typed.
//!
//! Why: texts of libraries name commands, such as `gesta schema new-incarnation`, and cannot know how the store was
//! named. Typed as it stood, such a hint worked on the store by default. So whatever is said is completed here.
//! Invariants: no password is shown; a command gets only a store that it can work on.
//! Not here: how a store is opened (`commands`).

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The store of this process, once it is known.
static NAMED: OnceLock<Named> = OnceLock::new();

/// Commands that work on a database alone, as texts name them between back quotes.
const ON_DATABASES: [&str; 8] = [
    "cluster drain",
    "cluster finalize",
    "cluster recover-log",
    "cluster status",
    "cluster unpin",
    "schema migrate",
    "schema new-incarnation",
    "user add",
];
/// Commands that ask a server as well.
const ON_ANY_STORE: [&str; 6] = [
    "timer list",
    "token revoke",
    "user list",
    "user password",
    "verify",
    "virtual-streams",
];

/// How a store was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The URLs, separated by spaces.
    urls: String,
    /// The file in which they stand.
    file: Option<PathBuf>,
}

impl Named {
    /// Takes the URLs of a store, and the file from which they were read, if it was one.
    pub(crate) fn new(urls: impl Into<String>, file: Option<PathBuf>) -> Self {
        Self {
            urls: urls.into(),
            file,
        }
    }

    fn is_server(&self) -> bool {
        self.urls.starts_with("http://") || self.urls.starts_with("https://")
    }

    fn is_file(&self) -> bool {
        self.urls.starts_with("sqlite:")
    }

    /// Returns the options that name the store to another command; nothing if they cannot be shown.
    fn options(&self) -> Option<String> {
        if let Some(file) = &self.file {
            return Some(format!("--store-file {}", quoted(file.to_str()?)));
        }
        // The path of a file may hold spaces.
        let urls = match self.is_file() {
            true => vec![self.urls.as_str()],
            false => self.urls.split_whitespace().collect(),
        };
        let options = urls.into_iter().map(|url| {
            let url = without_password(url)?;
            Some(format!("--store {}", quoted(&url)))
        });
        let options: Option<Vec<String>> = options.collect();
        Some(options?.join(" "))
    }

    /// Returns a text with the store in the commands that it names, so that they can be typed as they stand.
    fn completed<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let Some(options) = self.options() else {
            return Cow::Borrowed(text);
        };
        let mut parts = text.split('`');
        let mut whole = parts.next().unwrap_or_default().to_owned();
        let mut is_command = true;
        for part in parts {
            whole.push('`');
            whole.push_str(part);
            if is_command && self.lacks_store(part) {
                whole.push(' ');
                whole.push_str(&options);
            }
            is_command = !is_command;
        }
        let path = self.urls.strip_prefix("sqlite://");
        let path = path.filter(|path| !path.starts_with(['/', ':']));
        if let Some(path) = path.filter(|_| text.contains("there is no store at ")) {
            let hint = format!(
                "; {} names the path {path} in the current folder, as sqlite:{path} does, and an absolute path begins with a \
                 slash: sqlite:/{path}",
                self.urls
            );
            whole.push_str(&hint);
        }
        match whole == text {
            true => Cow::Borrowed(text),
            false => Cow::Owned(whole),
        }
    }

    /// Tells whether this is a command that works on the store, and does not say on which one.
    fn lacks_store(&self, quoted: &str) -> bool {
        let Some(command) = quoted.strip_prefix("gesta ") else {
            return false;
        };
        let is = |name: &&str| {
            let rest = command.strip_prefix(*name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let is_known =
            ON_ANY_STORE.iter().any(is) || !self.is_server() && ON_DATABASES.iter().any(is);
        is_known && !command.contains("--store") && !command.contains('…')
    }
}

/// Notes which store this process works on. The first one counts.
pub(crate) fn set(named: Named) {
    // A second one would be that of a library.
    let _ = NAMED.set(named);
}

/// Returns a text with the store of this process in the commands that it names.
pub(crate) fn completed(text: &str) -> Cow<'_, str> {
    match NAMED.get() {
        Some(named) => named.completed(text),
        None => Cow::Borrowed(text),
    }
}

/// Returns the URLs of the store of this process if it is on a network, where it may not answer.
pub(crate) fn on_a_network() -> Option<&'static str> {
    let named = NAMED.get().filter(|named| !named.is_file());
    named.map(|named| named.urls.as_str())
}

/// Returns a URL without its password; nothing if it is not clear where the password is.
fn without_password(url: &str) -> Option<String> {
    let Some((scheme, rest)) = url.split_once("://").filter(|(name, _)| *name != "sqlite") else {
        return Some(url.to_owned());
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => {
            let name = user.split(':').next().unwrap_or_default();
            format!("{name}@{host}")
        }
        // It has a character that ends a name of a host, so that some of it stands where other things do.
        None if url.contains('@') => return None,
        None => authority.to_owned(),
    };
    let mut shown = format!("{scheme}://{authority}{path}");
    let is_open = |option: &&str| {
        let name = option.split('=').next().unwrap_or_default();
        !name.to_ascii_lowercase().contains("password")
    };
    let options: Vec<&str> = query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .filter(is_open)
        .collect();
    if !options.is_empty() {
        shown.push('?');
        shown.push_str(&options.join("&"));
    }
    Some(shown)
}

/// Returns a word as a shell takes it for one.
fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    match word.chars().all(is_plain) {
        true => Cow::Borrowed(word),
        false => Cow::Owned(format!("'{}'", word.replace('\'', r"'\''"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(urls: &str, text: &str) -> String {
        Named::new(urls, None).completed(text).into_owned()
    }

    /// What happened: `gesta schema new-incarnation`, typed as it was said, worked on the store by default.
    #[test]
    fn a_command_that_is_named_gets_the_store() {
        let text = "run `gesta schema new-incarnation`, then `gesta verify`";
        assert_eq!(
            completed("sqlite:a b.db", text),
            "run `gesta schema new-incarnation --store 'sqlite:a b.db'`, then `gesta verify --store 'sqlite:a b.db'`"
        );
        assert_eq!(
            completed(
                "postgres://u:pw@one/d postgres://two/d",
                "`gesta cluster unpin 3`"
            ),
            "`gesta cluster unpin 3 --store postgres://u@one/d --store postgres://two/d`"
        );
        let file = Named::new("postgres://u:pw@h/d", Some("/run/a store".into()));
        assert_eq!(
            file.completed("`gesta verify`"),
            "`gesta verify --store-file '/run/a store'`"
        );
        for (urls, as_it_was) in [
            ("sqlite:a.db", "`gesta schema migrate --store sqlite:b.db`"),
            (
                "sqlite:a.db",
                "gesta schema migrate, `gesta backup`, `verify`",
            ),
            ("sqlite:a.db", "the change of `gesta verifying`"),
            ("sqlite:a.db", "between` gesta verify `quotes"),
            // A server is no database.
            ("http://h:1", "`gesta schema new-incarnation`"),
        ] {
            assert_eq!(completed(urls, as_it_was), as_it_was);
        }
        let of_server = completed("http://h:1", "`gesta token revoke abc`");
        assert_eq!(of_server, "`gesta token revoke abc --store http://h:1`");
    }

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("postgres://u:pw@h:1/d", Some("postgres://u@h:1/d")),
            ("postgres://u:p@w:x@h/d", Some("postgres://u@h/d")),
            ("postgres://u:p%40@[::1]/d", Some("postgres://u@[::1]/d")),
            (
                "postgres://h/d?password=pw&connect_timeout=60&sslPassword=pw",
                Some("postgres://h/d?connect_timeout=60"),
            ),
            ("postgres://h/d?password=pw", Some("postgres://h/d")),
            ("postgres://h", Some("postgres://h")),
            // A password with a character that must be encoded.
            ("postgres://u:p/w@h/d", None),
            ("postgres://u:p?w@h/d", None),
            ("sqlite:a?b@c", Some("sqlite:a?b@c")),
            ("sqlite://a@b", Some("sqlite://a@b")),
        ] {
            assert_eq!(without_password(url).as_deref(), shown, "{url}");
        }
        let hint = completed("postgres://u:p/w@h/d", "`gesta verify`");
        assert_eq!(hint, "`gesta verify`");
    }

    /// What happened: whoever wrote `sqlite://var/lib/gesta.db` was told that nothing was at `var/lib/gesta.db`.
    #[test]
    fn a_relative_path_is_told_from_an_absolute_one() {
        let text = "there is no store at var/gesta.db";
        let told = completed("sqlite://var/gesta.db", text);
        assert!(told.starts_with(text), "{told}");
        let hint = "as sqlite:var/gesta.db does, and an absolute path begins with a slash: sqlite:/var/gesta.db";
        assert!(told.ends_with(hint), "{told}");
        for other in ["sqlite:var/gesta.db", "sqlite:///var/gesta.db"] {
            assert_eq!(completed(other, text), text);
        }
        assert_eq!(completed("sqlite://var/gesta.db", "another"), "another");
    }
}
