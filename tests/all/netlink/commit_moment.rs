//! Packets at the moment of a commit.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Commits while packets arrive: without the guard some hundred packets get through.
const COMMITS: usize = 20_000;

/// Commits that replace a set by one of another size.
const RESIZED: usize = 5_000;

const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
const POD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A guarded pod whose program drops everything, and has another name in each version.
fn version(number: usize) -> Ruleset {
    let program = format!("program/{number}");
    let pod = Key::One(Datum::V4(POD));
    let mut programs = Set { verdicts: true, ..Set::of(&[KeyType::Ipv4Addr]) };
    programs.elements.insert(pod, Element { verdict: Some(Verdict::Jump(name(&program))), comment: None });
    let mut isolated = Set::of(&[KeyType::Ipv4Addr]);
    isolated.elements.insert(pod, Element::default());
    let field = Field::Destination(Family::V4);
    let drop = || vec![Action::Counter, Action::Verdict(Verdict::Drop)];
    let rules = vec![
        Rule::new(vec![], vec![Action::VerdictMap { field, map: name("programs") }]),
        Rule::new(vec![Match::InSet { fields: vec![field], set: name("isolated") }], drop()),
    ];
    let ruleset = with_set(with_set(empty(), "programs", programs), "isolated", isolated);
    let ruleset = with_chain(ruleset, "input", Some(Hook::Input), rules);
    with_chain(ruleset, &program, None, vec![Rule::new(vec![], drop())])
}

/// A packet in flight during a commit is judged by the old rules and by the new elements, so it finds new chains
/// without rules.
#[test]
fn no_packet_passes_while_chains_are_replaced() {
    in_new_namespace(|| {
        packet_log::set_up_loopback();
        let mut kernel = Kernel::open().unwrap();
        let mut live = version(0);
        commit(&mut kernel, &create(&live));
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let receiver = UdpSocket::bind((POD, 4000)).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    sender.send_to(b"x", (POD, 4000)).unwrap();
                }
            });
            for number in 1..COMMITS {
                let wanted = version(number);
                let generation = kernel.generation().unwrap();
                if kernel.commit(&difference(&live, &wanted), generation).is_err() {
                    break;
                }
                live = wanted;
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(live, version(COMMITS - 1), "every commit was taken");
        let mut through = 0;
        while receiver.recv(&mut [0; 16]).is_ok() {
            through += 1;
        }
        println!("{}", run_nft("list chain inet ringfence input"));
        assert_eq!(through, 0, "packets that no rule dropped");
    });
}

/// A pod whose program allows one peer, by a set of this size.
fn sized(size: u32) -> Ruleset {
    let address = |address: Ipv4Addr| Key::One(Datum::V4(address));
    let mut programs = Set { verdicts: true, ..Set::of(&[KeyType::Ipv4Addr]) };
    let jump = Some(Verdict::Jump(name("program/a")));
    programs.elements.insert(address(POD), Element { verdict: jump, comment: None });
    let mut peers = Set { size: Some(size), ..Set::of(&[KeyType::Ipv4Addr]) };
    peers.elements.insert(address(PEER), Element::default());
    let field = Field::Destination(Family::V4);
    let by_destination = Rule::new(vec![], vec![Action::VerdictMap { field, map: name("programs") }]);
    let source = Match::InSet { fields: vec![Field::Source(Family::V4)], set: name("peers4") };
    let program = vec![
        Rule::new(vec![source], vec![Action::Verdict(Verdict::Accept)]),
        Rule::new(vec![], vec![Action::Verdict(Verdict::Drop)]),
    ];
    let ruleset = with_set(with_set(empty(), "programs", programs), "peers4", peers);
    let ruleset = with_chain(ruleset, "input", Some(Hook::Input), vec![by_destination]);
    with_chain(ruleset, "program/a", None, program)
}

#[test]
fn verdicts_stay_constant_while_set_is_resized() {
    in_new_namespace(|| {
        packet_log::set_up_loopback();
        let mut kernel = Kernel::open().unwrap();
        let versions = [sized(64), sized(256)];
        commit(&mut kernel, &create(&versions[0]));
        let [peer, stranger] = [PEER, STRANGER].map(|address| UdpSocket::bind((address, 0)).unwrap());
        let receiver = UdpSocket::bind((POD, 4000)).unwrap();
        receiver.set_nonblocking(true).unwrap();
        // On the loopback a packet has arrived or has been dropped when the send returns.
        let arrives = |sender: &UdpSocket| {
            let sent = sender.send_to(b"x", (POD, 4000));
            sent.is_ok() && receiver.recv(&mut [0; 16]).is_ok()
        };
        let over = AtomicBool::new(false);
        let (mut sent, mut lost, mut through) = (0, 0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    sent += 1;
                    lost += usize::from(!arrives(&peer));
                    through += usize::from(arrives(&stranger));
                }
            });
            for number in 0..RESIZED {
                let (live, wanted) = (&versions[number % 2], &versions[(number + 1) % 2]);
                let generation = kernel.generation().unwrap();
                if let Err(error) = kernel.commit(&difference(live, wanted), generation) {
                    over.store(true, Ordering::Relaxed);
                    panic!("commit {number}: {error}");
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(sent > RESIZED, "{sent} packets");
        assert_eq!((lost, through), (0, 0), "lost of the peer, and let in of a stranger, of {sent} each");
        assert_eq!(missing(&mut kernel, &versions[RESIZED % 2]), [""; 0]);
    });
}
