//! What no output may hold: passwords and keys in URLs, and values of headers.
//!
//! Command lines, refused URLs and the beginnings of answers go through here before anybody sees them, and before they
//! are kept. Invariant: a URL that cannot be understood shows nothing but its scheme, since nobody can tell where its
//! password ends.
//! Not here: which values a request carries (`engine`).

use std::fmt;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Stands for what is hidden.
const HIDDEN: &str = "***";
/// Parameters of URLs whose values are shown; the value of any other one may be a key.
const PLAIN_PARAMETERS: [&str; 20] = [
    "answer_timeout",
    "application_name",
    "channel_binding",
    "compression",
    "connect_timeout",
    "dbname",
    "durability",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "load_balance_hosts",
    "port",
    "readers",
    "schema",
    "sslmode",
    "sslrootcert",
    "tcp_user_timeout",
];
/// Longest part of an answer that is shown, in characters.
const SHOWN_MAX: usize = 200;
/// Shorter values are no secrets, and stand in many texts by chance.
const SECRET_MIN: usize = 4;
/// Words of headers that name the kind of a secret.
const KINDS: [&str; 6] = ["basic", "bearer", "digest", "negotiate", "token", "apikey"];

/// A text without the secrets of the URLs in it: of each URL what stands between `://` and the last `@` is hidden, the
/// values of parameters that are not known to be harmless, and what follows a `#`.
#[must_use]
pub fn redacted(text: &str) -> String {
    let mut begins: Vec<usize> = Vec::new();
    for (at, _) in text.match_indices("://") {
        let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || "+.-".contains(c);
        let begin = text[..at].trim_end_matches(is_of_scheme).len();
        // Within a URL it is a part of that: perhaps of its password.
        if begins.is_empty() || text[..begin].ends_with(char::is_whitespace) {
            begins.push(begin);
        }
    }
    let mut shown = text[..begins.first().copied().unwrap_or(text.len())].to_owned();
    let ends = begins.iter().skip(1).copied().chain([text.len()]);
    for (begin, end) in begins.iter().zip(ends) {
        let piece = &text[*begin..end];
        let url = piece.trim_end();
        shown.push_str(&without_secrets(url));
        shown.push_str(&piece[url.len()..]);
    }
    shown
}

/// What may be shown of a URL that was refused, and that may not even be one.
#[must_use]
pub fn redacted_url(text: &str) -> String {
    let first = text.split('/').next().unwrap_or_default();
    match text.contains("://") {
        true => redacted(text),
        false if is_host(first) && !text.contains(['@', '?', '#']) => text.to_owned(),
        false => HIDDEN.to_owned(),
    }
}

/// One URL without its secrets.
fn without_secrets(url: &str) -> String {
    let (scheme, after) = url.split_once("://").unwrap_or((url, ""));
    if scheme == "sqlite" {
        // A file, which has no password; its path may hold anything.
        return url.to_owned();
    }
    let (user, after) = match after.rsplit_once('@') {
        // What follows an `@` of a parameter or a fragment is no host.
        Some((before, _)) if is_behind_the_path(before) => return format!("{scheme}://{HIDDEN}"),
        Some((_, after)) => (format!("{HIDDEN}@"), after),
        None => (String::new(), after),
    };
    let (authority, rest) = after.split_at(after.find(['/', '?', '#']).unwrap_or(after.len()));
    if !authority.split(',').all(is_host) {
        return format!("{scheme}://{HIDDEN}");
    }
    let (rest, fragment) = rest
        .split_once('#')
        .map_or((rest, false), |it| (it.0, true));
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| match pair.split_once('=') {
        Some((name, _)) if PLAIN_PARAMETERS.contains(&name) => pair.to_owned(),
        Some((name, _)) => format!("{name}={HIDDEN}"),
        None => HIDDEN.to_owned(),
    });
    let query = pairs.collect::<Vec<_>>().join("&");
    let query = if query.is_empty() {
        query
    } else {
        format!("?{query}")
    };
    let fragment = if fragment { "#***" } else { "" };
    format!("{scheme}://{user}{authority}{path}{query}{fragment}")
}

/// True if what follows this part of a URL, which is without its scheme, may be of its parameters or its fragment. A
/// password may have a `#`, but neither a `/` nor a `?`.
fn is_behind_the_path(part: &str) -> bool {
    let path = part.find('/').map_or("", |at| &part[at..]);
    part.contains('?') || path.contains('#')
}

/// True for a host, or for a host and its port; the host may be missing.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_named = match host.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').is_some_and(|address| {
            let is_digit = |c: char| c.is_ascii_hexdigit() || ":.%".contains(c);
            address.chars().all(is_digit)
        }),
        None => {
            let is_plain = |c: char| c.is_alphanumeric() || "-._~%".contains(c);
            host.chars().all(is_plain)
        }
    };
    is_named && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Values that a request carried and that nobody is to see.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secrets").field(&self.0.len()).finish()
    }
}

