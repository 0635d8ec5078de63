//! Interoperability with boringtun: the same program, once linked with boringtun's library and once
//! with Taupe's, in two processes over UDP on the loopback.

mod common;

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::process::Command;

use common::{Built, Library, Program, Running, boringtun};

const PSK: &str = "FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE=";

/// Runs both programs; `initiator` starts the handshake.
fn meet(initiator: &Built, responder: &Built, psk: &str, loss: u32) {
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
    let address = |i: usize| sockets[i].local_addr().expect("its address");
    sockets[0].connect(address(1)).expect("connected");
    sockets[1].connect(address(0)).expect("connected");
    let [mine, other] = sockets.map(OwnedFd::from);
    let keys = [(); 2].map(|()| {
        let private = taupe::random_secret();
        let public = taupe::crypto::default_provider()
            .dh
            .public(private.expose());
        (
            taupe::key::to_hex(private.expose()),
            taupe::key::to_hex(&public),
        )
    });
    let command = |program: &Built, role: &str, own: usize, socket: OwnedFd| -> Command {
        let mut command = program.command();
        let (loss, seed) = (loss.to_string(), (own + 1).to_string());
        let (private, public) = (&keys[own].0, &keys[1 - own].1);
        command.args([role, private, public, psk, &loss, &seed]);
        command.stdin(socket);
        command
    };
    let responder = command(responder, "respond", 1, other).spawn();
    let _responder = Running(responder.expect("a responder"));
    let said = common::finish(command(initiator, "initiate", 0, mine));
    println!("psk {}, loss {loss} %: {said}", psk != "-");
}

#[test]
fn boringtun_s_library_and_taupe_s_understand_each_other() {
    let taupe = Program::new("interop.c").library(Library::Shared).build();
    let program = Program::new("interop.c");
    let boringtun = program.library(Library::Other(boringtun())).build();
    for (initiator, responder) in [(&taupe, &boringtun), (&boringtun, &taupe)] {
        meet(initiator, responder, "-", 0);
        meet(initiator, responder, PSK, 0);
        meet(initiator, responder, PSK, 20);
    }
}
