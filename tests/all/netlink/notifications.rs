//! Foreign commits are notified, with the committing process; the agent's own are not.

use std::time::Duration;

use nfnetlink::{Foreign, Notification, Notifications};

use super::*;

/// The kernel sends the notification before the commit returns, so no waiting is necessary.
fn all(notifications: &mut Notifications) -> Vec<Notification> {
    std::iter::from_fn(|| notifications.next(Duration::ZERO).unwrap()).collect()
}

fn foreign(notification: &Notification) -> &Foreign {
    match notification {
        Notification::Foreign(foreign) => foreign,
        Notification::Lost => panic!("announcements were lost"),
    }
}

fn many(count: u32) -> Ruleset {
    let mut set = Set::of(&[KeyType::Ipv4Addr]);
    set.elements.extend((0..count).map(|n| (Key::One(Datum::V4((0x0a00_0000 + n).into())), Element::default())));
    with_set(empty(), "many", set)
}

#[test]
fn foreign_commit_notification_names_program_and_touched_tables() {
    let (inet, bridge) = (every_rule(), every_bridge_rule());
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        let mut notifications = Notifications::open(&kernel, &[inet.table.clone(), bridge.table.clone()]).unwrap();
        commit(&mut kernel, &[create(&inet), create(&bridge)].concat());
        assert_eq!(all(&mut notifications), []);
        for (command, touches) in [
            ("add table inet other", false),
            ("add table bridge other", false),
            ("add table ip ringfence", false),
            ("add element inet ringfence ports { 8080 }", true),
            ("delete element bridge ringfence interfaces { veth0 }", true),
            ("add chain inet ringfence extra", true),
            ("flush chain inet ringfence forward", true),
            ("add rule inet ringfence extra drop", true),
            ("delete table bridge ringfence", true),
            ("add counter inet ringfence counted", true),
            ("flush ruleset", true),
            ("add table inet ringfence", true),
        ] {
            run_nft(command);
            let received = all(&mut notifications);
            assert_eq!(received.len(), 1, "{command}: {received:?}");
            let Foreign { generation, program, process, touches: touched } = foreign(&received[0]);
            assert_eq!(*generation, kernel.generation().unwrap(), "{command}");
            assert_eq!((program.as_str(), *touched), ("nft", touches), "{command}");
            assert!(*process > 1, "{command}: {process}");
        }
    });
}

#[test]
fn notifications_arrive_once_per_commit_in_order() {
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        let mut notifications = Notifications::open(&kernel, &[empty().table]).unwrap();
        let before = kernel.generation().unwrap();
        for table in ["ringfence", "other", "another"] {
            run_nft(&format!("add table inet {table}"));
        }
        commit(&mut kernel, &create(&every_bridge_rule()));
        let received: Vec<_> =
            all(&mut notifications).iter().map(|n| (foreign(n).generation, foreign(n).touches)).collect();
        assert_eq!(received, [(before + 1, true), (before + 2, false), (before + 3, false)]);
    });
}

#[test]
fn own_commit_of_any_size_sends_no_notification() {
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        let mut notifications = Notifications::open(&kernel, &[empty().table]).unwrap();
        commit(&mut kernel, &create(&many(100_000)));
        assert_eq!(all(&mut notifications), []);
        assert_eq!(notifications.next(Duration::from_millis(1)).unwrap(), None);
        run_nft("delete table inet ringfence");
        assert!(foreign(&all(&mut notifications)[0]).touches);
    });
}

#[test]
fn buffer_overflow_reports_loss_and_notifications_continue() {
    in_new_namespace(|| {
        let kernel = Kernel::open().unwrap();
        let mut notifications = Notifications::open(&kernel, &[empty().table]).unwrap();
        load_netlink(&many(200_000));
        run_nft("add table inet other");
        assert_eq!(all(&mut notifications), [Notification::Lost]);
        run_nft("add table inet another");
        let received = all(&mut notifications);
        assert_eq!(received.len(), 1, "{received:?}");
        assert!(!foreign(&received[0]).touches);
    });
}

#[test]
fn waiting_ends_with_a_commit_of_another_thread() {
    in_new_namespace(|| {
        let kernel = Kernel::open().unwrap();
        let mut notifications = Notifications::open(&kernel, &[empty().table]).unwrap();
        let received = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| notifications.next(Duration::from_secs(60)).unwrap());
            run_nft("add table inet ringfence");
            waiting.join().unwrap()
        });
        assert_eq!(foreign(&received.unwrap()).program, "nft");
    });
}
