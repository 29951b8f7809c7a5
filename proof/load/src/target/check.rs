//! The read-back check of a target: everything acknowledged is stored once, where it belongs, unchanged
//! (`gesta_kit::judge::claims`). What is stored tells by its mark which event it must be.

use gesta_kit::history::Claims;
use gesta_kit::judge::claims::{ClaimsJudge, Shown};

use gesta_report::failure::Result;
use gesta_report::read_back::ReadBack;

use super::{Events, Stored, Target};

/// Reads back everything that was appended and compares it with what was claimed.
///
/// # Errors
/// The target cannot be read.
pub async fn check(target: &dyn Target, events: &Events, claims: &Claims) -> Result<ReadBack> {
    let begin = std::time::Instant::now();
    let mut judge = ClaimsJudge::new(claims);
    let mut look = |stored: Stored| look(&mut judge, events, &stored);
    target.read_back(&events.prefix(), &mut look).await?;
    let verdict = judge.finish(|stream| events.stream_name(stream));
    let mut result = ReadBack::of(&verdict);
    result.seconds = begin.elapsed().as_secs_f64();
    Ok(result)
}

fn look(judge: &mut ClaimsJudge<'_>, events: &Events, stored: &Stored) {
    let place = || format!("{} revision {}", stored.stream, stored.revision);
    let Some(of) = events.number_of(&stored.mark) else {
        return judge.unknown(|| format!("{} has the mark {:?}", place(), stored.mark));
    };
    let bytes = events.bytes_of(of) as u64;
    let has_size = stored.bytes.is_none_or(|found| found == bytes);
    let whole = stored.whole.as_ref();
    let shown = Shown {
        stream: of.stream,
        revision: of.revision,
        is_in_its_stream: stored.stream == events.stream_name(of.stream),
        stored_revision: stored.revision,
        position: whole.map(|whole| whole.position),
        is_unaltered: has_size && whole.is_none_or(|whole| whole.data == events.data_of(of)),
    };
    judge.look(&shown, place);
}
