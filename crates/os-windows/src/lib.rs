//! Safe wrappers for the parts of Windows that need `unsafe` or are easy to get wrong: owners of
//! sockets, UDP ports, network connections, services, named pipes, the event log, privileges, the
//! end of a console program, file permissions, the network lock for programs, and virtual adapters
//! with their addresses and routes. Windows 10 and Windows Server 2016 provide all of it, unless a
//! function says otherwise.

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
