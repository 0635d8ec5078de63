use super::*;
use std::sync::Mutex;

/// Sockets, and the number of times that they were listed.
#[derive(Clone, Default)]
struct Listed(Arc<Mutex<(Vec<Socket>, usize)>>);

impl Owners for Listed {
    fn sockets(&mut self, _protocol: Protocol) -> io::Result<Vec<Socket>> {
        let mut listed = self.0.lock().unwrap();
        listed.1 += 1;
        Ok(listed.0.clone())
    }

    fn holder(&mut self, pid: u32) -> Holder {
        Holder::Process(Process {
            path: format!(r"C:\{pid}.exe"),
            name: format!("{pid}.exe"),
            started: 0,
        })
    }
}

fn flow(protocol: u8, port: u16) -> Flow {
    Flow {
        protocol,
        local: SocketAddr::from(([192, 0, 2, 1], port)),
        remote: SocketAddr::from(([198, 51, 100, 1], 443)),
    }
}

const OPENS: FlowPosition = FlowPosition::Opens { again: true };

fn of(
    known: &mut OwnerCache,
    now: Instant,
    flow: &Flow,
    position: FlowPosition,
    is_last: bool,
) -> Owner {
    known.of(now, flow, position, is_last, |process| {
        process.name == "7.exe"
    })
}

const START: Instant = Instant(1_000_000_000_000);

fn at(milliseconds: u64) -> Instant {
    START + Duration::from_millis(milliseconds)
}

#[test]
fn lists_are_read_when_they_cannot_tell_and_not_more() {
    let listed = Listed::default();
    let mut known = OwnerCache::new(Box::new(listed.clone()));
    let reads = || listed.0.lock().unwrap().1;
    let udp = flow(ip::UDP, 5000);
    assert_eq!(
        of(&mut known, at(0), &udp, FlowPosition::Continues, false),
        Owner::Pending
    );
    assert_eq!(
        of(&mut known, at(0), &udp, FlowPosition::Continues, false),
        Owner::Pending
    );
    assert_eq!(reads(), 1, "once in a moment");
    assert_eq!(
        of(&mut known, at(20), &udp, FlowPosition::Continues, true),
        Owner::System
    );
    for moment in (20..=119).step_by(9) {
        assert_eq!(
            of(&mut known, at(moment), &udp, FlowPosition::Continues, false),
            Owner::System
        );
    }
    assert_eq!(reads(), 2, "unknown for 100 ms while it goes on");
    assert_eq!(
        of(&mut known, at(120), &udp, FlowPosition::Continues, false),
        Owner::System
    );
    assert_eq!(reads(), 3, "without waiting again");
    assert_eq!(
        of(&mut known, at(130), &udp, FlowPosition::Continues, false),
        Owner::System
    );
    assert_eq!(reads(), 4, "or until it is silent for 10 ms");
    assert_eq!(
        of(&mut known, at(2130), &udp, FlowPosition::Continues, false),
        Owner::Pending
    );
    assert_eq!(reads(), 5, "but for 2 s");
    listed.0.lock().unwrap().0.push(Socket {
        local: udp.local,
        remote: None,
        pid: 7,
        created: 0,
    });
    assert!(matches!(
        of(&mut known, at(2150), &udp, FlowPosition::Continues, true),
        Owner::Process(_)
    ));
    assert!(matches!(
        of(&mut known, at(2249), &udp, FlowPosition::Continues, false),
        Owner::Process(_)
    ));
    assert_eq!(reads(), 6, "known for 100 ms");
    assert!(matches!(
        of(&mut known, at(2250), &udp, FlowPosition::Continues, false),
        Owner::Process(_)
    ));
    assert_eq!(reads(), 7);
    assert_eq!(
        of(
            &mut known,
            at(2250),
            &flow(ip::ICMP, 0),
            FlowPosition::Continues,
            false
        ),
        Owner::System
    );
}

#[test]
fn who_asks_for_a_connection_does_not_listen() {
    let listed = Listed::default();
    let mut known = OwnerCache::new(Box::new(listed.clone()));
    let tcp = flow(ip::TCP, 5000);
    listed.0.lock().unwrap().0.push(Socket {
        local: "0.0.0.0:5000".parse().unwrap(),
        remote: None,
        pid: 7,
        created: 0,
    });
    assert_eq!(of(&mut known, at(0), &tcp, OPENS, false), Owner::Pending);
    assert!(matches!(
        of(&mut known, at(10), &tcp, FlowPosition::Continues, false),
        Owner::Process(_)
    ));
    // A repeated request has waited already.
    assert_eq!(of(&mut known, at(20), &tcp, OPENS, true), Owner::System);
    assert_eq!(of(&mut known, at(1020), &tcp, OPENS, false), Owner::System);
}

#[test]
fn of_several_processes_at_a_port_the_selected_one_counts() {
    let listed = Listed::default();
    let mut known = OwnerCache::new(Box::new(listed.clone()));
    let udp = flow(ip::UDP, 5353);
    for pid in [6, 7, 8] {
        listed.0.lock().unwrap().0.push(Socket {
            local: "0.0.0.0:5353".parse().unwrap(),
            remote: None,
            pid,
            created: 0,
        });
    }
    let Owner::Process(process) = of(&mut known, at(0), &udp, FlowPosition::Continues, false)
    else {
        panic!("it is known");
    };
    assert_eq!(process.name, "7.exe");
}

#[test]
fn who_sends_from_outside_is_not_remembered_and_has_nothing_read() {
    let listed = Listed::default();
    let mut known = OwnerCache::new(Box::new(listed.clone()));
    let reads = || listed.0.lock().unwrap().1;
    let is_seven = |process: &Process| process.name == "7.exe";
    for moment in 0..100 {
        let receiver = known.receiver(at(moment), &flow(ip::UDP, 5000), is_seven);
        assert_eq!(receiver, None);
    }
    assert_eq!(reads(), 1);
    listed.0.lock().unwrap().0.push(Socket {
        local: "192.0.2.1:5000".parse().unwrap(),
        remote: None,
        pid: 7,
        created: 0,
    });
    let owner = of(
        &mut known,
        at(100),
        &flow(ip::UDP, 5000),
        FlowPosition::Continues,
        false,
    );
    assert!(matches!(owner, Owner::Process(_)));
    let receiver = known.receiver(at(100), &flow(ip::UDP, 5000), is_seven);
    assert!(matches!(receiver, Some(Owner::Process(_))));
}
