//! The URLs of a store in several databases, as one text.

use gesta_core::{Error, Result};

use super::Config;

impl Config {
    /// Reads the URLs of the databases of a store, separated by white space. There is at least one.
    ///
    /// # Errors
    /// `InvalidArgument` as [`parse`](Self::parse) tells it, or if the first URL is one of PostgreSQL and another is
    /// not.
    pub fn parse_list(urls: &str) -> Result<Vec<Self>> {
        list(urls)?.into_iter().map(Self::parse).collect()
    }
}

fn list(urls: &str) -> Result<Vec<&str>> {
    let is_postgres = |url: &str| {
        let scheme = url.split_once(':').map(|(scheme, _)| scheme);
        matches!(scheme, Some("postgres" | "postgresql"))
    };
    if !is_postgres(urls.trim_start()) {
        // What this is may hold spaces, such as the path of a file.
        return Ok(vec![urls]);
    }
    let list: Vec<&str> = urls.split_whitespace().collect();
    if let Some(at) = list.iter().position(|url| !is_postgres(url)) {
        // The text may be a piece of a password, so it is not repeated.
        let rule = format!(
            "must be URLs of PostgreSQL, separated by spaces (%20 within a URL); number {} does not begin with postgres://",
            at + 1
        );
        return Err(Error::invalid("store", rule));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_urls_are_separated_by_spaces() {
        let two = list(" postgres://a/x\n postgresql://b/x ").expect("two");
        assert_eq!(two, ["postgres://a/x", "postgresql://b/x"]);
        let path = "sqlite:my data/gesta.db";
        assert_eq!(list(path).expect("one"), [path]);
        let error = list("postgres://u:se cret@a/x").expect_err("a space");
        let text = error.to_string();
        assert!(
            text.contains("number 2") && !text.contains("cret"),
            "{text}"
        );
    }
}
