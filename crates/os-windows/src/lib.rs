//! Safe wrappers for what Windows makes unsafe or easy to get wrong: whose a socket is, UDP ports,
//! network connections, services, named pipes, the event log, privileges, the end of a console
//! program, who may change files, which programs may use the network, and virtual adapters with
//! their addresses and routes. Windows 10 and Windows Server 2016 have all of it, unless something
//! says otherwise.

#![cfg(windows)]

pub mod access;
pub mod connections;
pub mod console;
pub mod event_log;
pub mod lock;
pub mod pipe;
pub mod privilege;
pub mod processes;
pub mod programs;
pub mod routes;
pub mod service;
pub mod udp;
pub mod wintun;

mod descriptor;
mod event;
mod library;
mod wide;
