//! T0: what runs in the kernel, run here.

use super::account::{self, CLOSE, Conn, Figures, LoadRecord, STATES, WatchSlot};
use super::address;
use super::guard::{self, Bucket, Settings, Verdict};
use super::layout::{START, mix};
use super::packet::{self, Packet};
use proptest::prelude::*;

extern crate std;
use std::vec::Vec;

#[test]
fn a_structure_survives_its_bytes() {
    let record = LoadRecord { closed: 1, opened: 2, lifetime_ns: u64::MAX, generation: 7, ..LoadRecord::default() };
    let bytes = record.to_bytes();
    assert_eq!(LoadRecord::from_bytes(&bytes), record);
    assert_eq!(bytes[..8], 1_u64.to_ne_bytes(), "`closed` is what a copy in ascending order reads first");
    assert_eq!(bytes[80..84], 7_u32.to_ne_bytes());
}

#[test]
fn layouts_differ_where_a_name_or_an_offset_does() {
    assert_ne!(account::WatchKey::LAYOUT, account::PeerKey::LAYOUT);
    assert_ne!(mix(START, b"ab"), mix(START, b"ba"));
}

#[test]
fn addresses_have_one_form() {
    let v4 = address::from_v4([10, 1, 2, 3]);
    let words = address::v4_words(u32::from_ne_bytes([10, 1, 2, 3]));
    let mut joined = Vec::new();
    for word in words {
        joined.extend(word.to_ne_bytes());
    }
    assert_eq!(joined, v4, "the words of a context are the bytes of a map");
    assert_eq!(address::from_v4_word(u32::from_ne_bytes([10, 1, 2, 3])), v4);
    assert!(address::is_v4(&v4) && !address::is_v4(&address::ANY));
    assert_eq!(address::listener(address::from_v4([0; 4])), address::ANY);
    assert_eq!(address::listener(v4), v4);
    assert_eq!(address::port_from_word(u32::from(8000_u16).to_be()), 8000);
    assert_eq!(address::source(v4), v4);
    let host = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9];
    assert_eq!(address::source(host), [0x20, 1, 0xd, 0xb8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
}

/// All transitions that a socket can make, and some that it cannot: only those to CLOSE end a connection, from wherever.
#[test]
fn of_all_transitions_only_those_to_close_end_a_connection() {
    let slot = WatchSlot { index: 3, generation: 2 };
    let figures = Figures { bytes_in: 10, bytes_out: 20, retransmits: 1 };
    for old in 1..STATES {
        for new in 1..STATES {
            let (conn, opened) = account::opened(slot, 100);
            assert_eq!((opened.opened, opened.closed), (1, 0));
            let ended = account::closed(&conn, new, figures, 150);
            assert_eq!(ended.is_some(), new == CLOSE, "{old} to {new}");
            if let Some((after, delta)) = ended {
                assert_eq!((delta.closed, delta.lifetime_ns, delta.bytes_in), (1, 50, 10));
                assert_eq!(account::closed(&after, CLOSE, figures, 200), None, "once");
            }
        }
    }
}

#[test]
fn an_answer_counts_as_going_after_a_second_segment_or_half_a_kilobyte() {
    let (mut conn, _) = account::opened(WatchSlot::default(), 0);
    assert!(account::awaits_after_input(&conn));
    conn.awaiting = 1;
    let (bytes, segments) = account::answer_after_output(&conn, 300);
    assert!(!account::is_going(bytes, segments), "a response head may come long before the first token");
    assert!(account::is_going(513, 1) && account::is_going(300, 2));
    let counted = Conn { counted: 1, awaiting: 0, ..conn };
    assert!(!account::awaits_after_input(&counted), "a connection that ended awaits nothing");
}

const SECOND: u64 = 1_000_000_000;

fn settings(syn_per_s: u32, syn_burst: u32) -> Settings {
    Settings { enforce: 1, syn_per_s, syn_burst, pad: 0 }
}

#[test]
fn a_bucket_gives_its_burst_then_its_rate() {
    let settings = settings(10, 5);
    let mut bucket = None;
    let mut given = 0;
    for ms in 0..2_000_u64 {
        let (after, has) = guard::take(bucket, &settings, ms * 1_000_000);
        bucket = Some(after);
        given += u32::from(has);
    }
    assert!((24..=25).contains(&given), "5 at once and 10 a second for 2 s: {given}");
    assert_eq!(bucket.map(|bucket| bucket.syns), Some(2_000), "every one is counted");
}

/// One token an hour, asked for every ms: what rounding takes must not be lost each time.
#[test]
fn a_slow_bucket_fills_however_often_it_is_asked() {
    let settings = settings(1, 1);
    let (mut bucket, mut given) = (None, 0);
    for us in (0..10 * SECOND / 1_000).step_by(100) {
        let (after, has) = guard::take(bucket, &settings, us * 1_000);
        bucket = Some(after);
        given += u32::from(has);
    }
    assert!((9..=11).contains(&given), "one at once, then one a second for 10 s: {given}");
}

#[test]
fn the_guard_drops_only_what_it_may() {
    let open = Settings::default();
    assert_eq!(guard::judge(&open, false, true, true), Verdict::WouldDeny);
    assert_eq!(guard::judge(&open, false, false, false), Verdict::WouldLimit);
    let enforcing = Settings { enforce: 1, ..open };
    assert_eq!(guard::judge(&enforcing, true, true, false), Verdict::Allowed);
    assert_eq!(guard::judge(&enforcing, false, true, true), Verdict::Denied);
    assert_eq!(guard::judge(&enforcing, false, false, true), Verdict::Admitted);
    for (at, verdict) in Verdict::ALL.iter().enumerate() {
        assert_eq!(*verdict as usize, at, "positions in the map are positions in the list");
        assert_eq!(verdict.drops(), matches!(verdict, Verdict::Denied | Verdict::Limited));
    }
    for (at, counter) in account::Counter::ALL.iter().enumerate() {
        assert_eq!(*counter as usize, at);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_fail(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = packet::parse(&bytes[..]);
    }

    /// Whatever follows a header, nothing behind its end is read: cut anywhere, a packet is what it is or unparsed.
    #[test]
    fn a_cut_packet_is_never_taken_for_another(cut in 0_usize..60, flags in any::<u8>(), v6 in any::<bool>()) {
        let mut frame = [0_u8; 14 + 40 + 20].to_vec();
        let start = if v6 {
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            frame[14] = 0x60;
            frame[20] = 6;
            54
        } else {
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            frame[14] = 0x45;
            frame[23] = 6;
            frame.truncate(54);
            34
        };
        frame[start + 13] = flags;
        let whole = packet::parse(&frame[..]);
        prop_assert!(matches!(whole, Packet::Segment(segment) if segment.flags == flags));
        let length = frame.len().saturating_sub(cut + 1);
        prop_assert_eq!(packet::parse(&frame[..length]), Packet::Unparsed);
    }

    #[test]
    fn a_bucket_never_holds_more_than_its_burst_nor_gives_more_than_its_rate(
        rate in 1_u32..100_000,
        burst in 0_u32..10_000,
        pauses in prop::collection::vec(0_u64..3 * SECOND, 1..200),
    ) {
        let settings = settings(rate, burst);
        let (mut now_ns, mut given) = (5 * SECOND, 0_u64);
        let mut bucket: Option<Bucket> = None;
        for pause in &pauses {
            now_ns += pause;
            let (after, has) = guard::take(bucket, &settings, now_ns);
            prop_assert!(after.millitokens <= u64::from(burst) * 1_000);
            bucket = Some(after);
            given += u64::from(has);
        }
        let elapsed: u64 = pauses.iter().skip(1).sum();
        let allowed = u64::from(burst) as u128 + u128::from(elapsed) * u128::from(rate) / u128::from(SECOND) + 1;
        prop_assert!(u128::from(given) <= allowed, "{given} of {allowed}");
    }

    /// Hostile clocks: time that goes back or stands still gives nothing and breaks nothing.
    #[test]
    fn time_that_goes_back_gives_no_tokens(first in any::<u64>(), second in any::<u64>()) {
        let settings = settings(u32::MAX, 1);
        let (bucket, _) = guard::take(None, &settings, first);
        let (after, has) = guard::take(Some(bucket), &settings, second);
        prop_assert!(!has || second > first);
        prop_assert!(after.millitokens <= 1_000);
    }
}
