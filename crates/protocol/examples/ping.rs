//! Completes a WireGuard handshake and sends an ICMP echo request: `ping KEY_FILE PEER_KEY
//! ENDPOINT OWN_ADDRESS ADDRESS`
use base64ct::{Base64, Encoding};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::{env, error::Error, fs, iter, sync::Arc, time};
use taupe_protocol::key::{PrivateKey, PublicKey};
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{Device, LaneId, Output, ReceivedBatch, Staged, crypto::default_provider};
use zeroize::Zeroizing;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    let [_, file, key, endpoint, own, address] = &arguments[..] else {
        return Err("arguments: KEY_FILE PEER_KEY ENDPOINT OWN_ADDRESS ADDRESS".into());
    };
    let (endpoint, public): (SocketAddr, _) = (endpoint.parse()?, PublicKey(*decode(key)?));
    let mut peer = PeerUpdate::new(public);
    peer.endpoint = Some(endpoint);
    peer.allowed_ips = vec![AllowedIpChange::Add(address.parse::<IpAddr>()?.into())];
    let mut update = DeviceUpdate::default();
    update.peers.push(peer);
    let private = PrivateKey::new(*decode(&Zeroizing::new(fs::read_to_string(file)?))?);
    update.private_key = private.map(PrivateKeyUpdate::new);
    let start = time::Instant::now();
    let now = || Now {
        boot: Instant::default() + start.elapsed(),
        wall: time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default(),
    };
    let random = |bytes: &mut [u8]| getrandom::fill(bytes).expect("randomness");
    let mut device = Device::new(default_provider(), Box::new(random), Arc::new(|| ()));
    device.update(now(), update)?;
    device.set_up(now());

    let packet = echo_request(own.parse()?, address.parse()?);
    let peer = device.peer(&public).ok_or("the peer has our own key")?;
    let path = Arc::clone(device.data_path());
    path.stage(
        now().boot,
        &peer,
        iter::once(Staged {
            packet,
            ecn: 0,
            lane: LaneId::FIRST,
        }),
    );
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(endpoint)?;
    let (mut buffer, mut sorted) = (vec![0; 65_536], ReceivedBatch::default());
    loop {
        device.handle_pending_work(now());
        device.handle_deadline(now());
        while let Some(output) = device.poll_output() {
            if let Output::Transmit { datagram, .. } = output {
                socket.send(&datagram)?;
            }
        }
        let (deadline, _) = device.next_deadline().ok_or("no answer")?;
        let wait = deadline.since(now().boot) + time::Duration::from_millis(1);
        socket.set_read_timeout(Some(wait))?;
        let length = socket.recv(&mut buffer).unwrap_or_default();
        let (batch, from) = (&mut buffer[..length], endpoint.into());
        path.receive(now().boot, from, batch, length, &mut sorted);
        for message in sorted.handshakes.drain(..) {
            device.handle_message(now(), from, &batch[message], 0);
        }
        let mut packets = sorted.inner.drain(..).map(|packet| &batch[packet]);
        if packets.any(|packet| packet.get(20) == Some(&0)) {
            println!("{address} answers after {:?}", start.elapsed());
            return Ok(());
        }
    }
}

fn decode(key: &str) -> Result<Zeroizing<[u8; 32]>, Box<dyn Error>> {
    let mut bytes = Zeroizing::new([0; 32]);
    let whole = Base64::decode(key.trim(), &mut *bytes)?.len() == 32;
    whole.then_some(bytes).ok_or("a key has 32 bytes".into())
}

/// Returns an echo request of 32 bytes, which needs no padding. Optional ICMP fields are zero.
fn echo_request(source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
    let sum = 0x8521 + u64::from(source.to_bits()) + u64::from(destination.to_bits());
    let mut packet = b"\x45\0\0\x20\0\0\0\0\x40\x01".to_vec();
    packet.extend((!(sum % 0xffff) as u16).to_be_bytes());
    packet.extend([source.octets(), destination.octets()].concat());
    packet.extend(b"\x08\0\xf7\xff\0\0\0\0\0\0\0\0");
    packet
}
