//! Commands that are not executed here, with the place where the thing itself is run.

/// A command that another test runs, or that nobody can run in a test.
pub(crate) struct Elsewhere {
    /// The command, as the page has it.
    pub(crate) command: &'static str,
    pub(crate) runs: Runs,
}

/// A place where the thing itself is run.
pub(crate) enum Runs {
    /// A step of `scripts/test`, which is the same command.
    Same,
    /// Steps of `scripts/test` whose commands begin like this. They differ from the documented
    /// command and run the thing nevertheless, for this reason.
    Others(&'static [&'static str], &'static str),
    /// A file with tests, and the name of one of them.
    Test(&'static str, &'static str),
    /// Only by hand, for this reason.
    ByHand(&'static str),
}

use Runs::{ByHand, Others, Same, Test};

const BENCH: &str = "tools/bench/tests/command.rs";
const DEMO: &str = "tools/lab/tests/demo.rs";
const IMAGE: &str = "tools/lab/tests/packages/image.rs";
const INSTALL: &str = "crates/taupe/tests/install.rs";
const LIBRARY: &str = "crates/ffi/tests/installed.rs";
const WEB: &str = "tools/lab/tests/transparent/web.rs";
const METRICS: &str = "tools/lab/tests/quick/metrics.rs";
const SERVICE: &str = "tools/lab/tests/service/users.rs";
const PACKAGES: &str = "tools/lab/tests/packages/main.rs";
const TOP: &str = "tools/lab/tests/transparent/top.rs";

/// The steps that other commands are compared with.
const LINK: &[&str] = &["scripts/cross link x86_64-unknown-freebsd aarch64-apple-darwin"];
const DEBUG: &str = "it links the same program without optimisation";
const JAVA: &str =
    "Maven compiles the class, and a program that finds the library by that property";

/// The test that parses commands of `taupe-lab`.
pub(crate) const LAB: Runs = Test(
    "tools/bench/src/documented.rs",
    "documented_commands_are_understood",
);

/// The test that follows the tutorial.
pub(crate) const TUTORIAL: (&str, Runs) = (
    "docs/tutorial-post-quantum.md",
    Test(DEMO, "the_post_quantum_tutorial_is_true"),
);

const fn at(command: &'static str, runs: Runs) -> Elsewhere {
    Elsewhere { command, runs }
}

/// Each command once, although several pages may have it.
#[rustfmt::skip]
pub(crate) const ELSEWHERE: &[Elsewhere] = &[
    // The demo, the tests.
    at("make demo", Test(DEMO, "every_line_of_the_demo_holds")),
    at("make demo-pq", Test(DEMO, "the_post_quantum_tutorial_is_true")),
    at("make test", ByHand("CI runs it, and this test with it")),
    at("make test-long", ByHand("it takes hours")),
    at("make check", Others(&["cargo fmt --all --check", "cargo clippy --workspace --all-targets -- -D warnings", "scripts/deny", "scripts/vendored"], "the recipe")),
    at("make simulate HOURS=100 SEED=7", Others(&["simulate --hours"], "the recipe, with other numbers")),
    at("make fuzz SECONDS_EACH=60", Others(&["scripts/fuzz"], "the recipe, with another number")),
    at("make bench-micro", ByHand("it measures; lints compile it")),
    at("cargo xtask arrows", Same),
    at("cargo xtask lint", Same),
    at("cargo xtask bpf-mutants", ByHand("it takes hours, and clang")),
    at("cargo xtask bpf-mutants --new MINUTES verdict.h,guards.h", ByHand("as above")),
    at("cargo xtask bpf-mutants --again verdict.h", ByHand("as above")),
    at("cargo test -p taupe-protocol", Others(&["$xtask tests --others"], "they are among these tests")),
    at("cargo test -p taupe-lab --test behaviours NAME", Same),
    at("scripts/bpf", Others(&["scripts/bpf --check"], "it builds the objects and compares them in place of writing them")),
    at("scripts/fuzz 60", Others(&["scripts/fuzz"], "with another number")),
    at("scripts/fuzz --saturate", ByHand("it takes hours, and a nightly toolchain")),
    at("scripts/fuzz --saturate 600 netlink bpf", ByHand("as above")),
    at("scripts/fuzz --minimise netlink", ByHand("as above")),
    // Building and installing.
    at("make build", Others(&["cargo build --release -p taupe", "cargo build --release -p taupe-web"], "the recipe")),
    at("make build pages && sudo make install", Test(INSTALL, "all_of_it_is_installed_and_removed")),
    at("make packages", Test(PACKAGES, "first_request")),
    at("sudo apt install ./target/packages/taupe_*.deb", Test(PACKAGES, "first_request")),
    at("make build && cargo build --release -p taupe-bench", Others(&["cargo build --release -p taupe", "cargo xtask tests --build"], "the recipe; tests have the measuring program built without optimisation")),
    at("cargo build --release -p taupe-bench --bin taupe-lab --features rainbow", Others(&["cargo check -p taupe-bench --bin taupe-lab --features rainbow"], "it compiles the same, without code")),
    // Users without root.
    at("sudo apt install ./target/packages/taupe_*.deb ./target/packages/taupe-service_*.deb", Test(SERVICE, "own_processes")),
    at("sudo adduser alice taupe", ByHand("the test's users are members of the group from the beginning")),
    at("taupe up ~/u-home.conf", Test(SERVICE, "own_processes")),
    at("taupe status", Test(SERVICE, "own_processes")),
    at("taupe flows", Test(SERVICE, "others")),
    at("taupe reload ~/u-home.conf", Test(SERVICE, "reload")),
    at("taupe down u-home", Test(SERVICE, "own_processes")),
    at("sudo cp office.conf /etc/taupe/allowed/office.conf", Test(SERVICE, "listed")),
    at("taupe up office", Test(SERVICE, "listed")),
    at("taupe down office", Test(SERVICE, "listed")),
    at("sudo taupe status", Test(SERVICE, "down_by_root")),
    at("sudo taupe down u-home", Test(SERVICE, "down_by_root")),
    // The library.
    at("make build pages library", Others(&["cargo build --release -p taupe", "packaging/library"], "recipes; another test makes the pages")),
    at("sudo make install LIBRARY=1", Test(LIBRARY, "an_installed_library_is_found_and_runs")),
    at("make build pages library && sudo make install LIBRARY=1", Test(LIBRARY, "an_installed_library_is_found_and_runs")),
    at("cc program.c $(pkg-config --cflags --libs taupe)", Test(LIBRARY, "an_installed_library_is_found_and_runs")),
    at("cc -static program.c $(pkg-config --static --cflags --libs taupe)", Test(LIBRARY, "an_installed_library_is_found_and_runs")),
    at("cc program.c $(pkg-config --cflags taupe) $(pkg-config --variable=libdir taupe)/libtaupe.a -lpthread -ldl -lm", Test(LIBRARY, "an_installed_library_is_found_and_runs")),
    at("make library JAVA=1", ByHand("it takes minutes; scripts/java tests the class over a library without optimisation")),
    at("scripts/java", Same),
    at("javac -d classes crates/ffi-java/java/src/main/java/com/cloudflare/app/boringtun/BoringTunJNI.java", Others(&["scripts/java"], JAVA)),
    at("javac -cp classes -d classes Program.java", Others(&["scripts/java"], JAVA)),
    at("java -cp classes -Djava.library.path=target/library Program", Others(&["scripts/java"], JAVA)),
    // The page.
    at("sudo taupe web", Test(WEB, "served")),
    at("sudo taupe web --switches", Test(WEB, "switches")),
    at("ssh -L 9587:127.0.0.1:9587 HOST", ByHand("it takes a second machine with a server of ssh")),
    // Metrics.
    at("sudo taupe metrics --listen 127.0.0.1:9586", Test(METRICS, "served")),
    at("curl http://127.0.0.1:9586/metrics", Test(METRICS, "served")),
    at("sudo sh -c 'taupe metrics --prometheus > /var/lib/node_exporter/taupe.prom.new && mv /var/lib/node_exporter/taupe.prom.new /var/lib/node_exporter/taupe.prom'", ByHand("the folder is node_exporter's; a unit test checks the format")),
    at("sudo taupe top", Test(TOP, "live_view")),
    // Containers, with IMAGE=1.
    at("podman run --detach --name vpn --cap-drop all --read-only --security-opt no-new-privileges --volume ./home.conf:/home.conf:ro taupe:0.1.0 proxy /home.conf", Test(IMAGE, "proxy")),
    at("podman run --rm --network container:vpn docker.io/curlimages/curl --proxy socks5h://127.0.0.1:1080 https://example.org/", Test(IMAGE, "proxy")),
    at("podman run --detach --name gateway --cap-drop all --cap-add NET_ADMIN --security-opt no-new-privileges --device /dev/net/tun --publish 51820:51820/udp taupe:0.1.0 device --foreground wg0", Test(IMAGE, "gateway")),
    at("podman cp gateway.conf gateway:/run/gateway.conf", ByHand("the test of the gateway sets no configuration")),
    at("podman exec gateway taupe setconf wg0 /run/gateway.conf", ByHand("as above; setconf has tests outside containers")),
    at("podman run --detach --name vpn --user 0 --cap-drop all --cap-add NET_ADMIN --security-opt no-new-privileges --device /dev/net/tun --sysctl net.ipv4.conf.all.src_valid_mark=1 --volume ./home.conf:/home.conf:ro taupe:0.1.0 up --foreground --no-firewall /home.conf", Test(IMAGE, "all_traffic")),
    at("podman run --rm --network container:vpn docker.io/curlimages/curl https://example.org/", Test(IMAGE, "all_traffic")),
    // Other processors and systems.
    at("scripts/cross build aarch64-unknown-linux-gnu", Others(&["scripts/cross build $triple"], "the first target of a loop")),
    at("scripts/cross test aarch64-unknown-linux-gnu", Same),
    at("scripts/cross cargo aarch64-unknown-linux-gnu test -p taupe-crypto", Others(&["scripts/cross test aarch64-unknown-linux-gnu"], "it runs these tests, except those that take minutes")),
    at("scripts/cross link x86_64-unknown-freebsd aarch64-apple-darwin", Same),
    at("scripts/cross link aarch64-unknown-freebsd", ByHand("it takes a nightly toolchain and minutes")),
    at("scripts/cross cargo x86_64-unknown-freebsd build --release -p taupe --bin taupe", Others(LINK, DEBUG)),
    at("scripts/cross cargo aarch64-apple-darwin build --release -p taupe --bin taupe", Others(LINK, DEBUG)),
    at("scripts/cross cargo x86_64-unknown-freebsd build --release -p taupe-os-bsd --example probe", Others(LINK, DEBUG)),
    at("scripts/cross cargo aarch64-apple-darwin build --release -p taupe-os-bsd --example probe", Others(LINK, DEBUG)),
    at("qemu-aarch64 -L /usr/aarch64-linux-gnu target/cross/aarch64-unknown-linux-gnu/taupe genkey", ByHand("the program takes minutes to build")),
    at("qemu-aarch64 target/cross/aarch64-unknown-linux-musl/taupe genkey", Others(&["scripts/static"], "it has the program make keys by qemu-aarch64-static")),
    at("rustup target add x86_64-unknown-freebsd", Others(&["scripts/portable"], "it does so if the target is missing")),
    at("cargo check --target x86_64-unknown-freebsd -p taupe-proxy --no-default-features --features portable", Others(&["scripts/portable"], "it lints the package with others, for the same target")),
];

/// Pages about other systems: all commands that are in no other table.
pub(crate) const NOT_HERE: [(&str, &str); 2] = [
    ("docs/freebsd.md", "it takes FreeBSD"),
    ("docs/macos.md", "it takes a Mac"),
];

/// The page and test of commands that measure: [`LAB`] parses them, and this test measures.
pub(crate) const MEASURED: Runs = Test(BENCH, "two_contestants_are_measured");
