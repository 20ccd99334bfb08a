//! The very moment of a commit.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Commits during which packets come: without the guard some hundred packets get through.
const COMMITS: usize = 20_000;

const POD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A pod whose program drops everything, has another name in each version, and is guarded.
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

/// A packet that is under way during a commit goes by the rules of before and by the elements of after, so that it finds
/// new chains without rules.
#[test]
fn no_packet_gets_through_while_one_program_takes_the_place_of_another() {
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
