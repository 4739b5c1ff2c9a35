use proptest::prelude::*;

use super::*;

const GROUP: GroupId = GroupId::new(5);

/// Terms along one true log: they rise by one every fifth entry; before it there is none.
fn term(index: u64) -> Term {
    Term::new(if index == 0 { 0 } else { 1 + index / 5 })
}

fn span(first: u64, last: u64) -> Span {
    Span {
        first: Index::new(first),
        term_before: term(first - 1),
        last: Index::new(last),
        last_term: term(last),
    }
}

fn at(index: u64) -> Position {
    let term = term(index);
    let index = Index::new(index);
    Position { index, term }
}

#[test]
fn a_position_ends_where_the_first_gap_begins() {
    let mut catalog = Catalog::default();
    assert_eq!(catalog.position(GROUP), Position::default());
    assert_eq!(catalog.add(GROUP, span(4, 6)), Ok(Added::Ahead));
    assert_eq!(catalog.position(GROUP).index, Index::new(0));
    assert_eq!(catalog.ahead().count(), 1);
    assert_eq!(catalog.add(GROUP, span(1, 2)), Ok(Added::Next));
    assert_eq!(catalog.position(GROUP), at(2));
    assert_eq!(catalog.add(GROUP, span(3, 3)), Ok(Added::Next));
    assert_eq!(catalog.position(GROUP), at(6));
    assert_eq!(catalog.ahead().count(), 0);
    let through = Index::new(6);
    assert_eq!(
        catalog.add(GROUP, span(5, 9)),
        Ok(Added::Overlap { through })
    );
    assert_eq!(catalog.position(GROUP), at(9));
    let through = Index::new(3);
    assert_eq!(
        catalog.add(GROUP, span(2, 3)),
        Ok(Added::Overlap { through })
    );
    assert_eq!(catalog.position(GROUP), at(9), "C1");
}

#[test]
fn terms_that_do_not_fit_stop_the_group_and_no_other() {
    let end = || {
        let mut catalog = Catalog::default();
        catalog.add(GROUP, span(1, 7)).unwrap();
        catalog
    };
    let mut before = span(8, 9);
    before.term_before = Term::new(9);
    let mut same = span(3, 7);
    same.last_term = Term::new(9);
    let mut falling = span(6, 9);
    falling.last_term = Term::new(1);
    for (wrong, index, got) in [(before, 7, 9), (same, 7, 9), (falling, 9, 1)] {
        let mut catalog = end();
        let fork = Fork::Terms {
            index: Index::new(index),
            archived: term(7),
            got: Term::new(got),
        };
        assert_eq!(catalog.add(GROUP, wrong), Err(fork));
        assert_eq!(catalog.fork(GROUP), Some(fork));
        assert_eq!(catalog.add(GROUP, span(8, 9)), Err(fork), "C3");
        assert_eq!(catalog.position(GROUP), at(7));
        let other = GroupId::new(6);
        assert_eq!(catalog.add(other, span(1, 9)), Ok(Added::Next));
        assert_eq!(catalog.forks().collect::<Vec<_>>(), [(GROUP, fork)]);
    }
}

#[test]
fn what_was_derived_before_is_gone_on_from() {
    let mut catalog = Catalog::default();
    catalog.begin_at(GROUP, at(12));
    assert_eq!(catalog.add(GROUP, span(13, 20)), Ok(Added::Next));
    catalog.begin_at(GROUP, at(12));
    assert_eq!(catalog.position(GROUP), at(20), "C1");
}

proptest! {
    /// Against a naive model: mark every entry that some object holds, and count from the first.
    #[test]
    fn the_position_is_the_end_of_what_is_covered_whatever_the_order(
        spans in prop::collection::vec((1..60_u64, 0..8_u64), 0..40),
        seed in any::<prop::sample::Index>(),
    ) {
        let mut spans: Vec<_> = spans.iter().map(|(first, more)| span(*first, first + more)).collect();
        if !spans.is_empty() {
            let turn = seed.index(spans.len());
            spans.rotate_left(turn);
        }
        let mut catalog = Catalog::default();
        let mut covered = [false; 80];
        for span in &spans {
            catalog.add(GROUP, *span).unwrap();
            let (first, last) = (span.first.to_u64(), span.last.to_u64());
            for index in first..=last {
                covered[usize::try_from(index).unwrap()] = true;
            }
            let end = (1_u64..).take_while(|index| covered[usize::try_from(*index).unwrap()]).count();
            let end = u64::try_from(end).unwrap();
            prop_assert_eq!(catalog.position(GROUP).index, Index::new(end));
            if end > 0 {
                prop_assert_eq!(catalog.position(GROUP), at(end));
            }
        }
        // The other way round it ends the same.
        let mut reversed = Catalog::default();
        for span in spans.iter().rev() {
            reversed.add(GROUP, *span).unwrap();
        }
        prop_assert_eq!(reversed.position(GROUP), catalog.position(GROUP));
        prop_assert_eq!(reversed.ahead().next().is_none(), catalog.ahead().next().is_none());
    }
}
