//! Datagrams made without a key.

use crate::datagrams::{Datagrams, pattern};
use crate::life::resident;
use crate::pair::{FAR, FAR_OUTER, FAR_PORT, FAR6, NEAR, NEAR_OUTER, NEAR_PORT, Pair, neighbours};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use taupe_lab::capture::{Capture, Message, Packet, messages};
use taupe_lab::host::Host;
use taupe_lab::process::wait_until;
use taupe_lab::traffic::{ping, serve_echo, tcp_echo};
use taupe_lab::{Error, Result, ensure};

/// Limit of memory growth under attack, in KiB: less than the size of the attack.
const MEMORY: u64 = 16 * 1024;

/// Datagrams to the sockets change neither the state that `wg` shows nor the tunnel's traffic.
pub(crate) fn hostile_datagrams() -> Result<()> {
    let (near, far) = neighbours()?;
    // The kernel would filter most of the attack.
    let options: &[&str] = &["--no-offload", "flood-filter"];
    let mut pair = Pair::between(&near, &far, FAR_OUTER, [options; 2])?;
    let captured = conversation(&pair)?;
    wait_until_idle(&pair)?;

    let before = [pair.near.dump()?, pair.far.dump()?];
    let ids = [pair.near.id()?, pair.far.id()?];
    let memory = [resident(&[ids[0]])?, resident(&[ids[1]])?];
    let attacks = [
        Attack::new(&near, NEAR_OUTER, (FAR_OUTER, FAR_PORT))?,
        Attack::new(&far, FAR_OUTER, (NEAR_OUTER, NEAR_PORT))?,
    ];
    for (attack, victim) in attacks.iter().zip([&far, &near]) {
        let received = received(victim)?;
        let sent = attack.everything(&captured)?;
        let arrived = self::received(victim)? - received;
        // With more losses the test would only exercise the kernel's buffer.
        ensure!(
            arrived * 10 >= sent * 9,
            "{arrived} of {sent} datagrams reached the program"
        );
    }
    // Time to process queued datagrams.
    std::thread::sleep(Duration::from_millis(500));

    ensure!(
        [pair.near.id()?, pair.far.id()?] == ids,
        "a program was replaced"
    );
    let after = [pair.near.dump()?, pair.far.dump()?];
    ensure!(after == before, "{before:#?}\nbecame\n{after:#?}");
    for (id, before) in ids.into_iter().zip(memory) {
        let grown = resident(&[id])?.saturating_sub(before);
        ensure!(grown < MEMORY, "memory has grown by {grown} KiB");
    }
    ping(&near, FAR, 3)?;
    serve_echo(&far, (FAR6, 7).into())?;
    tcp_echo(&near, (FAR6, 7).into(), 1_000_001).map(drop)
}

/// Returns the messages of a handshake and some data, in both directions.
fn conversation(pair: &Pair) -> Result<Vec<Vec<u8>>> {
    let capture = Capture::start(&pair.near.host, "eth0", "udp")?;
    ping(&pair.near.host, FAR, 5)?;
    ping(&pair.near.host, FAR6, 5)?;
    let packets = capture.stop_once("a handshake and data", |seen| {
        let count = |message| messages(seen, message).count();
        count(Message::Initiation) >= 1
            && count(Message::Response) >= 1
            && count(Message::Data) >= 4
    })?;
    Ok(packets.iter().filter_map(payload).collect())
}

fn payload(packet: &Packet) -> Option<Vec<u8>> {
    Some(packet.datagram()?.payload.to_vec())
}

/// Waits until no timer has anything left to send: the last message is the keepalive that
/// acknowledges the last packet, 10 s after it (whitepaper section 6.5).
fn wait_until_idle(pair: &Pair) -> Result<()> {
    let peer = &pair.far.keys;
    let (_, sent) = pair.near.transfer(peer)?;
    wait_until("the last keepalive", Duration::from_secs(15), || {
        Ok(pair.near.transfer(peer)?.1 == sent + 32)
    })?;
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}

/// Returns the number of datagrams that programs of a machine have received over IPv4.
fn received(host: &Host) -> Result<u64> {
    host.snmp()?.get("Udp", "InDatagrams")
}

struct Attack {
    socket: UdpSocket,
    target: SocketAddr,
    sent: std::cell::Cell<u64>,
}

