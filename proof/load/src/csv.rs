//! CSV as RFC 4180 describes it: fields between commas, quoted ones may hold commas, line ends and doubled quotes.
//! The first record names the columns.

use std::collections::HashSet;

/// Most fields of a record, and so most columns.
const FIELDS_MAX: usize = 1_000;

/// A file of records.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Csv {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Reads a file.
///
/// # Errors
/// The line and the rule that it breaks.
pub(crate) fn parse(text: &str, rows_max: usize) -> Result<Csv, (usize, String)> {
    let mut reader = Reader {
        rest: text.strip_prefix('\u{feff}').unwrap_or(text),
        line: 1,
    };
    let columns = match reader.record()? {
        Some(columns) => columns,
        None => {
            return Err((
                1,
                "the file is empty: its first line must name the columns".into(),
            ));
        }
    };
    let mut known = HashSet::new();
    for (at, column) in columns.iter().enumerate() {
        if column.is_empty() {
            return Err((1, format!("column {} has no name", at + 1)));
        }
        if !known.insert(column) {
            return Err((1, format!("two columns are named {column:?}")));
        }
    }
    let mut rows = Vec::new();
    loop {
        let line = reader.line;
        let Some(row) = reader.record()? else { break };
        if row.len() != columns.len() {
            let (found, wanted) = (row.len(), columns.len());
            return Err((
                line,
                format!("the record has {found} fields and not {wanted} as the first line"),
            ));
        }
        if rows.len() == rows_max {
            return Err((line, format!("more than {rows_max} records")));
        }
        rows.push(row);
    }
    if rows.is_empty() {
        return Err((
            1,
            "the file has no record but the names of the columns".into(),
        ));
    }
    Ok(Csv { columns, rows })
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl Reader<'_> {
    /// The next record; empty lines are passed over.
    fn record(&mut self) -> Result<Option<Vec<String>>, (usize, String)> {
        while self.line_end() {}
        if self.rest.is_empty() {
            return Ok(None);
        }
        let mut fields = Vec::new();
        loop {
            if fields.len() == FIELDS_MAX {
                return Err((self.line, format!("more than {FIELDS_MAX} fields")));
            }
            fields.push(self.field()?);
            if let Some(rest) = self.rest.strip_prefix(',') {
                self.rest = rest;
            } else if self.line_end() || self.rest.is_empty() {
                return Ok(Some(fields));
            } else {
                let rule = "after a closing quote there must be a comma or the end of the line";
                return Err((self.line, rule.into()));
            }
        }
    }

    /// Takes the end of a line, if one is next.
    fn line_end(&mut self) -> bool {
        let rest = self
            .rest
            .strip_prefix("\r\n")
            .or_else(|| self.rest.strip_prefix('\n'));
        if let Some(rest) = rest {
            self.rest = rest;
            self.line += 1;
        }
        rest.is_some()
    }

    fn field(&mut self) -> Result<String, (usize, String)> {
        let Some(mut rest) = self.rest.strip_prefix('"') else {
            let end = self.rest.find([',', '\n']).unwrap_or(self.rest.len());
            let (field, rest) = self.rest.split_at(end);
            self.rest = rest;
            // What ends with `\r\n`.
            let field = if rest.starts_with('\n') {
                field.strip_suffix('\r').unwrap_or(field)
            } else {
                field
            };
            if field.contains('"') {
                return Err((
                    self.line,
                    "a quote in the middle of a field: quote the whole field".into(),
                ));
            }
            return Ok(field.to_owned());
        };
        let (opened, mut field) = (self.line, String::new());
        loop {
            let Some(end) = rest.find('"') else {
                return Err((opened, "a quoted field without a closing quote".into()));
            };
            let (part, after) = rest.split_at(end);
            self.line += part.matches('\n').count();
            field.push_str(part);
            let after = &after[1..];
            match after.strip_prefix('"') {
                Some(more) => {
                    field.push('"');
                    rest = more;
                }
                None => {
                    self.rest = after;
                    return Ok(field);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_the_standard_says() {
        let text = "\u{feff}id,name\r\n1,\"a, \"\"b\"\"\nc\"\r\n\r\n2,\n\"3\",ü";
        let csv = parse(text, 10).unwrap();
        assert_eq!(csv.columns, ["id", "name"]);
        assert_eq!(csv.rows, [["1", "a, \"b\"\nc"], ["2", ""], ["3", "ü"]]);
    }

    #[test]
    fn a_wrong_file_is_refused_with_line_and_rule() {
        for (text, line, rule) in [
            ("", 1, "first line must name the columns"),
            ("id\n", 1, "no record"),
            ("id,id\n1,2", 1, "two columns are named \"id\""),
            ("id,\n1,2", 1, "column 2 has no name"),
            ("id,name\n1,2\n3", 3, "has 1 fields and not 2"),
            ("id\n\"a\nb\"\nc\"d", 4, "a quote in the middle"),
            ("id\n1\n\"2", 3, "without a closing quote"),
            ("id\n\"1\"2", 2, "after a closing quote"),
            ("id\n1\n2\n3\n4", 5, "more than 3 records"),
        ] {
            let (found, why) = parse(text, 3).unwrap_err();
            assert_eq!(found, line, "{text:?}: {why}");
            assert!(why.contains(rule), "{text:?}: {why}");
        }
    }

    /// Goal: a file of one endless line is refused before all of its fields are kept.
    #[test]
    fn a_record_has_a_largest_number_of_fields() {
        let columns = |count: usize| -> String {
            let names: Vec<String> = (0..count).map(|number| format!("c{number}")).collect();
            names.join(",")
        };
        let fits = format!("{}\n{}", columns(FIELDS_MAX), ",".repeat(FIELDS_MAX - 1));
        assert_eq!(parse(&fits, 3).unwrap().columns.len(), FIELDS_MAX);
        for (text, line) in [
            (columns(FIELDS_MAX + 1), 1),
            (format!("a\n{}", ",".repeat(FIELDS_MAX)), 2),
        ] {
            let why = parse(&text, 3).unwrap_err();
            assert_eq!(why, (line, "more than 1000 fields".to_owned()));
        }
    }
}
