//! When the certificate of a server ends, and when the log is told.
//!
//! Why: an expired certificate is served as well as any other; only clients refuse it, all at once.

use std::path::Path;

use gesta_core::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;

const DAY_SECONDS: i64 = 24 * 60 * 60;
/// How long before its end the log is told for the first time, and again.
const SOON_DAYS: i64 = 30;
const VERY_SOON_DAYS: i64 = 7;

/// How near the end of a certificate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Nearness {
    #[default]
    Far,
    Soon,
    VerySoon,
    Over,
}

/// Returns when the first certificate of a chain ends, in seconds since 1970; `None` if that cannot be read.
pub(crate) fn end_of(chain: &[CertificateDer<'_>]) -> Option<i64> {
    let ends = chain.iter().map(|certificate| {
        let certificate = Certificate::from_der(certificate).ok()?;
        let end = certificate.tbs_certificate.validity.not_after;
        i64::try_from(end.to_unix_duration().as_secs()).ok()
    });
    ends.collect::<Option<Vec<i64>>>()?.into_iter().min()
}

/// Returns how many seconds are left until `end`; less than 0 after it.
pub(crate) fn seconds_left(end: i64, now: Timestamp) -> i64 {
    end.saturating_sub(now.as_micros() / 1_000_000)
}

/// Returns how near the end is for so many seconds that are left.
pub(crate) fn nearness(seconds_left: i64) -> Nearness {
    match seconds_left {
        left if left < 0 => Nearness::Over,
        left if left < VERY_SOON_DAYS * DAY_SECONDS => Nearness::VerySoon,
        left if left < SOON_DAYS * DAY_SECONDS => Nearness::Soon,
        _ => Nearness::Far,
    }
}

/// Tells the log how near the end is.
pub(crate) fn tell(nearness: Nearness, seconds_left: i64, file: &Path) {
    let (days, file) = (seconds_left / DAY_SECONDS, file.display());
    match nearness {
        Nearness::Far => {}
        Nearness::Soon | Nearness::VerySoon => tracing::warn!(
            %file, days,
            "the certificate of this server ends soon: replace its file; the server reads it again by itself"
        ),
        Nearness::Over => tracing::error!(
            %file,
            "the certificate of this server has ended, and clients refuse it: replace its file; the server reads it \
             again by itself"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_the_end_the_louder() {
        for (left, expected) in [
            (365 * DAY_SECONDS, Nearness::Far),
            (30 * DAY_SECONDS, Nearness::Far),
            (30 * DAY_SECONDS - 1, Nearness::Soon),
            (7 * DAY_SECONDS - 1, Nearness::VerySoon),
            (0, Nearness::VerySoon),
            (-1, Nearness::Over),
        ] {
            assert_eq!(nearness(left), expected, "{left}");
        }
    }

    #[test]
    fn the_first_end_of_a_chain_counts() {
        let made = |year: i32| {
            let mut params =
                rcgen::CertificateParams::new(vec!["localhost".into()]).expect("valid");
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            let key = rcgen::KeyPair::generate().expect("a key");
            params.self_signed(&key).expect("made").der().clone()
        };
        // 1 January 2031.
        let expected = 1_924_992_000;
        assert_eq!(end_of(&[made(2040), made(2031)]), Some(expected));
        assert_eq!(end_of(&[made(2040), vec![1, 2, 3].into()]), None);
        let now = Timestamp((expected - 5) * 1_000_000);
        assert_eq!(seconds_left(expected, now), 5);
    }
}
