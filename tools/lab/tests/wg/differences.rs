//! Intended differences of Taupe called as `wg` from Debian's `wg`, with reasons.
//!
//! Debian's is wireguard-tools 1.0.20210914, Taupe follows 1.0.20260223. Four more differences are
//! removed before comparisons:
//!
//! - `words.rs`: the descriptions in the list of sub-commands are Taupe's own text, and the grammar
//!   of `set` has the signs of `allowed-ips`.
//! - `show.rs`: `show all endpoints` names the device in each line, and in no line if there is
//!   none.
//! - `sync.rs`: `syncconf` removes the preshared key and the keepalive of a peer that has none in
//!   the file.
//! - `keys.rs`: a key that cannot be written is an error.

/// A call whose output or effect differs.
pub(crate) struct Difference {
    /// The comparison it belongs to.
    pub(crate) section: &'static str,
    /// The call.
    pub(crate) case: &'static str,
    /// Taupe's output or effect, which Debian's lacks.
    pub(crate) taupe: &'static str,
    /// The reason.
    #[expect(dead_code, reason = "for the reader")]
    pub(crate) why: &'static str,
}

const fn of(
    section: &'static str,
    case: &'static str,
    taupe: &'static str,
    why: &'static str,
) -> Difference {
    Difference {
        section,
        case,
        taupe,
        why,
    }
}

const VERSION: &str = "v1.0.20260223 - https://git.zx2c4.com/wireguard-tools/\\nby Taupe";
const WHOSE: &str = "the version whose behaviour this is, and whose program";

const KEY: &str = "this is a key, but the path of a file with the key is expected";
const KEY_WHY: &str = "\"No such file\" tells neither that a file is expected nor why";

const SIGNS: &str = "1.0.20260223 takes `+` and `-` before a network, 1.0.20210914 does not";

const HIDDEN: &str = "Key is not the correct length or format: `(hidden)'";
const HIDDEN_WHY: &str = "standard error may be a log, and a key with a slip in it is nearly a key";

const SERVICE: &str = "the name of a service is no port of a tunnel but a slip";

const OVERFLOW: &str = "65536 is no port: Debian's takes it for 0";

pub(crate) const DIFFERENCES: &[Difference] = &[
    of("words", "-v", VERSION, WHOSE),
    of("words", "--version", VERSION, WHOSE),
    of("words", "version", VERSION, WHOSE),
    of(
        "set wrong",
        "WG_ENDPOINT_RESOLUTION_RETRIES=0 set IF peer {P1} preshared-key {P2}",
        KEY,
        KEY_WHY,
    ),
    of(
        "set wrong",
        "WG_ENDPOINT_RESOLUTION_RETRIES=0 set IF private-key {P2}",
        KEY,
        KEY_WHY,
    ),
    of(
        "set right",
        "set IF peer {P1} allowed-ips +192.0.2.1",
        "192.0.2.1/32,198.51.100.0/24,2001:db8:99::/48",
        SIGNS,
    ),
    of(
        "set right",
        "set IF peer {P1} allowed-ips -198.51.100.0/24",
        "\t2001:db8:99::/48\t",
        SIGNS,
    ),
    of(
        "set right",
        "set IF peer {P1} allowed-ips +192.0.2.1/32,-2001:db8:99::/48",
        "\t192.0.2.1/32,198.51.100.0/24\t",
        SIGNS,
    ),
    of(
        "set right",
        "set IF peer {P1} allowed-ips 192.0.2.1,+192.0.2.2",
        "\t192.0.2.1/32,192.0.2.2/32,198.51.100.0/24,2001:db8:99::/48\t",
        SIGNS,
    ),
    of(
        "set right",
        "set IF peer {P1} allowed-ips +192.0.2.1 allowed-ips 192.0.2.2",
        "\t192.0.2.1/32,192.0.2.2/32\t",
        SIGNS,
    ),
    of(
        "set right",
        "set IF peer {P1} allowed-ips +nosuch",
        "`nosuch'",
        SIGNS,
    ),
    of(
        "set right",
        "set IF peer {P1} allowed-ips --192.0.2.1",
        "`-192.0.2.1'",
        SIGNS,
    ),
    of("set right", "set IF peer {P1} allowed-ips +", "`'", SIGNS),
    of(
        "set right",
        "set IF private-key /run/lab/scratch/key12",
        HIDDEN,
        HIDDEN_WHY,
    ),
    of(
        "set right",
        "set IF private-key /run/lab/scratch/key13",
        HIDDEN,
        HIDDEN_WHY,
    ),
    of(
        "set right",
        "set IF peer {P1} preshared-key /run/lab/scratch/key12",
        HIDDEN,
        HIDDEN_WHY,
    ),
    of(
        "set right",
        "set IF peer {P1} preshared-key /run/lab/scratch/key13",
        HIDDEN,
        HIDDEN_WHY,
    ),
    of(
        "answers",
        "show wf: \"public_key=KEY\\nendpoint=192.0.2.1:65536\\nerrno=0\\n\\n\"",
        "Protocol error",
        OVERFLOW,
    ),
    of(
        "answers",
        "show wf dump: \"public_key=KEY\\nendpoint=192.0.2.1:65536\\nerrno=0\\n\\n\"",
        "Protocol error",
        OVERFLOW,
    ),
    of(
        "answers",
        "showconf wf: \"public_key=KEY\\nendpoint=192.0.2.1:65536\\nerrno=0\\n\\n\"",
        "Protocol error",
        OVERFLOW,
    ),
    of(
        "files right",
        "\u{feff}[Interface]\n",
        "Some(0)",
        "editors leave such a mark, and it says nothing",
    ),
    of(
        "files right",
        "[Interface]\nListenPort=domain\n",
        "Servname not supported",
        SERVICE,
    ),
    of(
        "files right",
        "[Interface]\nListenPort=65536\n",
        "Servname not supported",
        OVERFLOW,
    ),
    of(
        "files right",
        "[Peer]\nPublicKey={P1}\nEndpoint=192.0.2.1:domain\n",
        "Servname not supported",
        SERVICE,
    ),
    of(
        "files right",
        "[Peer]\nPublicKey={P1}\nEndpoint=192.0.513:5\n",
        "Name or service not known",
        "the numbers of inet_aton(3), such as 127.1, are a slip in a file",
    ),
    of(
        "files right",
        "addconf [Interface]\nPrivateKey=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
        "kXeyMnjL8PPRfDbyrMm1XpyF+HsiClOG7DcNZj4g4zc=",
        "a key of zeros is no key, and a file that adds nothing takes nothing away",
    ),
    of("files wrong", "PrivateKey={K1}\n", "(hidden)", HIDDEN_WHY),
    of(
        "files wrong",
        "[Interface]\nPrivateKey={K1} {K2}\n",
        "(hidden)",
        HIDDEN_WHY,
    ),
    of(
        "files wrong",
        "[Peer]\nPrivateKey={K1}\n",
        "(hidden)",
        HIDDEN_WHY,
    ),
    of(
        "files wrong",
        "[Interface]\nPresharedKey={P1}\n",
        "(hidden)",
        HIDDEN_WHY,
    ),
    of("files wrong", "{K1}\n", "(hidden)", HIDDEN_WHY),
];