impl Attack {
    fn new(host: &Host, from: IpAddr, target: (IpAddr, u16)) -> Result<Self> {
        Ok(Self {
            socket: host.enter(|| UdpSocket::bind((from, 0)).map_err(Error::io("bind")))?,
            target: target.into(),
            sent: 0.into(),
        })
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        self.socket
            .send_to(bytes, self.target)
            .map_err(Error::io(format!("sending {} bytes", bytes.len())))?;
        self.sent.set(self.sent.get() + 1);
        // At this rate the program keeps up on one of two busy cores.
        if self.sent.get().is_multiple_of(64) {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Sends all kinds of datagrams; returns their number.
    fn everything(&self, captured: &[Vec<u8>]) -> Result<u64> {
        for length in 0..64 {
            self.send(&vec![0; length])?;
        }
        for _ in 0..200 {
            self.send(&[])?;
        }
        for message in captured {
            self.mutations(message)?;
        }
        for kind in 0..=5 {
            let mut largest = pattern(65_507, kind.into());
            set(&mut largest, 0, &[kind, 0, 0, 0]);
            // To an existing session, with a counter from its middle.
            let index = captured.iter().find_map(|message| message.get(4..8));
            set(&mut largest, 4, index.unwrap_or_default());
            set(&mut largest, 8, &[2, 0, 0, 0, 0, 0, 0, 0]);
            self.send(&largest)?;
        }
        self.cookie_replies(captured)?;
        self.noise()?;
        Ok(self.sent.get())
    }

    /// Sends a message replayed, truncated, extended, and with each bit flipped.
    fn mutations(&self, message: &[u8]) -> Result<()> {
        for _ in 0..3 {
            self.send(message)?;
        }
        for length in 0..message.len() {
            self.send(message.get(..length).unwrap_or_default())?;
        }
        for more in [1, 16, 32, 1000] {
            let mut longer = message.to_vec();
            longer.resize(message.len() + more, 0);
            self.send(&longer)?;
        }
        for bit in 0..message.len() * 8 {
            let mut turned = message.to_vec();
            if let Some(byte) = turned.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            self.send(&turned)?;
        }
        Ok(())
    }

    /// Sends cookie replies to every index seen on the wire.
    fn cookie_replies(&self, captured: &[Vec<u8>]) -> Result<()> {
        for (seed, message) in (1000..).zip(captured) {
            for at in [4, 8] {
                let mut reply = pattern(64, seed);
                set(&mut reply, 0, &[3, 0, 0, 0]);
                set(&mut reply, 4, message.get(at..at + 4).unwrap_or_default());
                self.send(&reply)?;
            }
        }
        Ok(())
    }

    /// Sends 20,000 random datagrams, half of them of a known type.
    fn noise(&self) -> Result<()> {
        for seed in 0..20_000_u64 {
            let shape = pattern(4, seed + 1);
            let length = match shape[..] {
                [a, b, ..] => usize::from(u16::from_le_bytes([a, b]) % 1473),
                _ => 0,
            };
            let length = match seed % 8 {
                1 => 148,
                3 => 92,
                5 => 64,
                _ => length,
            };
            let mut bytes = pattern(length, seed + 7);
            if seed % 2 == 1 {
                let kind = [1, 2, 3, 4][(seed / 2 % 4) as usize];
                set(&mut bytes, 0, &[kind, 0, 0, 0]);
            }
            self.send(&bytes)?;
        }
        Ok(())
    }
}

/// Overwrites the bytes at an offset, if the datagram is long enough.
fn set(bytes: &mut [u8], at: usize, new: &[u8]) {
    if let Some(part) = bytes.get_mut(at..at + new.len()) {
        part.copy_from_slice(new);
    }
}

/// Valid messages that arrive in one batch with garbage of the same size, from the same sender and
/// for the same session, are all delivered, once and in order; the garbage is not.
pub(crate) fn good_among_garbage() -> Result<()> {
    const GOOD: usize = 30;
    let (near, far) = neighbours()?;
    // A capture shows a batch as one long message.
    let singly: [&[&str]; 2] = [&[], &["--no-offload", "gso"]];
    let mut pair = Pair::between(&near, &far, FAR_OUTER, singly)?;
    ping(&near, FAR, 5)?;
    // Intercepts messages from the far end.
    near.run_with_input(
        &["nft", "-f", "-"],
        "table netdev intercept { chain in {
            type filter hook ingress device eth0 priority 0;
            udp sport 51821 drop
        }
        }",
    )?;
    let capture = Capture::start(&near, "eth0", "udp src port 51821")?;
    let (sender, receiver) = (Datagrams::bind(&far, FAR)?, Datagrams::bind(&near, NEAR)?);
    let sent: Vec<_> = (0..GOOD as u64).map(|seed| pattern(500, seed)).collect();
    for contents in &sent {
        sender.send(receiver.address()?, None, contents, contents.len())?;
    }
    let of_500 = |packets: &[Packet]| -> Vec<_> {
        messages(packets, Message::Data)
            .filter_map(payload)
            .filter(|message| message.len() == 560)
            .collect()
    };
    let intercepted =
        capture.stop_once("intercepted messages", |seen| of_500(seen).len() >= GOOD)?;
    let intercepted = of_500(&intercepted);
    ensure!(
        intercepted.len() == GOOD,
        "{} and not {GOOD} were intercepted",
        intercepted.len()
    );
    near.run(&["nft", "delete", "table", "netdev", "intercept"])?;
    let nothing = receiver.receive(Duration::from_millis(100))?;
    ensure!(nothing.is_empty(), "not intercepted: {nothing:?}");

    let mut batch = Vec::new();
    for (seed, message) in intercepted.iter().enumerate() {
        batch.extend(message);
        let mut garbage = message.clone();
        match seed % 3 {
            // Changed ciphertext, tag, or counter.
            0 => set(&mut garbage, 100, &[0; 8]),
            1 => set(&mut garbage, 544, &[0; 16]),
            _ => set(&mut garbage, 8, &[0xff, 0xff]),
        }
        batch.extend(garbage);
    }
    // The socket is new, so the near end sees a new endpoint.
    let attacker = Datagrams::bind(&far, FAR_OUTER)?;
    let target = SocketAddr::new(NEAR_OUTER, NEAR_PORT);
    attacker.send(target, None, &batch, 560)?;
    let arrived = receiver.receive_many(GOOD, Duration::from_secs(5))?;
    let arrived: Vec<_> = arrived.into_iter().map(|one| one.bytes).collect();
    ensure!(arrived == sent, "the messages differ");
    // Replaying the batch delivers nothing.
    attacker.send(target, None, &batch, 560)?;
    let more = receiver.receive(Duration::from_millis(500))?;
    ensure!(more.is_empty(), "replayed: {more:?}");
    ensure!(
        pair.near.id()? > 0 && pair.far.id()? > 0,
        "a program has ended"
    );
    ping(&far, NEAR, 3)
}
