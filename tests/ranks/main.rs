//! Tests how ranks agree: all orders of events with one fault, decisions of the hub on rank 0, and messages.

mod explored;
mod over_sockets;

use explored::{Explorer, Harm};

fn explore(harm: Harm) {
    let mut states = 0;
    for size in 2..=3 {
        for victim in 0..size {
            states += Explorer::new(size, victim, harm).run();
        }
    }
    println!("{harm:?}: {states} states");
    assert!(states > 100, "the explorer found something to explore");
}

#[test]
fn ranks_without_faults_agree_in_any_order() {
    explore(Harm::None);
}

#[test]
fn every_remaining_rank_learns_which_rank_exited_or_was_stopped() {
    [Harm::Exits, Harm::Stops].into_iter().for_each(explore);
}

#[test]
fn every_rank_learns_which_rank_is_late_has_left_or_has_abandoned_the_operation() {
    [Harm::Hangs, Harm::Parts, Harm::Leaves].into_iter().for_each(explore);
}

mod judged {
    use std::time::{Duration, Instant};

    use torchdata_core::ranks::hub::Hub;
    use torchdata_core::ranks::message::Message;
    use torchdata_core::ranks::{Answer, Fault, Verdict, WATCH};

    fn opened() -> Hub {
        let mut hub = Hub::new(3);
        hub.submit(0);
        hub.admit(1);
        hub.admit(2);
        assert_eq!(hub.answer(0), Some(Answer::Least(0)));
        hub
    }

    fn failed(fault: Fault, ranks: &[u32], by: u32) -> Option<Answer> {
        Some(Answer::Failed(Verdict { fault, ranks: ranks.to_vec(), by }))
    }

    #[test]
    fn a_rank_that_arrives_during_the_decision_is_late_for_all_ranks() {
        let (mut hub, start) = (opened(), Instant::now());
        hub.receive(1, Message::Beat, start);
        hub.submit(7);
        hub.receive(2, Message::Value { operation: 1, value: 8 }, start);
        hub.receive(2, Message::Late { operation: 1 }, start + WATCH);
        assert_eq!(hub.answer(1), None, "the hub still waits for rank 1");
        hub.receive(1, Message::Value { operation: 1, value: 9 }, start + WATCH + Duration::from_millis(10));
        assert_eq!(hub.answer(1), failed(Fault::Late, &[1], 2));
    }

    #[test]
    fn a_rank_that_exits_after_its_value_fails_only_the_next_operation() {
        let (mut hub, now) = (opened(), Instant::now());
        hub.receive(1, Message::Value { operation: 1, value: -5 }, now);
        hub.lose(1);
        hub.receive(2, Message::Value { operation: 1, value: 8 }, now);
        assert_eq!(hub.submit(7), 1);
        assert_eq!(hub.answer(1), Some(Answer::Least(-5)));
        assert_eq!(hub.submit(7), 2);
        assert_eq!(hub.answer(2), failed(Fault::Lost, &[1], 0));
    }

    #[test]
    fn ranks_that_never_connect_are_absent() {
        let (mut hub, now) = (Hub::new(4), Instant::now());
        hub.submit(0);
        hub.admit(2);
        hub.give_up(0, now);
        assert_eq!(hub.answer(0), failed(Fault::Absent, &[1, 3], 0));
        hub.outgoing();
        hub.admit(3);
        assert!(matches!(&hub.outgoing()[..], [(3, Message::Failed(_))]), "a later rank receives the failure");
    }
}

mod sent {
    use proptest::prelude::*;
    use torchdata_core::ranks::message::Message;
    use torchdata_core::ranks::{Fault, Verdict};

    fn messages() -> impl Strategy<Value = Message> {
        let faults = [Fault::Absent, Fault::Late, Fault::Lost, Fault::Silent, Fault::Parted, Fault::Left];
        let verdicts =
            (prop::sample::select(faults.to_vec()), prop::collection::vec(any::<u32>(), 1..20), any::<u32>());
        prop_oneof![
            (any::<[u8; 16]>(), any::<u32>()).prop_map(|(token, rank)| Message::Hello { token, rank }),
            any::<[u8; 16]>().prop_map(|token| Message::Welcome { token }),
            (any::<u64>(), any::<i64>()).prop_map(|(operation, value)| Message::Value { operation, value }),
            (any::<u64>(), any::<i64>()).prop_map(|(operation, value)| Message::Least { operation, value }),
            any::<u64>().prop_map(|operation| Message::Late { operation }),
            prop::sample::select(vec![Message::Beat, Message::Left, Message::Bye]),
            verdicts.prop_map(|(fault, ranks, by)| Message::Failed(Verdict { fault, ranks, by })),
        ]
    }

    proptest! {
        #[test]
        fn messages_arrive_unchanged_for_any_split_into_pieces(
            sent in prop::collection::vec(messages(), 0..10),
            cut in 1_usize..50,
        ) {
            let mut bytes = Vec::new();
            sent.iter().for_each(|message| message.encode(&mut bytes));
            let (mut buffered, mut received) = (Vec::new(), Vec::new());
            for piece in bytes.chunks(cut) {
                buffered.extend(piece);
                while let Some(message) = Message::take(&mut buffered).expect("whole messages") {
                    received.push(message);
                }
            }
            prop_assert_eq!(received, sent);
            prop_assert!(buffered.is_empty());
        }

        #[test]
        fn arbitrary_bytes_result_in_messages_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut buffered = bytes;
            let mut left = buffered.len() + 1;
            while let Ok(Some(_)) = Message::take(&mut buffered) {
                prop_assert!(buffered.len() < left);
                left = buffered.len();
            }
        }
    }
}
