//! What a section of the page is made of, and what all sections share.

use super::chart::Role;
use super::html::{Html, el};
use super::lines::Line;
use super::look::Look;
use super::numbers::{bytes, count, millis, moment};
use super::table::details;

/// A part of the page.
#[derive(Debug, Clone)]
pub(super) struct Section {
    /// Names it in addresses.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// One sentence that says what was found.
    pub(super) finding: String,
    /// What stands above everything else, if it is not the finding.
    pub(super) lead: Option<String>,
    /// False if what is shown is no result.
    pub(super) is_result: bool,
    pub(super) body: Html,
}

impl Section {
    /// Above everything else.
    pub(super) fn headline(&self) -> &str {
        self.lead.as_deref().unwrap_or(&self.finding)
    }

    /// The markup.
    pub(super) fn draw(self) -> Html {
        let mark = (!self.is_result).then(|| el("strong").class("no-result").with("No result"));
        el("section")
            .attr("id", self.id)
            .with(el("h2").with(self.title))
            .with(
                el("p")
                    .class("finding")
                    .with(mark)
                    .with(if self.is_result { "" } else { " " })
                    .with(self.finding),
            )
            .with(self.body)
            .into()
    }
}

/// The newest first, those that are no result after all others.
pub(super) fn newest_first<'a>(mut lines: Vec<&'a Line>) -> Vec<&'a Line> {
    lines.reverse();
    lines.sort_by(|a, b| {
        let key = |line: &'a Line| (line.is_valid(), line.get("started").text());
        key(b).cmp(&key(a))
    });
    lines
}

/// The newest run in the open, those before it folded away.
pub(super) fn runs(lines: &[&Line], draw: impl Fn(&Line) -> Html) -> Html {
    let mut all = Html::default();
    for (number, line) in lines.iter().enumerate() {
        if number == 0 {
            all.push(draw(line));
        } else {
            let mut what = format!("The run of {} on {}", line.started(), engine(line));
            if !line.is_valid() {
                what.push_str(", which is no result");
            }
            all.push(details(&what, draw(line)));
        }
    }
    all
}

/// A paragraph.
pub(super) fn paragraph(text: impl Into<String>) -> Html {
    let text: String = text.into();
    el("p").with(text).into()
}

/// A heading within a section.
pub(super) fn heading(text: &str) -> Html {
    el("h3").with(text).into()
}

/// A list.
pub(super) fn bullets(items: impl IntoIterator<Item = String>) -> Html {
    let items: Vec<_> = items.into_iter().map(|item| el("li").with(item)).collect();
    if items.is_empty() {
        return Html::default();
    }
    el("ul").all(items).into()
}

/// Charts side by side where there is room.
pub(super) fn side_by_side(charts: impl IntoIterator<Item = Html>) -> Html {
    el("div").class("charts").all(charts).into()
}

/// The database without what the packager added: `PostgreSQL 15.18`.
pub(super) fn engine(line: &Line) -> String {
    short_engine(line.engine().unwrap_or("an unknown database"))
}

/// The same of a text.
pub(super) fn short_engine(engine: &str) -> String {
    engine.split(" (").next().unwrap_or(engine).to_owned()
}

/// When a run began, without the zone.
pub(super) fn started(line: &Line) -> String {
    moment(line.get("started").text().unwrap_or("unknown time"))
}

/// Sizes of events in words: `500 bytes`, `21.7 kB on average (published 2024)`.
pub(super) fn sizes(sizes: Look<'_>) -> Option<String> {
    let mean = sizes.get("mean_bytes").number()?;
    let name = sizes.text_or_empty("name");
    let name = name.split(", mean ").next().unwrap_or(name);
    let is_fixed = name.is_empty() || name.ends_with(" bytes") || name.parse::<f64>().is_ok();
    Some(if is_fixed {
        bytes(mean)
    } else {
        format!("{} on average ({name})", bytes(mean))
    })
}

/// True if a name is that of a Gesta.
pub(super) fn is_ours(name: &str) -> bool {
    name == "gesta" || name.starts_with("gesta-") || name.starts_with("gesta ")
}

/// How each name looks: Gesta always the same, the others by their place among all others.
pub(super) struct Looks(Vec<String>);

impl Looks {
    /// For these names.
    pub(super) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut others: Vec<String> = Vec::new();
        for name in names {
            if name != "gesta" && !others.iter().any(|other| other == name) {
                others.push(name.to_owned());
            }
        }
        Self(others)
    }

    /// The look of a name.
    pub(super) fn of_name(&self, name: &str) -> Role {
        match self.0.iter().position(|other| other == name) {
            Some(number) => Role::Other(number),
            None => Role::Ours,
        }
    }
}

/// Rate and latency of a phase, for the pointer.
pub(super) fn phase_tip(phase: Look<'_>) -> String {
    let mut tip = format!(
        "{} events/s, half within {}, 99 % within {}",
        count(phase.number_or_0("events_per_second")),
        millis(phase.number_or_0("latency_ms.p50")),
        millis(phase.number_or_0("latency_ms.p99")),
    );
    if let Some(limit) = phase.get("generator_limit").text() {
        tip.push_str("; ");
        tip.push_str(limit);
    }
    tip
}

/// Least and most.
pub(super) fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    Some((least, most))
}

/// Values without repetition, ascending.
pub(super) fn distinct(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_words() {
        let of = |name: &str, mean: f64| {
            let value = serde_json::json!({"name": name, "mean_bytes": mean});
            sizes(Look::at(&value)).map(|text| text.replace('\u{a0}', " "))
        };
        assert_eq!(of("500 bytes", 500.0).unwrap(), "500 bytes");
        assert_eq!(
            of("orders", 21_677.0).unwrap(),
            "21.7 kB on average (orders)"
        );
        assert_eq!(sizes(Look::at(&serde_json::Value::Null)), None);
    }

    #[test]
    fn gesta_looks_like_gesta() {
        let looks = Looks::of(["gesta", "a", "gesta-http", "a"]);
        assert_eq!(looks.of_name("gesta"), Role::Ours);
        assert_eq!(looks.of_name("a"), Role::Other(0));
        assert_eq!(looks.of_name("gesta-http"), Role::Other(1));
    }
}
