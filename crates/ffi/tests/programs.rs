//! Programs in C and C++, compiled by the system's compiler and linked with the library.

mod common;

use common::{Library, Program};

#[test]
fn layouts_are_boringtun_s_in_c_and_cpp() {
    for language in ["c", "c++"] {
        for definitions in [&["-DPUBLISHED"][..], &["-DTAUPE_BORINGTUN_2021"], &[]] {
            let program = Program::new("layout.c")
                .language(language)
                .with(definitions);
            program.build().run(&[]);
        }
    }
}

#[test]
fn a_program_for_boringtun_runs() {
    for library in [Library::Shared, Library::Static] {
        Program::new("boringtun.c")
            .library(library)
            .build()
            .run(&[]);
    }
    let program = Program::new("boringtun.c").with(&["-DWITH_COMPATIBLE_HEADER"]);
    program.build().run(&[]);
}

#[test]
fn a_program_of_2021_runs() {
    Program::new("workflow_2021.c").build().run(&[]);
    Program::new("levels_2021.c").build().run(&[]);
    Program::new("form_2021.cpp").build().run(&[]);
}

#[test]
fn the_additions_work_from_c() {
    Program::new("additions.c").build().run(&[]);
}

#[test]
fn threads_can_share_a_tunnel() {
    let said = Program::new("threads.c").build().run(&[]);
    println!("{said}");
}

#[test]
fn the_example_in_cpp_records_packets() {
    let said = Program::new("examples/tap.cpp").build().run(&[]);
    assert!(said.contains("recorded: 10 out, 10 in"), "{said}");
}

/// The example talks to a tunnel of this test, which sends packets back.
#[test]
fn the_example_in_c_works_as_a_client() {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::net::UdpSocket;
    use std::process::Stdio;
    use std::time::Duration;
    use taupe::{Config, Outcome, PresharedKey, PrivateKey, PublicKey, Tunnel};

    let program = Program::new("examples/client.c").build();
    let keys = [(); 2].map(|()| {
        let private = PrivateKey::new(*taupe::random_secret().expose()).expect("a key");
        let public = taupe::crypto::default_provider()
            .dh
            .public(private.expose());
        (private, public)
    });
    let [(client, client_public), (server, server_public)] = keys;
    let tunnel = Tunnel::new(Config {
        private_key: server,
        public_key: PublicKey(client_public),
        preshared_key: PresharedKey::NONE,
        keepalive: 0,
        index: 0,
        sink: None,
    });
    let tunnel = tunnel.expect("a tunnel");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = socket.local_addr().expect("its address").port().to_string();
    let timeout = Some(Duration::from_secs(30));
    socket.set_read_timeout(timeout).expect("a timeout");
    let private = taupe::key::to_base64(client.expose());
    let public = taupe::key::to_base64(&server_public);
    let mut command = program.command();
    command.args([
        &*private,
        &*public,
        "127.0.0.1",
        &port,
        "192.0.2.1",
        "198.51.100.1",
        "7",
    ]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = common::Running(command.spawn().expect("the client"));
    let mut said = BufReader::new(child.0.stdout.take().expect("its output"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    let address = line.trim().rsplit(' ').next().expect("an address");

    let user = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    user.set_read_timeout(timeout).expect("a timeout");
    user.connect(address).expect("the client's socket");
    user.send(b"hello through the tunnel").expect("sent");
    let (mut datagram, mut dst) = ([0; 2048], [0; 2048]);
    // The peer answers the handshake and sends the packet back.
    loop {
        let (size, from) = socket
            .recv_from(&mut datagram)
            .expect("the client's datagram");
        let mut outcome = tunnel
            .read(Some(from), &datagram[..size], &mut dst)
            .expect("read");
        while let Outcome::Network(size) = outcome {
            socket.send_to(&dst[..size], from).expect("sent");
            outcome = tunnel.read(None, &[], &mut dst).expect("flushed");
        }
        if let Outcome::Ipv4(size) = outcome {
            let mut packet = dst[..size].to_vec();
            assert_eq!(&packet[28..], b"hello through the tunnel");
            let (source, destination) = packet[12..20].split_at_mut(4);
            source.swap_with_slice(destination);
            let (source, destination) = packet[20..24].split_at_mut(2);
            source.swap_with_slice(destination);
            let Ok(Outcome::Network(size)) = tunnel.write(&packet, &mut dst) else {
                panic!("there is no session");
            };
            socket.send_to(&dst[..size], from).expect("sent");
            break;
        }
    }
    let size = user.recv(&mut datagram).expect("an answer");
    assert_eq!(&datagram[..size], b"hello through the tunnel");

    drop(child.0.stdin.take());
    let mut last = String::new();
    said.read_to_string(&mut last).expect("the last line");
    assert!(child.0.wait().expect("its end").success());
    assert!(last.contains("52 bytes written, 52 read"), "{last}");
}
