//! The tags of an event as one text, in which line feeds join them, for databases without arrays.
//!
//! Why this way: a tag is never empty and holds no control character, so a line feed cannot stand inside one, and an
//! analyst can read the column.

use std::sync::Arc;

use gesta_core::{Tag, Tags};

/// Joins the tags to one text; `None` if there are none.
#[must_use]
pub fn tags_to_text(tags: &Tags) -> Option<String> {
    if tags.is_empty() {
        return None;
    }
    let texts: Vec<&str> = tags.as_slice().iter().map(Tag::as_str).collect();
    Some(texts.join("\n"))
}

/// Reads the tags back from their text.
#[must_use]
pub fn tags_from_text(text: &str) -> Tags {
    Tags::from_stored(
        text.split('\n')
            .map(|tag| Tag::from_stored(Arc::from(tag)))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_as_text_and_back() {
        for list in [vec!["a"], vec!["größe:1", "b c", ","]] {
            let tags = Tags::new(
                list.iter()
                    .map(|tag| Tag::new(*tag).expect("valid"))
                    .collect(),
            )
            .expect("valid");
            let text = tags_to_text(&tags).expect("has tags");
            assert_eq!(tags_from_text(&text), tags);
        }
        assert_eq!(tags_to_text(&Tags::NONE), None);
    }
}
