//! The window, alone.

use super::*;
use crate::testing::start;

fn frame(sequence: u64, body_bytes: usize) -> Outstanding {
    Outstanding {
        sequence: Sequence::new(sequence),
        body_bytes,
        begun: start(),
        items: Vec::new(),
    }
}

fn filled(bound: WindowBound, frames: u64, body_bytes: usize) -> Window {
    let mut window = Window::new(bound);
    for sequence in 1..=frames {
        assert!(window.has_room(body_bytes));
        window.push(frame(sequence, body_bytes));
    }
    window
}

fn write(window: &mut Window, sequence: u64) {
    assert_eq!(window.on_written(Sequence::new(sequence)).count(), 0);
}

fn reply(window: &mut Window, sequence: u64) -> Result<u64, PeerMisbehaved> {
    let answered = window.on_reply(Sequence::new(sequence));
    answered.map(|frame| frame.sequence.to_u64())
}

#[test]
fn a_window_of_frames_is_full_at_its_number_whatever_their_size() {
    for frames in [1, 16, 256] {
        let mut window = filled(WindowBound::Frames(frames), frames.into(), 100_000);
        assert!(!window.has_room(0));
        write(&mut window, frames.into());
        assert_eq!(reply(&mut window, 1), Ok(1));
        assert!(window.has_room(1 << 20));
        window.push(frame(u64::from(frames) + 1, 1));
        assert!(!window.has_room(0));
    }
}

#[test]
fn a_window_of_bytes_counts_bytes_and_lets_one_frame_be_of_any_size() {
    let mut window = Window::new(WindowBound::Bytes(100));
    assert!(window.has_room(1000));
    window.push(frame(1, 60));
    assert!(window.has_room(40));
    assert!(!window.has_room(41));
    window.push(frame(2, 40));
    assert!(!window.has_room(1));
    assert!(window.has_room(0));
    write(&mut window, 2);
    assert_eq!(reply(&mut window, 1), Ok(1));
    assert!(window.has_room(60));
    assert!(!window.has_room(61));
    assert_eq!(reply(&mut window, 2), Ok(2));
    assert!(window.has_room(1000));
    assert_eq!((window.len(), window.oldest().is_none()), (0, true));
}

#[test]
fn each_reply_out_of_place_is_its_own_fault() {
    let unsent = |answers, sent| PeerMisbehaved::ReplyToUnsent {
        answers: Sequence::new(answers),
        sent: Sequence::new(sent),
    };
    let second = |answers| PeerMisbehaved::SecondReply {
        answers: Sequence::new(answers),
    };
    let mut window = filled(WindowBound::Frames(8), 4, 1);
    // Begun, and not a byte of them written.
    assert_eq!(reply(&mut window, 1), Err(unsent(1, 0)));
    write(&mut window, 3);
    assert_eq!(reply(&mut window, 0), Err(unsent(0, 3)));
    assert_eq!(reply(&mut window, 4), Err(unsent(4, 3)));
    assert_eq!(reply(&mut window, 9), Err(unsent(9, 3)));
    let (expected, got) = (Sequence::new(1), Sequence::new(2));
    let early = PeerMisbehaved::ReplyOutOfOrder { expected, got };
    assert_eq!(reply(&mut window, 2), Err(early));
    assert_eq!(reply(&mut window, 1), Ok(1));
    assert_eq!(reply(&mut window, 1), Err(second(1)));
    assert_eq!(reply(&mut window, 2), Ok(2));
    assert_eq!(reply(&mut window, 3), Ok(3));
    // Frame 4 is begun and unwritten, all before it are answered.
    assert_eq!(reply(&mut window, 3), Err(second(3)));
    assert_eq!(reply(&mut window, 4), Err(unsent(4, 3)));
    write(&mut window, 4);
    assert_eq!(reply(&mut window, 4), Ok(4));
    assert_eq!(reply(&mut window, 4), Err(second(4)));
    assert_eq!(reply(&mut window, 5), Err(unsent(5, 4)));
}

#[test]
fn writing_up_to_a_frame_writes_all_before_it_once() {
    let account = crate::budget::Budget::new(crate::testing::ample()).open_peer();
    let mut window = Window::new(WindowBound::Frames(8));
    for sequence in 1..=4 {
        let at = start() + crate::testing::LONG;
        let (item, _receipt) = crate::testing::item(&account[0], "x", 0, at);
        let items = vec![(crate::proto::timers::ItemNumber(sequence), item)];
        window.push(Outstanding {
            items,
            ..frame(sequence, 5)
        });
    }
    let mut written = |sequence| {
        let items = window.on_written(Sequence::new(sequence));
        items.map(|(number, _)| number.0).collect::<Vec<_>>()
    };
    assert_eq!(written(2), [1, 2]);
    assert_eq!(written(2), [0; 0]);
    assert_eq!(written(4), [3, 4]);
    assert_eq!(written(1), [0; 0]);
}
