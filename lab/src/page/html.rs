//! Markup, written by a few functions that escape: text from the lines can become text on the page and nothing else.
//!
//! Why not a template crate: the page needs elements, attributes and text, and the charts need them computed. Names of
//! elements and attributes are `'static`, so they cannot come from a line. Everything is closed as XML wants it, which
//! lets the tests read a page with a strict parser.

use std::fmt::{Display, Write as _};

/// Markup that is safe to put into the page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Html(String);

impl Html {
    /// Text, escaped.
    pub(super) fn text(text: &str) -> Self {
        let mut html = Self::default();
        escape(text, &mut html.0);
        html
    }

    /// A part of the program itself: the style sheet and the script.
    pub(super) fn own(markup: &'static str) -> Self {
        Self(markup.to_owned())
    }

    /// Adds what follows.
    pub(super) fn push(&mut self, next: impl Into<Html>) {
        self.0.push_str(&next.into().0);
    }

    /// True if there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The markup.
    pub(super) fn into_string(self) -> String {
        self.0
    }
}

impl<T: Into<Html>> FromIterator<T> for Html {
    fn from_iter<I: IntoIterator<Item = T>>(parts: I) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.push(part);
        }
        all
    }
}

impl From<&str> for Html {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Html {
    fn from(text: String) -> Self {
        Self::text(&text)
    }
}

impl From<Element> for Html {
    fn from(element: Element) -> Self {
        element.close()
    }
}

impl<T: Into<Html>> From<Option<T>> for Html {
    fn from(part: Option<T>) -> Self {
        part.map(Into::into).unwrap_or_default()
    }
}

/// An element that is being written.
#[derive(Debug, Clone)]
pub(super) struct Element {
    tag: &'static str,
    attributes: String,
    inner: Html,
}

/// Begins an element.
pub(super) fn el(tag: &'static str) -> Element {
    Element {
        tag,
        attributes: String::new(),
        inner: Html::default(),
    }
}

impl Element {
    /// Adds an attribute.
    pub(super) fn attr(mut self, name: &'static str, value: impl Display) -> Self {
        let _ = write!(self.attributes, " {name}=\"");
        escape(&value.to_string(), &mut self.attributes);
        self.attributes.push('"');
        self
    }

    /// The attribute `class`.
    pub(super) fn class(self, value: impl Display) -> Self {
        self.attr("class", value)
    }

    /// Adds text or an element.
    pub(super) fn with(mut self, inner: impl Into<Html>) -> Self {
        self.inner.push(inner);
        self
    }

    /// Adds several.
    pub(super) fn all<T: Into<Html>>(mut self, inner: impl IntoIterator<Item = T>) -> Self {
        for part in inner {
            self.inner.push(part);
        }
        self
    }

    fn close(self) -> Html {
        let (tag, attributes, inner) = (self.tag, self.attributes, self.inner.0);
        let is_void = matches!(tag, "meta" | "link" | "br" | "hr");
        Html(if is_void {
            format!("<{tag}{attributes}/>")
        } else {
            format!("<{tag}{attributes}>{inner}</{tag}>")
        })
    }
}

/// Escapes for text and for quoted attributes. What no document may hold, and what turns the direction of writing
/// around, is shown as a replacement character.
fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(' '),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {
                out.push('\u{fffd}');
            }
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(html: impl Into<Html>) -> String {
        html.into().into_string()
    }

    #[test]
    fn text_and_attributes_cannot_break_out() {
        let hostile = "\"><script>alert('x')</script>&\u{0}\u{1b}\u{202e}\u{ffff}";
        let html = written(el("p").attr("title", hostile).with(hostile));
        let safe = "&quot;&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;\u{fffd}\u{fffd}\u{fffd}\u{fffd}";
        assert_eq!(html, format!("<p title=\"{safe}\">{safe}</p>"));
    }

    #[test]
    fn elements_nest_and_close() {
        let list = el("ul").all(["a", "b"].map(|item| el("li").with(item)));
        assert_eq!(written(list), "<ul><li>a</li><li>b</li></ul>");
        assert_eq!(
            written(el("meta").attr("charset", "utf-8")),
            "<meta charset=\"utf-8\"/>"
        );
        assert_eq!(written(el("p").with(None::<&str>)), "<p></p>");
    }
}
