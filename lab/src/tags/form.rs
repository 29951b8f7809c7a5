//! The forms of reading by tag: tables, statements, names.

use serde::Serialize;

/// One way to read by tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Form {
    /// Tags as text in the journal, matched with LIKE; readers take whatever they see.
    LikeUnbounded,
    /// The same, up to the highest number below which none is missing.
    LikeBounded,
    /// A table of tags, joined; readers take whatever they see.
    TagTableUnbounded,
    /// The same, up to the highest number below which none is missing.
    TagTableBounded,
    /// Tags as an array with a GIN index, bounded.
    ArrayGin,
    /// Gesta's subscriptions by tag.
    Gesta,
}

/// The statements of a journal that is polled.
pub(super) struct Statements {
    pub(super) create: &'static str,
    pub(super) fill: &'static str,
    pub(super) index: &'static str,
    pub(super) insert: &'static str,
    pub(super) read: &'static str,
}

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../sql/tags/", $name, ".sql"))
    };
}

impl Form {
    /// Its name on the command line and in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Form::LikeUnbounded => "like-unbounded",
            Form::LikeBounded => "like-bounded",
            Form::TagTableUnbounded => "tag-table-unbounded",
            Form::TagTableBounded => "tag-table-bounded",
            Form::ArrayGin => "array-gin",
            Form::Gesta => "gesta",
        }
    }

    /// For people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Form::LikeUnbounded => "tags as text, LIKE, unbounded",
            Form::LikeBounded => "tags as text, LIKE, bounded",
            Form::TagTableUnbounded => "tag table, unbounded",
            Form::TagTableBounded => "tag table, bounded",
            Form::ArrayGin => "tags as array with GIN index, bounded",
            Form::Gesta => "Gesta",
        }
    }

    /// The PostgreSQL schema that it lives in while it is measured.
    pub(super) fn schema(self) -> String {
        format!("gesta_lab_tags_{}", self.name().replace('-', "_"))
    }

    /// True if its readers stop at the highest number below which none is missing.
    pub(super) fn is_bounded(self) -> bool {
        matches!(
            self,
            Form::LikeBounded | Form::TagTableBounded | Form::ArrayGin
        )
    }

    /// What a reader's tag is in a row.
    pub(super) fn stored_tag(self, reader: u64) -> String {
        match self {
            Form::ArrayGin => reader.to_string(),
            _ => super::plan::tag_name(reader),
        }
    }

    /// What a reader binds.
    pub(super) fn bound_tag(self, reader: u64) -> String {
        match self {
            Form::LikeUnbounded | Form::LikeBounded => format!("%;{};%", self.stored_tag(reader)),
            _ => self.stored_tag(reader),
        }
    }

    /// Its statements; none for Gesta, which has its own.
    pub(super) fn statements(self) -> Option<Statements> {
        let text = |read| Statements {
            create: sql!("create_text_journal"),
            fill: sql!("fill_text_journal"),
            index: sql!("index_text_journal"),
            insert: sql!("insert_text_journal"),
            read,
        };
        let table = |read| Statements {
            create: sql!("create_table_journal"),
            fill: sql!("fill_table_journal"),
            index: sql!("index_table_journal"),
            insert: sql!("insert_table_journal"),
            read,
        };
        Some(match self {
            Form::LikeUnbounded => text(sql!("read_like_unbounded")),
            Form::LikeBounded => text(sql!("read_like_bounded")),
            Form::TagTableUnbounded => table(sql!("read_tag_table_unbounded")),
            Form::TagTableBounded => table(sql!("read_tag_table_bounded")),
            Form::ArrayGin => Statements {
                create: sql!("create_array_journal"),
                fill: sql!("fill_array_journal"),
                index: sql!("index_array_journal"),
                insert: sql!("insert_array_journal"),
                read: sql!("read_array"),
            },
            Form::Gesta => return None,
        })
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The statement that looks for new numbers.
pub(super) const READ_NUMBERS: &str = sql!("read_numbers");
/// The statement that ends connections.
pub(super) const END_CONNECTIONS: &str = sql!("end_connections");

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn names_are_those_of_the_command_line_and_of_the_results() {
        for form in Form::value_variants() {
            let value = form.to_possible_value().unwrap();
            assert_eq!(value.get_name(), form.name());
            assert_eq!(serde_json::to_value(form).unwrap(), form.name());
        }
    }
}
