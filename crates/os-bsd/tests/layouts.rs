//! The layouts against the systems' own headers, by zig's C compiler.
//!
//! Needs Python 3 with venv, and PyPI or an earlier installation of zig (`scripts/zig`).

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use taupe_os_bsd::{
    System,
    layout::{Fact, assertions},
};

/// A processor and a version of a system, as zig names them. zig ships one set of headers for all
/// versions: those of FreeBSD 15 and macOS 27. The version matters only where a header asks for it.
const TARGETS: [(System, &str); 6] = [
    (System::FreeBsd, "x86_64-freebsd.14.0"),
    (System::FreeBsd, "aarch64-freebsd.14.0"),
    (System::FreeBsd, "x86_64-freebsd.15.0"),
    (System::FreeBsd, "aarch64-freebsd.15.0"),
    (System::MacOs, "aarch64-macos.13.0"),
    (System::MacOs, "x86_64-macos.13.0"),
];

const FREEBSD_HEADERS: &str = "
#include <errno.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/filio.h>
#include <sys/socket.h>
#include <sys/sockio.h>
#include <sys/sysctl.h>
#include <sys/time.h>
#include <net/if.h>
#include <net/if_dl.h>
#include <net/if_tun.h>
#include <net/if_types.h>
#include <net/route.h>
#include <netinet/in.h>
#include <netinet6/in6_var.h>
#include <netinet6/nd6.h>
";

/// The last declarations are those that zig lacks, after `netinet6/in6_var.h`, `netinet6/nd6.h` and
/// `sys/sys_domain.h` in Apple's published source (xnu-11417). The compiler computes their sizes and
/// offsets from the types in zig's headers. It cannot tell that the members are the right ones.
const MACOS_HEADERS: &str = "
#define __APPLE_USE_RFC_3542
#include <errno.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/filio.h>
#include <sys/socket.h>
#include <sys/sockio.h>
#include <sys/sysctl.h>
#include <sys/kern_control.h>
#include <net/if.h>
#include <net/if_dl.h>
#include <net/if_types.h>
#include <net/if_utun.h>
#include <net/route.h>
#include <netinet/in.h>

struct in6_aliasreq {
    char ifra_name[IFNAMSIZ];
    struct sockaddr_in6 ifra_addr, ifra_dstaddr, ifra_prefixmask;
    int ifra_flags;
    struct { time_t expire, preferred; u_int32_t ia6t_vltime, ia6t_pltime; } ifra_lifetime;
};
struct in6_ifreq {
    char ifr_name[IFNAMSIZ];
    union { struct sockaddr_in6 address; u_quad_t icmp6_statistics[34]; } ifr_ifru;
};
#define SIOCAIFADDR_IN6 _IOW('i', 26, struct in6_aliasreq)
#define SIOCDIFADDR_IN6 _IOW('i', 25, struct in6_ifreq)
#define IN6_IFF_NODAD 0x0020
#define ND6_INFINITE_LIFETIME 0xffffffff
#define SYSPROTO_CONTROL 2
#define AF_SYS_CONTROL 2
";

/// Returns a C file that compiles only if all facts are true.
fn c_file(system: System, facts: &[Fact]) -> String {
    let mut file = match system {
        System::FreeBsd => FREEBSD_HEADERS.to_owned(),
        System::MacOs => MACOS_HEADERS.to_owned(),
    };
    for fact in facts {
        let condition = match fact {
            Fact::Size(of, size) => format!("sizeof({of}) == {size}"),
            Fact::Offset(of, member, offset) => format!("offsetof({of}, {member}) == {offset}"),
            Fact::Value(name, value) => format!("(unsigned)({name}) == {value}U"),
            Fact::Text(name, text) => format!("__builtin_strcmp({name}, {text:?}) == 0"),
        };
        writeln!(file, "_Static_assert({condition}, {condition:?});").unwrap();
    }
    file
}

/// Returns zig's C compiler. `scripts/zig` knows one processor of each system; option `-target`
/// selects another.
fn compiler(system: System) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let triple = match system {
        System::FreeBsd => "x86_64-unknown-freebsd",
        System::MacOs => "aarch64-apple-darwin",
    };
    let output = Command::new(root.join("scripts/zig"))
        .arg(triple)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/zig {triple}: {error}");
    let folder = String::from_utf8(output.stdout).unwrap();
    Path::new(folder.trim_end()).join("cc")
}

/// Compiles a C file and returns the compiler's errors, which are empty if there is none.
fn compile(compiler: &Path, target: &str, file: &str) -> Result<(), String> {
    let name = std::thread::current()
        .name()
        .unwrap_or("layouts")
        .to_owned();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{target}"));
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join("layout.c");
    std::fs::write(&source, file).unwrap();
    let output = Command::new(compiler)
        .args(["-target", target, "-ferror-limit=0", "-c"])
        .arg(&source)
        .arg("-o")
        .arg(folder.join("layout.o"))
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn facts(system: System) -> Vec<Fact> {
    let all = assertions(system);
    all.iter().map(|assertion| assertion.fact).collect()
}

#[test]
fn sizes_offsets_and_constants_are_those_of_the_headers() {
    for (system, target) in TARGETS {
        let compiled = compile(&compiler(system), target, &c_file(system, &facts(system)));
        compiled.unwrap_or_else(|errors| panic!("{target}:\n{errors}"));
    }
}

#[test]
fn a_wrong_size_offset_or_constant_is_found() {
    for (system, target) in [TARGETS[0], TARGETS[4]] {
        let mut planted = Vec::new();
        let mut facts = facts(system);
        for fact in &mut facts {
            match fact {
                Fact::Size("struct ifreq", size) => *size += 1,
                Fact::Offset("struct rt_msghdr", "rtm_errno", offset) => *offset += 4,
                Fact::Value("AF_INET6", value) => *value += 2,
                _ => continue,
            }
            planted.push(*fact);
        }
        assert_eq!(planted.len(), 3);
        let errors = compile(&compiler(system), target, &c_file(system, &facts)).unwrap_err();
        let found: Vec<&str> = errors
            .lines()
            .filter(|line| line.contains("error: static assertion failed"))
            .collect();
        assert_eq!(found.len(), 3, "{errors}");
        for name in ["struct ifreq", "rtm_errno", "AF_INET6"] {
            assert!(found.iter().any(|line| line.contains(name)), "{errors}");
        }
    }
}

/// The list of what no compiler has compared with a header.
#[test]
fn few_declarations_are_from_source_only() {
    let from_source = |system| {
        let mut names: Vec<&str> = assertions(system)
            .iter()
            .filter(|assertion| !assertion.is_in_headers)
            .map(|assertion| assertion.fact.declaration())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    assert!(from_source(System::FreeBsd).is_empty());
    assert_eq!(
        from_source(System::MacOs),
        [
            "AF_SYS_CONTROL",
            "IN6_IFF_NODAD",
            "ND6_INFINITE_LIFETIME",
            "SIOCAIFADDR_IN6",
            "SIOCDIFADDR_IN6",
            "SYSPROTO_CONTROL",
            "struct in6_aliasreq",
            "struct in6_ifreq",
        ]
    );
}