impl Secrets {
    /// Adds the value of a header: as a whole, and its words, such as the token behind `Bearer`.
    pub fn add(&mut self, value: &str) {
        let value = value.trim();
        let words = value.split(|c: char| c.is_whitespace() || ";,\"".contains(c));
        let words = words.flat_map(|word| {
            let behind = word.split_once('=').map(|(_, value)| value);
            [Some(word), behind].into_iter().flatten()
        });
        for secret in words.chain([value]) {
            let is_kind = KINDS.iter().any(|kind| kind.eq_ignore_ascii_case(secret));
            if is_kind || secret.chars().count() < SECRET_MIN {
                continue;
            }
            // As a text in quotes, in JSON and in a path has it.
            let json = serde_json::Value::from(secret).to_string();
            let forms = [
                secret.to_owned(),
                secret.escape_debug().to_string(),
                json.trim_matches('"').to_owned(),
                utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string(),
            ];
            for form in forms {
                if !self.0.contains(&form) {
                    self.0.push(form);
                }
            }
        }
        // A word must not hide the beginning of a longer one alone.
        self.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    }

    /// The text without them.
    pub fn hidden(&self, text: &str) -> String {
        self.beginning(text, usize::MAX)
    }

    /// The beginning of the text without them.
    pub fn shown(&self, text: &str) -> String {
        self.beginning(text, SHOWN_MAX)
    }

    /// So many characters of the text. What is hidden is looked for in the whole text: cut first, it would not be found
    /// at the end of the part.
    fn beginning(&self, text: &str, most: usize) -> String {
        let (mut shown, mut rest, mut left) = (String::new(), text, most);
        while left > 0 {
            if let Some(secret) = self
                .0
                .iter()
                .find(|secret| rest.starts_with(secret.as_str()))
            {
                shown.push_str(HIDDEN);
                left = left.saturating_sub(secret.chars().count());
                rest = &rest[secret.len()..];
                continue;
            }
            let Some(next) = rest.chars().next() else {
                return shown;
            };
            shown.push(next);
            left -= 1;
            rest = &rest[next.len_utf8()..];
        }
        if !rest.is_empty() {
            shown.push('…');
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened: a URL that was not understood, or whose user was not found, was shown with its password: with
    /// several hosts the last of which has no port, and with a `#` in the password, which the product takes.
    #[test]
    fn no_url_shows_its_password() {
        for (url, wanted) in [
            ("postgres://u:secret@h:1/x", "postgres://***@h:1/x"),
            (
                "postgres://u:secret@h1:5432,h2/db",
                "postgres://***@h1:5432,h2/db",
            ),
            ("postgres://u:se#cret@h", "postgres://***@h"),
            ("postgres://u:12#cret@h/x", "postgres://***@h/x"),
            ("postgres://u:se/cret@h/x", "postgres://***@h/x"),
            ("postgres://u:se@cret@h/x", "postgres://***@h/x"),
            ("postgres://u:secret", "postgres://***"),
            ("postgres://u:secret/x", "postgres://***"),
            ("postgres://h:port/secret", "postgres://***"),
            ("postgres://u:x://secret@h/x", "postgres://***@h/x"),
            (
                "postgres://h/x?password=secret&schema=a&b=secret#secret",
                "postgres://h/x?password=***&schema=a&b=***#***",
            ),
            ("postgres://h/x?password=se@cret", "postgres://***"),
            ("https://h/x#se@cret", "https://***"),
            ("https://h/a.jsonl?secret", "https://h/a.jsonl?***"),
            ("https://h/a?X-Sig=secret&a", "https://h/a?X-Sig=***&***"),
            (
                "--store=postgres://u:secret@[::1]:1/x postgres://v:secret@h2/y ",
                "--store=postgres://***@[::1]:1/x postgres://***@h2/y ",
            ),
            ("--warm-up=5s", "--warm-up=5s"),
            ("sqlite:a@b.db?create=true", "sqlite:a@b.db?create=true"),
            ("sqlite://a@b.db", "sqlite://a@b.db"),
            ("http://127.0.0.1:8080/x", "http://127.0.0.1:8080/x"),
        ] {
            assert_eq!(redacted(url), wanted, "{url}");
        }
    }

    #[test]
    fn what_is_no_url_is_shown_if_it_can_be_no_secret() {
        for (text, wanted) in [
            ("127.0.0.1:8080/x", "127.0.0.1:8080/x"),
            ("user:secret@h", "***"),
            ("user:secret", "***"),
            ("host=h password=secret", "***"),
            ("postgres://u:secret@h", "postgres://***@h"),
        ] {
            assert_eq!(redacted_url(text), wanted);
        }
    }

    /// Goal: what a request carried is not shown if the answer repeats it: whole, in part, in quotes, in a path, or at
    /// the end of what is shown.
    #[test]
    fn an_answer_that_repeats_a_secret_does_not_show_it() {
        let mut secrets = Secrets::default();
        secrets.add("Bearer to\"k n");
        secrets.add("session=abcdef; theme=x");
        assert_eq!(secrets.shown("a Bearer to\"k n, z"), "a ***, z");
        assert_eq!(
            secrets.shown(r#"{"it": "Bearer to\"k n"}"#),
            r#"{"it": "***"}"#
        );
        assert_eq!(secrets.hidden("/x/abcdef/bearer"), "/x/***/bearer");
        let long = format!("{}abcdef{}", "y".repeat(SHOWN_MAX - 2), "z".repeat(9));
        assert_eq!(
            secrets.shown(&long),
            format!("{}***…", "y".repeat(SHOWN_MAX - 2))
        );
        let none = Secrets::default();
        assert_eq!(none.shown(&"ö".repeat(300)), "ö".repeat(SHOWN_MAX) + "…");
        assert_eq!(none.shown("whole"), "whole");
        assert!(!format!("{secrets:?}").contains("abcdef"));
    }
}
