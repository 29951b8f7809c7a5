//! Charts of a report. A chart holds no figures of its own: it says which columns of which table it shows, and how.

use serde::{Deserialize, Serialize};

use crate::table::Cell;

/// How values are spread along an axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// From 0.
    #[default]
    Linear,
    /// Each factor of ten takes the same room.
    Log,
    /// Each distinct value is a step.
    Steps,
}

/// What is drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Lines over a horizontal axis.
    #[default]
    Lines,
    /// A bar per row.
    Bars,
}

/// A value of an axis with a name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mark {
    /// Where.
    pub at: f64,
    /// What.
    pub name: String,
}

/// A chart of a table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// Bars or lines.
    pub shape: Shape,
    /// The title of the table.
    pub table: String,
    /// Only rows that have these values in these columns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<(String, Cell)>,
    /// The column that names the lines; without one each of `y` is a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The column of the horizontal axis; of bars, their names.
    pub x: String,
    /// How it is spread.
    pub x_scale: Scale,
    /// Columns of the vertical axis; of bars, the one that is their length.
    pub y: Vec<String>,
    /// What the vertical axis is called, if not as its first column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub y_name: Option<String>,
    /// How it is spread.
    pub y_scale: Scale,
    /// Columns with the least and the most of several rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<(String, String)>,
    /// A column that says why a line ends where it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// Values of the horizontal axis with a name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// Values of the vertical axis with a name, such as a bar that must not be passed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Mark>,
    /// What the picture does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Chart {
    /// Lines: columns `y` of a table over its column `x`.
    pub fn lines(
        title: impl Into<String>,
        table: &str,
        x: (&str, Scale),
        y: (&[&str], Scale),
    ) -> Self {
        Self {
            title: title.into(),
            table: table.into(),
            x: x.0.into(),
            x_scale: x.1,
            y: y.0.iter().map(|name| (*name).to_owned()).collect(),
            y_scale: y.1,
            ..Self::default()
        }
    }

    /// Bars: column `y` of a table for each of its rows.
    pub fn bars(title: impl Into<String>, table: &str, name: &str, y: &str) -> Self {
        Self {
            shape: Shape::Bars,
            ..Self::lines(title, table, (name, Scale::Steps), (&[y], Scale::Linear))
        }
    }

    /// A line for each value of this column.
    #[must_use]
    pub fn by(mut self, column: &str) -> Self {
        self.by = Some(column.into());
        self
    }

    /// Only rows that have this value in this column.
    #[must_use]
    pub fn only(mut self, column: &str, value: impl Into<Cell>) -> Self {
        self.only.push((column.into(), value.into()));
        self
    }

    /// With the least and the most of several rounds.
    #[must_use]
    pub fn range(mut self, least: &str, most: &str) -> Self {
        self.range = Some((least.into(), most.into()));
        self
    }

    /// With a column that says why a line ends where it does.
    #[must_use]
    pub fn stop(mut self, column: &str) -> Self {
        self.stop = Some(column.into());
        self
    }

    /// With another name of the vertical axis.
    #[must_use]
    pub fn y_name(mut self, name: &str) -> Self {
        self.y_name = Some(name.into());
        self
    }

    /// With something that happened at a value of the horizontal axis.
    #[must_use]
    pub fn mark(mut self, at: f64, name: impl Into<String>) -> Self {
        self.marks.push(Mark {
            at,
            name: name.into(),
        });
        self
    }

    /// With a bar across, at a value of the vertical axis.
    #[must_use]
    pub fn limit(mut self, at: f64, name: impl Into<String>) -> Self {
        self.limits.push(Mark {
            at,
            name: name.into(),
        });
        self
    }

    /// With a note under it.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}
