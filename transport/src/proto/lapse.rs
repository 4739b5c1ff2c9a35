//! When to warn of what will lapse: certificates and revocation lists (T9). A warning that comes too
//! late is of no use and one that comes each second is ignored, so there is one when little time is
//! left, one each time that what is left has halved since, and one when it is over.
//!
//! Knows names and times only, in seconds from 1970; renewing is the operator's business, reading
//! the clock the caller's.
//!
//! Invariant A1: only what was given at the last look is remembered.

use std::collections::BTreeMap;

use crate::limits::LAPSE_WARNING_S_MAX;

/// Something that is good for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lapse {
    /// What it is, for people, with its file.
    pub what: String,
    /// Its first second.
    pub from: i64,
    /// Its last second.
    pub until: i64,
}

/// A warning that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LapseWarning {
    /// What it is about.
    pub what: String,
    /// Its last second.
    pub until: i64,
    /// Seconds left; negative when it is over.
    pub left_s: i64,
}

/// What was warned of.
#[derive(Debug, Default)]
pub struct LapseWatch {
    /// The next warning of each is due when so little is left; `None` once it is over.
    next: BTreeMap<(String, i64), Option<i64>>,
}

impl Lapse {
    /// The first warning is due when so little is left: a third of its time, or the longest notice.
    fn notice_s(&self) -> i64 {
        (self.until.saturating_sub(self.from) / 3).clamp(0, LAPSE_WARNING_S_MAX)
    }
}

impl LapseWatch {
    /// The warnings that are due at `now`. One that was renewed is another one, with another end.
    pub fn look(&mut self, now: i64, lapses: &[Lapse]) -> Vec<LapseWarning> {
        let mut next = BTreeMap::new();
        let mut warnings = Vec::new();
        for lapse in lapses {
            let key = (lapse.what.clone(), lapse.until);
            let known = self.next.get(&key).copied();
            let threshold = known.unwrap_or_else(|| Some(lapse.notice_s()));
            let left_s = lapse.until.saturating_sub(now);
            let due = threshold.is_some_and(|threshold| left_s <= threshold);
            let later = match threshold {
                Some(_) if due && left_s < 0 => None,
                // What is left of the last second is nothing: then only its end remains to be told.
                Some(_) if due => Some(if left_s == 0 { -1 } else { left_s / 2 }),
                other => other,
            };
            if due {
                let (what, until) = key.clone();
                warnings.push(LapseWarning {
                    what,
                    until,
                    left_s,
                });
            }
            next.insert(key, later);
        }
        self.next = next;
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn leaf(from: i64, until: i64) -> Lapse {
        let what = "leaf".to_owned();
        Lapse { what, from, until }
    }

    /// When warnings come, in seconds left, looked for every second.
    fn warned(lapse: &Lapse, step: usize) -> Vec<i64> {
        let mut watch = LapseWatch::default();
        let mut told = Vec::new();
        for now in (lapse.from..lapse.until + 100).step_by(step) {
            let warnings = watch.look(now, std::slice::from_ref(lapse));
            told.extend(warnings.iter().map(|warning| warning.left_s));
        }
        told
    }

    #[test]
    fn a_year_has_its_first_warning_thirty_days_ahead_and_the_last_when_it_is_over() {
        let told = warned(&leaf(0, 365 * DAY), 60);
        assert_eq!(told.first(), Some(&(30 * DAY)));
        assert!(told.last() < Some(&0), "{told:?}");
        assert_eq!(told.iter().filter(|left| **left < 0).count(), 1, "{told:?}");
        assert!((10..25).contains(&told.len()), "{told:?}");
    }

    #[test]
    fn a_minute_is_warned_of_in_its_last_third() {
        assert_eq!(warned(&leaf(0, 60), 1), [20, 10, 5, 2, 1, 0, -1]);
    }

    #[test]
    fn what_has_lapsed_before_the_first_look_is_told_once() {
        let mut watch = LapseWatch::default();
        let old = [leaf(0, 60)];
        assert_eq!(watch.look(1000, &old).len(), 1);
        assert!(watch.look(1001, &old).is_empty());
    }

    #[test]
    fn a_renewed_one_begins_anew_and_the_old_one_is_forgotten() {
        let mut watch = LapseWatch::default();
        assert_eq!(watch.look(50, &[leaf(0, 60)]).len(), 1);
        assert!(watch.look(50, &[leaf(40, 400)]).is_empty());
        assert_eq!(watch.next.len(), 1);
        assert_eq!(watch.look(390, &[leaf(40, 400)]).len(), 1);
    }
}
