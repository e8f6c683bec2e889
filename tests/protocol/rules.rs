//! Tests rules of the protocol's state machines in cases that do not occur in the small loaders of the model checker.

use torchdata_core::protocol::{
    Account, Books, Command, CommandState, Grant, Reader, Replacing, Share, Snapshot, Step, Stream, Wish,
};

#[test]
fn the_checksum_depends_on_every_item_and_on_their_order() {
    let of = |digests: &[u64]| {
        let mut account = Account::default();
        digests.iter().for_each(|&digest| account.count(digest));
        account.checksum
    };
    assert_eq!(of(&[1, 2, 3]), of(&[1, 2, 3]));
    assert_ne!(of(&[1, 2, 3]), of(&[1, 3, 2]));
    assert_ne!(of(&[1, 2, 3]), of(&[1, 2, 4]));
    assert_ne!(of(&[0]), of(&[0, 0]).wrapping_add(1));
}

#[test]
fn after_an_unknown_item_the_checksum_stays_unknown() {
    let mut account = Account { items: 1, checksum: 0 };
    account.count(7);
    assert_eq!(account, Account { items: 2, checksum: 0 });
}

fn seen(reader: Stream, wish: Wish, writer: Stream) -> Option<Reader> {
    Grant::read(Grant::new(reader, wish).word(), writer)
}

#[test]
fn a_grant_is_for_its_own_stream_only() {
    for epoch in [0, 1, 5, (1 << 14) - 1, 1 << 14, u32::MAX - 1] {
        let own = Stream::first(epoch);
        assert_eq!(seen(own, Wish::Items(7), own), Some(Reader::Here(7)));
        assert_eq!(seen(own, Wish::Items(7), Stream::first(epoch + 1)), Some(Reader::Earlier));
        assert_eq!(seen(Stream::first(epoch + 1), Wish::Items(7), own), Some(Reader::Done));
        for pass in 1..9 {
            let (this, next) = (Stream::new(epoch, pass), Stream::new(epoch, pass + 1));
            assert_eq!(seen(next, Wish::Items(1), this), Some(Reader::Ahead));
            assert_eq!(seen(next, Wish::Left, this), Some(Reader::Ahead));
            assert_eq!(seen(this, Wish::Left, this), Some(Reader::Left));
            assert_eq!(seen(this, Wish::Items(1), next), Some(Reader::Earlier));
            assert_eq!(seen(this, Wish::Done, next), Some(Reader::Done));
        }
    }
}

#[test]
fn at_a_links_birth_nothing_is_granted() {
    assert_eq!(Grant::read(Grant::NONE, Stream::default()), Some(Reader::Earlier));
    assert_eq!(Grant::read(0, Stream::default()), None, "zeroed memory is damaged");
}

#[test]
fn credit_counts_on_where_the_counters_wrap() {
    let top = (1 << 30) - 1;
    assert_eq!(Grant::credit(3, top), 4);
    assert_eq!(Grant::credit(top, top), 0);
    assert_eq!(Grant::credit(top - 1, top), 0, "a reader that pauses revokes unused permits");
}

#[test]
fn an_epoch_or_a_stop_ends_the_running_epoch_and_is_executed_after_it() {
    let mut child = CommandState::new(false);
    assert_eq!(child.accept(Command::Epoch(1)), Step::Run { first: true, last: false });
    for command in [Command::Epoch(2), Command::Repeat(1), Command::Stop] {
        assert_eq!(child.accept(command), Step::Leave);
        assert!(child.runs(), "the child runs until the epoch is left");
    }
    child.leave();
    assert_eq!(child.accept(Command::Stop), Step::End);
}

#[test]
fn a_repeated_epoch_is_acknowledged_when_it_is_done_and_by_a_dispatching_process_before_that_too() {
    let step = |dispatches| CommandState::new(dispatches).accept(Command::Repeat(1));
    assert_eq!([false, true].map(step), [false, true].map(|first| Step::Run { first, last: true }));
    assert_eq!(CommandState::new(true).accept(Command::Epoch(1)), Step::Run { first: true, last: false });
}

#[test]
fn epochs_and_the_end_are_ordered_ahead_and_only_later_ones_end_a_wait() {
    assert_eq!(Command::Call.order(), None);
    for epoch in [1, 2, u32::MAX] {
        let order = [Command::Epoch(epoch), Command::Repeat(epoch)].map(|command| command.order().unwrap());
        assert_eq!(order.map(|order| CommandState::is_superseded(epoch, order)), [false, false]);
        assert!(order.iter().all(|&order| CommandState::is_superseded(epoch - 1, order)));
        assert!(CommandState::is_superseded(epoch, Command::Stop.order().unwrap()));
    }
}

#[test]
fn who_repeats_an_epoch_is_not_left_without_the_dispatching_process() {
    let mut replacing = Replacing::new(2, true);
    assert!(replacing.repeats(0, &[true, false]));
    assert_eq!(replacing.wanted(&[2], &[true, true]), [0, 1, 2]);
    assert!(!replacing.rests(2));
    replacing.begin();
    assert_eq!(replacing.wanted(&[2], &[true, true]), []);
    let mut alone = Replacing::new(1, false);
    assert!(alone.repeats(0, &[true]));
    assert_eq!(alone.wanted(&[0], &[true]), [], "no reader waits for the item");
}

#[test]
fn the_dispatching_process_makes_progress_with_any_item() {
    let mut replacing = Replacing::new(2, true);
    assert_eq!(replacing.item_of(2, &[4, 9]), 13);
    assert_eq!(replacing.judge(2, 1, 1, &[4, 9], false).exits, 1);
    assert_eq!(replacing.judge(2, 2, 1, &[4, 9], false).exits, 2);
    assert_eq!(replacing.judge(2, 3, 1, &[4, 10], false).exits, 1);
}

#[test]
fn an_exit_while_all_processes_are_halted_is_not_an_attempt() {
    let mut replacing = Replacing::new(1, false);
    for process in 0..5 {
        assert_eq!(replacing.judge(0, process, 1, &[3], true).exits, 1);
    }
    assert_eq!(replacing.judge(0, 9, 1, &[3], false).exits, 2, "an exit outside of a halt is an attempt");
}

#[test]
fn an_epoch_of_which_main_has_all_items_is_repeated_by_workers_alone() {
    let mut replacing = Replacing::new(2, true);
    assert_eq!([0, 1, 2].map(|child| replacing.repeats(child, &[true, false])), [true, false, false]);
}

#[test]
fn snapshots_are_dropped_once_the_user_has_received_the_items_before_the_next_snapshot() {
    const LOOK_BACK: usize = 64;
    let mut books = Books::new(1);
    let mut dropped = 0;
    for item in 0..1000 {
        books.deliver(0, item, |_| Some(5));
        let sent = Account { items: item + 1, checksum: 0 };
        dropped += books.keep(0, Snapshot { sent, share: Share::default(), content: sent.items }, Some(5)).len();
    }
    assert!(1000 - dropped <= LOOK_BACK + 7);
    assert!(books.accounts(2 * (LOOK_BACK as u64 + 5) + 2).is_none(), "the log is short");
    let (positions, _) = books.positions(5).expect("the log contains the last deliveries");
    assert_eq!((positions[0].received.items, positions[0].snapshot.map(|one| one.content)), (995, Some(995)));
}
