//! Tests of the eBPF programs in network namespaces. Applications are copies of this program. The
//! other end of the TUN is another namespace, and captures on the links show packets that must not
//! be there.

mod application;
mod attacks;
mod client;
mod closed;
mod daemon;
mod debian_12;
mod dns;
mod forwarding;
mod identity;
mod inward;
mod link_local;
mod links;
mod namespaces;
mod oddities;
mod outward;
mod pinned;
mod processes;
mod replacement;
mod scene;
mod senders;
mod serving;
mod shares;
mod succession;
mod together;
mod users;
mod verdict;

use taupe_lab::sandbox::Suite;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, client::WORD, ref rest @ ..] => client::main(rest),
        [_, daemon::DAEMON, ref rest @ ..] => daemon::main(rest),
        [_, daemon::CAPTURE, ref rest @ ..] => daemon::capture(rest),
        _ => {}
    }
    let tests = [
        identity::tests(),
        processes::tests(),
        users::tests(),
        verdict::tests(),
        outward::tests(),
        outward::costs(),
        inward::tests(),
        attacks::tests(),
        oddities::tests(),
        closed::tests(),
        pinned::tests(),
        replacement::tests(),
        succession::tests(),
        links::tests(),
        together::tests(),
        forwarding::tests(),
        dns::tests(),
        namespaces::tests(),
        senders::tests(),
        serving::tests(),
        link_local::tests(),
        shares::tests(),
        debian_12::tests(),
    ];
    Suite::new(tests.into_iter().flatten().collect())
        .prepare(|| taupe_lab::guest::install().map(drop))
        .main()
}
